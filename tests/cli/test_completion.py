"""What a TAB offers, asked as Typer's scripts ask, and typed in bash, zsh and fish."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shells import PROJECT, SCRIPTS, Shell, shell
from small_checkpoints import hub_cache
from whole_program import whole_program


def offered(line: str, **environment: str) -> list[str]:
    """Return what fish is offered at the end of a line."""
    variables = {
        "_ATTN_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": line,
    }
    with whole_program() as attn:
        ran = attn(**variables | environment)
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
        ("attn inspect -m de", ["demo", "demo-vision"]),
        ("attn inspect -m to", ["toy"]),
        ("attn inspect --from tr", []),
    ],
)
def test_a_tab_offers_what_fits(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


def test_models_of_the_local_cache(tmp_path: Path, minilm: str) -> None:
    name = "sentence-transformers/all-MiniLM-L6-v2"
    assert offered("attn inspect -m sent", **hub_cache(tmp_path, name, minilm)) == [name]


@pytest.fixture(scope="module", params=["bash", "zsh", "fish"])
def typed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    home: Path = tmp_path_factory.mktemp(request.param)
    (home / "trace.safetensors").touch()
    with shell(request.param, home, HF_HOME=str(home / "none")) as opened:
        yield opened


@pytest.mark.system
@pytest.mark.parametrize(
    ("keys", "arguments"),
    [
        ("attn insp\t--colorm\tvi\t", ["inspect", "--colormap", "viridis"]),
        ("attn inspect -m demo-\t--show q,k,me\tx", ["inspect", "-m", "demo-vision", "--show", "q,k,metrics", "x"]),
        ("attn inspect --from tr\tx", ["inspect", "--from", "trace.safetensors", "x"]),
    ],
)
def test_a_tab_in_a_shell_finishes_the_word(typed: Shell, keys: str, arguments: list[str]) -> None:
    assert typed.ran(keys) == arguments
