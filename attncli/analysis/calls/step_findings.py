"""Findings of the calls of one step of a program together: padding that one knows of and another does not hide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.analysis.calls.masks import CallMask
from attncli.analysis.calls.steps import CallContext
from attncli.masks.comparison import first_cells, first_difference
from attncli.masks.findings import Finding, error, in_batch
from attncli.recording.call import CallSite
from attncli.recording.input_hint import InputHint

if TYPE_CHECKING:
    from jaxtyping import Bool

_LAID_WRONGLY = ("batch", "padding-side")
_PADDING_IDX, _PAD_TOKEN = "the embedding's padding_idx", "the configuration's pad_token_id"
_MARKED = {"embedding": _PADDING_IDX, "configuration": _PAD_TOKEN, "both": _PADDING_IDX}


class BatchPadding(NamedTuple):
    """The keys of each batch row that are tokens, by a hint or by the mask of a place."""

    tokens: Bool[np.ndarray, "B K"]  # True = token
    place: CallSite | None = None
    hint: InputHint | None = None

    @property
    def is_encoded(self) -> bool:
        """Whether it is that of the encoder whose output is attended to."""
        return self.hint is not None and self.hint.kind == "encoded"

    @property
    def is_stated(self) -> bool:
        """Whether it is an argument of the model, which it may sort or cut before it attends."""
        return self.hint is not None and self.hint.kind == "mask"


def padding_of(calls: Sequence[CallContext], context: CallContext) -> list[BatchPadding]:
    """Return the padding of a call, the surest first.

    It is known from the encoder whose output it attends to, else from numbers of words, else from a mask that the model
    was called with, else from the first mask of its step.
    """
    mask = context.call.mask
    # A decoder's own layers may get the output of the one before, to be added to theirs.
    is_other = mask is not None and (mask.shape[2] != mask.shape[3] or mask.sees_later)
    encoded = [one for one in context.hints_of("encoded") if one.is_sure or is_other]
    hints = encoded[-1:] or context.hints_of("tokens") or context.hints_of("mask")
    if hints or mask is None:
        return [BatchPadding(one.values.astype(bool), hint=one) for one in hints]
    others = (each.call for each in calls if each.call.mask is not None and each.call.mask.rule.padded)
    found = ((call.mask.rule.tokens, call.place) for call in others if call.mask is not None)
    return [BatchPadding(*one) for one in found if one[0].shape == (mask.shape[0], mask.shape[3])][:1]


def findings_of_step(calls: Sequence[CallContext]) -> Iterator[tuple[Finding, ...]]:
    """Yield what is wrong with each of the calls in the light of the others."""
    for each in calls:
        findings: list[Finding] = []
        if (mask := each.call.mask) is not None and not each.call.is_block:
            findings += _padding(calls, each, mask)
            findings += _documents(mask, each.hints_of("documents"))
            findings += _positions(mask, each.hints_of("positions"))
        yield tuple(findings)


def _padding(calls: Sequence[CallContext], context: CallContext, mask: CallMask) -> Iterator[Finding]:
    """Yield padding that is known and not hidden here, or hidden in other batch rows, or on the other side."""
    own, place, known = mask.rule.tokens, context.call.place, padding_of(calls, context)
    if any(one.code in _LAID_WRONGLY and one.severity == "error" for one in context.call.findings):
        return  # what is seen follows from it
    if not known or any(one.place == place or np.array_equal(one.tokens, own) for one in known):
        return
    padding = known[0]
    if padding.place is not None:
        is_line = padding.place.module and padding.place[:3] == place[:3]
        source = f"{padding.place.module if is_line else padding.place} masks"
    elif padding.hint is None or padding.is_encoded:
        source = "its encoder masks"
    else:
        source = _MARKED.get(padding.hint.source, f"the model's {padding.hint.source} argument") + " marks"
    is_reversed = np.array_equal(own, padding.tokens[:, ::-1])
    if mask.rule.padded and (is_reversed or sorted(own.tolist()) == sorted(padding.tokens.tolist())):
        if padding.is_stated or padding.place is not None:
            return
        if is_reversed:
            message = f"masks the other end of the rows than the padding that {source}"
            yield error("padding-side", message, len(mask.rule.padded))
        else:
            count = int(np.count_nonzero((own != padding.tokens).any(axis=1)))
            message = f"masks the padding that {source}, but in another batch order"
            yield error("batch", message, count, "sort the mask as the batch is sorted")
        return
    is_sure = _is_sure(calls, mask, place, padding) and not context.hints_of("unpadded")  # of another sequence
    if not is_sure and padding.place is not None:
        return
    seen = _seen_padding(mask, padding)
    if seen.any():
        rows = np.flatnonzero(seen.any(axis=(1, 2))).tolist()
        finding = _of_cells("pad", f"attends to padding that {source}{in_batch(rows)}", mask, seen)
        yield finding if is_sure else replace(finding, severity="note")


def _is_sure(calls: Sequence[CallContext], mask: CallMask, place: CallSite, padding: BatchPadding) -> bool:
    """Return whether padding that is seen is that of this very call, and seen by mistake.

    Keys of the same number may be another sequence: padding is that of the words in the layers of the first call after
    them whose queries are its keys. Decoders that are padded on the left attend to it in some designs, as for
    recommendations, and not in models of language, which take a mask for it. Encoders of language are made to attend to
    it by models of pictures, which read all they are given; a vector of padding is made to be hidden. And keys that are
    hidden in all rows alike are not padding alone.
    """
    hint = padding.hint
    differs = bool((padding.tokens != padding.tokens[:1]).any())
    if hint is None:
        return differs and padding.place is not None and _are_layers(calls, padding.place, place)
    if padding.is_encoded:
        return differs
    _, _, queries, keys = mask.shape
    sources = ("embedding", "both") if mask.sees_later else ("configuration", "both")
    if not hint.is_sure or queries != keys or hint.source not in sources:
        return False
    first = next(
        call
        for call, hints, _ in calls
        if any(each.digest == hint.digest for each in hints) and call.mask is not None and call.mask.shape[3] == keys
    )
    return first.place.module == place.module or _are_layers(calls, first.place, place)


def _are_layers(calls: Sequence[CallContext], one: CallSite, other: CallSite) -> bool:
    """Return whether two modules are layers of one stack, in one pass: their names differ by one number.

    Where the line that called the one called the other too, what called it elsewhere is another pass.
    """
    if one.module is None or other.module is None or one.module == other.module:
        return False
    if one[:3] != other[:3] and any(each.call.place == (*one[:3], other.module) for each in calls):
        return False
    pairs = zip_longest(one.module.split("."), other.module.split("."))
    different = [pair for pair in pairs if pair[0] != pair[1]]
    return len(different) == 1 and all(part is not None and part.isdecimal() for part in different[0])


def _seen_padding(mask: CallMask, padding: BatchPadding) -> Bool[np.ndarray, "B Q K"]:
    """Return the cells of padding that queries see which are none themselves."""
    _, _, queries, keys = mask.shape
    tokens = padding.tokens
    seen: Bool[np.ndarray, "B Q K"] = np.any(mask.allowed, axis=1) & ~tokens[:, None, :]
    if queries + mask.past == keys and not padding.is_encoded:  # whose queries are of another sequence
        seen = seen & tokens[:, mask.past :, None]
    return np.broadcast_to(seen, (len(tokens), queries, keys))


def _documents(mask: CallMask, hints: Sequence[InputHint]) -> Iterator[Finding]:
    """Yield documents that attend to others, in rows whose positions begin again.

    Of queries that see later keys nothing is known: the columns of a picture's patches begin again in every row.
    """
    batch, _, queries, keys = mask.shape
    for document in (one.values for one in hints if queries == keys and not mask.sees_later):
        is_one = (document[:, :, None] >= 0) & (document[:, None, :] >= 0)
        crossing = np.any(mask.allowed, axis=1) & is_one & (document[:, :, None] != document[:, None, :])
        if crossing.any():
            rows = np.flatnonzero(crossing.any(axis=(1, 2))).tolist()
            where = in_batch(rows) if batch > 1 and len(crossing) > 1 else ""
            message = f"attends to other documents, where positions begin again{where}"
            yield _of_cells("document", message, mask, crossing)
            return


def _of_cells(code: str, message: str, mask: CallMask, wrong: Bool[np.ndarray, "#B Q K"]) -> Finding:
    """Return an error about cells that should be hidden, drawn in the first batch row that has some."""
    seen = np.broadcast_to(np.any(mask.allowed, axis=1, keepdims=True), (len(wrong), 1, *wrong.shape[1:]))
    comparison = first_difference(seen, seen & ~wrong[:, None], mask.past)
    count = int(np.count_nonzero(wrong)) * (mask.shape[0] // len(wrong))
    cells = () if comparison is None else first_cells(comparison.only_first)
    return error(code, message, count, cells=cells, comparison=comparison)


def _positions(mask: CallMask, hints: Sequence[InputHint]) -> Iterator[Finding]:
    """Yield padding on the left that learned positions count, so that the first word is not at the first position."""
    _, _, queries, keys = mask.shape
    tokens = mask.rule.tokens
    begins = tokens.argmax(axis=1)
    padded = np.flatnonzero((begins > 0) & (tokens == (np.arange(keys) >= begins[:, None])).all(axis=1))
    for one in hints if queries == keys and padded.size else ():
        positions = np.broadcast_to(one.values, tokens.shape)[padded]
        if one.is_sure and (positions[:, 1:] == positions[:, :-1] + 1).all():
            message = f"positions count the padding on the left{in_batch(padded.tolist())}: the first word of row "
            message += f"{padded[0]} has position {positions[0, begins[padded[0]]]}"
            advice = "position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)"
            yield error("positions", message, int(begins[padded].sum()), advice)
            return
