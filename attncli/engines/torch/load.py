"""Loading the weights of a checkpoint's part that reads text, after everything else has been checked."""

from __future__ import annotations

import logging
import os
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import MODEL_MAPPING, AutoModel, AutoModelForCausalLM
from transformers import __version__ as transformers_version

from attncli.checkpoints.folder import ALONE, INDEX, check_folder, is_known, split_name
from attncli.checkpoints.hub import Download, download_adapter, download_weights, explained, first_sentence, heard
from attncli.checkpoints.hub_snapshot import checkout
from attncli.checkpoints.inside import download_inside
from attncli.checkpoints.locating import Place, locate
from attncli.checkpoints.tensors.cache import Notes
from attncli.checkpoints.tensors.open_store import is_fetched, is_plain, open_store, rows_of_vocabulary
from attncli.checkpoints.tensors.safetensors_store import has_shards
from attncli.checkpoints.weight_checks import check_types, check_unread
from attncli.checkpoints.weight_formats import check_form, has_pickle, pickled
from attncli.encoding.auto_tokenizer import hub_arguments, positions
from attncli.engines.torch import attention_modules
from attncli.engines.torch.attention_backend import build_with_recorder, set_backend
from attncli.engines.torch.configuration import layer_count
from attncli.engines.torch.lazy_state_dict import names_of, state_of
from attncli.engines.torch.text_model import TextModel, find_text_model
from attncli.errors import LoadError, UsageError
from attncli.recording.readers.transformers import ATTENTION
from attncli.text import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.checkpoints.options import LoadOptions
    from attncli.checkpoints.tensors import Store
    from attncli.engines.torch.recorder import RecordRequest

_log = logging.getLogger(__name__)

# What a checkpoint saved with another head may lack: it comes after the last attention layer.
_AFTER_ATTENTION = ("pooler",)


def find(name: str, options: LoadOptions) -> tuple[Place, TextModel]:
    """Return where a checkpoint's files are, and what of it reads text; an adapter on the hub is downloaded.

    Raises:
        LoadError: there is no such checkpoint, or it cannot be read.
        InputError: it counts layers that no model has.
        NotExposedError: it has no part that reads text alone, with attention.
        UsageError: a base is asked for, and it is no adapter.
    """
    place = locate(name, options)
    if place.lacks(options.base) and download_adapter(name, options):
        place = locate(name, options)
    try:
        with place.reading():
            parts = checkout(place.model, place.options(options))
            if parts is not None:  # all files are to be of the commit whose weights are fetched in parts
                place = replace(place, revision=parts.name)
            part = find_text_model(place.model, place.options(options))
    except LoadError:
        if os.path.isdir(place.model) or not _may_be_another(place, options):
            raise
        return find(name, options)
    if not os.path.isdir(place.model) and download_adapter(name, options):
        return find(name, options)
    if place.lacks(options.base):
        raise UsageError(f"--base names the model under an adapter, and {visible(name)} is none; drop it")
    return place, part


def _may_be_another(place: Place, options: LoadOptions) -> bool:
    """Return whether a name on the hub that has no model was found to be an adapter, or to hold one in a folder."""
    own = place.options(options)
    if not split_name(place.model)[1]:
        if not is_known(place.folder, "config.json"):
            return False
        if place.adapter is None and download_adapter(place.model, own):
            return True
    with place.reading():
        return download_inside(place.model, own, for_tokenizer=False)


def load_model(
    place: Place, part: TextModel, options: LoadOptions, request: RecordRequest, writes: bool
) -> tuple[Any, tuple[str, ...], str]:
    """Load a model that calls our attention function; return it, the notes on its weights, and how they are stored.

    It is the whole that the part is in, with little beside it; the part stands at its path.

    A model that never calls such a function gets its eager attention; so does one with a table of attention classes
    of its own, which has no place for ours.

    Args:
        place: where its files are, from `find`.
        part: what of it reads text.
        options: how to load.
        request: what will be recorded; the layers above are left out where an architecture can be cut.
        writes: whether the model needs its head, to write more tokens.

    Raises:
        LoadError: weights are missing, damaged or of the wrong shape.
    """
    name, adapter = place.model, place.read_adapter(options.allow_pickle)
    options = place.options(options)
    _check_device(options)
    if place.is_here:
        check_form(name, place.folder)
    if not options.allow_pickle and _is_pickle(place):
        with place.reading():
            raise pickled(name)
    _log.info("loading the weights of %s", name)
    part.config.use_cache = False  # one pass, no generation: keys and values need not be kept
    loader = _loader(part, options, request, writes)
    fetching = None if place.is_here else options
    # transformers would undo the one and apply the other by other packages, or not at all.
    is_changed = _take_quantization(part) or adapter is not None
    if is_changed and not is_fetched(place.folder, fetching):
        _prepare(place, options)
    reads_pickles = adapter is not None
    store = open_store(name, place.folder, adapter, fetching, reads_pickles)
    if hasattr(part.config, "vocab_size"):
        part.config.vocab_size = rows_of_vocabulary(store, part.config.vocab_size)
    with explained(name, "model", options), heard() as said:
        model, report = build_with_recorder(partial(_loaded, loader, name, part, options, store))
    store = open_store(name, place.folder, adapter, fetching, reads_pickles)  # now that it is downloaded
    head = model.base_model_prefix + "." if model.base_model_prefix else ""
    notes = _check_weights(name, model, part, report, head, is_undone=bool(store.form))
    floating = (tensor for tensor, value in model.state_dict().items() if value.is_floating_point())
    check_types(name, store, floating, head)
    set_backend(model.get_submodule(part.path), ATTENTION)
    model = model.eval() if options.device_map else model.eval().to(options.device)
    how = (str(model.dtype).removeprefix("torch."), model.device, torch.get_num_threads())
    _log.info("loaded: %s on %s, threads: %d, attention: %s", *how, model.config._attn_implementation)
    _log.info("torch %s, transformers %s", torch.__version__, transformers_version)
    return model, (*notes, *dict.fromkeys(said)), store.form


def _prepare(place: Place, options: LoadOptions) -> None:
    """See to it that the tensors are there which transformers is not to read itself.

    Raises:
        LoadError: they cannot be had.
    """
    if not os.path.isdir(place.model) and not has_shards(place.folder):
        with place.reading(), explained(place.model, "model", options):
            download_weights(place.model, options)
        check_folder(place.folder)


def _is_pickle(place: Place) -> bool:
    """Return whether the only weights of a checkpoint are pickles, here or in what the hub has listed."""
    if has_shards(place.folder):
        return False
    if os.path.isdir(place.model):
        return has_pickle(place.folder)
    listed = Notes(place.folder).files
    return listed.isdisjoint((ALONE, INDEX)) and has_pickle(place.folder, listed)


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


def _loader(part: TextModel, options: LoadOptions, request: RecordRequest, writes: bool) -> Any:
    """Return the class whose models have the layers that were asked for, and as few others as can be."""
    if writes and part.tower is None:
        return AutoModelForCausalLM
    layers = layer_count(part.config)
    keep = layers if writes else max(request.layers) + 1
    model_class = part.model_class or MODEL_MAPPING.get(type(part.config), None)
    # Some architectures have several classes, and code that a checkpoint brings has its own.
    is_whole = part.model_class is None and (keep == layers or options.trust_remote_code)
    if is_whole or not isinstance(model_class, type):
        return AutoModel
    whole_encoder = request.kind != "encoder"
    return attention_modules.truncated_class(model_class, part.path, keep, whole_encoder, with_head=writes)


def _loaded(
    loader: Any, name: str, part: TextModel, options: LoadOptions, store: Store, attention: str
) -> tuple[Any, Mapping[str, Any]]:
    """Return the model and what transformers reports of its weights."""
    is_spread = options.device_map not in (None, "cpu") and torch.accelerator.is_available()
    is_on_cpu = options.device == "cpu" and not is_spread
    dtype = options.dtype or ("float32" if is_on_cpu else "auto")
    is_read_by_it = is_plain(store)
    if not is_read_by_it and hasattr(loader, "_model_mapping"):  # an AutoModel looks into the folder
        loader = loader._model_mapping[type(part.loaded)]
    load = partial(
        loader.from_pretrained,
        name if is_read_by_it else None,
        key_mapping=part.renamed or None,
        attn_implementation=attention,
        dtype=dtype if dtype == "auto" else getattr(torch, dtype),
        use_safetensors=None if options.allow_pickle else True,
        output_loading_info=True,
        tqdm_class=Download,
        ignore_mismatched_sizes=True,  # reported by us, with the names and the shapes
        **hub_arguments(name, options),
    )
    if is_read_by_it:
        return load(config=part.loaded, device_map=options.device_map)
    asked: list[str] = []
    load(config=deepcopy(part.loaded), state_dict=names_of(store, asked), device_map={"": "meta"})
    store.prepare(asked)
    return load(config=part.loaded, state_dict=state_of(store), device_map=options.device_map)


def _take_quantization(part: TextModel) -> bool:
    """Take from the configurations what they say of a quantization; return whether they said something."""
    said = [config for config in (part.whole, part.config) if "quantization_config" in vars(config)]
    for config in {id(config): config for config in said}.values():
        del config.quantization_config
    return bool(said)


def _check_weights(
    name: str, model: Any, part: TextModel, report: Mapping[str, Any], head: str, is_undone: bool
) -> tuple[str, ...]:
    """Return what the user should know of the tensors that were read, and of those that were not.

    Raises:
        LoadError: a tensor of the model did not come from the checkpoint, or not as it is; see `check_unread`.
    """
    modules = {module for module, _ in model.named_modules() if module and module.startswith(part.path)}
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
    """Return how many token ids a model has embeddings for, or None where the model does not say."""
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
