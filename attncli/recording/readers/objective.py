"""The losses of language models, `F.cross_entropy`, `F.nll_loss` and what calls them, and what embeddings are given."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.weak import TensorWeakRef

from attncli.recording.lineage import operation
from attncli.recording.losses import LEAST_TARGETS, Embedded, Loss
from attncli.recording.readers.reader import Reader, ThreadContext

_MOST_EMBEDDED = 16  # that are remembered
_LINEAR = "input", "linear_weight", "target"
_OPTIONS = "weight", "ignore_index"


class Objective(Reader):
    """Reads losses, and what embeddings are given; a loss is mostly computed outside of the model."""

    sees_all = True

    def __init__(self, context: ThreadContext) -> None:
        super().__init__(context)
        self._embedded: deque[Embedded] = deque(maxlen=_MOST_EMBEDDED)
        self.functions = {
            F.embedding: self._read_embedding,
            F.cross_entropy: self._read_loss,
            F.nll_loss: self._read_loss,
        }
        if hasattr(F, "linear_cross_entropy"):  # torch 2.13
            self.functions[F.linear_cross_entropy] = self._read_linear

    def _read_embedding(
        self, _: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        ids = args[0] if args else kwargs["input"]
        number = operation(result)
        if number is not None and ids.dim() in (1, 2) and ids.numel() >= LEAST_TARGETS and not ids.is_inference():
            self._embedded.append(Embedded(TensorWeakRef(ids), ids._version, number))

    def _read_loss(self, _: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._tell(result, *args, **kwargs)

    def _read_linear(self, _: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        scores, _weight, target = (args[i] if i < len(args) else kwargs[name] for i, name in enumerate(_LINEAR))
        options = {name: value for name, value in kwargs.items() if name in _OPTIONS and value is not None}
        self._tell(result, scores, target, **options)

    def _tell(
        self,
        result: torch.Tensor,
        input: torch.Tensor,  # noqa: A002  # as torch calls it
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        """Tell a loss; the parameters after `result` are those of `F.cross_entropy`."""
        is_one_number = result.dim() == 0  # of a number each, the program may drop some afterwards
        if not is_one_number or input.grad_fn is None or target.is_floating_point() or target.dim() not in (1, 2):
            return
        embedded, calls = tuple(self._embedded), tuple(self.context.calls)
        self.context.learn(Loss(input, target, ignore_index, weight, embedded, calls))
