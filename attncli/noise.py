"""How far two computations of one thing may be apart by rounding alone.

Noise floors of 5e-5 in float32 and 1e-2 in bfloat16 are usual for attention; the margins keep large activations and
deep models quiet, and what is wrong with a mask is a hundred times larger.
"""

from __future__ import annotations

HALF = ("float16", "bfloat16")

_FLOORS = {"float64": 1e-6, "float32": 1e-3}
_HALF_FLOOR = 1e-1


def noise_floor(dtype: str) -> float:
    """Return the largest difference that rounding explains in a type of number."""
    return _FLOORS.get(dtype, _HALF_FLOOR)
