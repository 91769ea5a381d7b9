"""Masks and lengths that a program holds, as arrays, tensors or nested lists."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from attncli.errors import InputError, UsageError
from attncli.files import to_numpy
from attncli.masks.expressions import Expression, Pad, leaves, with_lengths
from attncli.masks.files import StoredMask
from attncli.masks.mask_grid import lengths_of


def bind_lengths(expected: Expression | None, lengths: Any) -> Expression:
    """Return an expression whose `pad` is told how much it hides.

    Args:
        expected: the expression.
        lengths: how many tokens each batch row has, or an attention mask `[B, K]`; an array, a tensor or nested lists.

    Raises:
        UsageError: the expression has no `pad` that needs them.
        InputError: they are neither.
    """
    if expected is None or not any(isinstance(leaf, Pad) for leaf in leaves(expected)):
        raise UsageError("lengths apply to pad without numbers in an expression, such as 'causal & pad'")
    return with_lengths(expected, lengths_of(as_stored(lengths, "lengths").values, "lengths"))


def as_stored(given: Any, name: str) -> StoredMask:
    """Return an array, a tensor or nested lists as an array, and the name of its type.

    Raises:
        InputError: it holds no numbers.
    """
    torch = sys.modules.get("torch")  # who holds tensors has imported it
    if torch is not None and isinstance(given, torch.Tensor):
        return StoredMask(to_numpy(given), str(given.dtype).removeprefix("torch."))
    try:
        values = np.asarray(given)
    except ValueError:  # lists of different lengths
        raise InputError(f"{name} is no array: its rows have different lengths") from None
    if values.dtype.kind not in "biuf":
        raise InputError(f"{name} holds {values.dtype}; expected booleans or numbers")
    return StoredMask(values, values.dtype.name)
