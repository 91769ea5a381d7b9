"""A configuration that keeps book of the fields that were read: a field that was not may change the numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from attncli.trace.selection import MOST_LAYERS

# What says nothing about a forward pass in evaluation: training, generation, heads on top, bookkeeping.
_IDLE_NAMES = """
    _attn_implementation_autoset _commit_hash _name_or_path _num_labels architectures attention_dropout
    attention_probs_dropout_prob attn_pdrop bad_words_ids begin_suppress_tokens bos_token_id
    cache_implementation chunk_size_feed_forward classifier_activation classifier_dropout
    classifier_dropout_prob decoder_start_token_id directionality diversity_penalty do_sample
    down_scale_factor dropout dtype early_stopping embd_pdrop encoder_no_repeat_ngram_size eos_token_id
    eos_token_ids exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
    gap_size gradient_checkpointing hidden_dropout hidden_dropout_prob id2label initializer_factor
    initializer_range is_llama_config keys_to_ignore_at_inference label2id length_penalty mask_token_id
    max_length min_length model_type n_ctx n_special name_or_path net_structure_type no_repeat_ngram_size
    num_beam_groups num_beams num_labels num_memory_blocks num_return_sequences output_attentions
    output_hidden_states output_past output_scores pad_token_id pooler_fc_size pooler_num_attention_heads
    pooler_num_fc_layers pooler_size_per_head pooler_type predict_special_tokens prefix pretraining_tp
    problem_type qa_dropout remove_invalid_values repetition_penalty resid_pdrop return_dict
    return_dict_in_generate sep_token_id seq_classif_dropout summary_activation summary_first_dropout
    summary_last_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens
    task_specific_params temperature tf_legacy_loss tie_encoder_decoder tie_weights_ tie_word_embeddings
    tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config transformers_version
    typical_p unsloth_version use_bfloat16 use_cache
"""
_IDLE = frozenset(_IDLE_NAMES.split())
# What has to be as it is in every family, if it is there.
_FIXED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,), "cross_attention_hidden_size": (None,), "is_decoder": (False,),
    "is_encoder_decoder": (False,), "output_router_logits": (False,), "position_embedding_type": ("absolute", None),
    "pruned_heads": ({}, None), "quantization_config": (None,), "auto_map": (None,), "rope_interleaved": (False,),
    "use_bidirectional_attention": (False, None),
}  # fmt: skip

_ABSENT = object()


class UnsupportedError(Exception):
    """This engine does not compute a checkpoint or a sentence; the message says why."""


class ConfigReader:
    """The fields of a config.json.

    Attributes:
        read: the names of those that were read.

    Args:
        values: of the fields.
        where: they are, for messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self._values = values
        self._where = where
        self.read: set[str] = set()

    def get(self, name: str, default: Any = _ABSENT, among: Collection[Any] | None = None) -> Any:
        """Return a field.

        Args:
            name: of the field.
            default: what it is where the file does not say; without a default the file has to.
            among: the values that are implemented; None: all are.

        Raises:
            UnsupportedError: it is missing, or has another value than those.
        """
        self.read.add(name)
        value = self._values.get(name, default)
        if value is _ABSENT:
            raise UnsupportedError(f"{self._where} has no {name}")
        if among is not None and value not in tuple(among):  # a list has no hash
            raise UnsupportedError(f"{name} is {value!r}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a field that is true or false; UnsupportedError if it is neither."""
        return self.get(name, default, among=(True, False))

    def count(self, name: str, default: Any = _ABSENT, most: float = math.inf) -> int:
        """Return a field that counts something; UnsupportedError if it is no whole number above 0, or above `most`."""
        value = self.get(name, default)
        if type(value) is not int or not 1 <= value <= most:
            raise UnsupportedError(f"{name} is {value!r}")
        return value

    def layers(self, name: str, default: Any) -> int:
        """Return how many layers there are; UnsupportedError if no model has as many."""
        return self.count(name, default, MOST_LAYERS)

    def number(self, name: str, default: Any = _ABSENT) -> float:
        """Return a field that is a number above 0; UnsupportedError if it is not."""
        value = self.get(name, default)
        if type(value) not in (int, float) or not value > 0:
            raise UnsupportedError(f"{name} is {value!r}")
        return value

    def reject_unread(self) -> None:
        """Raise UnsupportedError for a field that nobody read."""
        for name in self._values:
            if name not in self.read:
                raise UnsupportedError(f"it does not support the field {name}")

    def reject_unknown(self) -> None:
        """Raise UnsupportedError for a field that nobody read and that may say something about the forward pass."""
        for name, value in self._values.items():
            if name in self.read or name in _IDLE:
                continue
            if name not in _FIXED:
                raise UnsupportedError(f"it does not support the field {name}")
            if value not in _FIXED[name]:
                raise UnsupportedError(f"{name} is {value!r}")
