"""A language model that generates with a cache. What it says is not what it says without one."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, cache):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        cache[:] = k, v
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, words=100, width=64, heads=4, layers=2):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(64, width)
        self.layers = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, ids, caches):
        past = caches[0][0].shape[2] if caches[0] else 0
        x = self.words(ids) + self.positions(torch.arange(past, past + ids.shape[1]))
        for layer, cache in zip(self.layers, caches, strict=True):
            x = x + layer(x, cache)
        return self.head(x)


torch.manual_seed(0)
model, ids, caches = Model().eval(), torch.randint(100, (1, 12)), [[], []]
with torch.no_grad():
    whole = model(ids, [[], []])
    steps = [model(part, caches) for part in ids.split([8, 1, 1, 1, 1], dim=1)]
print("the same with and without a cache:", torch.allclose(torch.cat(steps, dim=1), whole, atol=1e-4))
