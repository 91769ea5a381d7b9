"""`attncli.mask`: the cells of a mask, what is wrong with it, and how another function reads it."""

from __future__ import annotations

from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors import InputError, UsageError
from attncli.masks.audit import audit, audit_fills
from attncli.masks.conventions import CONVENTIONS, LEAST, WRITTEN, Reader, encode_mask
from attncli.masks.expressions import Expression
from attncli.masks.files import as_stored, read_values
from attncli.masks.findings import Finding
from attncli.masks.mask_grid import (
    GridOptions,
    MaskGrid,
    MaskSize,
    as_expression,
    bind_lengths,
    grid_of_expression,
    is_file,
    read_grid,
    size_for,
)
from attncli.text import did_you_mean, visible
from attncli.trace.display import Displayed

if TYPE_CHECKING:
    from jaxtyping import Bool


def mask(
    mask: Any,
    queries: int | None = None,
    keys: int | None = None,
    past: int | None = None,
    *,
    api: Reader | None = "sdpa",
    lengths: Any = None,
) -> LabelledMask:
    """Return a mask: an expression over positions, or an array of yours.

        attncli.mask("causal & window(4)", queries=8).allowed      # NumPy booleans, [Q, K], True = attend
        attncli.mask(tensor, api="mha").check("causal & pad", lengths=[5, 2])

    Args:
        mask: an expression, such as `causal & window(4)`; or an array, a tensor, nested lists or the file of an
            array: `[Q, K]`, `[H, Q, K]` or `[B, H, Q, K]`, where axes may be 1, of booleans, 0/1 or additive numbers.
        queries: of an expression, how many query rows; None is as many as keys, or what the expression says, or 8.
        keys: of an expression, how many key columns; None is as many as queries and those before them.
        past: how many keys stand before the first query; None is as many as there are more keys than queries.
        api: what reads an array: `sdpa`, to which True = attend; `mha` (`nn.MultiheadAttention`), to which True =
            masked; `additive`, what is added to scores; None is what makes it causal, or it is ambiguous.
        lengths: for `pad` without numbers in an expression: how many tokens each row of the batch has, or an attention
            mask `[B, K]` with 1 or True for a token.

    Raises:
        UsageError: the expression is none, an argument does not apply, or `api` does not read such values.
        InputError: an array is no mask, a file cannot be read, or an expression does not fit so many positions.
    """
    for name, count, least in (("queries", queries, 1), ("keys", keys, 1), ("past", past, 0)):
        if count is not None and (not isinstance(count, Integral) or isinstance(count, bool) or count < least):
            raise UsageError(f"{name} is {count!r}; expected {least} or more")
    size = MaskSize(queries, keys, past)
    if isinstance(mask, str) and not is_file(mask):
        if api != "sdpa":
            raise UsageError("api applies to arrays; in an expression True = attend")
        expression = as_expression(mask) if lengths is None else bind_lengths(as_expression(mask), lengths)
        return LabelledMask(grid_of_expression(expression, size_for(size, expression)))
    if api is not None and api not in CONVENTIONS:
        raise UsageError(f"api {api!r}: expected {', '.join(CONVENTIONS)} or None")
    if queries is not None or keys is not None or lengths is not None:
        raise UsageError("queries, keys and lengths apply to an expression; of an array, check takes the lengths")
    is_path = isinstance(mask, str | PathLike)
    name = str(mask) if is_path else "the mask"
    stored = read_values(Path(mask)) if is_path else as_stored(mask, name)
    shape = stored.values.shape
    if not 2 <= len(shape) <= 4 or not stored.values.size:
        raise InputError(f"{visible(name)} has shape {list(shape)}; expected 2 to 4 axes, the last of them keys")
    options = GridOptions(size, api)
    return LabelledMask(read_grid(name, options, None, stored), options)


class LabelledMask(Displayed):
    """A mask, cell by cell, which NumPy takes as the array `allowed`; a notebook shows it as `attn mask show` does."""

    def __init__(self, subject: MaskGrid, options: GridOptions | None = None) -> None:
        self.subject = subject  # its cells, and facts about them
        self._options = options or GridOptions()

    @property
    def allowed(self) -> Bool[np.ndarray, "*B Q K"]:
        """True where the query may attend to the key: `[Q, K]`, or with axes for heads and batch rows before these.

        Raises:
            UsageError: the array is ambiguous; see `api`.
        """
        reading = self.subject.reading
        if reading is not None and reading.is_ambiguous:
            raise UsageError(f"{reading.why}; give api='sdpa' or api='mha'")
        return self.subject.cells

    @property
    def past(self) -> int:
        """How many keys stand before the first query."""
        return self.subject.past

    def check(self, expect: str | Expression | None = None, *, lengths: Any = None) -> list[Finding]:
        """Return what is wrong with the mask, as `attn mask check` finds it; an empty list is a healthy mask.

        Args:
            expect: what it should say, such as `causal & window(4)`; None finds what the mask alone shows.
            lengths: for `pad` without numbers in `expect`, as in `attncli.mask`.

        Raises:
            UsageError: what is expected is no expression, or has no `pad` for the lengths.
            InputError: the mask is of another size than the expression or the lengths.
        """
        expected = as_expression(expect) if isinstance(expect, str) else expect
        if expected is not None and not callable(getattr(type(expected), "allowed", None)):
            why = f"the expectation is of type {type(expected).__name__}; expected an expression, such as"
            raise UsageError(f"{why} 'causal & window(4)'. Of an array: attncli.mask(array).check('causal')")
        if lengths is not None:
            expected = bind_lengths(expected, lengths)
        subject = self.subject
        if subject.stored is not None:  # what is expected tells how many rows the batch has
            subject = read_grid(subject.name, self._options, expected, subject.stored)
        return [*audit(subject, expected, MaskSize()), *audit_fills(subject, None)]

    def to(self, api: Reader, dtype: str = "float32") -> np.ndarray[Any, Any]:
        """Return the mask as another function reads it, as `attn mask convert` writes it.

        Args:
            api: as in `attncli.mask`; `additive` is 0 and the least number of `dtype`.
            dtype: of an additive mask; bfloat16 comes as float32, which holds it exactly.

        Raises:
            UsageError: there is no such function or type, or the array is ambiguous.
        """
        for name, chosen, allowed in (("api", api, list(CONVENTIONS)), ("dtype", dtype, list(LEAST))):
            if chosen not in allowed:
                near = did_you_mean(str(chosen), allowed)
                raise UsageError(f"{name} {chosen!r}: expected one of {', '.join(allowed)}{near}")
        return encode_mask(self.allowed, api, dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.allowed, dtype, copy=copy)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.subject.shape))
        past = f", past {self.past}" if self.past else ""
        stored, reading = self.subject.stored, self.subject.reading
        if stored is None or reading is None:
            return f"mask({self.subject.name!r}, {shape}{past})"
        means = "ambiguous" if reading.is_ambiguous else WRITTEN[reading.convention].partition(",")[0]
        return f"mask({stored.dtype}, {shape}{past}, {means})"
