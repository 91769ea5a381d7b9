"""Greedy generation with a causal language model: each token is the likeliest after all before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, GenerationConfig

from attncli.encoding.encode import EncodedInput, InputEncoder
from attncli.engines.torch.attention_backend import translate_model_errors
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


def continued(model: Any, base: Any, encoder: InputEncoder, sentence: EncodedInput, count: int) -> EncodedInput:
    """Return a sentence with `count` more tokens of a model, or fewer if it ends the text with its own end token.

    Raises:
        InputError: they do not fit into the model's positions, or into memory.
        NotExposedError: the model does not run on the text alone.
    """
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
    pieces = encoder.tokenizer.convert_ids_to_tokens(ids)
    segment, special = sentence.tokens[-1].segment, encoder.special_ids
    added = [
        # Vocabularies may have more rows than names.
        Token(length + index, id_, f"<id {id_}>" if piece is None else piece, None, None, id_ in special, segment)
        for index, (id_, piece) in enumerate(zip(ids, pieces, strict=True))
    ]
    notes = sentence.notes
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
