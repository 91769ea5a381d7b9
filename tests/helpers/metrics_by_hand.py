"""Every metric of a head by a plain loop, and traces to count it in."""

from __future__ import annotations

import math

import numpy as np
import pytest
from traces import layer_of, trace_of

from attncli.analysis.metrics import head_metrics
from attncli.masks.expressions import Mask
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Trace

HEADS, WIDTH, SCALE = 2, 3, 0.7

NAMES = ["entropy", "effective_keys", "distance", "self", "previous", "next", "sink", "duplicate", "induction"]
NAMES += ["special", "separator", "max_weight", "max_score"]
OF_ONE_SEQUENCE = {"distance", "self", "previous", "next", "duplicate", "induction"}


def tokens(ids: list[int], special: frozenset[int] = frozenset()) -> Tokens:
    return Tokens(Token(index, id_, f"w{id_}", None, None, id_ in special) for index, id_ in enumerate(ids))


def traced(query_tokens: Tokens, key_tokens: Tokens, mask: Mask | str, seed: int = 0) -> Trace:
    random = np.random.default_rng(seed)
    q = 2 * random.standard_normal((HEADS, len(query_tokens), WIDTH), dtype=np.float32)
    k = random.standard_normal((HEADS, len(key_tokens), WIDTH), dtype=np.float32)
    kind = "self" if query_tokens is key_tokens else "cross"
    return trace_of(layer_of(q, k, mask=mask, scale=SCALE, kind=kind), queries=query_tokens, keys=key_tokens)


def measured(trace: Trace, head: int, rows: list[int] | None = None) -> dict[str, float | None]:
    layer = trace.layer(0)
    return head_metrics(trace, layer, layer.head(head, rows))


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def by_hand(
    trace: Trace, head: int, rows: list[int] | None = None, *, is_uniform: bool = False
) -> dict[str, float | None]:
    layer = trace.layer(0)
    ids = trace.key_tokens.ids
    places = range(len(ids))
    of_rows: dict[str, list[float]] = {name: [] for name in NAMES}
    is_left_padded = layer.kind == "self" and str(layer.mask) == "pad(left=2)"
    for row in range(layer.num_queries) if rows is None else rows:
        allowed = layer.head(head).mask[row].tolist()
        if not any(allowed) or (is_left_padded and row < 2):
            continue
        products = [sum(map(float.__mul__, layer.q[head, row].tolist(), key.tolist())) for key in layer.k[head]]
        scores = [0.0 if is_uniform else product * SCALE for product in products]
        exponentials = [math.exp(score) if may else 0.0 for score, may in zip(scores, allowed, strict=True)]
        w = [exponential / sum(exponentials) for exponential in exponentials]
        entropy = -sum(weight * math.log(weight) for weight in w if weight)
        of_rows["entropy"].append(entropy)
        of_rows["effective_keys"].append(math.exp(entropy))
        of_rows["distance"].append(sum(w[key] * abs(row - key) for key in places))
        of_rows["max_weight"].append(max(w))
        of_rows["max_score"].append(max(score for score, may in zip(scores, allowed, strict=True) if may))
        of_rows["special"].append(sum(w[key] for key in places if trace.key_tokens[key].special))
        of_rows["separator"].append(sum(w[key] for key in places[1:] if trace.key_tokens[key].special))
        if layer.kind == "cross":
            of_rows["sink"].append(w[0])
            continue
        of_rows["self"].append(w[row])
        if row >= 1:
            of_rows["sink"].append(w[0])
            of_rows["previous"].append(w[row - 1])
        if row + 1 < len(ids):
            of_rows["next"].append(w[row + 1])
        earlier = [key for key in range(row) if ids[key] == ids[row]]
        if earlier:
            of_rows["duplicate"].append(sum(w[key] for key in earlier))
            of_rows["induction"].append(sum(w[key + 1] for key in earlier))
    expected = {name: mean(values) for name, values in of_rows.items()}
    if of_rows["max_score"]:
        expected["max_score"] = max(of_rows["max_score"])
    if layer.kind == "cross":
        expected |= dict.fromkeys(OF_ONE_SEQUENCE)
    if not any(token.special for token in trace.key_tokens):
        expected["special"] = None
    if not any(token.special for token in trace.key_tokens[1:]):
        expected["separator"] = None
    return expected


def agree(actual: dict[str, float | None], expected: dict[str, float | None]) -> None:
    assert list(actual) == NAMES
    for name, value in actual.items():
        assert value is None or type(value) is float
        assert value == (None if expected[name] is None else pytest.approx(expected[name], rel=2e-5, abs=2e-6)), name


MASKS = ["causal", "full", "window(2)", "~causal", "causal & ~keys(0,2)", "pad(left=2)", "~full", "queries(1,3)"]
