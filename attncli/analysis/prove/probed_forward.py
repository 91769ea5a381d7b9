"""A forward that runs again with other inputs, and what moves that its claim does not allow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import ceil, log2
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.prove.claim import Claim, parsed
from attncli.analysis.prove.heads import mixed_heads
from attncli.analysis.prove.inputs import (
    CollectedHints,
    InputSequence,
    KnownTokens,
    SeenCalls,
    equal_ids,
    other_ids,
    past_of,
    prefix_of,
    sequences_of,
    tokens_of,
)
from attncli.analysis.prove.proof import Cause, Leak, ModelProof
from attncli.attention import HALF, noise_floor
from attncli.errors import AttnError, InputError, UsageError
from attncli.masks.expressions import Numbers, Pad, is_padding, leaves
from attncli.masks.findings import Finding
from attncli.masks.mask_grid import MaskSize, bind_lengths, materialise
from attncli.masks.parser import parse
from attncli.recording.input_hint import numbers_of
from attncli.text import plural

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from attncli.recording.rerun import Forward, ModuleOutput, OutputChange, OutputName

_ROUNDING, _ROUNDING_OF_HALF = 16, 2  # steps of a number's type by which sums in another order differ
_FURTHER = 64.0  # standard deviations, where rounding swallows a change
_MOST_TOKENS = 2048  # of a forward that holds the rows of a batch several times
_MOST_SEEDS = 4  # with which the same inputs change: a router shows for some numbers alone what moves its outputs
_MOST_ALONE = 64  # forwards of a batch that cannot be repeated, one for each position
_CAUSES: tuple[tuple[Cause, str], ...] = (
    ("convolution", r"Conv\dd|(?i:convolution| conv)"),
    ("router", r"(?i:router|gat(e|ing)\b|moe|expert|switch|sparsemlp)"),
    ("norm", r"(?i:norm)"),
)


class Probe(NamedTuple):
    """Inputs to change."""

    positions: Bool[np.ndarray, "B T"]  # of a batch that may hold its rows several times
    sequence: int = 0  # of the model, where there are several: 0 is that of the claim
    is_padding: bool = False  # whether they are padding, which nothing may read
    seeds: tuple[int, ...] = (0,)  # of the ids and directions that take their place, one for each copy of the batch
    size: float = 4.0  # standard deviations by which vectors change


class JudgedChange(NamedTuple):
    """A change of an output, and how far it is one that the claim does not allow."""

    change: OutputChange
    forbidden: Float[np.ndarray, "*any"]  # how far each position or row moved that must not; empty is not known
    allowed: Float[np.ndarray, "*any"]  # how far others did

    @property
    def most(self) -> float:
        """How far outputs moved at most that must not."""
        return float(self.forbidden.max(initial=0))


class ProbedForward:
    """A forward whose inputs are changed, and whose outputs are held against a claim.

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
        self, forward: Forward, calls: SeenCalls, hints: CollectedHints, expression: str, lengths: Any
    ) -> None:
        self.forward, self.expression, self._calls = forward, expression, calls
        self.forwards = 0
        self.sequences = sequences_of(forward, calls.shapes)
        forward.layout, *forward.others = (sequence.layout for sequence in self.sequences)
        layout = forward.layout
        past = past_of(calls.shapes, layout.length)
        self.attended = max(output.calls[1] for output in forward.outputs.values())
        self.output = self._output()
        self._join_sequences()
        self.tokens = self._tokens(hints, lengths, past)
        self._order = {name: number for number, name in enumerate(forward.outputs)}
        sources = self.sequences[0].sources
        self._beginning = min((number for name, number in self._order.items() if name in sources), default=0)

        def numbers(row: int, name: str) -> Numbers | None:
            values = numbers_of(name, hints.all, layout.batch, layout.length)
            if name == "prefix":
                values = prefix_of(forward, layout.batch, layout.length)
            return None if values is None else values[row : row + 1]

        @cache
        def ids(which: int, seed: int) -> Int[np.ndarray, "B T"]:
            claim = self.claim if which == 0 else None
            return other_ids(forward, self.sequences[which], self.padding[which], claim, seed)

        self._other_ids = ids
        shown = calls.shown(layout.batch, layout.length, past)
        self.claim = Claim(parsed(expression), self.tokens[0], past, numbers, shown)
        self._counts_words = numbers_of("first", hints.all, layout.batch, layout.length) is not None
        self.dtype, self._eps = forward.precision
        self._rounded = 0.0  # how far outputs moved that must not, where rounding may be why
        # Inputs that changed, outputs that were held against the claim, and the outputs that an input moved alone.
        self._changed, self._held = np.zeros_like(self.tokens[0]), np.zeros_like(self.tokens[0])
        self._moved_alone: dict[tuple[int, int], Bool[np.ndarray, " T"]] = {}
        self._is_alive, self._is_alone = False, True

    def _output(self) -> ModuleOutput:
        """Return the output that the claim is about: the model's, or the last that has a vector for each position."""
        layout = self.forward.layout
        outputs = [self.forward.outputs[name] for name in self._last_outputs()]
        if not outputs and str(parsed(self.expression)) in ("pad", "full & pad"):  # rows alone are claimed
            outputs = [output for name, output in self.forward.outputs.items() if self._is_by_row(name)]
        if not outputs:
            raise InputError(
                f"no output after its attention has {plural(layout.length, 'position')} in "
                f"{plural(layout.batch, 'row')}, as its input has"
            )
        return next((output for output in outputs if not output.name[0]), outputs[-1])

    def _is_by_row(self, name: OutputName) -> bool:
        """Return whether an output of the model has a vector for each row, and none for each position."""
        values, batch = self.forward.outputs[name].values, self.forward.layout.batch
        is_pooled = 0 < values.dim() <= 2 and len(values) == batch > 1 and self.forward.layout.laid_out(values) is None
        return not name[0] and is_pooled

    def _last_outputs(self) -> list[OutputName]:
        """Return the outputs with a vector for each position after the last attention."""
        sources = [name for sequence in self.sequences for name in sequence.sources]
        return [
            name
            for name, output in self.forward.outputs.items()
            if output.calls[1] == self.attended
            and name not in sources
            and self.forward.layout.laid_out(output.values) is not None
        ]

    def _join_sequences(self) -> None:
        """Join embeddings of the same ids to one sequence, but those of an encoder and its decoder.

        These have attention that the other one does not move.
        """

        def moved_attention(sequence: InputSequence) -> set[OutputName]:
            changes = self._again(_cells(np.zeros(sequence.layout[:2], bool), (0, -1)), sequence.sources)
            outputs = [change.output for change in changes if change.most > 0]
            return {output.name for output in outputs if output.calls[1] > output.calls[0]}

        first, *others = self.sequences
        self.sequences = [first]
        for other in others:
            both = [moved_attention(first), moved_attention(other)] if equal_ids(first.ids, other.ids) else []
            if both and not (both[0] - both[1] and both[1] - both[0]):
                names = tuple(dict.fromkeys((*other.arguments, *first.arguments)))
                first = first._replace(sources=(*other.sources, *first.sources), arguments=names)
            else:
                self.sequences.append(other)
        self.sequences[0] = first
        self.forward.others = [sequence.layout for sequence in self.sequences[1:]]

    def _tokens(self, hints: CollectedHints, lengths: Any, past: int) -> list[Bool[np.ndarray, "B T"]]:
        """Return which positions of each sequence are no padding."""
        pads: list[Any] = [leaf for leaf in leaves(parsed(self.expression)) if is_padding(leaf)]
        if lengths is not None:
            pads = [*leaves(bind_lengths(parse("pad", allow_rows=True), lengths))]
        count = len(self.sequences)
        known = [tokens_of(self.forward, hints, self._calls, sequence, count, past) for sequence in self.sequences]
        batch, length, _ = self.forward.layout
        if stated := [pad for pad in pads if not isinstance(pad, Pad) or pad.lengths is not None]:
            cells = materialise(stated[0], MaskSize(1, past + length, past + length - 1))
            tokens = np.broadcast_to(cells.reshape(-1, past + length)[:, past:], (batch, length))
            known[0] = KnownTokens(tokens, "ids" if known[0] is None else known[0].source)
        elif pads and batch > 1 and not past and not any(known):
            raise UsageError(
                "pad has no lengths, and the program states none; pass an attention mask, or give --lengths 6,10 "
                "(lengths=[6, 10] in Python)"
            )
        known[1:] = known[1:] if pads else [None] * (count - 1)
        self.padding = [
            tokens or KnownTokens(np.ones(sequence.layout[:2], bool), "ids")
            for tokens, sequence in zip(known, self.sequences, strict=True)
        ]
        self._is_on_trial = bool(pads) and not stated and known[0] is not None and known[0].source == "calls"
        return [padding.tokens for padding in self.padding]

    def proof(self) -> ModelProof:
        """Run it with all changes that the claim needs, and return what was proved."""
        tokens, values = self.tokens[0], self.output.values
        proof = ModelProof(
            self.expression, type(self.forward.module).__name__, 0, len(tokens), 0, 0, 0,
            self.dtype, values.device.type,
        )  # fmt: skip
        if (finding := self._differs_by_itself()) is not None:
            return replace(proof, forwards=self.forwards, others=(finding,), is_provable=False)
        leaks = [leak for probe in self._probes() if (leak := self._leak_of(probe)) is not None]
        leaks += self._position_leaks(any(leak.row != leak.changed[0] for leak in leaks))
        unread = [*self._unread()]
        rows = np.flatnonzero(self._changed.any(axis=1)).tolist()
        for row in rows:
            self._held[row] |= self.claim.sees_all(row)
        padding = [] if leaks else [*self._without_padding()]
        heads = mixed_heads(self.forward, self._calls, self._operands, self.sequences[0].sources, self._again)
        findings = [*heads, *unread[:1], *([] if leaks else self._without_order()), *self._of_numbers(), *padding]
        unknown = [self._of_unknown_layers(leak) for leak in leaks]
        findings += filter(None, unknown)
        moved = _distinct([leak for leak, finding in zip(leaks, unknown, strict=True) if finding is None])
        return replace(
            proof, moved=moved, others=(*findings, *self._conditions()), forwards=self.forwards, rows_changed=len(rows),
            positions=int((self._held & tokens)[rows].sum()), total=int(tokens[rows].sum()),
            inputs_changed=int((self._changed & tokens).sum()), inputs=int(tokens.sum()), is_alone=self._is_alone,
        )  # fmt: skip

    def _of_unknown_layers(self, leak: Leak) -> Finding | None:
        """Return the leak as a finding where attn saw no attention, and several layers explain what moved."""
        row, changed = leak.changed
        is_in_row = not self.attended and leak.row == row and leak.position is not None and self.tokens[0][row, changed]
        if not is_in_row or not self.claim.may_move(row, (changed,), 0)[leak.position]:
            return None
        message = f"one layer of {self.expression} hides that. attn saw no attention call, so the layers are not known"
        return Finding("no-mask", "error", f"{leak.finding.message}; {message}", made_at=(self.output.place,))

    def _of_numbers(self) -> Iterator[Finding]:
        """Yield that outputs are no numbers, or do not move at all, or move as rounding does."""
        values = self.forward.layout.laid_out(self.output.values)
        values = self.output.values.reshape(len(self.tokens[0]), 1, -1) if values is None else values
        count = int((values.isnan().any(dim=2).cpu().numpy() & self.tokens[0]).sum())
        if count:
            message = f"NaN in {count} of {plural(int(self.tokens[0].sum()), 'output')} hides whether they move"
            yield Finding("nan", "error", message, count, made_at=(self.output.place,))
        elif not self._is_alive:
            message = "no output moves when a position changes, not even its own"
            yield Finding("unread", "error", message, made_at=(self.output.place,))
        if self._rounded and self.dtype in HALF:
            moved = f"outputs move that must not, by {self._rounded:.2g}"
            message, advice = f"{moved}. Rounding of {self.dtype} or a leak may be why", "prove the model in float32"
            yield Finding("rerun", "error", message, advice=advice, made_at=(self.output.place,))

    def _conditions(self) -> Iterator[Finding]:
        """Yield what the proof rests on: masks that say what padding is, and objects that all forwards share."""
        if self._is_on_trial:
            message = "the lengths of `pad` are those of the masks on trial; no id and no attention mask states them"
            yield Finding("pad", "note", message, advice="give --lengths 6,10 (lengths=[6, 10] in Python)")
        for name in dict.fromkeys(self.forward.copy.shared):
            yield Finding("rerun", "note", f"{name} cannot be copied, so the forwards that attn adds share it")

    # --- what changes -----------------------------------------------------------------------------------------

    def _probes(self) -> Iterator[Probe]:
        """Yield changes of rows, for each two of a sequence of one without the other, and of padding."""
        for which, tokens in enumerate(self.tokens):
            for group in _bit_groups(len(tokens)):
                yield Probe(tokens & np.isin(np.arange(len(tokens)), group)[:, None], which)
        for which, tokens in enumerate(self.tokens):
            if (which or self.claim.is_padded) and not tokens.all():
                yield Probe(~tokens, which, True)

    def _position_leaks(self, is_between_rows: bool) -> Iterator[Leak]:
        """Yield the leak of positions that change next, in few forwards: each alone, where there is room for it.

        A position changes in all rows at once, where rows do not move each other.
        """
        tokens = self.tokens[0]
        rows, length = tokens.shape
        chosen = [0] if is_between_rows else [*range(rows)]
        layers = self.attended or 1
        words = ((row, (at,)) for row in chosen for at in np.flatnonzero(tokens[row]).tolist())
        hides = any((tokens[row] & ~self.claim.may_move(row, at, layers)).any() for row, at in words)
        copies = 1 if is_between_rows else self._copies(length if hides else rows * length)
        forwards = 2 * ceil(log2(max(length, 2)))
        room = forwards * copies if copies > 1 else max(forwards, _MOST_ALONE)
        if hides:
            tries: list[tuple[Sequence[int], Sequence[int]]] = [(chosen, part) for part in _blocks(length, room)[::-1]]
        elif copies > 1 and rows * length <= room:
            tries = [([row], [at]) for row in chosen for at in range(length)]
        else:  # nothing is hidden within a row, and rows must not move each other
            groups, parts = _bit_groups(rows) or [[0]], _bit_groups(length) or [[0]]
            tries = [(groups[number % len(groups)], part) for number, part in enumerate(parts)]
        self._is_alone = all(len(part) == 1 for _, part in tries)
        wrongly = self.claim.shown_wrongly
        if wrongly.any() and not self._is_alone:
            tries.insert(0, (chosen, [int(wrongly.sum(axis=0).argmax())]))
        changed = [_cells(tokens, np.ix_(*part)) & (tokens | self.claim.is_padded) for part in tries]
        changed += [~tokens] if self.claim.is_padded and not tokens.all() else []
        times = min(max(copies // len(changed), 2), room // len(changed), _MOST_SEEDS) if copies > 1 else 1
        probes = [(cells, 1 + more) for more in range(max(times, 1)) for cells in changed]
        for start in range(0, len(probes), copies):
            group = probes[start : start + copies]
            group += [(np.zeros_like(tokens), 0)] * (copies - len(group))
            probe = Probe(np.concatenate([cells for cells, _ in group]), seeds=tuple(seed for _, seed in group))
            if (leak := self._leak_of(probe)) is not None:
                yield leak
                return

    def _copies(self, tries: int) -> int:
        """Return how often one forward holds the rows of the batch: once if outputs differ then."""
        rows, length = self.tokens[0].shape
        most = max(min(_MOST_TOKENS // (rows * length), tries * _MOST_SEEDS), 1)
        if most == 1 or rows == length or self.forward.draws:
            return 1
        self.forwards += 1
        return most if self.forward.repeats(most, self._last_outputs(), min(2**10 * self._eps, 0.05)) else 1

    # --- what moves -------------------------------------------------------------------------------------------

    def _again(self, *change: Any) -> list[OutputChange]:
        self.forwards += 1
        try:
            return self.forward.again(*change)
        except AttnError:
            raise
        except Exception as error:  # whatever the program's own code raises
            inputs = " with other inputs" if change else ""
            message = f"its forward does not run again{inputs} ({type(error).__name__}: {error})"
            raise InputError(" ".join(message.split())[:300]) from error

    def _changes(self, probe: Probe) -> list[OutputChange]:
        sequence = self.sequences[probe.sequence]
        ids = {}
        if sequence.arguments:
            other = np.concatenate([self._other_ids(probe.sequence, seed) for seed in probe.seeds])
            ids = dict.fromkeys(sequence.arguments, other)
        return self._again(probe.positions, sequence.sources, ids, probe.size, probe.seeds)

    def _differs_by_itself(self) -> Finding | None:
        changes: list[OutputChange] = []
        self._operands = self._calls.operands(lambda: changes.extend(self._again()))
        first = next((change for change in changes if change.most > self._floor(change)), None)
        if first is None:
            return None
        message = f"two equal runs differ, first in {first.output.name[0] or 'the model'}, by {first.most:.2g}"
        advice = "seed all that it draws, or call torch.use_deterministic_algorithms(True)"
        return Finding("rerun", "error", message, advice=advice, made_at=(first.output.place,))

    def _judged_changes(self, probe: Probe) -> list[JudgedChange]:
        """Return what moves when a probe changes inputs; where rounding swallows a change, it is tried once more."""
        judged = [self._judged(probe, change) for change in self._changes(probe)]
        if probe.sequence or probe.is_padding:
            return judged
        batch, moved = len(self.tokens[0]), np.zeros(probe.positions.shape, bool)
        for change, *_ in self._ends(judged):
            if change.moved.shape == moved.shape or change.output.name == self.output.name:
                moved |= change.moved > 0
        is_alive: Bool[np.ndarray, " B"] = np.asarray((probe.positions & moved).any(axis=1))
        words = probe.positions & np.tile(self.tokens[0], (len(moved) // batch, 1))
        if not is_alive[words.any(axis=1)].all() and probe.size < _FURTHER:
            further = self._judged_changes(probe._replace(size=_FURTHER))
            return further if self._wrong(self._ends(further)).any() else judged
        self._changed |= probe.positions.reshape(-1, *self.tokens[0].shape).any(axis=0)
        self._is_alive |= bool(is_alive.any())
        may_move = self._may_move(probe, self.attended)
        for row in np.flatnonzero(is_alive):
            self._held[row % batch] |= ~may_move[row]
        for row in np.flatnonzero(probe.positions.sum(axis=1) == 1):
            self._moved_alone[int(row % batch), int(probe.positions[row].argmax())] = moved[row]
        return judged

    def _floor(self, change: OutputChange) -> float:
        """Return how far rounding alone may move an output."""
        return (_ROUNDING_OF_HALF if self.dtype in HALF else _ROUNDING) * self._eps * change.size

    def _may_move(self, probe: Probe, calls: int) -> Bool[np.ndarray, "B T"]:
        """Return which outputs a probe may move, after a number of calls of attention."""
        batch = len(self.tokens[0])
        return np.stack([
            self.claim.may_move(row % batch, (*np.flatnonzero(changed).tolist(),), max(calls, 1))
            for row, changed in enumerate(probe.positions)
        ])  # fmt: skip

    def _judged(self, probe: Probe, change: OutputChange) -> JudgedChange:
        """Return a change and how far it is one of outputs that must not move."""
        # Outputs of another sequence come before that of the claim begins.
        is_other = probe.sequence > 0 and self._order[change.output.name] < self._beginning
        tokens = self.tokens[probe.sequence if is_other else 0]
        tokens = np.tile(tokens, (len(probe.positions) // len(tokens), 1))
        is_own, by_row = probe.positions.any(axis=1), change.moved.max(axis=1)
        if change.moved.shape != tokens.shape:
            if probe.is_padding:
                forbidden = by_row if self._is_by_row(change.output.name) else np.zeros(0)
                return JudgedChange(change, forbidden, np.zeros_like(forbidden))
            return JudgedChange(change, np.where(is_own, 0, by_row), np.where(is_own, by_row, 0))
        is_forbidden = tokens.copy()
        if probe.sequence == 0:
            is_forbidden &= ~self._may_move(probe, change.output.calls[1])
        elif not probe.is_padding:
            is_forbidden[is_own] = False
        return JudgedChange(change, np.where(is_forbidden, change.moved, 0), np.where(is_forbidden, 0, change.moved))

    def _ends(self, judged: Sequence[JudgedChange]) -> list[JudgedChange]:
        """Return the changes of the model's own outputs; where it gives no vectors that move, of the last inside."""

        def has_positions(item: JudgedChange) -> bool:
            return item.change.moved.shape[1] > 1 or self.forward.layout.length == 1

        moved = [item for item in judged if item.change.most > 0]
        ends = [item for item in moved if not item.change.output.name[0]]
        if any(map(has_positions, ends)):
            return ends
        last = self._last_outputs()
        inside = [item for item in moved if has_positions(item) and item.change.output.name in last]
        return [*ends, *inside[-1:]]

    def _leak_of(self, probe: Probe) -> Leak | None:
        """Return the leak of a probe, of as few inputs as show it, or None."""
        judged = self._judged_changes(probe)
        ends = self._ends(judged)
        batch = self.sequences[probe.sequence].layout.batch
        if len(probe.positions) > batch:
            return self._leak_of_copies(probe, ends, batch)
        leak = self._leak(probe, judged, ends)
        if leak is None:
            return None
        cells = np.argwhere(probe.positions)
        half = len(cells) // 2
        for part in (cells[cells[:, 0] == leak.row], cells[half:], cells[:half]):
            if 0 < len(part) < len(cells):
                fewer = self._leak_of(probe._replace(positions=_cells(probe.positions, (*part.T,))))
                if fewer is not None:
                    return fewer
        return leak

    def _leak_of_copies(self, probe: Probe, ends: Sequence[JudgedChange], batch: int) -> Leak | None:
        """Return the leak of a batch that holds its rows several times, found in the batch itself with all modules."""
        wrong = self._wrong(ends)
        # Of what moved most outputs, the last of the first row.
        order = sorted(np.flatnonzero(wrong).tolist(), key=lambda at: (-wrong[at], at % batch, at))
        for at in order[:2]:
            copy, row = divmod(at, batch)
            positions = probe.positions[copy * batch : (copy + 1) * batch]
            for cells in (positions & (np.arange(batch) == row)[:, None], positions):
                single = probe._replace(positions=cells, seeds=probe.seeds[copy : copy + 1])
                if cells.any() and (leak := self._leak_of(single)) is not None:
                    return leak
        return None

    def _wrong(self, ends: Sequence[JudgedChange]) -> Int[np.ndarray, " B"]:
        """Return how many outputs of each row moved that must not, of those that the model gives."""
        sized = [end for end in ends if end.forbidden.size]
        counts = [
            (end.forbidden > self._floor(end.change)).reshape(len(end.forbidden), -1).sum(axis=1) for end in sized
        ]
        if not any(count.any() for count in counts):
            self._rounded = max(self._rounded, *(end.most for end in ends), 0.0)
        return np.sum(counts or [[0]], axis=0)

    def _leak(self, probe: Probe, judged: Sequence[JudgedChange], ends: Sequence[JudgedChange]) -> Leak | None:
        """Return the first output that moved and must not, if outputs of the model moved too.

        Outputs inside that move alone leak nothing, as scores of keys that are hidden afterwards.
        """
        reached = np.zeros_like(self.tokens[0])
        for end in ends:
            moved = end.change.moved
            reached |= (moved if moved.shape == reached.shape else moved.max(axis=1, keepdims=True)) > 0
        most = max((end.most for end in ends), default=0.0)
        calls = 0  # of attention, before the last output that did not move
        for change, forbidden, allowed in judged:
            output = change.output
            if forbidden.shape == reached.shape:
                forbidden = np.where(reached, forbidden, 0)
            elif not most:
                continue
            if forbidden.max(initial=0) <= self._floor(change):
                calls = output.calls[1]
                continue
            row, *position = (int(index) for index in np.unravel_index(int(forbidden.argmax()), forbidden.shape))
            kind, line = _cause(output), output.place
            if output.calls[1] > calls and (kind in ("attention", "other") or output.calls[1] > output.calls[0]):
                kind = "cache" if self.claim.past else "attention"
                line = self._calls.places[calls] if calls < len(self._calls.places) else line
            in_row, first = np.flatnonzero(probe.positions[row]).tolist(), np.argwhere(probe.positions)[0].tolist()
            changed = (row, in_row[-1]) if in_row else (first[0], first[1])
            at = position[0] if position else None
            return Leak(row, at, changed, output.name[0], line, kind, float(forbidden.max()), float(allowed.max()))
        self._rounded = max(self._rounded, most)
        return None

    # --- what is not read, and padding -------------------------------------------------------------------------

    def _unread(self) -> Iterator[Finding]:
        """Yield that outputs do not move which may read the last token of a row, or one in the middle of another."""
        tokens = self.tokens[0]
        for row in dict.fromkeys((0, min(1, len(tokens) - 1))):
            words = np.flatnonzero(tokens[row])
            position = int(words[len(words) // 2 if row else -1])
            if (row, position) not in self._moved_alone:
                self._judged_changes(Probe(_cells(tokens, (row, position))))
            moved = self._moved_alone[row, position]
            still = np.flatnonzero(self.claim.direct[row][:, position] & tokens[row] & ~moved)
            if len(still):
                listed = ", ".join(map(str, still[:5])) + (" …" if len(still) > 5 else "")
                outputs, do = ("output", "does") if len(still) == 1 else ("outputs", "do")
                message = f"{outputs} {listed} may read position {position} and {do} not move when it changes"
                yield Finding("unread", "note", message, len(still))

    def _without_order(self) -> Iterator[Finding]:
        """Yield that words in another order give the same outputs in that order, where the claim shows all of them."""
        tokens, first = self.tokens[0], self.sequences[0]
        shows_all = all(self.claim.direct[row][np.ix_(words, words)].all() for row, words in enumerate(tokens))
        if not shows_all or not first.arguments or first.layout.is_time_first or self.forward.draws:
            return
        order = np.tile(np.arange(tokens.shape[1]), (len(tokens), 1))
        for row, words in enumerate(tokens):
            order[row, words] = np.roll(np.flatnonzero(words), 1)
        before = first.layout.rows_of(first.ids)
        ids = np.take_along_axis(before, order, axis=1)
        if (ids == before).all() or tokens.sum(axis=1).max() < 3:
            return
        self.forwards += 1
        try:
            changes = self.forward.permuted(order, dict.fromkeys(first.arguments, ids))
        except Exception:  # whatever the program's own code raises
            return
        change = next((change for change in changes if change.output.name == self.output.name), None)
        if change is None or change.moved.shape != tokens.shape:
            return
        floor = max(noise_floor(self.dtype), 1e-5) * max(change.size, 1e-6) * 4
        if float(np.where(tokens, change.moved, 0).max()) <= floor:
            message = "no position reaches the outputs: words in another order give the same outputs, in that order"
            yield Finding("positions", "note", message, advice="add position embeddings, unless order must not matter")

    def _without_padding(self) -> Iterator[Finding]:
        """Yield that a row has other outputs without its padding, as where positions count it."""
        rows = [row for row, words in enumerate(self.tokens[0]) if not words.all()]
        if not rows or not self.claim.is_padded or self.claim.past:
            return
        if self.forward.draws:
            message = "it draws random numbers, so rows are not compared without their padding"
            yield Finding("positions", "note", message)
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
            wrong = next((change for change in changes if change.most > floor * max(change.size, 1e-6) * 4), None)
            if wrong is not None:
                name = wrong.output.name[0] or "the model"
                message = f"row {row} has other outputs without its padding: {name} differs by {wrong.most:.2g}"
                advice = "count tokens alone: position_ids = attention_mask.cumsum(1) - 1"
                yield Finding(
                    "positions", "error", f"{message} of {wrong.size:.2g}",
                    advice=None if self._counts_words else advice, made_at=(wrong.output.place,),
                )  # fmt: skip
                return

    @property
    def ids(self) -> list[Int[np.ndarray, "B T"]]:
        """The ids of each sequence, −1 in padding; none where it is not claimed to be causal."""
        if self.forward.layout.is_time_first or not self.claim.is_causal or self.forward.layout.length < 3:
            return []
        ids = [None if sequence.ids is None else sequence.ids.cpu().numpy() for sequence in self.sequences]
        both = zip(self.tokens, ids, strict=True)
        return [np.where(tokens, ids.reshape(tokens.shape), -1) for tokens, ids in both if ids is not None]

    @property
    def has_heads(self) -> bool:
        """Whether the model gives several outputs for a position."""
        shapes = [output.values.dim() for output in self.forward.outputs.values() if not output.name[0]]
        return sum(dim > 2 for dim in shapes) > 1 or max(shapes, default=0) > 3


def _bit_groups(count: int) -> list[list[int]]:
    """Return groups of numbers below a count: for each two numbers, one group holds the first without the second."""
    bits = range((count - 1).bit_length())
    return [[number for number in range(count) if (number >> bit & 1) == value] for bit in bits for value in (1, 0)]


def _blocks(length: int, room: int) -> list[range]:
    """Return at most `room` blocks of positions that change together: each position alone where there is room for it.

    Otherwise they cover the row twice, the second time half a block further on.
    """
    if length <= room:
        return [range(at, at + 1) for at in range(length)]
    size = ceil(2 * length / max(room - 1, 1))
    starts = [*range(0, length, size), *range(size // 2, length, size)]
    return [range(start, min(start + size, length)) for start in starts]


def _cells(like: Bool[np.ndarray, "B T"], where: Any) -> Bool[np.ndarray, "B T"]:
    cells = np.zeros_like(like)
    cells[where] = True
    return cells


def _cause(output: ModuleOutput) -> Cause:
    name = f"{type(output.module).__name__} {output.name[0].rpartition('.')[2]}"
    cause: Cause = "attention" if re.search("(?i:attn|attention)", output.name[0]) else "other"
    return next((kind for kind, pattern in _CAUSES if re.search(pattern, name)), cause)


def _distinct(leaks: Sequence[Leak]) -> tuple[Leak, ...]:
    """Return the first leak of each module, between positions and between rows."""
    distinct: dict[tuple[str, str, bool], Leak] = {}
    for leak in leaks:
        distinct.setdefault((leak.module, leak.kind, leak.row == leak.changed[0]), leak)
    return tuple(distinct.values())
