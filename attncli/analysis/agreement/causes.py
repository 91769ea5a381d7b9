"""Candidates for the cause of a difference: each solves for its value, and is proved by giving it to the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from attncli.analysis.agreement.question import LayerQuestion
from attncli.analysis.steps import Array, LayerSteps, alibi, bias_name, difference, mixed
from attncli.engines.numpy.families import rotation_parts, usual_scalings
from attncli.engines.numpy.ops import Rope, base_of, frequencies_of
from attncli.masks.nearby import mask_name, masks_near
from attncli.text import join_ranges, short_number

Apply = Callable[[int, LayerSteps], LayerSteps]
_BASES = (1e4, 1e6, 5e5, 1e5, 1e7, 5e6, 2.5e4, 5e4, 1.5e5, 2e5, 1e3, 5e2, 1e2)
_IGNORED = -1e3  # a sink that takes no weight
_STEPS, _ROUNDS = 25, 36  # of a search: on the grid, and around its best


class Proposal(NamedTuple):
    """A value that may be the cause."""

    theirs: str  # of the other run
    ours: str  # of the reference
    apply: Apply  # index and steps of a layer → the steps with it
    name: str = ""  # of the part of the layer, then with that of the candidate
    candidate: Any = None
    undone: float = 0.0  # the difference that it leaves


class Candidate(NamedTuple):
    """A kind of cause: a stage, and either the solver of a value or the field of the steps that is replaced."""

    name: str
    stage: str
    solve: Callable[[LayerQuestion], Iterator[Proposal]] = lambda _: iter(())
    field: str = ""  # of `LayerSteps`: a run that states it is asked for no other value

    def proposals(self, question: LayerQuestion) -> Iterator[Proposal]:
        """Yield values for arrays of its stage and behind; weights of a layer have another norm of the input, too."""
        stated, proposals = question.layer.stated, self.solve(question)
        if self.field in stated:
            proposals = _replacing(question, self.field, stated[self.field])
        if question.is_after(self.stage) or self.stage == "projections":
            yield from (one._replace(candidate=self, name=f"{self.name} {one.name}".rstrip()) for one in proposals)


def _values(question: LayerQuestion, apply: Callable[[float], Apply], low: float, high: float) -> Iterator[float]:
    """Yield the number with which an array differs least, the roundest first: on a grid, then by golden section."""
    if question.most < math.inf:  # the first of two faults has the solved number
        return

    @cache
    def distance(power: float) -> float:
        return question.distance(apply(math.exp(power))(question.layer.index, question.steps))

    grid, share = np.linspace(math.log(low), math.log(high), _STEPS).tolist(), (math.sqrt(5) - 1) / 2
    best = min(range(_STEPS), key=lambda step: distance(grid[step]))
    a, b = grid[max(best - 1, 0)], grid[min(best + 1, _STEPS - 1)]
    for _ in range(_ROUNDS):
        c, d = round(b - share * (b - a), 10), round(a + share * (b - a), 10)  # one of both was asked before
        a, b = (a, d) if distance(c) < distance(d) else (c, b)
    yield from dict.fromkeys(float(f"{math.exp((a + b) / 2):.{digits}g}") for digits in (1, 2, 3, 4, 6))


def _replacing(question: LayerQuestion, name: str, theirs: Any, word: str = "") -> Iterator[Proposal]:
    """Propose another value of one field, in the layers that have the same; of functions each of their arrays."""
    ours = getattr(question.steps, name)
    if np.array_equal(ours, theirs):
        return

    def apply(changed: Any, _: int, steps: LayerSteps) -> LayerSteps:
        return replace(steps, **{name: changed}) if np.array_equal(getattr(steps, name), ours) else steps

    here, there = (_WORDS[name](value, question.steps) if name in _WORDS else "" for value in (ours, theirs))
    words = (word or there, here) if here != there or word else ("changed", "")
    for parts in _PARTS.get(name, ()):
        yield Proposal(*words, partial(apply, mixed(ours, theirs, parts)), _named(parts))
    if name not in _PARTS:
        yield Proposal(*words, partial(apply, theirs))


def _named(parts: Iterable[int]) -> str:
    return "of " + " and ".join("qkv"[part] for part in parts)


_PARTS = {"project": ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)), "norm_heads": ((0,), (1,), (0, 1))}
_WORDS: dict[str, Callable[[Any, LayerSteps], str]] = {  # values that have a name; the others are changed
    "norm_heads": lambda norm, _: "missing" if norm is None else "applied",
    "scale": lambda scale, _: short_number(scale),
    "softcap": lambda cap, _: short_number(cap),
    "key_heads": lambda *_: "in groups",
    "mask": lambda mask, _: mask_name(mask),
    "sinks": lambda sinks, _: "ignored" if sinks is None or sinks.max() < _IGNORED else "used",
    "bias": lambda bias, steps: bias_name(bias, steps.mask),
}


def _with(**fields: Any) -> Apply:
    return lambda _, steps: replace(steps, **fields)


def _with_rope(**fields: Any) -> Apply:
    return lambda _, steps: replace(steps, rope=steps.rope and steps.rope._replace(**fields))


def _positions(question: LayerQuestion) -> Iterator[Proposal]:
    """Propose positions: those that are stated, or at which each key is nearest to the rotated one, or others."""
    steps, keys, embed = question.steps, question.layer.arrays.get("k"), question.reference.embed
    ours, rope, stated = steps.positions, steps.rope, question.layer.stated.get("positions")
    solved: list[Array] = [] if stated is None else [stated]
    if stated is None and rope is not None and keys is not None and question.parted in ("q", "k"):
        before = question.layer.arrays.get("k_normed", question.made["k_normed"])
        tried = (rope.rotate(before, np.full(len(ours), position)) for position in range(len(ours) + 64))
        solved.append(np.argmin([difference(one, keys) for one in tried], axis=0))
    elif stated is None and rope is not None and question.is_after("scores"):  # begun anew, as of texts that are packed
        solved.append(np.r_[: question.rows[0], : len(ours) - question.rows[0]])
    elif question.layer.index == 0 and embed is not None:
        solved += [ours + shift for shift in (1, 2, -1, 3, 4, 5, 6, 7, 8)]

    def apply(theirs: Array, first: Array | None, index: int, steps: LayerSteps) -> LayerSteps:
        return replace(steps, positions=theirs, x=steps.x if index or first is None else first)

    for theirs in solved:
        if len(theirs) == len(ours) and (theirs != ours).any() and (theirs.any() or rope is None):  # 0 is not rotated
            first = embed(theirs) if embed is not None and question.layer.index == 0 else None
            yield Proposal(join_ranges(theirs.tolist()), join_ranges(ours.tolist()), partial(apply, theirs, first))


def _rotations(question: LayerQuestion) -> Iterator[Proposal]:
    """Propose the rotation that a run states, or other pairs, another width, base or scaling."""
    if "rope" in question.layer.stated:
        yield from _stated_rotation(question.steps.rope, question.layer.stated["rope"])
    elif rope := question.steps.rope:
        ours, base, count = rope.frequencies, base_of(rope.frequencies), len(rope.frequencies)
        width, whole, here = question.made["k"].shape[-1], frequencies_of(base, count), rotation_parts(rope, base)
        pairs = "half-split" if rope.is_interleaved else "interleaved"
        yield Proposal(pairs, here["pairs"], _with_rope(is_interleaved=not rope.is_interleaved), "pairs")
        yield Proposal("0", here["width"], _with(rope=None), "width")
        for part in dict.fromkeys(n // 2 for n in (width, width // 2, width // 4, *range(2, width, 2))):
            if part not in (0, count):
                yield Proposal(
                    str(2 * part), here["width"], _with_rope(frequencies=frequencies_of(base, part)), "width"
                )

        def with_base(value: float) -> Apply:
            return _with_rope(frequencies=(frequencies_of(value, count) * (ours / whole)).astype(np.float32))

        for value in chain(_BASES, _values(question, with_base, 10.0, 1e9)):
            if value != base:
                yield Proposal(f"{value:.12g}", here["base"], with_base(value), "base")
        if here["scaling"] != "none":
            yield Proposal("none", here["scaling"], _with_rope(frequencies=whole, magnitude=1.0), "scaling")
        for name, frequencies, magnitude in usual_scalings(base, count):
            if question.most == math.inf or name.startswith("linear"):
                scaled = _with_rope(frequencies=frequencies, magnitude=magnitude)
                yield Proposal(name, here["scaling"], scaled, "scaling")


def _stated_rotation(ours: Rope | None, theirs: Rope | None) -> Iterator[Proposal]:
    base = 0.0 if ours is None else base_of(ours.frequencies)
    here, there = rotation_parts(ours, base), rotation_parts(theirs, base)
    if apart := [name for name in there if here.get(name) != there[name]]:
        named = [", ".join(f"{name} {side.get(name, 'none')}" for name in apart) for side in (there, here)]
        values = named if len(apart) > 1 else [side.get(apart[0], "none") for side in (there, here)]
        yield Proposal(values[0], values[1], _with(rope=theirs), apart[0] if len(apart) == 1 else "")


def _projecting(parts: Collection[int], change: Callable[[Any, Sequence[Array]], Sequence[Array]]) -> Apply:
    """Return the change of some of the projections, from the steps and what they give."""

    def apply(_: int, steps: LayerSteps) -> LayerSteps:
        project: Any = steps.project
        return replace(steps, project=project and mixed(project, lambda x: change(steps, project(x)), parts))

    return apply


def _biases(question: LayerQuestion) -> Iterator[Proposal]:
    biases = question.steps.biases() if question.steps.biases else ()
    change = lambda steps, made: [array - bias for array, bias in zip(made, steps.biases(), strict=True)]  # noqa: E731
    for parts in ((0, 1, 2), (0,), (1,), (2,), (0, 1)):
        if biases and all(biases[part].any() for part in parts):
            yield Proposal("left out", "added", _projecting(parts, change), _named(parts))


def _orders(question: LayerQuestion) -> Iterator[Proposal]:
    """Propose another order of the heads, matched head by head in arrays that show them."""
    made, written = question.made, question.layer.arrays
    orders: dict[int, Array] = {}
    for part, letter in enumerate("qkv") if question.steps.project else ():
        name = next((one for one in (f"{letter}_projected", f"{letter}_normed", letter) if one in written), "")
        if name and made[name].shape == written[name].shape:
            apart = np.square(made[name][:, None].astype(np.float64) - written[name][None]).sum(axis=(2, 3))
            order = apart.argmin(axis=0)
            if len({*order.tolist()}) == len(order) and (np.diff(order) != 1).any():
                orders[part] = order
    if orders:
        change = lambda _, made: [one[orders.get(part, slice(None))] for part, one in enumerate(made)]  # noqa: E731
        first = next(iter(orders.values())).tolist()
        theirs, ours = (",".join(map(str, order)) for order in (first, sorted(first)))
        yield Proposal(theirs, ours, _projecting(orders, change), _named(orders))


def _rows(question: LayerQuestion) -> Iterator[Proposal]:
    """Propose rows of q and k in the order of the other kind of rotary pairs, as a conversion may leave them."""
    if (rope := question.steps.rope) and not rope.is_interleaved:
        pairs = np.arange(2 * len(rope.frequencies)).reshape(2, -1).T.ravel()  # 0, R, 1, R + 1, …
        change = lambda _, made: [np.concatenate([a[..., pairs], a[..., len(pairs) :]], axis=-1) for a in made]  # noqa: E731
        yield Proposal("interleaved", "half-split", _projecting((0, 1), change), "of q and k")


def _layers(question: LayerQuestion) -> Iterator[Proposal]:
    """Propose the weights of each other layer, in exchange."""
    here = question.layer.index
    for there in {*question.reference.indices} - {here} if question.steps.project and question.most == math.inf else ():

        def apply(index: int, steps: LayerSteps, there: int = there) -> LayerSteps:
            other = question.reference.steps({here: there, there: here}.get(index, index), steps.x)
            fields = ("enter", "project", "norm_heads", "project_output", "finish", "biases")
            return replace(steps, **{name: getattr(other, name) for name in fields if index in (here, there)})

        yield Proposal(str(there), str(here), apply)


def _late(question: LayerQuestion) -> Iterator[Proposal]:
    """Propose that the other run wrote the hidden states behind each layer: a layer starts from those of the next."""
    if question.layer.index == 0 and question.parted == "input":
        first = question.steps.run({}).get("next")

        def apply(index: int, steps: LayerSteps) -> LayerSteps:
            return question.reference.steps(index + 1, steps.x if index else first) or steps

        yield Proposal("behind each layer", "before it", apply)


def _number_of(name: str, question: LayerQuestion) -> Iterator[Proposal]:
    """Propose to leave a scale or a softcap out, and the solved one."""
    ours: float | None = getattr(question.steps, name)
    nothing, low, high = (1.0, ours / 64, ours * 64) if name == "scale" and ours else (None, 0.5, 500.0)
    if name == "softcap" or ours is not None:
        for value in chain([nothing], _values(question, lambda value: _with(**{name: value}), low, high)):
            if short_number(value) != short_number(ours):
                yield from _replacing(question, name, value, "none" if value is None else f"{value:.6g}")


def _biases_of_scores(question: LayerQuestion) -> Iterator[Proposal]:
    if (mask := question.steps.mask) is not None:
        yield from _replacing(question, "bias", None)
        yield from _replacing(question, "bias", alibi(len(question.steps.key_heads), *mask.shape[1:]))


def _key_heads(question: LayerQuestion) -> Iterator[Proposal]:
    groups, count = question.steps.key_heads, int(question.steps.key_heads.max()) + 1
    if 1 < count < len(groups):
        yield from _replacing(question, "key_heads", np.arange(len(groups)) % count, "tiled")


def _masks(question: LayerQuestion) -> Iterator[Proposal]:
    if (ours := question.steps.mask) is not None:
        rows = lambda near: replace(question, steps=replace(question.steps, mask=near)).rows  # noqa: E731
        for name, near in masks_near(ours, question.rows, rows):
            yield from _replacing(question, "mask", near, name if " or " in name else "")


CANDIDATES = (  # as they are tried: the stages in the order of computation, in each the likeliest first
    Candidate("positions", "positions", _positions),
    Candidate("projection biases", "projections", _biases),
    Candidate("hidden states", "input", _late),
    Candidate("norm of the input", "input", field="enter"),
    Candidate("norm", "norm", partial(_replacing, name="norm_heads", theirs=None), "norm_heads"),
    Candidate("order of heads", "projections", _orders),
    Candidate("weights of layer", "projections", _layers),
    Candidate("rotary", "rotation", _rotations),
    Candidate("rows", "projections", _rows),
    Candidate("mask", "mask", _masks, "mask"),
    Candidate("key heads", "scores", _key_heads),
    Candidate("sinks", "sinks", partial(_replacing, name="sinks", theirs=None), "sinks"),
    Candidate("score bias", "scores", _biases_of_scores, "bias"),
    Candidate("scale", "scores", partial(_number_of, "scale"), "scale"),
    Candidate("softcap", "scores", partial(_number_of, "softcap"), "softcap"),
    Candidate("embedding or its norm", "input", field="x"),
    Candidate("projection weights", "projections", field="project"),
    Candidate("output projection's weights", "output", field="project_output"),
    Candidate("output of the feed-forward network or its norm", "output", field="finish"),
)
