"""Expected masks of a program, for every place or those that a pattern names, and the calls that differ from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.calls.findings import padding_of, unmatched_padding
from attncli.analysis.calls.groups import NOT_CHECKED, joined_places
from attncli.analysis.calls.steps import CallContext, RecordedCall
from attncli.errors import AttnError, UsageError
from attncli.masks.audit import audit_allowed, word_queries
from attncli.masks.comparison import Comparison, first_difference
from attncli.masks.expressions import And, Expression, Pad, conjuncts, leaves, with_lengths, with_numbers
from attncli.masks.findings import Finding, error, note
from attncli.masks.mask_grid import MaskGrid, MaskSize, bind_lengths, grid_rows, has_padding_of_rows, materialise
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
_MOST_LINES = 20


def matches(place: CallSite, pattern: str) -> bool:
    """Return whether a pattern, as of file names, is that of a place: of its file and line, function or module."""
    names = str(place), place.file, place.function, place.module or ""
    return any(fnmatchcase(name, pattern) for name in names)


def split_pattern(text: str) -> tuple[str | None, str]:
    """Split `PATTERN=EXPR` at a `=` that is outside of parentheses and quotes, as `pad(left=2)` has one of its own."""
    match = re.match(r"([^('\"=]*)=(.*)", text, re.DOTALL)
    return (match[1].strip(), match[2]) if match else (None, text)


@dataclass(frozen=True, eq=False)
class Expectation:
    """The expected masks of some places."""

    pattern: str  # of the places, as of file names
    text: str  # the expression as it was written
    expression: Expression

    def __str__(self) -> str:
        return self.text if self.pattern == EVERYWHERE else f"{self.pattern}={self.text}"


class Expectations(NamedTuple):
    """The expected masks of a program; of several that match a place, the last one decides."""

    all: tuple[Expectation, ...]

    @classmethod
    def parse(cls, expected: Expected) -> Expectations:
        """Parse expected masks.

        Args:
            expected: an expression, which may have the pattern of its places before it (`decoder.*=causal & pad`),
                several of these, or the expressions by their patterns. `pad`, `docs`, `window` and `chunk` may be
                without numbers.

        Raises:
            UsageError: one is no expression, or has nothing before its `=`.
            InputError: a file that one names cannot be read.
        """
        if isinstance(expected, Mapping):
            pairs: Iterable[tuple[str | None, str]] = expected.items()
        else:
            pairs = map(split_pattern, [expected] if isinstance(expected, str) else expected)
        expectations = []
        for pattern, text in pairs:
            if pattern == "":
                advice = "leave the '=' out to check every place"
                raise UsageError(f"'={visible(text)}' has no pattern before the '='; {advice}")
            expression = parse(text, allow_rows=True, allow_unnumbered=True)
            expectations.append(Expectation(EVERYWHERE if pattern is None else pattern, text.strip(), expression))
        return cls(tuple(expectations))

    def at(self, place: CallSite) -> Expectation | None:
        """Return the expectation at a place; None is nothing."""
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
        padded = [one for one in self.all if has_padding_of_rows(one.expression)] or self.all
        bound = {id(one): replace(one, expression=bind_lengths(one.expression, lengths)) for one in padded}
        return Expectations(tuple(bound.get(id(one), one) for one in self.all))

    def __str__(self) -> str:
        return ", ".join(map(str, self.all))


class CallMismatch(NamedTuple):
    """A call that is not as expected, and how."""

    call: RecordedCall
    finding: Finding
    expected: Expression | None  # with the padding of its batch; None where that is not known

    @property
    def comparison(self) -> Comparison | None:
        """The wrong cells, in the first batch row and head that has some; None where it is no matter of cells."""
        mask, expected = self.call.mask, self.expected
        if mask is None or expected is None or not self.finding.cells:
            return None
        *_, queries, keys = mask.shape
        laid = MaskGrid("", materialise(expected, MaskSize(queries, keys, mask.past)), mask.past)
        counts = word_queries(expected, grid_rows(laid, np.arange(queries)))
        return first_difference(mask.allowed, np.where(counts, laid.batched, mask.allowed), mask.past)


class UnexpectedError(AssertionError):
    """Calls are not as expected.

    Attributes:
        expected: the expectations.
        wrong: the calls that differ, and how; empty where there was no call at all.
    """

    def __init__(self, expected: str, wrong: Sequence[CallMismatch], unchecked: Sequence[str] = ()) -> None:
        self.expected, self.wrong = expected, tuple(wrong)
        places: dict[tuple[object, str], list[CallSite]] = {}
        for one in self.wrong:
            finding = one.call.with_lines(one.finding)
            advice = f". {finding.advice}" if finding.advice else ""
            text = f"{finding.code}: {finding.message}{finding.maker}{advice}"
            places.setdefault((one.call.place[:3], text), []).append(one.call.place)
        lines = [visible(f"{joined_places(alike)}: {text}") for (_, text), alike in places.items()]
        more = [f"and {len(lines) - _MOST_LINES} more"] * (len(lines) > _MOST_LINES)
        super().__init__("\n".join([f"attention is not {visible(expected)}", *lines[:_MOST_LINES], *more, *unchecked]))


def mismatches(calls: Sequence[CallContext], expected: Expectations) -> Iterator[list[CallMismatch]]:
    """Yield the mismatches of each call of a step with the expectation at its place.

    The last query is at the last key. How much `pad` hides is known from the numbers of the words, by the `padding_idx`
    of an embedding, or else from the first mask of the step that hides keys at an end of a batch row, unless the
    expression has it. Numbers that `docs`, `window` and `chunk` leave out are those of the position ids and the
    configuration of the model.
    """
    for each in calls:
        here = None if each.call.is_block else expected.at(each.call.place)
        yield [] if here is None else [CallMismatch(each.call, *one) for one in _of_call(each, calls, here)]


def _of_call(
    context: CallContext, calls: Sequence[CallContext], here: Expectation
) -> Iterator[tuple[Finding, Expression | None]]:
    mask, expected = context.call.mask, here.expression
    if mask is None:
        yield error("no-mask", f"cannot check {expected}: the mask cannot be read"), expected
        return
    batch, _, _, length = mask.shape
    try:
        expected = with_numbers(expected, partial(numbers_of, hints=context.hints, batch=batch, length=length))
    except AttnError as refusal:  # the sentence that names what to write
        yield error("shape", str(refusal)), None
        return
    padded: Expression | None = expected
    try:
        if any(leaf.lengths is None for leaf in leaves(expected) if isinstance(leaf, Pad)):
            tokens = _tokens(expected, mask, context, calls)
            padded = None if tokens is None else with_lengths(expected, tokens)
    except AttnError as refusal:  # pad(left), and the padding is on the right
        yield error("padding-side", f"{here.text} does not fit: {refusal}"), None
        return
    if padded is not None:
        lacks_pad = mask.rule.padded and not has_padding_of_rows(expected)
        advice = f"if these keys are padding, expect '{here.text} & pad'" if lacks_pad else None
        for one in _findings(mask, padded):
            yield (replace(one, advice=advice) if advice and one.code == "missing" else one), padded
        return
    # All that padding has no part in has to hold however long the sentences are.
    parts = [part for part in conjuncts(expected) if not has_padding_of_rows(part)]
    if parts:
        rest = And(tuple(parts)) if len(parts) > 1 else parts[0]
        yield from ((one, rest) for one in _findings(mask, rest) if one.code != "missing")
    yield _unknown_lengths(context, mask, calls), None


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
        is_sorted = not np.array_equal(own, tokens) and sorted(own.tolist()) == sorted(tokens.tolist())
        if padding[0].kind == "mask" and tokens is candidates[0] and is_sorted:
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


def _unknown_lengths(context: CallContext, mask: CallMask, calls: Sequence[CallContext]) -> Finding:
    """Return that padding is expected and not known.

    It is an error where no mask of the step can hide that of single rows, unless what is known is another sequence's.
    """
    batch, _, _, keys = mask.shape
    words, why = sorted(mask.rule.tokens.tolist()), unmatched_padding(calls, context, mask)
    message = f"cannot check `pad`: {why or 'sequence lengths unknown'}"
    advice = "set nn.Embedding(padding_idx=…), pass the model an attention_mask, or give `lengths` to check in Python"
    if any(words == sorted(one.tokens.tolist()) for one in padding_of(calls, context)):
        message = "cannot check `pad`: its batch rows are padded like those of the model's input, in another order"
        return note(NOT_CHECKED, message, advice="correct if the model sorts its batch")
    if why and mask.allowed.all() and keys > max(one.size for one in context.hints):
        message = f"attends to padding, wherever it is: {why}"
    is_by_row = any(one.allowed.shape[::3] == (batch, keys) for each in calls for one in each.call.masks)
    is_note = is_by_row or any(padding_of(calls, each) for each in calls)
    finding, code = (note, NOT_CHECKED) if is_note else (error, "pad")
    return finding(code, message, advice=None if why else advice)


def _findings(mask: CallMask, expected: Expression) -> list[Finding]:
    try:
        findings = [*audit_allowed(mask.allowed, mask.shape, expected)]
    except AttnError as refusal:  # it does not fit so many positions
        return [error("shape", f"{expected} does not fit: {refusal}")]
    return [one for one in findings if one.severity == "error" and one.code != "dead-row"]  # which every call has
