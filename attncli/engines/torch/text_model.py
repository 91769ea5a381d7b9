"""The part of a checkpoint that reads text: all of it, the language model of one that sees or hears, or a tower."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import MODEL_FOR_MULTIMODAL_LM_MAPPING, MODEL_MAPPING, AutoConfig, PreTrainedModel, initialization

from attncli.checkpoints.hub import translate_errors
from attncli.encoding.auto_tokenizer import check_quantization, hub_arguments
from attncli.engines.torch.configuration import is_counted, layer_count
from attncli.errors import InputError, NotExposedError
from attncli.text import visible
from attncli.trace.selection import MOST_LAYERS

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions
    from attncli.checkpoints.snapshot import Snapshot

_log = logging.getLogger(__name__)

_SOUNDS = ("input_features", "input_values", "audio_values", "audio_codes")
# Classes of the part that reads text, where the class for their configuration is of a larger system.
_TEXT_CLASSES = {"seamless_m4t": "SeamlessM4TForTextToText", "seamless_m4t_v2": "SeamlessM4Tv2ForTextToText"}
_PREFIX = r"^(?:model\.)?language_model\.(?:model\.)?"  # of the tensors of a language model inside of another model


@dataclass(frozen=True)
class TextModel:
    """Part of a checkpoint that reads text, or pictures."""

    config: Any  # its configuration
    whole: Any  # the configuration of the checkpoint, which contains that; the same one for a text model
    model_class: Any = None  # class to load; None is the class of transformers for the configuration
    path: str = ""  # its path in that class's models, as in `model.language_model`; empty is all of them
    # replacements in the checkpoint's names of tensors before they are read, by regular expressions
    renamed: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = False  # whether the rest of the model runs too, which reads pictures for it

    @property
    def architecture(self) -> str:
        """The model type of the checkpoint."""
        return str(self.whole.model_type)

    @property
    def tower(self) -> str | None:
        """Model type of a part inside of another model; None where it is all of the checkpoint."""
        return None if self.config is self.whole else str(self.config.model_type)

    @property
    def loaded(self) -> Any:
        """Configuration of `model_class`."""
        return self.config if self.renamed else self.whole


def read_configuration(snapshot: Snapshot, options: LoadOptions) -> Any:
    """Read a checkpoint's configuration."""
    with translate_errors(snapshot.model_name, "configuration"):
        try:
            config = AutoConfig.from_pretrained(snapshot.folder, **hub_arguments(options))
        except AttributeError:
            check_quantization(snapshot)
            raise
    return config


def find_text_model(snapshot: Snapshot, options: LoadOptions) -> TextModel:
    """Read a checkpoint's configuration and find the part that reads text.

    Raises:
        LoadError: there is no such checkpoint, or it cannot be read.
        InputError: it has more layers than any model.
        NotExposedError: it has no part that reads text alone, with attention.
    """
    name, config = snapshot.model_name, read_configuration(snapshot, options)
    with translate_errors(name, "configuration"):
        part = _find_part(name, config)
        if not is_counted(part.config):
            why = "its configuration counts no layers or no heads. Mamba and RWKV are not supported"
            raise NotExposedError(f"{_shown(name, config)} has no attention layers over text: {why}")
        _check_count(name, part.config)
    return part


def _find_part(name: str, config: Any) -> TextModel:
    inner = None  # the configuration of a language model inside of another model
    if not is_counted(config):
        with suppress(ValueError):  # it has several
            inner = config.get_text_config(decoder=True)
            inner = None if type(inner) is type(config) else inner  # of a flat configuration it is a copy
    main_input = getattr(_class_of(config), "main_input_name", "input_ids")
    if config.is_encoder_decoder and (main_input in _SOUNDS or not getattr(inner, "is_encoder_decoder", True)):
        read = "a sound" if main_input in _SOUNDS else "a picture"
        raise NotExposedError(f"{_shown(name, config)} reads {read} into its text part; give a text model")
    if inner is not None:
        return find_tower(name, config, inner)
    if main_input != "input_ids":
        read = "a sound" if main_input in _SOUNDS else "a picture" if main_input == "pixel_values" else main_input
        give = "give a picture alone: attn inspect --image x.png" if read == "a picture" else "give a text model"
        raise NotExposedError(f"{_shown(name, config)} reads {read}, not text; {give}")
    # Where it is not the class that transformers takes for its configuration; an encoder and a decoder of two
    # architectures have none.
    if (text_class := _TEXT_CLASSES.get(config.model_type)) is not None:
        return TextModel(config, config, getattr(transformers, text_class))
    is_taken = not type(config).__module__.startswith("transformers.") or type(config) in MODEL_MAPPING
    return TextModel(config, config, None if is_taken else _class_of(config))


def _shown(name: str, config: Any) -> str:
    return f"{visible(name)} ({visible(str(config.model_type))})"


def _check_count(name: str, config: Any) -> None:
    for layers in (layer_count(config), getattr(config, "num_hidden_layers", 1)):
        if not 1 <= layers <= MOST_LAYERS:
            raise InputError(f"{visible(name)} claims to have {layers} layers; expected 1 to {MOST_LAYERS}")


def find_tower(name: str, config: Any, inner: Any, reads: str = "input_ids") -> TextModel:
    """Find the part of a model that has a configuration of its own; NotExposedError if none has the input `reads`."""
    if is_counted(inner):
        _check_count(name, inner)  # before it is built
    model_class = _class_of(config)
    if model_class is not None:
        with translate_errors(name, "model"):
            try:
                model = _on_meta(model_class, deepcopy(config))
            except ImportError as error:  # of timm, a package for pictures
                _log.info("%s cannot be built as a whole: %s", name, error)
            else:
                # The outermost module that has a configuration of this type and reads this.
                for path, module in model.named_modules():
                    has_config = isinstance(module, PreTrainedModel) and type(module.config) is type(inner)
                    if path and has_config and reads in signature(module.forward).parameters:
                        return TextModel(inner, config, model_class, path)
    alone = MODEL_MAPPING.get(type(inner), None)
    if isinstance(alone, type) and reads == "input_ids":
        return TextModel(inner, config, alone, renamed={_PREFIX: ""})
    raise NotExposedError(f"{_shown(name, config)} has no part that reads only tokens; give a text model")


def _class_of(config: Any) -> type | None:
    """Return the class that a configuration names, or that transformers has for it."""
    named = (getattr(transformers, str(candidate), None) for candidate in config.architectures or ())
    fitting = (candidate for candidate in named if getattr(candidate, "config_class", None) is type(config))
    classes = (mapping.get(type(config), None) for mapping in (MODEL_FOR_MULTIMODAL_LM_MAPPING, MODEL_MAPPING))
    classes = (candidate for candidate in (*fitting, *classes) if isinstance(candidate, type))
    return next((candidate for candidate in classes if issubclass(candidate, PreTrainedModel)), None)


def _on_meta(model_class: Any, config: Any) -> Any:
    """Return a model on a device without memory; the configuration is changed."""
    with torch.device("meta"), initialization.no_init_weights(), initialization.meta_device_safe_creation_ops():
        return model_class._from_config(config, attn_implementation="eager", dtype=torch.float32)
