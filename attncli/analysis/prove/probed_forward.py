"""A forward that is asked what moves its outputs, and what of that its claim does not allow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.prove.claim import Claim, Probe, padding_of, parsed
from attncli.analysis.prove.inputs import (
    CollectedHints,
    InputSequence,
    SeenCalls,
    equal_ids,
    past_of,
    prefix_of,
    sequences_of,
    tokens_of,
)
from attncli.analysis.prove.proof import Cause, Leak, ModelProof
from attncli.attention import HALF, noise_floor
from attncli.errors import InputError, UsageError
from attncli.masks.expressions import Numbers, Pad, is_padding, leaves
from attncli.masks.findings import Finding
from attncli.masks.mask_grid import MaskSize, bind_lengths, materialise
from attncli.masks.parser import parse
from attncli.recording.input_hint import numbers_of
from attncli.text import plural

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from attncli.recording.rerun import Forward, ModuleOutput, OutputChange

_ROUNDING, _ROUNDING_OF_HALF = 16, 2  # steps of a number's type by which sums in another order differ
_FURTHER = 64.0  # standard deviations, where rounding swallows a change
_CAUSES: tuple[tuple[Cause, str], ...] = (
    ("convolution", r"Conv\dd|(?i:convolution| conv)"),
    ("router", r"(?i:router|gat(e|ing)\b|moe|expert|switch|sparsemlp)"),
    ("norm", r"(?i:norm)"),
)


class JudgedChange(NamedTuple):
    """A change of what a module gives, and how far it is one that the claim does not allow.

    Attributes:
        change: it.
        moved: how far outputs moved that must not; empty where nothing is known of them.
        allowed: how far others did.
    """

    change: OutputChange
    moved: np.ndarray[Any, Any]
    allowed: np.ndarray[Any, Any]

    @property
    def most(self) -> float:
        """How far outputs moved at most that must not."""
        return float(self.moved.max()) if self.moved.size else 0.0

    @property
    def is_still(self) -> bool:
        """Whether nothing moved."""
        return _most(self.change) == 0


class ProbedForward:
    """What a forward says when positions of it change.

    Args:
        forward: which has ended, and can run again.
        calls: its attention.
        hints: what its inputs say.
        expression: which key each query may see.
        lengths: how many tokens each row has; None is what its inputs say.
        has_cache: whether keys before its own may be a cache's, and not such as memory slots.

    Raises:
        UsageError: the expression leaves out a number that nothing says, or does not fit.
        InputError: it has no outputs or no inputs that are positions.
    """

    def __init__(
        self, forward: Forward, calls: SeenCalls, hints: CollectedHints, expression: str, lengths: Any, has_cache: bool
    ) -> None:
        self.forward, self.expression, self._has_cache = forward, expression, has_cache
        self.forwards, self._rounded = 0, 0.0
        self.places = [*calls.places]
        sequences = sequences_of(forward, calls.shapes)
        forward.layout, *forward.others = (one.layout for one in sequences)
        layout = forward.layout
        past = past_of(calls.shapes, layout.length)
        self.attended = max(one.calls[1] for one in forward.outputs.values())
        self.output = self._output(sequences)
        self.sequences = self._joined(sequences)
        self.tokens = self._tokens(hints, lengths, past)
        self._order = {name: number for number, name in enumerate(forward.outputs)}
        sources = self.sequences[0].sources
        self._beginning = min((number for name, number in self._order.items() if name in sources), default=0)

        def numbers(row: int, name: str) -> Numbers | None:
            found = numbers_of(name, hints.all, layout.batch, layout.length)
            if name == "prefix":
                found = prefix_of(forward, layout.batch, layout.length)
            return None if found is None else found[row : row + 1]

        shown = calls.shown(layout.batch, layout.length, past)
        self.claim = Claim(parsed(expression), self.tokens[0], past, numbers, shown)
        self._counts_words = numbers_of("first", hints.all, layout.batch, layout.length) is not None
        self.dtype, self._eps = forward.precision

    def _output(self, sequences: Sequence[InputSequence]) -> ModuleOutput:
        """Return the output that the claim is about: the model's, or the last that has a vector for each position."""
        layout, sources = self.forward.layout, [name for one in sequences for name in one.sources]
        found = [
            each
            for each in self.forward.outputs.values()
            if each.calls[1] == self.attended and each.name not in sources and layout.laid_out(each.values) is not None
        ]
        if not found:
            raise InputError(
                f"no output after its attention has {plural(layout.length, 'position')} in "
                f"{plural(layout.batch, 'row')}, as its input has"
            )
        return next((one for one in found if not one.name[0]), found[-1])

    def _joined(self, sequences: Sequence[InputSequence]) -> list[InputSequence]:
        """Return the sequences; several embeddings of the same ids are one, but of an encoder and its decoder.

        These have attention that the other one does not move.
        """
        first, *others = sequences
        separate = []
        for one in others:
            both = [self._attention_moved_by(each) for each in (first, one)] if equal_ids(first.ids, one.ids) else []
            if both and not (both[0] - both[1] and both[1] - both[0]):
                first = first._replace(sources=(*one.sources, *first.sources))
            else:
                separate.append(one)
        self.forward.others = [one.layout for one in separate]
        return [first, *separate]

    def _attention_moved_by(self, sequence: InputSequence) -> set[Any]:
        changes = self._changed(0, (sequence.layout.length - 1,), sequence)
        return {one.name for one in changes if one.calls[1] > one.calls[0] and _most(one) > 0}

    def _tokens(self, hints: CollectedHints, lengths: Any, past: int) -> list[Bool[np.ndarray, "B T"]]:
        """Return which positions of each sequence are no padding."""
        pads: list[Any] = [leaf for leaf in leaves(parsed(self.expression)) if is_padding(leaf)]
        if lengths is not None:
            pads = [*leaves(bind_lengths(parse("pad", allow_rows=True), lengths))]
        known = [tokens_of(self.forward, hints, one, len(self.sequences), past) for one in self.sequences]
        batch, length, _ = self.forward.layout
        if stated := [one for one in pads if not isinstance(one, Pad) or one.lengths is not None]:
            cells = materialise(stated[0], MaskSize(1, past + length, past + length - 1))
            known[0] = np.broadcast_to(cells.reshape(-1, past + length)[:, past:], (batch, length))
        elif pads and batch > 1 and not past and all(one is None for one in known):
            raise UsageError("pad has no lengths, and the program states none; pass an attention mask, or lengths=[…]")
        known[1:] = known[1:] if pads else [None] * len(known[1:])
        sizes = [one.layout[:2] for one in self.sequences]
        return [np.ones(size, bool) if one is None else one for one, size in zip(known, sizes, strict=True)]

    def proof(self) -> ModelProof:
        """Ask all that the claim needs, and return what was proved."""
        tokens, values = self.tokens[0], self.output.values
        proof = ModelProof(
            self.expression, type(self.forward.module).__name__, 0, len(tokens), 0, 0, 0,
            self.dtype, values.device.type,
        )  # fmt: skip
        if (finding := self._differs_by_itself()) is not None:
            return replace(proof, forwards=self.forwards, others=(finding,), is_provable=False)
        moved: list[Leak] = []
        unread: list[Finding] = []
        held, rows_changed, is_alive = np.zeros_like(tokens), set[int](), False
        for probe in [*self.claim.probes(), *self._of_others()]:
            judged = [self._judged(probe, one) for one in self._changes(probe)]
            ends = self._ends(judged)
            leak = self._leak(probe, judged, ends)
            moved += [] if leak is None else [leak]
            if probe.sequence == 0:
                rows_changed.add(probe.row)
                unread += self._unread(probe, ends)
                if any(_position(one, probe) > 0 for one in ends):
                    is_alive = True
                    held[probe.row] |= ~self._may_move(probe, self.attended)
        rows = sorted(rows_changed)
        for row in rows:
            held[row] |= self.claim.sees_all(row)
        others = [*unread[:1], *self._of_numbers(is_alive), *([] if moved else self._without_padding())]
        return replace(
            proof, moved=_distinct(moved), others=(*others,), forwards=self.forwards,
            rows_changed=len(rows), positions=int((held & tokens)[rows].sum()), total=int(tokens[rows].sum()),
        )  # fmt: skip

    def _of_numbers(self, is_alive: bool) -> Iterator[Finding]:
        """Yield that outputs are no numbers, or do not move at all, or move as rounding does: nothing is seen then."""
        values = self.forward.layout.laid_out(self.output.values)
        assert values is not None
        count = int((values.isnan().any(dim=2).cpu().numpy() & self.tokens[0]).sum())
        place = (self.output.place,)
        if count:
            message = f"NaN in {count} of {plural(int(self.tokens[0].sum()), 'output')} hides whether they move"
            yield Finding("nan", "error", message, count, made_at=place)
        elif not is_alive:
            yield Finding("unread", "error", "no output moves when a position changes, not even its own", made_at=place)
        if self._rounded and self.dtype in HALF:
            message = (
                f"outputs move that must not, by {self._rounded:.2g}. Rounding of {self.dtype} or a leak may be why"
            )
            yield Finding("rerun", "error", message, advice="prove the model in float32", made_at=place)

    # --- questions ------------------------------------------------------------------------------------------

    def _of_others(self) -> Iterator[Probe]:
        """Yield what to change of other sequences: a token, which may not move other rows, and padding."""
        for which, tokens in enumerate(self.tokens[1:], 1):
            yield Probe(0, (int(np.flatnonzero(tokens[0])[-1]),), which)
            for row, own in enumerate(tokens):
                if padding := padding_of(own):
                    yield Probe(row, padding, which, True)

    def _changed(
        self, row: int, positions: tuple[int, ...], sequence: InputSequence, size: float = 4.0
    ) -> list[OutputChange]:
        from attncli.recording.rerun import VectorChange

        self.forwards += 1
        return self.forward.again(VectorChange(row, positions, sequence.sources, size))

    def _changes(self, probe: Probe) -> list[OutputChange]:
        """Return what moves; where rounding swallows a change, it is tried once more, further."""
        row, positions, which, _ = probe
        changes = self._changed(row, positions, self.sequences[which])
        if which == 0 and self.tokens[0][row, positions[0]]:
            judged = [self._judged(probe, one) for one in changes]
            if not any(_position(one, probe) > 0 for one in self._ends(judged)):
                return self._changed(row, positions, self.sequences[which], _FURTHER)
        return changes

    def _differs_by_itself(self) -> Finding | None:
        self.forwards += 1
        first = next((one for one in self.forward.again() if _most(one) > self._floor(one)), None)
        if first is None:
            return None
        message = f"two equal runs differ, first in {first.name[0] or 'the model'}, by {_most(first):.2g}"
        advice = "seed all that it draws, or call torch.use_deterministic_algorithms(True)"
        return Finding("rerun", "error", message, advice=advice, made_at=(first.place,))

    # --- probed --------------------------------------------------------------------------------------------

    def _floor(self, change: OutputChange) -> float:
        """Return how far rounding alone may move an output."""
        return (_ROUNDING_OF_HALF if self.dtype in HALF else _ROUNDING) * self._eps * change.size

    def _may_move(self, probe: Probe, calls: int) -> Bool[np.ndarray, " T"]:
        """Return which outputs of its row a probe may move, after so many calls of attention."""
        # 0 where attention is not seen, and how often it attends is not known.
        return self.claim.may_move(probe.row, probe.positions, max(calls, 1) if self.attended else 0)

    def _judged(self, probe: Probe, change: OutputChange) -> JudgedChange:
        """Return a change and how far it is one of outputs that must not move."""
        # Outputs of another sequence come before that of the claim begins.
        is_other = probe.sequence > 0 and self._order[change.name] < self._beginning
        tokens = self.tokens[probe.sequence if is_other else 0]
        if change.by_position is None or change.by_position.shape != tokens.shape:
            if probe.is_padding:
                return JudgedChange(change, np.zeros(0), np.zeros(0))
            is_own = np.arange(len(change.by_row)) == probe.row
            return JudgedChange(change, np.where(is_own, 0, change.by_row), np.where(is_own, change.by_row, 0))
        forbidden = tokens.copy()
        if probe.sequence == 0:
            forbidden[probe.row] &= ~self._may_move(probe, change.calls[1])
        elif not probe.is_padding:
            forbidden[probe.row] = False
        moved = np.where(forbidden, change.by_position, 0)
        return JudgedChange(change, moved, np.where(forbidden, 0, change.by_position))

    def _ends(self, judged: Sequence[JudgedChange]) -> list[JudgedChange]:
        """Return the changes of what the model gives; where it gives no vectors that move, of the last ones inside."""
        ends = [one for one in judged if not one.change.name[0] and not one.is_still]
        if any(one.change.by_position is not None for one in ends):
            return ends
        sources = [name for one in self.sequences for name in one.sources]
        inside = [
            one
            for one in judged
            if one.change.by_position is not None
            and one.change.calls[1] == self.attended
            and one.change.name not in sources
            and not one.is_still
        ]
        return [*ends, *inside[-1:]]

    def _leak(self, probe: Probe, judged: Sequence[JudgedChange], ends: Sequence[JudgedChange]) -> Leak | None:
        """Return the first output that moved and must not, where what the model gives moved too; None is none.

        What moves inside alone leaks nothing, as scores of keys that are hidden afterwards.
        """
        reached = np.zeros_like(self.tokens[0])
        for end in ends:
            own = end.change.by_position
            reached |= (end.change.by_row[:, None] if own is None or own.shape != reached.shape else own) > 0
        most = max((one.most for one in ends), default=0.0)
        calls = 0  # of attention, before the last output that did not move
        for each in judged:
            change, moved = each.change, each.moved
            if moved.shape == reached.shape:
                moved = np.where(reached, moved, 0)
            elif not most:
                continue
            if not moved.size or not moved.max() > self._floor(change):
                calls = change.calls[1]
                continue
            row, *position = (int(one) for one in np.unravel_index(int(moved.argmax()), moved.shape))
            kind, place = _cause(change), change.place
            if change.calls[1] > calls and (kind in ("attention", "other") or change.calls[1] > change.calls[0]):
                kind = "cache" if self.claim.past and self._has_cache else "attention"
                place = self.places[calls] if calls < len(self.places) else place
            changed, name = (probe.row, probe.positions[0]), change.name[0]
            at = position[0] if position else None
            return Leak(row, at, changed, name, place, kind, float(moved.max()), float(each.allowed.max()))
        self._rounded = max(self._rounded, most)
        return None

    def _unread(self, probe: Probe, ends: Sequence[JudgedChange]) -> Iterator[Finding]:
        """Yield that outputs do not move which may read the position."""
        row, (position, *_) = probe.row, probe.positions
        output = next((one.change.by_position for one in ends if one.change.by_position is not None), None)
        if output is None or not self.tokens[0][row, position]:
            return
        still = np.flatnonzero(self.claim.direct[row][:, position] & self.tokens[0][row] & ~(output[row] > 0))
        if len(still):
            listed = ", ".join(map(str, still[:5])) + (" …" if len(still) > 5 else "")
            outputs = (
                f"output {listed} may read position {position} and does"
                if len(still) == 1
                else (f"outputs {listed} may read position {position} and do")
            )
            yield Finding("unread", "note", f"{outputs} not move when it changes", len(still))

    # --- padding and labels -----------------------------------------------------------------------------------

    def _without_padding(self) -> Iterator[Finding]:
        """Yield that a row has other outputs without its padding, as where positions count it."""
        rows = [row for row, own in enumerate(self.tokens[0]) if not own.all()]
        if not rows or not self.claim.is_padded or self.claim.past:
            return
        if self.forward.draws:
            yield Finding(
                "positions", "note", "it draws random numbers, so rows are not compared without their padding"
            )
            return
        floor = max(noise_floor(self.dtype), 1e-4)
        for row in rows:
            words = np.flatnonzero(self.tokens[0][row])
            self.forwards += 1
            try:
                changes = self.forward.alone(row, int(words[0]), int(words[-1]) + 1)
            except Exception as error:  # whatever the program's own code raises
                message = f"row {row} does not run without its padding ({type(error).__name__}), so it is not compared"
                yield Finding("positions", "note", message)
                return
            wrong = next((one for one in changes if _most(one) > floor * max(one.size, 1e-6) * 4), None)
            if wrong is not None:
                message = (
                    f"row {row} has other outputs without its padding: {wrong.name[0] or 'the model'} differs by "
                    f"{_most(wrong):.2g} of {wrong.size:.2g}"
                )
                advice = (
                    None if self._counts_words else "count tokens alone: position_ids = attention_mask.cumsum(1) - 1"
                )
                yield Finding("positions", "error", message, advice=advice, made_at=(wrong.place,))
                return

    @property
    def ids(self) -> list[Int[np.ndarray, "B T"]]:
        """The ids of each sequence, −1 in padding; none where it is not claimed to be causal."""
        if self.forward.layout.is_time_first or not self.claim.is_causal or self.forward.layout.length < 3:
            return []
        both = zip(self.tokens, self.sequences, strict=True)
        return [np.where(own, one.ids.cpu().numpy().reshape(own.shape), -1) for own, one in both if one.ids is not None]

    @property
    def has_heads(self) -> bool:
        """Whether the model gives several outputs for a position."""
        shapes = [one.values.dim() for one in self.forward.outputs.values() if not one.name[0]]
        return sum(dim > 2 for dim in shapes) > 1 or max(shapes, default=0) > 3


def _most(change: OutputChange) -> float:
    return float((change.by_row if change.by_position is None else change.by_position).max())


def _position(judged: JudgedChange, probe: Probe) -> float:
    """Return how far the output of a probe's own position moved."""
    own = judged.change.by_position
    return 0.0 if own is None else float(own[probe.row, probe.positions[0]])


def _cause(change: OutputChange) -> Cause:
    name = f"{change.module.__name__} {change.name[0].rpartition('.')[2]}"
    cause: Cause = "attention" if re.search("(?i:attn|attention)", change.name[0]) else "other"
    return next((one for one, pattern in _CAUSES if re.search(pattern, name)), cause)


def _distinct(leaks: Sequence[Leak]) -> tuple[Leak, ...]:
    """Return the first leak of each module, between positions and between rows."""
    found: dict[tuple[str, str, bool], Leak] = {}
    for one in leaks:
        found.setdefault((one.module, one.kind, one.row == one.changed[0]), one)
    return tuple(found.values())
