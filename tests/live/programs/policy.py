"""A robot's policy, as one writes it: patches look at each other, and steps of an action at two cameras and joints."""

import sys

import numpy as np
import torch
from torch import Tensor, nn

CAMERAS, ROWS, COLUMNS, STEPS, WIDTH, HEADS = 2, 3, 4, 6, 16, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = self.to_q(x), self.to_k(seen), self.to_v(seen)
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (q, k, v))
        self.weights = (q @ k.mT * q.size(-1) ** -0.5).softmax(-1)
        return (self.weights @ v).transpose(1, 2).flatten(2)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.joints = nn.Conv2d(3, WIDTH, 8, 8), nn.Linear(7, WIDTH)
        self.actions = nn.Parameter(torch.randn(STEPS, WIDTH))
        self.encoder, self.decoder = Attention(), Attention()

    def forward(self, images: Tensor, joints: Tensor) -> Tensor:
        cells = self.patches(images.flatten(0, 1)).flatten(2).mT
        cells = cells + self.encoder(cells, cells)
        seen = torch.cat([self.joints(joints)[:, None], cells.reshape(len(images), -1, WIDTH)], 1)
        return self.decoder(self.actions.expand(len(images), -1, -1), seen)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Policy().eval()
    with torch.no_grad():
        model(torch.randn(1, CAMERAS, 3, 8 * ROWS, 8 * COLUMNS), torch.randn(1, 7))
    np.savez(sys.argv[1], encoder=model.encoder.weights[None].numpy(), decoder=model.decoder.weights[None].numpy())
