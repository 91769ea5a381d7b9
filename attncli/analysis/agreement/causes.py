"""Candidates for the cause of a difference: each solves for its value, and is proved by giving it to the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.agreement.sides import Parameters, Side
from attncli.analysis.agreement.stages import STAGE_OF, STAGES, Array, Arrays, Rope, Steps, difference
from attncli.engines.numpy.families import rope_of
from attncli.errors import AttnError
from attncli.masks.expressions import Atom, RuleMask
from attncli.masks.parser import parse
from attncli.masks.recognition import rule_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

Apply = Callable[[int, Steps], Steps]
_BASES = (1e4, 1e6, 5e5, 1e5, 1e7, 5e6, 2.5e4, 5e4, 1.5e5, 2e5, 1e3, 5e2, 1e2)
_FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0)
_TRAINED = tuple(2**power for power in (13, 12, 11, 15, 14, 17, 16, 10, 9, 8, 7, 6, 5, 4))  # tokens of the training
_FEW_HEADS = 4  # whose orders are all tried, where no array shows heads
_STEPS, _ROUNDS = 25, 36  # of a search: on the grid, and around its best


class Cell(NamedTuple):
    """Difference at one stage of a layer."""

    difference: float  # the largest of a token, relative to what is compared
    rounding: float | None  # that of the rounded twin; None where the difference is smaller than float32 shows
    agrees: bool


class Proposal(NamedTuple):
    """A cause with its value, which is given to the reference."""

    theirs: str  # value of the other run
    ours: str  # value of the reference
    apply: Apply  # a layer's steps → the steps with it


class Candidate(NamedTuple):
    """A kind of cause."""

    name: str
    stage: str
    solve: Callable[[Question], Iterator[Proposal]]


LEAST = 2.0**-21  # a relative difference that float32 hardly shows
_TIMES = 8.0  # times the difference of the rounded twin: more is not explained by rounding


class Following(NamedTuple):
    """Next layer, whose queries, keys and values are all that shows the output of a layer."""

    variants: Sequence[Steps]  # of the reference: as it is, and with each cause that was found
    given: Arrays  # arrays of the other run

    def difference(self, x: Array) -> Float[np.ndarray, " T"]:
        """Return the difference of the array that agrees best for an input; others may differ by their own fault."""
        apart = []
        for steps in self.variants:
            made = replace(steps, x=x).run({}, "k")
            apart += [difference(made[name], self.given[name]) for name in made.keys() & self.given]
        return min(apart, key=lambda one: float(one.max()))


class Floors:
    """The largest differences that rounding explains, measured where they are asked for."""

    def __init__(self, twin: Callable[[], Arrays], made: Callable[[], Arrays], following: Following | None) -> None:
        self._twin, self._made, self._following = twin, made, following

    @cached_property
    def twin(self) -> Arrays:
        """The arrays of the rounded twin."""
        return self._twin()

    @cached_property
    def roundings(self) -> dict[str, float]:
        """The difference of each array from the rounded twin."""
        twin, made = self.twin, self._made()
        apart = {name: float(difference(twin[name], made[name]).max()) for name in made}
        if self._following is not None and "next" in apart:
            steps = self._following.variants[0]
            values = [replace(steps, x=arrays["next"]).run({}, "k")["v"] for arrays in (twin, made)]
            apart["next"] = float(difference(*values).max())
        return apart

    def rounding(self, name: str, apart: float) -> float | None:
        """Return what rounding gives; None for a difference that float32 hardly shows."""
        return None if apart <= LEAST else max(self.roundings[name], 2.0**-24)

    def explain(self, name: str, apart: float) -> bool:
        """Return whether rounding explains a difference."""
        return apart <= LEAST or apart <= _TIMES * self.roundings[name]


@dataclass(frozen=True)
class Question:
    """One layer of both runs, and the array in question.

    Attributes:
        layer: its index.
        reference: the side that is computed.
        steps: those of the reference.
        given: arrays of the other run.
        known: what the other run is known to compute with.
        floors: what rounding explains.
        following: the next layer, where its arrays are all that shows the output.
        parted: the first array that differs.
    """

    layer: int
    reference: Side
    steps: Steps
    given: Arrays
    known: Parameters
    floors: Floors
    following: Following | None = None
    parted: str = ""

    @cached_property
    def made(self) -> dict[str, Array]:
        """The arrays of the reference."""
        return self.steps.run(self.given)

    @cached_property
    def apart(self) -> dict[str, Float[np.ndarray, " T"]]:
        """The difference of each array that both have, at each token, in the order of computation."""
        return self._apart(self.made)

    def differences(self, steps: Steps, until: str = "next") -> dict[str, Float[np.ndarray, " T"]]:
        """Return the differences with other steps."""
        return self._apart(steps.run(self.given, until))

    def _apart(self, made: dict[str, Array]) -> dict[str, Float[np.ndarray, " T"]]:
        apart = {name: difference(made[name], self.given[name]) for name in STAGE_OF if name in made.keys() & self.given}
        if self.following is not None and "next" in made:
            apart["next"] = self.following.difference(made["next"])
        return apart

    @property
    def cell(self) -> Cell:
        """The difference of the array in question."""
        apart = float(self.apart[self.parted].max())
        return Cell(apart, self.floors.rounding(self.parted, apart), not self.parts(self.parted))

    def distance(self, steps: Steps) -> float:
        """Return the difference of the array in question with other steps."""
        return float(np.linalg.norm(self.differences(steps, self.parted)[self.parted]))

    def parts(self, name: str) -> bool:
        """Return whether an array differs by more than rounding."""
        return self._parts(name, self.apart[name])

    def _parts(self, name: str, apart: Float[np.ndarray, " T"] | None) -> bool:
        return apart is None or not self.floors.explain(name, float(apart.max()))

    def agreeing(self, steps: Steps) -> tuple[int, float]:
        """Return how many arrays agree with other steps, and the difference of the one in question.

        The number is 0 unless that one agrees, and every one before it that did.
        """
        apart = self.differences(steps, self.parted)
        stage, names = STAGES.index(STAGE_OF[self.parted]), apart.keys() & self.apart
        before = [name for name in names if STAGES.index(STAGE_OF[name]) < stage and not self.parts(name)]
        if any(self._parts(name, apart.get(name)) for name in (self.parted, *before)):
            return 0, math.inf
        whole = self.differences(steps)
        return sum(not self._parts(name, one) for name, one in whole.items()), float(apart[self.parted].max())

    @property
    def rows(self) -> Int[np.ndarray, " R"]:
        """The tokens whose rows of the array in question differ."""
        apart = self.apart[self.parted]
        return np.flatnonzero([not self.floors.explain(self.parted, float(one)) for one in apart])

    def is_after(self, stage: str) -> bool:
        """Return whether the array in question is made by a stage, or behind it."""
        return STAGES.index(STAGE_OF[self.parted]) >= STAGES.index(stage)


# --- one number --------------------------------------------------------------------------------------------


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


def number(value: float) -> str:
    """Return a number in few digits, without an exponent where it is whole."""
    return str(round(value)) if value >= 100 and abs(value - round(value)) < 1e-6 * value else f"{value:.4g}"


def _values(
    question: Question, with_value: Callable[[float], Steps], usual: Iterable[float], low: float, high: float
) -> Iterator[float]:
    """Yield the values of a field that may explain a difference: usual ones, then the solved one, the roundest first.
    """
    yield from usual
    solved = search(lambda value: question.distance(with_value(value)), low, high)
    yield from dict.fromkeys(float(f"{solved:.{digits}g}") for digits in (1, 2, 3, 4, 6))


def _replacing(**fields: Any) -> Apply:
    return lambda _, steps: replace(steps, **fields)


# --- positions and rotation --------------------------------------------------------------------------------


def _positions(question: Question) -> Iterator[Proposal]:
    steps, given = question.steps, question.given
    ours = steps.positions
    solved: list[Int[np.ndarray, " T"]] = []
    if isinstance(stated := question.known.get("positions"), np.ndarray) and len(stated) == len(ours):
        solved.append(stated)
    if steps.rope is not None and "k" in given and question.parted in ("q", "k"):
        made, rope = steps.run(given, "k"), steps.rope
        tried = range(len(ours) + 64)
        apart = [difference(rope.rotate(made["k_normed"], np.full(len(ours), p)), given["k"]) for p in tried]
        solved.append(np.argmin(apart, axis=0))
    elif steps.x is not None and question.layer == 0:
        solved += [ours + shift for shift in (1, 2, -1, 3, 4, 5, 6, 7, 8)]
    for theirs in solved:
        if not np.array_equal(theirs, ours) and (theirs.any() or steps.rope is None):  # all 0 is no rotation
            x = question.reference.embed(theirs) if question.layer == 0 and steps.x is not None else None

            def apply(layer: int, steps: Steps, theirs: Any = theirs, x: Any = x) -> Steps:
                return replace(steps, positions=theirs, x=x if layer == 0 and x is not None else steps.x)

            yield Proposal(_listed(theirs), _listed(ours), apply)


def _listed(positions: Int[np.ndarray, " T"]) -> str:
    if (np.diff(positions) == 1).all():
        return f"from {positions[0]}"
    return ",".join(map(str, positions[:8])) + ("…" if len(positions) > 8 else "")


def _with_rope(**fields: Any) -> Apply:
    def apply(_: int, steps: Steps) -> Steps:
        return steps if steps.rope is None else replace(steps, rope=steps.rope._replace(**fields))

    return apply


def _pairs(question: Question) -> Iterator[Proposal]:
    if rope := question.steps.rope:
        names = ["half-split", "interleaved"]
        ours, theirs = names[rope.is_interleaved], names[not rope.is_interleaved]
        yield Proposal(theirs, ours, _with_rope(is_interleaved=not rope.is_interleaved))


def _width(question: Question) -> Iterator[Proposal]:
    if rope := question.steps.rope:
        ours, base = 2 * len(rope.frequencies), base_of(rope.frequencies)
        whole = question.made["k"].shape[-1]
        usual = [whole, whole // 2, whole // 4, *range(2, whole, 2)]
        yield Proposal("0", str(ours), _replacing(rope=None))
        for width in dict.fromkeys(2 * (width // 2) for width in usual):
            if width not in (0, ours):
                yield Proposal(str(width), str(ours), _with_rope(frequencies=plain(base, width // 2)))


def plain(base: float, count: int) -> Float[np.ndarray, " R"]:
    """Return the frequencies of a rotary base."""
    return (1 / np.float32(base) ** (np.arange(count, dtype=np.float32) / np.float32(count))).astype(np.float32)


def base_of(frequencies: Float[np.ndarray, " R"]) -> float:
    """Return the rotary base of frequencies, from the first two, which no scaling changes against each other."""
    if len(frequencies) < 2:
        return 10_000.0
    return float(f"{float(np.float64(frequencies[0]) / frequencies[1]) ** len(frequencies):.5g}")


def _base(question: Question) -> Iterator[Proposal]:
    if (rope := question.steps.rope) is None or len(rope.frequencies) < 2:
        return
    base, count = base_of(rope.frequencies), len(rope.frequencies)
    stretched = rope.frequencies / plain(base, count)

    def with_base(value: float) -> Apply:
        return _with_rope(frequencies=(plain(value, count) * stretched).astype(np.float32))

    stated = question.known.get("rope")
    usual = ([] if stated is None else [base_of(stated.frequencies)]) + [*_BASES]
    for value in _values(question, lambda value: with_base(value)(0, question.steps), usual, 10.0, 1e9):
        if number(value) != number(base):
            yield Proposal(number(value), number(base), with_base(value))


def _scaling(question: Question) -> Iterator[Proposal]:
    if (rope := question.steps.rope) is None or len(rope.frequencies) < 2:
        return
    base, count = base_of(rope.frequencies), len(rope.frequencies)
    whole, ours = plain(base, count), _scaling_name(rope)
    if ours != "none":
        yield Proposal("none", ours, _with_rope(frequencies=whole, magnitude=1.0))

    def linear(factor: float) -> Apply:
        return _with_rope(frequencies=(whole / np.float32(factor)).astype(np.float32))

    for factor in _values(question, lambda value: linear(value)(0, question.steps), _FACTORS, 1 / 64, 64.0):
        yield Proposal(f"linear {number(factor)}", ours, linear(factor))
    for name, frequencies, magnitude in _stretched(base, count):
        yield Proposal(name, ours, _with_rope(frequencies=frequencies, magnitude=magnitude))


def _stretched(base: float, count: int) -> Iterator[tuple[str, Float[np.ndarray, " R"], float]]:
    """Yield Llama 3's and YaRN's scalings of frequencies, with their factor of rotated dimensions."""
    for trained in _TRAINED:
        for factor in _FACTORS:
            llama3 = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            llama3["original_max_position_embeddings"] = trained
            yield f"llama3 {number(factor)}", rope_of(llama3, {"rope_theta": base}, 2 * count, trained), 1.0
            frequencies = yarn(base, count, factor, trained)
            for magnitude in (0.1 * math.log(factor) + 1, 1.0):
                yield f"yarn {number(factor)}", frequencies, magnitude


def yarn(base: float, count: int, factor: float, trained: int) -> Float[np.ndarray, " R"]:
    """Return the frequencies of YaRN (Peng et al. 2023), for a model that was trained on so many tokens."""
    low, high = (
        2 * count * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32.0, 1.0)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * count - 1)
    ramp = np.clip((np.arange(count) - low) / max(high - low, 1e-3), 0, 1)
    whole = plain(base, count)
    return (whole / factor * ramp + whole * (1 - ramp)).astype(np.float32)


def _scaling_name(rope: Rope) -> str:
    ratio = plain(base_of(rope.frequencies), len(rope.frequencies)) / rope.frequencies
    if np.allclose(ratio, 1, rtol=1e-3):
        return "none"
    return f"linear {number(float(ratio[0]))}" if np.allclose(ratio, ratio[0], rtol=1e-3) else (
        f"by {number(float(ratio.max()))}"
    )


# --- projections and norms ---------------------------------------------------------------------------------

_PARTS = ((0, 1, 2), (0,), (1,), (2,), (0, 1))  # of queries, keys and values
_NAMES = ("q", "k", "v")


def _parts_named(parts: Iterable[int]) -> str:
    names = [_NAMES[part] for part in parts]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _projecting(parts: Iterable[int], change: Callable[[Steps, int, Array, Array], Array]) -> Apply:
    """Return the change of some of the projections, given the steps, their index, the input and what they give."""

    def apply(_: int, steps: Steps) -> Steps:
        def project(x: Array) -> Any:
            assert steps.project is not None
            made = steps.project(x)
            return tuple(change(steps, part, x, array) if part in parts else array for part, array in enumerate(made))

        return replace(steps, project=project)

    return apply


def _biases(question: Question) -> Iterator[Proposal]:
    if (of_ours := question.steps.biases) is None:
        return
    ours, of_theirs = of_ours(), question.known.get("biases")
    for parts in _PARTS:
        named = f"of {_parts_named(parts)}"
        if all(ours[part].any() for part in parts):
            left_out = _projecting(parts, lambda steps, part, _, made: made - steps.biases()[part])
            yield Proposal(f"{named} left out", "added", left_out)
        theirs = of_theirs() if of_theirs else ours
        is_fit = all(map(np.array_equal, map(np.shape, theirs), map(np.shape, ours)))
        if is_fit and all(theirs[part].any() and (theirs[part] != ours[part]).any() for part in parts):
            other = _projecting(parts, lambda steps, part, _, made: made + theirs[part] - ours[part])
            yield Proposal(f"{named} other", "the reference's", other)
    if question.steps.project_output is not None and question.parted in ("attention", "next"):
        def without(_: int, steps: Steps) -> Steps:
            def project_output(heads: Array) -> Array:
                bias = steps.project_output(np.zeros_like(heads[:, :1]))
                return steps.project_output(heads) - bias

            return replace(steps, project_output=project_output)

        yield Proposal("of the output left out", "added", without)


def _norms(question: Question) -> Iterator[Proposal]:
    ours, theirs = question.steps.norm_heads, question.known.get("norm_heads")
    if ours is not None:
        yield Proposal("of q and k missing", "applied", _replacing(norm_heads=None))
        yield Proposal("of q missing", "applied", _replacing(norm_heads=lambda q, k: (q, ours(q, k)[1])))
        yield Proposal("of k missing", "applied", _replacing(norm_heads=lambda q, k: (ours(q, k)[0], k)))
    elif theirs is not None:
        yield Proposal("of q and k applied", "none", _replacing(norm_heads=theirs))


def _orders(question: Question) -> Iterator[Proposal]:
    """Propose other orders of the heads, matched head by head where arrays show them."""
    steps, given = question.steps, question.given
    if steps.project is None:
        return
    made = steps.run(given, "k")
    heads, key_heads = len(steps.key_heads), len(made["v"])
    seen = [next((name for name in (f"{n}_projected", f"{n}_normed", n) if name in given), "") for n in _NAMES]
    matched = [_matched(made[name], given[name]) if name in made else None for name in seen]
    if any(order is not None for order in matched):
        tried = [matched]
    else:
        if heads <= _FEW_HEADS:
            orders = [np.array(order) for order in permutations(range(heads))][1:]
        else:
            orders = [np.roll(np.arange(heads), shift) for shift in (1, -1)] + [np.arange(heads)[::-1]]
            for first, second in combinations(range(heads), 2):
                orders.append(swapped := np.arange(heads))
                swapped[[first, second]] = second, first
        tried = [[order, None, None] for order in orders]
        tried += [[order] * 3 for order in orders] if heads == key_heads else []
    for q_order, k_order, v_order in tried:
        moved = [part for part, order in enumerate((q_order, k_order, v_order)) if order is not None]
        if moved:
            picked = (q_order, k_order, v_order)
            change = _projecting(moved, lambda _, part, x, array, picked=picked: array[picked[part]])
            shown = ",".join(map(str, picked[moved[0]]))
            yield Proposal(f"of {_parts_named(moved)} {shown}", "0,1,2…", change)


def _matched(made: Array, given: Array) -> Int[np.ndarray, " H"] | None:
    """Return the order in which the heads of one array are those of another; None if it is the same, or no order is."""
    if made.shape != given.shape:
        return None
    apart = np.square(made[:, None].astype(np.float64) - given[None]).sum(axis=(2, 3))
    order = apart.argmin(axis=0)
    is_order = len(set(order.tolist())) == len(order) and (order != np.arange(len(order))).any()
    return order if is_order else None


def _layers(question: Question) -> Iterator[Proposal]:
    """Propose the weights of each other layer."""
    if question.steps.x is None:
        return
    here = question.layer
    for there in question.reference.indices:
        if there == here:
            continue

        def apply(layer: int, steps: Steps, there: int = there) -> Steps:
            if layer not in (here, there):
                return steps
            other = question.reference.steps(there if layer == here else here, steps.x)
            assert other is not None
            fields = ("project", "norm_heads", "project_output", "finish", "biases")
            return replace(steps, **{name: getattr(other, name) for name in fields})

        yield Proposal(str(there), str(here), apply)


def _weights(question: Question) -> Iterator[Proposal]:
    """Propose the other run's weights of a projection, where it is a checkpoint."""
    theirs = question.known.get("project")
    if theirs is None or question.steps.project is None:
        return
    for parts in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
        change = _projecting(parts, lambda _, part, x, array: theirs(x)[part])
        yield Proposal(f"of {_parts_named(parts)}", "the reference's", change)


def _outputs(question: Question) -> Iterator[Proposal]:
    """Propose the other run's weights behind the heads, likewise."""
    for name, where in (("project_output", "of the output projection"), ("finish", "behind the attention")):
        if question.known.get(name) is not None and question.parted in ("attention", "next"):
            yield Proposal(where, "the reference's", _replacing(**{name: question.known[name]}))


# --- scores, mask and weights ------------------------------------------------------------------------------


def _scale(question: Question) -> Iterator[Proposal]:
    ours, stated = question.steps.scale, question.known.get("scale")
    if ours is None or not question.is_after("scores"):
        return
    usual = [stated] if stated is not None else [1.0, ours**2, ours**0.5, ours * 2**0.5, ours / 2**0.5]
    with_scale = lambda value: replace(question.steps, scale=value)  # noqa: E731
    for value in usual if stated is not None else _values(question, with_scale, usual, ours / 64, ours * 64):
        if abs(value - ours) > 1e-6 * ours:
            yield Proposal(number(value), number(ours), _replacing(scale=value))


def _softcap(question: Question) -> Iterator[Proposal]:
    ours = question.steps.softcap
    if not question.is_after("scores"):
        return
    shown = "none" if ours is None else number(ours)
    if "softcap" in question.known:
        values: Iterable[float | None] = [question.known["softcap"]]
    else:
        with_cap = lambda value: replace(question.steps, softcap=value)  # noqa: E731
        values = [None, *_values(question, with_cap, (20.0, 30.0, 50.0), 0.5, 500.0)]
    for value in values:
        if value != ours:
            yield Proposal("none" if value is None else number(value), shown, _replacing(softcap=value))


def alibi(heads: int, queries: int, keys: int) -> Float[np.ndarray, "H T K"]:
    """Return the biases of ALiBi (Press et al. 2022), for a power of two of heads or the nearest below."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    slopes += [2 ** (-4 * (2 * head + 1) / power) for head in range(heads - power)]
    distance = np.arange(keys)[None] - np.arange(keys - queries, keys)[:, None]
    return (np.array(slopes)[:, None, None] * distance).astype(np.float32)


def _bias(question: Question) -> Iterator[Proposal]:
    steps = question.steps
    if not question.is_after("scores") or steps.mask is None:
        return
    queries, keys = steps.mask.shape[1:]
    of_alibi = alibi(len(steps.key_heads), queries, keys)

    def named(bias: Array | None) -> str:
        if bias is None or not bias.any():
            return "none"
        apart = bias - of_alibi
        highest = np.where(steps.mask, apart, -np.inf).max(axis=-1)  # a constant of a row changes no weight
        spread = highest - np.where(steps.mask, apart, np.inf).min(axis=-1)
        return "ALiBi" if spread.max() < 1e-2 else "relative"

    for theirs in [question.known["bias"]] if "bias" in question.known else [None, of_alibi]:
        if named(theirs) != named(steps.bias) or theirs is not None:
            yield Proposal(named(theirs), named(steps.bias), _replacing(bias=theirs))


def _key_heads(question: Question) -> Iterator[Proposal]:
    ours = question.steps.key_heads
    count = int(ours.max()) + 1
    if 1 < count < len(ours) and question.is_after("scores"):
        yield Proposal("tiled", "in groups", _replacing(key_heads=np.arange(len(ours)) % count))


def _masks(question: Question) -> Iterator[Proposal]:
    steps = question.steps
    if steps.mask is None or not question.is_after("mask"):
        return
    shown = mask_name(steps.mask)

    def proposal(theirs: Bool[np.ndarray, "#H T K"]) -> Proposal:
        def apply(_: int, other: Steps) -> Steps:
            is_alike = other.mask is not None and np.array_equal(other.mask, steps.mask)  # a layer of the same kind
            return replace(other, mask=theirs) if is_alike else other

        return Proposal(mask_name(theirs), shown, apply)

    if (stated := question.known.get("mask")) is not None:
        yield from [] if np.array_equal(stated, steps.mask) else [proposal(stated)]
        return
    rows, tokens = question.rows, steps.mask.shape[-1]
    for text in _rules(shown, int(rows[0]), int(rows[-1]), tokens):
        try:
            yield proposal(RuleMask(parse(text), tokens, tokens, 1).rows([0], np.arange(tokens)))
        except AttnError:
            continue
    sizes: list[int] = []  # of documents, each of which begins at the first row that still differs
    start = int(rows[0])
    while sum(sizes) < start < tokens and len(sizes) < 8:
        sizes.append(start - sum(sizes))
        parts = ",".join(map(str, [*sizes, tokens - start]))
        made = proposal(steps.mask & RuleMask(parse(f"docs({parts})"), tokens, tokens, 1).rows([0], np.arange(tokens)))
        # Padding on the left whose queries see each other hides the same cells as a document.
        yield made if len(sizes) > 1 else made._replace(theirs=f"{made.theirs} or pad(left={start})")
        differing = replace(question, steps=made.apply(question.layer, steps)).rows
        start = next((int(row) for row in differing if row > start), tokens)


def _rules(ours: str, first: int, last: int, tokens: int) -> Iterator[str]:
    """Yield rules of masks whose rows differ from the reference's from the first to the last one alone."""
    rule = parse(ours) if "irregular" not in ours else None
    if isinstance(rule, Atom) and rule.name == "window":
        yield from (f"window({rule.arguments[0] + 1})", f"window({max(rule.arguments[0] - 1, 1)})", "causal")
    yield from ("full", "causal", f"window({max(first, 1)})", f"window({first + 1})")
    yield from (f"{ours} & pad(left={count})" for count in range(1, min(first + 2, tokens)))
    yield from (f"{ours} & pad(right={count})" for count in range(1, min(tokens - first + 1, tokens)))
    yield from (f"causal | prefix({last + 2})", f"chunk({first})", f"causal & chunk({first})")
    yield from (f"window({width})" for width in range(1, min(tokens, 64)))


def mask_name(mask: Bool[np.ndarray, "#H T K"]) -> str:
    """Return the rule of a mask, in the mask language where it has one."""
    return rule_of(mask[None]).text


def _sinks(question: Question) -> Iterator[Proposal]:
    ours, theirs = question.steps.sinks, question.known.get("sinks")
    if ours is not None and theirs is None:
        yield Proposal("ignored", "used", _replacing(sinks=None))
    elif theirs is not None and question.is_after("sinks"):
        name = "used" if ours is None else "other values"
        yield Proposal(name, "ignored" if ours is None else "the reference's", _replacing(sinks=theirs))


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
