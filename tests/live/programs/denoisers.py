"""Transformers of diffusers, a step of denoising each: DiT, PixArt, which reads a text, and SD3, which joins both."""

import torch
from diffusers import DiTTransformer2DModel, PixArtTransformer2DModel, SD3Transformer2DModel
from looking import Weights
from torch import nn

SMALL = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "patch_size": 2}
TEXT = 5  # tokens


class Denoisers(nn.Module):
    """All of them, which a program has one of."""

    def __init__(self) -> None:
        super().__init__()
        self.dit = DiTTransformer2DModel(**SMALL, sample_size=8, num_embeds_ada_norm=10)
        text = {"caption_channels": 12, "cross_attention_dim": 16, "use_additional_conditions": False}
        self.pixart = PixArtTransformer2DModel(**SMALL, **text, sample_size=8)
        joined = {"joint_attention_dim": 12, "caption_projection_dim": 16, "pooled_projection_dim": 12}
        self.sd3 = SD3Transformer2DModel(**SMALL, **joined, sample_size=8, out_channels=4)

    def forward(self) -> None:
        step = torch.tensor([3])
        # With and without the class: guidance.
        self.dit(torch.randn(2, 4, 8, 8), step.expand(2), torch.tensor([1, 10]))
        prompt, size = torch.randn(1, TEXT, 12), {"resolution": None, "aspect_ratio": None}
        self.pixart(torch.randn(1, 4, 8, 12), prompt, step, added_cond_kwargs=size)
        self.sd3(torch.randn(1, 4, 8, 12), prompt, torch.randn(1, 12), step)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Denoisers().eval()
    weights = Weights(model)
    with torch.no_grad():
        model()
    weights.of("dit", 2, *(f"dit.transformer_blocks.{layer}.attn1" for layer in range(2)))
    weights.of("pixart", 2, *(f"pixart.transformer_blocks.{layer}.attn1" for layer in range(2)))
    weights.of("pixart_text", 2, *(f"pixart.transformer_blocks.{layer}.attn2" for layer in range(2)))
    weights.of("sd3", 2, *(f"sd3.transformer_blocks.{layer}.attn" for layer in range(2)))
    weights.save()
