"""Terminals of every kind, a layer whose heads have masks of their own, and reports of heads, to draw views of."""

import numpy as np
from traces import layer_of, tokens_of, trace_of

from attncli.analysis import OF_ANY_TEXT as NAMES
from attncli.analysis.heads import HeadReport, HeadSummary
from attncli.analysis.metrics import labels_of
from attncli.render.palette import Palette
from attncli.trace.trace import Provenance, Trace

TIERS = [Palette("truecolor"), Palette("256"), Palette("blocks")]


def of_heads(*blind: int) -> Trace:
    allowed = np.tile(np.tri(3, dtype=bool), (3, 1, 1))
    allowed[list(blind), 1] = False
    vectors = np.random.default_rng(0).normal(size=(3, 3, 2)).astype(np.float32)
    tokens = tokens_of("a", "!", "c")
    return trace_of(layer_of(vectors, vectors, mask=allowed), queries=tokens, keys=tokens, source=Provenance("file"))


BASELINES = {**dict.fromkeys(NAMES, 0.1), "distance": 4.0, "effective_keys": 10.0}


def report_of(layers: int, heads: int) -> HeadReport:
    draw = np.random.default_rng(0)
    found = []
    for place in range(layers * heads):
        metrics = dict(zip(NAMES, (draw.random(len(NAMES)) ** 3).tolist(), strict=True))
        labels = labels_of(metrics, BASELINES, {}) if place % 9 else ()
        layer, head = divmod(place, heads)
        numbers = metrics, dict.fromkeys(NAMES), dict.fromkeys(NAMES, 1)
        found.append(HeadSummary(layer, "self", head, *numbers, labels))
    return HeadReport(Provenance("file"), 1, (9, 9), ("causal",), len(found), tuple(found))
