"""The command line that prints the numbers of a view."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal, NamedTuple

from attncli.explore.view_state import ViewState

_ENCODING = ("utf-8", "surrogateescape")
What = Literal["head", "heads", "map", "why"]


class ViewSnapshot(NamedTuple):
    """A view and the pane that has the focus.

    Attributes:
        look: the view.
        what: a head, all heads of its layer, the map of all layers, or why the query attends to the key.
        has_picture: whether the head is drawn over a picture.
    """

    look: ViewState
    what: What = "head"
    has_picture: bool = False


class InputSource(NamedTuple):
    """The part of a command line that no key changes.

    Attributes:
        options: of the model and the colours, a word each.
        is_saved: whether it is a saved trace, which has its texts and its mask.
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
    """Return the command that prints a view."""
    look, what, has_picture = seen
    question, options = look.question, source.options
    texts: tuple[str, ...] = ()
    if not source.is_saved:
        texts = () if source.reads_pictures else (question.text,)
        options += ("--image", question.text) if source.reads_pictures else ()
        for name, value in (("pair", question.pair), ("target", question.target), ("mask", question.mask)):
            options += () if value is None else (f"--{name}", value)
    options += () if look.kind is None else ("--kind", look.kind)
    if what == "map":
        return ReplayCommand("heads", texts, (*options, "--sort", look.metric))
    options += "--layer", str(look.layer)
    has_head = what == "why" or (what == "head" and look.numbers != "rollout")  # which is one map of all heads
    options += ("--head", str(look.head)) * has_head
    options += ("--query", str(look.query)) * (what == "why" or has_picture)
    options += ("--key", str(look.key)) * (what == "why")
    options += (f"--{look.numbers}",) * (what != "why" and look.numbers != "weights")
    options += () if look.ramp is None else ("--ramp", look.ramp)
    return ReplayCommand("why" if what == "why" else "inspect", texts, options)


def _quoted(word: str) -> str:
    """Return a word as a shell reads it; characters that a terminal does not show are octal."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        one if one.isprintable() and one not in "\\'" else "".join(f"\\{byte:03o}" for byte in one.encode(*_ENCODING))
        for one in word
    )
    return f"$'{escaped}'"
