"""Derived traces: merged, averaged, multiplied or value-weighted numbers in place of weights.

A derived trace is a Trace like any other, so every view and every format reads it. Each step takes layers and gives
layers, whose numbers are made for the block of heads and query rows that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from attncli.attention import row_blocks, vector_norms
from attncli.errors import NotExposedError, UsageError
from attncli.masks.expressions import Mask, RuleMask, smallest
from attncli.text import as_ranges
from attncli.trace.layer import Derived, LayerTrace, Stages
from attncli.trace.selection import Indices
from attncli.trace.tokenization import words_of
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Derivation, Mean, Origin, Trace, texts_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from attncli.checkpoints.options import Choice

    Layers = tuple[LayerTrace, ...]
    Rows = Int[np.ndarray, " Q"]
    Block = Float[np.ndarray, "H Q K"]


def derive(
    trace: Trace,
    *,
    norms: bool = False,
    rollout: bool = False,
    words: bool = False,
    mean: Mean | None = None,
    layer: Choice = None,
) -> Trace:
    """Return a trace of derived numbers; the steps follow each other in the order of the arguments.

        attncli.derive(trace, words=True, mean="heads")

    Without any step it is the trace itself.

    Args:
        trace: as it was recorded; for a rollout, every layer from the first one on.
        norms: ‖weight·value‖ instead of weights.
        rollout: attention multiplied through the layers.
        words: merge word pieces.
        mean: what to average over: `heads`, `layers`, or `all`, which is both.
        layer: the layers whose rollout is wanted; None is the last one that is there.

    Raises:
        UsageError: the steps do not go together, or not with this trace, or it is a derived one.
        NotExposedError: the trace lacks what a step needs.
    """
    trace.check_recorded("derive")
    if mean not in (None, *get_args(Mean)):
        raise UsageError(f"mean {mean!r}: expected heads, layers or all")
    if layer is not None and not rollout:
        raise UsageError("layer applies to rollout=True; it chooses the layers whose rollout is returned")
    chosen = None if layer is None else Indices.of("layer", layer)
    return derived_trace(trace, Derivation(norms, rollout, words, mean, chosen))


def derived_trace(trace: Trace, derivation: Derivation) -> Trace:
    """Return the trace that a derivation makes; see `derive`."""
    if derivation.is_none:
        return trace
    layers: Layers = trace.layers
    sides, rules = (trace.query_tokens, trace.key_tokens), list[str]()
    if derivation.norms:
        rules.append("norms: ‖weight·v·W_o‖, the length of what each key adds to the output (Kobayashi et al. 2020)")
        if any(layer.out_projection is None for layer in layers):
            without = "norms: ‖weight·v‖, before the output projection W_o, which is not recorded"
            rules[-1] = f"{without} (after Kobayashi et al. 2020)"
        layers = tuple(map(_with_norms, layers))
    if derivation.rollout:
        layers = tuple(sorted(layers, key=lambda layer: layer.layer))
        wanted: tuple[int, ...] = (layers[-1].layer,)
        if derivation.layers is not None:
            wanted = derivation.layers.resolve(trace.source.layers, "the source")
        through = "each layer and those below it"
        if len(wanted) == 1:
            through = f"layers 0-{wanted[0]}" if wanted[0] else "layer 0"
        alone = "; what comes from the encoder is left out" if layers[0].kind == "decoder" else ""
        rules.append(
            f"rollout: {through}, the mean over all heads, half of it the token itself (Abnar & Zuidema 2020){alone}"
        )
        layers = _rolled_out(layers, wanted)
    if derivation.words:
        *words, rule = _words_of_both(trace)
        rules.append(rule)
        by_side = dict(zip(sides, words, strict=True))
        layers = tuple(_with_words(layer, *(by_side[side] for side in trace.sides(layer))) for layer in layers)
        sides = (words[0], words[1])
    if derivation.mean is not None:
        over = derivation.mean
        names = [] if over == "layers" else [f"head{'s' * (len(layers[0].heads) > 1)} {as_ranges(layers[0].heads)}"]
        names += [] if over == "heads" else [f"layers {as_ranges({layer.layer for layer in layers})}"]
        rules.append(f"reduced: mean over {' of '.join(names)}")
        layers = _averaged(layers, over)
    origin = Origin(trace, derivation, tuple(rules))
    grids = () if derivation.words else trace.grids  # words have other positions
    return replace(trace, query_tokens=sides[0], key_tokens=sides[1], layers=layers, origin=origin, grids=grids)


def _derived(
    layers: Sequence[LayerTrace],
    rows: Callable[[Sequence[int], Rows], Block],
    mask: Mask,
    heads: tuple[int, ...],
    **changed: Any,
) -> LayerTrace:
    """Return the first of some layers with numbers made of all in place of its weights, and without what gave these.

    `changed` are fields of `Derived`. The proof is the one with the largest error, if every layer has one.
    """
    layer, proofs = layers[0], [part.proof for part in layers if part.proof is not None]
    proof = None
    if len(proofs) == len(layers):
        proof = proofs[int(np.argmax([part.max_abs_error for part in proofs]))]  # NaN is the largest
    derived = (layer.derived or Derived(layer.cells, rows))._replace(rows=rows, **changed)
    return LayerTrace(layer.layer, layer.kind, None, None, None, None, mask, heads, proof=proof, derived=derived)


def _mean(parts: Sequence[tuple[LayerTrace, tuple[int, ...]]], queries: Rows) -> Block:
    """Return the mean of the weights of some heads of layers."""
    return reduce(np.add, (Stages(layer, heads, queries).weights for layer, heads in parts)) / len(parts)


def _with_norms(layer: LayerTrace) -> LayerTrace:
    """Return the layer with ‖weight·v·W_o‖ in place of each weight, after Kobayashi et al. 2020.

    "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms", eq. 4: v is the value with its bias,
    W_o the rows of the output projection that the head is multiplied by, without the projection's bias. Where W_o is
    not recorded it is ‖weight·v‖, which leaves out how far W_o stretches the value.
    """
    if layer.v is None or not layer.v.shape[-1]:
        raise NotExposedError(f"--norms needs the values V, and layer {layer.layer} does not expose them")
    values = [layer.head(head).v for head in range(layer.num_heads)]
    with np.errstate(invalid="ignore", over="ignore"):
        if layer.out_projection is not None:
            values = list(map(np.matmul, values, np.split(layer.out_projection, layer.num_heads)))
        norms = np.stack([*map(vector_norms, values)])

    def rows(heads: Sequence[int], queries: Rows) -> Block:
        with np.errstate(invalid="ignore", over="ignore"):
            return Stages(layer, tuple(heads), queries).weights * norms[[*heads], None]

    return _derived([layer], rows, layer.mask, layer.heads, measure="norms", is_distribution=False)


def _rolled_out(layers: Layers, wanted: tuple[int, ...]) -> Layers:
    """Return the wanted layers with their rollout, one head each, in place of their weights.

    After Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers": with A the mean over the heads of a
    layer, Â = 0.5·A + 0.5·I with its rows renormalised to sum to 1 (rows of a model with sinks sum to less), and the
    rollout of layer l is Â_l · … · Â_0. The halves stand for the residual connection. Neither values nor feed-forward
    layers go in.
    """
    last, kinds = max(wanted), list(dict.fromkeys(layer.kind for layer in layers))
    if len(kinds) > 1:
        raise UsageError(f"--rollout takes one kind of attention, of {', '.join(kinds)}; give --kind {kinds[0]}")
    if kinds[0] == "cross" or layers[0].num_queries != layers[0].num_keys:
        raise UsageError("--rollout multiplies layers, so queries and keys must be the same tokens")
    if lacking := [str(index) for index in range(last + 1) if index not in {layer.layer for layer in layers}]:
        needed = f"--rollout needs the attention of every layer from 0 to {last}"
        raise NotExposedError(f"{needed}; layer {', '.join(lacking)} is not there")
    rollouts: dict[int, LayerTrace] = {}
    size = layers[0].num_queries
    rollout, reached = np.eye(size, dtype=np.float32), np.eye(size, dtype=bool)
    blocks = row_blocks(np.arange(size), size)

    def mixed(layer: LayerTrace, queries: Rows) -> Float[np.ndarray, "Q K"]:
        rows = _mean([(layer, (head,)) for head in range(layer.num_heads)], queries)[0] / 2
        rows[np.arange(len(queries)), queries] += rows.dtype.type(0.5)
        return rows / rows.sum(axis=-1, keepdims=True)

    for index, layer in enumerate(layers[: last + 1]):
        with np.errstate(invalid="ignore"):
            rollout = np.concatenate([mixed(layer, rows) @ rollout for rows in blocks])
        # Something can have come through any head, or from the token itself.
        allowed = layer.mask_cells.any(axis=0) | np.eye(size, dtype=bool)
        reached = allowed.astype(np.float32) @ reached > 0
        if index in wanted:
            mask, rows = smallest(reached[None], 1), partial(_rows_of, rollout)
            rollouts[index] = _derived(layers[index::-1], rows, mask, (0,), head="rollout", shape=(1, size, size))
    return tuple(rollouts[index] for index in wanted)


def _rows_of(rollout: Float[np.ndarray, "Q K"], _: Sequence[int], queries: Rows) -> Block:
    return rollout[None, queries]


def _with_words(layer: LayerTrace, rows: Tokens, columns: Tokens) -> LayerTrace:
    """Return the layer with words as its queries and keys: sums over key pieces, means over query pieces.

    Merged so, the rows of a softmax still sum to 1 (Clark et al. 2019, "What Does BERT Look At?"). A cell is masked
    where each of its pieces is.
    """
    sizes, key_sizes = (np.array([len(word.pieces) for word in words]) for words in (rows, columns))
    starts, key_starts = np.cumsum(sizes) - sizes, np.cumsum(key_sizes) - key_sizes

    def merged(heads: Sequence[int], words: Rows) -> Block:
        pieces = np.concatenate([np.arange(starts[word], starts[word] + sizes[word]) for word in words])
        with np.errstate(invalid="ignore"):
            blocks = row_blocks(pieces, layer.num_keys * len(heads))
            weights = (Stages(layer, tuple(heads), block).weights for block in blocks)
            summed = np.concatenate([np.add.reduceat(block, key_starts, axis=2) for block in weights], axis=1)
            total = np.add.reduceat(summed, np.cumsum(sizes[words]) - sizes[words], axis=1)
            return total / sizes[words, None].astype(total.dtype)

    allowed = np.logical_or.reduceat(np.logical_or.reduceat(layer.mask_cells, key_starts, axis=2), starts, axis=1)
    shape = (layer.num_heads, len(rows), len(columns))
    return _derived([layer], merged, smallest(allowed, layer.num_heads), layer.heads, shape=shape)


def _words_of_both(trace: Trace) -> tuple[Tokens, Tokens, str]:
    """Return the words of a trace's queries and keys, and the rule by which they were merged."""
    if trace.generated:
        raise UsageError("--words needs positions in the text, and generated tokens have none; drop one of them")
    of_queries, of_keys = texts_of(trace.text, trace.pair, trace.target)
    keys, is_own = queries, is_also = words_of(trace.key_tokens, *of_keys)
    if trace.query_tokens != trace.key_tokens:
        queries, is_also = words_of(trace.query_tokens, *of_queries)
    rule = "words: the weight on a word is the sum over its pieces, the weight from a word the mean over its pieces"
    return queries, keys, rule if is_own and is_also else rule + "; a word is what no space divides"


def _averaged(layers: Layers, over: Mean) -> Layers:
    """Return the layers with the mean of their heads, or one mean layer of each kind, or both.

    Only the heads that were asked for count. A layer counts once, whatever the number of its heads.
    """
    if over != "layers":
        layers = tuple(map(_over_heads, layers))
    if over == "heads":
        return layers
    kinds: dict[str, list[LayerTrace]] = {}
    for layer in layers:
        kinds.setdefault(layer.kind, []).append(layer)
    for kind, (first, *rest) in kinds.items():
        if not rest:
            raise UsageError(f"--mean {over} needs several layers with {kind} attention; here is layer {first.layer}")
        if any(layer.heads != first.heads for layer in rest):
            raise UsageError("--mean layers needs layers with the same heads; give --mean all")
    return tuple(map(_over_layers, kinds.values()))


def _over_heads(layer: LayerTrace) -> LayerTrace:
    def rows(_: Sequence[int], queries: Rows) -> Block:
        return _mean([(layer, (head,)) for head in layer.heads], queries)

    mask = layer.mask
    if len(mask.rows([*layer.heads], np.arange(1))) > 1:
        mask = smallest(np.asarray(layer.allowed.any(axis=0, keepdims=True)), 1)
    return _derived([layer], rows, mask, (0,), head="mean", shape=(1, *layer.cells[1:]))


def _over_layers(layers: Sequence[LayerTrace]) -> LayerTrace:
    def rows(heads: Sequence[int], queries: Rows) -> Block:
        return _mean([(layer, tuple(heads)) for layer in layers], queries)

    mask = layers[0].mask
    if any(not isinstance(layer.mask, RuleMask) or layer.mask != mask for layer in layers):  # cells are never compared
        mask = smallest(reduce(np.logical_or, (layer.mask_cells for layer in layers)), layers[0].num_heads)
    return _derived(layers, rows, mask, layers[0].heads, layer="mean")
