"""Masks and lengths that a program holds, as arrays, tensors or nested lists."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors import InputError, UsageError
from attncli.files import to_numpy
from attncli.masks.expressions import Expression, Pad, leaves, with_lengths
from attncli.masks.mask_grid import is_file
from attncli.masks.notation import MOST
from attncli.masks.parser import parse
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from attncli.masks.files import StoredMask


def bind_lengths(expected: Expression | None, lengths: Any) -> Expression:
    """Return an expression whose `pad` is told how much it hides.

    Args:
        expected: the expression.
        lengths: how many tokens each batch row has, or an attention mask `[B, K]`; an array, a tensor or nested lists.

    Raises:
        UsageError: the expression has no `pad` that needs them.
        InputError: they are neither.
    """
    if expected is None or not _has_pad(expected):
        raise UsageError("lengths apply to pad without numbers in an expression, such as 'causal & pad'")
    return with_lengths(expected, lengths_of(as_stored(lengths, "lengths").values, "lengths"))


def has_own_padding(mask: str) -> bool:
    """Return whether an expression says `pad` without numbers, which needs lengths."""
    return not is_file(mask) and _has_pad(parse(mask, allow_rows=True))


def _has_pad(expression: Expression) -> bool:
    return any(isinstance(leaf, Pad) for leaf in leaves(expression))


def read_lengths(text: str) -> Int[np.ndarray, " B"] | Bool[np.ndarray, "B K"]:
    """Return how long the rows of a batch are: `5,2`, or a file of such numbers, or of an attention mask.

    Raises:
        UsageError: it is none of them.
        InputError: the file cannot be read, or holds something else.
    """
    if is_file(text):
        from attncli.masks.files import read_array

        return lengths_of(read_array(Path(text)).values, f"--lengths {visible(text)}")
    numbers = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= len(str(MOST)) for part in numbers):
        raise UsageError(f"--lengths {visible(text)}: expected numbers such as 5,2, or the file of an array")
    return np.array([int(part) for part in numbers])


def lengths_of(values: np.ndarray[Any, Any], name: str) -> Int[np.ndarray, " B"] | Bool[np.ndarray, "B K"]:
    """Return the lengths of rows as `with_lengths` takes them.

    Args:
        values: `[B]`, how many tokens each row has; or `[B, K]`, 1 or True where a key is a token.
        name: what they are called, for errors.

    Raises:
        InputError: they are neither.
    """
    whole = values.size > 0 and values.dtype.kind in "biuf" and bool((values == np.floor(values)).all())
    if values.ndim == 1 and whole and values.dtype != bool and values.min() >= 0 and values.max() <= MOST:
        return values.astype(int)
    if values.ndim != 2 or not whole or not ((values == 0) | (values == 1)).all():
        raise InputError(
            f"{name} holds {values.dtype} of shape {list(values.shape)}; expected the tokens of each row, [batch], or "
            "a mask of 0 and 1, [batch, keys], with 1 for a token"
        )
    tokens = values.astype(bool)
    if not tokens.any(axis=1).all() and (~tokens).any(axis=1).all():
        raise InputError(f"{name} leaves a row without a token; 1 and True are tokens in it, and not padding")
    return tokens


def as_stored(array: Any, name: str) -> StoredMask:
    """Return an array, a tensor or nested lists as an array, and the name of its type.

    Raises:
        InputError: it holds no numbers.
    """
    from attncli.masks.files import StoredMask

    torch = sys.modules.get("torch")  # who holds tensors has imported it
    if torch is not None and isinstance(array, torch.Tensor):
        return StoredMask(to_numpy(array), str(array.dtype).removeprefix("torch."))
    try:
        values = np.asarray(array)
    except ValueError:  # lists of different lengths
        raise InputError(f"{name} is no array: its rows have different lengths") from None
    if values.dtype.kind not in "biuf":
        raise InputError(f"{name} holds {values.dtype}; expected booleans or numbers")
    return StoredMask(values, values.dtype.name)
