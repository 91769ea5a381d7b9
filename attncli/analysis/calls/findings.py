"""Findings of one call: its scale, its keys, its masks alone and together, and its output."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.analysis.calls.masks import CallMask, MaskReading
from attncli.masks.conventions import LEAST, LITTLE
from attncli.masks.findings import Finding
from attncli.masks.intrinsic_checks import intrinsic_findings
from attncli.masks.recognition import rule_of
from attncli.recording.call import ZERO_WHERE_BLIND, AttentionCall
from attncli.recording.detach import has_nan, is_zero
from attncli.text import plural

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_ZERO = "their output is 0"
_LEAST_WIDTH = 4  # of fewer numbers √D may be any factor
_CONSTANT = 0.01  # how much the lengths of vectors vary at most that were normalised
_NORMALISED = 2.0  # how long queries times keys may be that were, with learned factors; more in wide heads


def findings_of(
    call: AttentionCall,
    mask: CallMask,
    masks: Sequence[MaskReading],
    unused: Sequence[MaskReading],
    has_cache: bool = False,
    words: Bool[np.ndarray, "B Q"] | None = None,
) -> Iterator[Finding]:
    """Yield what is wrong with a call, while the program waits."""
    yield from call.findings
    yield from _scale(call)
    yield from _on_heads(mask)
    yield from _keys(call, mask)
    yield from _alignment(mask, has_cache)
    broadcast = [finding for one in masks for finding in _broadcast(one, mask)]
    yield from (finding for one in masks for finding in one.findings)
    yield from broadcast
    yield from _added_up(masks, call.dtype)
    if mask.is_causal:
        yield from _ignored(unused, mask)
    yield from _by_itself(call, mask, masks, {"shape", "broadcast", "dead-row"} if broadcast else {"shape"}, words)
    if call.dropout > 0 and call.is_training is False:
        message = f"dropout of {call.dropout:g} is on although the module is in eval mode"
        is_written = call.api == "softmax"
        advice = f"{'F.dropout(…, training=' if is_written else 'dropout_p=self.dropout if '}self.training"
        yield Finding("dropout", "error", message, advice=advice + (")" if is_written else " else 0.0"))
    yield from _nan(call)


def _scale(call: AttentionCall) -> Iterator[Finding]:
    """Yield that q·k is divided by √D twice or not at all, by the root of the model's width, or multiplied with √D.

    1/√D and another number may be an attention multiplier, and 1/D is muP's.
    """
    factors, heads, q, k = call.scale_factors, call.shape[1], call.q, call.k
    if not factors or q is None or k is None:
        return
    width, sides = q.shape[-1], (*factors[:2], math.prod(factors[2:]))
    scale, message, advice = math.prod(sides), "", ""

    def is_root(number: float, of: int) -> bool:  # 1/√of, as half precision holds it
        return math.isclose(number, of**-0.5, rel_tol=1e-3)

    is_of_model = is_root(scale, heads * width) and any(is_root(each, heads * width) for each in factors)
    is_error = True
    if heads > 1 and is_of_model and not math.isclose(scale, 1 / width, rel_tol=1e-3):
        message = f"q·k is divided by √{heads * width}, the width of all {heads} heads. Each head has width {width}"
        advice = f"divide by √{width}"
    elif width >= _LEAST_WIDTH and all(each == 1 for each in factors):
        is_error, message = False, f"q·k is not scaled by 1/√{width}"
        advice = "correct if the model is made this way, as T5 is"
    elif width >= _LEAST_WIDTH and sum(is_root(each, width) for each in sides) > 1 and scale < 1.01 / width:
        is_error = call.api == "softmax"
        message = (
            f"q·k is divided by √{width} twice, before the {'product and after it' if is_error else 'call and in it'}"
        )
        advice = "divide once" if is_error else "correct if 1/D is meant, as in muP"
    elif width >= _LEAST_WIDTH and math.isclose(scale, width**0.5, rel_tol=1e-3):
        is_error, message = not _are_normalised(q, k), f"q·k is multiplied by √{width}, not divided"
        advice = f"divide by √{width}" if is_error else "correct if queries and keys are normalised"
    elif _is_odd(scale, factors, q, k):
        root = round(scale**-2)
        name = f" = 1/√{root}" if is_root(scale, root) and root > 1 else ""
        is_error, advice = False, f"correct if the model is made this way, as Gemma is; else divide by √{width}"
        message = f"q·k is multiplied by {scale:.4g}{name}; heads of width {width} have {width**-0.5:.4g} = 1/√{width}"
    if message:
        yield Finding("unscaled", "error" if is_error else "note", message, advice=advice)


def _is_odd(scale: float, factors: Sequence[float], q: Float[Any, "B H Q D"], k: Float[Any, "B H K D"]) -> bool:
    """Return whether one number scales q·k that is neither 1/√D nor 1/D, which is muP's.

    It may be meant where queries and keys are normalised, and where zeros behind the other numbers pad heads.
    """
    width, numbers = q.shape[-1], [each for each in factors if each != 1]
    if width < _LEAST_WIDTH or len(numbers) != 1 or not 0 < scale < 1:  # a learned one is NaN
        return False
    root = scale**-2
    if any(math.isclose(root, other, rel_tol=2e-3) for other in (width, width**2)):
        return False
    is_padded = any(root < width and not bool(side[..., round(root) :].any()) for side in (q, k))
    return not is_padded and not _are_normalised(q, k)


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


# --- keys ----------------------------------------------------------------------------------------------------


def _keys(call: AttentionCall, mask: CallMask) -> Iterator[Finding]:
    """Yield a prompt that the mask takes for words, or a batch that is repeated in another order than its padding."""
    differs = mask.shape[0] > 3 and bool((mask.rule.tokens != mask.rule.tokens[:1]).any())
    if mask.shape[2] == 1 and not differs:  # a step of a generation, whose prompt has shown it
        return
    k = call.k if call.project is None else call.project()[1]
    if k is not None and differs:
        yield from _repeated_otherwise(k, mask)
    if k is not None and (prompt := _prompt_taken_for_words(k, mask)):
        keys = "key is" if prompt == 1 else f"{prompt} keys are"
        message = f"the mask takes key 0 for the first word, but the first {keys} a prompt, alike in every row"
        yield Finding("padding-side", "error", message, prompt, advice="prepend ones for the prompt to the mask")


def _repeated_otherwise(k: Float[Any, "B Hkv K D"], mask: CallMask) -> Iterator[Finding]:
    """Yield that a batch is repeated as a whole, and its padding row by row, or the other way round, as for beams."""
    batch, tokens = len(k), mask.rule.tokens

    def are_alike(part: Float[Any, "B H K D"], rows: Int[np.ndarray, " B"]) -> bool:  # but for rounding
        return bool(((part - part[rows]).abs() <= 1e-5 * part.abs().amax()).all())

    for rows in (each for each in range(2, batch // 2 + 1) if batch % each == 0 and len(tokens) == batch):
        times = batch // rows
        at = np.arange(batch)
        ways = at % rows, at // times * times  # the row that each one repeats
        for own, other in (ways, ways[::-1]):
            is_of_padding = (tokens == tokens[other]).all() and not (tokens == tokens[own]).all()
            if is_of_padding and are_alike(k[:, :1, :1], own) and are_alike(k, own) and not are_alike(k, other):
                one = int(np.flatnonzero((tokens != tokens[own]).any(axis=1))[0])
                message = f"batch rows {own[one]} and {one} have the same keys and different padding: one is repeated "
                message += "as a whole, the other row by row"
                yield Finding("batch", "error", message, batch, advice="use repeat_interleave for both")
                return


def _prompt_taken_for_words(k: Float[Any, "B Hkv K D"], mask: CallMask) -> int:
    """Return how many keys of a prompt come before words whose mask begins before them; 0 where none does.

    Keys of a prompt are the same in all rows of a batch. Then the mask hides the last words in place of the padding
    behind them, which is alike in the rows that have it.
    """
    batch, _, queries, keys = mask.shape
    hidden = ~np.any(mask.allowed, axis=(1, 2))
    if hidden.shape != (batch, keys) or len(k) != batch or hidden[:, 0].any() or mask.rule.varies == "heads":
        return 0
    padded = np.flatnonzero(hidden.any(axis=1)).tolist()
    if len(padded) < 2 or (hidden[:, 1:] & ~hidden[:, :-1]).sum(axis=1).max() > 1:
        return 0
    behind = hidden[padded, ::-1].argmax(axis=1)  # keys behind the last one that is hidden
    more, gap = int(behind[0]), int(hidden[padded].sum(axis=1).min())
    if not more or (behind != more).any() or queries not in (keys, keys - more):
        return 0

    def are_alike(rows: Any, part: slice) -> bool:
        return bool((rows[..., part, :] == rows[:1, ..., part, :]).all())

    last = slice(keys - min(more, gap), keys)
    return more if are_alike(k, slice(0, more)) and are_alike(k[padded], last) and not are_alike(k, last) else 0


# --- masks ---------------------------------------------------------------------------------------------------


def _on_heads(mask: CallMask) -> Iterator[Finding]:
    """Yield a mask of rows that lies on the heads: they have the padding of one row after another."""
    batch, heads, _, keys = mask.shape
    if mask.rule.varies != "heads" or batch < 2:
        return
    allowed = np.any(mask.allowed, axis=2)
    if heads % batch and len(allowed) < batch:
        return
    seen = np.broadcast_to(allowed, (batch, heads, keys)).reshape(batch * heads, keys)
    rows = seen[:batch]
    lengths = rows.sum(axis=1)
    real = np.arange(keys) < lengths[:, None]
    # Two rows or more have padding, all at the same end, as windows of one sequence do not have.
    is_at_one_end = any((rows[:, ::step] == real).all() for step in (1, -1))
    is_padding = bool(lengths.all()) and (lengths < keys).sum() > 1 and is_at_one_end
    if is_padding and np.array_equal(seen, np.tile(rows, (heads, 1))):
        message = f"head {heads - 1} of row 0 has the padding of batch row {(heads - 1) % batch}"
        advice = "use the shape [B, 1, 1, K], or repeat_interleave(heads, 0) for [B·H, Q, K]"
        yield Finding("batch", "error", message, batch * heads, advice=advice)


def _alignment(mask: CallMask, has_cache: bool) -> Iterator[Finding]:
    """Yield queries that are aligned with the first keys, although they are fewer, or come behind a cache."""
    _, _, queries, keys = mask.shape
    if mask.is_causal and queries < keys:
        sizes = f"{queries} {'query' if queries == 1 else 'queries'} and {keys} keys"
        sees = "it sees only the first key" if queries == 1 else "query i sees only the keys up to i"
        advice = "torch.nn.attention.bias.causal_lower_right aligns the last query with the last key"
        message = f"is_causal aligns {sizes} top-left: {sees}"
        yield Finding("shape", "error", message, queries, advice=advice)
    elif has_cache and mask.is_top_left and not mask.is_causal:
        message = f"the mask of {queries}×{keys} is aligned top-left: query 0 sees no key of the cache but the first"
        advice = "tril(diagonal=keys - queries) aligns the last query with the last key"
        yield Finding("shape", "error", message, queries, advice=advice)


def _broadcast(one: MaskReading, mask: CallMask) -> Iterator[Finding]:
    """Yield that a mask is the same for every key and differs from query to query."""
    _, _, queries, keys = mask.shape
    allowed = one.allowed
    if keys == 1 or queries == 1 or allowed.shape[2] == 1:
        return
    if allowed.shape[3] == 1:
        is_laid = one.convention != "additive" or not allowed.all()  # added to all scores of a query, it does nothing
    else:
        is_laid = not allowed.all() and bool(allowed.any()) and bool((allowed == allowed[..., :1]).all())
    if is_laid:
        hidden = int(np.count_nonzero(~allowed[:, 0, :, 0]))
        message = f"{one.name} {list(one.shape)} is the same for every key, so it masks queries, not keys"
        message += f". {hidden} of them see no key" * (hidden > 0)
        yield Finding("broadcast", "error", message, hidden, advice="a mask of keys has shape [B, 1, 1, K]")


def _added_up(masks: Sequence[MaskReading], dtype: str) -> Iterator[Finding]:
    """Yield masks whose numbers come to −inf where two of them forbid a key."""
    filled = [one for one in masks if any(math.isfinite(fill) for fill in one.fills)]
    for one, other in combinations(filled, 2):
        both = ~one.allowed & ~other.allowed
        sums = [first + second for first in one.fills for second in other.fills]
        if both.any() and any(total < LEAST.get(dtype, -math.inf) for total in sums if math.isfinite(total)):
            message = "two added masks sum to -inf where both mask a key"
            advice = "combine masks before they become numbers"
            yield Finding("double-fill", "error", message, int(np.count_nonzero(both)), advice=advice)


def _ignored(unused: Sequence[MaskReading], mask: CallMask) -> Iterator[Finding]:
    """Yield masks that is_causal replaces by another one."""
    causal = np.tri(*mask.shape[2:], dtype=bool)
    for one in unused:
        allowed = np.broadcast_to(one.allowed, (*one.allowed.shape[:2], *causal.shape))
        if count := int(np.count_nonzero((allowed != causal).any(axis=(0, 1)))):
            differ = f"{plural(count, 'cell')} of it {'differs' if count == 1 else 'differ'}"
            message = f"{one.name} is not applied, as is_causal takes its place. {differ}"
            yield Finding("backend", "error", message, count, advice="leave is_causal out")


def _by_itself(
    call: AttentionCall,
    mask: CallMask,
    masks: Sequence[MaskReading],
    others: set[str],
    words: Bool[np.ndarray, "B Q"] | None,
) -> Iterator[Finding]:
    """Yield what the mask shows to be wrong, but for findings with these codes."""
    rule, allowed = mask.rule, mask.allowed
    if rule.varies == "heads" and call.api != "softmax":  # whose second axis may hold windows or buckets
        yield Finding("varies", "note", f"heads have different masks: {rule.text}", mask.shape[1])
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
    parts = [] if any(one.code == "leak" for one in found) else list(_swapped_parts(mask, masks))
    yield from parts
    yield from (one for one in found if not parts or one.code != "dead-row")  # they follow from it


def _swapped_parts(mask: CallMask, masks: Sequence[MaskReading]) -> Iterator[Finding]:
    """Yield which of several masks is the wrong way round, where together they follow no rule."""
    if mask.rule.expression is not None or len(masks) + mask.is_causal < 2:
        return
    for one in masks:
        findings = intrinsic_findings(one.allowed, rule_of(one.allowed, mask.shape), mask.past)
        yield from (replace(each, message=f"{one.name} {each.message}") for each in findings if each.code == "leak")


def _becomes(call: AttentionCall, row: int, head: int, query: int) -> str:
    """Return what was made of a query that sees no key."""
    if has_nan(_result(call)):
        return "they became NaN"
    zero = is_zero(call, row, head, query)
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
    if sources:
        yield Finding("nan", "note", f"NaN enters with its {' and '.join(sources)}, and leaves again")
        return
    module = call.place.module
    where = "" if module is None else f", in {module or 'the model itself'}"
    yield Finding("nan", "error", f"NaN comes out of this attention first{where}")
