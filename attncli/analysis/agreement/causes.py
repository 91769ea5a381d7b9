"""Candidates for the cause of a difference: each solves for its value, and is proved by giving it to the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from attncli.analysis.agreement.question import LayerQuestion
from attncli.analysis.steps import Array, LayerSteps, alibi, difference, is_alibi
from attncli.engines.numpy.families import scaling_of, usual_scalings
from attncli.engines.numpy.ops import Rope, base_of, frequencies_of
from attncli.masks.nearby import mask_name, masks_near
from attncli.text import join_ranges, short_number

Apply = Callable[[int, LayerSteps], LayerSteps]
_BASES = (1e4, 1e6, 5e5, 1e5, 1e7, 5e6, 2.5e4, 5e4, 1.5e5, 2e5, 1e3, 5e2, 1e2)
_IGNORED = -1e3  # a sink that takes no weight
_FEW_HEADS = 4  # whose orders are all tried, where no array shows heads
_STEPS, _ROUNDS, _FEW_ROUNDS = 25, 36, 10  # of a search: on the grid, around its best, and before it is given up
_FALLEN = 0.3  # share of the distance beside the best of the grid that few rounds leave at most


class Proposal(NamedTuple):
    """A value that may be the cause."""

    theirs: str  # of the other run
    ours: str  # of the reference
    apply: Apply  # index and steps of a layer → the steps with it
    of: str = ""  # the part of the layer that it is of


class Candidate(NamedTuple):
    """A kind of cause."""

    name: str
    stage: str
    solve: Callable[[LayerQuestion], Iterator[Proposal]]


def search(distance: Callable[[float], float], low: float, high: float) -> float | None:
    """Return the number from `low` to `high` of no distance: on a logarithmic grid, then by golden section.

    None where the distance stays: around a number of none it falls with the width of the section.
    """
    grid = np.linspace(math.log(low), math.log(high), _STEPS)
    distances = [distance(math.exp(value)) for value in grid]
    best = int(np.argmin(distances))
    around = [max(best - 1, 0), min(best + 1, _STEPS - 1)]
    (a, b), share = grid[around], (math.sqrt(5) - 1) / 2
    c, d = b - share * (b - a), a + share * (b - a)
    of_c, of_d = distance(math.exp(c)), distance(math.exp(d))
    for count in range(_ROUNDS):
        if count == _FEW_ROUNDS and min(of_c, of_d) > _FALLEN * max(distances[one] for one in around):
            return None
        if of_c < of_d:
            b, c, d, of_d = d, d - share * (d - a), c, of_c
            of_c = distance(math.exp(c))
        else:
            a, c, d, of_c = c, d, c + share * (b - c), of_d
            of_d = distance(math.exp(d))
    return math.exp((a + b) / 2)


def _values(question: LayerQuestion, apply: Callable[[float], Apply], low: float, high: float) -> Iterator[float]:
    """Yield the number with which an array differs least, the roundest first."""
    solved = search(lambda value: question.distance(apply(value)(question.layer.index, question.steps)), low, high)
    if solved is not None:
        yield from dict.fromkeys(float(f"{solved:.{digits}g}") for digits in (1, 2, 3, 4, 6))


def _digits(value: float | None) -> str:
    """Return a solved number with all of its digits."""
    return short_number(value) if value is None or float(short_number(value)) == value else f"{value:.6g}"


def _replacing(**fields: Any) -> Apply:
    return lambda _, steps: replace(steps, **fields)


def _with_rope(**fields: Any) -> Apply:
    return lambda _, steps: replace(steps, rope=steps.rope and steps.rope._replace(**fields))


# --- positions and rotation --------------------------------------------------------------------------------


def _positions(question: LayerQuestion) -> Iterator[Proposal]:
    """Propose positions: those that are stated, or at which each key is nearest to the rotated one, or others."""
    steps, keys, embed = question.steps, question.layer.arrays.get("k"), question.reference.embed
    ours, rope, stated = steps.positions, steps.rope, question.layer.stated.get("positions", steps.positions)
    solved: list[Array] = [stated] if len(stated) == len(ours) else []
    if rope is not None and keys is not None and question.parted in ("q", "k"):
        before = question.layer.arrays.get("k_normed", question.made["k_normed"])
        tried = (rope.rotate(before, np.full(len(ours), position)) for position in range(len(ours) + 64))
        solved.append(np.argmin([difference(one, keys) for one in tried], axis=0))
    elif rope is not None and question.is_after("scores"):  # begun anew, as of texts that are packed
        solved.append(np.r_[: question.rows[0], : len(ours) - question.rows[0]])
    elif question.layer.index == 0 and embed is not None:
        solved += [ours + shift for shift in (1, 2, -1, 3, 4, 5, 6, 7, 8)]
    for theirs in solved:
        if not np.array_equal(theirs, ours) and (theirs.any() or rope is None):  # all at 0 are not rotated
            first = None if embed is None or question.layer.index else embed(theirs)

            def apply(index: int, steps: LayerSteps, theirs: Any = theirs, first: Any = first) -> LayerSteps:
                return replace(steps, positions=theirs, x=steps.x if index or first is None else first)

            yield Proposal(join_ranges(theirs.tolist()), join_ranges(ours.tolist()), apply)


def _pairs(question: LayerQuestion) -> Iterator[Proposal]:
    if rope := question.steps.rope:
        names = ("half-split", "interleaved")[:: -1 if rope.is_interleaved else 1]
        yield Proposal(names[1], names[0], _with_rope(is_interleaved=not rope.is_interleaved))


def _width(question: LayerQuestion) -> Iterator[Proposal]:
    if rope := question.steps.rope:
        ours, base, whole = 2 * len(rope.frequencies), base_of(rope.frequencies), question.made["k"].shape[-1]
        yield Proposal("0", str(ours), _replacing(rope=None))
        for width in dict.fromkeys(2 * (n // 2) for n in (whole, whole // 2, whole // 4, *range(2, whole, 2))):
            if width not in (0, ours):
                yield Proposal(str(width), str(ours), _with_rope(frequencies=frequencies_of(base, width // 2)))


def _base(question: LayerQuestion) -> Iterator[Proposal]:
    if (rope := question.steps.rope) is None or len(rope.frequencies) < 2:
        return
    base, count, stated = base_of(rope.frequencies), len(rope.frequencies), question.layer.stated.get("rope")
    stretched = rope.frequencies / frequencies_of(base, count)

    def with_base(value: float) -> Apply:
        return _with_rope(frequencies=(frequencies_of(value, count) * stretched).astype(np.float32))

    for values in ([base_of(stated.frequencies)] if stated else [], _BASES, _values(question, with_base, 10.0, 1e9)):
        yield from (Proposal(_digits(one), _digits(base), with_base(one)) for one in values if one != base)


def _scaling(question: LayerQuestion) -> Iterator[Proposal]:
    if (rope := question.steps.rope) is None or len(rope.frequencies) < 2:
        return
    base, count = base_of(rope.frequencies), len(rope.frequencies)
    whole, ours = frequencies_of(base, count), scaling_of(rope.frequencies)
    if ours != "none":
        yield Proposal("none", ours, _with_rope(frequencies=whole, magnitude=1.0))

    def linear(factor: float) -> Apply:
        return _with_rope(frequencies=(whole / np.float32(factor)).astype(np.float32))

    for name, frequencies, magnitude in usual_scalings(base, count) if question.most == math.inf else ():
        yield Proposal(name, ours, _with_rope(frequencies=frequencies, magnitude=magnitude))
    for factor in _values(question, linear, 1 / 64, 64.0):
        yield Proposal(f"linear {_digits(factor)}", ours, linear(factor))
    theirs = question.layer.stated.get("rope") or _solved_rope(question)
    if theirs is not None and (scaling_of(theirs.frequencies)[:2] == "by" or base_of(theirs.frequencies) == base):
        ratio = whole / theirs.frequencies
        name = f"by {ratio.min():.3g} to {ratio.max():.3g}" + f", times {theirs.magnitude:.4g}" * (
            theirs.magnitude != 1
        )
        yield Proposal(name, ours, _with_rope(frequencies=theirs.frequencies, magnitude=theirs.magnitude))


def _solved_rope(question: LayerQuestion) -> Rope | None:
    """Return the rotation whose angles lead from the keys before it to those behind it, where both are shown."""
    keys, rope, positions = question.layer.arrays.get("k"), question.steps.rope, question.steps.positions
    if rope is None or keys is None or question.parted not in ("q", "k") or len(positions) < 2:
        return None
    count = len(rope.frequencies)
    before, after = (
        array[..., :count] + 1j * array[..., count : 2 * count].astype(np.complex128)
        for array in (question.layer.arrays.get("k_normed", question.made["k_normed"]), keys)
    )
    turns = (after * before.conj()).sum(axis=0)  # of each token and pair
    steps = np.angle((turns[1:] * turns[:-1].conj()).sum(axis=0))  # from each token to the next
    places = (positions - positions[0])[:, None]
    angles = places * steps + np.angle(turns * turns[0].conj() * np.exp(-1j * places * steps))
    magnitude = float(np.sqrt(np.square(np.abs(after)).sum() / np.square(np.abs(before)).sum()))
    frequencies = ((places * angles).sum(axis=0) / np.square(places).sum()).astype(np.float32)
    return Rope(frequencies, magnitude=magnitude) if (frequencies > 0).all() else None


# --- projections and norms ---------------------------------------------------------------------------------


def _named(parts: Iterable[int]) -> str:
    *names, last = ("qkv"[part] for part in parts)
    return f"of {', '.join(names)} and {last}" if names else f"of {last}"


def _projecting(parts: Collection[int], change: Callable[[LayerSteps, int, Array, Array], Array]) -> Apply:
    """Return the change of some of the projections, from the steps, their index, the input and what they give."""

    def apply(_: int, steps: LayerSteps) -> LayerSteps:
        def project(x: Array) -> Any:
            made = enumerate(steps.project(x) if steps.project else ())
            return tuple(change(steps, part, x, array) if part in parts else array for part, array in made)

        return replace(steps, project=steps.project and project)

    return apply


def _biases(question: LayerQuestion) -> Iterator[Proposal]:
    def without(steps: LayerSteps, part: int, _: Array, made: Array) -> Array:
        return made - steps.biases()[part] if steps.biases else made

    biases = question.steps.biases() if question.steps.biases else ()
    for parts in ((0, 1, 2), (0,), (1,), (2,), (0, 1)):
        if biases and all(biases[part].any() for part in parts):
            yield Proposal("left out", "added", _projecting(parts, without), _named(parts))


def _norms(question: LayerQuestion) -> Iterator[Proposal]:
    ours, theirs = question.steps.norm_heads, question.layer.stated.get("norm_heads")
    if ours is not None and theirs is not None:
        yield Proposal(
            "differ", "", _replacing(norm_heads=lambda q, k: (theirs(q, k)[0], ours(q, k)[1])), "weights of q"
        )
        yield Proposal(
            "differ", "", _replacing(norm_heads=lambda q, k: (ours(q, k)[0], theirs(q, k)[1])), "weights of k"
        )
        yield Proposal("differ", "", _replacing(norm_heads=theirs), "weights of q and k")
    elif ours is not None:
        yield Proposal("missing", "applied", _replacing(norm_heads=lambda q, k: (q, ours(q, k)[1])), "of q")
        yield Proposal("missing", "applied", _replacing(norm_heads=lambda q, k: (ours(q, k)[0], k)), "of k")
        yield Proposal("missing", "applied", _replacing(norm_heads=None), "of q and k")
    elif theirs is not None:
        yield Proposal("applied", "missing", _replacing(norm_heads=theirs), "of q and k")


def _orders(question: LayerQuestion) -> Iterator[Proposal]:
    """Propose other orders of the heads, matched head by head where arrays show them."""
    if question.steps.project is None:
        return
    made, written, heads = question.made, question.layer.arrays, len(question.steps.key_heads)
    shown = [next((n for n in (f"{part}_projected", f"{part}_normed", part) if n in written), "") for part in "qkv"]
    tried: list[list[Array | None]] = [[_order_of(made[name], written[name]) if name else None for name in shown]]
    if not any(shown) and heads <= _FEW_HEADS:
        orders = [np.array(order) for order in permutations(range(heads))][1:]
        tried = [[order, *[order if heads == len(made["v"]) else None] * 2] for order in orders]
        tried += [[order, None, None] for order in orders]
    if not any(shown) and (heads := len(made["v"])) <= _FEW_HEADS:
        tried += [[None, np.array(order), np.array(order)] for order in permutations(range(heads))][1:]
    for picked in tried:
        if moved := {part: order for part, order in enumerate(picked) if order is not None}:
            change = _projecting(moved, lambda _, part, x, array, moved=moved: array[moved[part]])  # type: ignore[misc]
            order = next(iter(moved.values())).tolist()
            yield Proposal(",".join(map(str, order)), ",".join(map(str, sorted(order))), change, _named(moved))


def _order_of(made: Array, written: Array) -> Array | None:
    """Return the order in which the heads of one array are those of another; None if it is the same, or no order is."""
    if made.shape != written.shape:
        return None
    order = np.square(made[:, None].astype(np.float64) - written[None]).sum(axis=(2, 3)).argmin(axis=0)
    return order if len({*order.tolist()}) == len(order) and (np.diff(order) != 1).any() else None


def _rows(question: LayerQuestion) -> Iterator[Proposal]:
    """Propose rows of q and k in the order of the other kind of rotary pairs, as a conversion may leave them."""
    if question.steps.project and (rope := question.steps.rope) and not rope.is_interleaved:
        pairs = np.arange(2 * len(rope.frequencies)).reshape(2, -1).T.ravel()  # 0, R, 1, R + 1, …
        for theirs, ours, order in (("interleaved", "half-split", pairs), ("permuted twice", "once", pairs.argsort())):

            def change(_: LayerSteps, part: int, x: Array, made: Array, order: Array = order) -> Array:
                return np.concatenate([made[..., order], made[..., len(order) :]], axis=-1)

            yield Proposal(theirs, ours, _projecting((0, 1), change), "of q and k")


def _exchanged(question: LayerQuestion) -> Iterator[Proposal]:
    """Propose two projections in exchange."""
    for first, second in ((1, 2), (0, 1), (0, 2)) if question.steps.project else ():
        if len({len(question.made[f"{'qkv'[part]}_projected" if part < 2 else "v"]) for part in (first, second)}) > 1:
            continue

        def change(steps: LayerSteps, part: int, x: Array, made: Array, both: int = first + second) -> Array:
            return steps.project(x)[both - part] if steps.project else made

        yield Proposal("exchanged", "", _projecting((first, second), change), _named((first, second)))


def _layers(question: LayerQuestion) -> Iterator[Proposal]:
    """Propose the weights of each other layer, in exchange."""
    here = question.layer.index
    for there in set(question.reference.indices) - {here} if question.steps.project else ():

        def apply(index: int, steps: LayerSteps, there: int = there) -> LayerSteps:
            other = question.reference.steps({here: there, there: here}.get(index, index), steps.x)
            fields = ("enter", "project", "norm_heads", "project_output", "finish", "biases")
            return replace(steps, **{name: getattr(other, name) for name in fields if index in (here, there)})

        yield Proposal(str(there), str(here), apply)


def _weights(question: LayerQuestion) -> Iterator[Proposal]:
    """Propose the other run's weights of a projection, where it is a checkpoint."""
    theirs: Any = question.layer.stated.get("project")
    for parts in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)) if theirs and question.steps.project else ():
        yield Proposal("differ", "", _projecting(parts, lambda _, part, x, made: theirs(x)[part]), _named(parts))


def _enter(question: LayerQuestion) -> Iterator[Proposal]:
    if question.parted == "entered":
        yield Proposal("differs", "", _replacing(enter=question.layer.stated["enter"]))


def _embedding(question: LayerQuestion) -> Iterator[Proposal]:
    if question.parted == "input" and (x := question.layer.stated.get("x")) is not None:
        yield Proposal("differ", "", lambda index, steps: steps if index else replace(steps, x=x))


def _outputs(question: LayerQuestion) -> Iterator[Proposal]:
    """Propose the output projection without its bias, and the other run's weights of it and behind the attention."""
    if (ours := question.steps.project_output) is None or question.parted not in ("attention", "next"):
        return

    def without(_: int, steps: LayerSteps) -> LayerSteps:
        output = steps.project_output or ours
        return replace(steps, project_output=lambda heads: output(heads) - output(np.zeros_like(heads[:, :1])))

    yield Proposal("left out", "added", without, "projection's bias")
    for name, of in (("project_output", "projection's weights"), ("finish", "of the feed-forward network or its norm")):
        if (theirs := question.layer.stated.get(name)) is not None:
            yield Proposal("differ" if of.endswith("weights") else "differs", "", _replacing(**{name: theirs}), of)


# --- scores, mask and weights ------------------------------------------------------------------------------


def _number_of(name: str, question: LayerQuestion) -> Iterator[Proposal]:
    """Propose a scale or a softcap: that of the other run where it is stated, else common ones and the solved one."""
    ours, stated = getattr(question.steps, name), question.layer.stated
    if not question.is_after("scores") or (ours is None and name == "scale"):
        return
    common: tuple[Any, ...] = (None, 20.0, 30.0, 50.0)
    if name == "scale":
        common = 1.0, ours**2, ours**0.5, ours * 2**0.5, ours / 2**0.5
    low, high = (ours / 64, ours * 64) if name == "scale" else (0.5, 500.0)
    solved = _values(question, lambda value: _replacing(**{name: value}), low, high)
    for values in [[stated[name]]] if name in stated else [common, solved]:
        for value in values:
            if short_number(value) != short_number(ours):
                theirs = (short_number if name in stated else _digits)(value)
                yield Proposal(theirs, short_number(ours), _replacing(**{name: value}))


def _bias(question: LayerQuestion) -> Iterator[Proposal]:
    steps, mask, stated = question.steps, question.steps.mask, question.layer.stated
    if mask is None or not question.is_after("scores"):
        return
    of_alibi = alibi(len(steps.key_heads), *mask.shape[1:])
    names = [
        "none" if bias is None or not bias.any() else "ALiBi" if is_alibi(bias, mask) else "relative"
        for bias in (steps.bias, stated.get("bias"), of_alibi)
    ]
    for theirs, name in [(stated["bias"], names[1])] if "bias" in stated else [(None, "none"), (of_alibi, names[2])]:
        if (theirs is None) != (steps.bias is None) or (theirs is not None and (theirs != steps.bias).any()):
            differ = ("differs", "") if name == names[0] else (name, names[0])
            yield Proposal(*differ, _replacing(bias=theirs), f"({name})" * (name == names[0]))


def _key_heads(question: LayerQuestion) -> Iterator[Proposal]:
    groups, count = question.steps.key_heads, int(question.steps.key_heads.max()) + 1
    if 1 < count < len(groups) and question.is_after("scores"):
        yield Proposal("tiled", "in groups", _replacing(key_heads=np.arange(len(groups)) % count))


def _masks(question: LayerQuestion) -> Iterator[Proposal]:
    if (ours := question.steps.mask) is None or not question.is_after("mask"):
        return

    def with_mask(theirs: Array) -> Apply:  # in layers of the same kind
        def apply(_: int, steps: LayerSteps) -> LayerSteps:
            return replace(steps, mask=theirs) if steps.mask is not None and np.array_equal(steps.mask, ours) else steps

        return apply

    def differing(theirs: Array) -> Array:
        return replace(question, steps=replace(question.steps, mask=theirs)).rows

    stated = question.layer.stated.get("mask")
    for name, near in masks_near(ours, question.rows, differing) if stated is None else [(mask_name(stated), stated)]:
        if not np.array_equal(near, ours):
            is_window = name == "causal" and mask_name(ours).startswith("window(")
            is_short = 2 * ours[0, -1].sum() > ours.shape[-1]  # a window may be wider than the text
            name += " or a wider window" if is_window and is_short else ""
            yield Proposal(name, mask_name(ours), with_mask(near))


def _sinks(question: LayerQuestion) -> Iterator[Proposal]:
    ours, theirs = question.steps.sinks, question.layer.stated.get("sinks")
    if (ours is not None or theirs is not None) and question.is_after("sinks"):
        there, here = ("ignored" if sinks is None or sinks.max() < _IGNORED else "used" for sinks in (theirs, ours))
        yield Proposal(*(("differ", "") if there == here else (there, here)), _replacing(sinks=theirs))


CANDIDATES = (  # as they are tried: the stages in the order of computation, in each the likeliest first
    Candidate("positions", "positions", _positions),
    Candidate("projection biases", "projections", _biases),
    Candidate("norm of the input", "input", _enter),
    Candidate("norm", "norm", _norms),
    Candidate("order of heads", "projections", _orders),
    Candidate("weights of layer", "projections", _layers),
    Candidate("rotary pairs", "rotation", _pairs),
    Candidate("rows", "projections", _rows),
    Candidate("projections", "projections", _exchanged),
    Candidate("rotated width", "rotation", _width),
    Candidate("rotary base", "rotation", _base),
    Candidate("rotary scaling", "rotation", _scaling),
    Candidate("mask", "mask", _masks),
    Candidate("key heads", "scores", _key_heads),
    Candidate("sinks", "sinks", _sinks),
    Candidate("score bias", "scores", _bias),
    Candidate("scale", "scores", partial(_number_of, "scale")),
    Candidate("softcap", "scores", partial(_number_of, "softcap")),
    Candidate("embedding weights", "input", _embedding),
    Candidate("projection weights", "projections", _weights),
    Candidate("output", "output", _outputs),
)
OF_PROJECTIONS, OF_WEIGHTS = (_biases, _layers), CANDIDATES[-3:]  # of q, k and v alike; those that both runs have
BESIDE = tuple(one for one in CANDIDATES if one.solve is not _layers)  # another cause
