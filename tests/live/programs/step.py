"""What every program here has in common: a batch of three sentences, and one training step or one evaluation."""

from collections.abc import Callable
from functools import wraps

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Program = Callable[[], list[Tensor]]
WIDTH, HEADS, LENGTHS = 32, 4, (10, 6, 3)
REAL = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]  # [B, T], False at the padding


def sentences(length: int = max(LENGTHS), batch: int = len(LENGTHS)) -> Tensor:
    """Vectors of words, [B, T, WIDTH]; the padding is zeros, as `nn.Embedding(padding_idx=0)` makes it."""
    x = torch.randn(batch, length, WIDTH)
    return x * REAL[..., None] if (batch, length) == REAL.shape else x


def words() -> Tensor:
    return torch.randint(1, 50, REAL.shape) * REAL


def step(model: nn.Module, *inputs: object, **options: object) -> list[Tensor]:
    output = model.train()(*inputs, **options)
    output = output[0] if isinstance(output, tuple) else output
    output.float().square().mean().backward()
    return [output.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]


def language_step(model: nn.Module, ids: Tensor, *inputs: object, **options: object) -> list[Tensor]:
    """The scores of a step of a language model, which is to predict each next word, and every gradient."""
    scores = model.train()(ids, *inputs, **options)
    F.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    return [scores.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]


@torch.no_grad()
def evaluation(model: nn.Module, *inputs: object, **options: object) -> list[Tensor]:
    output = model.eval()(*inputs, **options)
    return [output[0] if isinstance(output, tuple) else output]


class SelfAttention(nn.Module):
    """Projections around a function of queries, keys and values, each [B, HEADS, T, WIDTH / HEADS]."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.qkv, self.proj, self.attend = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), attend

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(self.attend(q, k, v).transpose(1, 2).flatten(2))


def trained(length: int = max(LENGTHS), batch: int = len(LENGTHS)) -> Callable[..., Program]:
    """Make a program of a function of queries, keys and values: a training step of the attention around it."""
    return lambda attend: wraps(attend)(lambda: step(SelfAttention(attend), sentences(length, batch)))
