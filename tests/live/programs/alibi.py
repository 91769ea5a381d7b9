"""ALiBi in the styles in which people write it, and what goes wrong with it."""

import math

import torch
import torch.nn.functional as F
from step import HEADS, REAL, WIDTH, SelfAttention, evaluation, main, sentences, step
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

T = REAL.shape[1]
SCALE = (WIDTH // HEADS) ** -0.5
BACK = torch.arange(T)[:, None] - torch.arange(T)  # i - j
FUTURE = BACK < 0
SLOPES = torch.tensor([2 ** (-8 * (head + 1) / HEADS) for head in range(HEADS)]).view(HEADS, 1, 1)


def added(bias: Tensor, padding: Tensor | None = None, **options):
    """A training step of attention by hand to whose scores a bias is added before it is made causal."""

    def attend(q, k, v):
        scores = (q @ k.transpose(-2, -1) * SCALE + bias).masked_fill(FUTURE, float("-inf"))
        if padding is not None:
            scores = scores.masked_fill(~padding[:, None, None, :], float("-inf"))
        return scores.softmax(-1).nan_to_num() @ v

    return step(SelfAttention(attend), sentences(), **options)


def given(bias: Tensor, mask: Tensor = FUTURE):
    """A training step with sdpa, which is given the bias with the mask in it."""
    both = bias.masked_fill(mask, float("-inf"))
    return step(SelfAttention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, both.to(q.dtype))), sentences())


# --- right -------------------------------------------------------------------------------------------------


def by_hand():
    return added(-SLOPES * BACK)


def left_padded():
    """As Bloom counts its positions: the padding does not count, and its keys have no bias."""
    real = REAL.flip(1)
    positions = (real.cumsum(-1) - 1) * real
    return added(SLOPES * positions[:, None, None, :], real)


def by_baddbmm():
    def attend(q, k, v):
        batch = len(q)
        q, k, v = (each.flatten(0, 1) for each in (q, k, v))
        bias = (SLOPES * torch.arange(T)).repeat(batch, 1, 1)
        scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0, alpha=SCALE)
        scores = scores.view(batch, HEADS, T, T).masked_fill(FUTURE, torch.finfo(q.dtype).min)
        return torch.bmm(scores.softmax(-1).flatten(0, 1), v).view(batch, HEADS, T, -1)

    return step(SelfAttention(attend), sentences())


def by_sdpa():
    return given(-SLOPES * BACK)


def in_bfloat16():
    def attend(q, k, v):
        q, k, v = (each.bfloat16() for each in (q, k, v))
        bias = (SLOPES.bfloat16() * torch.arange(T).bfloat16()).masked_fill(FUTURE, -math.inf)
        return F.scaled_dot_product_attention(q, k, v, bias).float()

    return step(SelfAttention(attend), sentences())


def by_module():
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    mask = (-SLOPES * BACK).masked_fill(FUTURE, -math.inf).repeat(3, 1, 1)
    x = sentences()
    return step(layer, x, x, x, attn_mask=mask, key_padding_mask=torch.zeros(REAL.shape).masked_fill(~REAL, -math.inf))


def by_flex():
    def mod(score, b, h, i, j):
        return score + SLOPES[h, 0, 0] * (j - i)

    block_mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, T, T, device="cpu")
    return evaluation(
        SelfAttention(lambda q, k, v: flex_attention(q, k, v, score_mod=mod, block_mask=block_mask)), sentences()
    )


def encoder():
    """To both sides, as encoders have it."""
    return given(-SLOPES * BACK.abs(), torch.zeros(T, T, dtype=torch.bool))


def windowed():
    return given(-SLOPES * BACK, FUTURE | (BACK >= 4))


def generated():
    """Two prompts, and tokens one by one; the keys grow."""
    attend = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def call(x, k, v):
        q, new_k, new_v = (each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in attend)
        k, v = torch.cat([k, new_k], 2), torch.cat([v, new_v], 2)
        i = torch.arange(k.shape[2])
        back = i[-x.shape[1] :, None] - i
        bias = (-SLOPES * back).masked_fill(back < 0, -math.inf)
        return F.scaled_dot_product_attention(q, k, v, bias), k, v

    with torch.no_grad():
        none = torch.zeros(2, HEADS, 0, WIDTH // HEADS)
        out, k, v = call(torch.randn(2, 4, WIDTH), none, none)
        for _ in range(3):
            out, k, v = call(torch.randn(2, 1, WIDTH), k, v)
    return [out]


# --- wrong -------------------------------------------------------------------------------------------------


def rises():
    return added(SLOPES * BACK)


def of_other_slopes():
    return added(-torch.tensor([2.0 ** (-8 * head / HEADS) for head in range(HEADS)]).view(HEADS, 1, 1) * BACK)


def forgotten():
    return added(torch.zeros(T, T))


def of_something_else():
    return added(torch.randn(HEADS, T, T))


def one_sided_encoder():
    """The bias of a decoder in an encoder: later keys gain by their distance."""
    return given(-SLOPES * BACK, torch.zeros(T, T, dtype=torch.bool))


if __name__ == "__main__":
    main({name: each for name, each in globals().items() if callable(each)})
