"""Vision transformers of timm: with a class token, with registers too as DINOv2 has them, and with a pooler's query."""

import torchvision_stand_in  # noqa: F401, I001
import timm
import torch
from looking import Weights
from torch import nn

SMALL = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 32, "num_heads": 4}
NAMES = {"vit": "vit_base_patch8_224", "dino": "vit_base_patch14_reg4_dinov2", "siglip": "vit_base_patch16_siglip_224"}


class Models(nn.ModuleDict):
    """All of them, which a program has one of."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [model(x) for model in self.values()]


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Models({name: timm.create_model(kind, **SMALL) for name, kind in NAMES.items()}).eval()
    weights = Weights(model)
    with torch.no_grad():
        model(torch.randn(1, 3, 32, 32))
    for name in NAMES:
        weights.of(name, 4, *(f"{name}.blocks.{layer}.attn" for layer in range(2)))
    weights.of("pooled", 4, "siglip.attn_pool")
    weights.save()
