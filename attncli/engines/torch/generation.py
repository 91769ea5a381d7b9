"""Greedy generation with a causal language model: each token is the likeliest after all before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from attncli.encoding.encode import EncodedInput
from attncli.engines.torch.attention_backend import running_with, translate_model_errors
from attncli.engines.torch.text_model import TextModel
from attncli.errors import InputError, NotExposedError
from attncli.text import visible
from attncli.trace.byte_pieces import decode_pieces
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import Token


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


@dataclass(frozen=True)
class Writer:
    """A language model, its head included."""

    name: str  # of the checkpoint
    model: Any  # from token ids to logits
    base: Any  # the part of it whose layers read them
    tokenizer: Any
    limit: int | None  # number of positions; None is no limit
    count: int  # number of tokens to generate

    def continued(self, sentence: EncodedInput) -> EncodedInput:
        """Return the sentence with `count` more tokens, or fewer if the model ends it with its own end token.

        Every token takes a pass over all before it, without a cache.

        Raises:
            InputError: they do not fit into the model's positions, or into memory.
            NotExposedError: the model does not run on the text alone.
        """
        length, count = len(sentence.tokens), self.count
        if self.limit is not None and length + count > self.limit:
            raise InputError(
                f"{length} tokens and --generate {count} make {length + count}, {visible(self.name)} reads at most "
                f"{self.limit} tokens; shorten one of them"
            )
        inputs = {name: list(ids) for name, ids in sentence.inputs.items()}
        ends = self._ends()
        added: list[Token] = []
        with running_with(self.model, "eager"):
            while len(added) < count and not (added and added[-1].id in ends):
                id_ = self._likeliest(inputs, sentence)
                piece = self.tokenizer.convert_ids_to_tokens(id_)
                text = f"<id {id_}>" if piece is None else piece  # vocabularies may have more rows than names
                is_special, segment = id_ in self.tokenizer.all_special_ids, sentence.tokens[-1].segment
                added.append(Token(length + len(added), id_, text, None, None, is_special, segment))
                for name, ids in inputs.items():
                    ids.append(id_ if name == "input_ids" else ids[-1])
        notes = sentence.notes
        if len(added) < count:
            notes += (f"the model ended the text with '{added[-1].label}', token {len(added)} of {count}",)
        tokens = decode_pieces([*sentence.tokens, *added], sentence.text, sentence.pair)
        return sentence._replace(tokens=tokens, query_tokens=tokens, inputs=inputs, notes=notes, generated=len(added))

    def _likeliest(self, inputs: Mapping[str, list[int]], sentence: EncodedInput) -> int:
        """Return the id of the largest logit after the last token, which follows a sentence and its pictures."""
        # Logits of the last position alone: those of all would be the largest array of the run.
        last = {"logits_to_keep": 1} if "logits_to_keep" in signature(self.model.forward).parameters else {}
        tensors = {name: torch.tensor([ids]) for name, ids in inputs.items()}
        tensors |= sentence.tensors
        tensors = {name: tensor.to(self.model.device) for name, tensor in tensors.items()}
        with translate_model_errors(f"{len(inputs['input_ids'])} tokens", f"{visible(self.name)} does not write text"):
            return int(self.model(**tensors, **last).logits[0, -1].argmax())

    def _ends(self) -> set[int]:
        """Return the ids with which the model ends a text."""
        configs = (getattr(self.model, "generation_config", None), self.base.config, self.model.config)
        ids = (getattr(config, "eos_token_id", None) for config in configs)
        ends: Any = next((end for end in ids if end is not None), [])
        return set(ends) if isinstance(ends, list | tuple) else {ends}


def check_no_future(name: str, layers: tuple[LayerTrace, ...], generated: int) -> None:
    """Raise NotExposedError if a query that predicted a token could see it, so that it predicted nothing."""
    for layer in layers:
        rows = np.arange(layer.num_queries - 1 - generated, layer.num_queries - 1)
        allowed = layer.mask.rows(list(range(layer.num_heads)), rows)
        if (allowed & (np.arange(layer.num_keys) > rows[:, None])).any():
            raise NotExposedError(f"{visible(name)} attends to later tokens; --generate needs a causal model")
