"""The keys of the explorer, as bindings of Textual."""

from __future__ import annotations

from textual.binding import Binding


def _key(keys: str, action: str, shown: str, short: str, meaning: str, in_footer: bool = True) -> Binding:
    """Bind keys to an action of the explorer; a text that is being edited takes its own keys first.

    The footer shows the key and a word, the help its meaning.
    """
    return Binding(keys, action, short, in_footer, shown, priority=True, tooltip=meaning)


KEYS = (
    _key("escape", "escape", "Esc", "maps", "from the text to the maps; closes what is open"),
    _key("tab", "app.focus_next", "Tab", "panes", "the next pane"),
    _key("shift+tab", "app.focus_previous", "Shift-Tab", "", "the pane before", in_footer=False),
    _key("question_mark", "help", "?", "help", "of the keys"),
    _key("f1", "help", "F1", "help", "of the keys"),
    _key("q", "quit", "q", "leave", "and print the command of this view"),
    _key("ctrl+c,ctrl+q", "quit", "Ctrl-C", "leave", "and print the command of this view"),
    _key("i", "type", "i", "type", "edit the text"),
    _key("w", "why", "w", "why", "the query attends to the key; again closes it"),
    _key("x", "cut", "x", "cut", "the next token without the head; in the large map, without the cell"),
    _key("slash", "open('find')", "/", "find", "a token; Enter finds the next one"),
    _key("m", "open('mask')", "m", "mask", "edit the mask; an empty one is the model's own"),
    _key("n", "numbers('norms')", "n", "norms", "how much each key contributes: ‖w·v‖"),
    _key("r", "numbers('rollout')", "r", "rollout", "of all layers up to this one"),
    _key("t", "metric(1)", "t", "metric", "the next metric of layers × heads"),
    _key("T", "metric(-1)", "T", "", "the metric before", in_footer=False),
    _key("right_square_bracket", "layer(1)", "]", "layer", "the next one"),
    _key("pagedown", "layer(1)", "PgDn", "layer", "the next one"),
    _key("left_square_bracket", "layer(-1)", "[", "", "the layer before", in_footer=False),
    _key("pageup", "layer(-1)", "PgUp", "", "the layer before", in_footer=False),
    _key("full_stop", "head(1)", ".", "head", "the next one"),
    _key("comma", "head(-1)", ",", "", "the head before", in_footer=False),
    _key("c", "ramp", "c", "colours", "scale of the colours: sqrt, linear, log"),
    _key("p", "open('pair')", "p", "pair", "edit the second text; an empty one is none"),
    _key("P", "open('target')", "P", "target", "edit the target, which attends to the text", in_footer=False),
    _key("e", "kind", "e", "kind", "the next kind of attention: encoder, decoder, cross", in_footer=False),
    _key("left,h", "move(0, -1)", "← h", "", "the key before; in heads and map the head before", in_footer=False),
    _key("right,l", "move(0, 1)", "→ l", "", "the next key; in heads and map the next head", in_footer=False),
    _key("up,k", "move(-1, 0)", "↑ k", "", "the query before; in the map the layer before", in_footer=False),
    _key("down,j", "move(1, 0)", "↓ j", "", "the next query; in the map the next layer", in_footer=False),
    _key("home,g", "end(-1)", "Home g", "", "the first query", in_footer=False),
    _key("end,G", "end(1)", "End G", "", "the last query", in_footer=False),
    _key("enter", "type", "Enter", "", "to the text and back", in_footer=False),
    _key("ctrl+z", "suspend_process", "Ctrl-Z", "", "back to the shell; fg returns", in_footer=False),
)
