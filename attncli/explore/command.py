"""The command line that prints the numbers of a view."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal

from attncli.explore.view_state import ViewState

_ENCODING = ("utf-8", "surrogateescape")
What = Literal["head", "heads", "map", "why"]


def command_of(look: ViewState, what: What, fixed: Sequence[str] = (), is_saved: bool = False) -> list[str]:
    """Return the words of the command that prints a view.

    Args:
        look: the view.
        what: a head, all heads of its layer, the map of all layers, or why the query attends to the key.
        fixed: the options that no key changes, of the model and the colours, a word each.
        is_saved: whether it is a view of a saved trace, which has its texts and its mask.
    """
    question, options = look.question, [*fixed]
    texts = [] if is_saved else [question.text]
    if not is_saved:
        for name, value in (("pair", question.pair), ("target", question.target), ("mask", question.mask)):
            options += [] if value is None else [f"--{name}", value]
    options += [] if look.kind is None else ["--kind", look.kind]
    name = {"map": "heads", "why": "why"}.get(what, "inspect")
    if what == "map":
        options += ["--sort", look.metric]
    else:
        options += ["--layer", str(look.layer)]
        has_head = what == "why" or (what == "head" and look.numbers != "rollout")  # which is one map of all heads
        options += ["--head", str(look.head)] * has_head
        options += ["--query", str(look.query)] * (what == "why")
        options += ["--key", str(look.key)] * (what == "why")
        options += [f"--{look.numbers}"] * (what != "why" and look.numbers != "weights")
        options += [] if look.ramp is None else ["--ramp", look.ramp]
    if any(text.startswith("-") for text in texts):  # and would be taken for options
        return ["attn", name, *options, "--", *texts]
    return ["attn", name, *texts, *options]


def as_line(words: list[str]) -> str:
    """Return a command as a shell takes it."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """Return a word as a shell reads it; characters that a terminal does not show are octal."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        one if one.isprintable() and one not in "\\'" else "".join(f"\\{byte:03o}" for byte in one.encode(*_ENCODING))
        for one in word
    )
    return f"$'{escaped}'"
