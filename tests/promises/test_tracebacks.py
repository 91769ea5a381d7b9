"""What is said of an error: one sentence, and with ATTN_DEBUG the traceback before it, harmless whatever it quotes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Ran
from safetensors.numpy import save_file
from typer.testing import CliRunner

from attncli.cli.app import app

Run = Callable[..., Any]


def run(**environment: str) -> Ran:
    """Run a command in which an error is planted; the fixture `attn` takes none."""
    result = CliRunner().invoke(app, ["inspect", "time flies"], env=environment)
    return Ran(result.exit_code, result.stdout, result.stderr)


@pytest.mark.parametrize("error", [KeyError("\x1b[31mred"), OSError(5, "Input/output error")])
def test_a_bug_is_called_one(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr("attncli.trace.view.View.check", failing)
    ran = run()
    assert (ran.code, ran.out, ran.err.count("\n")) == (5, "", 1)
    assert ran.err.startswith("attn: this is a bug in attn; please report it: ")
    assert f"{type(error).__name__}: " in ran.err
    assert ran.err.endswith("; ATTN_DEBUG=1 shows the traceback\n")
    assert "\x1b" not in ran.err
    traced = run(ATTN_DEBUG="1")
    assert (traced.code, traced.out) == (5, "")
    assert traced.err.startswith("Traceback (most recent call last):\n")
    assert "in failing\n" in traced.err
    assert traced.err.endswith(ran.err)
    assert "\x1b" not in traced.err


def test_a_traceback_of_an_error_of_ours_shows_what_lies_behind_it(attn: Run) -> None:
    for value, is_traced in (("1", True), ("0", False), ("", False)):
        ran = attn("inspect", "--file", "/nowhere/sentences.txt", ATTN_DEBUG=value)
        assert ran.code == 5
        assert ran.err.splitlines()[-1] == "attn: cannot read /nowhere/sentences.txt: No such file or directory"
        assert ("FileNotFoundError: " in ran.err) == ("Traceback" in ran.err) == is_traced


def test_a_file_that_fails_while_it_is_read_is_no_bug(attn: Run) -> None:
    ran = attn("inspect", "--file", "/proc/self/mem")  # whose first page nobody may read
    assert (ran.code, ran.out, ran.err) == (5, "", "attn: cannot read /proc/self/mem: Input/output error\n")


LONG = "a" * 5_000_000


def test_a_message_does_not_quote_more_than_anyone_reads(attn: Run, tiny_llama: str, tmp_path: Path) -> None:
    vectors = np.ones((2, 3), np.float32)
    save_file({"q": vectors, "k": vectors}, tmp_path / "dump.safetensors", metadata={"scale": LONG})
    save_file({}, tmp_path / "trace.safetensors", metadata={"attncli": json.dumps({"schema": LONG})})
    messages = {
        ("inspect", "-", "-m", tiny_llama): ("vocabulary lacks 'aaa", "attention there is to the unknown token"),
        ("inspect", "-", "-m", tiny_llama, "--engine", "transformers"): ("lacks 'aaa", "to the unknown token"),
        ("tokens", "-", "-m", tiny_llama): ("vocabulary lacks 'aaa", "attention there is to the unknown token"),
        ("why", "-", "-q", "b"): ("no such query token", "aaa"),
        ("inspect", "--from", tmp_path / "dump.safetensors"): ("scale 'aaa", "expected a number"),
        ("inspect", "--from", tmp_path / "trace.safetensors"): ("schema aaa", "reads attncli.trace/1"),
    }
    for arguments, (first, last) in messages.items():
        ran = attn(*arguments, stdin=LONG)
        assert ran.code in (0, 2, 5)
        assert ran.err.count("\n") == 1
        assert len(ran.err) < 2100
        assert first in ran.err[:200].replace(str(tmp_path), "")
        assert last in ran.err[-100:]
