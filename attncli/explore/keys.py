"""The keys of the explorer: one table, of which bindings, the line at the foot, the help and the manual are made."""

from __future__ import annotations

from typing import NamedTuple

from rich.cells import cell_len

_FIRST = ("help", "leave")
_EVERYWHERE = ("turn(1)",)


class KeyBinding(NamedTuple):
    """What some keys do.

    Attributes:
        purpose: the part of the help that they stand in.
        names: the keys as Textual calls them.
        action: what the application does, with its arguments.
        shown: the keys as people call them.
        does: what they do, in a few words.
        short: the same in a word for the line at the foot; empty where it does not stand there.
        is_typed: whether they are letters of a text while one is typed, and do this in the maps alone.
    """

    purpose: str
    names: tuple[str, ...]
    action: str
    shown: str
    does: str
    short: str = ""
    is_typed: bool = True


def _always(purpose: str, names: tuple[str, ...], action: str, shown: str, does: str, short: str = "") -> KeyBinding:
    return KeyBinding(purpose, names, action, shown, does, short, is_typed=False)


_PANES, _CURSOR, _NUMBERS, _TEXTS, _DRAWN, _OTHER = (
    "To a pane", "Along heads and cells", "Which numbers", "Texts and mask", "How it is drawn", "Save, leave, help",
)  # fmt: skip
KEYS = (
    _always(_PANES, ("tab",), "turn(1)", "Tab", "the next pane: text, head, heads, map", "panes"),
    _always(_PANES, ("shift+tab",), "turn(-1)", "Shift-Tab", "the pane before"),
    _always(_PANES, ("escape",), "escape", "Esc", "from the text to the maps; closes what is open", "maps"),
    KeyBinding(_PANES, ("i",), "type", "i", "back to the text", "type"),
    _always(_PANES, ("enter",), "enter", "Enter", "from text to maps and back; takes what is typed below"),
    KeyBinding(
        _CURSOR, ("left", "h"), "move(0, -1)", "← h", "the key or cell before; in heads and map the head before"
    ),
    KeyBinding(_CURSOR, ("right", "l"), "move(0, 1)", "→ l", "the next key, cell, or head"),
    _always(_CURSOR, ("up",), "move(-1, 0)", "↑", "the query before or the cell above; in the map the layer before"),
    _always(_CURSOR, ("down",), "move(1, 0)", "↓", "the next query, the cell below, or the next layer"),
    KeyBinding(_CURSOR, ("k",), "move(-1, 0)", "k", "the query before or the cell above; in the map the layer before"),
    KeyBinding(_CURSOR, ("j",), "move(1, 0)", "j", "the next query, the cell below, or the next layer"),
    KeyBinding(_CURSOR, ("home", "g"), "end(-1)", "Home g", "the first query"),
    KeyBinding(_CURSOR, ("end", "G"), "end(1)", "End G", "the last query"),
    _always(_CURSOR, ("pageup",), "layer(-1)", "PgUp", "the layer before"),
    _always(_CURSOR, ("pagedown",), "layer(1)", "PgDn", "the next layer"),
    KeyBinding(_CURSOR, ("left_square_bracket",), "layer(-1)", "[", "the layer before"),
    KeyBinding(_CURSOR, ("right_square_bracket",), "layer(1)", "]", "the next layer", "layer"),
    KeyBinding(_CURSOR, ("comma", "left_curly_bracket"), "look('head', -1)", ", {", "the head before"),
    KeyBinding(_CURSOR, ("full_stop", "right_curly_bracket"), "look('head', 1)", ". }", "the next head", "head"),
    KeyBinding(
        _CURSOR, ("slash",), "open('find')", "/", "find a token, or a cell: @r1c3; Enter finds the next one", "find"
    ),
    KeyBinding(_NUMBERS, ("w",), "why", "w", "why the query attends to the key; again closes it", "why"),
    KeyBinding(_NUMBERS, ("x",), "cut", "x", "what the next token becomes without the head; in a map, the cell", "cut"),
    KeyBinding(_NUMBERS, ("d",), "look('hold')", "d", "hold this text and show what changes; again lets it go", "hold"),
    KeyBinding(_NUMBERS, ("n",), "look('norms')", "n", "how much each key contributes: ‖w·v‖", "norms"),
    KeyBinding(_NUMBERS, ("r",), "look('rollout')", "r", "rollout: all layers up to this one", "rollout"),
    KeyBinding(_NUMBERS, ("t",), "look('metric', 1)", "t", "another metric in the map of layers × heads", "metric"),
    KeyBinding(_NUMBERS, ("T",), "look('metric', -1)", "T", "the metric before"),
    KeyBinding(_NUMBERS, ("e",), "look('kind')", "e", "the next kind of attention: encoder, decoder, cross"),
    KeyBinding(_TEXTS, ("m",), "open('mask')", "m", "edit the mask; an empty one is the model's own", "mask"),
    KeyBinding(_TEXTS, ("p",), "open('pair')", "p", "edit the second text; an empty one is none", "pair"),
    KeyBinding(_TEXTS, ("P",), "open('target')", "P", "edit the target, which attends to the text"),
    KeyBinding(_DRAWN, ("c",), "look('ramp')", "c", "colour scale: sqrt, linear, log", "colours"),
    KeyBinding(_DRAWN, ("plus", "equals_sign"), "zoom(1)", "+", "zoom into a long text", "zoom"),
    KeyBinding(_DRAWN, ("minus",), "zoom(-1)", "-", "zoom out"),
    KeyBinding(_DRAWN, ("0",), "zoom(-99)", "0", "the whole text again"),
    KeyBinding(_OTHER, ("s",), "open('save')", "s", "save what is shown: .svg, .html, .safetensors, …", "save"),
    KeyBinding(_OTHER, ("question_mark",), "help", "?", "this help; F1 while a text is typed", "help"),
    _always(_OTHER, ("f1",), "help", "F1", "this help; F1 while a text is typed", "help"),
    _always(_OTHER, ("ctrl+z",), "suspend_process", "Ctrl-Z", "back to the shell for a while; fg returns"),
    KeyBinding(_OTHER, ("q",), "leave", "q", "leave; Ctrl-C while a text is typed", "leave"),
    _always(_OTHER, ("ctrl+c", "ctrl+q"), "leave", "Ctrl-C", "leave; Ctrl-C while a text is typed", "leave"),
)

MOUSE = (
    ("click", "put the cursor on a cell or a token; choose a head"),
    ("wheel", "move through a long text; over the map, layers"),
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


def _help() -> dict[str, dict[str, str]]:
    """Return the keys that do the same, by what they do, in the parts of the help; those with the mouse last."""
    parts: dict[str, dict[str, str]] = {}
    for key in KEYS:
        same = parts.setdefault(key.purpose, {})
        same[key.does] = f"{same[key.does]} {key.shown}" if key.does in same else key.shown
    return parts | {"With the mouse": {does: how for how, does in MOUSE}}


HELP = _help()
