"""Attention whose weights cannot be read whole, or not be followed from scores to values; and softmaxes of none."""

import torch
import torch.nn.functional as F
from step import HEADS, WIDTH, sentences, step
from torch import Tensor, nn

HEAD, T, WINDOW = WIDTH // HEADS, 12, 3


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, HEAD)).permute(2, 0, 3, 1, 4)
        return self.proj(self.attend(q, k, v).transpose(1, 2).flatten(2))


class TalkingHeads(nn.Module):
    """CaiT as timm has it: heads are mixed by a linear layer before the softmax and after it."""

    def __init__(self, dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.attn_drop = nn.Dropout(0.0)
        self.proj = nn.Linear(dim, dim)
        self.proj_l = nn.Linear(num_heads, num_heads)
        self.proj_w = nn.Linear(num_heads, num_heads)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]
        attn = q @ k.transpose(-2, -1)
        attn = self.proj_l(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        attn = attn.softmax(dim=-1)
        attn = self.proj_w(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        attn = self.attn_drop(attn)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class Band(Heads):
    """A band of diagonals as Longformer has it: of overlapping chunks, put together in a matrix of their own."""

    def chunk(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        row, place, number = x.stride()
        size = (rows, length // WINDOW - 1, WINDOW * 2, width)
        return x.as_strided(size=size, stride=(row, place * WINDOW, place, number))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, length, width = q.shape
        q, k, v = (x.reshape(batch * heads, length, width) for x in (q / HEAD**0.5, k, v))
        scores = torch.einsum("bcxd,bcyd->bcxy", self.chunk(q), self.chunk(k))
        scores = F.pad(scores, (0, 0, 0, 1))
        scores = scores.view(*scores.shape[:2], scores.shape[3], scores.shape[2])
        band = scores.new_zeros(batch * heads, length // WINDOW, WINDOW, 2 * WINDOW + 1)
        band[:, :-1, :, WINDOW:] = scores[:, :, :WINDOW, : WINDOW + 1]
        band[:, -1, :, WINDOW:] = scores[:, -1, WINDOW:, : WINDOW + 1]
        band[:, 1:, :, :WINDOW] = scores[:, :, -(WINDOW + 1) : -1, WINDOW + 1 :]
        probs = F.softmax(band.view(batch * heads, length, 2 * WINDOW + 1), dim=-1)  # <-
        around = F.pad(v, (0, 0, WINDOW, WINDOW), value=-1).unfold(1, 2 * WINDOW + 1, 1)
        return torch.einsum("btk,btdk->btd", probs, around).view(batch, heads, length, width)


# Softmaxes of no attention, or of one that is shown.
class Logged(Heads):
    """Weights whose picture and sharpness are kept beside."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.mT * HEAD**-0.5).softmax(dim=-1)
        self.picture = F.pad(weights.detach(), (1, 1, 1, 1)).mean(1)
        self.sharpness = weights.square().sum(-1).mean()
        return weights @ v


class Matched(Heads):
    """Places of two pictures that are matched: nothing is weighed by it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        likeness = q @ k.mT
        return v * (likeness.softmax(dim=-1) * likeness.softmax(dim=-2)).amax(-1, keepdim=True)


def run(name: str) -> list[Tensor]:
    return step(globals()[name](), sentences(T))
