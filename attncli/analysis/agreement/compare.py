"""Comparison of two runs, layer by layer: the first stage at which they part, its cause, and what rounding explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from attncli.analysis.agreement.causes import BESIDE, CANDIDATES, OF_PROJECTIONS, OF_WEIGHTS, Candidate, Proposal
from attncli.analysis.agreement.question import NEAR, RECORDED, Cell, Floors, LayerQuestion
from attncli.analysis.runs import Following, RunLayer, Side, check_sizes, group_keys, ids_apart, with_next
from attncli.analysis.steps import STAGE_OF, STAGES, Array, LayerSteps, Rounding
from attncli.errors import InputError
from attncli.masks.findings import Finding
from attncli.text import layers_named

_OF_BITS = 5.0  # times the last bit of weights, which rounding changes at most
_NEAREST = 1.25  # times what rounding gives: values that leave no more are alike; the twin shows it that well
_MORE = 8  # values that are tried after one that explains a difference, but not those behind
_MOST_CAUSES, _MOST_FAILURES = 8, 2  # of a layer; layers that are searched without success
_PAIRS = 10  # proposals that are tried together with others, where none explains a difference alone


class Cause(NamedTuple):
    """Cause of a difference, proved where there is an `undone`."""

    name: str
    b: str  # value of B
    a: str  # value of A
    undone: float | None  # the difference that is left with it undone; None where what agrees beside it hints at it


@dataclass
class Parting:
    """Stage at which two runs part."""

    stage: str
    layers: list[int]
    cell: Cell
    cause: Cause | None = None
    is_rounding: bool = False  # whether weights differ by no more than the bits that they are stored in
    kind: str | None = None  # of the layers, where a model has several


@dataclass
class Agreement:
    """Result of a comparison."""

    names: tuple[str, str]  # A and B
    dtype: str  # whose rounding is expected
    rows: dict[int, dict[str, Cell]] = field(default_factory=dict)  # the difference of each array of each layer
    partings: list[Parting] = field(default_factory=list)  # the first one first
    notes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)  # of other ways to run B
    not_compared: list[str] = field(default_factory=list)  # what was not compared, a sentence each

    @property
    def agrees(self) -> bool:
        """Whether rounding explains every difference."""
        return not self.findings and all(parting.is_rounding for parting in self.partings)


def compare(first: Side, second: Side) -> Agreement:
    """Compare two runs of one sentence; InputError where they have no layer in common, or other sizes.

    A layer of the reference is computed from the other run's arrays, so that a difference is its own; its twin, which
    rounds every array, shows what rounding gives. A cause is proved where the reference with it agrees.
    """
    is_swapped = first.embed is None and second.embed is not None
    reference, other = (second, first) if is_swapped else (first, second)
    rounding = max((Rounding(side.dtype) for side in (first, second)), key=lambda rounding: rounding.unit)
    result = Agreement((first.name, second.name), rounding.dtype, notes=[*dict.fromkeys(first.notes + second.notes)])
    walk = _Walk(result, reference, other, is_swapped, rounding)
    walk.run()
    walk.result.partings = sorted(walk.partings.values(), key=lambda one: (one.layers[0], STAGES.index(one.stage)))
    return walk.result


class Solved(NamedTuple):
    """Candidate with the value that explains a difference."""

    candidate: Candidate
    proposal: Proposal
    undone: float | None


@dataclass
class _Walk:
    """Walk through the layers in order; the causes that were found are given to the reference in each layer after."""

    result: Agreement
    reference: Side
    other: Side
    is_swapped: bool
    rounding: Rounding
    solved: list[Solved] = field(default_factory=list)
    partings: dict[Any, Parting] = field(default_factory=dict)
    before: float = 0.0  # the largest difference of queries, keys and values of the last layer that rounding explains
    reached: int = 0  # layer after the last one that was computed
    failures: int = 0  # layers with a difference that no candidate explains
    pending: Parting | None = None  # at an output that the next layer's arrays alone show

    def run(self) -> None:
        self._read_tokens()
        self._check_layers()
        x = twin = self.reference.embed and self.reference.embed(None)
        for layer, after in with_next(self.other.layers()):
            x, twin = self._reach(layer.index, x, twin)
            steps = self.reference.steps(layer.index, layer.arrays.get("input", x) if layer.index else x)
            if steps is None:
                continue
            if (odd := next((name for name in layer.arrays if np.isnan(layer.arrays[name]).any()), None)) is not None:
                self._merge(Parting(STAGE_OF[odd], [layer.index], Cell(math.inf, None, agrees=False)))
                self.result.notes.append(
                    f"{self.other.name} has NaN in layer {layer.index}; attn compares none from there"
                )
                break
            group_keys(steps.key_heads, layer, after)
            check_sizes(steps, layer, self.reference, self.other)
            with self.reference.holding():
                x, twin = self._compare_layer(layer, steps, twin, after)
            is_cut = bool(self.partings) if not self.reference.indices else self.pending is not None
            if is_cut and (self.pending is None or self.pending.layers != [layer.index]):
                self.result.notes.append(f"attn compares no layer after {layer.index}, as their input differs")
                break
        if self.pending is not None:
            self._merge(self.pending)
        if not self.result.rows and not self.partings:
            raise InputError(f"{' and '.join(self.result.names)} hold no array in common; write q, k and v of all")

    def _check_layers(self) -> None:
        ours, theirs = len(self.reference.indices), len(self.other.indices)
        if theirs and ours and ours != theirs:
            (a, b), names = ((theirs, ours) if self.is_swapped else (ours, theirs)), self.result.names
            raise InputError(f"{names[0]} has {a} layers and {names[1]} {b}; give two runs of one checkpoint")

    def _reach(self, index: int, x: Array | None, twin: Array | None) -> tuple[Array | None, Array | None]:
        """Compute the layers before one that the other run has not; return what enters it, and what enters the twin."""
        missing = [*range(self.reached, index)] if self.reference.indices else []
        if missing:
            self.result.notes.append(
                f"{self.other.name} lacks {layers_named(missing)}; attn computes as {self.reference.name}"
            )
        for absent in missing:
            steps = self.reference.steps(absent, x)
            assert steps is not None
            for one in self.solved:
                steps = one.proposal.apply(absent, steps)
            with self.reference.holding():
                x = steps.run({})["next"]
                twin = replace(steps, x=twin).run({}, rounding=self.rounding)["next"]
        self.reached = index + 1
        return x, twin

    def _read_tokens(self) -> None:
        ours, theirs = self.reference.token_ids, self.other.token_ids
        if ours is None or theirs is None or ours == theirs:
            return
        if self.reference.reading is None:
            raise InputError("the two runs have other tokens; give two runs of one sentence")
        self.reference = self.reference.reading(theirs)
        proposal = Proposal(*ids_apart(theirs, ours), lambda _, steps: steps)
        candidate = Candidate("token ids", "tokens", lambda _: iter([proposal]))
        self._add(0, Solved(candidate, proposal, 0.0), Cell(1.0, None, False))

    def _compare_layer(
        self, layer: RunLayer, steps: LayerSteps, twin: Array | None, after: RunLayer | None
    ) -> tuple[Array | None, Array | None]:
        """Compare one layer; return its output, and that of the twin."""
        written, following = layer.arrays, self._following(after)
        rounded = partial(replace(steps, x=twin).run, written, rounding=self.rounding)
        before = None if self.reference.indices else self.before
        floors = Floors(lambda: first.made, rounded, following, before, 1 + len(self.result.rows))
        stated = {name: layer.stated[name] for name in ("scale", "mask") if name in layer.stated}
        if following is None and stated and "q" in written and not {"weights", "next"} & {*written}:
            # Nothing else shows in the last layer with which of them an engine computes.
            made = replace(steps, **stated).run(written, "weights")
            written |= {name: made[name] for name in ("weights",) if name in made}
        first = question = LayerQuestion(layer, self.reference, steps, floors, following)
        row = {name: question.about(name).cell for name in question.apart}
        self.result.rows |= {layer.index: row} if row else {}
        self.before = max([0.0, *(one.difference for name, one in row.items() if name in RECORDED and one.agrees)])
        for _ in range(_MOST_CAUSES):
            # Arrays of one stage are independent: one of them may have a fault that another has not.
            questions = [question.about(name) for name in question.apart if question.parts(name)]
            if not questions or (questions[0].parted == "next" and self._is_of_next(question, after)):
                break
            tried: list[tuple[float, Solved]] = []
            explained = (self._explain(one, tried if one is questions[0] else []) for one in questions)
            solved = next(filter(None, explained), [])
            if not solved and (self.failures or not (solved := _solve_two(questions[0], self.solved, tried))):
                self._add_unexplained(questions[0])
                break
            self.pending = None
            for one in solved:
                self._add(layer.index, one, *self._size(questions))
                question = replace(question, steps=one.proposal.apply(layer.index, question.steps))
            question = replace(question, following=self._following(after))
        if "next" in written or "next" not in question.made:
            return (written.get("next"),) * 2
        is_changed = question.steps is not steps
        twins = replace(question.steps, x=twin).run(written, rounding=self.rounding) if is_changed else floors.twin
        return question.made["next"], twins["next"]

    def _following(self, after: RunLayer | None) -> Following | None:
        if after is None or (steps := self.reference.steps(after.index, None)) is None or steps.project is None:
            return None
        return Following([steps, *(one.proposal.apply(after.index, steps) for one in self.solved)], after.arrays)

    def _is_of_next(self, question: LayerQuestion, after: RunLayer | None) -> bool:
        """Return whether a change of the next layer's projections explains its arrays: then that layer is asked."""
        if after is None or question.following is None:
            return False
        questions, x = replace(question, layer=after, steps=question.following.variants[0]), question.made["next"]
        changed = [one.apply(after.index, questions.steps) for solve in OF_PROJECTIONS for one in solve(questions)]
        return any(
            not question.parts("next", float(Following([one], after.arrays).difference(x).max())) for one in changed
        )

    def _explain(self, question: LayerQuestion, tried: list[tuple[float, Solved]]) -> list[Solved]:
        """Return a cause that was found before, or a new one; empty without one that explains the difference."""
        for cause in self.solved:
            if question.agrees(cause.proposal.apply(question.layer.index, question.steps)):
                return [cause]
        has_rounded = self.reference.weight_bits != self.other.weight_bits
        orders = [OF_WEIGHTS] * has_rounded + [CANDIDATES] if self.failures < _MOST_FAILURES else []
        return next(filter(None, (_solve(question, tried, order) for order in orders)), [])

    def _add_unexplained(self, question: LayerQuestion) -> None:
        self.failures += 1
        parting = Parting(STAGE_OF[question.parted], [question.layer.index], question.cell)
        first = {name[0]: name for name in reversed(question.apart) if name[0] in "qkv"}  # array of each projection
        parts = sorted(part for part, name in first.items() if question.parts(name))
        others = (name for part, name in first.items() if part not in parts)
        agree = all(question.apart[name].max() <= NEAR * question.floors.roundings[name] for name in others)
        if agree and 0 < len(parts) < len(first) and not {"q", "k"} <= {*parts} and question.parted in first.values():
            parting.stage = "projections"  # a rotation changes both of q and k
            of_norm = " or norm" if question.steps.norm_heads is not None and parts != ["v"] else ""
            parting.cause = Cause(f"projection{of_norm} weights of {' and '.join(parts)}", "differ", "", None)
        if question.steps.project is None and parts and len(first) == len(parts) and "scores" not in first:
            parting.stage = "input"  # a run without hidden states does not show it
        if question.parted == "next" and question.following is not None:
            self.pending = self.pending or parting
        elif self.pending is None:
            self._merge(parting)

    def _size(self, questions: Sequence[LayerQuestion]) -> tuple[Cell, bool]:
        """Return the largest difference at the first stage, and whether weights that are stored in few bits give it."""
        alike = [one for one in questions if STAGE_OF[one.parted] == STAGE_OF[questions[0].parted]]
        cell = max((one.cell for one in alike), key=lambda cell: cell.difference)
        bits = {self.reference.weight_bits, self.other.weight_bits}
        is_small = len(bits) > 1 and cell.difference <= _OF_BITS * 2.0 ** -min(bits)
        return cell, is_small and not any(one.is_scaled(one.parted) for one in alike)

    def _add(self, index: int, solved: Solved, cell: Cell, is_small: bool = False) -> None:
        (name, stage, _), proposal, undone = solved
        values = (proposal.ours, proposal.theirs) if self.is_swapped else (proposal.theirs, proposal.ours)
        cause = Cause(f"{name} {proposal.of}".rstrip(), *values, undone)
        self.solved += [solved] * (solved not in self.solved)
        self._merge(Parting(stage, [index], cell, cause, is_small and proposal.theirs.startswith("differ")))

    def _merge(self, parting: Parting) -> None:
        key = parting.stage, parting.cause and parting.cause[:3], parting.is_rounding
        before = self.partings.setdefault(key, parting)
        before.cell = max(before.cell, parting.cell, key=lambda cell: cell.difference)
        before.layers += [index for index in parting.layers if index not in before.layers]


def _solve(
    question: LayerQuestion, tried: list[tuple[float, Solved]], candidates: Sequence[Candidate] = CANDIDATES
) -> list[Solved]:
    """Return the candidate with which most arrays agree, and of these the one that leaves least; empty without one.

    `tried` collects the others with the difference that each leaves.
    """
    best: tuple[tuple[int, float], list[Solved]] = ((0, 0.0), [])
    for candidate in candidates:
        more = _MORE
        for proposal in candidate.solve(question):
            count, undone = question.agreeing(proposal.apply(question.layer.index, question.steps))
            solved, left = Solved(candidate, proposal, undone), undone / question.floors.roundings[question.parted]
            tried.append((undone, solved))
            if count > 0 and (rank := (count, -max(left, _NEAREST))) > best[0]:
                best = rank, [solved]
            more -= count > 0 or more < _MORE
            if best[0] == (len(question.apart), -_NEAREST):
                return best[1]
            if not more:
                break
    return best[1]


def _solve_two(question: LayerQuestion, before: list[Solved], tried: list[tuple[float, Solved]]) -> list[Solved]:
    """Return two candidates that explain a difference together, the earlier stage first; empty without.

    The first is a cause that was found before, a kind of rotation, or one that was tried and leaves little.
    """
    index, most, of_name = question.layer.index, float(question.apart[question.parted].max()), dict[str, Any]()
    for left, one in tried:
        of_name.setdefault(one.candidate.name, []).append((left, one))
    rotations = [alike[0][1] for alike in of_name.values() if alike[0][1].candidate.stage == "rotation"]
    nearest = [pair for alike in of_name.values() for pair in sorted(alike, key=itemgetter(0))[:2]]
    nearest = sorted(nearest, key=itemgetter(0))[:_PAIRS]
    for first in (*before, *rotations, *(one for _, one in nearest)):
        other = replace(question, steps=first.proposal.apply(index, question.steps), most=most)
        if solved := _solve(other, [], BESIDE):
            both = [first if first in before else first._replace(undone=solved[0].undone), *solved]
            return sorted(both, key=lambda one: STAGES.index(one.candidate.stage))
    return []
