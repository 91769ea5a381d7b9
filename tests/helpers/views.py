"""What views are drawn of, and where: every kind of terminal, and a layer whose heads have masks of their own."""

import numpy as np
from traces import layer_of, tokens_of, trace_of

from attncli.render.palette import Palette
from attncli.trace.trace import Provenance, Trace

TIERS = [Palette("truecolor"), Palette("256"), Palette("blocks")]


def of_heads(*blind: int) -> Trace:
    """Three words under a causal mask whose second row is fully masked in some of three heads."""
    allowed = np.tile(np.tri(3, dtype=bool), (3, 1, 1))
    allowed[list(blind), 1] = False
    vectors = np.random.default_rng(0).normal(size=(3, 3, 2)).astype(np.float32)
    tokens = tokens_of("a", "!", "c")
    return trace_of(layer_of(vectors, vectors, mask=allowed), queries=tokens, keys=tokens, source=Provenance("file"))
