"""The keys of the explorer, for its bindings and for the manual."""

from __future__ import annotations

from typing import NamedTuple


class KeyBinding(NamedTuple):
    """Keys that run an action; while a line is edited with one, it does not.

    Attributes:
        keys: as Textual names them.
        action: of the application, with its arguments.
        shown: the key as the footer shows it.
        short: the action in a word, for the footer.
        meaning: the action in a few words, for the help.
        in_footer: whether the footer shows it.
    """

    keys: str
    action: str
    shown: str
    short: str
    meaning: str
    in_footer: bool = True


KEYS = (
    KeyBinding("escape", "escape", "Esc", "maps", "from the text to the maps; closes what is open"),
    KeyBinding("tab", "app.focus_next", "Tab", "panes", "the next pane"),
    KeyBinding("shift+tab", "app.focus_previous", "Shift-Tab", "", "the pane before", in_footer=False),
    KeyBinding("question_mark", "help", "?", "help", "of the keys"),
    KeyBinding("f1", "help", "F1", "help", "of the keys"),
    KeyBinding("q", "leave", "q", "leave", "and print the command of this view"),
    KeyBinding("ctrl+c,ctrl+q", "leave", "Ctrl-C", "leave", "and print the command of this view"),
    KeyBinding("i", "type", "i", "type", "edit the text"),
    KeyBinding("w", "why", "w", "why", "the query attends to the key; again closes it"),
    KeyBinding("x", "cut", "x", "cut", "the next token without the head; in the large map, without the cell"),
    KeyBinding("slash", "open('find')", "/", "find", "a token; Enter finds the next one"),
    KeyBinding("m", "open('mask')", "m", "mask", "edit the mask; an empty one is the model's own"),
    KeyBinding("n", "numbers('norms')", "n", "norms", "how much each key contributes: ‖w·v‖"),
    KeyBinding("r", "numbers('rollout')", "r", "rollout", "of all layers up to this one"),
    KeyBinding("t", "metric(1)", "t", "metric", "the next metric of layers × heads"),
    KeyBinding("T", "metric(-1)", "T", "", "the metric before", in_footer=False),
    KeyBinding("right_square_bracket", "layer(1)", "]", "layer", "the next one"),
    KeyBinding("pagedown", "layer(1)", "PgDn", "layer", "the next one"),
    KeyBinding("left_square_bracket", "layer(-1)", "[", "", "the layer before", in_footer=False),
    KeyBinding("pageup", "layer(-1)", "PgUp", "", "the layer before", in_footer=False),
    KeyBinding("full_stop", "head(1)", ".", "head", "the next one"),
    KeyBinding("comma", "head(-1)", ",", "", "the head before", in_footer=False),
    KeyBinding("c", "ramp", "c", "colours", "scale of the colours: sqrt, linear, log"),
    KeyBinding("p", "open('pair')", "p", "pair", "edit the second text; an empty one is none"),
    KeyBinding("P", "open('target')", "P", "target", "edit the target, which attends to the text", in_footer=False),
    KeyBinding("e", "kind", "e", "kind", "the next kind of attention: encoder, decoder, cross", in_footer=False),
    KeyBinding("left,h", "move(0, -1)", "← h", "", "the key before; in heads and map the head before", in_footer=False),
    KeyBinding("right,l", "move(0, 1)", "→ l", "", "the next key; in heads and map the next head", in_footer=False),
    KeyBinding("up,k", "move(-1, 0)", "↑ k", "", "the query before; in the map the layer before", in_footer=False),
    KeyBinding("down,j", "move(1, 0)", "↓ j", "", "the next query; in the map the next layer", in_footer=False),
    KeyBinding("home,g", "end(-1)", "Home g", "", "the first query", in_footer=False),
    KeyBinding("end,G", "end(1)", "End G", "", "the last query", in_footer=False),
    KeyBinding("enter", "type", "Enter", "", "to the text and back", in_footer=False),
    KeyBinding("ctrl+z", "suspend_process", "Ctrl-Z", "", "back to the shell; fg returns", in_footer=False),
)
