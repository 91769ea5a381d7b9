"""What is seen while one attention module runs, and what is made of it: one map for each head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from attncli.trace.layer import Proof

# What a model adds to a forbidden score is −1e4 at the least, and no score comes near: below this it is masked.
FORBIDDEN = -5e3


@dataclass(frozen=True)
class Product:
    """A matrix product of two tensors, with its operands as `[…, rows, width]` and `[…, width, columns]`."""

    left: torch.Tensor
    right: torch.Tensor
    result: torch.Tensor


@dataclass(frozen=True)
class Softmax:
    """A softmax over keys.

    Attributes:
        scores: what it took, `[…, rows, columns]`.
        weights: what it gave.
        product: of queries and keys, which the scores were made of; None if no such product has their size.
        outputs: the products of the weights with the values.
    """

    scores: torch.Tensor
    weights: torch.Tensor
    product: Product | None
    outputs: list[Product] = field(default_factory=list)


@dataclass
class Watched:
    """What happened in one call of one attention module.

    Attributes:
        origins: of a tensor, by its `id`, the product of queries and keys or the softmax that it was made of; with
            the tensor itself, lest another one gets its id.
        softmax: in the order in which they ran.
        parts: what each direct part of the module took first and gave, by its name.
    """

    origins: dict[int, tuple[torch.Tensor, Product | Softmax]] = field(default_factory=dict)
    softmax: list[Softmax] = field(default_factory=list)
    parts: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def origin(self, tensors: list[torch.Tensor], numel: int) -> Product | Softmax | None:
        """Return what a result was made of: the origin of its first operand with as many elements as it has."""
        found = (self.origins.get(id(tensor)) for tensor in tensors if tensor.numel() == numel)
        return next((entry[1] for entry in found if entry is not None), None)


@dataclass(frozen=True)
class Ended:
    """One call of an attention module that has returned.

    Attributes:
        module: what ran.
        given: its arguments, by name.
        returned: its result.
        seen: what happened meanwhile.
        batch: how many sentences ran.
        positions: how many queries the layer should have.
    """

    module: Any
    given: Mapping[str, Any]
    returned: Any
    seen: Watched
    batch: int
    positions: int


@dataclass(frozen=True)
class Dense:
    """One layer's attention in a batch, with a row for every query and a column for every key.

    Attributes:
        scores: as the softmax received them, `[B, H, Q, K]`; those of keys that are not reached are −inf.
        weights: as it gave them.
        q: queries, `[B, H, Q, D]`; None where they are not known.
        k: keys, `[B, Hkv, K, D]`.
        v: values, `[B, Hkv, K, Dv]`; None where they are not known, or not the same for all queries.
        output: what the module made of weights and values, `[B, H, Q, Dv]`.
        proofs: of each sentence, how far weights·V is from that output, where `v` cannot tell.
        against: what that output is.
    """

    scores: torch.Tensor
    weights: torch.Tensor
    q: torch.Tensor | None
    k: torch.Tensor | None
    v: torch.Tensor | None
    output: torch.Tensor | None
    proofs: tuple[Proof, ...] | None = None
    against: str = "the model's own product"
