"""Programs that write attention out: a product, a softmax, a product, as public models have them."""

import math

import torch
import torch.nn.functional as F
from step import HEADS, LENGTHS, REAL, WIDTH, SelfAttention, sentences, step, trained
from torch import Tensor, nn

T, HEAD = max(LENGTHS), WIDTH // HEADS
LEAST = torch.finfo(torch.float32).min
FUTURE = torch.ones(T, T, dtype=torch.bool).triu(1)


def rotary(x: Tensor) -> Tensor:
    angles = torch.outer(torch.arange(x.size(2)), 1e4 ** (-torch.arange(0, HEAD, 2) / HEAD)).repeat(1, 2)
    one, other = x.chunk(2, dim=-1)
    return x * angles.cos().to(x.dtype) + torch.cat((-other, one), dim=-1) * angles.sin().to(x.dtype)


def rotary_in_half():
    """As Llama has it: rotated queries and keys that heads share by two, a mask that is added, a softmax in float32."""
    mask = torch.full((T, T), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16).triu(1)

    def attend(q, k, v):
        k, v = (each[:, ::2].repeat_interleave(2, dim=1) for each in (k, v))
        scores = torch.matmul(rotary(q), rotary(k).transpose(2, 3)) / math.sqrt(HEAD) + mask
        return torch.matmul(F.softmax(scores.float(), dim=-1, dtype=torch.float32).type_as(q), v)

    with torch.inference_mode():
        return [SelfAttention(attend).bfloat16()(sentences(batch=2).bfloat16())]


class CrossAttention(nn.Module):
    """Queries of a picture, keys of a text, heads folded into the batch: as the first diffusion models had it."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.to_k, self.to_v = (nn.Linear(24, WIDTH, bias=False) for _ in range(2))

    def forward(self, x: Tensor, context: Tensor, mask: Tensor) -> Tensor:
        batch = len(x)
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2).flatten(0, 1) for each in (q, k, v))
        sim = torch.einsum("b i d, b j d -> b i j", q, k) * HEAD**-0.5
        sim.masked_fill_(~mask[:, None, :].repeat_interleave(HEADS, 0), -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = torch.einsum("b i j, b j d -> b i d", attn, v)
        return out.unflatten(0, (batch, HEADS)).transpose(1, 2).flatten(2)


def cross_attention():
    return step(CrossAttention(), torch.randn(len(LENGTHS), 7, WIDTH), torch.randn(len(LENGTHS), T, 24), REAL)


@trained(batch=2)
def batched_products(q, k, v):
    """`baddbmm` with the scale in it, and an addition in place, as GPT-2's and BLOOM's older code."""
    mask = torch.full((T, T), -1e4).triu(1)
    shape = q.shape
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))
    scores = torch.baddbmm(mask, q, k.transpose(1, 2), beta=1.0, alpha=HEAD**-0.5)
    return torch.bmm(nn.Softmax(dim=-1)(scores), v).view(shape)


def multiplied_and_added():
    """As the first GPT has it: the future's scores are multiplied with 0 and then −1e4; padded on the left."""
    past, hidden = 1.0 - FUTURE.float(), REAL.flip(1)[:, None, None, :].logical_not() * LEAST

    def attend(q, k, v):
        w = q @ k.mT / math.sqrt(HEAD)
        w = w * past + -1e4 * (1 - past)
        return nn.functional.softmax(w + hidden, dim=-1) @ v

    return step(SelfAttention(attend), sentences().flip(1))


@trained()
def renormalized(q, k, v):
    """As AllenNLP has it: hidden weights are set to 0, and the others divided by their sum."""
    mask = REAL[:, None, None, :].float()
    weights = (q @ k.mT * HEAD**-0.5 * mask).softmax(dim=-1) * mask
    weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-13)
    return weights @ v


@trained(batch=2)
def linear_attention(q, k, v):
    """A softmax over the features of the queries, and one over the keys: no weights of queries on keys at all."""
    return q.softmax(dim=-1) @ (k.softmax(dim=-2).mT @ v)


class Pool(nn.Module):
    """One learned query, whose scores are a linear layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.score(x).masked_fill(~REAL[..., None], float("-inf"))
        return (scores.softmax(dim=1).mT @ x).squeeze(1)


def pooling():
    return step(Pool(), sentences())


class Experts(nn.Module):
    """A softmax over experts, from a product and into one, and no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 4), nn.Parameter(torch.randn(4, WIDTH, WIDTH) / WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(dim=-1)
        return torch.einsum("bte,bted->btd", weights, torch.einsum("btd,edf->btef", x, self.experts))


def experts():
    return step(Experts(), sentences())


@trained()
def minus_one(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(HEAD) - (1.0 - REAL[:, None, None, :].float())
    return scores.softmax(-1) @ v  # <- -1 for -1e9
