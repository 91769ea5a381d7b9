"""A mask that a program holds, checked as the function that it is made for reads it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from attncli.errors import InputError, UsageError
from attncli.files import to_numpy
from attncli.masks.audit import audit, audit_fills
from attncli.masks.conventions import CONVENTIONS, Reader
from attncli.masks.expressions import Expression, Pad, leaves, with_lengths
from attncli.masks.files import Loaded
from attncli.masks.findings import Finding
from attncli.masks.layout import Size, check_past, expression_of, lengths_of, subject_of_values


def check_mask(
    mask: Any,
    expect: str | Expression | None = None,
    *,
    api: Reader | None = "sdpa",
    lengths: Any = None,
    past: int | None = None,
    batch: bool = False,
) -> list[Finding]:
    """Return what is wrong with a mask, as `attn mask check` finds it; an empty list is a healthy mask.

    Args:
        mask: an array, a tensor or nested lists: `[Q, K]`, `[H, Q, K]` or `[B, H, Q, K]`, where axes may be 1;
            booleans, 0/1 or additive numbers.
        expect: what it should say, such as `causal & window(4)`; None finds what the mask alone shows.
        api: what reads it: `sdpa`, to which True = attend; `mha` (`nn.MultiheadAttention`), to which True = masked;
            `additive`, what is added to scores; None finds it out, or says that it is ambiguous.
        lengths: for `pad` without numbers in `expect`: how many tokens each row of the batch has, or an attention
            mask `[B, K]` with 1 or True for a token.
        past: how many keys stand before the first query; None is as many as there are more keys than queries.
        batch: whether the first axis is the batch: `[B, K]` is key padding, `[B, Q, K]` a mask for each row.

    Raises:
        UsageError: the expression is none, or `api` does not read such values.
        InputError: it is no mask, or of another size than the expression or the lengths.
    """
    if api is not None and api not in CONVENTIONS:
        raise UsageError(f"api {api!r}: expected {', '.join(CONVENTIONS)} or None")
    check_past(past)
    loaded = _loaded(mask, "the mask")
    shape = loaded.values.shape
    if not 2 <= len(shape) <= 4 or not loaded.values.size:
        raise InputError(f"the mask has shape {list(shape)}; expected two to four axes, of which the last is the keys")
    expected = expression_of(expect) if isinstance(expect, str) else expect
    if lengths is not None:
        expected = with_given_lengths(expected, lengths)
    subject = subject_of_values("the mask", loaded, api, past, expected, batch)
    return [*audit(subject, expected, Size(past=past)), *audit_fills(subject, None)]


def with_given_lengths(expected: Expression | None, lengths: Any) -> Expression:
    """Return an expression whose `pad` is told how much it hides.

    Args:
        expected: the expression.
        lengths: how many tokens each batch row has, or an attention mask `[B, K]`; an array, a tensor or nested lists.

    Raises:
        UsageError: the expression has no `pad` that needs them.
        InputError: they are neither.
    """
    if expected is None or not any(isinstance(leaf, Pad) for leaf in leaves(expected)):
        raise UsageError("lengths apply to pad without numbers in what is expected, such as 'causal & pad'")
    return with_lengths(expected, lengths_of(_loaded(lengths, "lengths").values, "lengths"))


def _loaded(given: Any, name: str) -> Loaded:
    """Return an array, a tensor or nested lists as an array, and the name of its type.

    Raises:
        InputError: it holds no numbers.
    """
    torch = sys.modules.get("torch")  # who holds tensors has imported it
    if torch is not None and isinstance(given, torch.Tensor):
        return Loaded(to_numpy(given), str(given.dtype).removeprefix("torch."))
    try:
        values = np.asarray(given)
    except ValueError:  # lists of different lengths
        raise InputError(f"{name} is no array: its rows have different lengths") from None
    if values.dtype.kind not in "biuf":
        raise InputError(f"{name} holds {values.dtype}; expected booleans or numbers")
    return Loaded(values, values.dtype.name)
