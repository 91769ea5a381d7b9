"""A terminal: one screen of it by default, and everything through a pager with --all."""

import os
import re
from pathlib import Path

import pytest
from running import on_terminal, plain, program, text_shown

TEXT = " ".join(f"word{number}" for number in range(40))
TOY = ("--num-heads", "12", "--d-model", "24")
SCREEN = {"COLUMNS": "100", "LINES": "50", "COLORTERM": "truecolor"}


def test_a_terminal_has_one_screen_and_a_pipe_has_all() -> None:
    code, _, shown = on_terminal("inspect", TEXT, *TOY, out=True, **SCREEN)
    assert code == 0
    assert len(text_shown(shown).splitlines()) <= 49
    assert all(re.search(rf"head {head}\b", text_shown(shown)) for head in range(12))
    assert "attn: one screen has room for maps in blocks of cells; --all shows everything" in text_shown(shown)
    piped = program("inspect", TEXT, *TOY)
    assert "scores, before the mask" in piped.stdout
    assert piped.stderr == ""


def test_what_is_said_above_the_view_takes_lines_of_the_screen() -> None:
    arguments = [TEXT, "--mask", "causal & ~queries(2,9)"]
    small = {"COLUMNS": "60", "LINES": "40", "COLORTERM": "truecolor"}
    code, _, shown = on_terminal("inspect", *arguments, out=True, **small)
    lines = text_shown(shown).splitlines()
    said = next(place for place, line in enumerate(lines) if line.startswith("toy layer"))
    assert (code, said) == (0, 3)
    assert " ".join(lines[:said]).count("attn: ") == 1  # rows without a key
    assert 36 <= len(lines) <= 39
    code, _, shown = on_terminal("inspect", *arguments, "--quiet", out=True, **small)
    assert text_shown(shown).startswith("toy layer")


def test_everything_goes_through_the_pager_of_a_person(tmp_path: Path) -> None:
    read = tmp_path / "read"
    pager = f"cat > '{read}'"
    code, _, shown = on_terminal("inspect", TEXT, *TOY, "--all", out=True, PAGER=pager, **SCREEN)
    assert (code, shown) == (0, "")
    assert "\x1b[" in read.read_text()
    text = plain(read.read_text())
    assert "scores, before the mask" in text
    assert "largest of" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert all(re.search(rf"head {head}\b", text) for head in range(12))


def test_less_is_given_what_git_gives_it(tmp_path: Path) -> None:
    read = tmp_path / "read"
    pager = f"cat > '{read}'; echo $LESS >> '{read}'"
    for less, expected in ((None, "FRX"), ("-S", "-S")):
        given = {} if less is None else {"LESS": less}
        assert on_terminal("inspect", "a b", "--all", out=True, PAGER=pager, **given)[0] == 0
        assert read.read_text().splitlines()[-1] == expected


@pytest.mark.parametrize("pager", ["", "cat", "no-such-pager-anywhere"])
def test_without_a_pager_it_is_printed(pager: str) -> None:
    code, _, shown = on_terminal("inspect", TEXT, *TOY, "--all", out=True, PAGER=pager, **SCREEN)
    assert code == 0
    assert "scores, before the mask" in text_shown(shown)


def test_who_leaves_the_pager_early_has_seen_enough() -> None:
    long = " ".join(f"word{number}" for number in range(64))
    code, _, shown = on_terminal("inspect", long, "--num-heads", "32", "--all", out=True, PAGER="true", **SCREEN)
    assert (code, shown) == (0, "")


def test_a_pipe_and_a_file_have_no_pager(tmp_path: Path) -> None:
    environment = os.environ | {"PAGER": "echo paged; cat > /dev/null"}
    assert "paged" not in program("inspect", "a b", "--all", env=environment).stdout
    _, out, shown = on_terminal("inspect", "a b", "--all", "-o", str(tmp_path / "x.txt"), out=True, PAGER="echo paged")
    assert (out, shown) == ("", "")
