"""Loading a checkpoint's configuration and its weights, in two steps: a bad request costs no weights."""

from __future__ import annotations

import logging
import os
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, AutoModelForCausalLM
from transformers import __version__ as transformers_version
from transformers.quantizers import AutoHfQuantizer

from attncli.errors import InputError, LoadError, NotExposedError
from attncli.sources.folder import snapshot
from attncli.sources.hub import Download, explained, first_sentence, heard
from attncli.sources.pretrained import places
from attncli.sources.pretrained.configuration import layer_count
from attncli.sources.pretrained.memory import feed_forward_in_blocks
from attncli.sources.pretrained.running import make_eager, with_ours
from attncli.sources.pretrained.state import names_of, state_of
from attncli.sources.pretrained.tokenizer import check_quantization, hub_arguments, positions
from attncli.sources.storage import check_beside, check_is_checkpoint, check_types, check_unread, unknown_quantization
from attncli.sources.tensors.opening import is_plain, open_store
from attncli.text import visible
from attncli.trace.selection import MOST_LAYERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.sources.options import LoadOptions
    from attncli.sources.pretrained.recording import Request
    from attncli.sources.tensors import Store

_log = logging.getLogger(__name__)

# What a checkpoint saved with another head may lack: it comes after the last attention layer.
_AFTER_ATTENTION = ("pooler",)


def load_config(name: str, options: LoadOptions) -> Any:
    """Read a checkpoint's configuration.

    Raises:
        LoadError: there is no such checkpoint, or it cannot be read.
        InputError: it counts layers that no model has.
        NotExposedError: it is no text model with attention.
    """
    check_is_checkpoint(name)
    with explained(name, "configuration", options):
        try:
            config = AutoConfig.from_pretrained(name, **hub_arguments(options))
        except AttributeError:
            check_quantization(name, options)
            raise
    model_class = MODEL_MAPPING.get(type(config), None)
    if getattr(model_class, "main_input_name", "input_ids") != "input_ids":
        raise NotExposedError(f"{visible(name)} ({config.model_type}) reads {model_class.main_input_name}, not text")
    if not all(isinstance(getattr(config, count, None), int) for count in ("num_hidden_layers", "num_attention_heads")):
        raise NotExposedError(
            f"{visible(name)} ({visible(str(config.model_type))}) is no text model with attention layers: its "
            "configuration counts no layers or no heads; Mamba, RWKV and models of several parts are not supported"
        )
    layers = layer_count(config)
    if config.num_hidden_layers < 1 or layers > MOST_LAYERS:
        claimed = layers if layers > MOST_LAYERS else config.num_hidden_layers
        raise InputError(f"{visible(name)} claims to have {claimed} layers; expected 1 to {MOST_LAYERS}")
    return config


def load_model(
    name: str, config: Any, options: LoadOptions, request: Request, writes: bool
) -> tuple[Any, tuple[str, ...]]:
    """Load a model that calls our attention function, and return it with the notes on its weights for the user.

    A model that never calls such a function gets its eager attention; so does one with a table of attention classes
    of its own, which has no place for ours.

    Args:
        name: folder or hub name.
        config: from `load_config`.
        options: how to load.
        request: what will be recorded; the layers above are left out where an architecture can be cut.
        writes: whether the model needs its head, to write more tokens.

    Raises:
        LoadError: weights are missing, damaged or of the wrong shape.
    """
    _check_device(options)
    if not options.allow_pickle and _has_pickle_alone(name):
        raise LoadError(
            f"{visible(name)} has its weights in a pickle, which may hold code; --allow-pickle reads the tensors in it "
            "and nothing else, or save it again as safetensors"
        )
    _log.info("loading the weights of %s", name)
    config.use_cache = False  # one pass, no generation: keys and values need not be kept
    loader = AutoModelForCausalLM if writes else _loader(config, options, request)
    is_undone = _is_undone(name, config)
    check_beside(name, _folder(name, options), is_undone)
    fetching = None if is_undone or os.path.isdir(name) else options  # what transformers undoes, it reads itself
    store = open_store(_folder(name, options), fetching)
    with explained(name, "model", options), heard() as said:
        model, report = with_ours(partial(_loaded, loader, name, config, options, store))
    check_beside(name, _folder(name, options), is_undone)  # now that it is downloaded
    head = model.base_model_prefix + "." if model.base_model_prefix else ""
    notes = _check_weights(name, model, report, head, is_undone)
    if not is_undone:
        floating = (tensor for tensor, value in model.state_dict().items() if value.is_floating_point())
        check_types(name, open_store(_folder(name, options), fetching), floating, head)
    if not model._can_set_attn_implementation():
        make_eager(model)
    feed_forward_in_blocks(model)
    model = model.eval() if options.device_map else model.eval().to(options.device)
    how = (str(model.dtype).removeprefix("torch."), model.device, torch.get_num_threads())
    _log.info("loaded: %s on %s, threads: %d, attention: %s", *how, model.config._attn_implementation)
    _log.info("torch %s, transformers %s", torch.__version__, transformers_version)
    return model, (*notes, *dict.fromkeys(said))


def _folder(name: str, options: LoadOptions) -> Path:
    """Return the folder of a checkpoint; the hub's local cache has none before the first download."""
    return Path(name) if os.path.isdir(name) else snapshot(name, options.revision or "main")


def _check_device(options: LoadOptions) -> None:
    """Raise LoadError before anything is read for a device that is not there."""
    option, device = "--device", options.device
    if options.device_map is not None:
        option, device = "--device-map", options.device_map
        if device in ("auto", "balanced", "balanced_low_0", "sequential"):
            return
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        what = f"{option} {visible(device) or 'with no name'}"
        raise LoadError(f"{what}: {first_sentence(error)}; give {option} cpu") from None


def _has_pickle_alone(name: str) -> bool:
    files = os.listdir(name) if os.path.isdir(name) else []
    return any(file.endswith(".bin") for file in files) and not any(file.endswith(".safetensors") for file in files)


def _loader(config: Any, options: LoadOptions, request: Request) -> Any:
    """Return the class whose models have the layers that were asked for, and as few others as can be."""
    keep = max(request.layers) + 1
    model_class = MODEL_MAPPING.get(type(config), None)
    # Some architectures have several classes, and code that a checkpoint brings has its own.
    if keep == layer_count(config) or not isinstance(model_class, type) or options.trust_remote_code:
        return AutoModel
    return places.without_layers(model_class, keep, whole_encoder=request.kind != "encoder")


def _loaded(
    loader: Any, name: str, config: Any, options: LoadOptions, store: Store, attention: str
) -> tuple[Any, Mapping[str, Any]]:
    """Return the model and what transformers reports of its weights."""
    is_spread = options.device_map not in (None, "cpu") and torch.accelerator.is_available()
    is_on_cpu = options.device == "cpu" and not is_spread
    dtype = options.dtype or ("float32" if is_on_cpu else "auto")
    is_read_by_it = is_plain(store)
    if not is_read_by_it and hasattr(loader, "_model_mapping"):  # an AutoModel looks into the folder
        loader = loader._model_mapping[type(config)]
    load = partial(
        loader.from_pretrained,
        name if is_read_by_it else None,
        attn_implementation=attention,
        dtype=dtype if dtype == "auto" else getattr(torch, dtype),
        use_safetensors=None if options.allow_pickle else True,
        output_loading_info=True,
        tqdm_class=Download,
        ignore_mismatched_sizes=True,  # reported by us, with the names and the shapes
        **hub_arguments(options),
    )
    if is_read_by_it:
        return load(config=config, device_map=options.device_map)
    asked: list[str] = []
    load(config=deepcopy(config), state_dict=names_of(store, asked), device_map={"": "meta"})
    store.prepare(asked)
    return load(config=config, state_dict=state_of(store), device_map=options.device_map)


def _is_undone(name: str, config: Any) -> bool:
    """Return whether the weights are quantized and transformers undoes that, as far as the configuration says.

    Raises:
        LoadError: it does not know this quantization.
    """
    said = getattr(config, "quantization_config", None)
    said = said or getattr(config.get_text_config(decoder=True), "quantization_config", None)
    if said is None:
        return False
    try:
        is_known = AutoHfQuantizer.supports_quant_method(said if isinstance(said, dict) else said.to_dict())
    except (ValueError, AttributeError):  # it names no method, or is no object
        is_known = False
    if not is_known:
        raise unknown_quantization(name, said, f"transformers {transformers_version}")
    return True


def _check_weights(name: str, model: Any, report: Mapping[str, Any], head: str, is_undone: bool) -> tuple[str, ...]:
    """Return what the user should know of the tensors that were read, and of those that were not.

    Raises:
        LoadError: a tensor of the model did not come from the checkpoint, or not as it is; see `check_unread`.
    """
    modules = {module for module, _ in model.named_modules() if module}
    notes = check_unread(name, report["unexpected_keys"], modules, head, is_undone)
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
    return notes


def vocabulary_rows(model: Any) -> int | None:
    """Return how many token ids a model has embeddings for, or None where it hashes them (CANINE)."""
    try:
        return model.get_input_embeddings().num_embeddings
    except (NotImplementedError, AttributeError):
        return None


def position_limit(model: Any) -> int | None:
    """Return how many positions the model has, or None where the configuration sets no limit."""
    limit = positions(model.config)
    return None if limit is None else limit - first_position(model)


def first_position(model: Any) -> int:
    """Return the position of a first token: 0, but RoBERTa and its kin count from the one after the padding's."""
    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    return next((index + 1 for table in tables if (index := getattr(table, "padding_idx", None)) is not None), 0)
