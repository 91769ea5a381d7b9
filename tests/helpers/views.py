"""What views are drawn of, and where: every kind of terminal, and a layer whose heads have masks of their own."""

import numpy as np

from attncli.masks.expressions import ArrayMask
from attncli.render.palette import Palette
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Provenance, Trace

TIERS = [Palette("truecolor"), Palette("256"), Palette("blocks"), Palette("ascii", "ascii"), Palette("blocks", "cp437")]


def of_heads(*blind: int, heads: int = 3) -> Trace:
    """Three words under a causal mask whose second row is fully masked in some heads."""
    allowed = np.tile(np.tri(3, dtype=bool), (heads, 1, 1))
    allowed[list(blind), 1] = False
    vectors = np.random.default_rng(0).normal(size=(heads, 3, 2)).astype(np.float32)
    tokens = Tokens(Token(index, index, text, None, None) for index, text in enumerate("a ! c".split()))
    layer = LayerTrace(0, "self", vectors, vectors, vectors, 1.0, ArrayMask(allowed), tuple(range(heads)))
    return Trace(Provenance("file"), tokens, tokens, (layer,))
