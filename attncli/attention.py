"""The kernel: scaled dot-product attention, one stage at a time, as pure functions over NumPy arrays.

    weights = softmax(mask(softcap(q·kᵀ · scale + bias)))        output = weights · v

after Vaswani et al. 2017, "Attention Is All You Need", eq. 1, with the terms later models added between.

Dimension key of the whole project: `H` heads, `Hkv` key/value heads, `Q` query positions, `K` key positions,
`D` query/key width per head, `Dv` value width per head. Arrays keep their floating dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

# An additive mask forbids with -inf, finfo.min, or the −1e4 (−9984 in bfloat16) of older code; a bias is far smaller.
FORBIDDEN_BELOW = -9_000.0


def _odd_numbers_pass() -> np.errstate:
    """NaN and infinities are valid results here: they are shown with marks of their own."""
    return np.errstate(invalid="ignore", over="ignore")


def dot_products(query: Float[np.ndarray, "H Q D"], key: Float[np.ndarray, "H K D"]) -> Float[np.ndarray, "H Q K"]:
    """Return q·k of every query with every key."""
    with _odd_numbers_pass():
        return query @ key.swapaxes(-1, -2)


def attention_scores(
    products: Float[np.ndarray, "H Q K"],
    scale: float,
    bias: Float[np.ndarray, "#H Q K"] | None = None,
    softcap: float | None = None,
    out: Float[np.ndarray, "H Q K"] | None = None,
) -> Float[np.ndarray, "H Q K"]:
    """Return the scores before the mask: products · scale + bias, softcapped.

    Args:
        products: q·k.
        scale: usually 1/√D.
        bias: added to the scaled products (T5, Raffel et al. 2020).
        softcap: c in c·tanh(scores/c) (Gemma 2, 2024).
        out: the array for the scaled products, such as their own: new memory costs more than they do.
    """
    with _odd_numbers_pass():
        scores = np.multiply(products, products.dtype.type(scale), out=out)
        if bias is not None:
            scores = scores + bias
        if softcap is not None:
            cap = scores.dtype.type(softcap)
            scores = cap * np.tanh(scores / cap)
    return scores


def masked_scores(
    scores: Float[np.ndarray, "H Q K"], allowed: Bool[np.ndarray, "#H Q K"], fill: float
) -> Float[np.ndarray, "H Q K"]:
    """Return the scores with `fill` wherever a query may not attend to a key.

    `fill` is -inf in the formula. Models add a finite number instead: the smallest of their dtype, or −1e4. All of them
    agree but in a row with no allowed key. Where every cell is allowed, the scores themselves are returned.
    """
    if allowed.all():
        return scores
    if np.isinf(fill):
        return np.where(allowed, scores, scores.dtype.type(fill))
    adding = np.dtype(np.float16) if fill == float(np.finfo(np.float16).min) else scores.dtype
    with _odd_numbers_pass():
        return np.where(allowed, scores, (scores.astype(adding) + adding.type(fill)).astype(scores.dtype))


def softmax_parts(
    masked: Float[np.ndarray, "H Q K"],
    sinks: Float[np.ndarray, " H"] | Float[np.ndarray, "H Q"] | None = None,
    out: Float[np.ndarray, "H Q K"] | None = None,
) -> tuple[Float[np.ndarray, "H Q 1"], Float[np.ndarray, "H Q K"], Float[np.ndarray, "H Q 1"]]:
    """Return each row's highest score, exp(score − highest), and the divisor of the softmax.

    Args:
        masked: scores after the mask.
        sinks: one more logit per head, or per head and query, which counts among a row's scores and in its total.
        out: the array for the exponentials, such as that of the scores.
    """
    highest = masked.max(axis=-1, keepdims=True)
    if sinks is not None:
        sinks = sinks.reshape(len(sinks), -1, 1)
        highest = np.maximum(highest, sinks)
    # -inf − -inf is the NaN of a row that may attend to nothing, and the caller shows it as such.
    with _odd_numbers_pass():
        exponentials = np.subtract(masked, highest, out=out)
        np.exp(exponentials, out=exponentials)
    total = exponentials.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - highest)
    return highest, exponentials, total


def attention_weights(
    masked: Float[np.ndarray, "H Q K"],
    sinks: Float[np.ndarray, " H"] | Float[np.ndarray, "H Q"] | None = None,
    out: Float[np.ndarray, "H Q K"] | None = None,
) -> Float[np.ndarray, "H Q K"]:
    """Return the softmax over the keys; with sinks (GPT-OSS, 2025) a row sums to less than 1. See `softmax_parts`."""
    _, exponentials, totals = softmax_parts(masked, sinks, out)
    return np.divide(exponentials, totals, out=exponentials)


def attention_output(
    weights: Float[np.ndarray, "H Q K"], value: Float[np.ndarray, "H K Dv"]
) -> Float[np.ndarray, "H Q Dv"]:
    """Return weights·v, the context vectors of every head."""
    with _odd_numbers_pass():
        return weights @ value


def fused_output(
    query: Float[np.ndarray, "H Q D"],
    key: Float[np.ndarray, "Hkv K D"],
    value: Float[np.ndarray, "Hkv K Dv"],
    scale: float,
    allowed: Bool[np.ndarray, "Q K"],
    softcap: float | None = None,
) -> Float[np.ndarray, "H Q Dv"]:
    """Return weights·v of a few consecutive queries, without the weights; every query has an allowed key.

    Keys that none of them may attend to are left out: of a causal mask nearly half. Every step works in place.
    """
    visible = np.flatnonzero(allowed.any(axis=0))
    keys = slice(visible[0], visible[-1] + 1)
    forbidden = ~allowed[:, keys]
    mixed = np.flatnonzero(forbidden.any(axis=0))
    columns = slice(mixed[0], mixed[-1] + 1) if len(mixed) else slice(0, 0)
    forbidden, shared = forbidden[:, columns], len(query) // len(key)
    output = np.empty((*query.shape[:2], value.shape[-1]), query.dtype)
    with _odd_numbers_pass():
        query = query * query.dtype.type(scale)
        for head in range(len(query)):
            scores = query[head] @ key[head // shared, keys].T
            if softcap is not None:
                scores /= scores.dtype.type(softcap)
                np.tanh(scores, out=scores)
                scores *= scores.dtype.type(softcap)
            np.copyto(scores[:, columns], -np.inf, where=forbidden)
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            np.divide(scores @ value[head // shared, keys], scores.sum(axis=-1, keepdims=True), out=output[head])
    return output


def vector_norms(vectors: Float[np.ndarray, "N W"]) -> Float[np.ndarray, " N"]:
    """Return the length of each vector, in double precision: the squares of a float32 may be too large for one."""
    with _odd_numbers_pass():
        return np.linalg.norm(vectors.astype(np.float64), axis=-1).astype(vectors.dtype)


CELLS = 2**18  # in one block, 1 MiB as float32, of which the cache of a core holds one or two
HALF = ("float16", "bfloat16")


def row_blocks(rows: Int[np.ndarray, " Q"], columns: int) -> list[Int[np.ndarray, " _"]]:
    """Split `rows` into consecutive blocks of nearly equal length, of at most `CELLS` cells with that many columns."""
    longest = max(CELLS // max(columns, 1), 1)
    return np.array_split(rows, max(-(-len(rows) // longest), 1))


def noise_floor(dtype: str) -> float:
    """Return the largest difference that rounding explains in a type of number.

    5e-5 in float32 and 1e-2 in bfloat16 are usual. What is wrong with a mask is a hundred times larger than these.
    """
    return {"float64": 1e-6, "float32": 1e-3}.get(dtype, 1e-1)
