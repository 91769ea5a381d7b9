"""Attention written out whose scores have their heads in every place that people put them, with caches.

Keys are shared by the heads, or by groups of them, so that scores have axes of the queries that the keys lack: how many
they are does not say which of them holds heads.
"""

import torch
from torch import Tensor, nn

WIDTH, HEADS = 32, 4


def causal(queries: int, keys: int) -> Tensor:
    return torch.full((queries, keys), float("-inf")).triu(1 + keys - queries)


def turned(x: Tensor, first: int) -> Tensor:
    """RoPE of `[B, T, D]` or `[B, T, H, D]`, as DeepSeek writes it."""
    angles = torch.arange(first, first + x.shape[1])[:, None] * torch.logspace(0, -2, x.shape[-1] // 2)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    factors = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(pairs * (factors[:, None] if x.ndim == 4 else factors)).flatten(-2)


class Latent(nn.Module):
    """Absorbed MLA as DeepSeek's inference code has it: scores of the latent and of RoPE are added up."""

    nope, rope, rank, value = 8, 4, 12, 6

    def __init__(self, scores: str, wrong: bool = False, scale: int = 12) -> None:
        super().__init__()
        self.q, self.down = nn.Linear(WIDTH, HEADS * 12), nn.Linear(WIDTH, self.rank + self.rope)
        self.up, self.out = nn.Linear(self.rank, HEADS * 14, bias=False), nn.Linear(HEADS * 6, WIDTH)
        self.cache, self.turned = torch.zeros(2, 16, self.rank), torch.zeros(2, 16, self.rope)
        self.scores, self.wrong, self.scale, self.length = scores, wrong, scale**-0.5, 0

    def forward(self, x: Tensor) -> Tensor:
        rows, queries, _ = x.shape
        first, last = self.length, self.length + queries
        self.length = last
        nope, rope = self.q(x).view(rows, queries, HEADS, -1).split([self.nope, self.rope], -1)
        up = self.up.weight.view(HEADS, -1, self.rank)
        nope = torch.einsum("bshd,hdc->bshc", nope, up[:, : self.nope])
        latent, shared = self.down(x).split([self.rank, self.rope], -1)
        self.cache[:rows, first:last], self.turned[:rows, first:last] = latent, turned(shared, first)
        keys, shared = self.cache[:rows, :last], self.turned[:rows, :last]
        scores = torch.einsum(f"bshc,btc->{self.scores}", nope, keys)
        scores = (scores + torch.einsum(f"bshr,btr->{self.scores}", turned(rope, first), shared)) * self.scale
        if queries > 1:
            mask = causal(queries, last)
            scores = scores + (mask if self.scores == "bhst" or self.wrong else mask[:, None])
        y = torch.einsum(f"{self.scores},btc->bshc", scores.softmax(-1), keys)
        return self.out(torch.einsum("bshc,hdc->bshd", y, up[:, self.nope :]).flatten(2))


class Shared(nn.Module):
    """Heads that share their keys and values (MQA), with a growing cache."""

    def __init__(self, scores: str, wrong: bool = False, is_turned: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)
        self.scores, self.wrong, self.is_turned = scores, wrong, is_turned
        self.cache: tuple[Tensor, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        rows, queries, _ = x.shape
        first = self.cache[0].shape[1] if self.cache else 0
        q, k, v = self.q(x).view(rows, queries, HEADS, 8), self.k(x), self.v(x)
        q, k = (turned(q, first), turned(k, first)) if self.is_turned else (q, k)
        if self.cache:
            k, v = (torch.cat(pair, 1) for pair in zip(self.cache, (k, v), strict=True))
        self.cache = k, v
        keys = k.shape[1]
        mask = causal(queries, keys) if queries > 1 else torch.zeros(1, keys)
        return getattr(self, self.scores)(q / 8**0.5, k, v, mask)

    def bqhk(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = torch.einsum("bqhd,bkd->bqhk", q, k) + (mask if self.wrong else mask[:, None])
        return torch.einsum("bqhk,bkd->bqhd", scores.softmax(-1), v)

    def qbhk(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Sequences first, as Megatron and fairseq lay them."""
        q, k, v = q.transpose(0, 1).contiguous(), k.transpose(0, 1), v.transpose(0, 1)
        scores = torch.einsum("qbhd,kbd->qbhk", q, k) + mask[:, None, None]
        return torch.einsum("qbhk,kbd->qbhd", scores.softmax(-1), v)

    def hbqk(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = torch.einsum("bqhd,bkd->hbqk", q, k) + mask
        return torch.einsum("hbqk,bkd->bqhd", scores.softmax(-1), v)

    def bhkq(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Keys first, with a softmax over the axis before the last."""
        scores = torch.einsum("bkd,bqhd->bhkq", k, q) + mask.mT
        return torch.einsum("bhkq,bkd->bqhd", scores.softmax(-2), v)

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = q @ k.mT[:, None] + (mask if self.wrong else mask[:, None])
        return scores.softmax(-1) @ v[:, None]

    def folded(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Queries and heads in one axis, as GPT-BigCode multiplies them."""
        rows, queries, heads, _ = q.shape
        scores = torch.bmm(q.flatten(1, 2), k.mT).view(rows, queries, heads, -1) + mask[:, None]
        return torch.bmm(scores.softmax(-1).flatten(1, 2), v).view(rows, queries, -1)


class Grouped(nn.Module):
    """Two heads share each of two keys, and the scores have an axis for the keys and one for the heads of each."""

    def __init__(self, scores: str) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 16)
        self.scores, self.cache = scores, ()

    def forward(self, x: Tensor) -> Tensor:
        rows, queries, _ = x.shape
        q = self.q(x).view(rows, queries, 2, 2, 8)
        k, v = (each(x).view(rows, queries, 2, 8) for each in (self.k, self.v))
        if self.cache:
            k, v = (torch.cat(pair, 1) for pair in zip(self.cache, (k, v), strict=True))
        self.cache = k, v
        scores = torch.einsum(f"bqngd,bknd->{self.scores}", q, k) * 8**-0.5
        mask = causal(queries, k.shape[1]) if queries > 1 else torch.zeros(1, k.shape[1])
        scores = scores + mask.view(queries, *[1] * (3 - self.scores.index("q")), -1)
        return torch.einsum(f"{self.scores},bknd->bqngd", scores.softmax(-1), v)


@torch.no_grad()
def generated(layer: nn.Module, queries: tuple[int, ...], rows: int = 2) -> list[Tensor]:
    return [layer(torch.randn(rows, each, WIDTH)) for each in queries]


class Folded(nn.Module):
    """Batch and heads in one axis, and a mask for each; wrong, the mask has the heads before the batch."""

    def __init__(self, attend: str, wrong: bool = False) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(50, WIDTH, padding_idx=0), nn.Linear(WIDTH, 3 * WIDTH)
        self.mha = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.attend, self.wrong = attend, wrong

    def forward(self, ids: Tensor) -> Tensor:
        x, keys = self.embed(ids), ids.shape[1]
        hidden = torch.ones(keys, keys, dtype=torch.bool).triu(1) | (ids == 0)[:, None]
        hidden = hidden.repeat(HEADS, 1, 1) if self.wrong else hidden.repeat_interleave(HEADS, 0)
        return getattr(self, self.attend)(x, hidden)

    def module(self, x: Tensor, hidden: Tensor) -> Tensor:
        return self.mha(x, x, x, attn_mask=hidden, need_weights=False)[0]

    def sequences_first(self, x: Tensor, hidden: Tensor) -> Tensor:
        rows, queries, _ = x.shape
        parts = self.qkv(x.transpose(0, 1)).chunk(3, -1)
        q, k, v = (each.contiguous().view(queries, rows * HEADS, 8).transpose(0, 1) for each in parts)
        scores = torch.bmm(q * 8**-0.5, k.mT) + torch.zeros(hidden.shape).masked_fill(hidden, float("-inf"))
        return torch.bmm(scores.softmax(-1), v)

    def fused_of_one_head(self, x: Tensor, hidden: Tensor) -> Tensor:
        rows, queries, _ = x.shape
        parts = (each.unflatten(-1, (HEADS, 8)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        q, k, v = (each.reshape(rows * HEADS, 1, queries, 8) for each in parts)
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=~hidden[:, None])


@torch.no_grad()
def padded(layer: nn.Module) -> list[Tensor]:
    ids = torch.randint(1, 50, (3, 9)) * (torch.arange(9) < torch.tensor([9, 6, 4])[:, None])
    return [layer(ids)]
