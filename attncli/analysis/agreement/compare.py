"""Comparison of two runs, layer by layer: the first stage at which they part, its cause, and what rounding explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from attncli.analysis.agreement.causes import CANDIDATES, OF_PROJECTIONS, OF_WEIGHTS, Candidate, Proposal
from attncli.analysis.agreement.question import RECORDED, Cell, Floors, LayerQuestion
from attncli.analysis.runs import Following, RunLayer, Side, check_sizes, group_keys, ids_apart, with_next
from attncli.analysis.steps import STAGE_OF, STAGES, Array, LayerSteps, Rounding
from attncli.errors import InputError

_OF_BITS = 6.0  # times the last bit of weights, which rounding changes at most
_NEAR = 2.0  # times what rounding gives: a value that leaves no more is the cause; in 16 bits others agree as well
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

    @property
    def agrees(self) -> bool:
        """Whether rounding explains every difference."""
        return all(parting.is_rounding for parting in self.partings)


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
    failures: int = 0  # layers with a difference that no candidate explains
    pending: Parting | None = None  # at an output that the next layer's arrays alone show

    def run(self) -> None:
        self._read_tokens()
        x = twin = self.reference.embed and self.reference.embed(None)
        for layer, after in with_next(self.other.layers()):
            steps = self.reference.steps(layer.index, layer.arrays.get("input", x) if layer.index else x)
            if steps is None:
                continue
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
        if not self.result.rows:
            raise InputError(f"{' and '.join(self.result.names)} hold no array in common; write q, k and v of all")

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
        floors = Floors(lambda: first.made, rounded, following, None if self.reference.indices else self.before)
        first = question = LayerQuestion(layer, self.reference, steps, floors, following)
        row = {name: question.about(name).cell for name in question.apart}
        self.result.rows |= {layer.index: row} if row else {}
        self.before = max([0.0, *(one.difference for name, one in row.items() if name in RECORDED and one.agrees)])
        for _ in range(_MOST_CAUSES):
            # Arrays of one stage are independent: one of them may have a fault that another has not.
            questions = [question.about(name) for name in question.apart if question.parts(name)]
            if not questions or (questions[0].parted == "next" and self._is_of_next(question, after)):
                break
            solved = next(filter(None, map(self._explain, questions)), [])
            if not solved and (self.failures or not (solved := _solve_two(questions[0], self.solved))):
                self._add_unexplained(questions[0])
                break
            self.pending = None
            for one in solved:
                self._add(layer.index, one, questions[0].cell)
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
        return any(not question.parts("next", Following([one], after.arrays).difference(x)) for one in changed)

    def _explain(self, question: LayerQuestion) -> list[Solved]:
        """Return a cause that was found before, or a new one; empty without one that explains the difference."""
        for cause in self.solved:
            if question.agrees(cause.proposal.apply(question.layer.index, question.steps)):
                return [cause]
        has_rounded = self.reference.weight_bits != self.other.weight_bits
        orders = [OF_WEIGHTS] * has_rounded + [CANDIDATES] if self.failures < _MOST_FAILURES else []
        return next(filter(None, (_solve(question, order) for order in orders)), [])

    def _add_unexplained(self, question: LayerQuestion) -> None:
        self.failures += 1
        parting = Parting(STAGE_OF[question.parted], [question.layer.index], question.cell)
        first = {name[0]: name for name in reversed(question.apart) if name[0] in "qkv"}  # array of each projection
        parts = sorted(part for part, name in first.items() if question.parts(name))
        others = (name for part, name in first.items() if part not in parts)
        agree = all(question.apart[name].max() <= _NEAR * question.floors.roundings[name] for name in others)
        if agree and 0 < len(parts) < len(first) and not {"q", "k"} <= {*parts} and question.parted in first.values():
            parting.stage = "projections"  # a rotation changes both of q and k
            of_norm = " or norm" if question.steps.norm_heads is not None and parts != ["v"] else ""
            parting.cause = Cause(f"projection{of_norm} weights of {' and '.join(parts)}", "differ", "", None)
        if question.parted == "next" and question.following is not None:
            self.pending = self.pending or parting
        elif self.pending is None:
            self._merge(parting)

    def _add(self, index: int, solved: Solved, cell: Cell) -> None:
        (name, stage, _), proposal, undone = solved
        values = (proposal.ours, proposal.theirs) if self.is_swapped else (proposal.theirs, proposal.ours)
        bits = {self.reference.weight_bits, self.other.weight_bits}
        is_small = len(bits) > 1 and cell.difference <= _OF_BITS * 2.0 ** -min(bits)
        cause = Cause(f"{name} {proposal.of}".rstrip(), *values, undone)
        self.solved += [solved] * (solved not in self.solved)
        self._merge(Parting(stage, [index], cell, cause, is_small and proposal.theirs == "differ"))

    def _merge(self, parting: Parting) -> None:
        before = self.partings.setdefault((parting.stage, parting.cause and parting.cause[:3]), parting)
        before.layers += [index for index in parting.layers if index not in before.layers]


def _solve(question: LayerQuestion, candidates: Sequence[Candidate] = CANDIDATES) -> list[Solved]:
    """Return the candidate with which most arrays agree, and of these the one that leaves least; empty without one."""
    best: tuple[tuple[int, float], list[Solved]] = ((0, 0.0), [])
    for candidate in candidates:
        more = _MORE
        for proposal in candidate.solve(question):
            count, undone = question.agreeing(proposal.apply(question.layer.index, question.steps))
            left = undone / question.floors.roundings[question.parted]
            if count > 0 and (rank := (count, -max(left, _NEAR))) > best[0]:
                best = rank, [Solved(candidate, proposal, undone)]
            more -= count > 0 or more < _MORE
            if best[0] == (len(question.apart), -_NEAR):
                return best[1]
            if not more:
                break
    return best[1]


def _solve_two(question: LayerQuestion, before: list[Solved]) -> list[Solved]:
    """Return two candidates that explain a difference together, the earlier stage first; empty without."""
    index, rotations, nearest = question.layer.index, list[Solved](), list[tuple[float, int, Solved]]()
    for candidate in CANDIDATES:
        proposals = [Solved(candidate, proposal, 0.0) for proposal in candidate.solve(question)]
        distances = [question.distance(one.proposal.apply(index, question.steps)) for one in proposals]
        nearest += sorted(zip(distances, map(id, proposals), proposals, strict=True))[:2]
        rotations += proposals[:1] if candidate.stage == "rotation" else []
    for first in (*before, *rotations, *(one for *_, one in sorted(nearest)[:_PAIRS])):
        if solved := _solve(replace(question, steps=first.proposal.apply(index, question.steps))):
            both = [first if first in before else first._replace(undone=solved[0].undone), *solved]
            return sorted(both, key=lambda one: STAGES.index(one.candidate.stage))
    return []
