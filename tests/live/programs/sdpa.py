"""Programs that call `F.scaled_dot_product_attention`."""

import threading

import torch
import torch.nn.functional as F
from step import HEADS, LENGTHS, REAL, WIDTH, SelfAttention, evaluation, sentences, step, trained, words
from torch import Tensor, nn

T = max(LENGTHS)


def causal_mask(size: int = T) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool).tril()


class Block(nn.Module):
    """A block of nanoGPT: `is_causal`, and dropout in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = 0.1

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (each.view(batch, length, HEADS, -1).transpose(1, 2) for each in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.mlp(self.ln_2(x))


def nanogpt():
    model, x = nn.Sequential(Block(), Block()), sentences(16, 2)
    return step(model, x) + evaluation(model, x)


@trained()
def causal_and_padding(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_mask() & REAL[:, None, None, :])


def in_a_thread():
    model, x, results = nn.Sequential(Block(), Block()), sentences(16, 2), []
    thread = threading.Thread(target=lambda: results.extend(evaluation(model, x)))
    thread.start()
    thread.join()
    return results


def autocast():
    with torch.autocast("cpu", torch.bfloat16):
        return step(nn.Sequential(Block(), Block()), sentences(16, 2))


def compiled():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return step(torch.compile(SelfAttention(attend), backend="eager"), sentences(batch=2))


def too_large_for_half():
    q, k, v = torch.randn(3, len(LENGTHS), HEADS, T, 8, dtype=torch.float16)
    mask = (1.0 - REAL[:, None, None, :].float()) * -1e9
    return [F.scaled_dot_product_attention(q, k, v, attn_mask=mask)]  # <- -1e9 is -inf in float16


def scripted():
    """Compiled by torch.jit, before an attention that is not."""
    first = torch.jit.script(nn.Linear(WIDTH, WIDTH))
    return step(nn.Sequential(first, SelfAttention(F.scaled_dot_product_attention)), sentences(batch=1))


@trained(batch=2)
def one_column(q, k, v):
    mask = causal_mask()[:, :1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # <- [T, 1] is every key or none


class Normalized(nn.Module):
    """A norm of padding that is all zeros, without an epsilon."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(50, WIDTH, padding_idx=0), nn.LayerNorm(WIDTH, eps=0.0)
        self.attention = SelfAttention(self.attend)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=REAL[:, None, None, :])  # <- NaN comes in

    def forward(self, ids: Tensor) -> Tensor:
        return self.attention(self.norm(self.words(ids)))


def norm_of_zeros():
    model, ids = Normalized(), words()
    return evaluation(model, ids) + evaluation(model, ids)
