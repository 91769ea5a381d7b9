"""A robot's policy, as one writes it: steps of an action look at the patches of two cameras, and at the joints."""

import torch
from looking import Weights
from torch import Tensor, nn

CAMERAS, ROWS, COLUMNS, STEPS, WIDTH, HEADS = 2, 3, 4, 6, 16, 2


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, 8)
        self.joints = nn.Linear(7, WIDTH)
        self.actions = nn.Parameter(torch.randn(STEPS, WIDTH))
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, images: Tensor, joints: Tensor) -> Tensor:
        cells = self.patches(images.flatten(0, 1)).flatten(2).mT.reshape(len(images), -1, WIDTH)
        seen = torch.cat([self.joints(joints)[:, None], cells], 1)
        q, k, v = self.to_q(self.actions.expand(len(images), -1, -1)), self.to_k(seen), self.to_v(seen)
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (q, k, v))
        weights = (q @ k.mT * q.size(-1) ** -0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.ModuleDict({"decoder": Decoder()}).eval()
    weights = Weights(model)
    with torch.no_grad():
        model["decoder"](torch.randn(1, CAMERAS, 3, 8 * ROWS, 8 * COLUMNS), torch.randn(1, 7))
    weights.of("policy", HEADS, "decoder")
    weights.save()
