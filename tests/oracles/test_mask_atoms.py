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
    """The mask that torch makes of a mask_mod; transformers shifts the queries the same way."""
    shifted = hf.add_offsets_to_mask_function(mod, past, 0)
    (mask,) = create_mask(shifted, None, 1, queries, keys, device="cpu")[0].numpy()
    return mask


def bounded(mod: Mod) -> Mod:
    return hf.and_masks(mod, hf.causal_mask_function)


def documents(lengths: list[int]) -> Mod:
    return hf.packed_sequence_mask_function(torch.repeat_interleave(torch.tensor(lengths))[None])


def padding(left: int, right: int, keys: int) -> Mod:
    at = torch.arange(keys)
    return hf.padding_mask_function(((at >= left) & (at < keys - right))[None])


def band(left: int, right: int) -> Mod:
    return lambda b, h, q, kv: (kv - q <= right) & (q - kv <= left)


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


some, few = st.integers(0, 12), st.integers(1, 12)
Drawn = tuple[str, Mod]
ATOMS: dict[str, Callable[[int, int], st.SearchStrategy[Drawn]]] = {
    "full": lambda keys, length: st.just(("full", hf.bidirectional_mask_function)),
    "causal": lambda keys, length: st.just(("causal", hf.causal_mask_function)),
    "window": lambda keys, length: few.map(lambda w: (f"window({w})", hf.sliding_window_causal_mask_function(w))),
    "half window": lambda keys, length: few.map(
        lambda w: (f"window({w}) & causal", bounded(hf.sliding_window_overlay(w)))
    ),
    "bidirectional window": lambda keys, length: some.map(
        lambda w: (f"band({w},{w})", hf.sliding_window_bidirectional_mask_function(w))
    ),
    "band": lambda keys, length: st.tuples(some, some).map(lambda s: (f"band({s[0]},{s[1]})", band(*s))),
    "prefix of a language model": lambda keys, length: some.map(
        lambda n: (f"causal | prefix({n})", or_masks(hf.causal_mask_function, lambda b, h, q, kv: kv < n))
    ),
    "prefix": lambda keys, length: some.map(lambda n: (f"prefix({n})", lambda b, h, q, kv: kv < n)),
    "docs": lambda keys, length: st.lists(few, min_size=1, max_size=4).map(
        lambda drawn: (lambda lengths: (f"docs({','.join(map(str, lengths))})", documents(lengths)))(
            fitted(drawn, length)
        )
    ),
    "chunk": lambda keys, length: few.map(
        lambda c: (f"chunk({c}) & causal", hf.chunked_causal_mask_function(c, NO_PADDING))
    ),
    "chunk, to both sides": lambda keys, length: few.map(
        lambda c: (f"chunk({c})", lambda b, h, q, kv: torch.div(q, c, rounding_mode="floor") == kv // c)
    ),
    "left padding": lambda keys, length: some.map(lambda n: (f"pad(left={n})", padding(n, 0, keys))),
    "right padding": lambda keys, length: some.map(lambda n: (f"pad(right={n})", padding(0, n, keys))),
    "dilated": lambda keys, length: st.tuples(few, few).map(
        lambda s: (f"dilated({s[0]},{s[1]})", and_masks(hf.causal_mask_function, dilated(*s)))
    ),
    "global": lambda keys, length: st.lists(some, min_size=1, max_size=3).map(
        lambda at: (f"global({','.join(map(str, at))})", globally(at))
    ),
    "pad": lambda keys, length: st.tuples(some, some).map(
        lambda s: (f"pad(left={s[0]},right={s[1]})", padding(*s, keys))
    ),
    "keys": lambda keys, length: st.tuples(some, some).map(
        lambda s: (f"keys({s[0]},{s[1]})", lambda b, h, q, kv: (kv >= s[0]) & (kv < s[1]))
    ),
    "queries": lambda keys, length: st.tuples(some, some).map(
        lambda s: (f"queries({s[0]},{s[1]})", lambda b, h, q, kv: (q >= s[0]) & (q < s[1]))
    ),
}


def fitted(lengths: list[int], total: int) -> list[int]:
    """Documents of about these lengths that add up to the total."""
    remaining: list[int] = []
    for length in lengths:
        remaining.append(min(length, total - sum(remaining)))
        if sum(remaining) == total:
            return remaining
    return [*remaining[:-1], remaining[-1] + total - sum(remaining)]


@pytest.mark.parametrize("atom", ATOMS)
@given(data=st.data(), queries=st.integers(1, 9), keys=st.integers(1, 12), past=st.integers(0, 6))
@quickly
def test_an_atom_is_what_torch_and_transformers_make_of_it(
    atom: str, data: st.DataObject, queries: int, keys: int, past: int
) -> None:
    text, mod = data.draw(ATOMS[atom](keys, max(keys, past + queries)))
    np.testing.assert_array_equal(ours(text, queries, keys, past), theirs(mod, queries, keys, past))


@given(data=st.data(), queries=st.integers(1, 7), past=st.integers(0, 5))
@quickly
def test_combinations_are_what_torch_makes_of_them(data: st.DataObject, queries: int, past: int) -> None:
    keys = queries + past
    drawn = [data.draw(st.sampled_from(sorted(ATOMS)).flatmap(lambda name: ATOMS[name](keys, keys))) for _ in range(3)]
    (a, one), (b, two), (c, three) = drawn
    text = f"({a}) & (~({b}) | ({c}))"
    mod = and_masks(one, or_masks(lambda *at: ~torch.as_tensor(two(*at)), three))
    np.testing.assert_array_equal(ours(text, queries, keys, past), theirs(mod, queries, keys, past))
