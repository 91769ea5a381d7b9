"""Loading a checkpoint: configuration first, so that a bad request costs no weights, then tokenizer and model."""

from __future__ import annotations

import logging
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attncli.errors import AttnError, InputError, LoadError
from attncli.tokens import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from attncli.sources.pretrained import LoadOptions
    from attncli.sources.pretrained.recording import Request

# Before transformers is imported: its progress bars and the tokenizers' fork warning would talk into our stderr.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import logging as transformers_logging

transformers_logging.set_verbosity_error()
logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries; the outcome is said in one sentence
transformers_logging.disable_progress_bar()

# What a checkpoint saved with another head may lack: it comes after the last attention layer.
_AFTER_ATTENTION = ("pooler",)

# How configurations call a layer with softmax attention: full_attention, sliding_attention, chunked_attention,
# attention, and hybrid where it stands beside a recurrence; linear_attention, mamba, conv and others have none.
_ATTENTION_TYPE = re.compile(r"^(?!linear).*attention|sliding|^hybrid")


def load_config(name: str, options: LoadOptions) -> Any:
    """Read a checkpoint's configuration.

    Raises:
        LoadError: there is no such checkpoint, or it cannot be read.
    """
    if os.path.isfile(name):
        raise LoadError(f"{visible(name)} is a file; --model takes a checkpoint's folder or its name on the hub")
    if os.path.isdir(name) and not os.path.isfile(os.path.join(name, "config.json")):
        raise LoadError(
            f"the folder {visible(name)} is no checkpoint: it has no config.json; give the folder that "
            "save_pretrained wrote"
        )
    with _explained(name, "configuration", options):
        config = AutoConfig.from_pretrained(name, **_hub_arguments(options))
    if not all(isinstance(getattr(config, count, None), int) for count in ("num_hidden_layers", "num_attention_heads")):
        raise LoadError(f"{visible(name)} ({visible(str(config.model_type))}) is no text model with attention layers")
    return config


def load_tokenizer(name: str, options: LoadOptions) -> Any:
    """Load a checkpoint's tokenizer.

    Raises:
        LoadError: it has none, or it cannot be read, or it cannot say where its pieces stand in the text.
    """
    with _explained(name, "tokenizer", options):
        tokenizer = AutoTokenizer.from_pretrained(name, **_hub_arguments(options))
    if not tokenizer.is_fast:
        raise LoadError(
            f"the tokenizer of {visible(name)} is a pure Python one, which cannot say where its pieces stand; "
            "save it with a tokenizer.json"
        )
    return tokenizer


def load_model(name: str, config: Any, options: LoadOptions, request: Request, attention_layers: Sequence[int]) -> Any:
    """Load a checkpoint's weights into the model without its head, with our attention function in every layer.

    A model that never calls such a function gets its eager attention; so does one with a table of attention classes
    of its own, which has no place for ours.

    Args:
        name: folder or hub name.
        config: from `load_config`.
        options: how to load.
        request: what will be recorded; the layers above are left out where an architecture can be cut.
        attention_layers: the layers that have softmax attention.

    Raises:
        LoadError: weights are missing, damaged or of the wrong shape.
    """
    from attncli.sources.pretrained.interface import ATTENTION
    from attncli.sources.pretrained.memory import feed_forward_in_blocks

    config.use_cache = False  # one pass, no generation: keys and values need not be kept
    loader = _loader(config, options, request, attention_layers)
    with _explained(name, "model", options):
        try:
            model, report = _loaded(loader, name, config, options, ATTENTION)
        except KeyError as error:
            if error.args != (ATTENTION,):
                raise
            model, report = _loaded(loader, name, config, options, "eager")
    _check_weights(name, report)
    if not model._can_set_attn_implementation():
        make_eager(model)
    feed_forward_in_blocks(model)
    if options.device_map:
        return model.eval()
    try:
        return model.eval().to(options.device)
    except (RuntimeError, AssertionError) as error:
        raise LoadError(f"--device {visible(options.device)}: {first_sentence(error)}") from None


def _loader(config: Any, options: LoadOptions, request: Request, attention_layers: Sequence[int]) -> Any:
    """Return the class whose models have the layers that were asked for, and as few others as can be."""
    from transformers import MODEL_MAPPING

    from attncli.sources.pretrained.places import without_layers

    keep = max(request.layers) + 1
    model_class = MODEL_MAPPING.get(type(config), None)
    # Some architectures have several classes, and code that a checkpoint brings has its own.
    if keep == layer_count(config) or not isinstance(model_class, type) or options.trust_remote_code:
        return AutoModel
    return without_layers(model_class, keep, attention_layers, whole_encoder=request.kind != "encoder")


def _loaded(loader: Any, name: str, config: Any, options: LoadOptions, attention: str) -> tuple[Any, Mapping[str, Any]]:
    """Return the model and what transformers reports of its weights."""
    import torch

    dtype = options.dtype or ("auto" if options.device_map or options.device != "cpu" else "float32")
    return loader.from_pretrained(
        name,
        config=config,
        attn_implementation=attention,
        dtype=dtype if dtype == "auto" else getattr(torch, dtype),
        device_map=options.device_map,
        use_safetensors=None if options.allow_pickle else True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # reported by us, with the names and the shapes
        **_hub_arguments(options),
    )


def make_eager(model: Any) -> None:
    """Switch a model to its own eager attention, also one that transformers does not switch."""
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_attn_implementation"):
            module.config._attn_implementation = "eager"


def _check_weights(name: str, report: Mapping[str, Any]) -> None:
    """Raise LoadError if a tensor of the model did not come from the checkpoint."""
    for key, found, expected in sorted(report["mismatched_keys"]):
        raise LoadError(
            f"the weights of {visible(name)} do not fit its config.json: {visible(key)} has shape {list(found)}, "
            f"the model expects {list(expected)}; check that the files belong together"
        )
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(_AFTER_ATTENTION))
    if missing:
        raise LoadError(
            f"the weights of {visible(name)} lack {len(missing)} of the model's tensors ({visible(missing[0])}, …), "
            "which would be random numbers; check that the files belong to this config.json"
        )


def layer_count(config: Any) -> int:
    """Return how many layers the model has, on the deeper side of an encoder-decoder."""
    decoder = (getattr(config, name, None) for name in ("decoder_layers", "num_decoder_layers"))
    return max(config.num_hidden_layers, *(count for count in decoder if isinstance(count, int)), 1)


def other_layers(config: Any) -> dict[int, str]:
    """Return the layers of a hybrid that have no softmax attention, with what they have instead."""
    for name in ("layer_types", "layers_block_type"):
        types = getattr(config, name, None)
        if isinstance(types, list | tuple):
            return {index: str(kind) for index, kind in enumerate(types) if not _ATTENTION_TYPE.search(str(kind))}
    return {}


def vocabulary_rows(model: Any) -> int | None:
    """Return how many token ids a model has embeddings for, or None where it hashes them (CANINE)."""
    try:
        return model.get_input_embeddings().num_embeddings
    except (NotImplementedError, AttributeError):
        return None


def position_limit(config: Any) -> int | None:
    """Return how many positions the model has, or None where the configuration sets no limit."""
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        return None
    # RoBERTa and its kin count positions from pad_token_id + 1.
    is_offset = config.model_type in {
        "roberta",
        "xlm-roberta",
        "camembert",
        "xlm-roberta-xl",
        "roberta-prelayernorm",
        "data2vec-text",
        "xmod",
        "mpnet",
        "longformer",
        "esm",
    }
    return limit - (config.pad_token_id or 0) - 1 if is_offset else limit


def _hub_arguments(options: LoadOptions) -> dict[str, Any]:
    return {
        "revision": options.revision or "main",
        "local_files_only": options.offline,
        "trust_remote_code": options.trust_remote_code,
    }


@contextmanager
def _explained(name: str, part: str, options: LoadOptions) -> Iterator[None]:
    """Turn whatever the libraries raise while a checkpoint is read into one sentence."""
    try:
        yield
    except AttnError:
        raise
    except MemoryError:
        raise InputError(f"{visible(name)} does not fit into the memory of this machine") from None
    except Exception as error:  # the libraries below raise nearly everything
        shown = visible(name)
        if not os.path.isdir(name):
            where = (
                "in the local cache"
                if options.offline or os.environ.get("HF_HUB_OFFLINE")
                else "on the hub or in the local cache"
            )
            raise LoadError(
                f"the {part} of '{shown}' was not found {where}, and there is no such folder; check the name, or "
                f"give the folder of a downloaded checkpoint ({first_sentence(error)})"
            ) from None
        raise LoadError(
            f"the {part} of {shown} cannot be loaded: {first_sentence(error)}; check that the folder is complete"
        ) from None


def first_sentence(error: BaseException) -> str:
    """Return what a library said, without its advice and its line breaks."""
    text = " ".join(str(error).split()) or type(error).__name__
    return visible(text.partition(". ")[0][:300].rstrip("."))
