"""A language model that learns to predict random words, which nobody can."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, is_word=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mask = None
        if is_word is not None:
            causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            mask = causal & is_word[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, words=100, width=64, heads=4, layers=2):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(64, width)
        self.layers = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, ids, is_word=None):
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = x + layer(x, is_word)
        return self.head(x)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
for _ in range(150):
    ids = torch.randint(100, (32, 17))
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss:.1f}, and a guess among 100 words has 4.6")
