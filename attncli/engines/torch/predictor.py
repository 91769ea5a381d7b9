"""Predictions of a causal language model as transformers computes them, with heads cut or whole.

A head is cut before the output projection of its attention module, by a hook: the model itself is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch

from attncli.engines.predictor import Cut, Effects, Measure, Predictor, Replacement
from attncli.engines.torch.attention_backend import running_with, translate_model_errors
from attncli.engines.torch.attention_modules import find_attention_modules
from attncli.engines.torch.configuration import head_count
from attncli.engines.torch.engine import Checkpoint
from attncli.errors import NotExposedError
from attncli.files import to_numpy
from attncli.text import visible

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    from attncli.encoding.encode import EncodedInput

_PROJECTIONS = ("o_proj", "c_proj", "out_proj", "dense", "wo")  # names of output projections

Edit = Callable[[torch.Tensor], torch.Tensor]  # of the outputs of a layer's heads, [T, H, D]


class TorchPredictor(Predictor):
    """Prediction of a checkpoint in transformers.

    Args:
        checkpoint: one that can generate text.

    Raises:
        NotExposedError: it predicts no next token, or its attention has no output projection that is known.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        assert checkpoint.writer is not None
        self._name, self._model, self.encoder = checkpoint.name, checkpoint.writer.model, checkpoint.encoder
        self.layers, self.heads = checkpoint.num_layers, head_count(checkpoint.part.config)
        self._projections = dict(self._found(checkpoint.model))
        self.source = checkpoint.provenance()

    def _found(self, model: Any) -> Iterator[tuple[int, Any]]:
        """Yield the index of each layer with attention, and its output projection."""
        modules = find_attention_modules(model)
        for module in model.modules():
            entry = modules.by_id.get(id(module))
            if entry is None or not entry.is_outermost or entry.index is None or not modules.has(module):
                continue
            # An attention inside another, such as BERT's, has the projection next to it.
            projections = [part for name, part in module.named_modules() if name.rpartition(".")[2] in _PROJECTIONS]
            if len(projections) != 1:
                kind = type(module).__name__
                raise NotExposedError(
                    f"{visible(self._name)}: attn finds no output projection in {visible(kind)}, before which it cuts "
                    "heads"
                )
            yield entry.index, projections[0]

    def next_logits(self, sentence: EncodedInput) -> Float[np.ndarray, " V"]:
        """See `Predictor.next_logits`."""
        return to_numpy(self._logits(sentence, {})[-1])

    def effects(
        self, sentence: EncodedInput, cuts: Sequence[Cut], replacement: Replacement, measure: Measure
    ) -> Effects:
        """See `Predictor.effects`; the direct share is left to the native engine."""
        if replacement.by == "edges":
            raise NotExposedError("--edges needs the native engine; the transformers engine cuts heads")
        outputs: dict[int, torch.Tensor] = {}
        logits = self._logits(sentence, {layer: _keeping(outputs, layer) for layer in self._projections})
        other: dict[int, torch.Tensor] = {}
        if replacement.reference is not None:
            self._logits(replacement.reference, {layer: _keeping(other, layer) for layer in self._projections})
        if not measure.targets and measure.next is None:
            measure = measure._replace(next=int(logits[-1].argmax()))
        after = []
        for cut in cuts:
            if missing := sorted(cut.keys() - outputs.keys()):
                raise NotExposedError(f"layer {missing[0]} of {visible(self._name)} has no softmax attention to cut")
            edits = {}
            for layer, heads in cut.items():
                output = outputs[layer]
                values = {"zero": torch.zeros_like(output), "mean": output.mean(dim=0).expand_as(output)}
                edits[layer] = _replacing([*heads], other.get(layer, values.get(replacement.by, output)))
            after.append(_measured(self._logits(sentence, edits), sentence, measure))
        return Effects(measure, _measured(logits, sentence, measure), after, [None] * len(cuts))

    def _logits(self, sentence: EncodedInput, edits: Mapping[int, Edit]) -> torch.Tensor:
        """Return the logits after each token, `[T, V]`, of a run in which the outputs of layers are edited."""
        named = signature(self._model.forward).parameters
        inputs = {name: torch.tensor([ids]) for name, ids in sentence.inputs.items() if name in named}
        inputs |= sentence.tensors
        inputs = {name: tensor.to(self._model.device) for name, tensor in inputs.items()}
        failure = f"{visible(self._name)} does not run on the text alone"
        with ExitStack() as hooks, running_with(self._model, "eager"):
            hooks.enter_context(translate_model_errors(f"{len(sentence.tokens)} tokens", failure))
            for layer, edit in edits.items():
                hooks.enter_context(_edited(self._projections[layer], self.heads, edit))
            return self._model(**inputs, use_cache=False).logits[0].float()


@contextmanager
def _edited(projection: Any, heads: int, edit: Edit) -> Iterator[None]:
    def hook(_: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (outputs,) = arguments
        if outputs.shape[-1] % heads:
            raise NotExposedError(f"{heads} heads share a width of {outputs.shape[-1]}, which attn cannot cut")
        split = outputs.reshape(-1, heads, outputs.shape[-1] // heads)
        return (edit(split).reshape(outputs.shape),)

    handle = projection.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _keeping(store: dict[int, torch.Tensor], layer: int) -> Edit:
    def keep(outputs: torch.Tensor) -> torch.Tensor:
        store[layer] = outputs
        return outputs

    return keep


def _replacing(heads: list[int], values: torch.Tensor) -> Edit:
    def replace(outputs: torch.Tensor) -> torch.Tensor:
        changed = outputs.clone()
        changed[:, heads] = values[:, heads]
        return changed

    return replace


def _measured(logits: torch.Tensor, sentence: EncodedInput, measure: Measure) -> float:
    if measure.kind == "difference":
        return float(logits[-1, measure.next] - logits[-1, measure.against])
    logprobs = logits.double().log_softmax(dim=-1)
    if not measure.targets:
        return float(logprobs[-1, measure.next])
    ids = sentence.inputs["input_ids"]
    return -float(torch.stack([logprobs[target - 1, ids[target]] for target in measure.targets]).mean())
