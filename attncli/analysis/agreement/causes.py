"""Candidates for the cause of a difference: each solves for its value, and is proved by giving it to the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.agreement.question import Question
from attncli.analysis.steps import Array, Steps
from attncli.attention import alibi, difference
from attncli.engines.numpy.families import rope_of
from attncli.engines.numpy.ops import Rope, base_of, frequencies_of, yarn
from attncli.masks.nearby import mask_name, masks_near

if TYPE_CHECKING:
    from jaxtyping import Float, Int

Apply = Callable[[int, Steps], Steps]
_BASES = (1e4, 1e6, 5e5, 1e5, 1e7, 5e6, 2.5e4, 5e4, 1.5e5, 2e5, 1e3, 5e2, 1e2)
_FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0)
_TRAINED = tuple(2**power for power in (13, 12, 11, 15, 14, 17, 16, 10, 9, 8, 7, 6, 5, 4))  # tokens of the training
_FEW_HEADS = 4  # whose orders are all tried, where no array shows heads
_STEPS, _ROUNDS = 25, 36  # of a search: on the grid, and around its best


class Proposal(NamedTuple):
    """A value that may be the cause."""

    theirs: str  # of the other run
    ours: str  # of the reference
    apply: Apply  # index and steps of a layer → the steps with it


class Candidate(NamedTuple):
    """A kind of cause."""

    name: str
    stage: str
    solve: Callable[[Question], Iterator[Proposal]]


def search(distance: Callable[[float], float], low: float, high: float) -> float:
    """Return the number from `low` to `high` of the least distance: on a logarithmic grid, then by golden section."""
    grid = np.geomspace(low, high, _STEPS)
    best = int(np.argmin([distance(value) for value in grid]))
    a, b = math.log(grid[max(best - 1, 0)]), math.log(grid[min(best + 1, _STEPS - 1)])
    share = (math.sqrt(5) - 1) / 2
    for _ in range(_ROUNDS):
        c, d = b - share * (b - a), a + share * (b - a)
        a, b = (a, d) if distance(math.exp(c)) < distance(math.exp(d)) else (c, b)
    return math.exp((a + b) / 2)


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return str(round(value)) if value >= 100 and abs(value - round(value)) < 1e-6 * value else f"{value:.4g}"


def _values(question: Question, apply: Callable[[float], Apply], low: float, high: float) -> Iterator[float]:
    """Yield the number with which an array differs least, the roundest first."""
    index, steps = question.layer.index, question.steps
    solved = search(lambda value: question.distance(apply(value)(index, steps)), low, high)
    yield from dict.fromkeys(float(f"{solved:.{digits}g}") for digits in (1, 2, 3, 4, 6))


def _replacing(**fields: Any) -> Apply:
    return lambda _, steps: replace(steps, **fields)


def _with_rope(**fields: Any) -> Apply:
    return lambda _, steps: replace(steps, rope=steps.rope and steps.rope._replace(**fields))


# --- positions and rotation --------------------------------------------------------------------------------


def _positions(question: Question) -> Iterator[Proposal]:
    """Propose positions: those that are stated, those at which each key is nearest to the rotated one, or shifted."""
    steps, keys, embed = question.steps, question.layer.arrays.get("k"), question.reference.embed
    ours, solved, rope = steps.positions, list[Array](), steps.rope
    if (stated := question.layer.known.get("positions")) is not None and len(stated) == len(ours):
        solved.append(stated)
    if rope is not None and keys is not None and question.parted in ("q", "k"):
        before = question.layer.arrays.get("k_normed", question.made["k_normed"])
        tried = (rope.rotate(before, np.full(len(ours), position)) for position in range(len(ours) + 64))
        solved.append(np.argmin([difference(one, keys) for one in tried], axis=0))
    elif question.layer.index == 0 and embed is not None:
        solved += [ours + shift for shift in (1, 2, -1, 3, 4, 5, 6, 7, 8)]
    for theirs in solved:
        if not np.array_equal(theirs, ours) and (theirs.any() or rope is None):  # all at 0 are not rotated
            first = None if embed is None or question.layer.index else embed(theirs)

            def apply(index: int, steps: Steps, theirs: Any = theirs, first: Any = first) -> Steps:
                return replace(steps, positions=theirs, x=steps.x if index or first is None else first)

            yield Proposal(_listed(theirs), _listed(ours), apply)


def _listed(positions: Int[np.ndarray, " T"]) -> str:
    if (np.diff(positions) == 1).all():
        return f"from {positions[0]}"
    return ",".join(map(str, positions[:8])) + ("…" if len(positions) > 8 else "")


def _pairs(question: Question) -> Iterator[Proposal]:
    if rope := question.steps.rope:
        names = ("half-split", "interleaved")[:: -1 if rope.is_interleaved else 1]
        yield Proposal(names[1], names[0], _with_rope(is_interleaved=not rope.is_interleaved))


def _width(question: Question) -> Iterator[Proposal]:
    if rope := question.steps.rope:
        ours, base, whole = 2 * len(rope.frequencies), base_of(rope.frequencies), question.made["k"].shape[-1]
        yield Proposal("0", str(ours), _replacing(rope=None))
        usual = (whole, whole // 2, whole // 4, *range(2, whole, 2))
        for width in dict.fromkeys(2 * (width // 2) for width in usual):
            if width not in (0, ours):
                yield Proposal(str(width), str(ours), _with_rope(frequencies=frequencies_of(base, width // 2)))


def _base(question: Question) -> Iterator[Proposal]:
    if (rope := question.steps.rope) is None or len(rope.frequencies) < 2:
        return
    base, count, stated = base_of(rope.frequencies), len(rope.frequencies), question.layer.known.get("rope")
    stretched = rope.frequencies / frequencies_of(base, count)

    def with_base(value: float) -> Apply:
        return _with_rope(frequencies=(frequencies_of(value, count) * stretched).astype(np.float32))

    for values in ([base_of(stated.frequencies)] if stated else [], _BASES, _values(question, with_base, 10.0, 1e9)):
        yield from (Proposal(_number(one), _number(base), with_base(one)) for one in values if one != base)


def _scaling(question: Question) -> Iterator[Proposal]:
    if (rope := question.steps.rope) is None or len(rope.frequencies) < 2:
        return
    base, count = base_of(rope.frequencies), len(rope.frequencies)
    whole, ours = frequencies_of(base, count), _scaling_of(rope)
    if ours != "none":
        yield Proposal("none", ours, _with_rope(frequencies=whole, magnitude=1.0))

    def linear(factor: float) -> Apply:
        return _with_rope(frequencies=(whole / np.float32(factor)).astype(np.float32))

    for values in (_FACTORS, _values(question, linear, 1 / 64, 64.0)):
        yield from (Proposal(f"linear {_number(factor)}", ours, linear(factor)) for factor in values)
    for trained, factor in ((trained, factor) for trained in _TRAINED for factor in _FACTORS):
        how = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        llama3 = rope_of(how | {"original_max_position_embeddings": trained}, {"rope_theta": base}, 2 * count, trained)
        yield Proposal(f"llama3 {_number(factor)}", ours, _with_rope(frequencies=llama3))
        for magnitude in (0.1 * math.log(factor) + 1, 1.0):
            fields = _with_rope(frequencies=yarn(base, count, factor, trained), magnitude=magnitude)
            yield Proposal(f"yarn {_number(factor)}", ours, fields)


def _scaling_of(rope: Rope) -> str:
    ratio = frequencies_of(base_of(rope.frequencies), len(rope.frequencies)) / rope.frequencies
    if np.allclose(ratio, ratio[0], rtol=1e-3):
        return "none" if abs(ratio[0] - 1) < 1e-3 else f"linear {_number(float(ratio[0]))}"
    return f"by {_number(float(ratio.max()))}"


# --- projections and norms ---------------------------------------------------------------------------------


def _parts_named(parts: Iterable[int]) -> str:
    *names, last = ("qkv"[part] for part in parts)
    return f"of {', '.join(names)} and {last}" if names else f"of {last}"


def _projecting(parts: Iterable[int], change: Callable[[Steps, int, Array, Array], Array]) -> Apply:
    """Return the change of some of the projections, given the steps, their index, the input and what they give."""

    def apply(_: int, steps: Steps) -> Steps:
        def project(x: Array) -> Any:
            made = enumerate(steps.project(x) if steps.project else ())
            return tuple(change(steps, part, x, array) if part in parts else array for part, array in made)

        return replace(steps, project=steps.project and project)

    return apply


def _biases(question: Question) -> Iterator[Proposal]:
    steps, known = question.steps, question.layer.known
    if steps.biases is None or steps.project_output is None:
        return
    ours, output = steps.biases(), steps.project_output
    theirs = known["biases"]() if known.get("biases") else ours
    for parts in ((0, 1, 2), (0,), (1,), (2,), (0, 1)):
        if all(ours[part].any() for part in parts):
            change = _projecting(parts, lambda steps, part, _, made: made - steps.biases()[part])  # type: ignore[misc]
            yield Proposal(f"{_parts_named(parts)} left out", "added", change)
        pairs = [(theirs[part], ours[part]) for part in parts]
        if all(one.shape == other.shape and one.any() and (one != other).any() for one, other in pairs):
            change = _projecting(parts, lambda _, part, x, made: made + theirs[part] - ours[part])
            yield Proposal(f"{_parts_named(parts)} other", "the reference's", change)
    if question.parted in ("attention", "next"):

        def apply(_: int, steps: Steps) -> Steps:
            return replace(steps, project_output=lambda heads: output(heads) - output(np.zeros_like(heads[:, :1])))

        yield Proposal("of the output left out", "added", apply)


def _norms(question: Question) -> Iterator[Proposal]:
    if (ours := question.steps.norm_heads) is not None:
        yield Proposal("of q missing", "applied", _replacing(norm_heads=lambda q, k: (q, ours(q, k)[1])))
        yield Proposal("of k missing", "applied", _replacing(norm_heads=lambda q, k: (ours(q, k)[0], k)))
        yield Proposal("of q and k missing", "applied", _replacing(norm_heads=None))
    elif (theirs := question.layer.known.get("norm_heads")) is not None:
        yield Proposal("of q and k applied", "none", _replacing(norm_heads=theirs))


def _orders(question: Question) -> Iterator[Proposal]:
    """Propose other orders of the heads, matched head by head where arrays show them."""
    if question.steps.project is None:
        return
    made, given = question.made, question.layer.arrays
    shown = [
        [name for name in (f"{part}_projected", f"{part}_normed", part) if name in given.keys() & made]
        for part in "qkv"
    ]
    matched = [_order_of(made[names[0]], given[names[0]]) if names else None for names in shown]
    tried = [matched] if any(order is not None for order in matched) else []
    if not any(shown):
        heads = len(question.steps.key_heads)
        orders = [np.roll(np.arange(heads), shift) for shift in (1, -1)] + [np.arange(heads)[::-1]]
        for first, second in combinations(range(heads), 2):
            orders.append(swapped := np.arange(heads))
            swapped[[first, second]] = second, first
        if heads <= _FEW_HEADS:
            orders = [np.array(order) for order in permutations(range(heads))][1:]
        tried += [[order, None, None] for order in orders]
        tried += [[order] * 3 for order in orders] if heads == len(made["v"]) else []
    for picked in tried:
        moved = [part for part, order in enumerate(picked) if order is not None]
        change = _projecting(moved, lambda _, part, x, array, picked=picked: array[picked[part]])  # type: ignore[misc]
        yield Proposal(f"{_parts_named(moved)} {','.join(map(str, picked[moved[0]]))}", "0,1,2…", change)  # type: ignore[arg-type]


def _order_of(made: Array, given: Array) -> Int[np.ndarray, " H"] | None:
    """Return the order in which the heads of one array are those of another; None if it is the same, or no order is."""
    if made.shape != given.shape:
        return None
    order = np.square(made[:, None].astype(np.float64) - given[None]).sum(axis=(2, 3)).argmin(axis=0)
    return order if len({*order.tolist()}) == len(order) and (np.diff(order) != 1).any() else None


def _layers(question: Question) -> Iterator[Proposal]:
    """Propose the weights of each other layer, in exchange."""
    here = question.layer.index
    for there in set(question.reference.indices) - {here} if question.steps.project else ():

        def apply(index: int, steps: Steps, there: int = there) -> Steps:
            other = question.reference.steps({here: there, there: here}.get(index, index), steps.x)
            fields = ("project", "norm_heads", "project_output", "finish", "biases")
            return replace(steps, **{name: getattr(other, name) for name in fields if index in (here, there)})

        yield Proposal(str(there), str(here), apply)


def _weights(question: Question) -> Iterator[Proposal]:
    """Propose the other run's weights of a projection, where it is a checkpoint."""
    if (theirs := question.layer.known.get("project")) is not None and question.steps.project is not None:
        for parts in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
            change = _projecting(parts, lambda _, part, x, array: theirs(x)[part])
            yield Proposal(_parts_named(parts), "the reference's", change)


def _outputs(question: Question) -> Iterator[Proposal]:
    for name, where in (("project_output", "of the output projection"), ("finish", "behind the attention")):
        if question.layer.known.get(name) is not None and question.parted in ("attention", "next"):
            yield Proposal(where, "the reference's", _replacing(**{name: question.layer.known[name]}))


# --- scores, mask and weights ------------------------------------------------------------------------------


def _scale(question: Question) -> Iterator[Proposal]:
    if (ours := question.steps.scale) is not None and question.is_after("scores"):
        usual = 1.0, ours**2, ours**0.5, ours * 2**0.5, ours / 2**0.5
        yield from _of_scores(question, "scale", usual, ours / 64, ours * 64)


def _softcap(question: Question) -> Iterator[Proposal]:
    if question.is_after("scores"):
        yield from _of_scores(question, "softcap", (None, 20.0, 30.0, 50.0), 0.5, 500.0)


def _of_scores(
    question: Question, name: str, usual: Iterable[float | None], low: float, high: float
) -> Iterator[Proposal]:
    """Propose values of a number: the one that the other run is known to have, or else usual ones and a solved one."""
    ours, known = getattr(question.steps, name), question.layer.known
    solved = [] if name in known else [usual, _values(question, lambda value: _replacing(**{name: value}), low, high)]
    for values in solved or [[known[name]]]:
        shown = ((_number(value), value) for value in values)
        yield from (
            Proposal(text, _number(ours), _replacing(**{name: one})) for text, one in shown if text != _number(ours)
        )


def _bias(question: Question) -> Iterator[Proposal]:
    steps, mask, known = question.steps, question.steps.mask, question.layer.known
    if mask is None or not question.is_after("scores"):
        return
    of_alibi = alibi(len(steps.key_heads), *mask.shape[1:])

    def named(bias: Float[np.ndarray, "#H T K"] | None) -> str:
        if bias is None or not bias.any():
            return "none"
        apart = bias - of_alibi
        highest = np.where(mask, apart, -np.inf).max(axis=-1)  # a constant of a row changes no weight
        return "ALiBi" if (highest - np.where(mask, apart, np.inf).min(axis=-1)).max() < 1e-2 else "relative"

    for theirs in [known["bias"]] if "bias" in known else [None, of_alibi]:
        if (theirs is None) != (steps.bias is None) or not np.array_equal(theirs, steps.bias):
            yield Proposal(named(theirs), named(steps.bias), _replacing(bias=theirs))


def _key_heads(question: Question) -> Iterator[Proposal]:
    groups = question.steps.key_heads
    count = int(groups.max()) + 1
    if 1 < count < len(groups) and question.is_after("scores"):
        yield Proposal("tiled", "in groups", _replacing(key_heads=np.arange(len(groups)) % count))


def _masks(question: Question) -> Iterator[Proposal]:
    if (ours := question.steps.mask) is None or not question.is_after("mask"):
        return

    def with_mask(theirs: Array) -> Apply:  # in layers of the same kind
        return lambda _, steps: replace(steps, mask=theirs if np.array_equal(steps.mask, ours) else steps.mask)

    def differing(theirs: Array) -> Int[np.ndarray, " R"]:
        return replace(question, steps=replace(question.steps, mask=theirs)).rows

    stated = question.layer.known.get("mask")
    for name, near in masks_near(ours, question.rows, differing) if stated is None else [(mask_name(stated), stated)]:
        if not np.array_equal(near, ours):
            yield Proposal(name, mask_name(ours), with_mask(near))


def _sinks(question: Question) -> Iterator[Proposal]:
    ours, theirs = question.steps.sinks, question.layer.known.get("sinks")
    if (ours is not None or theirs is not None) and question.is_after("sinks"):
        values = ["ignored" if sinks is None else "used" for sinks in (theirs, ours)]
        yield Proposal(*values, _replacing(sinks=theirs))


# In the order in which they are tried: the stages in the order of computation, in each the likeliest first.
CANDIDATES = (
    Candidate("positions", "positions", _positions),
    Candidate("projection biases", "projections", _biases),
    Candidate("norm", "norm", _norms),
    Candidate("order of heads", "projections", _orders),
    Candidate("weights of layer", "projections", _layers),
    Candidate("rotary pairs", "rotation", _pairs),
    Candidate("rotated width", "rotation", _width),
    Candidate("rotary base", "rotation", _base),
    Candidate("rotary scaling", "rotation", _scaling),
    Candidate("mask", "mask", _masks),
    Candidate("key heads", "scores", _key_heads),
    Candidate("sinks", "sinks", _sinks),
    Candidate("score bias", "scores", _bias),
    Candidate("scale", "scores", _scale),
    Candidate("softcap", "scores", _softcap),
    Candidate("projection weights", "projections", _weights),
    Candidate("weights", "output", _outputs),
)
