"""What the masks of a program should be, for every place or those that a pattern names, and what differs from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.calls.groups import NOT_CHECKED, joined_places
from attncli.analysis.calls.step_findings import padding_of, unmatched_padding
from attncli.analysis.calls.steps import CallContext, RecordedCall
from attncli.errors import AttnError, UsageError
from attncli.masks.audit import audit_allowed, word_queries
from attncli.masks.comparison import Comparison
from attncli.masks.expressions import And, Expression, Grid, Pad, conjuncts, leaves, with_lengths, with_numbers
from attncli.masks.findings import Finding
from attncli.masks.mask_grid import MaskSize, bind_lengths, materialise
from attncli.masks.parser import parse
from attncli.masks.recognition import infer_padding
from attncli.recording.call import CallSite
from attncli.recording.input_hint import numbers_of
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Bool

    from attncli.analysis.calls.masks import CallMask

EVERYWHERE = "*"  # the pattern of an expression that has none
Expected = str | Sequence[str] | Mapping[str, str]


def matches(place: CallSite, pattern: str) -> bool:
    """Return whether a pattern, as of file names, is that of a place: of its file and line, function or module."""
    names = str(place), place.file, place.function, place.module or ""
    return any(fnmatchcase(name, pattern) for name in names)


def split_pattern(text: str) -> tuple[str | None, str]:
    """Split `PATTERN=EXPR` at the first `=` outside of parentheses and quotes, as `pad(left=2)` has one of its own."""
    depth, quote = 0, ""
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "=" and depth == 0:
            return text[:index].strip(), text[index + 1 :]
    return None, text


@dataclass(frozen=True, eq=False)
class Expectation:
    """What the masks of some places should be."""

    pattern: str  # of the places, as of file names
    text: str  # the expression as it was written
    expression: Expression

    def __str__(self) -> str:
        return self.text if self.pattern == EVERYWHERE else f"{self.pattern}={self.text}"


class Expectations(NamedTuple):
    """What the masks of a program should be; of several that match a place, the last one decides."""

    all: tuple[Expectation, ...]

    @classmethod
    def parse(cls, expected: Expected) -> Expectations:
        """Parse what is expected.

        Args:
            expected: an expression, which may have the pattern of its places before it (`decoder.*=causal & pad`),
                several of these, or the expressions by their patterns. `pad`, `docs`, `window` and `chunk` may stand
                without numbers.

        Raises:
            UsageError: one is no expression, or has nothing before its `=`.
            InputError: a file that one names cannot be read.
        """
        if isinstance(expected, Mapping):
            pairs: Iterable[tuple[str | None, str]] = expected.items()
        else:
            pairs = map(split_pattern, [expected] if isinstance(expected, str) else expected)
        return cls(tuple(_expectation(*pair) for pair in pairs))

    def at(self, place: CallSite) -> Expectation | None:
        """Return what is expected of the attention at a place; None is nothing."""
        return next((one for one in reversed(self.all) if matches(place, one.pattern)), None)

    def idle(self, places: Iterable[CallSite]) -> list[Expectation]:
        """Return the patterns that decide at none of the places, as one that is misspelt."""
        deciding = {self.at(place) for place in places}
        return [one for one in self.all if one.pattern != EVERYWHERE and one not in deciding]

    def with_lengths(self, lengths: Any) -> Expectations:
        """Return the expectations whose `pad` knows how many tokens each batch row has.

        Raises:
            UsageError: none of them has a `pad` that needs it.
            InputError: the lengths are none.
        """
        padded = [one for one in self.all if any(isinstance(leaf, Pad) for leaf in leaves(one.expression))] or self.all
        bound = {id(one): replace(one, expression=bind_lengths(one.expression, lengths)) for one in padded}
        return Expectations(tuple(bound.get(id(one), one) for one in self.all))

    def __str__(self) -> str:
        return ", ".join(map(str, self.all))


def _expectation(pattern: str | None, text: str) -> Expectation:
    if pattern == "":
        raise UsageError(f"'={visible(text)}' has no pattern before the '='; leave the '=' out to check every place")
    expression = parse(text, allow_rows=True, allow_unnumbered=True)
    return Expectation(EVERYWHERE if pattern is None else pattern, text.strip(), expression)


_MOST_LINES = 20


class CallMismatch(NamedTuple):
    """A call that is not as expected, and how."""

    call: RecordedCall
    finding: Finding  # what differs
    expected: Expression | None  # with the padding of its batch; None where that is not known

    @property
    def comparison(self) -> Comparison | None:
        """Which cells are wrong, in the first batch row and head where some are; None where it is no matter of cells.

        Where it does not matter what a query sees, both agree.
        """
        mask, expected = self.call.mask, self.expected
        if mask is None or expected is None or not self.finding.cells:
            return None
        *_, queries, keys = mask.shape
        grid = Grid(np.arange(queries)[:, None], keys, mask.past, queries)
        right = materialise(expected, MaskSize(queries, keys, mask.past))
        right = right.reshape((1,) * (4 - right.ndim) + right.shape)
        planes = np.broadcast_to(mask.allowed, np.broadcast_shapes(mask.allowed.shape, right.shape))
        differs = (planes != right) & word_queries(expected, grid)
        found = np.argwhere(differs.any(axis=(2, 3)))
        if not len(found):
            return None
        row, head = found[0].tolist()
        names = ["the call", *[f"batch row {row}"] * (len(planes) > 1), *[f"head {head}"] * (planes.shape[1] > 1)]
        plane, seen = differs[row, head], planes[row, head]
        cells = plane & seen, plane & ~seen, seen & ~plane
        return Comparison((", ".join(names), "expected"), *cells, mask.past, batch_row=row)


class UnexpectedError(AssertionError):
    """Calls are not as expected.

    Attributes:
        expected: what they were held against.
        wrong: which calls, and how; empty where there was no call at all.
    """

    def __init__(self, expected: str, wrong: Sequence[CallMismatch], unchecked: Sequence[str] = ()) -> None:
        """Make the error.

        Args:
            expected: what the calls were held against.
            wrong: which calls, and how.
            unchecked: what could not be held against it, a sentence each.
        """
        self.expected, self.wrong = expected, tuple(wrong)
        super().__init__("\n".join([f"attention is not {visible(expected)}", *self._lines(), *unchecked]))

    def _lines(self) -> Iterator[str]:
        places: dict[tuple[tuple[object, ...], str], list[CallSite]] = {}
        for one in self.wrong:
            finding = one.call.with_lines(one.finding)
            advice = f". {finding.advice}" if finding.advice else ""
            text = f"{finding.code}: {finding.message}{finding.maker}{advice}"
            places.setdefault((one.call.place[:3], text), []).append(one.call.place)
        for (_, text), alike in [*places.items()][:_MOST_LINES]:
            yield visible(f"{joined_places(alike)}: {text}")
        if len(places) > _MOST_LINES:
            yield f"and {len(places) - _MOST_LINES} more"


def mismatches(calls: Sequence[CallContext], expected: Expectations) -> Iterator[list[CallMismatch]]:
    """Yield what each call of a step does otherwise than is expected at its place.

    Args:
        calls: of one step, with what is known of their batches.
        expected: what their masks should be; the last query stands at the last key. How much `pad` hides is what the
            numbers of the words say, by the `padding_idx` of an embedding, or else the first mask of the step that
            hides keys at an end of a batch row, unless the expression has it. The numbers that `docs`, `window` and
            `chunk` leave out are what the position ids and the configuration of the model say.
    """
    for each in calls:
        here = expected.at(each.call.place)
        if here is None or each.call.is_block:
            yield []
            continue
        try:
            numbered = _with_numbers(here.expression, each)
        except AttnError as error:  # the sentence that names what to write
            yield [CallMismatch(each.call, Finding("shape", "error", str(error)), None)]
            continue
        try:
            own = _with_padding(numbered, each, calls)
        except AttnError as error:  # pad(left), and the padding is on the right
            yield [
                CallMismatch(each.call, Finding("padding-side", "error", f"{here.text} does not fit: {error}"), None)
            ]
            continue
        if own is not None or each.call.mask is None:
            yield [CallMismatch(each.call, one, own) for one in _findings(each.call, own or numbered)]
            continue
        rest = _unpadded(numbered)  # what padding has no part in
        leaks = [] if rest is None else [one for one in _findings(each.call, rest) if one.code != "missing"]
        found = [*leaks, _unknown_lengths(each, each.call.mask, calls)]
        yield [CallMismatch(each.call, one, rest if one in leaks else None) for one in found]


def _with_numbers(expected: Expression, context: CallContext) -> Expression:
    """Return what is expected of a call, with the numbers that it leaves out: of its documents, or of its model."""
    if context.call.mask is None:
        return expected
    batch, _, _, length = context.call.mask.shape
    return with_numbers(expected, partial(numbers_of, hints=context.hints, batch=batch, length=length))


def _with_padding(expected: Expression, context: CallContext, calls: Sequence[CallContext]) -> Expression | None:
    """Return what is expected of a call, with the padding of its batch; None where that is not known."""
    mask = context.call.mask
    pads = [leaf for leaf in leaves(expected) if isinstance(leaf, Pad)]
    if mask is None or all(leaf.lengths is not None for leaf in pads):
        return expected
    tokens = _tokens(expected, mask, context, calls)
    return None if tokens is None else with_lengths(expected, tokens)


def _unpadded(expected: Expression) -> Expression | None:
    """Return what has to hold however long the sentences are; None where that is nothing."""
    parts = [part for part in conjuncts(expected) if not any(isinstance(leaf, Pad) for leaf in leaves(part))]
    return And(tuple(parts)) if len(parts) > 1 else next(iter(parts), None)


def _tokens(
    expected: Expression, mask: CallMask, context: CallContext, calls: Sequence[CallContext]
) -> Bool[np.ndarray, "B K"] | None:
    """Return which keys of a call are tokens; None where that is not known."""
    batch, _, queries, keys = mask.shape
    padding = padding_of(calls, context)
    unpadded = [one.values.astype(bool) for one in context.hints_of("unpadded")]
    own, is_by_row = mask.rule.tokens, len(mask.allowed) == batch
    if padding:  # several sequences may have as many positions
        candidates = [*(one.tokens for one in padding), *unpadded]
        tokens = next((one for one in candidates if np.array_equal(one, own)), candidates[0])
        if padding[0].is_stated and tokens is candidates[0] and _are_rows_of(own, tokens):
            return None  # the model may have sorted its batch
    elif prompt := context.hints_of("prompt"):
        return prompt[0].values.astype(bool) if prompt[0].is_sure or batch == 1 else None
    else:
        tokens = np.ones((batch, keys), bool)
    if is_by_row and not any(one.place is None for one in padding):
        cells = np.broadcast_to(mask.allowed[:, 0], (batch, queries, keys))
        tokens = infer_padding(expected, cells, mask.past, tokens)
    is_known = padding or unpadded or batch == 1 or not tokens.all()
    return tokens if is_known else None


def _are_rows_of(one: Bool[np.ndarray, "B K"], other: Bool[np.ndarray, "B K"]) -> bool:
    return not np.array_equal(one, other) and sorted(one.tolist()) == sorted(other.tolist())


def _unknown_lengths(context: CallContext, mask: CallMask, calls: Sequence[CallContext]) -> Finding:
    """Return that padding is expected and not known.

    It is an error where no mask of the step can hide that of single rows, unless what is known is another sequence's.
    """
    batch, _, _, keys = mask.shape
    is_by_row = any(one.allowed.shape[::3] == (batch, keys) for each in calls for one in each.call.masks)
    is_other = any(padding_of(calls, each) for each in calls)
    sizes = unmatched_padding(calls, context, mask)
    message, advice = f"cannot check `pad`: {sizes or 'sequence lengths unknown'}", None
    if sizes is not None and mask.allowed.all() and keys > max(one.size for one in context.hints):
        message = f"attends to padding, wherever it is: {sizes}"
    elif sizes is None:
        advice = (
            "set nn.Embedding(padding_idx=…), pass the model an attention_mask, or give `lengths` to check in Python"
        )
    if is_by_row or is_other:
        return Finding(NOT_CHECKED, "note", message, advice=advice)
    return Finding("pad", "error", message, advice=advice)


def _findings(call: RecordedCall, expected: Expression) -> list[Finding]:
    """Return the errors of a call beside what is expected of it."""
    if call.mask is None:
        return [Finding("no-mask", "error", f"cannot check {expected}: the mask cannot be read")]
    try:
        found = audit_allowed(call.mask.allowed, call.mask.shape, expected)
        return [one for one in found if one.severity == "error" and one.code != "dead-row"]  # said of every call
    except AttnError as error:  # it does not fit so many positions
        return [Finding("shape", "error", f"{expected} does not fit: {error}")]
