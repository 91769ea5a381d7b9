"""The program in a real terminal, and who decides about its colours."""

import re
import shlex
import sys
from collections.abc import Callable

import pytest
from person import person
from running import Ran, on_terminal, text_shown
from tmux import Tmux
from whole_program import whole_program

ATTN = [sys.executable, "-m", "attncli"]
SENTENCE = "time flies like an arrow"
TEXT = " ".join(f"word{number}" for number in range(40))
TOY = ("--num-heads", "12", "--d-model", "24")
SCREEN = {"COLUMNS": "100", "LINES": "50", "COLORTERM": "truecolor"}


@pytest.mark.system
@pytest.mark.parametrize("width", [40, 100])
def test_a_terminal_of_any_width_shows_the_whole_view_in_colour(width: int) -> None:
    with Tmux(width, 60) as terminal:
        terminal.type(f"clear; {shlex.join([*ATTN, 'inspect', SENTENCE])}; echo en''ded $?")
        terminal.press("Enter")
        shown = terminal.until(lambda screen: "\nended 0" in screen)
        assert "\x1b[48;5;" in terminal.shown(colored=True)
        assert "weights of every head" in shown
        assert "head 3" in shown  # the last of them


@pytest.mark.parametrize(
    ("environment", "arguments", "is_coloured"),
    [
        ({}, [], False),
        ({"FORCE_COLOR": "1"}, [], True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, [], False),
        ({"NO_COLOR": "1"}, ["--color", "always"], True),
        ({"TERM": "dumb"}, ["--color", "always"], True),
    ],
)
def test_colour_is_decided_by_the_flag_then_the_environment(
    environment: dict[str, str], arguments: list[str], is_coloured: bool
) -> None:
    with whole_program() as attn:
        ran = attn("inspect", SENTENCE, *arguments, **environment)
    assert ("\x1b[" in ran.out) == is_coloured


def test_a_note_is_no_error_and_a_bad_sentence_stands_above_the_bar() -> None:
    variables = {"NO_COLOR": "", "FORCE_COLOR": "", "COLUMNS": "80"}
    shown = on_terminal("tokens", "time", "flies", **variables)[2]
    assert shown.startswith("\x1b[1mattn:\x1b[0m each of the 2 words is a sentence here")
    code, _, shown = on_terminal("tokens", "-", stdin=b"time\n\xff\nflies\n", **variables)
    assert code == 5
    # Where the bar is drawn, its line is cleared before the error is written, from the beginning of a line.
    (before,) = re.findall(r"([^\n]*)attn:.{0,10} sentence 2: it is not UTF-8 at byte 1; convert standard", shown)
    assert text_shown(before).rpartition("\r")[2].strip() == ""


# --- one screen, and the pager ---


def test_a_terminal_has_one_screen_and_a_pipe_has_all(attn: Callable[..., Ran]) -> None:
    code, _, shown = on_terminal("inspect", TEXT, *TOY, out=True, **SCREEN)
    assert code == 0
    assert len(text_shown(shown).splitlines()) <= 49
    assert all(re.search(rf"(head |H){head}\b", text_shown(shown)) for head in range(12))
    assert "attn: showing pooled cells. --all shows everything" in text_shown(shown)
    piped = attn("inspect", TEXT, *TOY, PAGER="echo paged")
    assert "scores, before the mask" in piped.out
    assert piped.err == ""


def test_everything_goes_through_the_pager_of_a_person() -> None:
    with person("inspect", TEXT, *TOY, "--all", is_apart=False, PAGER="sed s/^/paged:/", **SCREEN) as one:
        shown = one.until("paged:toy layer", "scores, before the mask")
        assert "\x1b[" in shown
        assert one.left()[0] == 0
    _, _, shown = on_terminal("inspect", TEXT, *TOY, "--all", PAGER="sed s/^/paged:/", **SCREEN)
    assert "paged:" not in shown  # of a standard output that is a file


@pytest.mark.parametrize(("line", "shown"), [
    ("mask show causal --size 3", "query 2 attends to 0 to 2\n"), ("heads one", "label mixed, heads "),
    ("diff the,cat,sat the,dog,sat -m demo", "head L3H0, bits "), ("learn --lesson positions", "k at 1, q·k turned 0."),
])  # fmt: skip
def test_a_screen_reader_gets_sentences(attn: Callable[..., Ran], line: str, shown: str) -> None:
    ran = attn(*(word.replace(",", " ") for word in line.split()), "--color", "always", ACCESSIBLE="1")
    assert (ran.code, set(ran.out) & set("█▓▒░▀▄▌▐─│┌└╭╰▸▾"), shown in ran.out) == (0, set(), True)
