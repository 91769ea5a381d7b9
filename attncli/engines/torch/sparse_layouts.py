"""Attention in bands and blocks, and of several softmax, put into one map.

Models of long texts compute the scores of neighbours alone, in an order of their own: a band beside the diagonal, or
blocks that see the blocks around them. Which query and which key a cell stands for is arithmetic with the module's own
sizes. Were it wrong, weights·V would not be what the module gave, which is compared in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from attncli.engines.torch.op_log import FORBIDDEN, Dense, Ended, Product, Softmax, Watched
from attncli.errors import NotExposedError
from attncli.trace.layer import Proof

_MODULE = "what its attention module gave"


def dense(call: Ended, queries: int, keys: int) -> Dense | None:
    """Return a layer's map, without the positions that the model has added to fill its last block.

    Args:
        call: of the attention module, which has returned.
        queries: how many tokens the rows are.
        keys: how many the columns are.

    Returns:
        None where the module computes its scores in no order of its own.

    Raises:
        NotExposedError: a token attends to a position that is none.
    """
    if not is_known(call.module):
        return None
    whole = _LAYOUTS[type(call.module).__name__](call)
    if bool((whole.scores[:, :, :queries, keys:] > FORBIDDEN).any()):
        raise NotExposedError(f"{type(call.module).__name__} attends to positions that are no tokens")
    cut = replace(
        whole,
        scores=whole.scores[:, :, :queries, :keys],
        weights=whole.weights[:, :, :queries, :keys],
        q=None if whole.q is None else whole.q[:, :, :queries],
        k=None if whole.k is None else whole.k[:, :, :keys],
        v=None if whole.v is None else whole.v[:, :, :keys],
        output=None if whole.output is None else whole.output[:, :, :queries],
    )
    if cut.v is None or cut.output is None:
        return cut
    # A query that sees no key at all, as padding does, has weights for the positions that are cut off.
    is_blind = whole.weights[:, :, :queries, keys:].any(dim=-1, keepdim=True)
    if not bool(is_blind.any()):
        return cut
    return replace(cut, output=torch.where(is_blind, cut.weights @ cut.v.to(cut.weights.dtype), cut.output))


def joined(chunks: Sequence[Watched]) -> Watched:
    """Return the attention of consecutive parts of a text, each to itself alone, as one over all of it (CANINE)."""
    softmax = [chunk.softmax[0] for chunk in chunks]
    products = [each.product for each in softmax if each.product is not None]
    outputs = [each.outputs[0] for each in softmax]
    length = sum(each.scores.shape[2] for each in softmax)
    scores = softmax[0].scores.new_full((*softmax[0].scores.shape[:2], length, length), -torch.inf)
    weights = torch.zeros_like(scores)
    start = 0
    for each in softmax:
        cells = slice(start, start + each.scores.shape[2])
        scores[:, :, cells, cells], weights[:, :, cells, cells] = each.scores, each.weights
        start = cells.stop
    left, right = torch.cat([each.left for each in products], -2), torch.cat([each.right for each in products], -1)
    values, results = torch.cat([each.right for each in outputs], -2), torch.cat([each.result for each in outputs], -2)
    product = Product(left, right, scores)
    return Watched(softmax=[Softmax(scores, weights, product, [Product(weights, values, results)])])


def is_known(module: Any) -> bool:
    """Whether a module computes its scores in an order of its own that is known here."""
    return type(module).__name__ in _LAYOUTS and type(module).__module__.startswith("transformers.models.")


def _banded(call: Ended) -> Dense:
    """Return the map of a band `[B, T, H, G + 2w + 1]`, w keys to each side after the keys that every token sees.

    Those G tokens see every key in their turn: their rows come from a second softmax `[B·H, G, T]`, with queries, keys
    and values that no other row has (Longformer, LED).
    """
    band, *everywhere = call.seen.softmax
    # A query that is padding has its weights taken away after the softmax: it sees nothing.
    is_padding = call.given["is_index_masked"][:, :, None, None]
    scores = band.scores.masked_fill(is_padding, -torch.inf).transpose(1, 2)
    weights = band.weights.masked_fill(is_padding, 0).transpose(1, 2)
    heads, tokens, width = scores.shape[1:]
    side = call.module.one_sided_attn_window_size
    seen_by_all = width - (2 * side + 1)
    positions = torch.arange(tokens, device=scores.device)
    keys = positions[:, None] + torch.arange(width, device=scores.device) - seen_by_all - side
    keys = keys.expand(call.batch, tokens, width).clone()
    q, k, v = (_heads(call.seen.parts[name][1].transpose(0, 1), heads) for name in ("query", "key", "value"))
    output = _heads(call.returned[0], heads)
    if not everywhere:
        return Dense(*_placed(scores, weights, keys), q, k, v, output, against=_MODULE)
    chosen = [row.nonzero()[:, 0] for row in call.given["is_index_global_attn"]]
    for number, own in enumerate(chosen):
        keys[number, :, :seen_by_all] = -1
        keys[number, :, : len(own)] = own
    scores, weights = _placed(scores, weights, keys)
    own_scores, own_weights = (
        cells.view(call.batch, heads, -1, tokens) for cells in (everywhere[0].scores, everywhere[0].weights)
    )
    own_v = _heads(call.seen.parts["value_global"][1].transpose(0, 1), heads)
    computed = weights[..., :tokens] @ v.to(weights.dtype)
    for number, rows in enumerate(chosen):
        scores[number, :, rows, :tokens] = own_scores[number, :, : len(rows)]
        weights[number, :, rows, :tokens] = own_weights[number, :, : len(rows)]
        computed[number, :, rows] = own_weights[number, :, : len(rows)] @ own_v[number].to(weights.dtype)
    errors = (computed - output).abs().amax(dim=(1, 2, 3)).tolist()
    largest = max(float(v.abs().max()), float(own_v.abs().max()), 1.0)
    proofs = tuple(Proof(error, _MODULE, magnitude=largest) for error in errors)
    return Dense(scores, weights, None, None, None, None, proofs)


def _beside(call: Ended) -> Dense:
    """Return the map of blocks `[B, N, H, L, 3L]` that see themselves and both neighbours (LongT5)."""
    seen = call.seen.softmax[0]
    softmax = replace(seen, scores=seen.scores.transpose(1, 2), weights=seen.weights.transpose(1, 2))
    heads = softmax.scores.shape[1]
    keys = _columns(softmax.scores, before=1)
    q, k, v = (_heads(call.seen.parts[name][1], heads) for name in "qkv")
    output = _heads(call.seen.parts["o"][0], heads)
    return Dense(*_placed_blocks(softmax, keys), q, k, v, output, against=_MODULE)


def _chunked(call: Ended) -> Dense:
    """Return the map of chunks `[B, H, N, L, (before + 1 + after)·L]` that see some before and after (Reformer).

    The last chunk stands before the first one. A text of one chunk has all its scores, `[B, H, T, T]`.
    """
    softmax = call.seen.softmax[0]
    scores, weights = softmax.scores, softmax.weights
    heads, tokens = scores.shape[1], call.returned.hidden_states.shape[1]
    q, k, v = (_heads(call.seen.parts[name][1], heads) for name in ("query", "key", "value"))
    output = _heads(call.returned.hidden_states, heads)
    if scores.ndim == 5:
        keys = _columns(scores, call.module.num_chunks_before)
        scores, weights = _placed_blocks(softmax, keys % tokens)
    return Dense(scores, weights, q, k, v, output, against=_MODULE)


def _hashed(call: Ended) -> Dense:
    """Return the map of a text of one chunk, `[B, H, T, T]`; longer ones are hashed into buckets (Reformer)."""
    softmax = call.seen.softmax[0]
    if softmax.scores.ndim > 4:
        raise NotExposedError(
            f"an LSH layer hashes a text of more than {call.module.chunk_length} tokens into buckets, in rounds whose "
            "outputs are mixed: it has no weight for each pair of tokens; ask for the local layers, which are named by "
            "attn_layers in config.json"
        )
    # A token sees itself only where it sees nothing else: its score is low, but higher than a forbidden one.
    scores = softmax.scores
    sees_others = (scores > FORBIDDEN).any(dim=-1, keepdim=True)
    low = call.module.self_mask_value_float16 if _is_half(scores) else call.module.self_mask_value_float32
    scores = scores.masked_fill(sees_others & (scores <= FORBIDDEN), -torch.inf)
    return replace(_as_it_is(softmax), scores=scores, forbidden=2 * float(low))


def _beside_and_summed(call: Ended) -> Dense:
    """Return the map of blocks `[B, N, H, L, 3L + G]` that see G summaries of tokens besides (LongT5's other form).

    The summaries are keys behind the tokens.
    """
    seen = call.seen.softmax[0]
    scores, weights = (cells.transpose(1, 2).flatten(2, 3) for cells in (seen.scores, seen.weights))
    heads, length = seen.scores.shape[2:4]
    hidden, q = call.seen.parts["q"]
    (k, summed_k), (v, summed_v) = ((getattr(call.module, name)(hidden), call.seen.parts[name][1]) for name in "kv")
    tokens, filled, others = hidden.shape[1], scores.shape[2], summed_k.shape[1]
    near = _columns(seen.scores[..., : 3 * length].transpose(1, 2), before=1).flatten(0, 1)
    columns = torch.cat([near.cpu(), _behind(filled, others).expand(filled, others)], dim=-1)
    kept = torch.cat([_behind(0, tokens), _behind(filled, others)])
    return Dense(
        *_kept(_spread(scores, weights, columns, filled + others), _behind(0, tokens), kept),
        _heads(q, heads),
        _heads(torch.cat([k, summed_k], dim=1), heads),
        _heads(torch.cat([v, summed_v], dim=1), heads),
        _heads(call.seen.parts["o"][0], heads)[:, :, :tokens],
        against=_MODULE,
    )


def _global_and_local(call: Ended) -> Dense:
    """Return the map of blocks `[B, H, N, L, G + L]` that see themselves and G global positions (Pegasus-X).

    The global positions have a softmax of their own, `[B, H, G, G + N·L]`; here they stand behind the tokens. In every
    other layer the blocks begin half a block before the first token.
    """
    everywhere, local = call.seen.softmax
    heads, blocks, length, width = local.scores.shape[1:]
    others, filled = width - length, blocks * length
    tokens, first = call.positions - others, 0
    if filled > -(-tokens // length) * length:
        first = length // 2
    own = length * torch.arange(blocks).repeat_interleave(length)[:, None] + torch.arange(length)
    columns = torch.cat([_behind(filled, others).expand(filled, others), own], dim=-1)
    scores, weights = (
        torch.cat([cells, torch.cat([rows[..., others:], rows[..., :others]], dim=-1)], dim=2)
        for cells, rows in zip(
            _spread(local.scores.flatten(2, 3), local.weights.flatten(2, 3), columns, filled + others),
            (everywhere.scores, everywhere.weights),
            strict=True,
        )
    )
    kept = torch.cat([_behind(first, tokens), _behind(filled, others)])
    hidden = torch.cat([call.given["token_hidden_states"], call.given["global_hidden_states"]], dim=1)[:, kept]
    q, k, v = (_heads(getattr(call.module, name)(hidden), heads) for name in ("q_proj", "k_proj", "v_proj"))
    output = torch.cat([_heads(call.seen.parts["out_proj"][0], heads), everywhere.outputs[0].result], dim=2)
    return Dense(*_kept((scores, weights), kept, kept), q, k, v, output[:, :, kept], against=_MODULE)


def _behind(first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count)


def _spread(
    scores: torch.Tensor, weights: torch.Tensor, columns: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores and weights `[B, H, Q, C]` in so many columns; what is in none of these (`[Q, C]`) is left out."""
    places = columns.to(scores.device).where((columns >= 0) & (columns < width), width).expand(scores.shape)
    size = (*scores.shape[:3], width + 1)
    spread = scores.new_full(size, -torch.inf).scatter(-1, places, scores)
    return spread[..., :width], weights.new_zeros(size).scatter(-1, places, weights)[..., :width]


def _kept(
    maps: tuple[torch.Tensor, torch.Tensor], rows: torch.Tensor, columns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores and weights without the positions that fill the blocks.

    Raises:
        NotExposedError: one of the others attends to such a position.
    """
    scores, weights = (cells[:, :, rows] for cells in maps)
    dropped = torch.ones(scores.shape[-1], dtype=torch.bool).index_fill(0, columns, False)
    if bool((scores[..., dropped] > FORBIDDEN).any()):
        raise NotExposedError("a token attends to a position that fills a block and is none")
    return scores[..., columns], weights[..., columns]


def _main_stream(call: Ended) -> Dense:
    """Return the map of ProphetNet's main stream, whose queries come first and whose softmax is the first."""
    return _as_it_is(call.seen.softmax[0])


def _as_it_is(softmax: Softmax) -> Dense:
    """Return the map of a softmax `[B, H, Q, K]`."""
    q, k, v, output = None, None, None, None
    if softmax.product is not None:
        q, k = softmax.product.left, softmax.product.right.transpose(-1, -2)
    if softmax.outputs:
        v, output = softmax.outputs[0].right, softmax.outputs[0].result
    return Dense(softmax.scores, softmax.weights, q, k, v, output)


def _is_half(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float16


_LAYOUTS: Mapping[str, Callable[[Ended], Dense]] = {
    "LEDEncoderSelfAttention": _banded,
    "LSHSelfAttention": _hashed,
    "LocalSelfAttention": _chunked,
    "LongT5LocalAttention": _beside,
    "LongT5TransientGlobalAttention": _beside_and_summed,
    "LongformerSelfAttention": _banded,
    "PegasusXGlobalLocalAttention": _global_and_local,
    "ProphetNetAttention": _main_stream,
    "ProphetNetNgramSelfAttention": _main_stream,
}


def _columns(scores: torch.Tensor, before: int) -> torch.Tensor:
    """Return the keys `[N, L, C]` of blocks `[B, H, N, L, C]` that see so many blocks before them, and so on."""
    blocks, length, width = scores.shape[2:]
    first = length * (torch.arange(blocks, device=scores.device) - before)
    return first[:, None, None] + torch.arange(width, device=scores.device).expand(blocks, length, width)


def _placed_blocks(softmax: Softmax, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the maps of blocks `[B, H, N, L, C]`, whose rows are all queries in order.

    `keys` is `[N, L, C]`.
    """
    return _placed(softmax.scores.flatten(2, 3), softmax.weights.flatten(2, 3), keys.flatten(0, 1)[None])


def _placed(scores: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores and weights with each cell in the column of its key, `[B, H, Q, Q + 1]`.

    Args:
        scores: of each query with the keys that it reaches, `[B, H, Q, C]`.
        weights: of these.
        keys: which they are, `[1 or B, Q, C]`; what lies outside of the sequence is none, and has the last column.
    """
    queries = scores.shape[2]
    columns = keys.where((keys >= 0) & (keys < queries), queries)[:, None].expand(scores.shape)
    size = (*scores.shape[:3], queries + 1)
    placed = weights.new_zeros(size).scatter_add_(-1, columns, weights)
    # A key that a row reaches twice has the weights of both cells; its score is that of one, and ln 2.
    count = scores.new_zeros(size).scatter_add_(-1, columns, (scores > FORBIDDEN).to(scores.dtype))
    found = scores.new_full(size, -torch.inf).scatter_reduce_(-1, columns, scores, "amax")
    return found.add_(count.clamp_(min=1).log_()), placed


def _heads(hidden: torch.Tensor, heads: int) -> torch.Tensor:
    """Return `[B, T, H·D]` as `[B, H, T, D]`."""
    return hidden.reshape(*hidden.shape[:2], heads, -1).transpose(1, 2)
