"""Predictions of a causal language model as transformers computes them, with heads cut or whole.

A head is cut before the output projection of its attention module, by a hook: the model itself is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch

from attncli.engines.predictor import Cut, CutLogits, Replacement
from attncli.engines.torch.attention_backend import translate_model_errors
from attncli.engines.torch.attention_modules import find_attention_modules
from attncli.errors import NotExposedError
from attncli.files import to_numpy
from attncli.text import visible

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    from attncli.encoding.encode import EncodedInput

_PROJECTIONS = ("o_proj", "c_proj", "out_proj", "dense", "wo")  # names of output projections

Edit = Callable[[int, torch.Tensor], torch.Tensor]  # of a layer and the outputs of its heads, [T, H, D]


class CutRuns:
    """Runs of a model with heads cut, for a `Predictor`; its part `base` has attention layers of `heads` heads.

    Raises:
        NotExposedError: its attention has no output projection that is known.
    """

    def __init__(self, name: str, model: Any, base: Any, heads: int) -> None:
        self._name, self._model, self._heads = name, model, heads
        self._projections: dict[int, Any] = {}  # of each layer
        modules = find_attention_modules(base)
        for module in base.modules():
            entry = modules.by_id.get(id(module))
            if entry is None or not entry.is_outermost or entry.index is None or modules.sublayer(module, {}) is None:
                continue
            # An attention inside another, such as BERT's, has the projection next to it.
            projections = [part for path, part in module.named_modules() if path.rpartition(".")[2] in _PROJECTIONS]
            if len(projections) != 1:
                missing = f"attn finds no output projection in {visible(type(module).__name__)}"
                raise NotExposedError(f"{visible(name)}: {missing}, before which it cuts heads")
            self._projections[entry.index] = projections[0]

    def __call__(
        self, sentence: EncodedInput, cuts: Sequence[Cut], replacement: Replacement, rows: Sequence[int]
    ) -> Iterator[CutLogits]:
        """Yield the logits of a sentence, then of each cut; see `attncli.engines.predictor.Run`."""
        if replacement.by == "edges":
            raise NotExposedError("--edges needs the native engine; the transformers engine cuts heads")
        outputs: dict[int, torch.Tensor] = {}
        before = self._logits(sentence, outputs.setdefault)[rows]
        values = outputs
        if replacement.by == "zero":
            values = {layer: torch.zeros_like(output) for layer, output in outputs.items()}
        elif replacement.by == "mean":
            values = {layer: output.mean(dim=0).expand_as(output) for layer, output in outputs.items()}
        elif replacement.reference is not None:
            values = {}
            self._logits(replacement.reference, values.setdefault)
        if not cuts:
            yield CutLogits([], partial(_rows, before))
        for index, cut in enumerate(cuts):
            if missing := sorted(cut.keys() - outputs.keys()):
                raise NotExposedError(f"layer {missing[0]} of {visible(self._name)} has no softmax attention to cut")

            def replaced(layer: int, output: torch.Tensor, cut: Cut = cut) -> torch.Tensor:
                output, chosen = output.clone(), [*cut.get(layer, ())]
                output[:, chosen] = values[layer][:, chosen]
                return output

            yield CutLogits([index], partial(_rows, torch.cat([before, self._logits(sentence, replaced)[rows]])))

    def _logits(self, sentence: EncodedInput, edit: Edit) -> torch.Tensor:
        """Return the logits after each token, `[T, V]`, of a run in which the outputs of heads are edited."""

        def hook(layer: int, output: torch.Tensor) -> tuple[torch.Tensor, ...]:
            if output.shape[-1] % self._heads:
                shared = f"{self._heads} heads share a width of {output.shape[-1]}"
                raise NotExposedError(f"{shared}, which attn cannot cut")
            split = output.reshape(-1, self._heads, output.shape[-1] // self._heads)
            return (edit(layer, split).reshape(output.shape),)

        named = signature(self._model.forward).parameters
        inputs = {key: torch.tensor([ids]) for key, ids in sentence.inputs.items() if key in named}
        inputs = {key: tensor.to(self._model.device) for key, tensor in (inputs | dict(sentence.tensors)).items()}
        failure = f"{visible(self._name)} does not run on the text alone"
        with ExitStack() as hooks, translate_model_errors(f"{len(sentence.tokens)} tokens", failure):
            for layer, projection in self._projections.items():
                handle = projection.register_forward_pre_hook(lambda _, values, layer=layer: hook(layer, *values))
                hooks.callback(handle.remove)
            return self._model(**inputs, use_cache=False).logits[0].float()


def _rows(logits: torch.Tensor, rows: slice) -> Float[np.ndarray, "n V"]:
    return to_numpy(logits[rows])
