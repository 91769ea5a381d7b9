"""The keys of the explorer: one table, of which bindings, the line at the foot, the help and the manual are made."""

from __future__ import annotations

from typing import NamedTuple

from rich.cells import cell_len

_FIRST = ("help", "leave")
_EVERYWHERE = ("turn(1)",)


class KeyBinding(NamedTuple):
    """What some keys do.

    Attributes:
        names: the keys as Textual calls them.
        action: what the application does, with its arguments.
        shown: the keys as people call them.
        does: what they do, in a few words.
        short: the same in a word for the line at the foot; empty where it does not stand there.
        is_typed: whether they are letters of a text while one is typed, and do this in the maps alone.
    """

    names: tuple[str, ...]
    action: str
    shown: str
    does: str
    short: str = ""
    is_typed: bool = True


def _always(names: tuple[str, ...], action: str, shown: str, does: str, short: str = "") -> KeyBinding:
    return KeyBinding(names, action, shown, does, short, is_typed=False)


KEYS = (
    _always(("tab",), "turn(1)", "Tab", "to the next pane: text, head, heads, map", "panes"),
    _always(("shift+tab",), "turn(-1)", "Shift-Tab", "to the pane before"),
    _always(("escape",), "escape", "Esc", "from the text to the maps; closes what is open", "maps"),
    KeyBinding(("i",), "type", "i", "back to the text", "type"),
    _always(("enter",), "enter", "Enter", "from the text to the maps, and back; takes what is typed below them"),
    KeyBinding(("left", "h"), "move(0, -1)", "← h", "the key before; in the heads and the map the head before"),
    KeyBinding(("right", "l"), "move(0, 1)", "→ l", "the next key, or head"),
    _always(("up",), "move(-1, 0)", "↑", "the query before; in the map the layer before"),
    _always(("down",), "move(1, 0)", "↓", "the next query, or layer"),
    KeyBinding(("k",), "move(-1, 0)", "k", "the same as ↑"),
    KeyBinding(("j",), "move(1, 0)", "j", "the same as ↓"),
    KeyBinding(("home", "g"), "end(-1)", "Home g", "the first query"),
    KeyBinding(("end", "G"), "end(1)", "End G", "the last query"),
    _always(("pageup",), "layer(-1)", "PgUp", "the layer before"),
    _always(("pagedown",), "layer(1)", "PgDn", "the next layer"),
    KeyBinding(("left_square_bracket",), "layer(-1)", "[", "the layer before"),
    KeyBinding(("right_square_bracket",), "layer(1)", "]", "the next layer", "layer"),
    KeyBinding(("comma", "left_curly_bracket"), "look('head', -1)", ", {", "the head before"),
    KeyBinding(("full_stop", "right_curly_bracket"), "look('head', 1)", ". }", "the next head", "head"),
    KeyBinding(("e",), "look('kind')", "e", "the next kind of attention: encoder, decoder, cross"),
    KeyBinding(("slash",), "open('find')", "/", "find a token; Enter finds the next one", "find"),
    KeyBinding(("m",), "open('mask')", "m", "edit the mask; an empty one is the model's own", "mask"),
    KeyBinding(("p",), "open('pair')", "p", "edit the second text; an empty one is none", "pair"),
    KeyBinding(("P",), "open('target')", "P", "edit the target, which attends to the text; an empty one is none"),
    KeyBinding(("d",), "look('hold')", "d", "hold this text and see what changes against it; again lets it go", "hold"),
    KeyBinding(("w",), "why", "w", "why this query attends to this key; again closes it", "why"),
    KeyBinding(("n",), "look('norms')", "n", "norms of what the values add, in place of weights", "norms"),
    KeyBinding(("r",), "look('rollout')", "r", "rollout: attention from the first layer to this one", "rollout"),
    KeyBinding(("t",), "look('metric', 1)", "t", "another metric in the map of layers × heads", "metric"),
    KeyBinding(("T",), "look('metric', -1)", "T", "the metric before"),
    KeyBinding(("c",), "look('ramp')", "c", "how far along the colours a weight stands: log, sqrt, linear", "colours"),
    KeyBinding(("plus", "equals_sign"), "zoom(1)", "+", "zoom into a long text", "zoom"),
    KeyBinding(("minus",), "zoom(-1)", "-", "zoom out"),
    KeyBinding(("0",), "zoom(-99)", "0", "the whole text again"),
    KeyBinding(("s",), "open('save')", "s", "save what is shown: .svg, .html, .safetensors, …", "save"),
    KeyBinding(("question_mark",), "help", "?", "this help", "help"),
    _always(("f1",), "help", "F1", "the same while a text is typed", "help"),
    _always(("ctrl+z",), "suspend_process", "Ctrl-Z", "back to the shell for a while; fg returns"),
    KeyBinding(("q",), "leave", "q", "leave", "leave"),
    _always(("ctrl+c", "ctrl+q"), "leave", "Ctrl-C", "leave, from anywhere", "leave"),
)

MOUSE = (
    ("click", "put the cursor on a cell or a token; choose a head"),
    ("wheel", "move through a long text; over the map through the layers"),
    ("Ctrl-wheel", "zoom"),
)


def foot(is_typing: bool, width: int) -> str:
    """Return as many keys, with a word for what each does, as a line has room for; how to leave comes first."""
    here = [key for key in KEYS if key.short and (key.is_typed is not is_typing or key.action in _EVERYWHERE)]
    line = ""
    for key in sorted(here, key=lambda key: key.action not in _FIRST):
        longer = f"{line}  {key.shown} {key.short}".strip()
        line = longer if cell_len(longer) <= width else line
    return line


HELP = [*((key.shown, key.does) for key in KEYS), *MOUSE]  # the keys and what they do, those with the mouse last
