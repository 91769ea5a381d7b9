"""Comparison of two runs, layer by layer: the first stage at which they part, its cause, and what rounding explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from attncli.analysis.agreement.causes import CANDIDATES, Proposal
from attncli.analysis.agreement.question import LEAST, NEAR, RECORDED, TIMES, Cell, LayerQuestion
from attncli.analysis.runs import Following, RunLayer, Side, check_arrays, group_keys, ids_apart, types_apart, with_next
from attncli.analysis.steps import STAGE_OF, STAGES, Array, LayerSteps, Rounding, difference
from attncli.errors import InputError
from attncli.masks.findings import Finding
from attncli.text import join_ranges, layers_named

_MOST_CAUSES, _MOST_FAILURES = 8, 2  # of a layer; layers that are searched without success
_PAIRS = 10  # proposals that are tried together with others, where none explains a difference alone
_STATED = {"rotary", "mask", "scale", "softcap"}  # candidates whose values a checkpoint states
_EXPERTS = "{} are not compared: rounding may give other experts to the tokens at {}."


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
    kind: str | None = None  # of the layers, where a model has several


@dataclass
class Agreement:
    """Result of a comparison."""

    names: tuple[str, str]  # A and B
    dtype: str  # whose rounding is expected
    rows: dict[int, dict[str, Cell]] = field(default_factory=dict)  # the difference of each array of each layer
    partings: list[Parting] = field(default_factory=list)  # the first one first
    notes: list[str] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)  # layers that one of them lacks
    findings: list[Finding] = field(default_factory=list)  # of other ways to run B
    not_compared: list[str] = field(default_factory=list)  # what else was not compared, a sentence each
    has_output: bool = False  # whether the output of the model was compared

    @property
    def agrees(self) -> bool:
        """Whether rounding explains every difference."""
        return not self.findings and not self.partings


def compare(first: Side, second: Side) -> Agreement:
    """Compare two runs of one sentence; InputError where they have no layer in common, or other sizes.

    A is the reference: the first, or the one that can be computed. A layer of it is computed from B's arrays, so that
    differences are its own, and once more with every array rounded. A cause is proved where A with it agrees.
    """
    first, second = sorted((first, second), key=lambda side: side.embed is None)
    types = {first.dtype, second.dtype, *types_apart(first, second)}
    rounding = max(map(Rounding, sorted(types)), key=lambda rounding: rounding.unit)
    result = Agreement((first.name, second.name), rounding.dtype, notes=[*dict.fromkeys(first.notes + second.notes)])
    last = _Walk(result, first, second, rounding).run()
    result.partings = _grouped(result.partings)
    if result.agrees and last is not None and not result.missing:
        both = [side.logits(last) if side.logits is not None else last for side in (first, second)]
        result.has_output = both[0].shape == both[1].shape  # one may have no head
        if result.has_output and (apart := float(difference(*both).max())) > max(LEAST, TIMES * rounding.unit):
            result.partings.append(Parting("last output", [max(result.rows)], Cell(apart, None, False)))
    return result


def _grouped(partings: Sequence[Parting]) -> list[Parting]:
    """Return one parting for all layers of the same cause, with the largest difference."""
    groups: dict[Any, Parting] = {}
    for parting in partings:
        first = groups.setdefault((parting.stage, parting.cause and parting.cause[:3]), parting)
        first.layers = sorted({*first.layers, *parting.layers})
        first.cell = max(first.cell, parting.cell, key=lambda cell: cell.difference)
    return sorted(groups.values(), key=lambda one: (one.layers[0], STAGES.index(one.stage)))


@dataclass
class _Walk:
    """Walk through the layers in order; the causes that were found are given to the reference in each layer after."""

    result: Agreement
    reference: Side
    other: Side
    rounding: Rounding
    solved: list[Proposal] = field(default_factory=list)
    open: Parting | None = None  # at an output that the next layer's arrays alone show, which may explain it
    failures: int = 0  # differences that no candidate explains
    is_over: bool = False

    def run(self) -> Array | None:
        """Return the hidden states behind the last layer, where both runs have computed them."""
        self._read_tokens()
        if missing := self.reference.layers_apart(self.other):
            self.result.missing += missing
            self.result.notes.append(f"one run alone has {layers_named(missing)}; attn compares the others")
        x = twin = self.reference.embed and self.reference.embed(None)
        reached = 0  # layer after the last one that was compared
        for layer, after in with_next(self.other.layers()):
            is_open = self.open is not None and self.open.layers != [reached - 1]
            if is_open or (self.result.partings and not self.reference.indices):
                self.result.notes.append(f"attn compares no layer after {reached - 1}, as their input differs")
                break
            if self.reference.indices and layer.index > reached and "input" not in layer.arrays:
                lacks = f"{self.other.name} lacks {layers_named(range(reached, layer.index))}"
                raise InputError(f"{lacks}; write q, k and v of all layers, or the input of each")
            steps = self.reference.steps(layer.index, layer.arrays.get("input", x) if layer.index else x)
            if steps is None:
                continue
            reached = layer.index + 1
            group_keys(steps.key_heads, layer, after)
            check_arrays(steps, layer, self.reference, self.other)
            with self.reference.holding():
                x, twin = self._compare_layer(layer, steps, twin if "input" not in layer.arrays else steps.x, after)
            if self.is_over:
                break
        if not self.result.rows and not self.result.partings:
            raise InputError(f"{' and '.join(self.result.names)} hold no array in common; write q, k and v of all")
        return x if self.other.indices and self.reference.indices else None

    def _read_tokens(self) -> None:
        ours, theirs = self.reference.token_ids, self.other.token_ids
        if ours is None or theirs is None or ours == theirs:
            return
        if self.reference.reading is None:
            raise InputError("the two runs have other tokens; give two runs of one sentence")
        self.reference = self.reference.reading(theirs)
        cause = Cause("token ids", *ids_apart(theirs, ours), 0.0)
        self.result.partings.append(Parting("tokens", [0], Cell(1.0, None, False), cause))

    def _compare_layer(
        self, layer: RunLayer, steps: LayerSteps, twin: Array | None, after: RunLayer | None
    ) -> tuple[Array | None, Array | None]:
        """Compare one layer; return its output, and that of the twin."""
        written, rows = layer.arrays, [*self.result.rows.values()][-1:]
        agreeing = (cell.difference for row in rows for name, cell in row.items() if name in RECORDED and cell.agrees)
        before = None if self.reference.indices else max(agreeing, default=0.0)
        twins = replace(steps, x=twin).run(written, rounding=self.rounding)
        question = LayerQuestion(layer, self.reference, steps, self._following(after))
        question = question.rounded(twins, before, 1 + len(self.result.rows))
        row = {name: question.changed(parted=name).cell for name in question.apart}
        if self.other.indices:
            question = self._as_stated(question)
        for _ in range(_MOST_CAUSES):
            # Arrays of one stage are independent: one of them may have a fault that another has not.
            questions = [question.changed(parted=name) for name in question.apart if question.parts(name)]
            if not questions:
                break
            solved, tried = list[Proposal](), list[Proposal]()
            for parted in questions:
                if solved := self._explain(parted, tried):
                    break
            else:
                parted = questions[0]
                if self.failures or not (solved := _solve_two(parted, self.solved, tried)):
                    self._add_unexplained(parted)
                    break
            if self.open is not None:
                self.result.partings.remove(self.open)
                self.open, self.failures = None, self.failures - 1
            self.solved += [one for one in solved if one not in self.solved]
            for one in solved:
                question = self._given(question, one, parted.cell)
            question = replace(question, following=self._following(after))
        if row and not self.is_over:
            self.result.rows[layer.index] = row
        if "next" in written or "next" not in question.made:
            return (written.get("next"),) * 2
        if question.steps is not steps:
            twins = replace(question.steps, x=twin).run(written, rounding=self.rounding)
        return question.made["next"], twins["next"]

    def _given(self, question: LayerQuestion, one: Proposal, cell: Cell) -> LayerQuestion:
        """Add a cause to the result, and return the question with it given to the reference."""
        cause = Cause(one.name, one.theirs, one.ours, one.undone)
        self.result.partings.append(Parting(one.candidate.stage, [question.layer.index], cell, cause))
        return replace(question, steps=one.apply(question.layer.index, question.steps))

    def _as_stated(self, question: LayerQuestion) -> LayerQuestion:
        """Give the reference what another checkpoint states, however little it changes."""
        for candidate in (one for one in CANDIDATES if one.name in _STATED):
            for one in candidate.proposals(question.changed(parted="next")):
                changed = replace(question, steps=one.apply(question.layer.index, question.steps))
                name = next(
                    name for name in question.apart if STAGES.index(STAGE_OF[name]) >= STAGES.index(one.candidate.stage)
                )
                solved = one._replace(undone=float(changed.apart[name].max()))
                question = self._given(question, solved, question.changed(parted=name).cell)
        return question

    def _following(self, after: RunLayer | None) -> Following | None:
        if after is None or (steps := self.reference.steps(after.index, None)) is None or steps.project is None:
            return None
        return Following([steps, *(one.apply(after.index, steps) for one in self.solved)], after.arrays)

    def _explain(self, question: LayerQuestion, tried: list[Proposal]) -> list[Proposal]:
        """Return a cause that was found before, or a new one; empty without one that explains the difference."""
        for cause in self.solved:
            steps = cause.apply(question.layer.index, question.steps)
            if steps is not question.steps and question.agreeing(steps)[0]:
                return [cause]
        return _solve(question, tried) if self.failures < _MOST_FAILURES else []

    def _add_unexplained(self, question: LayerQuestion) -> None:
        is_of_experts = self.reference.has_experts and question.layer.index > 0 and question.parted in RECORDED
        few = len(question.rows) <= max(len(question.apart[question.parted]) / 8, 1)
        if is_of_experts and few and self.rounding.dtype != "float32":
            layers = [index for index in self.reference.held if index >= question.layer.index]
            words = layers_named(layers).capitalize(), join_ranges(question.rows.tolist())
            self.result.not_compared.append(_EXPERTS.format(*words))
            self.result.missing += layers
            self.is_over = True
        elif self.open is None:
            parting = _unexplained(question)
            self.result.partings.append(parting)
            self.open = parting if question.parted == "next" and question.following is not None else None
            self.failures += 1


def _unexplained(question: LayerQuestion) -> Parting:
    """Return where the runs part, with a hint at the weights of a projection where the others agree."""
    parting = Parting(STAGE_OF[question.parted], [question.layer.index], question.cell)
    first = {name[0]: name for name in reversed(question.apart) if name[0] in "qkv"}  # array of each projection
    parts = sorted(part for part, name in first.items() if question.parts(name))
    others = (name for part, name in first.items() if part not in parts)
    agree = all(question.apart[name].max() <= NEAR * question.roundings[name] for name in others)
    if agree and 0 < len(parts) < len(first) and not {"q", "k"} <= {*parts} and question.parted in first.values():
        parting.stage = "projections"  # a rotation changes both of q and k
        of_norm = " or norm" if question.steps.norm_heads is not None and parts != ["v"] else ""
        parting.cause = Cause(f"projection{of_norm} weights of {' and '.join(parts)}", "changed", "", None)
    if question.steps.project is None and parts and len(first) == len(parts) and "scores" not in first:
        parting.stage = "input"  # a run without hidden states does not show it
    return parting


def _solve(question: LayerQuestion, tried: list[Proposal]) -> list[Proposal]:
    """Return the candidate with which most arrays agree, and which leaves least; collect all with what they leave."""
    explaining: list[tuple[tuple[int, float], Proposal]] = []
    for proposal in chain.from_iterable(candidate.proposals(question) for candidate in CANDIDATES):
        count, undone = question.agreeing(proposal.apply(question.layer.index, question.steps))
        tried.append(proposal._replace(undone=undone))
        if count == len(question.apart) and undone <= question.roundings[question.parted]:
            return tried[-1:]
        explaining += [((count, -undone), tried[-1])] * (count > 0)
    return [max(explaining, key=itemgetter(0))[1]] if explaining else []


def _solve_two(question: LayerQuestion, before: list[Proposal], tried: list[Proposal]) -> list[Proposal]:
    """Return two candidates that explain a difference together: one found before or near to it, and a new one."""
    index, most = question.layer.index, float(question.apart[question.parted].max())
    nearest = {one.name: one for one in sorted(tried, key=attrgetter("undone"), reverse=True)}
    for first in (*before, *sorted(nearest.values(), key=attrgetter("undone"))[:_PAIRS]):
        other = replace(question, steps=first.apply(index, question.steps), most=most)
        if solved := _solve(other, []):
            both = [first if first in before else first._replace(undone=solved[0].undone), *solved]
            return sorted(both, key=lambda one: STAGES.index(one.candidate.stage))
    return []
