"""The command line that gives what is seen: the same numbers, of a command that prints them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal, NamedTuple

from attncli.explore.view_state import FIRST_METRIC, ViewState

_ENCODING = ("utf-8", "surrogateescape")
What = Literal["head", "heads", "map", "why"]


class ViewSnapshot(NamedTuple):
    """What a person has in front of them.

    Attributes:
        look: what is looked at.
        what: what of it: a head, all heads of its layer, the map of all layers, or why the query attends to the key.
        has_picture: whether heads are shown as what the query looks at in pictures.
    """

    look: ViewState
    what: What = "head"
    has_picture: bool = False


class InputSource(NamedTuple):
    """What a command line says that no key changes.

    Attributes:
        options: whose attention it is and in which colours, a word each.
        is_saved: whether it is what was saved, which has its texts and its mask.
        reads_pictures: whether the text is the name of a picture, which is read alone.
    """

    options: tuple[str, ...] = ()
    is_saved: bool = False
    reads_pictures: bool = False


@dataclass(frozen=True)
class ReplayCommand:
    """A command of `attn`."""

    name: str
    texts: tuple[str, ...]
    options: tuple[str, ...]

    @property
    def reads_itself(self) -> bool:
        """Whether its text is `-`, which every command reads from standard input."""
        return self.texts == ("-",)

    def words(self, *more: str) -> list[str]:
        """Return the words that follow `attn`, with more options."""
        if any(text.startswith("-") and text != "-" for text in self.texts):  # and would be taken for options
            return [self.name, *self.options, *more, "--", *self.texts]
        return [self.name, *self.texts, *self.options, *more]

    def line(self, *more: str) -> str:
        """Return the line as a shell takes it, with more options."""
        line = " ".join(map(_quoted, ["attn", *self.words(*more)]))
        return f"echo - | {line}" if self.reads_itself else line


def command_of(seen: ViewSnapshot, source: InputSource) -> ReplayCommand:
    """Return the command that gives what is seen.

    No command compares norms, rollouts or two masks: where one of these is held, it is the command that gives the
    other, which is looked at.
    """
    look, what, has_picture = seen
    question, options = look.question, source.options
    texts: tuple[str, ...] = ()
    if not source.is_saved:
        texts = () if source.reads_pictures else (question.text,)
        options += ("--image", question.text) if source.reads_pictures else ()
        for name, value in (("pair", question.pair), ("target", question.target), ("mask", question.mask)):
            options += () if value is None else (f"--{name}", value)
    layer, head = ("--layer", str(look.layer)), ("--head", str(look.head))
    place = layer if look.layer or (look.numbers == "rollout" and what != "why") else ()  # which ends in the last one
    kind = () if look.kind is None else ("--kind", look.kind)
    ramp = () if look.ramp is None else ("--ramp", look.ramp)
    both = () if has_picture else _compared(look)
    if what == "map":
        if look.metric is None and both:
            return ReplayCommand("diff", both, (*options, *kind, *ramp))
        return ReplayCommand("heads", texts, (*options, *kind, "--metrics", look.metric or FIRST_METRIC))
    if what == "why":
        cell = ("--query", str(look.query), "--key", str(look.key))
        return ReplayCommand("why", texts, (*options, *place, *kind, *head, *cell, *ramp))
    if both and look.numbers == "weights":
        return ReplayCommand("diff", both, (*options, *layer, *kind, *(head if what == "head" else ()), *ramp))
    numbers = () if look.numbers == "weights" else (f"--{look.numbers}",)
    which: tuple[str, ...] = (
        head if what == "head" and look.numbers != "rollout" else ()
    )  # which is one map of all heads
    which += ("--query", str(look.query)) if has_picture else ()
    return ReplayCommand("inspect", texts, (*options, *place, *kind, *which, *numbers, *ramp))


def _compared(look: ViewState) -> tuple[str, ...]:
    """Return the held text and this one, where a command compares the two."""
    held, question = look.held, look.question
    if held is None or held._replace(text="") != question._replace(text=""):
        return ()
    texts = held.text, question.text
    return texts if all(texts) and "-" not in texts else ()


def _quoted(word: str) -> str:
    """Return a word as a shell reads it; what a terminal does not show stands there in octal digits."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        one if one.isprintable() and one not in "\\'" else "".join(f"\\{byte:03o}" for byte in one.encode(*_ENCODING))
        for one in word
    )
    return f"$'{escaped}'"
