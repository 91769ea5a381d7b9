"""What a mistyped name of a checkpoint may have meant: a folder beside it, and a model of the local cache."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from attncli.checkpoints.checkpoint_folder import nearby

MINILM, GPT2 = "sentence-transformers/all-MiniLM-L6-v2", "gpt2"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in (MINILM, GPT2):
        snapshot = tmp_path / "cache" / ("models--" + name.replace("/", "--")) / "snapshots" / "1"
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text("{}")
    for name in ("my-llama", "runs/checkpoint-500", "MiniLM"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "my-lama-notes").mkdir()
    (tmp_path / "tiny.Q4.gguf").touch()
    return tmp_path


ALIKE = {
    "minilm": "MiniLM", "all-minilm-l6-v2": MINILM, "./my_llama": "./my-llama", "tiny.gguf": "tiny.Q4.gguf",
    "runs/checkpoint-50": "runs/checkpoint-500", "Demos": "demo",
}  # fmt: skip


def test_what_is_alike_is_named() -> None:
    assert {name: nearby(name) for name in ALIKE} == {name: f"; did you mean '{one}'?" for name, one in ALIKE.items()}
    assert {nearby(name) for name in ("gpt2", "bert-base-uncased", "", "\x1b[31m", "a\0b")} == {""}


def test_a_mistyped_name_fails_with_what_is_near(attn: Callable[..., Any]) -> None:
    for name, near in (("minilm", "MiniLM"), ("./minilm", "./MiniLM")):
        refused(attn("inspect", "x", "-m", name), 3, f"did you mean '{near}'?")
