"""Comparison of two runs, layer by layer: the first stage at which they part, its cause, and what rounding explains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attncli.analysis.agreement.causes import CANDIDATES, Candidate, Cell, Floors, Following, Proposal, Question
from attncli.analysis.agreement.sides import MOST_TOKENS, Parameters, Side
from attncli.analysis.agreement.stages import STAGE_OF, STAGES, Array, Arrays, Rounding, Steps
from attncli.errors import InputError
from attncli.text import layers_named

_OF_BITS = 6.0  # times the last bit of weights, which rounding changes at most
_MORE = 8  # values that are tried after one that explains the difference, but not those behind
_PAIRS = 10  # proposals that are tried together with others, where none explains a difference alone


def digits(value: float) -> str:
    """Return a difference in two digits, such as 0.38 or 3e-7."""
    return "0" if not value else f"{value:.2g}" if 0.001 <= value < 1e6 else f"{value:.0e}".replace("e-0", "e-")


class Cause(NamedTuple):
    """A cause that was proved."""

    name: str
    theirs: str  # value of B
    ours: str  # value of A
    undone: float | None  # the difference that is left with it undone; None where what agrees beside it is the proof


@dataclass
class Parting:
    """Stage at which the runs part."""

    stage: str
    layers: list[int]
    cell: Cell
    cause: Cause | None = None
    is_rounding: bool = False  # whether weights differ by no more than the bits that they are stored in

    def sentence(self) -> str:
        """Return where the runs part, by how much, and the cause."""
        where, cell = f"{layers_named(self.layers)}, {self.stage}", self.cell
        if self.stage == "tokens":
            where, apart = "Tokens", "A and B read other ids"
        else:
            apart = f"A and B differ by {digits(cell.difference)}; rounding gives {digits(cell.rounding or 0.0)}"
        where = where[0].upper() + where[1:]
        if (cause := self.cause) is None:
            return f"{where}: {apart}. No candidate explains this difference."
        proof = "the other projections agree" if cause.undone is None else f"undone: {digits(cause.undone)}"
        return f"{where}: {apart}. Cause: {cause.name} {cause.theirs} instead of {cause.ours} ({proof})."


@dataclass
class Agreement:
    """Result of a comparison.

    Attributes:
        names: A and B.
        dtype: type whose rounding is expected.
        rows: the difference at each stage of each layer.
        partings: the stages at which the runs part, the first one first.
        notes: remarks, a sentence each.
    """

    names: tuple[str, str]
    dtype: str
    rows: dict[int, dict[str, Cell]] = field(default_factory=dict)
    partings: list[Parting] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether rounding explains every difference."""
        return all(parting.is_rounding for parting in self.partings)

    @property
    def sentences(self) -> list[str]:
        """The result in words."""
        parted = [parting.sentence() for parting in self.partings]
        if len(parted) > 1 and self.partings[0].cause is not None:
            parted[1:] = [f"With that undone: {sentence[0].lower()}{sentence[1:]}" for sentence in parted[1:]]
        if not self.agrees or not self.largest:
            return parted or ["A and B agree to the last bit."]
        ratio = f", {self.ratio:.1f}× what rounding gives" if self.ratio else ""
        return [*parted, f"A and B agree: only rounding of {self.dtype}, at most {digits(self.largest)}{ratio}."]

    @property
    def ratio(self) -> float:
        """The largest difference, as a multiple of what rounding gives."""
        cells = (cell for row in self.rows.values() for cell in row.values() if cell.agrees and cell.rounding)
        return max((cell.difference / cell.rounding for cell in cells if cell.rounding), default=0.0)

    @property
    def largest(self) -> float:
        """The largest difference that agrees."""
        return max((cell.difference for row in self.rows.values() for cell in row.values() if cell.agrees), default=0.0)


def compare(first: Side, second: Side) -> Agreement:
    """Compare two runs of one sentence.

    A layer of the reference is computed from the other run's arrays, so that a difference is its own; its twin, which
    rounds every array, shows what rounding gives. A cause is proved where the reference with it agrees.

    Raises:
        InputError: they have no layer or no token in common.
    """
    is_swapped = second.has_weights and not first.has_weights
    reference, other = (second, first) if is_swapped else (first, second)
    rounding = min((Rounding(side.dtype) for side in (first, second)), key=lambda rounding: -rounding.unit)
    walk = _Walk(Agreement((first.name, second.name), rounding.dtype), reference, other, is_swapped, rounding)
    walk.run()
    walk.result.partings.sort(key=lambda parting: (parting.layers[0], STAGES.index(parting.stage)))
    return walk.result


class Solved(NamedTuple):
    """Candidate with the value that explains a difference."""

    candidate: Candidate
    proposal: Proposal
    undone: float


@dataclass
class _Walk:
    """Walk through the layers in order; what was found so far is given to the reference in each layer after."""

    result: Agreement
    reference: Side
    other: Side
    is_swapped: bool
    rounding: Rounding
    found: list[Solved] = field(default_factory=list)
    pending: Parting | None = None  # of an input that is known by the next layer's arrays alone

    def run(self) -> None:
        """Compare all layers that the other run has."""
        self._read_tokens()
        x = twin = self.reference.embed()
        for (index, given, known), after in _with_next(map(self._grouped, self.other.layers())):
            is_last = self.reference.has_weights and index not in self.reference.indices  # hidden states behind it
            steps = None if is_last else self.reference.steps(index, given.get("input", x) if index else x)
            if steps is None:
                continue
            with self.reference.holding():
                x, twin = self._compare_layer(index, steps, twin, given, known, after)
            if self.pending is not None and self.pending.layers != [index]:
                self.result.partings.append(self.pending)
                self.result.notes.append(f"attn compares no layer after {index - 1}: the input of layer {index} differs")
                return
        if self.pending is not None:
            self.result.partings.append(self.pending)
        if not self.result.rows:
            raise InputError("the two runs have no layer in common; give two runs of one checkpoint")

    def _read_tokens(self) -> None:
        ours, theirs = self.reference.token_ids, self.other.token_ids
        if ours is None or theirs is None or ours == theirs:
            return
        changed = self.reference.reading(theirs)
        if changed is None:
            raise InputError("the two runs have other tokens; give two runs of one sentence")
        self.reference = changed
        pairs = list(zip(ours, theirs, strict=False))
        place = next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
        if theirs == ours[1:] or theirs[1:] == ours:
            values = f"without {ours[0]} at the start", f"with {ours[0]}"
            values = values if theirs == ours[1:] else (f"with {theirs[0]} at the start", "without")
        else:
            values = tuple(f"{ids[place] if place < len(ids) else 'none'} at {place}" for ids in (theirs, ours))
        solved = Solved(Candidate("token ids", "tokens", iter), Proposal(*values, lambda _, steps: steps), 0.0)
        self._add(0, solved, Cell(1.0, None, False))

    def _compare_layer(
        self, index: int, steps: Steps, twin: Array | None, given: Arrays, known: Parameters, after: Any
    ) -> tuple[Array | None, Array | None]:
        """Compare one layer; return its output, and that of the twin."""
        following = self._following(after)
        rounded = partial(replace(steps, x=twin).run, given, rounding=self.rounding)
        floors = Floors(rounded, partial(steps.run, given), following)
        question = Question(index, self.reference, steps, given, known, floors, following)
        self.result.rows[index] = _by_stage({name: replace(question, parted=name).cell for name in question.apart})
        while parted := [name for name in question.apart if question.parts(name)]:
            # Arrays of one stage are independent: one of them may have a fault that another has not.
            asked = [replace(question, parted=name) for name in parted]
            solved = next(filter(None, map(self._solved, asked)), None) or _solve_two(asked[0], self.found)
            if not solved:
                self._add_unexplained(asked[0])
                break
            question = self._adopt(asked[0], solved)
        if "next" in given or "next" not in question.made:
            return given.get("next"), given.get("next")
        is_changed = question.steps is not steps
        twins = replace(question.steps, x=twin).run(given, rounding=self.rounding) if is_changed else floors.twin
        return question.made["next"], twins["next"]

    def _grouped(self, layer: tuple[int, dict[str, Array], Parameters]) -> tuple[int, dict[str, Array], Parameters]:
        """Return a layer with the key heads of the reference, where the other run wrote one for each head."""
        index, given, known = layer
        is_there = not self.reference.has_weights or index in self.reference.indices
        steps = self.reference.steps(index, None) if is_there else None
        if steps is None:
            return layer
        groups = steps.key_heads
        tiled = np.arange(len(groups)) % (groups.max() + 1)
        for name in given.keys() & {"k_normed", "k", "v"}:
            for order in (groups, tiled):
                first = np.unique(order, return_index=True)[1]
                if len(given[name]) == len(groups) > len(first) and np.array_equal(given[name][first][order], given[name]):
                    given[name] = given[name][first]
        return layer

    def _following(self, after: Any) -> Following | None:
        if after is None or (steps := self.reference.steps(after[0], None)) is None or steps.project is None:
            return None
        changed = [solved.proposal.apply(after[0], steps) for solved in self.found]
        return Following([steps, *changed], after[1])

    def _solved(self, question: Question) -> list[Solved]:
        """Return a cause that was found before, or a new one; empty without one that explains the difference."""
        for cause in self.found:
            if question.agreeing(cause.proposal.apply(question.layer, question.steps))[0]:
                return [cause]
        return _solve(question)

    def _adopt(self, question: Question, causes: list[Solved]) -> Question:
        """Return a question without the differences that causes explain, which are added to the result."""
        self.pending, steps = None, question.steps
        for cause in causes:
            steps = cause.proposal.apply(question.layer, steps)
            self._add(question.layer, cause, question.cell)
        return replace(question, steps=steps)

    def _add_unexplained(self, question: Question) -> None:
        parting = Parting(STAGE_OF[question.parted], [question.layer], question.cell)
        arrays = [name for name in question.apart if name[0] in "qkv"]
        parts = sorted({name[0] for name in arrays if question.parts(name)})
        if parts and len(parts) < len(arrays) and question.parted in arrays:
            parting.stage = "projections"
            parting.cause = Cause("projection weights", f"of {' and '.join(parts)}", "others", None)
        alike = (one for one in self.result.partings if (one.stage, one.cause) == (parting.stage, parting.cause))
        if question.parted == "next" and question.following is not None:
            self.pending = self.pending or parting
        elif self.pending is None:
            self._merge(parting, next(alike, None))

    def _add(self, layer: int, solved: Solved, cell: Cell) -> None:
        candidate, proposal, undone = solved
        values = (proposal.ours, proposal.theirs) if self.is_swapped else (proposal.theirs, proposal.ours)
        parting = Parting(candidate.stage, [layer], cell, Cause(candidate.name, *values, undone))
        bits = [side.weight_bits for side in (self.reference, self.other)]
        is_small = cell.difference <= _OF_BITS * 2.0 ** -min(bits)
        parting.is_rounding = bits[0] != bits[1] and is_small and candidate.name in ("projection weights", "weights")
        alike = (one for one in self.result.partings if one.cause and one.cause[:3] == (candidate.name, *values))
        if solved not in self.found:
            self.found.append(solved)
        self._merge(parting, next(alike, None))

    def _merge(self, parting: Parting, before: Parting | None) -> None:
        if before is None:
            self.result.partings.append(parting)
        elif parting.layers[0] not in before.layers:
            before.layers += parting.layers


def _solve(question: Question) -> list[Solved]:
    """Return the candidate with which most arrays agree; empty without one."""
    best: tuple[int, list[Solved]] = (0, [])
    for candidate in CANDIDATES:
        more = _MORE
        for proposal in candidate.solve(question):
            count, undone = question.agreeing(proposal.apply(question.layer, question.steps))
            if count > best[0]:
                best = count, [Solved(candidate, proposal, undone)]
            more -= count > 0 or more < _MORE
            if best[0] == len(question.apart) or not more:
                break
        if best[0] == len(question.apart):
            break
    return best[1]


def _solve_two(question: Question, found: list[Solved]) -> list[Solved]:
    """Return two candidates that explain a difference together, the earlier stage first; empty without."""
    nearest = []
    for candidate in CANDIDATES:
        proposals = [Solved(candidate, proposal, 0.0) for proposal in candidate.solve(question)]
        distances = [question.distance(one.proposal.apply(question.layer, question.steps)) for one in proposals]
        nearest += sorted(zip(distances, map(id, proposals), proposals, strict=True))[:2]
    for first in (*found, *(solved for _, _, solved in sorted(nearest)[:_PAIRS])):
        changed = replace(question, steps=first.proposal.apply(question.layer, question.steps))
        if solved := _solve(changed):
            both = [first._replace(undone=solved[0].undone) if first not in found else first, *solved]
            return sorted(both, key=lambda one: STAGES.index(one.candidate.stage))
    return []


def _with_next(layers: Iterator[tuple[int, dict[str, Array], Parameters]]) -> Iterator[Any]:
    """Yield each layer with the next one, where the arrays of that are all that shows its input."""
    previous: Any = None
    for layer in layers:
        if previous is not None:
            is_next = layer[0] == previous[0] + 1 and "next" not in previous[1]
            yield previous, layer if is_next else None
        previous = layer
    if previous is not None:
        yield previous, None


def _by_stage(cells: dict[str, Cell]) -> dict[str, Cell]:
    """Return the largest difference of each stage."""
    stages: dict[str, Cell] = {}
    for name, cell in cells.items():
        stage = STAGE_OF[name]
        if stage not in stages or (cell.agrees, -cell.difference) < (stages[stage].agrees, -stages[stage].difference):
            stages[stage] = cell
    return stages
