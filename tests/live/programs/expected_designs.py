"""Designs that an expression says, in every style in which people write a mask, with and without padding."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from step import HEADS, WIDTH, step
from torch import Tensor, nn

T, LENGTHS = 8, (8, 5, 3)
SCALE = (WIDTH // HEADS) ** -0.5
QUERY, KEY = torch.arange(T)[:, None], torch.arange(T)
LEAST = torch.finfo(torch.float32).min


class Design(NamedTuple):
    """Which keys a query sees, as an expression and as a tensor, [T, T], True = attend."""

    expression: str
    allowed: Tensor


DESIGNS = {
    "lookahead": Design("band(7,1)", KEY <= QUERY + 1),
    "backward": Design("~causal | window(1)", KEY >= QUERY),
    "backward by its band": Design("band(0,7)", KEY >= QUERY),
    "both sides": Design("band(2,2)", (QUERY - KEY).abs() <= 2),
    "class token": Design("band(1,1) | global(0)", ((QUERY - KEY).abs() <= 1) | (QUERY == 0) | (KEY == 0)),
    "sinks": Design("causal & (window(3) | keys(0,1))", (KEY <= QUERY) & ((QUERY - KEY < 3) | (KEY == 0))),
    "prefix": Design("causal | keys(0,3)", (KEY <= QUERY) | (KEY < 3)),
    "documents": Design("causal & docs(5,3)", (KEY <= QUERY) & ((KEY >= 5) == (QUERY >= 5))),
    "dilated": Design("dilated(3,2)", (KEY <= QUERY) & ((QUERY - KEY) % 2 == 0) & (QUERY - KEY < 6)),
    "cloze": Design("~window(1)", QUERY != KEY),
    "causal": Design("causal", KEY <= QUERY),
    "full": Design("full", torch.ones(T, T, dtype=torch.bool)),
}


def keys_alone(allowed: Tensor, real: Tensor) -> Tensor:
    return allowed & real[:, None, :]


def keys_and_queries(allowed: Tensor, real: Tensor) -> Tensor:
    """Padding queries see nothing."""
    return allowed & real[:, None, :] & real[:, :, None]


def themselves(allowed: Tensor, real: Tensor) -> Tensor:
    return keys_alone(allowed, real) | torch.eye(T, dtype=torch.bool) & ~real[:, :, None]


def each_other(allowed: Tensor, real: Tensor) -> Tensor:
    """Padding is a segment of its own."""
    return allowed & (real[:, None, :] == real[:, :, None])


def everything(allowed: Tensor, real: Tensor) -> Tensor:
    return keys_alone(allowed, real) | ~real[:, :, None]


def what_nothing_is_left_to(allowed: Tensor, real: Tensor) -> Tensor:
    """As transformers mends rows in which nothing is allowed."""
    both = keys_alone(allowed, real)
    return both | ~both.any(-1, keepdim=True)


TRICKS = (keys_alone, keys_and_queries, themselves, each_other, everything, what_nothing_is_left_to)


def by_sdpa(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, allowed[:, None])


def by_sdpa_of_numbers(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, torch.zeros(allowed.shape).masked_fill(~allowed, LEAST)[:, None])


def by_fill(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) * SCALE
    return scores.masked_fill(~allowed[:, None], -math.inf).softmax(-1).nan_to_num() @ v


def by_finite_fill(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhqk,bhkd->bhqd", scores.masked_fill(allowed[:, None] == 0, -1e9).softmax(-1), v)


def by_addition(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = (q * SCALE) @ k.transpose(-2, -1) + (1.0 - allowed[:, None].float()) * -10000.0
    return F.softmax(scores, dim=-1) @ v


def by_where(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = torch.where(allowed[:, None], q @ k.mT * SCALE, torch.tensor(LEAST))
    return scores.softmax(-1) @ v


def scaled_twice(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """1/D, as muP has it: by √D before the call, and by √D in it."""
    return F.scaled_dot_product_attention(q / math.sqrt(q.shape[-1]), k, v, allowed[:, None])


def scaled_by_width(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, allowed[:, None], scale=1 / q.shape[-1])


STYLES = (
    by_sdpa, by_sdpa_of_numbers, by_fill, by_finite_fill, by_addition, by_where, scaled_twice, scaled_by_width,
)  # fmt: skip


class Written(nn.Module):
    """Words, and one attention that is a function of q, k, v and a mask [B, T, T]."""

    def __init__(
        self, attend: Callable[..., Tensor], mask: Callable[[Tensor], Tensor], padding_idx: int | None
    ) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(50, WIDTH, padding_idx=padding_idx), nn.Linear(WIDTH, 3 * WIDTH)
        self.attend, self.mask = attend, mask

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.qkv(self.words(ids)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.attend(q, k, v, self.mask(ids != 0)).transpose(1, 2).flatten(2)


class OfTorch(nn.Module):
    """Words, and `nn.MultiheadAttention`, which is given its masks of queries and keys and of keys apart."""

    def __init__(self, allowed: Tensor, padding_idx: int | None, is_number: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(50, WIDTH, padding_idx=padding_idx)
        self.attn, self.is_number = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), is_number
        self.allowed = allowed

    def forward(self, ids: Tensor) -> Tensor:
        x, masks = self.words(ids), [~self.allowed, ids == 0]
        if self.is_number:
            masks = [torch.zeros(each.shape).masked_fill(each, LEAST / 4) for each in masks]
        return self.attn(x, x, x, attn_mask=masks[0], key_padding_mask=masks[1], need_weights=False)[0]


def sentences(side: str | None) -> Tensor:
    """Numbers of words, [B, T]; padding is 0."""
    ids = torch.randint(1, 50, (len(LENGTHS), T))
    if side is None:
        return ids
    real = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    return ids * (real if side == "right" else real.flip(1))


def written(
    design: str, style: Callable[..., Tensor], side: str | None = None, trick: Callable[..., Tensor] = keys_alone,
    padding_idx: int | None = 0,
) -> list[Tensor]:  # fmt: skip
    """A training step of a design in a style."""
    allowed = DESIGNS[design].allowed
    return step(Written(style, lambda real: trick(allowed, real), padding_idx), sentences(side))


def of_torch(
    design: str, side: str | None = None, padding_idx: int | None = 0, is_number: bool = False
) -> list[Tensor]:
    """A training step of a design with `nn.MultiheadAttention`."""
    return step(OfTorch(DESIGNS[design].allowed, padding_idx, is_number), sentences(side))


def shared(side: str | None = None, fill: float = -5e4) -> list[Tensor]:
    """Reformer's queries, which are its keys; a token attends to itself where there is no other."""

    def attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        k = F.normalize(q, dim=-1)
        scores = q @ k.transpose(-2, -1) * SCALE
        scores = scores.masked_fill(~allowed[:, None], LEAST)
        return scores.masked_fill(torch.eye(T, dtype=torch.bool), fill).softmax(-1) @ v

    return step(Written(attend, lambda real: keys_alone(DESIGNS["causal"].allowed, real), 0), sentences(side))


class Cached(nn.Module):
    """Words, and a causal attention with a cache, which is given a mask where a sentence of the prompt is padded."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(50, WIDTH, padding_idx=0), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, ids: Tensor, cache: tuple[Tensor, ...] | None, real: Tensor | None) -> tuple[Tensor, ...]:
        q, k, v = self.qkv(self.words(ids)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        if real is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=cache is None), k, v
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2]) & real[:, None]
        return F.scaled_dot_product_attention(q, k, v, mask[:, None]), k, v


@torch.no_grad()
def generated(length: int = T, is_padded: bool = False, is_masked: bool = True) -> list[Tensor]:
    """Prompts, padded on the left or not at all, and four tokens one by one."""
    model, ids = Cached().eval(), torch.randint(1, 50, (len(LENGTHS), length))
    real = torch.arange(length) >= length - torch.tensor(LENGTHS)[:, None] if is_padded else torch.ones(1, dtype=bool)
    output, *cache = model(ids * real, None, real if is_padded else None)
    for _ in range(4):
        ids = torch.randint(1, 50, (len(LENGTHS), 1))
        real = torch.cat([real, ids > 0], 1) if is_padded else real
        output, *cache = model(ids, cache, real if is_padded and is_masked else None)
    return [output]
