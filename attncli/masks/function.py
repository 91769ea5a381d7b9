"""Masks that are Python functions: `file.py:function`, as flex attention takes them.

The file is executed: it is the user's own, named on purpose. Nothing else here ever runs what it reads.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.errors import InputError
from attncli.files import MOST_SETTINGS, read_file
from attncli.masks.expressions import Grid
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Bool

FUNCTION = re.compile(r"(?P<path>.+\.py):(?P<name>[A-Za-z_]\w*)")


class MaskFunction(NamedTuple):
    """A `mask_mod(b, h, q, kv)` of plain Python operators; it gets arrays of indices that broadcast."""

    written: str
    call: Callable[..., Any]

    def allowed(self, grid: Grid) -> Bool[np.ndarray, " ..."]:
        """See `Expression.allowed`; the batch index is 0, the query index counts the past."""
        shape = (len(grid.queries), grid.keys)
        try:
            allowed = self._cells(np.int64(0), np.arange(grid.heads)[:, None, None], grid.i[None], grid.j[None])
            allowed = np.broadcast_to(allowed, (max(allowed.shape[0] if allowed.ndim == 3 else 1, 1), *shape))
        except (Exception, SystemExit) as error:
            hint = "; write & | ~ instead of and, or, not, if" if "truth value" in str(error) else ""
            raise InputError(f"{visible(self.written)} fails: {_named(error)}{hint}") from None
        if allowed.dtype != bool:
            raise InputError(f"{visible(self.written)} returns {allowed.dtype}, not booleans; True = attend")
        return allowed

    def _cells(self, *indices: Any) -> np.ndarray[Any, Any]:
        """Return what the function says of indices.

        One that holds tensors of torch gets tensors: an operator between an array and a tensor fails, or gives
        something else than between two of a kind (`tensor & array` are numbers).
        """
        torch = sys.modules.get("torch")  # who holds tensors has imported it
        first: BaseException | None = None
        try:
            cells = self.call(*indices)
            if torch is None or not isinstance(cells, torch.Tensor):
                return np.asarray(cells)
        except (Exception, SystemExit) as error:
            if torch is None:
                raise
            first = error
        try:
            cells = self.call(*map(torch.as_tensor, indices))
        except (Exception, SystemExit) as error:
            raise error if first is None or "Tensor" in str(first) else first from None
        return cells.numpy(force=True) if isinstance(cells, torch.Tensor) else np.asarray(cells)

    def __str__(self) -> str:
        return self.written


def load_function(written: str) -> MaskFunction:
    """Execute the file of `file.py:function` and return the function.

    Raises:
        InputError: the file cannot be executed, or has no such function.
    """
    match = FUNCTION.fullmatch(written)
    assert match is not None
    shown = visible(match["path"])
    names: dict[str, Any] = {"__name__": "attn_mask_file", "__file__": match["path"]}
    try:
        source = read_file(match["path"], MOST_SETTINGS)
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror or error}") from None
    try:
        exec(compile(source, match["path"], "exec"), names)
    except (Exception, SystemExit) as error:
        raise InputError(f"{shown} fails: {_named(error)}") from None
    call = names.get(match["name"])
    if not callable(call):
        raise InputError(f"{shown} has no function '{match['name']}'")
    return MaskFunction(written, call)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {visible(str(error))[:200]}"
