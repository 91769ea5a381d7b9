"""What models outside of transformers compute of pictures: their weights, from what their own projections return."""

import sys

import numpy as np
import torch
from torch import Tensor, nn


class Weights:
    """The weights of attention modules, in the order in which they ran: a softmax of the queries and keys they made."""

    def __init__(self, model: nn.Module) -> None:
        self.named: dict[str, list[np.ndarray]] = {}
        self._made: dict[tuple[str, str], Tensor] = {}
        for path, module in model.named_modules():
            module.register_forward_hook(lambda _, __, made, path=path: self._took(path, made))

    def _took(self, path: str, made: object) -> None:
        module, _, name = path.rpartition(".")
        if isinstance(made, Tensor) and name in ("to_q", "to_k", "add_q_proj", "add_k_proj"):
            self._made[module, name] = made.double()

    def of(self, name: str, heads: int, *modules: str) -> None:
        """Add those of some modules, `[modules, batch, head, query, key]`, under a name."""
        found = []
        for module in modules:
            made = {kind: tensor for (path, kind), tensor in self._made.items() if path == module}
            q, k = (
                torch.cat([made[each] for each in kinds if each in made], 1)
                for kinds in (("to_q", "add_q_proj"), ("to_k", "add_k_proj"))
            )
            q, k = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (q, k))
            found.append((q @ k.mT / q.size(-1) ** 0.5).softmax(-1).numpy())
        self.named[name] = found

    def save(self) -> None:
        np.savez(sys.argv[1], **{name: np.stack(found) for name, found in self.named.items()})
