"""Choices of layers and heads (`0`, `2-4`, `0,3,-1`, `all`, `L3H2`) and ranges of query rows (`500:520`)."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from attncli.errors import InputError, UsageError
from attncli.text import plural, span, visible

MOST_LAYERS = 1000  # of a checkpoint: their modules are built, one by one
MOST = 100_000  # layers, heads or their width; a file that claims more is damaged, or hostile
_PART = re.compile(r"(-?\d{1,9})(?:-(\d{1,9}))?")
_OF_LAYER = re.compile(r"L?(\d{1,9})[.:H](\d{1,9})", re.IGNORECASE)
_ROWS = re.compile(r"(?!:$)(-?[0-9]{1,9})?:(-?[0-9]{1,9})?")


class Indices(NamedTuple):
    """A choice of layers or heads, before their number is known."""

    what: str  # "layer" or "head", for the errors
    parts: tuple[tuple[int, int], ...] | None  # first and last of each range, both included; None is all of them

    @classmethod
    def of(cls, what: str, choice: str | int | Iterable[int] | Indices | None) -> Indices:
        """Parse a number, a range, a list of these, or `all`, or a choice from Python; UsageError for another."""
        if isinstance(choice, Indices):
            return choice
        if choice is None or (isinstance(choice, str) and choice == "all"):
            return cls(what, None)
        if not isinstance(choice, str):
            try:
                chosen = [operator.index(index) for index in (choice if isinstance(choice, Iterable) else [choice])]
            except TypeError:
                expected = "an index, several, or a text such as '2-4'"
                raise UsageError(f"{what}: expected {expected}, got {choice!r}") from None
            return cls(what, tuple((index, index) for index in chosen))
        matches = [_PART.fullmatch(part.strip()) for part in choice.split(",")]
        if not all(matches):
            named = ", or layer and head: L3H2" * (what == "head")
            expected = f"a number, a range, a list or all: 0, 2-4, 0,3,-1{named}"
            raise UsageError(f"--{what} '{visible(choice)}': expected {expected}")
        return cls(what, tuple((int(m[1]), int(m[2] or m[1])) for m in matches if m))

    @property
    def and_below(self) -> Indices:
        """The choice of these and all those before them."""
        if self.parts is None:
            return self
        return Indices(self.what, (*self.parts, *((0, last) for _, last in self.parts)))

    def resolve(self, count: int, owner: str) -> tuple[int, ...]:
        """Return the chosen indices among `count`, in the order asked, each once; UsageError out of range."""
        if count > MOST:
            raise InputError(f"{owner} claims to have {count} {self.what}s; attn reads at most {MOST} {self.what}s")
        if self.parts is None:
            return tuple(range(count))
        chosen: dict[int, None] = {}
        for first, last in self.parts:
            for end in (first, last):
                if not -count <= end < count:
                    there = f"{owner} has {plural(count, self.what)}, {span(0, count - 1)}"
                    raise UsageError(f"--{self.what} {end} is out of range: {there}")
            start, stop = first % count, last % count
            if start > stop:
                raise UsageError(f"--{self.what} {first}-{last}: the range is backwards; write {stop}-{start}")
            chosen |= dict.fromkeys(range(start, stop + 1))
        if not chosen:
            raise UsageError(f"no {self.what} was chosen; drop --{self.what} for all")
        return tuple(chosen)


def layer_and_heads(layers: Any, heads: Any) -> tuple[Any, Any]:
    """Return the choices of layers and of heads where heads may name their layer: `3.2`, `3:2` or `L3H2`.

    Raises:
        UsageError: they name several layers, or another one than `layers`, of which None and `all` are any.
    """
    named = _named_heads(heads)
    if named is None:
        return layers, heads
    (layer, _), *_ = named
    if any(other != layer for other, _ in named):
        raise UsageError(f"--head '{visible(heads)}': name heads of one layer, such as 3.2,3.4")
    if (parts := Indices.of("layer", layers).parts) and parts != ((layer, layer),):
        raise UsageError(f"--head {heads} is in layer {layer}, and --layer names others; leave out --layer")
    return str(layer), ",".join(str(head) for _, head in named)


def head_places(layers: Any, heads: Any, sizes: tuple[int, int], owner: str) -> list[tuple[int, int]]:
    """Return the chosen heads as layer and head, each once; heads may name their layers: `18.6,17.3` or `L18H6`.

    `sizes` counts the layers of the owner, and the heads of each. Raises UsageError where one is out of range, only
    some heads name their layer, or `layers` are chosen besides.
    """
    named, scope = _named_heads(heads), f"each layer of {owner}"
    if named is None:
        chosen = Indices.of("head", heads).resolve(sizes[1], scope)
        return [(layer, head) for layer in Indices.of("layer", layers).resolve(sizes[0], owner) for head in chosen]
    if layers is not None:
        raise UsageError(f"--head {visible(heads)} names layers, and --layer does too; leave out --layer")
    for layer, head in named:
        Indices.of("layer", layer).resolve(sizes[0], owner)
        Indices.of("head", head).resolve(sizes[1], scope)
    return list(dict.fromkeys(named))


def _named_heads(heads: Any) -> list[tuple[int, int]] | None:
    """Return the heads of a choice that names their layers; None for one that names none."""
    matches = [_OF_LAYER.fullmatch(part.strip()) for part in heads.split(",")] if isinstance(heads, str) else []
    if not any(matches):
        return None
    if not all(matches):
        raise UsageError(f"--head '{visible(heads)}': name the layer of every head, such as 18.6,17.3")
    return [(int(match[1]), int(match[2])) for match in matches if match]


class RowRange(NamedTuple):
    """A half-open range of query rows, as Python slices: negative ends count from the last row."""

    start: int | None  # the first row; None is the first of all
    stop: int | None  # one past the last row; None is to the end

    @classmethod
    def of(cls, choice: str) -> RowRange | None:
        """Parse a range of rows, such as 500:520, :10 or -20: for the last 20; None is a token."""
        match = _ROWS.fullmatch(choice.strip())
        return match and cls(*(None if end is None else int(end) for end in match.groups()))

    def among(self, count: int) -> range:
        """Return the rows of the range within `count`, cut like a slice."""
        return range(count)[self.start : self.stop]

    def __str__(self) -> str:
        """Return the range as in `--query`."""
        return ":".join("" if end is None else str(end) for end in (self.start, self.stop))
