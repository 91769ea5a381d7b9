"""What stderr says besides errors: notes, unless it is to be quiet; steps, if asked; a bar and a line on a terminal."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from running import on_terminal, text_shown

Run = Callable[..., Any]

LINES = b"time flies\n\nlike an arrow\n\xff\nfruit flies\n"


def test_quiet_says_errors_alone(attn: Run, tmp_path: Path) -> None:
    loud, quiet = attn("inspect", "-F", "jsonl", stdin=LINES), attn("inspect", "-F", "jsonl", "--quiet", stdin=LINES)
    assert (quiet.code, quiet.out) == (loud.code, loud.out) == (5, quiet.out)
    error = "attn: sentence 4: it is not UTF-8 at byte 1; convert standard input to UTF-8 first"
    assert set(loud.err.splitlines()) == {error, "attn: standard input: 1 empty line was skipped"}
    assert quiet.err.splitlines() == [error]
    blind = ("inspect", "time flies", "--mask", "~full", "-F", "tsv")
    assert "warning: " in attn(*blind).err
    assert attn(*blind, "--quiet").err == ""
    assert attn("inspect", "--quiet").err.startswith("attn: ")
    assert "warning: " in attn(*blind).err, "a run is not as quiet as the one before it"


def test_verbose_says_what_the_native_engine_does_to_the_end_of_a_stream_with_a_bad_sentence(
    attn: Run, tiny_llama: str
) -> None:
    arguments = ("inspect", "time flies", " ", "an arrow flies", "-m", tiny_llama, "-l", "1", "-F", "jsonl")
    ran, silent = attn(*arguments, "--verbose"), attn(*arguments)
    assert (ran.code, silent.code, ran.out) == (5, 5, silent.out)
    messages = [re.sub(r"^\d+\.\d\d s: |\d+\.\d{3}(?= s$)", "", line[6:]) for line in ran.err.splitlines()]
    assert messages == [
        f"{tiny_llama}: llama of 3 layers; layer 1 is the last to run",
        "native engine: float32 on cpu",
        "ran 2 tokens in  s",
        *(line[6:] for line in silent.err.splitlines()),
        "ran 3 tokens in  s",
        "done",
    ]


def test_a_bar_follows_the_sentences_and_is_gone_at_the_end(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "sentences.txt"
    path.write_text("time flies\n" * 40)
    code, data, shown = on_terminal("heads", "-F", "json", "--file", path)
    assert code == 0
    assert data == attn("heads", "-F", "json", "--file", path).out
    assert "/40" in text_shown(shown)
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") > 0  # the cursor is back
    assert shown.rstrip("\r\n").endswith("\x1b[2K")  # and the line is erased


def test_there_is_no_bar_where_it_would_be_in_the_way(attn: Run) -> None:
    few = ("inspect", "time flies", "like an arrow", "-F", "jsonl")
    for arguments, out, term in (
        (few, True, "xterm"),  # documents on the same terminal
        ((*few, "--quiet"), False, "xterm"),
        (("inspect", "time flies", "-F", "jsonl"), False, "xterm"),  # a single sentence
        (few, False, "dumb"),
    ):
        code, _, shown = on_terminal(*arguments, out=out, TERM=term)
        assert code == 0
        assert "━" not in text_shown(shown)
        assert "\x1b[?25l" not in shown
    assert attn(*few).err == ""
