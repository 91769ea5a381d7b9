"""A classifier of sentences of several lengths. Its loss is nan."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, is_word):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mask = is_word[:, None, :, None] & is_word[:, None, None, :]
        scores = (q @ k.mT) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~mask, float("-inf"))
        y = scores.softmax(dim=-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Classifier(nn.Module):
    def __init__(self, words=100, width=64, heads=4, layers=2):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 2)

    def forward(self, ids):
        x, is_word = self.words(ids), ids != 0
        for layer in self.layers:
            x = x + layer(x, is_word)
        return self.head(x[:, 0])


torch.manual_seed(0)
model, ids = Classifier(), torch.randint(1, 100, (4, 10))
for row, length in enumerate([10, 7, 4, 9]):
    ids[row, length:] = 0
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = F.cross_entropy(model(ids), torch.tensor([0, 1, 1, 0]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss:.1f}")
