"""Comparison of two runs, layer by layer: the first stage at which they part, its cause, and what rounding explains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attncli.analysis.agreement.causes import CANDIDATES, Candidate, Floors, Following, Proposal, Question
from attncli.analysis.agreement.sides import MOST_TOKENS, Parameters, Side
from attncli.analysis.agreement.stages import STAGE_OF, STAGES, Array, Arrays, Rounding, Steps
from attncli.errors import InputError
from attncli.text import layers_named

_OF_BITS = 6.0  # times the last bit of weights, which rounding changes at most
_MORE = 8  # values that are tried after one that explains the difference, but not those behind
_PAIRS = 4  # proposals that are tried together with others, where none explains a difference alone


def digits(value: float) -> str:
    """Return a difference in two digits, such as 0.38 or 3e-7."""
    return "0" if not value else f"{value:.2g}" if 0.001 <= value < 1e6 else f"{value:.0e}".replace("e-0", "e-")


class Cell(NamedTuple):
    """Difference at one stage of a layer."""

    difference: float  # the largest of a token, relative to what is compared
    rounding: float | None  # that of the rounded twin; None where the difference is smaller than float32 shows
    agrees: bool


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
        if (cause := self.cause) is None:
            return f"{where}: {apart}. No candidate explains this difference."
        proof = "the other arrays of the layer agree" if cause.undone is None else f"undone: {digits(cause.undone)}"
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
    return walk.result


@dataclass
class _Walk:
    """Walk through the layers in order; what was found so far is given to the reference in each layer after."""

    result: Agreement
    reference: Side
    other: Side
    is_swapped: bool
    rounding: Rounding
    found: list[tuple[Parting, Proposal]] = field(default_factory=list)
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
        self._add(Parting("tokens", [0], Cell(1.0, None, False)), Candidate("token ids", "tokens", iter), Proposal(
            *values, lambda _, steps: steps), 0.0)

    def _compare_layer(
        self, index: int, steps: Steps, twin: Array | None, given: Arrays, known: Parameters, after: Any
    ) -> tuple[Array | None, Array | None]:
        """Compare one layer; return its output, and that of the twin."""
        following = self._following(after)
        rounded = partial(replace(steps, x=twin).run, given, rounding=self.rounding)
        floors = Floors(rounded, partial(steps.run, given), following)
        question = Question(index, self.reference, steps, given, known, floors, following)
        row = {name: float(apart.max()) for name, apart in question.apart.items()}
        cells = {name: Cell(apart, floors.rounding(name, apart), not question.parts(name)) for name, apart in row.items()}
        self.result.rows[index] = _by_stage(cells)
        while parted := question.first_parted(question.apart):
            question = replace(question, parted=parted)
            apart = float(question.apart[parted].max())
            if (solved := self._explained(question, Cell(apart, floors.rounding(parted, apart), False))) is None:
                break
            question = replace(question, steps=solved)
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
        changed = [proposal.apply(after[0], steps) for _, proposal in self.found]
        return Following([steps, *changed], after[1])

    def _explained(self, question: Question, cell: Cell) -> Steps | None:
        """Return the steps with the cause of a difference, which is added to the result; None without one."""
        for parting, proposal in self.found:
            steps = proposal.apply(question.layer, question.steps)
            if question.agreeing(steps)[0]:
                parting.layers += [question.layer] * (question.layer not in parting.layers)
                self.pending = None
                return steps
        causes = _solve(question) or _solve_two(question)
        for candidate, proposal, undone in causes:
            self.pending = None
            self._add(Parting(candidate.stage, [question.layer], cell), candidate, proposal, undone)
        if causes:
            steps = question.steps
            for _, proposal, _ in causes:
                steps = proposal.apply(question.layer, steps)
            return steps
        if self.pending is None:
            self._unexplained(question, cell)
        return None

    def _unexplained(self, question: Question, cell: Cell) -> None:
        parting = Parting(STAGE_OF[question.parted], [question.layer], cell)
        parts = [name for name in question.apart if name[0] in "qkv" and question.parts(name)]
        agreeing = [name for name in question.apart if name[0] in "qkv" and not question.parts(name)]
        if parting.stage in ("projections", "norm", "rotation") and parts and agreeing:
            letters = sorted({name[0] for name in parts})
            parting.stage, parting.cause = "projections", Cause(
                "projection weights", f"of {' and '.join(letters)}", "others", None)
        if question.parted == "next" and question.following is not None:
            self.pending = parting
        elif (last := next((one for one in self.result.partings if one.cause is None and one.stage == parting.stage), None)):
            last.layers.append(question.layer)
        else:
            self.result.partings.append(parting)

    def _add(self, parting: Parting, candidate: Candidate, proposal: Proposal, undone: float) -> None:
        values = (proposal.ours, proposal.theirs) if self.is_swapped else (proposal.theirs, proposal.ours)
        parting.cause = Cause(candidate.name, *values, undone)
        bits = [side.weight_bits for side in (self.reference, self.other)]
        is_small = parting.cell.difference <= _OF_BITS * 2.0 ** -min(bits)
        parting.is_rounding = bits[0] != bits[1] and is_small and candidate.name in ("projection weights", "weights")
        self.found.append((parting, proposal))
        alike = (one for one in self.result.partings if one.cause and one.cause[:3] == parting.cause[:3])
        if (before := next(alike, None)) is not None:
            before.layers.append(parting.layers[0])
        else:
            self.result.partings.append(parting)


Solved = list[tuple[Candidate, Proposal, float]]


def _solve(question: Question) -> Solved:
    """Return the candidate with which most arrays agree; empty without one."""
    best: tuple[int, Solved] = (0, [])
    for candidate in CANDIDATES:
        more = _MORE
        for proposal in candidate.solve(question):
            count, undone = question.agreeing(proposal.apply(question.layer, question.steps))
            if count > best[0]:
                best = count, [(candidate, proposal, undone)]
            more -= count > 0 or more < _MORE
            if best[0] == len(question.apart) or not more:
                break
        if best[0] == len(question.apart):
            break
    return best[1]


def _solve_two(question: Question) -> Solved:
    """Return two candidates that explain a difference together, the earlier stage first; empty without."""
    nearest = []
    for candidate in CANDIDATES:
        for proposal in candidate.solve(question):
            distance = question.distance(proposal.apply(question.layer, question.steps))
            nearest.append((distance, len(nearest), candidate, proposal))
    for _, _, candidate, proposal in sorted(nearest)[:_PAIRS]:
        changed = replace(question, steps=proposal.apply(question.layer, question.steps))
        if solved := _solve(changed):
            both = [(candidate, proposal, solved[0][2]), *solved]
            return sorted(both, key=lambda one: STAGES.index(one[0].stage))
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
