"""A configuration that records which fields were read: a field that was not may change the numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from attncli.trace.selection import MOST_LAYERS

# Fields without a part in the forward pass of evaluation, of PretrainedConfig and GenerationConfig in transformers 4
# and 5: first bookkeeping, then generation, which older versions kept in config.json.
_IGNORED_FIELDS = """
    architectures attn_implementation chunk_size_feed_forward directionality dtype experts_implementation
    finetuning_task gradient_checkpointing id2label initializer_factor initializer_range is_llama_config
    keys_to_ignore_at_inference label2id license loss_type model_max_length model_type n_ctx n_special name_or_path
    net_structure_type num_labels output_attentions output_hidden_states output_past predict_special_tokens prefix
    pretraining_tp problem_type return_dict task_specific_params tf_legacy_loss tie_encoder_decoder
    tie_last_hidden_states tie_weights_ tie_word_embeddings tokenizer_class torch_dtype torchscript training_args
    transformers.js_config transformers_version unsloth_fixed unsloth_version use_bfloat16 use_cache use_return_dict
    xla_device

    assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight assistant_lookbehind bad_words_ids
    begin_suppress_tokens cache_config cache_implementation compile_config constraints continuous_batching_config
    disable_compile diversity_penalty do_sample dola_layers down_scale_factor early_stopping
    encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff exponential_decay_length_penalty
    force_words_ids forced_decoder_ids gap_size generation_kwargs guidance_scale is_assistant length_penalty low_memory
    max_cache_len max_length max_matching_ngram_size max_new_tokens max_time min_length min_new_tokens min_p
    no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams
    num_memory_blocks num_return_sequences output_logits output_scores penalty_alpha prefill_chunk_size
    prompt_lookup_num_tokens remove_invalid_values renormalize_logits repetition_penalty return_dict_in_generate
    return_legacy_cache sequence_bias speculation_type stop_strings suppress_tokens target_lookbehind temperature
    token_healing top_h top_k top_p typical_p use_mtp watermarking_config
"""
_IGNORED = frozenset(_IGNORED_FIELDS.split())
# Private state of a Python object; heads above the layers; ids, which come with the text; what evaluation leaves out.
_IGNORED_NAMES = re.compile(r"_.*|(?:classifier|pooler|summary)_.*|.*_token_ids?|.*(?:dropout|dropout_prob|pdrop)")
# Fields with the same values in every family, where they are there.
_FIXED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,), "cross_attention_hidden_size": (None,), "is_decoder": (False,),
    "is_encoder_decoder": (False,), "output_router_logits": (False,), "position_embedding_type": ("absolute", None),
    "per_layer_config": ({}, None), "pruned_heads": ({}, None), "quantization_config": (None,), "auto_map": (None, {}),
    "rope_interleaved": (False,), "use_bidirectional_attention": (False, None), "use_mrope": (False,),
}  # fmt: skip

_ABSENT = object()


class UnsupportedError(Exception):
    """Raised for a checkpoint or a sentence that this engine does not compute; the message has the reason."""


class ConfigReader:
    """The fields of a config.json; every method that returns one raises UnsupportedError where it does not fit."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self._values = values
        self._where = where
        self.read: set[str] = set()  # names of the fields that were read

    def get(self, name: str, default: Any = _ABSENT, among: Collection[Any] | None = None) -> Any:
        """Return a field; without a default it must be there, and it must be among the implemented values."""
        self.read.add(name)
        value = self._values.get(name, default)
        if value is _ABSENT:
            raise UnsupportedError(f"{self._where} has no {name}")
        if among is not None and value not in tuple(among):  # a list has no hash
            raise UnsupportedError(f"{name} is {value!r}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a field that is true or false."""
        return self.get(name, default, among=(True, False))

    def count(self, name: str, default: Any = _ABSENT, most: float = math.inf) -> int:
        """Return a field that is a whole number above 0, and not above `most`."""
        value = self.get(name, default)
        if type(value) is not int or not 1 <= value <= most:
            raise UnsupportedError(f"{name} is {value!r}")
        return value

    def layers(self, name: str) -> int:
        """Return how many layers there are; UnsupportedError if no model has as many."""
        return self.count(name, most=MOST_LAYERS)

    def number(self, name: str, default: Any = _ABSENT) -> float:
        """Return a field that is a number above 0."""
        value = self.get(name, default)
        if type(value) not in (int, float) or not value > 0:
            raise UnsupportedError(f"{name} is {value!r}")
        return value

    def reject_unread(self) -> None:
        """Raise UnsupportedError for a field that was not read."""
        for name in self._values:
            if name not in self.read:
                raise UnsupportedError(f"it does not support the field {name}")

    def reject_unknown(self) -> None:
        """Raise UnsupportedError for an unread field that may change the forward pass."""
        for name, value in self._values.items():
            if name in self.read or name in _IGNORED or _IGNORED_NAMES.fullmatch(name):
                continue
            if name not in _FIXED:
                raise UnsupportedError(f"it does not support the field {name}")
            if value not in _FIXED[name]:
                raise UnsupportedError(f"{name} is {value!r}")
