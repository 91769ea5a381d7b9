"""Predictions of a causal language model as transformers computes them, with heads cut or whole.

A head is cut before the output projection of its attention module, by a hook: the model itself is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    from attncli.encoding.encode import EncodedInput
    from attncli.engines.predictor import Run

_PROJECTIONS = ("o_proj", "c_proj", "out_proj", "dense", "wo")  # names of output projections

Edit = Callable[[int, torch.Tensor], torch.Tensor]  # of a layer and the outputs of its heads, [T, H, D]


def cut_logits(name: str, model: Any, base: Any, heads: int) -> Run:
    """Return the function of a `Predictor`.

    Args:
        name: the checkpoint's.
        model: from token ids to logits.
        base: the part of it with the attention layers.
        heads: how many each layer has.

    Raises:
        NotExposedError: its attention has no output projection that is known.
    """
    return partial(_cut_logits, name, model, dict(_output_projections(name, base)), heads)


def _output_projections(name: str, base: Any) -> Iterator[tuple[int, Any]]:
    """Yield the index of each layer with attention, and its output projection."""
    modules = find_attention_modules(base)
    for module in base.modules():
        entry = modules.by_id.get(id(module))
        if entry is None or not entry.is_outermost or entry.index is None or modules.sublayer(module, {}) is None:
            continue
        # An attention inside another, such as BERT's, has the projection next to it.
        projections = [part for path, part in module.named_modules() if path.rpartition(".")[2] in _PROJECTIONS]
        if len(projections) != 1:
            kind = visible(type(module).__name__)
            raise NotExposedError(
                f"{visible(name)}: attn finds no output projection in {kind}, before which it cuts heads"
            )
        yield entry.index, projections[0]


def _cut_logits(
    name: str,
    model: Any,
    projections: Mapping[int, Any],
    heads: int,
    sentence: EncodedInput,
    cuts: Sequence[Cut],
    replacement: Replacement,
    rows: Sequence[int],
) -> Iterator[CutLogits]:
    """Yield the logits of a sentence, then of each cut; see `attncli.engines.predictor.Predictor.run`."""
    if replacement.by == "edges":
        raise NotExposedError("--edges needs the native engine; the transformers engine cuts heads")

    def logits(of: EncodedInput, edit: Edit) -> torch.Tensor:
        return _logits(name, model, projections, heads, of, edit)

    outputs: dict[int, torch.Tensor] = {}
    before = logits(sentence, outputs.setdefault)[rows]
    values = outputs
    if replacement.by == "zero":
        values = {layer: torch.zeros_like(output) for layer, output in outputs.items()}
    elif replacement.by == "mean":
        values = {layer: output.mean(dim=0).expand_as(output) for layer, output in outputs.items()}
    elif replacement.reference is not None:
        values = {}
        logits(replacement.reference, values.setdefault)
    if not cuts:
        yield CutLogits([], lambda some: to_numpy(before[some]))
    for index, cut in enumerate(cuts):
        if missing := sorted(cut.keys() - outputs.keys()):
            raise NotExposedError(f"layer {missing[0]} of {visible(name)} has no softmax attention to cut")

        def replaced(layer: int, output: torch.Tensor, cut: Cut = cut) -> torch.Tensor:
            output, chosen = output.clone(), [*cut.get(layer, ())]
            output[:, chosen] = values[layer][:, chosen]
            return output

        both = torch.cat([before, logits(sentence, replaced)[rows]])
        yield CutLogits([index], lambda some, both=both: to_numpy(both[some]))


def _logits(
    name: str, model: Any, projections: Mapping[int, Any], heads: int, sentence: EncodedInput, edit: Edit
) -> torch.Tensor:
    """Return the logits after each token, `[T, V]`, of a run in which the outputs of heads are edited."""

    def hook(layer: int, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (output,) = arguments
        if output.shape[-1] % heads:
            raise NotExposedError(f"{heads} heads share a width of {output.shape[-1]}, which attn cannot cut")
        split = output.reshape(-1, heads, output.shape[-1] // heads)
        return (edit(layer, split).reshape(output.shape),)

    named = signature(model.forward).parameters
    inputs = {each: torch.tensor([ids]) for each, ids in sentence.inputs.items() if each in named}
    inputs = {each: tensor.to(model.device) for each, tensor in (inputs | dict(sentence.tensors)).items()}
    failure = f"{visible(name)} does not run on the text alone"
    with ExitStack() as hooks, translate_model_errors(f"{len(sentence.tokens)} tokens", failure):
        for layer, projection in projections.items():
            handle = projection.register_forward_pre_hook(lambda _, values, layer=layer: hook(layer, values))
            hooks.callback(handle.remove)
        return model(**inputs, use_cache=False).logits[0].float()
