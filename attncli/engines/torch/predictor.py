"""Predictions of a causal language model as transformers computes them: greedy generation, and logits with heads cut.

A head is cut before the output projection of its attention module, by a hook: the model itself is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from inspect import signature
from typing import Any

import numpy as np
import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, GenerationConfig

from attncli.encoding.encode import EncodedInput, InputEncoder
from attncli.engines.predictor import Cut, CutLogits, Logits, Replacement
from attncli.engines.torch.attention_modules import find_attention_modules
from attncli.engines.torch.recorder import translate_model_errors
from attncli.engines.torch.text_model import TextModel
from attncli.errors import InputError, NotExposedError
from attncli.files import to_numpy
from attncli.text import visible
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import decode_pieces

_PROJECTIONS = ("o_proj", "c_proj", "out_proj", "dense", "wo")  # names of output projections

Edit = Callable[[int, torch.Tensor], torch.Tensor]  # of a layer and the outputs of its heads, [T, H, D]


class CutRuns:
    """Runs of a model with heads cut, for a `Predictor`; its part `base` has attention layers of `heads` heads."""

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
            yield CutLogits([], _rows_of(before))
        for index, cut in enumerate(cuts):
            if missing := sorted(cut.keys() - outputs.keys()):
                raise NotExposedError(f"layer {missing[0]} of {visible(self._name)} has no softmax attention to cut")

            def replaced(layer: int, output: torch.Tensor, cut: Cut = cut) -> torch.Tensor:
                output, chosen = output.clone(), [*cut.get(layer, ())]
                output[:, chosen] = values[layer][:, chosen]
                return output

            yield CutLogits([index], _rows_of(torch.cat([before, self._logits(sentence, replaced)[rows]])))

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


def _rows_of(logits: torch.Tensor) -> Logits:
    return lambda rows: to_numpy(logits[rows])


def check_causal(name: str, part: TextModel) -> None:
    """Raise NotExposedError for a checkpoint that is no causal language model, before its weights are read."""
    config = part.config
    shown = f"{visible(name)} ({part.architecture})"
    if config.is_encoder_decoder:
        raise NotExposedError(f"{shown} is an encoder-decoder; --generate continues a text with a causal model")
    # Encoders may be trained as decoders too, and have that in their configuration.
    is_encoder = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    if part.tower is not None:
        if not hasattr(part.model_class, "get_output_embeddings") or not part.model_class.can_generate():
            raise NotExposedError(f"{shown} generates no text as it is loaded; --generate needs a causal model")
        return
    brings_its_own = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if is_encoder or not (type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or brings_its_own):
        raise NotExposedError(f"{shown} is an encoder, which writes no text; --generate needs a causal model")


def continued(model: Any, base: Any, encoder: InputEncoder, sentence: EncodedInput, count: int) -> EncodedInput:
    """Return a sentence with `count` more tokens of a model, or fewer if the model ends the text."""
    name, length = encoder.name, len(sentence.tokens)
    if encoder.limit is not None and length + count > encoder.limit:
        raise InputError(
            f"{length} tokens and --generate {count} make {length + count}, {visible(name)} reads at most "
            f"{encoder.limit} tokens; shorten one of them"
        )
    configs = (getattr(model, "generation_config", None), base.config, model.config)
    ends = next((end for key in configs if (end := getattr(key, "eos_token_id", None)) is not None), None)
    # In place of the checkpoint's, which may draw tokens or punish repetitions.
    model.generation_config = GenerationConfig(
        max_new_tokens=count, do_sample=False, eos_token_id=ends, pad_token_id=encoder.padding_id
    )
    tensors = {key: torch.tensor([ids]) for key, ids in sentence.inputs.items()} | dict(sentence.tensors)
    tensors = {key: tensor.to(model.device) for key, tensor in tensors.items()}
    with translate_model_errors(f"{length} tokens", f"{visible(name)} does not write text"):
        ids = model.generate(**tensors)[0, length:].tolist()
    added, notes = encoder.tokens_of_ids(ids, length, sentence.tokens[-1].segment), sentence.notes
    if len(added) < count:
        notes += (f"the model ended the text with '{added[-1].label}', token {len(added)} of {count}",)
    inputs = {
        key: [*before, *(ids if key == "input_ids" else before[-1:] * len(ids))]
        for key, before in sentence.inputs.items()
    }
    tokens = decode_pieces([*sentence.tokens, *added], sentence.text, sentence.pair)
    return sentence._replace(tokens=tokens, query_tokens=tokens, inputs=inputs, notes=notes, generated=len(added))


def check_no_future(name: str, layers: tuple[LayerTrace, ...], generated: int) -> None:
    """Raise NotExposedError if a query that predicted a token could see it, so that it predicted nothing."""
    for layer in layers:
        rows = np.arange(layer.num_queries - 1 - generated, layer.num_queries - 1)
        allowed = layer.mask.rows(list(range(layer.num_heads)), rows)
        if (allowed & (np.arange(layer.num_keys) > rows[:, None])).any():
            raise NotExposedError(f"{visible(name)} attends to later tokens; --generate needs a causal model")
