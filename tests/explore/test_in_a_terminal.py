"""The explorer as a process in a real terminal: every key, pastes, other sizes, failures, and how it leaves."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tmux import Tmux

pytestmark = pytest.mark.system
TEXT = "the cat sat on the mat"
ATTN = f"{sys.executable} -m attncli"


class Explored:
    """The explorer in a terminal of its own."""

    def __init__(self, terminal: Tmux) -> None:
        self.terminal = terminal

    def start(self, *options: str) -> None:
        """Type the command, keep what the terminal is set to, and wait for the whole picture."""
        command = f"clear; stty -g > before; {ATTN} explore -m demo '{TEXT}' {' '.join(options)}"
        self.terminal.type(command)
        self.terminal.press("Enter")
        self.sees("F1 help", "demo · ", f"{TEXT}\n", "▾the▸mat ", "head 3 · previous")

    def sees(self, *patterns: str) -> str:
        """Wait until all of these are seen; what begins with ! until it is not. Return the screen."""
        wanted = [(pattern.removeprefix("!"), not pattern.startswith("!")) for pattern in (*patterns, "!computing")]
        try:
            return self.terminal.until(
                lambda screen: all((re.search(pattern, screen) is not None) is is_seen for pattern, is_seen in wanted)
            )
        except AssertionError as error:
            raise AssertionError(f"{patterns} of\n{error}") from None

    def modes(self) -> str:
        """Whether the alternate screen is on, the mouse is told of, and the cursor is seen."""
        return self.terminal.told("#{alternate_on} #{mouse_any_flag} #{cursor_flag}")

    def left(self, folder: Path) -> str:
        """Wait until it has ended, see that all is well and as it was, and return the line that it printed."""
        self.terminal.until(lambda screen: screen.rstrip().endswith("\n$") and self.modes() == "0 0 1")
        self.terminal.type("echo en''ded $?; stty -g > after; echo al''l")
        self.terminal.press("Enter")
        self.sees(r"ended 0\nall\n")
        assert (folder / "after").read_text() == (folder / "before").read_text()
        printed = self.terminal.tmux("capture-pane", "-p", "-J").partition("$ echo en''ded")[0]
        *before, line = [each.rstrip() for each in printed.rstrip().split("\n")]
        assert all(each.startswith("$ ") or ATTN in each for each in before), printed
        return line


@pytest.fixture
def explored(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Explored]:
    """Give the explorer, not yet started, in a terminal with the variables of a test."""
    monkeypatch.chdir(tmp_path)
    with Tmux(80, 24, **getattr(request, "param", {})) as terminal:
        yield Explored(terminal)


# The keys that a terminal sends in ways of its own, by their names in tmux, and what is seen then and was not before.
# A text is typed; what a key without a pattern does is seen by what the next one does.
WALK = [
    ("Escape", r"\? help"), ("Home", "query 0 <s> →"), ("Down", "query 1 the →"), ("Up", "query 0 <s> →"),
    *[("Left", "")] * 7, ("Right", "key 1 the ·"), ("Left", "key 0 <s> ·"), ("End", "query 6 mat →"),
    ("NPage", "layer 3"), ("PPage", "layer 2"),
    ("m", "mask:"), ("window(2) & cuasal", "unknown mask 'cuasal'"), ("Escape", "!mask:"),
    ("m", "mask:"), ("window(2)", r"mask: window\(2\)"), ("Enter", "!mask:"),
    ("Tab", ""), ("Left", "head 2 ·"), ("Right", "head 3 ·"),  # in the map of layers
    ("BTab", ""), ("Right", "key 1 the ·"), ("Left", "key 0 <s> ·"),  # in the large one again
    ("F1", "Shift-Tab"), ("F1", "!Shift-Tab"), ("i", "F1 help"), ("Escape", r"\? help"),
]  # fmt: skip


def test_a_walk(explored: Explored, tmp_path: Path) -> None:
    terminal = explored.terminal
    explored.start()
    assert explored.modes() == "1 1 0"
    typed_at_once(explored)
    for key, seen in WALK:
        was_seen = re.search(seen.removeprefix("!"), terminal.shown()) is not None
        assert not seen or was_seen is seen.startswith("!"), (key, seen)
        terminal.type(key) if (len(key) > 1 and key.islower()) or "(" in key else terminal.press(key)
        explored.sees(seen)
    resized(explored)
    terminal.press("C-z")
    explored.sees(r"Stopped|\$ $")
    assert explored.modes() == "0 0 1"
    terminal.type("fg")
    terminal.press("Enter")
    explored.sees("leave", f"{TEXT}\n")
    terminal.press("q")
    assert explored.left(tmp_path) == f"attn inspect '{TEXT}' -m demo --mask 'window(2)' --layer 2 --head 3"


def typed_at_once(explored: Explored) -> None:
    terminal = explored.terminal
    terminal.type(" and")
    explored.sees(f"{TEXT} and\n", "mat▸and ")
    terminal.press(*["BSpace"] * 4)
    explored.sees(f"{TEXT}\n", "▸mat ")
    terminal.press("C-u")
    terminal.paste("word " * 400)
    explored.sees("the sentence has 401 tokens")
    terminal.press(*["BSpace"] * 1000)
    explored.sees("largest of")
    terminal.press("Escape")
    explored.sees(r"\? help")
    terminal.type("i")
    terminal.press("C-u")
    explored.sees("expected")  # an empty text fails, and typing goes on
    terminal.paste(f"{TEXT[:7]}\n{TEXT[8:]}")
    explored.sees(f"{TEXT}\n", "▸mat ")


def resized(explored: Explored) -> None:
    terminal = explored.terminal
    width, height = map(int, terminal.told("#{window_width} #{window_height}").split())
    for size in ((60, 20), (100, 30), (width, height)):
        terminal.resize(*size)
        drawn = rf"\A› {TEXT}\n(.*\n){{{size[1] - 2}}}.*leave.*\n\Z"  # the keys are on the last line
        explored.sees(drawn)
    terminal.resize(50, 18)
    explored.sees("too small")
    terminal.resize(width, height)
    explored.sees(drawn)


@pytest.mark.parametrize(
    ("explored", "how", "is_coloured"),
    [
        ({"TERM": "screen"}, "C-c", False),  # it has 8 colours
        ({"LANG": "C", "LC_ALL": "", "TERM": "xterm-256color"}, "C-q", True),
    ],
    indirect=["explored"],
    ids=str,
)
def test_any_terminal_and_any_way_to_leave(explored: Explored, how: str, is_coloured: bool, tmp_path: Path) -> None:
    terminal = explored.terminal
    explored.start()
    assert ("\x1b[48;5;" in terminal.shown(colored=True)) is is_coloured
    terminal.type("!")
    explored.sees(f"{TEXT}!\n", "▸! ")
    terminal.press(how)
    assert explored.left(tmp_path) == f"attn inspect '{TEXT}!' -m demo --layer 2 --head 3"
