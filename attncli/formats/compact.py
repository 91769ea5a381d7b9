"""One row a head, for corpora: the metrics and the weights of a sentence in as few bytes as they can be read from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.analysis.metric_names import NAMES
from attncli.analysis.metrics import trace_metrics
from attncli.attention import CELLS
from attncli.errors import InputError, UsageError
from attncli.formats.parquet import typed, with_kept
from attncli.trace.layer import Stages, stages_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from attncli.trace.layer import LayerTrace
    from attncli.trace.trace import Trace
    from attncli.trace.view import View

PARTS = ("tokens", "metrics", "weights")
_PLACE = {"sentence": "int64", "layer": "int32", "kind": "string", "head": "int32", "queries": "int32", "keys": "int32"}
_MOST = 2**31  # entries of a list, of which a file has offsets of 32 bits


def check_compact(view: View, is_derived: bool) -> None:
    """Refuse what a row of a whole head has no place for.

    Raises:
        UsageError: it was asked for.
    """
    if odd := sorted(view.parts(PARTS) - set(PARTS)):
        raise UsageError(f"--show {odd[0]} does not apply to --compact, which keeps {', '.join(PARTS)}")
    if is_derived:
        raise UsageError("--compact keeps weights as they are; it goes without --words, --norms, --rollout, --mean")
    for option, given in (
        ("query", view.queries),
        ("key", view.keys),
        ("rows", view.span is not None),
        ("hide-special", view.hide_special),
    ):
        if given:
            raise UsageError(f"--{option} does not apply to --compact, which keeps whole heads; give --top-keys N")


def compact_types(view: View) -> dict[str, str]:
    """Return the columns that are numbers or texts, with their types; lists come behind them."""
    return _PLACE | (dict.fromkeys(NAMES, "float32") if "metrics" in view.parts(PARTS) else {})


def tables(number: int, trace: Trace, view: View) -> Iterator[Any]:
    """Yield the heads of a trace: of a short sentence all at once, of a long one as many as there is room for.

    A row's `weights` are those of its head `[Q, K]`, row after row, in float16; with `view.top_keys` they are
    `[Q, min(N, K)]`, of the keys in `top_keys`, the heaviest first.
    """
    parts = view.parts(PARTS)
    measured = trace_metrics(trace).heads if "metrics" in parts else None
    waiting: list[dict[str, Any]] = []
    cells = before = 0
    for layer in trace.layers:
        metrics = None if measured is None else measured[before : before + len(layer.heads)]
        before += len(layer.heads)
        own = layer.num_queries * layer.num_keys
        together = max(CELLS // own, 1) if "weights" in parts else len(layer.heads)
        for first in range(0, len(layer.heads), together):
            heads = slice(first, first + together)
            waiting.append(_columns(trace, layer, heads, metrics, view))
            cells += own * len(layer.heads[heads])
            if "weights" in parts and cells >= CELLS:
                yield _table(number, waiting, trace, view)
                waiting, cells = [], 0
    if waiting:
        yield _table(number, waiting, trace, view)


def _columns(
    trace: Trace, layer: LayerTrace, heads: slice, metrics: Float[np.ndarray, "H M"] | None, view: View
) -> dict[str, Any]:
    """Return the columns of some heads of a layer: arrays with one entry a head, lists as `[H, N]`."""
    parts, count = view.parts(PARTS), len(layer.heads[heads])
    columns: dict[str, Any] = {
        "layer": np.full(count, layer.layer),
        "kind": np.full(count, layer.kind),
        "head": np.array(layer.heads[heads]),
        "queries": np.full(count, layer.num_queries),
        "keys": np.full(count, layer.num_keys),
    }
    if metrics is not None:
        columns |= dict(zip(NAMES, metrics[heads].T, strict=True))
    if "tokens" in parts:
        for name, tokens in zip(("query_tokens", "key_tokens"), trace.sides(layer), strict=True):
            columns[name] = [[token.text for token in tokens]] * count
    if "weights" in parts:
        columns |= _weights(layer, layer.heads[heads], view.top_keys)
    return columns


def _weights(layer: LayerTrace, heads: tuple[int, ...], most: int | None) -> dict[str, Any]:
    """Return the weights of some heads, `[H, Q·K]`, or the heaviest of each query and their keys, `[H, Q·N]`."""
    queries, keys = layer.num_queries, layer.num_keys
    kept = keys if most is None else min(most, keys)
    if queries * kept >= _MOST:
        raise InputError(f"{queries} queries × {kept} keys are more weights than a row holds; give --top-keys N")
    weights = np.empty((len(heads), queries, kept), np.float16)
    places = np.empty(weights.shape, np.int32) if most is not None else None
    for block in stages_of(layer, heads, np.arange(queries)):
        first = heads.index(block.heads[0])
        where = slice(first, first + len(block.heads)), block.queries
        if places is None:
            weights[where] = block.weights
        else:
            places[where] = found = _heaviest(block, kept)
            weights[where] = np.take_along_axis(block.weights, found, axis=-1)
    lists: dict[str, np.ndarray[Any, Any]] = (
        {"weights": weights} if places is None else {"top_keys": places, "weights": weights}
    )
    return {name: array.reshape(len(heads), -1) for name, array in lists.items()}


def _heaviest(block: Stages, most: int) -> Int[np.ndarray, "H Q N"]:
    """Return the keys of the largest weights of each query, as `attncli.trace.top_keys.heaviest` has them.

    Behind them stand masked keys, where the query may attend to fewer.
    """
    weights = block.weights.astype(np.float32, copy=False)
    keys = weights.shape[-1]
    # As whole numbers of the same order, with the place of the key in the lower half: all differ, and sorting is exact.
    bits = weights.view(np.uint32)
    ranks = np.where(bits >> 31, ~bits, bits | np.uint32(2**31)).astype(np.uint64) << np.uint64(32)
    ranks[~(block.mask | (weights != 0))] = 0
    ranks |= np.arange(keys - 1, -1, -1, dtype=np.uint64)
    ranks.partition(keys - most, axis=-1)
    best = np.sort(ranks[..., keys - most :], axis=-1)[..., ::-1]
    return (keys - 1 - (best & np.uint64(2**32 - 1))).astype(np.intp)


def _table(number: int, columns: list[dict[str, Any]], trace: Trace, view: View) -> Any:
    import pyarrow

    types = compact_types(view)
    flat = {name: np.concatenate([one[name] for one in columns]) for name in types if name in columns[0]}
    flat = {"sentence": np.full(len(flat["head"]), number), **flat}
    # What is not defined is null.
    table = pyarrow.table({name: pyarrow.array(one, from_pandas=True) for name, one in flat.items()})
    table = table.cast(typed(types))
    for name in [name for name in columns[0] if name not in flat]:
        table = table.append_column(name, _lists([one[name] for one in columns]))
    return with_kept(table, trace.kept)


def _lists(parts: list[Any]) -> Any:
    """Return the rows of `[H, N]`, which are arrays or lists of texts, as a column of lists."""
    import pyarrow

    if isinstance(parts[0], list):
        return pyarrow.array([texts for part in parts for texts in part], pyarrow.list_(pyarrow.string()))
    lengths = np.repeat([part.shape[1] for part in parts], [len(part) for part in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = pyarrow.array(np.concatenate([part.ravel() for part in parts]))
    return pyarrow.ListArray.from_arrays(offsets, values)
