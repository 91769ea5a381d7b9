"""Layers and traces of arrays that a test makes."""

from typing import Any

import numpy as np

from attncli.masks.expressions import ArrayMask, Mask, RuleMask
from attncli.masks.parser import parse
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Provenance, Trace


def tokens_of(*texts: str) -> Tokens:
    return Tokens(Token(index, index, text, None, None) for index, text in enumerate(texts))


def layer_of(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray | None = None,
    mask: Mask | np.ndarray | str = "full",
    scale: float = 1.0,
    layer: int = 0,
    kind: str | None = None,
    **fields: Any,
) -> LayerTrace:
    heads, queries, keys = len(q), q.shape[1], k.shape[1]
    if isinstance(mask, str):
        mask = RuleMask(parse(mask), queries, keys, heads)
    elif isinstance(mask, np.ndarray):
        mask = ArrayMask(mask)
    kind = kind or ("self" if queries == keys else "cross")
    fields.setdefault("heads", tuple(range(heads)))
    return LayerTrace(layer, kind, q, k, k if v is None else v, scale, mask, **fields)


def watched(scores: Any, weights: Any, allowed: Any = None, kind: str = "self") -> LayerTrace:
    """One head of which no more is known than its scores and weights `[Q, K]`, as of a softmax that was watched."""
    recorded = {"recorded_scores": np.array([scores], np.float32), "recorded_weights": np.array([weights], np.float32)}
    mask = ArrayMask(np.ones(recorded["recorded_scores"].shape, bool) if allowed is None else np.array([allowed]))
    return LayerTrace(0, kind, None, None, None, None, mask, (0,), **recorded)


def trace_of(*layers: LayerTrace, queries: Tokens | None = None, keys: Tokens | None = None, **fields: Any) -> Trace:
    """A trace of layers; the tokens are called q0, q1, … and k0, k1, … where they do not matter."""
    queries = queries or tokens_of(*(f"q{index}" for index in range(layers[0].num_queries)))
    keys = keys or tokens_of(*(f"k{index}" for index in range(layers[0].num_keys)))
    return Trace(fields.pop("source", Provenance("file", layers=20)), queries, keys, layers, **fields)
