"""Train a small GPT, whose attention is fused or written out: what `attn run` is measured on.

python training.py sdpa|handwritten [STEPS]

prints the loss, and the seconds of the processor up to the end of the first step and from there on.
"""

from __future__ import annotations

import math
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS, WIDTH, HEADS, LAYERS, LENGTH, BATCH, STEPS = 4096, 256, 8, 6, 256, 4, 12


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def handwritten(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    return functional.softmax(scores.masked_fill(future, float("-inf")), dim=-1) @ v


class TransformerBlock(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = fused if sys.argv[1] == "sdpa" else handwritten
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, WIDTH] in and out."""
        q, k, v = self.qkv(self.ln_1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Words in, scores of the next words out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(TransformerBlock() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        """[B, T] in, [B, T, WORDS] out."""
        return self.head(self.norm(self.blocks(self.words(ids) + self.positions.weight)))


def main() -> None:
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0.0
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else STEPS):
        ids = torch.randint(WORDS, (BATCH, LENGTH + 1))
        loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        start = start or time.process_time()
    print(f"{loss.item():.3f} {start:.3f} {time.process_time() - start:.3f}")


if __name__ == "__main__":
    main()
