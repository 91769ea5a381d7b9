"""A test of a model that forgets its padding."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).flatten(2)


def test_mask(attention):
    model = nn.Sequential(nn.Embedding(100, 32), Attention(), Attention())
    ids = torch.tensor([[5, 3, 8, 2, 9, 4], [7, 6, 1, 4, 0, 0]])
    model(ids)
    attention.check("pad", lengths=[6, 4])
