"""Mask atoms against transformers' own mask functions and torch's `create_mask`, on random sizes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import and_masks, create_mask, or_masks
from transformers import masking_utils as hf

from attncli.masks.mask_grid import MaskSize, materialise
from attncli.masks.parser import parse

Mod = Callable[..., Any]
quickly = settings(max_examples=60)
NO_PADDING = torch.zeros(1, dtype=torch.int64)


def ours(text: str, queries: int, keys: int, past: int) -> np.ndarray:
    return materialise(parse(text), MaskSize(queries, keys, past))[0]


def theirs(mod: Mod, queries: int, keys: int, past: int) -> np.ndarray:
    shifted = hf.add_offsets_to_mask_function(mod, past, 0)
    (mask,) = create_mask(shifted, None, 1, queries, keys, device="cpu")[0].numpy()
    return mask


def documents(lengths: list[int]) -> Mod:
    return hf.packed_sequence_mask_function(torch.repeat_interleave(torch.tensor(lengths))[None])


def padding(left: int, right: int, keys: int) -> Mod:
    at = torch.arange(keys)
    return hf.padding_mask_function(((at >= left) & (at < keys - right))[None])


def dilated(width: int, step: int) -> Mod:
    # attn_gym's dilated_sliding_window: a multiple of the dilation back, and as many steps as the width.
    return lambda b, h, q, kv: ((q - kv) % step == 0) & (torch.div(q - kv, step, rounding_mode="floor") < width)


def globally(positions: list[int]) -> Mod:
    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        either = (q == -1) & (kv == -1)
        for position in positions:
            either = either | (q == position) | (kv == position)
        return either

    return mod


def prefix(count: int) -> Mod:
    return lambda b, h, q, kv: kv < count


some, few = st.integers(0, 12), st.integers(1, 12)
# Of each atom what its numbers are, how it is written, and the function that torch or transformers has for it.
ATOMS: dict[str, tuple[tuple[st.SearchStrategy[int], ...], str, Callable[..., Mod]]] = {
    "full": ((), "full", lambda: hf.bidirectional_mask_function),
    "causal": ((), "causal", lambda: hf.causal_mask_function),
    "window": ((few,), "window({})", hf.sliding_window_causal_mask_function),
    "half window": ((few,), "window({}) & causal", lambda w: and_masks(
        hf.sliding_window_overlay(w), hf.causal_mask_function)),
    "bidirectional window": ((some,), "band({0},{0})", hf.sliding_window_bidirectional_mask_function),
    "band": ((some, some), "band({},{})", lambda left, right: lambda b, h, q, kv: (kv - q <= right) & (q - kv <= left)),
    "prefix of a language model": (
        (some,), "causal | prefix({})", lambda n: or_masks(hf.causal_mask_function, prefix(n)),
    ),
    "prefix": ((some,), "prefix({})", prefix),
    "chunk": ((few,), "chunk({}) & causal", lambda c: hf.chunked_causal_mask_function(c, NO_PADDING)),
    "chunk, to both sides": (
        (few,), "chunk({})", lambda c: lambda b, h, q, kv: torch.div(q, c, rounding_mode="floor") == kv // c,
    ),
    "dilated": ((few, few), "dilated({},{})", lambda w, s: and_masks(hf.causal_mask_function, dilated(w, s))),
    "keys": ((some, some), "keys({},{})", lambda a, z: lambda b, h, q, kv: (kv >= a) & (kv < z)),
    "queries": ((some, some), "queries({},{})", lambda a, z: lambda b, h, q, kv: (q >= a) & (q < z)),
}  # fmt: skip
NAMES = [*ATOMS, "docs", "global", "pad"]


def drawn(data: st.DataObject, name: str, keys: int, length: int) -> tuple[str, Mod]:
    if name == "pad":
        left, right = data.draw(some), data.draw(some)
        return f"pad(left={left},right={right})", padding(left, right, keys)
    if name in ("docs", "global"):
        numbers = data.draw(st.lists(few, min_size=1, max_size=4))
        numbers = fitted(numbers, length) if name == "docs" else numbers
        return f"{name}({','.join(map(str, numbers))})", (documents if name == "docs" else globally)(numbers)
    strategies, text, build = ATOMS[name]
    numbers = [data.draw(one) for one in strategies]
    return text.format(*numbers), build(*numbers)


def fitted(lengths: list[int], total: int) -> list[int]:
    remaining: list[int] = []
    for length in lengths:
        remaining.append(min(length, total - sum(remaining)))
        if sum(remaining) == total:
            return remaining
    return [*remaining[:-1], remaining[-1] + total - sum(remaining)]


@pytest.mark.parametrize("atom", NAMES)
@given(data=st.data(), queries=st.integers(1, 9), keys=st.integers(1, 12), past=st.integers(0, 6))
@quickly
def test_an_atom_is_what_torch_makes_of_it(atom: str, data: st.DataObject, queries: int, keys: int, past: int) -> None:
    text, mod = drawn(data, atom, keys, max(keys, past + queries))
    np.testing.assert_array_equal(ours(text, queries, keys, past), theirs(mod, queries, keys, past))


@given(data=st.data(), queries=st.integers(1, 7), past=st.integers(0, 5))
@quickly
def test_combinations_are_what_torch_makes_of_them(data: st.DataObject, queries: int, past: int) -> None:
    keys = queries + past
    (a, one), (b, two), (c, three) = (drawn(data, data.draw(st.sampled_from(NAMES)), keys, keys) for _ in range(3))
    mod = and_masks(one, or_masks(lambda *at: ~torch.as_tensor(two(*at)), three))
    text = f"({a}) & (~({b}) | ({c}))"
    np.testing.assert_array_equal(ours(text, queries, keys, past), theirs(mod, queries, keys, past))
