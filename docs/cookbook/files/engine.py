"""Run three layers of attention in PyTorch."""

import torch
from torch.nn.functional import scaled_dot_product_attention


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


torch.manual_seed(0)
with torch.no_grad():
    torch.nn.Sequential(Layer(), Layer(), Layer())(4 * torch.randn(1, 6, 16))
