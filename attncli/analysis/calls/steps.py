"""What the calls of one step of a program say of each other: padding that one knows of and another does not hide.

A step is the calls until a place comes again: one pass through a model, as far as its attention is concerned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.analysis.calls.masks import CallMask, Read
from attncli.analysis.calls.objective import findings_of_answers
from attncli.masks.findings import MOST_CELLS, Finding, in_batch
from attncli.recording.call import CallSite
from attncli.recording.input_hint import InputHint

if TYPE_CHECKING:
    from jaxtyping import Bool


# What is said of which cells a mask hides, or of its numbers.
_OF_MASKS = (
    "leak", "missing", "pad", "document", "dead-row", "window", "shape", "varies", "mixed-fill",
    "double-fill", "overflow", "no-mask", "batch", "backend", "padding-side", "broadcast", "added-bool", "bias",
)  # fmt: skip
_LAID_WRONGLY = ("batch", "padding-side")
_OF_ROWS = ("documents", "positions")  # what may be said once for all rows of a batch


class Taken(NamedTuple):
    """A call as it is remembered.

    Attributes:
        place: where it was.
        mask: what its masks hide together; None where that cannot be read.
        reads: these masks.
        findings: what is wrong with it by itself.
        unread: what of it cannot be read, in words.
        unused: masks that the API does not apply.
    """

    place: CallSite
    mask: CallMask | None
    reads: tuple[Read, ...]
    findings: tuple[Finding, ...]
    unread: str | None = None
    unused: tuple[Read, ...] = ()

    @property
    def size(self) -> int:
        """How many bytes its masks take."""
        return 0 if self.mask is None else self.mask.size

    def with_makers(self, finding: Finding) -> Finding:
        """Return a finding about masks with the lines of the program that made them, if all of these are known.

        It is about the mask that its message begins with, or else about all that hide keys.
        """
        if finding.code not in _OF_MASKS:
            return finding
        masks = [one for one in (*self.reads, *self.unused) if finding.message.startswith(f"{one.name} ")]
        if not masks and self.mask is not None and not self.mask.is_causal:
            masks = [one for one in self.reads if not one.allowed.all()] or [*(self.reads or self.unused)]
        lines = tuple(dict.fromkeys(one.made_at or "" for one in masks))
        return finding if "" in lines else replace(finding, made_at=lines)


class CallContext(NamedTuple):
    """A call, and what inputs of modules say of its batch.

    Attributes:
        call: the call.
        told: what was said before it and by modules around it.
    """

    call: Taken
    told: tuple[InputHint, ...] = ()

    def with_told(self, told: InputHint) -> CallContext:
        """Return the call with one more thing that is said of it."""
        return self._replace(told=(*self.told, told))

    def said(self, kind: str) -> list[InputHint]:
        """Return what is said of as many positions as the call has keys."""
        if self.call.mask is None:
            return []
        batch, _, _, keys = self.call.mask.shape
        fits = [one for one in self.told if one.kind == kind and one.size == keys]
        return [one for one in fits if len(one.values) in ({1, batch} if kind in _OF_ROWS else {batch})]

    def encoded(self) -> Bool[np.ndarray, "B K"] | None:
        """Return which keys are tokens, where its queries are its keys and it hides padding."""
        mask = self.call.mask
        if mask is None or mask.shape[2] != mask.shape[3] or any(one.kind == "encoded" for one in self.told):
            return None
        return mask.rule.tokens if mask.rule.padded else None


class Padding(NamedTuple):
    """Which keys of each batch row are tokens, and who says so.

    Attributes:
        tokens: True = token.
        who: the place whose mask says it; None where it is no mask.
        told: what an input of a module says; None where a mask says it.
    """

    tokens: Bool[np.ndarray, "B K"]
    who: CallSite | None
    told: InputHint | None = None


def padding_of(calls: Sequence[CallContext], beside: CallContext) -> list[Padding]:
    """Return what is known of the padding of a call, the surest first.

    It is known from the encoder whose output it attends to, else from numbers of words, else from the first mask of
    its step.
    """
    mask = beside.call.mask
    # Of a decoder's own layers one may be given what the one before it gave, to be added to its output.
    is_other = mask is not None and (mask.shape[2] != mask.shape[3] or mask.sees_later)
    encoded = [one for one in beside.said("encoded") if one.is_sure or is_other]
    tokens = [Padding(one.values.astype(bool), None, one) for one in encoded[-1:] or beside.said("tokens")]
    if tokens or mask is None:
        return tokens
    for call, _ in calls:
        other = call.mask
        if other is not None and other.rule.padded and other.rule.tokens.shape == (mask.shape[0], mask.shape[3]):
            return [Padding(other.rule.tokens, call.place)]
    return []


def findings_of_step(calls: Sequence[CallContext]) -> list[tuple[Finding, ...]]:
    """Return what is wrong with each of the calls beside the others."""
    return [() if each.call.mask is None else tuple(_of_call(calls, each, each.call.mask)) for each in calls]


def _of_call(calls: Sequence[CallContext], beside: CallContext, mask: CallMask) -> Iterator[Finding]:
    yield from _padding(calls, beside, mask)
    yield from _documents(mask, beside.said("documents"))
    yield from findings_of_answers(beside.said("answers"))
    yield from _positions(mask, beside.said("positions"))


def _padding(calls: Sequence[CallContext], beside: CallContext, mask: CallMask) -> Iterator[Finding]:
    """Yield padding that is known and not hidden here, or hidden in other batch rows, or on the other side."""
    own, place, known = mask.rule.tokens, beside.call.place, padding_of(calls, beside)
    if any(one.code in _LAID_WRONGLY and one.severity == "error" for one in beside.call.findings):
        return  # what is seen follows from it
    if not known or any(one.who == place or np.array_equal(one.tokens, own) for one in known):
        return
    padding = known[0]
    who = _who(padding, place)
    is_reversed = np.array_equal(own, padding.tokens[:, ::-1])
    if mask.rule.padded and (is_reversed or sorted(own.tolist()) == sorted(padding.tokens.tolist())):
        if padding.who is None and is_reversed:
            message = f"hides the padding that {who} at one end of the rows at their other end"
            yield Finding("padding-side", "error", message, len(mask.rule.padded))
        elif padding.who is None:
            message = f"hides the padding that {who}, in another batch order"
            count = int(np.count_nonzero((own != padding.tokens).any(axis=1)))
            yield Finding("batch", "error", message, count, advice="sort the mask with the words")
        return
    is_sure = _is_sure(calls, mask, place, padding) and not beside.said("unpadded")  # of another sequence
    if not is_sure and padding.who is not None:
        return
    seen = _seen_padding(mask, padding)
    if seen.any():
        rows = np.flatnonzero(seen.any(axis=(1, 2))).tolist()
        cells = tuple((row, key) for row, key in np.argwhere(seen[rows[0]])[:MOST_CELLS].tolist())
        message = f"attends to padding that {who}{in_batch(rows)}"
        yield Finding("pad", "error" if is_sure else "note", message, int(np.count_nonzero(seen)), cells)


def _who(padding: Padding, place: CallSite) -> str:
    """Return who knows of padding, in words."""
    if padding.who is not None:
        return f"{_named(padding.who, place)} hides"
    is_encoded = padding.told is not None and padding.told.kind == "encoded"
    return "the encoder hides whose output it is given" if is_encoded else "the words have"


def _is_sure(calls: Sequence[CallContext], mask: CallMask, place: CallSite, padding: Padding) -> bool:
    """Return whether padding that is seen is that of this very call, and nobody means to see it.

    What has as many keys may be another sequence: it is that of the words in the layers of the first call after them
    whose queries are its keys. Decoders that are padded on the left attend to it in some designs, as for
    recommendations, and not in models of language, which take a mask for it. Encoders of language are made to attend to
    it by models of pictures, which read all they give; a vector of padding is made to be hidden. And keys that are
    hidden in all rows alike are not padding alone.
    """
    told = padding.told
    differs = bool((padding.tokens != padding.tokens[:1]).any())
    if told is None:
        return differs and padding.who is not None and _are_layers(calls, padding.who, place)
    if told.kind == "encoded":
        return differs
    _, _, queries, keys = mask.shape
    who = ("embedding", "both") if mask.sees_later else ("configuration", "both")
    if not told.is_sure or queries != keys or told.who not in who:
        return False
    first = next(call for call, said in calls if told in said and call.mask is not None and call.mask.shape[3] == keys)
    return first.place.module == place.module or _are_layers(calls, first.place, place)


def _are_layers(calls: Sequence[CallContext], one: CallSite, other: CallSite) -> bool:
    """Return whether two modules are layers of one stack, in one pass: their names differ by one number.

    Where the line that called the one called the other too, what called it elsewhere is another pass.
    """
    if one.module is None or other.module is None or one.module == other.module:
        return False
    if one[:3] != other[:3] and any(each.call.place == (*one[:3], other.module) for each in calls):
        return False
    pairs = [*zip_longest(one.module.split("."), other.module.split("."))]
    different = [pair for pair in pairs if pair[0] != pair[1]]
    return len(different) == 1 and all(part is not None and part.isdecimal() for part in different[0])


def _positions(mask: CallMask, told: Sequence[InputHint]) -> Iterator[Finding]:
    """Yield padding on the left that learned positions count, so that the first word is not at the first position."""
    _, _, queries, keys = mask.shape
    if queries != keys:
        return
    tokens = mask.rule.tokens
    begins = tokens.argmax(axis=1)
    padded = np.flatnonzero((begins > 0) & (tokens == (np.arange(keys) >= begins[:, None])).all(axis=1))
    if not padded.size:
        return
    for one in told:
        positions = np.broadcast_to(one.values, tokens.shape)[padded]
        if one.is_sure and (positions[:, 1:] == positions[:, :-1] + 1).all():
            message = f"positions count the padding on the left{in_batch(padded.tolist())}: the first word of row "
            message += f"{padded[0]} has position {positions[0, begins[padded[0]]]}"
            advice = "position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)"
            yield Finding("positions", "error", message, int(begins[padded].sum()), advice=advice)
            return


def _seen_padding(mask: CallMask, padding: Padding) -> Bool[np.ndarray, "B Q K"]:
    """Return the cells of padding that queries see which are none themselves."""
    _, _, queries, keys = mask.shape
    tokens = padding.tokens
    seen: Bool[np.ndarray, "B Q K"] = np.any(mask.allowed, axis=1) & ~tokens[:, None, :]
    is_encoded = padding.told is not None and padding.told.kind == "encoded"
    if queries + mask.past == keys and not is_encoded:  # whose queries are of another sequence
        seen = seen & tokens[:, mask.past :, None]
    return np.broadcast_to(seen, (len(tokens), queries, keys))


def _documents(mask: CallMask, told: Sequence[InputHint]) -> Iterator[Finding]:
    """Yield documents that attend to others, in rows whose positions begin again.

    Of queries that see later keys nothing is known: the columns of a picture's patches begin again in every row.
    """
    batch, _, queries, keys = mask.shape
    if queries != keys or mask.sees_later:
        return
    for one in told:
        document = one.values
        apart = (
            (document[:, :, None] != document[:, None, :]) & (document[:, :, None] >= 0) & (document[:, None, :] >= 0)
        )
        crossing = np.any(mask.allowed, axis=1) & apart
        if crossing.any():
            rows = np.flatnonzero(crossing.any(axis=(1, 2))).tolist()
            cells = np.argwhere(crossing[rows[0]])[:MOST_CELLS].tolist()
            where = in_batch(rows) if batch > 1 and len(crossing) > 1 else ""
            message = f"attends to other documents, although positions begin again at each{where}"
            count = int(np.count_nonzero(crossing)) * (batch // len(crossing))
            yield Finding("document", "error", message, count, tuple((query, key) for query, key in cells))
            return


def _named(other: CallSite, place: CallSite) -> str:
    """Return what another place is called: by its module, where it is the same line."""
    return other.module if other.module and other[:3] == place[:3] else str(other)
