"""Findings of one call, by its scale, keys, masks and output, and of the calls of a step in the light of the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.calls.groups import NOT_CHECKED
from attncli.analysis.calls.masks import CallMask, MaskReading
from attncli.analysis.calls.steps import CallContext
from attncli.masks.audit import first_cells, intrinsic_findings
from attncli.masks.comparison import first_difference
from attncli.masks.conventions import LEAST, LITTLE
from attncli.masks.findings import Finding, error, in_batch, note
from attncli.masks.recognition import rule_of
from attncli.recording.call import ZERO_WHERE_BLIND, AttentionCall, CallSite
from attncli.recording.detach import has_nan, is_zero
from attncli.recording.input_hint import InputHint
from attncli.text import plural

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    Masks = Sequence[MaskReading]
    Words = Bool[np.ndarray, "B Q"] | None

_LAID_WRONGLY = ("batch", "padding-side")
_PADDING_IDX, _PAD_TOKEN = "the embedding's padding_idx", "the configuration's pad_token_id"
_MARKED = {"embedding": _PADDING_IDX, "configuration": _PAD_TOKEN, "both": _PADDING_IDX}
_ZERO = "their output is 0"
_LEAST_WIDTH = 4  # of fewer numbers √D may be any factor
_CONSTANT = 0.01  # how much the lengths of vectors vary at most that were normalised
_NORMALISED = 2.0  # how long queries times keys may be that were, with learned factors; more in wide heads


def findings_of(
    call: AttentionCall, mask: CallMask, masks: Masks, unused: Masks, has_cache: bool = False, words: Words = None
) -> Iterator[Finding]:
    """Yield what is wrong with a call, while the program waits."""
    yield from call.findings
    yield from _scale(call)
    yield from _on_heads(mask)
    yield from _prompt(call, mask)
    yield from _repetition(call, mask)
    yield from _alignment(mask, has_cache)
    yield from (finding for one in masks for finding in one.findings)
    broadcast = [finding for one in masks for finding in _broadcast(one, mask)]
    yield from broadcast
    yield from _together(masks, unused, mask, call.dtype)
    yield from _by_itself(call, mask, masks, {"shape", "broadcast", "dead-row"} if broadcast else {"shape"}, words)
    if call.dropout > 0 and call.is_training is False:
        message = f"dropout of {call.dropout:g} is on although the module is in eval mode"
        advice = "dropout_p=self.dropout if self.training else 0.0"
        if call.api == "softmax":
            advice = "F.dropout(…, training=self.training)"
        yield error("dropout", message, advice=advice)
    yield from _nan(call)


# --- scale ---------------------------------------------------------------------------------------------------


def _scale(call: AttentionCall) -> Iterator[Finding]:
    """Yield that q·k is divided by √D twice or not at all, by the root of the model's width, or multiplied with √D.

    1/√D and another number may be an attention multiplier, and 1/D is muP's.
    """
    factors, heads, q, k = call.scale_factors, call.shape[1], call.q, call.k
    if not factors or q is None or k is None:
        return
    width, sides = q.shape[-1], (*factors[:2], math.prod(factors[2:]))
    scale, everything = math.prod(sides), heads * width

    def is_root(number: float, of: int) -> bool:  # 1/√of, as half precision holds it
        return math.isclose(number, of**-0.5, rel_tol=1e-3)

    is_of_model = is_root(scale, everything) and any(is_root(each, everything) for each in factors)
    if heads > 1 and is_of_model and not math.isclose(scale, 1 / width, rel_tol=1e-3):
        message = f"q·k is divided by √{everything}, the width of all {heads} heads. Each head has width {width}"
        yield error("unscaled", message, advice=f"divide by √{width}")
    elif width < _LEAST_WIDTH:
        return
    elif all(each == 1 for each in factors):
        advice = "correct if the model is made this way, as T5 is"
        yield note("unscaled", f"q·k is not scaled by 1/√{width}", advice=advice)
    elif sum(is_root(each, width) for each in sides) > 1 and scale < 1.01 / width:
        message = f"q·k is divided by √{width} twice, before the "
        if call.api == "softmax":
            yield error("unscaled", message + "product and after it", advice="divide once")
        else:
            yield note("unscaled", message + "call and in it", advice="correct if 1/D is meant, as in muP")
    elif math.isclose(scale, width**0.5, rel_tol=1e-3):
        message = f"q·k is multiplied by √{width}, not divided"
        if _are_normalised(q, k):
            yield note("unscaled", message, advice="correct if queries and keys are normalised")
        else:
            yield error("unscaled", message, advice=f"divide by √{width}")
    elif _is_odd(scale, factors, q, k):
        root = round(scale**-2)
        name = f" = 1/√{root}" if is_root(scale, root) and root > 1 else ""
        message = f"q·k is multiplied by {scale:.4g}{name}; heads of width {width} have {width**-0.5:.4g} = 1/√{width}"
        advice = f"correct if the model is made this way, as Gemma is; else divide by √{width}"
        yield note("unscaled", message, advice=advice)


def _is_odd(scale: float, factors: Sequence[float], q: Float[Any, "B H Q D"], k: Float[Any, "B H K D"]) -> bool:
    """Return whether one number scales q·k that is neither 1/√D nor 1/D, which is muP's.

    It may be meant where queries and keys are normalised, and where zeros behind the other numbers pad heads.
    """
    width, root = q.shape[-1], scale**-2 if 0 < scale < 1 else 0  # a learned one is NaN
    if sum(each != 1 for each in factors) != 1 or not root:
        return False
    is_padded = any(root < width and not bool(side[..., round(root) :].any()) for side in (q, k))
    is_usual = any(math.isclose(root, other, rel_tol=2e-3) for other in (width, width**2))
    return not is_usual and not is_padded and not _are_normalised(q, k)


def _are_normalised(*sides: Any) -> bool:
    """Return whether the vectors of queries or keys may have been given a length, with learned factors or without.

    A view of a projection of several heads was not: the lengths of its heads are what they are.
    """
    width = sides[0].shape[-1]
    if any(each._base is not None and each._base.shape[-1] > width for each in sides):
        return False
    lengths = [side.detach().float().norm(dim=-1) for side in sides]
    lengths = [each[each > 0] for each in lengths]
    if any(each.numel() < 2 or float(each.std() / each.mean()) < _CONSTANT for each in lengths):
        return True
    return float(lengths[0].mean() * lengths[1].mean()) < max(_NORMALISED, width / 8)


# --- masks ---------------------------------------------------------------------------------------------------


def _prompt(call: AttentionCall, mask: CallMask) -> Iterator[Finding]:
    """Yield that the mask begins at the keys of a prompt, and not at the words behind them.

    Keys of a prompt are the same in all rows of a batch. Then the mask hides the last words in place of the padding
    behind them, which is alike in the rows that have it.
    """
    batch, _, queries, keys = mask.shape
    hidden = ~np.any(mask.allowed, axis=(1, 2))
    padded = np.flatnonzero(hidden.any(axis=1)).tolist()
    if queries == 1 or hidden.shape != (batch, keys) or hidden[:, 0].any() or mask.rule.varies == "heads":
        return  # a single query is a step of a generation, whose prompt has shown it
    if len(padded) < 2 or (hidden[:, 1:] & ~hidden[:, :-1]).sum(axis=1).max() > 1:
        return
    behind = hidden[padded, ::-1].argmax(axis=1)  # keys behind the last one that is hidden
    more, gap = int(behind[0]), int(hidden[padded].sum(axis=1).min())
    k = _keys_of(call)
    if not more or (behind != more).any() or queries not in (keys, keys - more) or k is None or len(k) != batch:
        return

    def are_alike(rows: Any, part: slice) -> bool:
        return bool((rows[..., part, :] == rows[:1, ..., part, :]).all())

    last = slice(keys - min(more, gap), keys)
    if are_alike(k, slice(0, more)) and are_alike(k[padded], last) and not are_alike(k, last):
        prompt = "key is" if more == 1 else f"{more} keys are"
        message = f"the mask takes key 0 for the first word, but the first {prompt} a prompt, alike in every row"
        yield error("padding-side", message, more, "prepend ones for the prompt to the mask")


def _repetition(call: AttentionCall, mask: CallMask) -> Iterator[Finding]:
    """Yield that a batch is repeated as a whole, and its padding row by row, or the other way round, as for beams."""
    batch, tokens = mask.shape[0], mask.rule.tokens
    k = None if batch < 4 or (tokens == tokens[:1]).all() else _keys_of(call)
    if k is None or len(k) != batch:
        return

    def are_alike(part: Float[Any, "B H K D"], rows: Int[np.ndarray, " B"]) -> bool:  # but for rounding
        return bool(((part - part[rows]).abs() <= 1e-5 * part.abs().amax()).all())

    for rows in (each for each in range(2, batch // 2 + 1) if batch % each == 0):
        times = batch // rows
        ways = np.arange(batch) % rows, np.arange(batch) // times * times  # the row that each one repeats
        for own, other in (ways, ways[::-1]):
            differs = (tokens != tokens[own]).any(axis=1)
            is_other = differs.any() and (tokens == tokens[other]).all()
            if is_other and are_alike(k[:, :1, :1], own) and are_alike(k, own) and not are_alike(k, other):
                row = int(differs.argmax())
                message = f"batch rows {own[row]} and {row} have the same keys and different padding: one is repeated "
                message += "as a whole, the other row by row"
                yield error("batch", message, batch, "use repeat_interleave for both")
                return


def _keys_of(call: AttentionCall) -> Float[Any, "B Hkv K D"] | None:
    return call.k if call.project is None else call.project()[1]


def _on_heads(mask: CallMask) -> Iterator[Finding]:
    """Yield a mask of rows that lies on the heads: they have the padding of one row after another."""
    batch, heads, _, keys = mask.shape
    if mask.rule.varies != "heads" or batch < 2:
        return
    allowed = np.any(mask.allowed, axis=2)
    if heads % batch and len(allowed) < batch:
        return
    seen = np.broadcast_to(allowed, (batch, heads, keys)).reshape(batch * heads, keys)
    rows, lengths = seen[:batch], seen[:batch].sum(axis=1)
    real = np.arange(keys) < lengths[:, None]
    # Two rows or more have padding, all at the same end, as windows of one sequence do not have.
    is_at_one_end = any((rows[:, ::step] == real).all() for step in (1, -1))
    is_padding = bool(lengths.all()) and (lengths < keys).sum() > 1 and is_at_one_end
    if is_padding and np.array_equal(seen, np.tile(rows, (heads, 1))):
        message = f"head {heads - 1} of row 0 has the padding of batch row {(heads - 1) % batch}"
        advice = "use the shape [B, 1, 1, K], or repeat_interleave(heads, 0) for [B·H, Q, K]"
        yield error("batch", message, batch * heads, advice)


def _alignment(mask: CallMask, has_cache: bool) -> Iterator[Finding]:
    """Yield queries that are aligned with the first keys, although they are fewer, or come behind a cache."""
    _, _, queries, keys = mask.shape
    if mask.is_causal and queries < keys:
        sees = "it sees only the first key" if queries == 1 else "query i sees only the keys up to i"
        message = (
            f"is_causal aligns {queries} {'query' if queries == 1 else 'queries'} and {keys} keys top-left: {sees}"
        )
        advice = "torch.nn.attention.bias.causal_lower_right aligns the last query with the last key"
        yield error("shape", message, queries, advice)
    elif has_cache and mask.is_top_left and not mask.is_causal:
        message = f"the mask of {queries}×{keys} is aligned top-left: query 0 sees no key of the cache but the first"
        yield error("shape", message, queries, "tril(diagonal=keys - queries) aligns the last query with the last key")


def _broadcast(one: MaskReading, mask: CallMask) -> Iterator[Finding]:
    """Yield that a mask is the same for every key and differs from query to query."""
    allowed, is_of_keys = one.allowed, one.allowed.shape[3] > 1
    if 1 in mask.shape[2:] or allowed.shape[2] == 1 or (is_of_keys and not allowed.any()):
        return
    # Added to all scores of a query, a number does nothing.
    hides = not allowed.all() or (one.convention != "additive" and not is_of_keys)
    if hides and bool((allowed == allowed[..., :1]).all()):
        hidden = int(np.count_nonzero(~allowed[:, 0, :, 0]))
        message = f"{one.name} {list(one.shape)} is the same for every key, so it masks queries, not keys"
        message += f". {hidden} of them see no key" * (hidden > 0)
        yield error("broadcast", message, hidden, "a mask of keys has shape [B, 1, 1, K]")


def _together(masks: Masks, unused: Masks, mask: CallMask, dtype: str) -> Iterator[Finding]:
    """Yield masks whose numbers come to -inf where two forbid a key, and those that is_causal replaces by another."""
    filled = [one for one in masks if any(math.isfinite(fill) for fill in one.fills)]
    for one, other in combinations(filled, 2):
        both = int(np.count_nonzero(~one.allowed & ~other.allowed))
        sums = [first + second for first in one.fills for second in other.fills]
        if both and any(total < LEAST.get(dtype, -math.inf) for total in sums if math.isfinite(total)):
            message = "two added masks sum to -inf where both mask a key"
            yield error("double-fill", message, both, "combine masks before they become numbers")
    causal = np.tri(*mask.shape[2:], dtype=bool)
    for one in unused if mask.is_causal else ():
        if count := int(np.count_nonzero((one.allowed != causal).any(axis=(0, 1)))):
            differ = f"{plural(count, 'cell')} of it {'differs' if count == 1 else 'differ'}"
            message = f"{one.name} is not applied, as is_causal takes its place. {differ}"
            yield error("backend", message, count, "leave is_causal out")


def _by_itself(call: AttentionCall, mask: CallMask, masks: Masks, others: set[str], words: Words) -> Iterator[Finding]:
    """Yield what the mask shows to be wrong, but for findings with these codes."""
    rule, allowed = mask.rule, mask.allowed
    if rule.varies == "heads" and call.api != "softmax":  # whose second axis may hold windows or buckets
        yield note("varies", f"heads have different masks: {rule.text}", mask.shape[1])
    if allowed.all():  # as in every step of a generation
        return
    dead = np.argwhere(~allowed.any(axis=3))
    becomes = _becomes(call, *dead[0].tolist()) if len(dead) else ""
    found = [one for one in intrinsic_findings(allowed, rule, mask.past, becomes) if one.code not in others]
    are_words = words is None or bool((words & np.any(~np.any(allowed, axis=3), axis=1)).any())
    # A program that writes its softmax out gives 0 where it means to.
    is_meant = _sees_itself_alone(call, dead) or (call.api not in ZERO_WHERE_BLIND and becomes == _ZERO)
    if len(dead) and (not are_words or is_meant):
        found = [one if one.code != "dead-row" else replace(one, severity="note") for one in found]
    parts = []
    if not any(one.code == "leak" for one in found) and rule.expression is None and len(masks) + mask.is_causal > 1:
        for one in masks:  # which together follow no rule, and one of which may be the wrong way round
            alone = intrinsic_findings(one.allowed, rule_of(one.allowed, mask.shape), mask.past)
            parts += [replace(each, message=f"{one.name} {each.message}") for each in alone if each.code == "leak"]
    yield from parts
    yield from (one for one in found if not parts or one.code != "dead-row")  # they follow from it


def _becomes(call: AttentionCall, row: int, head: int, query: int) -> str:
    """Return what was made of a query that sees no key."""
    zero = is_zero(call, row, head, query)
    if has_nan(_result(call)):
        return "they became NaN"
    if zero is None:
        return "their output is not attention"
    return _ZERO if zero else "the fill is finite, so they attend to masked keys"


def _sees_itself_alone(call: AttentionCall, dead: Int[np.ndarray, "N 3"]) -> bool:
    """Return whether queries that see no key give all weight to the one at their own position, as a last resort."""
    weights = call.weights
    if weights is None or weights.shape[2] != weights.shape[3]:
        return False
    rows, heads, queries = (dead[:, axis] % weights.shape[axis] for axis in range(3))
    return bool((weights[rows, heads, queries, queries] > 1 - LITTLE).all())


def _result(call: AttentionCall) -> Any:
    """Return the output; weights that are NaN may have been made 0 before they met the values."""
    return call.weights if call.output is None else call.output


def _nan(call: AttentionCall) -> Iterator[Finding]:
    if not has_nan(_result(call)):
        return
    inputs = (call.q, call.k, call.v) if call.project is None else call.project()
    sources = [name for name, one in zip(("queries", "keys", "values"), inputs, strict=True) if has_nan(one)]
    module = call.place.module
    where = "" if module is None else f", in {module or 'the model itself'}"
    if sources:
        yield note("nan", f"NaN enters with its {' and '.join(sources)}, and leaves again")
    else:
        yield error("nan", f"NaN comes out of this attention first{where}")


# --- the calls of a step together ------------------------------------------------------------------------------


class BatchPadding(NamedTuple):
    """The keys of each batch row that are tokens, by a hint or by the mask of a place."""

    tokens: Bool[np.ndarray, "B K"]  # True = token
    place: CallSite | None = None
    hint: InputHint | None = None

    @property
    def kind(self) -> str:
        """Kind of the hint; empty for padding that a mask shows."""
        return "" if self.hint is None else self.hint.kind


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
    if mask.words_see_later and not mask.rule.padded and (sizes := unmatched_padding(calls, context, mask)):
        yield note(NOT_CHECKED, f"padding: {sizes}")
    if any(one.code in _LAID_WRONGLY and one.severity == "error" for one in context.call.findings):
        return  # what is seen follows from it
    if not known or any(one.place == place or np.array_equal(one.tokens, own) for one in known):
        return
    padding = known[0]
    if padding.place is not None:
        is_line = padding.place.module and padding.place[:3] == place[:3]
        source = f"{padding.place.module if is_line else padding.place} masks"
    elif padding.hint is None or padding.kind == "encoded":
        source = "its encoder masks"
    else:
        source = f"{_marked_by(padding.hint)} marks"
    is_reversed = np.array_equal(own, padding.tokens[:, ::-1])
    if mask.rule.padded and (is_reversed or sorted(own.tolist()) == sorted(padding.tokens.tolist())):
        if padding.kind == "mask" or padding.place is not None:
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
    _, _, queries, keys = mask.shape
    seen = np.any(mask.allowed, axis=1) & ~padding.tokens[:, None, :]
    if queries + mask.past == keys and padding.kind != "encoded":  # whose queries are of another sequence
        seen = seen & padding.tokens[:, mask.past :, None]  # and of padding no query is judged
    seen = np.broadcast_to(seen, (len(padding.tokens), queries, keys))
    if seen.any():
        rows = np.flatnonzero(seen.any(axis=(1, 2))).tolist()
        finding = _of_cells("pad", f"attends to padding that {source}{in_batch(rows)}", mask, seen)
        yield finding if is_sure else replace(finding, severity="note")
    hidden = padding.tokens & ~own
    if padding.place is None and mask.rule.expression is not None and hidden.any():
        rows, count = np.flatnonzero(hidden.any(axis=1)).tolist(), int(hidden.sum())
        verb = "does not mask" if padding.kind == "encoded" else "does not mark as padding"
        message = f"hides {plural(count, 'key')} from every query that {source.rpartition(' ')[0]} {verb}"
        yield note("missing", message + in_batch(rows), count)


def _marked_by(hint: InputHint) -> str:
    return _MARKED.get(hint.source, f"the model's {hint.source} argument")


def unmatched_padding(calls: Sequence[CallContext], context: CallContext, mask: CallMask) -> str | None:
    """Return how many words padding leaves that is of no keys of the step, and how many keys a call has, in words.

    Such keys may be text and picture together, or a part of the text. None where they hide as many as are padding.
    """
    sizes = {each.call.mask.shape[3] for each in calls if each.call.mask is not None}
    batch, _, _, keys = mask.shape
    hidden = np.broadcast_to(~np.any(mask.allowed, axis=(1, 2)), (batch, keys)).sum(axis=1)
    for hint in (one for kind in ("tokens", "mask") for one in context.hints if one.kind == kind):
        words = hint.values.sum(axis=1)
        is_trimmed = keys < hint.size and not hint.values[:, keys:].any()  # to the longest row
        is_other = len(words) == batch and hint.size not in {*sizes, words.min()} and not is_trimmed
        if is_other and (hint.size - words != hidden).any():
            counts = " and ".join(map(str, words.tolist())) if batch < 3 else f"{words.min()} to {words.max()}"
            marks = f"{_marked_by(hint)} leaves {counts} words of {hint.size} positions"
            return f"{marks}, and {plural(keys, 'key')} are attended to"
    return None


def _is_sure(calls: Sequence[CallContext], mask: CallMask, place: CallSite, padding: BatchPadding) -> bool:
    """Return whether padding that is seen is that of this very call, and seen by mistake.

    Keys of the same number may be another sequence: padding is that of the words in the layers of the first call after
    them whose queries are its keys. Decoders that are padded on the left attend to it in some designs, and encoders of
    language are made to by models of pictures. Keys that are hidden in all rows alike are not padding alone.
    """
    hint = padding.hint
    differs = bool((padding.tokens != padding.tokens[:1]).any())
    if hint is None:
        return differs and padding.place is not None and _are_layers(calls, padding.place, place)
    if padding.kind == "encoded":
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
