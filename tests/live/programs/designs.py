"""Published designs of attention that look odd and are right."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from public_masks import HEAD, HEADS, WIDTH, NanoGPT, batch
from step import step
from torch import Tensor, nn

T = 8
FUTURE = torch.ones(T, T, dtype=torch.bool).triu(1)
LENGTHS = (8, 5)
SDPA = F.scaled_dot_product_attention


def run(attend, *lengths: int, layers: int = 1, padding_idx: int | None = None) -> list[Tensor]:
    """A training step of nanoGPT with a function of q, k and v."""
    return step(NanoGPT(attend, layers=layers, padding_idx=padding_idx), batch(*(lengths or (T, T))))


def fused(scale: float | None = None, is_causal: bool = True, prepare=lambda x: x, before: float = 1.0):
    return run(lambda q, k, v, _: SDPA(prepare(q) * before, prepare(k), v, is_causal=is_causal, scale=scale))


def masked(mask: Tensor):
    return run(lambda q, k, v, _: SDPA(q, k, v, attn_mask=mask))


def written(lay, weigh=None, scale: float = HEAD**-0.5, prepare=None, lengths: tuple[int, ...] = (T, T)):
    """Attention by hand: what is laid on the scores, what becomes of the weights, of queries and keys."""

    def attend(q, k, v, idx):
        if prepare is not None:
            q, k = prepare(q), prepare(k)
        weights = lay(q @ k.transpose(-2, -1) * scale, idx != 0).softmax(-1)
        return (weights if weigh is None else weigh(weights, idx != 0)) @ v

    return run(attend, *lengths)


def causal(scores: Tensor, real: Tensor) -> Tensor:
    return scores.masked_fill(FUTURE, float("-inf"))


def padded(scores: Tensor, real: Tensor) -> Tensor:
    return scores.masked_fill(~real[:, None, None, :], float("-inf"))


def of_words(real: Tensor) -> Tensor:
    """Which cells are of two words."""
    return real[:, None, :, None] & real[:, None, None, :]


def added_twice(fill: float):
    def lay(scores, real):
        hides = torch.zeros(real.shape).masked_fill(~real, fill)[:, None, None, :]
        return scores + torch.full((T, T), fill).triu(1) + hides

    return written(lay, lengths=LENGTHS)


def added(fill: float):
    return written(lambda scores, _: scores + torch.full((T, T), fill).triu(1))


def filled(fill: float):
    return written(lambda scores, _: scores.masked_fill(FUTURE, fill))


def filled_twice():
    def lay(scores, real):
        return scores.masked_fill(FUTURE, -1e9).masked_fill(~real[:, None, None, :], -1e9)

    return written(lay, lengths=LENGTHS)


def uniform_padding():
    """Padding queries see nothing; the fill is finite, and they attend uniformly."""
    return written(lambda scores, real: scores.masked_fill(~of_words(real), -1e9), lengths=LENGTHS)


def deberta():
    """Softmax, and 0 where a mask of queries and keys forbids."""
    return written(padded, lambda weights, real: weights.masked_fill(~of_words(real), 0), lengths=LENGTHS)


KEPT_HEADS = torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None, None]
normalized = partial(F.normalize, dim=-1)
PROGRAMS = {
    # Scales; `mup_before` divides by √D before a function that divides by it again: 1/D, by intent.
    "mup_by_hand": lambda: written(causal, scale=1 / HEAD),
    "mup_sdpa": lambda: fused(1 / HEAD),
    "mup_before": lambda: fused(before=1 / math.sqrt(HEAD)),
    "cosine": lambda: written(causal, scale=10.0, prepare=normalized),
    "cosine_sdpa": lambda: fused(1.0, is_causal=False, prepare=normalized),
    "qk_norm": lambda: fused(prepare=lambda x: F.layer_norm(x, (HEAD,))),
    "softcap": lambda: written(lambda scores, real: causal(50 * torch.tanh(scores / 50), real)),
    # Weights that are multiplied.
    "query_mask": lambda: written(padded, lambda weights, real: weights * real[:, None, :, None], lengths=LENGTHS),
    "head_mask": lambda: written(causal, lambda weights, _: weights * KEPT_HEADS),
    # Fills.
    **{f"added_{fill}": partial(added, -float(fill)) for fill in (50, 200, 500, 1000, 2000, 5000, 9000)},
    **{f"filled_{fill}": partial(filled, -float(fill)) for fill in (50, 100, 1000, 10000)},
    **{f"added_{name}_twice": partial(added_twice, -float(name)) for name in ("inf", "1e4", "1e9")},
    # Rules.
    "lookahead": lambda: masked(torch.ones(T, T, dtype=torch.bool).tril(1)),
    "backward": lambda: masked(~FUTURE.T),
    "cloze": lambda: masked(~torch.eye(T, dtype=torch.bool)),
}


def slots():
    """Slot attention: the softmax is over slots, and rows are normalised again."""

    class Slots(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.mu = nn.Parameter(torch.randn(1, 4, WIDTH))

        def forward(self, x):
            slots = self.mu + 0.1 * torch.randn(len(x), 4, WIDTH)
            for _ in range(2):
                dots = torch.einsum("bid,bjd->bij", self.q(slots), self.k(x)) * WIDTH**-0.5
                attn = dots.softmax(dim=1) + 1e-8
                attn = attn / attn.sum(dim=-1, keepdim=True)
                slots = slots + torch.einsum("bjd,bij->bid", self.v(x), attn)
            return slots

    return step(Slots(), torch.randn(2, T, WIDTH))


def zero_for_nan():
    def attend(q, k, v, idx):
        scores = padded(causal(q @ k.transpose(-2, -1) * HEAD**-0.5, idx), idx != 0)
        return torch.nan_to_num(scores.softmax(-1)) @ v

    class LeftPadded(NanoGPT):
        def forward(self, idx):
            x = self.wte(idx) + self.wpe(((idx != 0).cumsum(1) - 1).clamp(min=0))
            return self.lm_head(self.h[0](x, idx))

    return step(LeftPadded(attend, layers=1), batch(*LENGTHS, left=True))


def sink():
    """Logits beside the scores, of which the weights are dropped."""
    logits = torch.randn(HEADS)

    def attend(q, k, v, idx):
        scores = causal(q @ k.transpose(-2, -1) * HEAD**-0.5, idx)
        both = torch.cat([scores, logits.view(1, -1, 1, 1).expand(len(q), -1, T, 1)], dim=-1)
        return (both - both.max(-1, keepdim=True).values).softmax(-1)[..., :-1] @ v

    return run(attend)


def rows_taken_away():
    """Weights of queries that see no key are set to 0 after the softmax, as Flamingo does."""
    hidden = torch.ones(T, T, dtype=torch.bool).tril(-1).mT | torch.eye(T, dtype=torch.bool)
    dead = hidden.all(-1, keepdim=True)
    return written(
        lambda scores, _: scores.masked_fill(hidden, torch.finfo(scores.dtype).min),
        lambda weights, _: weights.masked_fill(dead, 0.0),
    )


def softmax_one():
    """A query may attend to nothing: 1 is added to what the weights are divided by."""

    def attend(q, k, v, idx):
        scores = causal(q @ k.transpose(-2, -1) * HEAD**-0.5, idx)
        raised = torch.exp(scores - scores.amax(-1, keepdim=True))
        return raised / (raised.sum(-1, keepdim=True) + 1) @ v

    return run(attend)


def differential():
    def attend(q, k, v, idx):
        one, other = (
            causal(a @ b.transpose(-2, -1) * HEAD**-0.5, idx).softmax(-1)
            for a, b in zip(q.chunk(2, 1), k.chunk(2, 1), strict=True)
        )
        return ((one - 0.8 * other) @ torch.cat(v.chunk(2, 1), -1)).view(len(q), HEADS, T, HEAD)

    return run(attend)


def reformer():
    """Queries are keys, and a token attends to itself where there is nothing else."""

    def attend(q, k, v, idx):
        scores = q @ F.normalize(q, dim=-1).transpose(-2, -1) * HEAD**-0.5
        scores = scores.masked_fill(torch.eye(T, dtype=torch.bool), -5e4)
        return scores.masked_fill(FUTURE, torch.finfo(scores.dtype).min).softmax(-1) @ v

    return run(attend)


def strict_causal():
    """A token does not attend to itself; the first attends to itself alone."""
    mask = torch.ones(T, T, dtype=torch.bool).tril(-1)
    mask[0, 0] = True
    return masked(mask)


def local_windows():
    """Keys of the window before and of the own; windows are an axis beside the heads."""

    def attend(q, k, v, idx):
        q, k, v = (each.unflatten(2, (T // 2, 2)) for each in (q, k, v))
        before = [F.pad(each, (0, 0, 0, 0, 1, 0))[:, :, :-1] for each in (k, v)]
        k, v = (torch.cat(both, dim=3) for both in zip(before, (k, v), strict=True))
        scores = torch.einsum("bhwid,bhwjd->bhwij", q, k) * HEAD**-0.5
        i, j = torch.arange(T).view(-1, 2), torch.arange(T).view(-1, 2)
        j = torch.cat([F.pad(j, (0, 0, 1, 0), value=-1)[:-1], j], dim=1)
        forbidden = (j[:, None, :] > i[:, :, None]) | (j[:, None, :] < 0)
        weights = scores.masked_fill(forbidden, torch.finfo(scores.dtype).min).softmax(-1)
        return torch.einsum("bhwij,bhwjd->bhwid", weights, v).flatten(2, 3)

    return run(attend)


def tiled_heads():
    def attend(q, k, v, idx):
        k, v = (each[:, :2].repeat(1, 2, 1, 1) for each in (k, v))
        return SDPA(q, k, v, is_causal=True)

    return run(attend)


def top_k():
    def lay(scores, real):
        scores = causal(scores, real)
        return scores.masked_fill(scores < scores.topk(3, dim=-1).values[..., -1:], float("-inf"))

    return written(lay)


def relative_bias():
    """A bias of the distance, and nothing beyond a window."""
    distance = torch.arange(T)[:, None] - torch.arange(T)
    bias = torch.randn(HEADS, T)[:, distance.clamp(min=0)]
    return masked(bias.masked_fill((distance < 0) | (distance >= 4), float("-inf")))


def swin():
    """Windows of 8 of which the last is of two regions, and -100 between them."""
    mask = torch.zeros(2, T, T)
    mask[1, :4, 4:] = mask[1, 4:, :4] = -100.0

    def attend(q, k, v, idx):
        scores = (q @ k.transpose(-2, -1) * HEAD**-0.5).view(1, 2, HEADS, T, T) + mask[None, :, None]
        return scores.view(2, HEADS, T, T).softmax(-1) @ v

    return run(attend)


def simultaneous():
    """A cross-attention that sees as much of the source as it wrote."""
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 32, batch_first=True)
    x, memory = torch.randn(2, T, WIDTH), torch.randn(2, T, WIDTH)
    return step(layer, x, memory, tgt_mask=FUTURE, memory_mask=FUTURE)


def class_token():
    near = (torch.arange(T)[:, None] - torch.arange(T)).abs() < 2
    near[0] = near[:, 0] = True
    return masked(near)
