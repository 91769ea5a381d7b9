"""Train a model of two layers on random words: python collapse.py LEARNING_RATE."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

WORDS, WIDTH, HEADS, LENGTH, BATCH = 64, 32, 4, 64, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


torch.manual_seed(0)
words, positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
layers = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))
parameters = [*words.parameters(), *positions.parameters(), *layers.parameters()]
optimizer = torch.optim.Adam(parameters, lr=float(sys.argv[1]))
for _ in range(60):
    ids = torch.randint(WORDS, (BATCH, LENGTH + 1))
    scores = layers(words(ids[:, :-1]) + positions.weight)
    loss = F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.1f}")
