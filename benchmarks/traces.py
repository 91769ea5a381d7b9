"""A saved trace of a GPT-2 small's shape, 12 layers of 12 heads, with random queries, keys and values.

python benchmarks/traces.py TOKENS FILE
"""

from __future__ import annotations

import sys

import numpy as np
import texts

from attncli.masks.expressions import Atom, RuleMask
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Provenance, Trace

LAYERS, HEADS, WIDTH = 12, 12, 64


def trace(length: int) -> Trace:
    text = texts.text(length, 50257)
    tokens = Tokens(Token(index, index, word, None, None) for index, word in enumerate(text.split()))
    mask = RuleMask(Atom("causal"), length, length, HEADS)
    draw = np.random.default_rng(0)
    layers = []
    for index in range(LAYERS):
        query, key, value = draw.standard_normal((3, HEADS, length, WIDTH), dtype=np.float32)
        layers.append(LayerTrace(index, "self", query, key, value, WIDTH**-0.5, mask, tuple(range(HEADS))))
    source = Provenance("pretrained", model="gpt2", architecture="gpt2", layers=LAYERS)
    return Trace(source, tokens, tokens, tuple(layers), text)


if __name__ == "__main__":
    trace(int(sys.argv[1])).save(sys.argv[2])
