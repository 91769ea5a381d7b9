"""Comparison of two runs, layer by layer: the first stage at which they part, its cause, and what rounding explains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.agreement.causes import CANDIDATES, Proposal, Question
from attncli.analysis.agreement.sides import MOST_TOKENS, Parameters, Side
from attncli.analysis.agreement.stages import STAGE_OF, Array, Arrays, Steps, difference
from attncli.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float

_PRECISION = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # bits of a number, the first one included
_TIMES = 8.0  # a difference is more than rounding if it is larger than that of the rounded twin by more than this
_MOST_CAUSES = 4


class Cell(NamedTuple):
    """Difference at one stage of a layer."""

    difference: float  # the largest of a token, relative to what is compared
    rounding: float  # that of the rounded twin
    agrees: bool


class Cause(NamedTuple):
    """A cause that was proved."""

    name: str
    theirs: str  # value of B
    ours: str  # value of A
    undone: float  # the difference that is left with it undone


@dataclass
class Parting:
    """Stage at which the runs part."""

    stage: str
    layers: list[int]
    arrays: tuple[str, ...]  # those that differ
    cell: Cell
    cause: Cause | None = None


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
        return not self.partings

    @property
    def ratio(self) -> float:
        """The largest difference, as a multiple of what rounding gives."""
        cells = (cell for row in self.rows.values() for cell in row.values() if cell.agrees and cell.rounding)
        return max((cell.difference / cell.rounding for cell in cells), default=0.0)

    @property
    def largest(self) -> float:
        """The largest difference that agrees."""
        return max((cell.difference for row in self.rows.values() for cell in row.values() if cell.agrees), default=0.0)


class Rounding:
    """Rounding of arrays, drawn at random: as large as a type of number rounds."""

    def __init__(self, dtype: str, weights: float = 0.0) -> None:
        self.unit, self._draws = 2.0 ** -_PRECISION.get(dtype, 8), np.random.default_rng(0)
        self.of_weights = weights

    def __call__(self, array: Array) -> Array:
        """Return an array with an error of each number, relative to its row."""
        size = np.sqrt(np.square(array, dtype=np.float64).mean(axis=-1, keepdims=True))
        return (array + self.unit / 2 * size * self._draws.standard_normal(array.shape)).astype(np.float32)


def compare(first: Side, second: Side) -> Agreement:
    """Compare two runs of one sentence.

    A layer of the reference is computed from the other run's arrays, so that a difference is its own; its twin, which
    rounds every array, shows what rounding gives. A cause is proved where the reference with it agrees.

    Raises:
        InputError: they have no layer or no token in common.
    """
    is_swapped = first.embed() is None and second.embed() is not None
    reference, other = (second, first) if is_swapped else (first, second)
    dtype = min(reference.dtype, other.dtype, key=lambda name: _PRECISION.get(name, 8))
    result = Agreement((first.name, second.name), dtype)
    walk = _Walk(result, reference, other, is_swapped)
    walk.run()
    return result


class _Walk:
    """Walk through the layers in order; what was found so far is given to the reference in each layer after."""

    def __init__(self, result: Agreement, reference: Side, other: Side, is_swapped: bool) -> None:
        self.result, self.reference, self.other, self.is_swapped = result, reference, other, is_swapped
        self.found: list[tuple[Parting, Proposal]] = []
        self.rounding = Rounding(result.dtype)

    def run(self) -> None:
        """Compare all layers that the other run has."""
        self._read_tokens()
        x = twin = self.reference.embed()
        for index, given, known, values in _with_next(self.other.layers()):
            steps = self.reference.steps(index, x)
            if steps is None:
                continue
            with self.reference.holding():
                x, twin, goes_on = self._compare_layer(index, steps, twin, given, known, values)
            if not goes_on:
                self.result.notes.append(f"layers after {index} are not compared: their input differs")
                return
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
        self._note_tokens(ours, theirs)

    def _note_tokens(self, ours: tuple[int, ...], theirs: tuple[int, ...]) -> None:
        if theirs == ours[1:]:
            values = "missing", f"token {ours[0]} at the start"
        elif theirs[1:] == ours:
            values = f"token {theirs[0]} at the start", "none"
        else:
            place = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
            values = (f"{ids[place] if place < len(ids) else 'none'} at {place}" for ids in (theirs, ours))
        cause = Proposal(*values, lambda _, steps: steps)
        self._add(Parting("tokens", [0], ("tokens",), Cell(1.0, 0.0, False)), cause, "token ids", 0.0)

    def _compare_layer(
        self, index: int, steps: Steps, twin: Array | None, given: Arrays, known: Parameters, values: Array | None
    ) -> tuple[Array | None, Array | None, bool]:
        """Compare one layer; return its output, that of the twin, and whether layers behind it can be compared."""
        following = self._following(index, values)
        if following is not None:
            given = {**given, "next": values}
        made = steps.run(given)
        twins = replace(steps, x=twin).run(given, rounding=self.rounding)
        if following is not None and "next" in made:
            pairs = [(following(arrays["next"])) for arrays in (made, twins)]
            floor_next = float(difference(pairs[1], pairs[0]).max())
        roundings = {name: float(difference(twins[name], made[name]).max()) for name in made}
        if following is not None and "next" in made:
            roundings["next"] = floor_next
        floors = {name: _TIMES * max(value, 2.0**-24) for name, value in roundings.items()}
        question = Question(index, self.reference, steps, given, known, floors, following)
        row = self._row(question.differences(steps), floors, roundings)
        goes_on = True
        while question.parted != (parted := question.first_parted(question.differences(question.steps))) and parted:
            question = replace(question, parted=parted)
            cell = row[parted]
            if (solved := self._explained(question)) is None:
                self._add(Parting(STAGE_OF[parted], [index], (parted,), cell), None, "", 0.0)
                goes_on = parted != "next" or following is None
                break
            question = replace(question, steps=solved)
        self.result.rows[index] = _by_stage(row)
        final = question.steps.run(given)
        return final.get("next"), twins.get("next"), goes_on

    def _following(self, index: int, values: Array | None) -> Callable[[Array], Array] | None:
        after = None if values is None else self.reference.steps(index + 1, None)
        if after is None or after.project is None:
            return None
        project = after.project
        return lambda x: project(x)[2]

    def _row(
        self, differences: dict[str, Float[np.ndarray, " T"]], floors: dict[str, float], roundings: dict[str, float]
    ) -> dict[str, Cell]:
        largest = {name: float(apart.max()) for name, apart in differences.items()}
        return {name: Cell(apart, roundings[name], apart <= floors[name]) for name, apart in largest.items()}

    def _explained(self, question: Question) -> Steps | None:
        """Return the steps with the cause of a difference, which is added to the result; None without one."""
        for parting, proposal in self.found:
            steps = proposal.apply(question.layer, question.steps)
            if question.agreeing(steps)[0]:
                if question.layer not in parting.layers:
                    parting.layers.append(question.layer)
                return steps
        best: tuple[tuple[int, float], Any, Proposal, Steps] | None = None
        compared = len(question.differences(question.steps))
        for candidate in CANDIDATES:
            for proposal in candidate.solve(question):
                steps = proposal.apply(question.layer, question.steps)
                count, undone = question.agreeing(steps)
                if count and (best is None or count > best[0][0]):
                    best = (count, undone), candidate, proposal, steps
                if count:
                    break
            if best is not None and best[0][0] == compared:
                break
        if best is None:
            return None
        (_, undone), candidate, proposal, steps = best
        differences = question.differences(question.steps)[question.parted]
        cell = Cell(float(differences.max()), question.floors[question.parted] / _TIMES, False)
        self._add(Parting(candidate.stage, [question.layer], (question.parted,), cell), proposal, candidate.name, undone)
        return steps

    def _add(self, parting: Parting, proposal: Proposal | None, name: str, undone: float) -> None:
        if proposal is not None:
            values = (proposal.ours, proposal.theirs) if self.is_swapped else (proposal.theirs, proposal.ours)
            parting.cause = Cause(name, *values, undone)
            self.found.append((parting, proposal))
        self.result.partings.append(parting)


def _with_next(layers: Iterator[tuple[int, dict[str, Array], Parameters]]) -> Iterator[Any]:
    """Yield each layer with the values of the next one, where these are all that shows its input."""
    previous: Any = None
    for index, given, known in layers:
        if previous is not None:
            is_next = index == previous[0] + 1 and "next" not in previous[1] and "input" not in given
            yield (*previous, given.get("v") if is_next else None)
        previous = index, given, known
    if previous is not None:
        yield (*previous, None)


def _by_stage(row: dict[str, Cell]) -> dict[str, Cell]:
    """Return the largest difference of each stage, as a multiple of rounding."""
    stages: dict[str, Cell] = {}
    for name, cell in row.items():
        stage = STAGE_OF[name]
        if stage not in stages or cell.difference * stages[stage].rounding > stages[stage].difference * cell.rounding:
            stages[stage] = cell
    return stages
