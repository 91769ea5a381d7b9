"""A forward that runs again with other inputs, and what moves that its claim does not allow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import ceil, log2
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.prove.claim import Claim, parsed
from attncli.analysis.prove.heads import mixed_heads
from attncli.analysis.prove.inputs import CollectedHints, SeenCalls, other_ids, padding_of, prefix_of, sequences_of
from attncli.analysis.prove.proof import Cause, Leak, ModelProof
from attncli.attention import HALF, noise_floor
from attncli.errors import AttnError, InputError
from attncli.masks.expressions import Numbers
from attncli.masks.findings import Finding
from attncli.recording.input_hint import numbers_of
from attncli.text import plural

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from attncli.recording.rerun import Forward, ModuleOutput, OutputChange

_ROUNDING, _ROUNDING_OF_HALF = 16, 2  # steps of a number's type by which sums in another order differ
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


class JudgedChange(NamedTuple):
    """A change of an output, and how far it is one that the claim does not allow."""

    change: OutputChange
    forbidden: Float[np.ndarray, "B _"]  # how far each position or row moved that must not
    allowed: Float[np.ndarray, "B _"]  # how far others did


class ProbedForward:
    """A forward whose inputs are changed, and whose outputs are held against a claim.

    The forward has ended, and can run again; `calls` are its attention, and `hints` say what its inputs are. None as
    `lengths` is what these say.

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
        batch, length, _ = forward.layout
        past = calls.past(length)
        self.attended = max(output.calls[1] for output in forward.outputs.values())
        sources = {name for sequence in self.sequences for name in sequence.sources}
        after = [one for one in forward.outputs.values() if one.calls[1] == self.attended and one.name not in sources]
        # Those with a vector for each position, after the last attention.
        self._last = [one.name for one in after if forward.layout.laid_out(one.values) is not None]
        self.output = self._output()
        self.padding = padding_of(forward, (hints, calls, self.sequences), expression, lengths)
        self.tokens = [padding.tokens for padding in self.padding]
        names = [*forward.outputs]
        beginning = min((names.index(one) for one in self.sequences[0].sources if one in names), default=0)
        self._before = set(names[:beginning])  # outputs of other sequences

        def numbers(row: int, name: str) -> Numbers | None:
            is_prefix = name == "prefix"
            values = prefix_of(forward, batch, length) if is_prefix else numbers_of(name, hints.all, batch, length)
            return None if values is None else values[row : row + 1]

        self.claim = Claim(parsed(expression), self.tokens[0], past, numbers)
        self.dtype, eps = forward.precision
        self._floor = (_ROUNDING_OF_HALF if self.dtype in HALF else _ROUNDING) * eps  # of changes by rounding alone
        self._rounded = 0.0  # how far outputs moved that must not, where rounding may be why
        # Inputs that changed, and outputs that were held against the claim.
        self._changed, self._held = np.zeros_like(self.tokens[0]), np.zeros_like(self.tokens[0])
        self._is_alive, self._is_alone = False, False

    def _output(self) -> ModuleOutput:
        """Return the output that the claim is about: the model's, or the last that has a vector for each position."""
        outputs = [self.forward.outputs[name] for name in self._last]
        if not outputs and str(parsed(self.expression)) in ("pad", "full & pad"):  # rows alone are claimed
            outputs = [output for output in self.forward.outputs.values() if self._is_pooled(output)]
        if not outputs:
            batch, length, _ = self.forward.layout
            size = f"{plural(length, 'position')} in {plural(batch, 'row')}"
            raise InputError(f"no output after its attention has {size}, as its input has")
        return next((output for output in outputs if not output.name[0]), outputs[-1])

    def _is_pooled(self, output: ModuleOutput) -> bool:
        """Return whether an output of the model has a vector for each row, and none for each position."""
        values, layout = output.values, self.forward.layout
        is_by_row = 0 < values.dim() <= 2 and len(values) == layout.batch > 1
        return not output.name[0] and is_by_row and layout.laid_out(values) is None

    def proof(self) -> ModelProof:
        """Run it with all changes that the claim needs, and return what was proved."""
        tokens = self.tokens[0]
        leaks: list[Leak] = []
        findings = [*self._differences_by_itself()]
        if is_provable := not findings:
            leaks = [leak for probe in self._probes() if (leak := self._leak_of(probe)) is not None]
            if all(leak.row == leak.changed[0] for leak in leaks):  # rows do not move each other
                leaks += self._position_leaks()
            findings = [*mixed_heads(self.forward, self._calls), *self._unread(), *self._of_numbers()]
            findings += [] if leaks else [*self._without_order(), *self._without_padding()]
            findings += self._conditions(bool(leaks))
        rows = np.flatnonzero(self._changed.any(axis=1)).tolist()
        for row in rows:
            self._held[row] |= self.claim.direct[row][:, tokens[row]].all(axis=1)
        # The first leak of each module, between positions and between rows.
        distinct = {(leak.module, leak.kind, leak.row == leak.changed[0]): leak for leak in reversed(leaks)}
        return ModelProof(
            self.expression, type(self.forward.module).__name__, self.forwards, len(tokens), len(rows),
            int((self._held & tokens)[rows].sum()), int(tokens[rows].sum()), self.dtype,
            self.output.values.device.type, tuple(distinct.values())[::-1], tuple(findings), is_provable,
            int((self._changed & tokens).sum()), int(tokens.sum()), self._is_alone,
        )  # fmt: skip

    # --- what changes -----------------------------------------------------------------------------------------

    def _probes(self) -> Iterator[Probe]:
        """Yield changes of rows, for each two of a sequence of one without the other, and of padding."""
        for which, tokens in enumerate(self.tokens):
            for group in _bit_groups(len(tokens)):
                yield Probe(tokens & np.isin(np.arange(len(tokens)), group)[:, None], which)
        for which, tokens in enumerate(self.tokens):
            if (which or self.claim.is_padded) and not tokens.all():
                yield Probe(~tokens, which, True)

    def _position_leaks(self) -> Iterator[Leak]:
        """Yield the leak of positions that change in all rows at once: each alone, where there is room for it."""
        tokens = self.tokens[0]
        rows, length = tokens.shape
        copies = self._copies()
        forwards = 2 * ceil(log2(max(length, 2)))
        room = forwards * copies if copies > 1 else max(forwards, _MOST_ALONE)
        parts: list[Sequence[int]] = [*reversed(_blocks(length, room))]
        self._is_alone = all(len(part) == 1 for part in parts)
        shown = self._calls.shown(rows, length, self.claim.past) & tokens[:, :, None] & tokens[:, None]
        wrongly = (shown & ~self.claim.direct).sum(axis=(0, 1))  # maybe within a block of positions
        parts = parts if self._is_alone or not wrongly.any() else [[int(wrongly.argmax())], *parts]
        changed = [np.isin(np.arange(length), part) & (tokens | self.claim.is_padded) for part in parts]
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

    def _copies(self) -> int:
        """Return how often one forward holds the rows of the batch: once if outputs differ then."""
        rows, length = self.tokens[0].shape
        most = max(min(_MOST_TOKENS // (rows * length), length * _MOST_SEEDS), 1)
        if most == 1 or rows == length or self.forward.draws:
            return 1
        self.forwards += 1
        return most if self.forward.repeats(most, self._last, min(64 * self._floor, 0.05)) else 1

    # --- what moves -------------------------------------------------------------------------------------------

    def _run(self, run: Callable[..., list[OutputChange]], *change: Any) -> list[OutputChange]:
        self.forwards += 1
        try:
            return run(*change)
        except AttnError:
            raise
        except Exception as error:  # whatever the program's own code raises
            inputs = " with other inputs" if change else ""
            message = f"its forward does not run again{inputs} ({type(error).__name__}: {error})"
            raise InputError(" ".join(message.split())[:300]) from error

    def _changes(self, probe: Probe) -> list[JudgedChange]:
        """Return what moves when a probe changes inputs, and record what it shows of the claim's own sequence."""
        sequence, padding = self.sequences[probe.sequence], self.padding[probe.sequence]
        claim, ids = None if probe.sequence else self.claim, {}
        if sequence.arguments:
            other = {seed: other_ids(self.forward, sequence, padding, claim, seed) for seed in {*probe.seeds}}
            ids = dict.fromkeys(sequence.arguments, np.concatenate([other[seed] for seed in probe.seeds]))
        changes = self._run(self.forward.changed, probe.positions, sequence.sources, ids, probe.seeds)
        judged = [self._judged(probe, change) for change in changes]
        if not probe.sequence and not probe.is_padding:
            rows, positions = len(self.tokens[0]), probe.positions
            is_alive = (positions & self._moved(judged, positions)).any(axis=1)
            self._is_alive |= bool(is_alive.any())
            self._changed |= positions.reshape(-1, *self.tokens[0].shape).any(axis=0)
            may_move = self._may_move(probe, self.attended)
            for row in np.flatnonzero(is_alive):
                self._held[row % rows] |= ~may_move[row]
        return judged

    def _may_move(self, probe: Probe, calls: int) -> Bool[np.ndarray, "B T"]:
        """Return which outputs a probe may move, after a number of calls of attention."""
        rows = len(self.tokens[0])
        return np.stack([
            self.claim.may_move(row % rows, (*np.flatnonzero(changed).tolist(),), max(calls, 1))
            for row, changed in enumerate(probe.positions)
        ])  # fmt: skip

    def _judged(self, probe: Probe, change: OutputChange) -> JudgedChange:
        """Return a change and how far it is one of outputs that must not move."""
        tokens = self.tokens[probe.sequence if change.output.name in self._before else 0]
        tokens = np.tile(tokens, (len(probe.positions) // len(tokens), 1))
        is_own = probe.positions.any(axis=1, keepdims=True)
        if change.moved.shape != tokens.shape:
            is_forbidden = np.full_like(is_own, self._is_pooled(change.output)) if probe.is_padding else ~is_own
        elif probe.sequence:
            is_forbidden = tokens & (probe.is_padding | ~is_own)
        else:
            is_forbidden = tokens & ~self._may_move(probe, change.output.calls[1])
        return JudgedChange(change, np.where(is_forbidden, change.moved, 0), np.where(is_forbidden, 0, change.moved))

    def _ends(self, judged: Sequence[JudgedChange]) -> list[JudgedChange]:
        """Return the changes of the model's own outputs; where it gives no vectors that move, of the last inside."""

        def has_positions(item: JudgedChange) -> bool:
            return item.change.moved.shape[1] > 1 or self.forward.layout.length == 1

        moved = [item for item in judged if item.change.most > 0]
        ends = [item for item in moved if not item.change.output.name[0]]
        if any(map(has_positions, ends)):
            return ends
        return [*ends, *[item for item in moved if has_positions(item) and item.change.output.name in self._last][-1:]]

    def _moved(self, judged: Sequence[JudgedChange], like: Bool[np.ndarray, "B T"]) -> Bool[np.ndarray, "B T"]:
        """Return which outputs of the model moved; where it gives one for each row, all of the row."""
        moved = np.zeros_like(like)
        for change, *_ in self._ends(judged):
            if change.moved.shape == moved.shape or change.output.name == self.output.name:
                moved |= change.moved > 0
        return moved

    def _leak_of(self, probe: Probe) -> Leak | None:
        """Return the leak of a probe, of as few inputs as show it, or None.

        One of a batch that holds its rows several times is searched for in the batch itself, with all modules.
        """
        judged, leak = self._changes(probe), None
        if len(probe.seeds) > 1:
            fewer = self._single_probes(probe, judged)
        elif (leak := self._leak(probe, judged)) is None:
            return None
        else:
            cells = np.argwhere(probe.positions)
            half = len(cells) // 2
            parts = (cells[cells[:, 0] == leak.row], cells[half:], cells[:half])
            fewer = [
                probe._replace(positions=_cells(probe.positions, (*part.T,)))
                for part in parts if 0 < len(part) < len(cells)
            ]  # fmt: skip
        return next((smaller for one in fewer if (smaller := self._leak_of(one)) is not None), leak)

    def _single_probes(self, probe: Probe, judged: Sequence[JudgedChange]) -> list[Probe]:
        """Return probes of the batch itself, of what moved most outputs that must not in one that holds it often."""
        rows, ends = len(self.tokens[0]), self._ends(judged)
        wrong = np.zeros(len(probe.positions), int)
        for change, forbidden, _ in ends:
            wrong += (forbidden > self._floor * change.size).sum(axis=1)
        if not wrong.any():
            self._rounded = max(self._rounded, *(float(end.forbidden.max()) for end in ends), 0.0)
        order = sorted(np.flatnonzero(wrong).tolist(), key=lambda at: (-wrong[at], at % rows, at))
        singles = []
        for copy, row in (divmod(at, rows) for at in order[:2]):
            positions = probe.positions[copy * rows : (copy + 1) * rows]
            parts = (positions & (np.arange(rows) == row)[:, None], positions)
            singles += [Probe(part, seeds=probe.seeds[copy : copy + 1]) for part in parts if part.any()]
        return singles

    def _leak(self, probe: Probe, judged: Sequence[JudgedChange]) -> Leak | None:
        """Return the first output that moved and must not, if outputs of the model moved too.

        Outputs inside that move alone leak nothing, as scores of keys that are hidden afterwards.
        """
        reached = self._moved(judged, self.tokens[0])
        most = max((float(end.forbidden.max()) for end in self._ends(judged)), default=0.0)
        calls = 0  # of attention, before the last output that did not move
        for change, forbidden, allowed in judged:
            output, has_positions = change.output, forbidden.shape == reached.shape
            if has_positions:
                forbidden = np.where(reached, forbidden, 0)
            elif not most:
                continue
            if forbidden.max() <= self._floor * change.size:
                calls = output.calls[1]
                continue
            row, position = (int(index) for index in np.unravel_index(int(forbidden.argmax()), forbidden.shape))
            kind, line = _cause(output), output.place
            if output.calls[1] > calls and (kind in ("attention", "other") or output.calls[1] > output.calls[0]):
                kind = "cache" if self.claim.past else "attention"
                line = self._calls.places[calls] if calls < len(self._calls.places) else line
            in_row, first = np.argwhere(probe.positions[row]), np.argwhere(probe.positions)[0]
            changed = (row, int(in_row[-1, 0])) if len(in_row) else (int(first[0]), int(first[1]))
            at, size = position if has_positions else None, float(forbidden.max())
            return Leak(row, at, changed, output.name[0], line, kind, size, float(allowed.max()))
        self._rounded = max(self._rounded, most)
        return None

    # --- what else is wrong, or worth knowing -------------------------------------------------------------------

    def _differences_by_itself(self) -> Iterator[Finding]:
        for change in self._run(self.forward.changed):
            if change.most > self._floor * change.size:
                name = change.output.name[0] or "the model"
                message = f"two equal runs differ, first in {name}, by {change.most:.2g}"
                advice = "seed all that it draws, call torch.use_deterministic_algorithms(True), or remove hooks"
                yield Finding("rerun", "error", message, advice=advice, made_at=(change.output.place,))
                return

    def _of_numbers(self) -> Iterator[Finding]:
        """Yield that outputs are no numbers, or do not move at all, or move as rounding does."""
        values, place = self.forward.layout.laid_out(self.output.values), (self.output.place,)
        values = self.output.values.reshape(len(self.tokens[0]), 1, -1) if values is None else values
        if count := int((values.isnan().any(dim=2).cpu().numpy() & self.tokens[0]).sum()):
            message = f"NaN in {count} of {plural(int(self.tokens[0].sum()), 'output')} hides whether they move"
            yield Finding("nan", "error", message, count, made_at=place)
        elif not self._is_alive:
            message = "no output moves when a position changes, not even its own"
            yield Finding("unread", "error", message, made_at=place)
        if self._rounded and self.dtype in HALF:
            moved = f"outputs move that must not, by {self._rounded:.2g}"
            message, advice = f"{moved}. Rounding of {self.dtype} or a leak may be why", "prove the model in float32"
            yield Finding("rerun", "error", message, advice=advice, made_at=place)

    def _conditions(self, leaks: bool) -> Iterator[Finding]:
        """Yield what the verdict rests on."""
        if leaks and not self.attended:
            message = f"attn saw no attention call, and takes the model for one layer of {self.expression}"
            yield Finding("no-mask", "note", message)
        if self.claim.is_padded and self.padding[0].source == "calls":
            message = "`pad` takes its lengths from the masks under test: neither ids nor an attention mask state them"
            yield Finding("pad", "note", message, advice="give --lengths 6,10 (lengths=[6, 10] in Python)")
        for name in dict.fromkeys(self.forward.copy.shared):
            yield Finding("rerun", "note", f"{name} cannot be copied, so the forwards that attn adds share it")

    def _unread(self) -> Iterator[Finding]:
        """Yield that outputs do not move that may read the last token of the last row, or a middle one of the first."""
        tokens = self.tokens[0]
        words = [np.flatnonzero(row) for row in tokens]
        changed = {len(tokens) - 1: int(words[-1][-1]), 0: int(words[0][len(words[0]) // 2])}
        probe = Probe(_cells(tokens, ([*changed], [*changed.values()])))
        moved = self._moved(self._changes(probe), tokens)
        for row, position in changed.items():
            still = np.flatnonzero(self.claim.direct[row][:, position] & tokens[row] & ~moved[row])
            if len(still):
                listed = ", ".join(map(str, still[:5])) + (" …" if len(still) > 5 else "")
                message = f"changing position {position} moves none of these outputs, which may read it: {listed}"
                yield Finding("unread", "note", message, len(still))
                return

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
        other = np.ones_like(tokens), (), dict.fromkeys(first.arguments, ids), (0,), order
        with suppress(InputError):
            for change in self._run(self.forward.changed, *other):
                if change.output.name == self.output.name and change.moved.shape == tokens.shape:
                    of_words = change._replace(moved=np.where(tokens, change.moved, 0))
                    if not of_words.exceeds(4 * noise_floor(self.dtype)):
                        message = "no position reaches the outputs: words in another order give the same, in that order"
                        advice = "add position embeddings, unless order must not matter"
                        yield Finding("positions", "note", message, advice=advice)

    def _without_padding(self) -> Iterator[Finding]:
        """Yield that a row has other outputs without its padding, as where positions count it."""
        if not self.claim.is_padded or self.claim.past or self.tokens[0].all():
            return
        if self.forward.draws:
            message = "it draws random numbers, so rows are not compared without their padding"
            yield Finding("positions", "note", message)
            return
        for row in np.flatnonzero(~self.tokens[0].all(axis=1)):
            words = np.flatnonzero(self.tokens[0][row])
            try:
                changes = self._run(self.forward.alone, int(row), int(words[0]), int(words[-1]) + 1)
            except InputError:
                message = f"row {row} does not run without its padding, so it is not compared"
                yield Finding("positions", "note", message)
                return
            for change in changes:
                if change.exceeds(4 * noise_floor(self.dtype)):
                    name, sizes = change.output.name[0] or "the model", f"{change.most:.2g} of {change.size:.2g}"
                    message = f"row {row} has other outputs without its padding: {name} differs by {sizes}"
                    advice = "count tokens alone: position_ids = attention_mask.cumsum(1) - 1"
                    yield Finding("positions", "error", message, advice=advice, made_at=(change.output.place,))
                    return

    @property
    def ids(self) -> list[Int[np.ndarray, "B T"]]:
        """The ids of each sequence, −1 in padding; none where it is not claimed to be causal."""
        if self.forward.layout.is_time_first or not self.claim.is_causal or self.forward.layout.length < 3:
            return []
        both = [
            (one.ids, tokens) for one, tokens in zip(self.sequences, self.tokens, strict=True) if one.ids is not None
        ]
        return [np.where(tokens, ids.cpu().numpy().reshape(tokens.shape), -1) for ids, tokens in both]

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
