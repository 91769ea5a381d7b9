"""One layer of a Trace: the arrays that a source recorded, and the heads derived from them.

Queries, keys and values are recorded whole. Scores and weights, which are quadratic in the sequence, are derived by
`attncli.attention` for the heads and query rows that are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli import attention
from attncli.attention import FORBIDDEN_BELOW, noise_floor, row_blocks
from attncli.errors import InputError, NotExposedError, UsageError
from attncli.masks.expressions import Mask, RuleMask
from attncli.text import plural
from attncli.trace.display import Displayed, Drawable, Tabular, presentation
from attncli.trace.selection import Indices

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_FAR = 1e300
Places = np.ndarray[tuple[int], np.dtype[np.intp]]


@dataclass(frozen=True, eq=False)
class Stages:
    """The stages of attention of some heads and query rows, each derived when it is first asked for."""

    layer: LayerTrace
    heads: tuple[int, ...]
    queries: Int[np.ndarray, " Q"]

    @property
    def key_heads(self) -> list[int]:
        """The key/value head that each head reads (grouped-query attention, Ainslie et al. 2023)."""
        size = self.layer.num_heads // self.layer.num_groups
        return [head // size for head in self.heads]

    @cached_property
    def scores(self) -> Float[np.ndarray, "H Q K"]:
        """Scaled, biased and softcapped, before the mask; recorded ones are -inf where masked."""
        layer, bias = self.layer, self.layer.bias
        if layer.recorded_scores is not None:
            return self._rows(layer.recorded_scores)
        if bias is not None:
            bias = bias[:, self.queries] if len(bias) == 1 else self._rows(bias)
        keys = layer.recorded("k")[_slice_or_list(self.key_heads)]
        products = attention.dot_products(self._rows(layer.recorded("q")), keys)
        assert layer.scale is not None
        return attention.attention_scores(products, layer.scale, bias, layer.softcap, out=products)

    @cached_property
    def mask(self) -> Bool[np.ndarray, "#H Q K"]:
        """True where the query may attend to the key; one plane where the heads agree."""
        return self.layer.mask.rows(list(self.heads), self.queries)

    @cached_property
    def weights(self) -> Float[np.ndarray, "H Q K"]:
        """Softmax of the masked scores over the keys, or what is derived from it."""
        layer = self.layer
        if layer.derived is not None:
            return layer.derived.rows(self.heads, self.queries)
        if layer.recorded_weights is not None:
            return self._rows(layer.recorded_weights)
        masked = attention.masked_scores(self.scores, self.mask, layer.fill)
        return attention.attention_weights(masked, self.sinks, None if masked is self.scores else masked)

    @property
    def sinks(self) -> Float[np.ndarray, " H"] | Float[np.ndarray, "H Q"] | None:
        """One more logit of every head, or of every query of it; None without."""
        sinks = None if self.layer.sinks is None else self.layer.sinks[list(self.heads)]
        return sinks if sinks is None or sinks.ndim == 1 else sinks[:, self.queries]

    @cached_property
    def output(self) -> Float[np.ndarray, "H Q Dv"]:
        """Weights·V, the context vectors."""
        return attention.attention_output(self.weights, self.layer.recorded("v")[_slice_or_list(self.key_heads)])

    def _rows(self, array: Float[np.ndarray, "_ _ N"]) -> Float[np.ndarray, "H Q N"]:
        return array[_slice_or_list(self.heads)][:, _slice_or_list(self.queries.tolist())]


def stages_of(layer: LayerTrace, heads: Sequence[int], queries: Int[np.ndarray, " Q"]) -> Iterator[Stages]:
    """Yield the stages of heads in order: as many heads at once as a block has room for, and their rows in blocks."""
    together = max(attention.CELLS // max(len(queries) * layer.num_keys, 1), 1)
    for start in range(0, len(heads), together):
        chosen = heads[start : start + together]
        for rows in attention.row_blocks(queries, layer.num_keys * len(chosen)):
            yield Stages(layer, tuple(chosen), rows)


def _slice_or_list(indices: Sequence[int]) -> slice | list[int]:
    """Return consecutive indices as a slice, which copies nothing."""
    first = indices[0] if indices else 0
    run = range(first, first + len(indices))
    return slice(run.start, run.stop) if list(indices) == list(run) else list(indices)


class Proof(NamedTuple):
    """Distance of the recorded arrays from something that was computed independently."""

    max_abs_error: float  # largest absolute difference over all heads, positions and dimensions
    against: str  # what it was compared with
    of: str = "weights·V"  # what was compared
    magnitude: float = 1.0  # the largest number compared, or what it is a mean of; rounding grows with it


def max_abs_diff(ours: Float[np.ndarray, "*N"], theirs: Float[np.ndarray, "*N"]) -> float:
    """Return the largest absolute difference; NaN in both, of a query without keys, counts as 0."""
    return float(np.where(np.isnan(ours) & np.isnan(theirs), 0, np.abs(ours - theirs)).max())


def proof_of(layer: LayerTrace, expected: Float[np.ndarray, "H Q Dv"], against: str) -> Proof:
    """Return how far weights·V of a layer are from an output that was computed independently."""
    every = stages_of(layer, range(layer.num_heads), np.arange(layer.num_queries))
    errors = [max_abs_diff(stages.output, expected[list(stages.heads)][:, stages.queries]) for stages in every]
    worst = float(np.max(errors, initial=0.0))  # NaN, if one of them is
    return Proof(worst, against, magnitude=max(float(np.nanmax(np.abs(layer.recorded("v")), initial=1.0)), 1.0))


def without_copies(
    k: Float[np.ndarray, "H K D"], v: Float[np.ndarray, "H K Dv"]
) -> tuple[Float[np.ndarray, "Hkv K D"], Float[np.ndarray, "Hkv K Dv"]]:
    """Return keys and values once for consecutive heads that share them."""
    for size in range(len(v), 1, -1):
        if len(v) % size == 0 and all((array[::size].repeat(size, axis=0) == array).all() for array in (k, v)):
            return k[::size], v[::size]
    return k, v


class Derived(NamedTuple):
    """Numbers in the place of a layer's weights, made for the heads and query rows that are asked for."""

    shape: tuple[int, int, int]  # H, Q, K
    rows: Callable[[Sequence[int], Int[np.ndarray, " Q"]], Float[np.ndarray, "H Q K"]]  # given heads and query rows
    measure: str = "weights"  # `weights`, or `norms`
    is_distribution: bool = True  # whether they are shares of one, as weights are, so that metrics mean something
    layer: str | None = None  # name of a merged layer, such as `mean`; None where it is still one
    head: str | None = None  # likewise of heads


# Axes of each array; #H is one plane for all heads, or one for each.
_AXES = {
    "q": "H Q D", "k": "Hkv K D", "v": "Hkv K Dv", "bias": "#H Q K", "sinks": "H Q", "inputs": "Q W",
    "out_projection": "HDv E", "out_bias": "E", "recorded_scores": "H Q K", "recorded_weights": "H Q K",
}  # fmt: skip
ARRAYS = tuple(_AXES)
_NOT_DERIVED = frozenset({"embeddings", "q", "k", "v", "scores", "output"})


@dataclass(frozen=True, eq=False, repr=False)
class LayerTrace(Displayed, Tabular, Drawable):
    """One layer's attention.

    Scores and weights are derived, unless a watched softmax gave them: then q, k, v and the scale may be missing. A
    derived layer has a mask and weights alone.

    Attributes:
        layer: index of the layer in the model.
        kind: `self`, or `encoder`, `decoder`, `cross`.
        q: queries as the dot product takes them (after any rotation), `[H, Q, D]`.
        k: keys, `[Hkv, K, D]`.
        v: values, `[Hkv, K, Dv]`.
        scale: what multiplies q·k; None where that does not give the recorded scores.
        mask: which query may attend to which key.
        heads: the heads that were asked for; every head is recorded.
        bias: what is added to the scaled products, `[1, Q, K]` or `[H, Q, K]`.
        softcap: c in c·tanh(scores/c).
        sinks: one more logit per head in the softmax, `[H]`, or per head and query, `[H, Q]`.
        fill: what is added to a forbidden score; -inf replaces it.
        proof: how well the recorded arrays explain the model's own output.
        inputs: what the queries are projected from, `[Q, E]` (toy layers and live modules).
        out_projection: W_o, `[H·Dv, E]`.
        out_bias: its bias, `[E]`.
        recorded_scores: as the softmax received them, -inf where masked, `[H, Q, K]`; None where they are computed.
        recorded_weights: as the softmax gave them, `[H, Q, K]`; None where they are computed.
        derived: what stands in the place of weights; None where they are those of a model.
        parent: the `Trace` that it was taken from by `Trace.layer`, whose tokens name what it shows; else None.
    """

    layer: int
    kind: str
    q: Float[np.ndarray, "H Q D"] | None
    k: Float[np.ndarray, "Hkv K D"] | None
    v: Float[np.ndarray, "Hkv K Dv"] | None
    scale: float | None
    mask: Mask
    heads: tuple[int, ...]
    bias: Float[np.ndarray, "#H Q K"] | None = None
    softcap: float | None = None
    sinks: Float[np.ndarray, " H"] | Float[np.ndarray, "H Q"] | None = None
    fill: float = -np.inf
    proof: Proof | None = None
    inputs: Float[np.ndarray, "Q E"] | None = None
    out_projection: Float[np.ndarray, "HDv E"] | None = None
    out_bias: Float[np.ndarray, " E"] | None = None
    recorded_scores: Float[np.ndarray, "H Q K"] | None = None
    recorded_weights: Float[np.ndarray, "H Q K"] | None = None
    derived: Derived | None = None
    parent: Any = None

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit each other, with the names and the numbers of what was expected."""
        arrays = {name: array for name in ARRAYS if (array := getattr(self, name)) is not None}
        for name, array in arrays.items():
            # In C order, as a saved array is read back: BLAS rounds another one differently. A lone number has none.
            if not array.flags.c_contiguous and any(array.strides):
                object.__setattr__(self, name, np.ascontiguousarray(array))
        is_recorded = self.derived is not None or {"recorded_scores", "recorded_weights"} <= arrays.keys()
        if not is_recorded and (self.scale is None or not {"q", "k", "v"} <= arrays.keys()):
            raise InputError("a layer needs q, k, v and a scale, or recorded scores and weights")
        if self.derived is None and not _is_fit(arrays):
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
            form = "q is [H, Q, D], k [Hkv, K, D] and v [Hkv, K, Dv], and H is a multiple of Hkv"
            raise InputError(f"the shapes {shapes.replace('recorded_', '')} do not fit each other; {form}")
        if self.scale is not None and not abs(self.scale) <= np.finfo(np.float32).max:
            raise InputError(f"the scale is {self.scale}; expected a number that float32 holds")
        if self.softcap is not None and not self.softcap > 0:
            raise InputError(f"the softcap is {self.softcap}; expected a number above 0")
        if self.fill != -np.inf and not self.fill <= FORBIDDEN_BELOW:
            raise InputError(f"the fill is {self.fill}; expected -inf or a number that no score comes near")

    @property
    def cells(self) -> tuple[int, int, int]:
        """`(H, Q, K)`, how many heads, query positions and key positions."""
        if self.derived is not None:
            return self.derived.shape
        if self.q is not None and self.k is not None:
            return len(self.q), self.q.shape[1], self.k.shape[1]
        return self.recorded_weights.shape  # type: ignore[union-attr]  # or it was refused

    @property
    def capture(self) -> str:
        """`exact`; `weights-only` where not all of q, k and v are known; `derived`."""
        return "derived" if self.derived is not None else "weights-only" if self.missing else "exact"

    @property
    def missing(self) -> frozenset[str]:
        """Names of the parts of a view that the layer cannot give."""
        if self.derived is not None:
            return _NOT_DERIVED if self.derived.is_distribution else _NOT_DERIVED | {"metrics"}
        parts = {"q": self.q, "k": self.k, "v": self.v, "output": self.v}
        return frozenset(name for name, array in parts.items() if array is None)

    @property
    def measure(self) -> str:
        """Name of the numbers in `weights`: `weights`, or what replaces them."""
        return "weights" if self.derived is None else self.derived.measure

    @property
    def label(self) -> int | str:
        """The index of the layer, or what several have become."""
        return self.layer if self.derived is None or self.derived.layer is None else self.derived.layer

    def head_label(self, head: int) -> int | str:
        """Return the index of a head, or what several have become."""
        return head if self.derived is None or self.derived.head is None else self.derived.head

    @property
    def num_heads(self) -> int:
        """`H`, how many query heads the layer has."""
        return self.cells[0]

    @property
    def num_queries(self) -> int:
        """`Q`, how many query positions."""
        return self.cells[1]

    @property
    def num_keys(self) -> int:
        """`K`, how many key positions."""
        return self.cells[2]

    @property
    def num_groups(self) -> int:
        """`Hkv`, how many key/value heads the layer has."""
        grouped = self.k if self.v is None else self.v
        return self.num_heads if grouped is None else len(grouped)

    def is_proven(self, dtype: str) -> bool:
        """Return whether the proof's error is no more than rounding in the type that the model computes in."""
        return self.proof is None or self.proof.max_abs_error <= noise_floor(dtype) * self.proof.magnitude

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shape of every array of the layer, with grouped key/value heads as they are."""
        if self.derived is not None:
            return {self.measure: list(self.cells)}
        shapes = {name: list(array.shape) for name in "qkv" if (array := getattr(self, name)) is not None}
        shapes |= {"scores": list(self.cells), "weights": list(self.cells)}
        return shapes if self.v is None else shapes | {"output": [*self.cells[:2], self.v.shape[-1]]}

    def head(self, head: int, queries: Sequence[int] | None = None) -> HeadTrace:
        """Return one head, over all query rows or the given ones.

        Raises:
            UsageError: there is no such head, or no such query row.
        """
        (index,) = Indices.of("head", [head]).resolve(self.num_heads, f"layer {self.layer}")
        rows = np.arange(self.num_queries) if queries is None else np.asarray(queries, dtype=int)
        outside = rows[(rows < -self.num_queries) | (rows >= self.num_queries)]
        if outside.size:
            raise UsageError(f"query {outside[0]} is out of range: there are {self.num_queries}")
        return HeadTrace(self, index, rows % self.num_queries)

    @property
    def stages(self) -> Stages:
        """The stages of the heads that were asked for, over all query rows."""
        return Stages(self, self.heads, np.arange(self.num_queries))

    @property
    def weights(self) -> Float[np.ndarray, "H Q K"]:
        """The weights of the heads that were asked for, in one array; `head(h).blocks()` reads those of a long text."""
        return self.stages.weights

    @property
    def scores(self) -> Float[np.ndarray, "H Q K"]:
        """Their scores, before the mask; recorded ones are -inf where masked."""
        return self.stages.scores

    @property
    def allowed(self) -> Bool[np.ndarray, "H Q K"]:
        """The cells of `mask` for these heads: True where the query may attend to the key."""
        return np.broadcast_to(self.stages.mask, (len(self.heads), *self.cells[1:]))

    @property
    def mask_cells(self) -> Bool[np.ndarray, "#H Q K"]:
        """The cells of `mask` for every head, in one plane where the mask has one for all."""
        return self.mask.rows(list(range(self.num_heads)), np.arange(self.num_queries))

    def recorded(self, name: str) -> Float[np.ndarray, "_ _ _"]:
        """Return `q`, `k` or `v`; NotExposedError where it was not recorded."""
        if (array := getattr(self, name)) is None:
            raise NotExposedError(f"layer {self.label} has only its {self.measure}, not its {name.upper()}")
        return np.asarray(array)

    def __repr__(self) -> str:
        cells = f"{self.num_queries} queries × {self.num_keys} keys"
        return f"LayerTrace(layer {self.label}, {self.kind}, {plural(len(self.heads), 'head')}, {cells})"

    def projected(self, queries: Sequence[int]) -> Float[np.ndarray, "Q E"] | None:
        """Return the concatenated heads times W_o for the given query rows, or None without a W_o."""
        if self.out_projection is None:
            return None
        outputs = [self.head(head, queries).output for head in range(self.num_heads)]
        projected = np.concatenate(outputs, axis=-1) @ self.out_projection
        return projected if self.out_bias is None else projected + self.out_bias

    def fully_masked(self, queries: Sequence[int]) -> Bool[np.ndarray, "H Q"]:
        """Return which of the given query rows may attend to no key, for each head that was asked for."""
        heads = list(self.heads)
        if isinstance(self.mask, RuleMask) and self.mask.allows_own:
            return np.zeros((len(heads), len(queries)), bool)
        blocks = row_blocks(np.asarray(queries, dtype=int), self.num_keys * len(heads))
        blind = [~self.mask.rows(heads, rows).any(axis=-1) for rows in blocks]
        return np.broadcast_to(np.concatenate(blind, axis=1), (len(heads), len(queries)))


@dataclass(frozen=True, eq=False, repr=False)
class HeadTrace(Displayed, Tabular, Drawable):
    """One head of a layer, for some of its query rows; every array is derived when it is first asked for.

    `scores`, `mask` and `weights` have a row for every query and a column for every key. Long sentences are read
    through `blocks`, which never makes them whole.
    """

    layer: LayerTrace
    head: int
    queries: Int[np.ndarray, " Q"]

    def blocks(self) -> Iterator[HeadTrace]:
        """Yield the head in consecutive blocks of its rows; a short sentence is one block, the head itself."""
        for queries in row_blocks(self.queries, self.layer.num_keys):
            yield self if len(queries) == len(self.queries) else HeadTrace(self.layer, self.head, queries)

    def composition(self, query: str | int, key: str | int | None = None) -> Any:
        """Return the score of a query token and a key, by default its heaviest, split by what wrote the two.

            trace.layer(1).head(3).composition("fell", "cat").to_dataframe()

        Raises:
            UsageError: the layer was not taken from its trace, or no token, or several, are called that.
            NotExposedError: the native engine did not compute the trace.
        """
        return presentation().composed(self, query, key)

    def __repr__(self) -> str:
        where = f"layer {self.layer.label}, head {self.layer.head_label(self.head)}"
        return f"HeadTrace({where}, {len(self.queries)} queries × {self.layer.num_keys} keys)"

    @property
    def key_head(self) -> int:
        """The key/value head this head reads."""
        return self.stages.key_heads[0]

    @property
    def q(self) -> Float[np.ndarray, "Q D"]:
        """Queries."""
        return self.layer.recorded("q")[self.head, self.queries]

    @property
    def k(self) -> Float[np.ndarray, "K D"]:
        """Keys that this head reads."""
        return self.layer.recorded("k")[self.key_head]

    @property
    def v(self) -> Float[np.ndarray, "K Dv"]:
        """Values that this head reads."""
        return self.layer.recorded("v")[self.key_head]

    @property
    def scores(self) -> Float[np.ndarray, "Q K"]:
        """Scaled, biased and softcapped, before the mask; recorded ones are -inf where masked."""
        return self.stages.scores[0]

    @property
    def mask(self) -> Bool[np.ndarray, "Q K"]:
        """True where the query may attend to the key."""
        return self.stages.mask[0]

    @property
    def weights(self) -> Float[np.ndarray, "Q K"]:
        """Softmax of the masked scores over the keys."""
        return self.stages.weights[0]

    @property
    def drawn(self) -> Bool[np.ndarray, "Q K"]:
        """Weights to show as numbers: all but the masked ones that are exactly zero.

        A query that may attend to nothing still has weights, NaN or spread over masked keys, and they are not hidden.
        """
        return self.mask | (self.weights != 0)

    def top_keys(self, columns: slice | list[int], most: int) -> Iterator[tuple[Places, Float[np.ndarray, " N"]]]:
        """Yield, for each query, the places of its `most` heaviest keys among the columns, and their weights."""
        for block in self.blocks():
            weights = block.weights[:, columns]
            for row, places in zip(weights, heaviest(weights, block.drawn[:, columns], most), strict=True):
                yield places, row[places]

    @cached_property
    def stages(self) -> Stages:
        """The stages of this head, with an axis for the head: `[1, Q, K]`."""
        return Stages(self.layer, (self.head,), self.queries)

    @cached_property
    def output(self) -> Float[np.ndarray, "Q Dv"]:
        """Weights·V, the context vectors."""
        return np.concatenate([block.stages.output[0] for block in self.blocks()])


def _is_fit(arrays: Mapping[str, np.ndarray[Any, Any]]) -> bool:
    """Return whether the arrays of a layer agree on the sizes of their axes; only Dv may be empty."""
    sizes: dict[str, int] = {}
    for name, array in arrays.items():
        axes = ["H"] if name == "sinks" and array.ndim == 1 else _AXES[name].split()
        if len(axes) != array.ndim:
            return False
        for axis, size in zip(axes, array.shape, strict=True):
            if (axis, size) != ("#H", 1) and sizes.setdefault(axis.lstrip("#"), size) != size:
                return False
            if size == 0 and axis != "Dv":
                return False
    heads = sizes["H"]
    projected = heads * sizes.get("Dv", 0)
    is_paired = ("q" in arrays) == ("k" in arrays)
    return is_paired and heads % sizes.get("Hkv", heads) == 0 and sizes.get("HDv", projected) == projected


def heaviest(weights: Float[np.ndarray, "Q K"], counted: Bool[np.ndarray, "Q K"], most: int) -> list[Places]:
    """Return the places of the `most` largest weights of each row, the largest first.

    A row has fewer where fewer of its cells are counted. NaN comes before every number, and of equal weights the
    earlier key comes first.
    """
    # Negated, so that a stable sort keeps the order of equal keys. An infinite weight is far below NaN and far above
    # the cells that are not counted.
    costs = np.clip(-weights.astype(np.float64), -_FAR, _FAR)
    costs[np.isnan(weights)] = -np.inf
    costs[~counted] = np.inf
    bound = min(most, costs.shape[1]) - 1
    limits = np.partition(costs, bound, axis=1)[:, bound]
    ranked = []
    for cost, limit, row in zip(costs, limits, counted, strict=True):
        places = np.flatnonzero(row & (cost <= limit))
        ranked.append(places[np.argsort(cost[places], kind="stable")][:most])
    return ranked
