"""One layer of a Trace: its recorded arrays, and the heads derived from them.

Linear arrays (queries, keys, values) are recorded whole. Quadratic ones (scores, weights) are derived on demand by
`attncli.attention`, for the chosen heads and query rows. The mask and the bias stay in their smallest exact form: a
rule, booleans, or one array shared over heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

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


class RowSource(Protocol):
    """Numbers for every head, query and key, read as some rows of one head at a time.

    A recorded array `[H, Q, K]` is one; `analysis.derive` has another, which computes rows on demand.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """`(H, Q, K)`."""

    def __getitem__(self, place: tuple[int, Int[np.ndarray, " Q"]], /) -> Float[np.ndarray, "Q K"]:
        """Return some query rows of one head, given the head and the rows."""


class Stages:
    """The stages of attention, each derived on first use, unless the layer recorded it.

    Attributes:
        layer: the layer.
        heads: some of its heads, at least one.
        queries: some of its query rows.
    """

    def __init__(self, layer: LayerTrace, heads: tuple[int, ...], queries: Int[np.ndarray, " Q"]) -> None:
        self.layer = layer
        self.heads = heads
        self.queries = queries
        self._peaks: tuple[Float[np.ndarray, "H Q"], Float[np.ndarray, "H Q"]] | None = None

    @cached_property
    def scores(self) -> Float[np.ndarray, "H Q K"]:
        """Scaled, biased and softcapped, before the mask; recorded ones are −inf where masked."""
        layer = self.layer
        if layer.recorded_scores is not None:
            return self._rows(layer.recorded_scores)
        assert layer.q is not None
        assert layer.k is not None
        assert layer.scale is not None
        bias = layer.bias
        if bias is not None:
            bias = bias[:, self.queries] if len(bias) == 1 else self._rows(bias)
        products = attention.dot_products(self._rows(layer.q), layer.k[_slice_or_list(self.key_heads)])
        return attention.attention_scores(products, layer.scale, bias, layer.softcap, out=products)

    @cached_property
    def mask(self) -> Bool[np.ndarray, "#H Q K"]:
        """True where the query may attend to the key; one plane where the heads agree."""
        return self.layer.mask.rows(list(self.heads), self.queries)

    @cached_property
    def weights(self) -> Float[np.ndarray, "H Q K"]:
        """Softmax of the masked scores over the keys."""
        layer = self.layer
        if layer.recorded_weights is not None:
            return self._rows(layer.recorded_weights)
        masked = attention.masked_scores(self.scores, self.mask, layer.fill)
        is_kept = masked is self.scores  # where nothing is masked
        highest, exponentials, totals = attention.softmax_parts(masked, self.sinks, None if is_kept else masked)
        if layer.sinks is None:  # a sink may be above every score
            self._peaks = (1 / totals)[..., 0], highest[..., 0]
        return np.divide(exponentials, totals, out=exponentials)

    def peaks(self) -> tuple[Float[np.ndarray, "H Q"], Float[np.ndarray, "H Q"] | None]:
        """Return the largest weight of each row that has a key, and its highest allowed score if there are scores."""
        largest = self.weights.max(axis=-1) if self._peaks is None else self._peaks[0]
        if self._peaks is not None or "scores" in self.layer.missing:
            return self._peaks or (largest, None)
        return largest, np.where(self.mask, self.scores, -np.inf).max(axis=-1)

    @property
    def sinks(self) -> Float[np.ndarray, " H"] | Float[np.ndarray, "H Q"] | None:
        """One more logit of every head, or of every query of it; None without."""
        sinks = None if self.layer.sinks is None else self.layer.sinks[list(self.heads)]
        return sinks if sinks is None or sinks.ndim == 1 else sinks[:, self.queries]

    @cached_property
    def output(self) -> Float[np.ndarray, "H Q Dv"]:
        """Weights·V, the context vectors."""
        assert self.layer.v is not None
        return attention.attention_output(self.weights, self.layer.v[_slice_or_list(self.key_heads)])

    @property
    def key_heads(self) -> list[int]:
        """The key/value head that each head reads (grouped-query attention, Ainslie et al. 2023)."""
        size = self.layer.num_heads // self.layer.num_groups
        return [head // size for head in self.heads]

    def _rows(self, of: RowSource) -> Float[np.ndarray, "H Q N"]:
        if not isinstance(of, np.ndarray):
            return np.stack([of[head, self.queries] for head in self.heads])
        return of[_slice_or_list(self.heads)][:, _slice_or_list(self.queries.tolist())]


def stages_of(layer: LayerTrace, heads: Sequence[int], queries: Int[np.ndarray, " Q"]) -> Iterator[Stages]:
    """Yield the stages of heads in order: as many heads at once as fit into a block, and their rows in blocks."""
    together = max(attention.CELLS // max(len(queries) * layer.num_keys, 1), 1)
    for start in range(0, len(heads), together):
        block = tuple(heads[start : start + together])
        for rows in attention.row_blocks(queries, layer.num_keys * len(block)):
            yield Stages(layer, block, rows)


def merge_layers(layers: Sequence[LayerTrace]) -> Sequence[LayerTrace]:
    """Merge layers that share a mask into a single one that has the heads of all, if a block has room for these.

    One layer of many heads is faster than many small layers. Layers that are computed in different ways are returned
    as they are.
    """
    first = layers[0]
    heads, queries, keys = first.cells
    chosen = tuple(number * heads + head for number, layer in enumerate(layers) for head in layer.heads)
    has_room = len(chosen) * queries * keys <= attention.CELLS
    ways = set(map(_way, layers))
    if len(layers) == 1 or not has_room or not isinstance(first.mask, RuleMask) or len(ways) > 1 or None in ways:
        return layers
    query, key = (np.concatenate([getattr(layer, name) for layer in layers]) for name in "qk")
    return [
        LayerTrace(
            layer=first.layer,
            kind=first.kind,
            q=query,
            k=key,
            v=np.empty((*key.shape[:2], 0), key.dtype),
            scale=first.scale,
            mask=first.mask._replace(heads=len(query)),
            heads=chosen,
            softcap=first.softcap,
            fill=first.fill,
        )
    ]


def _way(layer: LayerTrace) -> tuple[Any, ...] | None:
    """Return the formula of a layer's weights, for comparison; None where more than queries and keys goes into them."""
    if (
        layer.q is None
        or layer.k is None
        or any(extra is not None for extra in (layer.bias, layer.sinks, layer.recorded_weights))
    ):
        return None
    return layer.q.shape, layer.k.shape, layer.scale, layer.softcap, layer.fill


def _slice_or_list(indices: Sequence[int]) -> slice | list[int]:
    """Return consecutive indices as a slice, which copies nothing."""
    listed = list(indices)
    first = listed[0] if listed else 0
    return slice(first, first + len(listed)) if listed == list(range(first, first + len(listed))) else listed


_LARGEST = float(np.finfo(np.float32).max)


class Proof(NamedTuple):
    """Largest difference of the recorded arrays from an independent computation."""

    max_abs_error: float  # largest absolute difference over all heads, positions and dimensions
    against: str  # the independent computation
    of: str = "weights·V"  # the compared arrays
    # the largest of the compared numbers, or of those they are a mean of; rounding grows with it
    magnitude: float = 1.0


def max_abs_diff(ours: Float[np.ndarray, "*N"], theirs: Float[np.ndarray, "*N"]) -> float:
    """Return the largest absolute difference; 0 for NaN in both, as of a query without keys, NaN for NaN in one."""
    return float(np.where(np.isnan(ours) & np.isnan(theirs), 0, np.abs(ours - theirs)).max())


class Derived(NamedTuple):
    """Meaning of a derived layer's numbers, which replace its weights."""

    measure: str = "weights"  # `weights`, or `norms`
    is_distribution: bool = True  # whether they are shares of one, as weights are, so that metrics mean something
    layer: str | None = None  # the mean or product of several layers, such as `mean`; None for a single layer
    head: str | None = None  # likewise of heads


ARRAYS = (
    "q", "k", "v", "bias", "sinks", "inputs", "out_projection", "out_bias", "recorded_scores", "recorded_weights",
)  # fmt: skip
_NOT_DERIVED = frozenset({"embeddings", "q", "k", "v", "scores", "output"})


@dataclass(frozen=True, eq=False, repr=False)
class LayerTrace(Displayed, Tabular, Drawable):
    """One layer's attention.

    Most layers have queries and keys, and scores and weights are derived. A model whose softmax was recorded has these
    two as they were; then q, k and v may be missing, and so may the scale, where scores are more than scaled products.
    A derived layer has a mask and weights alone.

    Attributes:
        layer: index of the layer in the model.
        kind: `self`, or `encoder`, `decoder`, `cross`.
        q: queries as they enter the dot product (after any rotation), `[H, Q, D]`.
        k: keys, `[Hkv, K, D]`.
        v: values, `[Hkv, K, Dv]`; they may be computed on first use.
        scale: the factor of q·k; None where that does not give the recorded scores.
        mask: which query may attend to which key.
        heads: the chosen heads; every head is recorded.
        bias: added to the scaled products, `[1, Q, K]` or `[H, Q, K]`.
        softcap: c in c·tanh(scores/c).
        sinks: one more logit per head in the softmax, `[H]`, or per head and query, `[H, Q]`.
        fill: added to a forbidden score; −inf replaces it.
        proof: how well the recorded arrays explain the model's own output.
        inputs: the input of the query projection, `[Q, E]` (toy layers and live modules).
        out_projection: W_o, `[H·Dv, E]`.
        out_bias: its bias, `[E]`.
        recorded_scores: the input of the softmax, −inf where masked, `[H, Q, K]`; None where they are computed.
        recorded_weights: its output, `[H, Q, K]`, or the numbers of `derived`; None where they are computed.
        derived: the meaning of numbers that replace weights; None where they are the model's weights.
        whole: the `Trace` of the layer, which `Trace.layer` sets, for the names of tokens; else None.
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
    recorded_weights: RowSource | None = None
    derived: Derived | None = None
    whole: Any = None

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit each other, with their names and the expected sizes."""
        self._lay_out()
        heads, queries, keys = cells = self._checked_cells()
        concatenated = heads * (0 if self.v is None else self.v.shape[-1])
        embedding = 0 if self.out_projection is None else self.out_projection.shape[-1]
        expected = {
            "bias": ((1, queries, keys), cells),
            "recorded_scores": (cells,),
            "recorded_weights": (cells,),
            "sinks": ((heads,), (heads, queries)),
            "out_projection": ((concatenated, embedding),),
            "out_bias": ((embedding,),),
        }
        for name, shapes in expected.items():
            array = getattr(self, name)
            if array is not None and array.shape not in shapes:
                wanted = " or ".join(str(list(shape)) for shape in shapes)
                raise InputError(f"{name.removeprefix('recorded_')} has shape {list(array.shape)}; expected {wanted}")
        if self.inputs is not None and (self.inputs.ndim != 2 or len(self.inputs) != queries):
            raise InputError(f"inputs has shape {list(self.inputs.shape)}; expected [{queries}, width]")
        if self.scale is not None and not abs(self.scale) <= _LARGEST:
            raise InputError(f"the scale is {self.scale}; expected a number that float32 holds")
        if self.softcap is not None and not self.softcap > 0:
            raise InputError(f"the softcap is {self.softcap}; expected a number above 0")
        if self.fill != -np.inf and not self.fill <= FORBIDDEN_BELOW:
            raise InputError(f"the fill is {self.fill}; expected -inf or a number that no score comes near")

    def _lay_out(self) -> None:
        """Make every array contiguous in C order, as a saved one is when it is read back.

        A product or a sum of the same numbers may differ in its last digit where they stand in memory in another order,
        as transposed ones do: BLAS takes another kernel for them, and NumPy adds them up in another order.
        """
        for name in ARRAYS:
            array = getattr(self, name)
            # A broadcast scalar takes no memory, and has no order.
            if isinstance(array, np.ndarray) and not array.flags.c_contiguous and any(array.strides):
                object.__setattr__(self, name, np.ascontiguousarray(array))

    def _checked_cells(self) -> tuple[int, int, int]:
        """Return H, Q and K, after checking that q, k and v agree on them."""
        computes = self.recorded_weights is None or (self.recorded_scores is None and self.derived is None)
        if computes and (self.q is None or self.k is None or self.v is None or self.scale is None):
            raise InputError("a layer needs q, k, v and a scale, or recorded scores and weights")
        arrays = {name: array for name in "qkv" if (array := getattr(self, name)) is not None}
        if any(len(array.shape) != 3 or 0 in array.shape[: 3 if name in "qk" else 2] for name, array in arrays.items()):
            raise InputError(f"the shapes {_shapes(arrays)} are not [heads, positions, width]")
        heads, queries, keys = self.cells
        groups = {len(arrays[name]) for name in "kv" if name in arrays}
        fits = (self.q is None) == (self.k is None) and len(groups) <= 1 and not any(heads % count for count in groups)
        fits &= self.k is None or self.q is None or self.k.shape[2] == self.q.shape[2]
        fits &= self.v is None or self.v.shape[1] == keys
        if not fits:
            raise InputError(
                f"the shapes {_shapes(arrays)} do not fit. q and k need one width; k and v one length and "
                "number of heads. The heads of q are a multiple of those of k"
            )
        return heads, queries, keys

    @property
    def cells(self) -> tuple[int, int, int]:
        """`(H, Q, K)`, the number of heads, query positions and key positions."""
        if self.q is not None and self.k is not None:
            return len(self.q), self.q.shape[1], self.k.shape[1]
        assert self.recorded_weights is not None
        heads, queries, keys = self.recorded_weights.shape
        return heads, queries, keys

    @property
    def capture(self) -> str:
        """`exact`; `weights-only` where not all of q, k and v are known; `derived`."""
        if self.derived is not None:
            return "derived"
        return "weights-only" if self.missing else "exact"

    @property
    def missing(self) -> frozenset[str]:
        """Names of the parts of a view that the layer lacks."""
        if self.derived is not None:
            return _NOT_DERIVED if self.derived.is_distribution else _NOT_DERIVED | {"metrics"}
        names = {name for name in "qkv" if getattr(self, name) is None}
        return frozenset(names | {"output"} if "v" in names else names)

    @property
    def measure(self) -> str:
        """Name of the numbers in `weights`: `weights` itself, or that of a derived layer."""
        return "weights" if self.derived is None else self.derived.measure

    @property
    def label(self) -> int | str:
        """The index of the layer, or the name of a derived one."""
        return self.layer if self.derived is None or self.derived.layer is None else self.derived.layer

    def head_label(self, head: int) -> int | str:
        """Return the index of a head, or the name of a derived one."""
        return head if self.derived is None or self.derived.head is None else self.derived.head

    @property
    def num_heads(self) -> int:
        """`H`, the number of query heads."""
        return self.cells[0]

    @property
    def num_queries(self) -> int:
        """`Q`, the number of query positions."""
        return self.cells[1]

    @property
    def num_keys(self) -> int:
        """`K`, the number of key positions."""
        return self.cells[2]

    @property
    def num_groups(self) -> int:
        """`Hkv`, the number of key/value heads."""
        grouped = self.k if self.v is None else self.v
        return self.num_heads if grouped is None else len(grouped)

    def is_proven(self, dtype: str) -> bool:
        """Return whether the proof's error is at most the rounding of the type that the model computes in."""
        return self.proof is None or self.proof.max_abs_error <= noise_floor(dtype) * self.proof.magnitude

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shape of every array of the layer, with grouped key/value heads as they are."""
        cells = list(self.cells)
        if self.derived is not None:
            return {self.measure: cells}
        shapes = {name: list(array.shape) for name in "qkv" if (array := getattr(self, name)) is not None}
        shapes |= {"scores": cells, "weights": cells}
        return shapes if self.v is None else shapes | {"output": [*cells[:2], self.v.shape[-1]]}

    def head(self, head: int, queries: Sequence[int] | None = None) -> HeadTrace:
        """Return one head, over all query rows or the given ones.

        Raises:
            UsageError: there is no such head, or no such query row.
        """
        (index,) = Indices.of("head", [head]).resolve(self.num_heads, f"layer {self.layer}")
        if queries is None:
            return HeadTrace(self, index, np.arange(self.num_queries))
        rows = np.asarray(queries, dtype=int)
        outside = rows[(rows < -self.num_queries) | (rows >= self.num_queries)]
        if outside.size:
            raise UsageError(f"query {outside[0]} is out of range: there are {self.num_queries}")
        return HeadTrace(self, index, rows % self.num_queries)

    @property
    def weights(self) -> Float[np.ndarray, "H Q K"]:
        """The weights of the chosen heads, in one array; `head(h).blocks()` reads those of a long text."""
        return Stages(self, self.heads, np.arange(self.num_queries)).weights

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
        """Return which of the given query rows may attend to no key, for each chosen head."""
        heads = list(self.heads)
        if isinstance(self.mask, RuleMask) and self.mask.allows_own:
            return np.zeros((len(heads), len(queries)), bool)
        blocks = row_blocks(np.asarray(queries, dtype=int), self.num_keys * len(heads))
        blind = [~self.mask.rows(heads, rows).any(axis=-1) for rows in blocks]
        return np.broadcast_to(np.concatenate(blind, axis=1), (len(heads), len(queries)))


def _shapes(arrays: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())


class HeadTrace(Displayed, Tabular, Drawable):
    """One head of a layer, for some of its query rows; every array is derived on first use.

    `scores`, `mask` and `weights` have a row for every query and a column for every key. Long sentences are read
    through `blocks`, which never makes them whole.
    """

    def __init__(self, layer: LayerTrace, head: int, queries: Int[np.ndarray, " Q"]) -> None:
        self.layer = layer
        self.head = head
        self.queries = queries

    def blocks(self) -> Iterator[HeadTrace]:
        """Yield the head in consecutive blocks of its rows; a short sentence is one block, the head itself."""
        blocks = row_blocks(self.queries, self.layer.num_keys)
        if len(blocks) == 1:
            yield self
            return
        for queries in blocks:
            yield HeadTrace(self.layer, self.head, queries)

    def composition(self, query: str | int, key: str | int | None = None) -> Any:
        """Return the score of one cell, split by what wrote its key and its query.

            trace.layer(1).head(3).composition("fell", "cat").to_dataframe()

        Args:
            query: the token that attends: its text, or its index.
            key: the token that is attended to: its text, or its index; None is the query's heaviest key.

        Raises:
            UsageError: the layer was not taken from its trace, or no token, or several, are called that.
            NotExposedError: the native engine did not compute the trace.
        """
        return presentation().composed(self, query, key)

    def __repr__(self) -> str:
        place = f"layer {self.layer.label}, head {self.layer.head_label(self.head)}"
        return f"HeadTrace({place}, {len(self.queries)} queries × {self.layer.num_keys} keys)"

    @property
    def key_head(self) -> int:
        """The key/value head this head reads."""
        return self.stages.key_heads[0]

    @property
    def q(self) -> Float[np.ndarray, "Q D"]:
        """Queries."""
        return self._recorded("q")[self.head, self.queries]

    @property
    def k(self) -> Float[np.ndarray, "K D"]:
        """Keys that this head reads."""
        return self._recorded("k")[self.key_head]

    @property
    def v(self) -> Float[np.ndarray, "K Dv"]:
        """Values that this head reads."""
        return self._recorded("v")[self.key_head]

    def _recorded(self, name: str) -> Float[np.ndarray, "_ _ _"]:
        array = getattr(self.layer, name)
        if array is None:
            raise NotExposedError(f"layer {self.layer.layer} has only its weights, not its {name.upper()}")
        return np.asarray(array)

    @property
    def scores(self) -> Float[np.ndarray, "Q K"]:
        """Scaled, biased and softcapped, before the mask; recorded ones are −inf where masked."""
        return self.stages.scores[0]

    @property
    def mask(self) -> Bool[np.ndarray, "Q K"]:
        """True where the query may attend to the key."""
        return self.stages.mask[0]

    @property
    def weights(self) -> Float[np.ndarray, "Q K"]:
        """Softmax of the masked scores over the keys."""
        return self.stages.weights[0]

    @cached_property
    def stages(self) -> Stages:
        """The stages of this head, with an axis for the head: `[1, Q, K]`."""
        return Stages(self.layer, (self.head,), self.queries)

    @cached_property
    def output(self) -> Float[np.ndarray, "Q Dv"]:
        """Weights·V, the context vectors."""
        self._recorded("v")
        return np.concatenate([block.stages.output[0] for block in self.blocks()])
