"""What a TAB offers, asked as Typer's scripts ask."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shells import PROJECT, SCRIPTS
from small_checkpoints import hub_cache
from whole_program import whole_program


def offered(line: str, **environment: str) -> list[str]:
    """Return what fish is offered at the end of a line."""
    asked = {"_ATTN_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": line}
    with whole_program() as attn:
        ran = attn(**asked | environment)
    assert (ran.code, ran.err) == (0, "")
    return [one.split("\t")[0] for one in ran.out.splitlines() if one]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_scripts_in_the_repository_are_what_the_program_prints(shell: str, attn: Callable[..., Any]) -> None:
    ran = attn("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (PROJECT / "completions" / SCRIPTS[shell]).read_text(encoding="utf-8")
    assert "_ATTN_COMPLETE" in ran.out
    assert shell != "zsh" or ran.out.startswith("#compdef attn\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("attn ins", ["inspect"]),
        ("attn mask ", ["show", "check", "diff", "convert", "model"]),
        ("attn inspect --colorm", ["--colormap"]),
        ("attn inspect --format j", ["json", "jsonl"]),
        ("attn inspect --show q,k,me", ["q,k,metrics"]),
        ("attn check --fail-on leak,dea", ["leak,dead-row"]),
        ("attn inspect --mask 'causal & win", ["causal & window("]),
        ("attn inspect --num-heads 2 --head ", ["0", "1", "all"]),
        ("attn inspect -m demo --layer 0,1", ["0,1"]),
        ("attn inspect -m de", ["demo"]),
        ("attn help exit", ["exit-codes"]),
        ("attn inspect --from tr", []),
    ],
)
def test_a_tab_offers_what_fits(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


def test_models_of_the_local_cache_and_their_layers(tmp_path: Path, minilm: str) -> None:
    name = "sentence-transformers/all-MiniLM-L6-v2"
    cache = hub_cache(tmp_path, name, minilm)
    assert offered("attn inspect -m sent", **cache) == [name]
    assert offered(f"attn inspect -m {name} --layer 5", **cache) == ["5"]


def test_a_tab_complains_of_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.attncli")
    assert offered("attn inspect --layer ") == ["0", "all"]
