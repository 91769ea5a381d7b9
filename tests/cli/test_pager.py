"""A terminal: one screen of it by default, and everything through a pager with --all."""

import re
from collections.abc import Callable
from pathlib import Path

from running import Ran, on_terminal, plain, text_shown

TEXT = " ".join(f"word{number}" for number in range(40))
TOY = ("--num-heads", "12", "--d-model", "24")
SCREEN = {"COLUMNS": "100", "LINES": "50", "COLORTERM": "truecolor"}


def test_a_terminal_has_one_screen_and_a_pipe_has_all(attn: Callable[..., Ran]) -> None:
    code, _, shown = on_terminal("inspect", TEXT, *TOY, out=True, **SCREEN)
    assert code == 0
    assert len(text_shown(shown).splitlines()) <= 49
    assert all(re.search(rf"head {head}\b", text_shown(shown)) for head in range(12))
    assert "attn: one screen has room for maps in blocks of cells; --all shows everything" in text_shown(shown)
    piped = attn("inspect", TEXT, *TOY, PAGER="echo paged")
    assert "scores, before the mask" in piped.out
    assert piped.err == ""


def test_what_is_said_above_the_view_takes_lines_of_the_screen() -> None:
    arguments = [TEXT, "--mask", "causal & ~queries(2,9)"]
    small = {"COLUMNS": "60", "LINES": "40", "COLORTERM": "truecolor"}
    code, _, shown = on_terminal("inspect", *arguments, out=True, **small)
    lines = text_shown(shown).splitlines()
    said = next(place for place, line in enumerate(lines) if line.startswith("toy layer"))
    assert (code, said) == (0, 3)
    assert " ".join(lines[:said]).count("attn: ") == 1  # rows without a key
    assert 36 <= len(lines) <= 39


def test_everything_goes_through_the_pager_of_a_person(tmp_path: Path) -> None:
    read = tmp_path / "read"
    pager = f"cat > '{read}'; echo LESS=$LESS >> '{read}'"
    code, _, shown = on_terminal("inspect", TEXT, *TOY, "--all", out=True, PAGER=pager, **SCREEN)
    assert (code, shown) == (0, "")
    assert "\x1b[" in read.read_text()
    text = plain(read.read_text())
    assert text.endswith("LESS=FRX\n")  # as git gives it
    assert "scores, before the mask" in text
    assert "largest of" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert all(re.search(rf"head {head}\b", text) for head in range(12))


def test_without_a_pager_it_is_printed() -> None:
    code, _, shown = on_terminal("inspect", TEXT, *TOY, "--all", out=True, PAGER="no-such-pager-anywhere", **SCREEN)
    assert code == 0
    assert "scores, before the mask" in text_shown(shown)
