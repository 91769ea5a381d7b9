"""A forward that is asked what moves its outputs, and what of that its claim does not allow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.analysis.prove.claim import Claim, Probe, padding_of, parsed
from attncli.analysis.prove.inputs import CollectedHints, past_of, sequences_of, tokens_of
from attncli.analysis.prove.proof import Cause, Leak, ModelProof
from attncli.attention import noise_floor
from attncli.errors import InputError
from attncli.masks.expressions import Numbers, Pad, leaves
from attncli.masks.findings import Finding
from attncli.masks.mask_grid import bind_lengths
from attncli.masks.parser import parse
from attncli.recording.input_hint import numbers_of
from attncli.text import plural

if TYPE_CHECKING:
    from jaxtyping import Int

    from attncli.recording.call import AttentionCall
    from attncli.recording.rerun import Forward, OutputChange

_ROUNDING = 16  # steps of a number's type by which sums in another order differ
_FURTHER = 64.0  # standard deviations, where rounding swallows a change
_CAUSES: tuple[tuple[Cause, str], ...] = (
    ("convolution", r"Conv\dd|(?i:convolution| conv)"),
    ("router", r"(?i:router|gat(e|ing)\b|moe|expert|switch|sparsemlp)"),
    ("norm", r"(?i:norm)"),
)


class ProbedForward:
    """What a forward says when positions of it change.

    Args:
        forward: which has ended, and can run again.
        calls: its attention.
        hints: what its inputs say.
        expression: which key each query may see.
        lengths: how many tokens each row has; None is what its inputs say.

    Raises:
        UsageError: the expression leaves out a number that nothing says, or does not fit.
        InputError: it has no outputs or no inputs that are positions.
    """

    def __init__(
        self, forward: Forward, calls: Sequence[AttentionCall], hints: CollectedHints, expression: str, lengths: Any
    ) -> None:
        self.forward, self.calls, self.expression = forward, [*calls], expression
        self.forwards = 0
        sequences = sequences_of(forward, calls)
        forward.layout, *forward.others = sequences.layouts
        forward.changed = sequences.names[0]
        self.names = sequences.names
        self.is_padded = any(isinstance(atom, Pad) for atom in leaves(parsed(expression)))
        self.tokens = [tokens_of(forward, hints, sequences, which) for which in range(len(sequences.names))]
        if not self.is_padded:
            self.tokens[1:] = [np.ones_like(one) for one in self.tokens[1:]]
        layout = forward.layout
        if lengths is not None:
            (pad,) = leaves(bind_lengths(parse("pad", allow_rows=True), lengths))
            assert isinstance(pad, Pad)
            self.tokens[0] = np.broadcast_to(pad.tokens(layout.length), self.tokens[0].shape)
        past = past_of(calls, layout.length)

        def numbers(row: int, name: str) -> Numbers | None:
            found = numbers_of(name, hints.all, layout.batch, layout.length)
            return None if found is None else found[row : row + 1]

        self.claim = Claim(parsed(expression), self.tokens[0], past, numbers)
        self.attends = any(one.calls[1] for one in forward.outputs)
        self.output = self._output()

    def _output(self) -> Any:
        """Return the output that the claim is about: the last one that has a vector for each position, or each row."""
        layout = self.forward.layout
        for each in reversed(self.forward.outputs):
            if layout.laid_out(each.values) is not None:
                return each
        last = self.forward.outputs[-1]
        if layout.batch > 1 and len(last.values) == layout.batch:
            return last
        raise InputError(f"none of its outputs has {layout.length} positions in {plural(layout.batch, 'row')}")

    def proof(self) -> ModelProof:
        """Ask all that the claim needs, and return what was proved."""
        tokens, values = self.tokens[0], self.output.values
        proof = ModelProof(
            self.expression, type(self.forward.module).__name__, 0, len(tokens), 0, 0, 0,
            str(values.dtype).removeprefix("torch."), values.device.type,
        )  # fmt: skip
        if (finding := self._differs_by_itself()) is not None:
            return replace(proof, forwards=self.forwards, others=(finding,), is_provable=False)
        moved: list[Leak] = []
        unread: list[Finding] = []
        held, rows_changed = np.zeros_like(tokens), set[int]()
        for probe in [*self.claim.probes(), *self._of_others()]:
            changes = self._changes(probe)
            leak = self._leak(probe, changes)
            moved += [] if leak is None else [leak]
            if probe.sequence == 0:
                rows_changed.add(probe.row)
                reach = self.claim.reach(probe.row, self._layers(max(one.calls[1] for one in changes)))
                held[probe.row] |= ~reach[:, probe.positions].any(axis=1) | reach.all(axis=1)
                unread += self._unread(probe, changes)
        rows = sorted(rows_changed)
        return replace(
            proof, moved=_distinct(moved), others=(*unread[:1], *self._without_padding()), forwards=self.forwards,
            rows_changed=len(rows), positions=int((held & tokens)[rows].sum()), total=int(tokens[rows].sum()),
        )  # fmt: skip

    # --- questions ------------------------------------------------------------------------------------------

    def _of_others(self) -> Iterator[Probe]:
        """Yield what to change of other sequences: a token, which may not move other rows, and padding."""
        for which, tokens in enumerate(self.tokens[1:], 1):
            yield Probe(0, (int(np.flatnonzero(tokens[0])[-1]),), which)
            for row, own in enumerate(tokens):
                if padding := padding_of(own):
                    yield Probe(row, padding, which, True)

    def _changes(self, probe: Probe | None, size: float | None = None) -> list[OutputChange]:
        """Return what moves; where rounding swallows a change, it is tried once more, further."""
        from attncli.recording.rerun import VectorChange

        self.forwards += 1
        if probe is None:
            return self.forward.again()
        row, positions, which, _ = probe
        change = VectorChange(row, positions, source=self.names[which])
        changes = self.forward.again(change if size is None else change._replace(size=size))
        own = [one.by_position for one in changes if one.by_position is not None]
        is_word = which == 0 and self.tokens[0][row, positions[0]]
        if size is None and is_word and not any(one[row, positions[0]] > 0 for one in own[1:]):
            return self._changes(probe, _FURTHER)
        return changes

    def _differs_by_itself(self) -> Finding | None:
        first = next((one for one in self._changes(None) if _most(one) > _floor(one)), None)
        if first is None:
            return None
        message = f"two equal runs differ, first in {first.name[0] or 'the model'}, by {_most(first):.2g}"
        advice = "seed all that it draws, or call torch.use_deterministic_algorithms(True)"
        return Finding("rerun", "error", message, advice=advice, made_at=(first.place,))

    # --- probed --------------------------------------------------------------------------------------------

    def _layers(self, calls: int) -> int:
        """Return how many layers of attention lie before an output; 0 where that is not known."""
        return max(calls, 1) if self.attends else 0

    def _leak(self, probe: Probe, changes: Sequence[OutputChange]) -> Leak | None:
        """Return the first output that moved and must not; None where there is none."""
        is_other = probe.sequence > 0  # until the sequence of the claim begins
        calls = 0  # of attention, before the last output that did not move
        for each in changes:
            is_other &= each.name != self.names[0]
            moved, allowed = self._moved(probe, each, is_other)
            # Flat rows may be in another order, as experts are given them.
            is_doubtful = each.is_flat and not self._moves_the_output(probe, changes)
            if not moved.size or not moved.max() > _floor(each) or is_doubtful:
                calls = each.calls[1]
                continue
            row, *position = (int(one) for one in np.unravel_index(int(moved.argmax()), moved.shape))
            kind, place = _cause(each), each.place
            if each.calls[1] > calls and (kind in ("attention", "other") or each.calls[1] > each.calls[0]):
                kind = "cache" if self.claim.past else "attention"
                place = str(self.calls[calls].place) if calls < len(self.calls) else place
            changed, name = (probe.row, probe.positions[0]), each.name[0]
            at = position[0] if position else None
            return Leak(row, at, changed, name, place, kind, float(moved.max()), float(allowed.max()))
        return None

    def _moved(
        self, probe: Probe, change: OutputChange, is_other: bool
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return how far outputs moved that must not, and how far others did; empty where nothing is known of them."""
        tokens = self.tokens[probe.sequence if is_other else 0]
        if change.by_position is None or change.by_position.shape != tokens.shape:
            if probe.is_padding:
                return np.zeros(0), np.zeros(0)
            is_own = np.arange(len(change.by_row)) == probe.row
            return np.where(is_own, 0, change.by_row), np.where(is_own, change.by_row, 0)
        forbidden = tokens.copy()
        if probe.sequence == 0:
            reach = self.claim.reach(probe.row, self._layers(change.calls[1]))
            forbidden[probe.row] &= ~reach[:, probe.positions].any(axis=1)
        elif not probe.is_padding:
            forbidden[probe.row] = False
        return np.where(forbidden, change.by_position, 0), np.where(forbidden, 0, change.by_position)

    def _moves_the_output(self, probe: Probe, changes: Sequence[OutputChange]) -> bool:
        output = next((one for one in changes if one.name == self.output.name), None)
        return output is not None and bool(self._moved(probe, output, False)[0].max() > _floor(output))

    def _unread(self, probe: Probe, changes: Sequence[OutputChange]) -> Iterator[Finding]:
        """Yield that outputs do not move which may read the position."""
        row, (position, *_) = probe.row, probe.positions
        output = next((one for one in changes if one.name == self.output.name), None)
        if output is None or output.by_position is None or not self.tokens[0][row, position]:
            return
        still = np.flatnonzero(
            self.claim.direct[row][:, position] & self.tokens[0][row] & ~(output.by_position[row] > 0)
        )
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
        if not rows or not self.is_padded or self.claim.past:
            return
        if self.forward.draws:
            yield Finding(
                "positions", "note", "it draws random numbers, so rows are not compared without their padding"
            )
            return
        floor = max(noise_floor(str(self.output.values.dtype).removeprefix("torch.")), 1e-4)
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
                advice = "count tokens alone: position_ids = attention_mask.cumsum(1) - 1"
                yield Finding("positions", "error", message, advice=advice, made_at=(wrong.place,))
                return

    def label_finding(self, labels: Int[np.ndarray, " N"], place: str) -> Finding | None:
        """Return that a loss asks each output for the token that it reads, or for the one after the next."""
        ids = next((one.ids for one in self.forward.outputs if one.name == self.names[0]), None)
        batch, length, is_time_first = self.forward.layout
        if ids is None or is_time_first or not self.claim.is_causal or length < 3:
            return None
        tokens = ids.cpu().numpy().reshape(batch, length)
        rows = labels.reshape(batch, -1) if labels.size % batch == 0 else labels[None]
        for shift, what in ((0, "the token that it reads"), (2, "the token after the next one")):
            read = tokens[:, shift:][:, : rows.shape[1]]
            wanted = rows[:, : read.shape[1]]
            counts = (wanted >= 0) & self.tokens[0][:, shift:][:, : wanted.shape[1]]
            if wanted.shape != read.shape or wanted.shape[1] < length - 2 or (wanted != read)[counts].any():
                continue
            if len(set(wanted[counts].tolist())) > 2:
                message = f"the loss asks the output at each position for {what}"
                advice = "shift once: logits[:, :-1] against labels[:, 1:]"
                return Finding("label", "error", message, advice=advice, made_at=(place,))
        return None


def _most(change: OutputChange) -> float:
    return float((change.by_row if change.by_position is None else change.by_position).max())


def _floor(change: OutputChange) -> float:
    """Return how far rounding alone may move an output."""
    return _ROUNDING * change.eps * change.size


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
