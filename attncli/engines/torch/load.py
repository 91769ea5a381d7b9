"""Loading the weights of a checkpoint's part that reads text, after all other checks."""

from __future__ import annotations

import logging
from contextlib import suppress
from copy import deepcopy
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import MODEL_MAPPING, AutoModel, AutoModelForCausalLM
from transformers import __version__ as transformers_version

from attncli.checkpoints.hub import Download, first_sentence, translate_errors
from attncli.checkpoints.tensors import check_types, check_unread, wrong_shape
from attncli.checkpoints.tensors.open_store import is_plain, open_store
from attncli.encoding.auto_tokenizer import hub_arguments, positions
from attncli.engines.torch.attention_modules import truncated_class
from attncli.engines.torch.configuration import layer_count
from attncli.engines.torch.text_model import TextModel
from attncli.errors import LoadError
from attncli.text import visible

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from attncli.checkpoints.options import LoadOptions
    from attncli.checkpoints.snapshot import Snapshot
    from attncli.checkpoints.tensors import Store
    from attncli.engines.torch.recorder import RecordRequest

_log = logging.getLogger(__name__)


def load_model(
    snapshot: Snapshot, part: TextModel, options: LoadOptions, request: RecordRequest, writes: bool
) -> tuple[Any, tuple[str, ...], str]:
    """Load a model, unmodified but for unused parts; return it, notes on its weights, and how they are stored.

    It is the whole that the part is in, without its other parts; the part is at its path. The layers above those of the
    request are left out where an architecture can be cut, and so is the head unless the model `writes`.
    """
    name = snapshot.model_name
    _check_device(options)
    _log.info("loading the weights of %s", name)
    part.config.use_cache = False  # one pass, no generation: keys and values need not be kept
    for config in (part.whole, part.config):
        if "quantization_config" in vars(config):  # which transformers would undo by other packages, or not at all
            del config.quantization_config
    store = open_store(snapshot)
    folder = snapshot.folder if is_plain(snapshot, store) else None
    with translate_errors(name, "model"):
        model, report = _loaded(_loader(part, options, request, writes), folder, part, options, store)
    head = model.base_model_prefix + "." if model.base_model_prefix else ""
    path = "" if part.is_whole else part.path
    modules = {module for module, _ in model.named_modules() if module and module.startswith(path)}
    notes = check_unread(name, report["unexpected_keys"], modules, head, is_undone=bool(store.form))
    _check_report(name, report)
    floating = (tensor for tensor, value in model.state_dict().items() if value.is_floating_point())
    check_types(name, store, floating, head)
    inner = model.get_submodule(part.path)
    reads_text = part.tower is not None and "input_ids" in signature(inner.forward).parameters
    if reads_text and any(getattr(module, "is_causal", None) is False for module in inner.modules()):
        # The whole makes the masks of such a tower. Alone, the fused kernel would run without the causal one.
        set_backend(inner, "eager")
    model = model.eval() if options.device_map else model.eval().to(options.device)
    how = (model.dtype, model.device, torch.get_num_threads(), model.config._attn_implementation)
    _log.info("loaded: %s on %s, threads: %d, attention: %s", *how)
    _log.info("torch %s, transformers %s", torch.__version__, transformers_version)
    return model, notes, store.form


def set_backend(model: Any, attention: str) -> None:
    """Let a model run with this attention from now on, or with its own eager one if it cannot be given another."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            config._attn_implementation = attention if model._can_set_attn_implementation() else "eager"


def _check_device(options: LoadOptions) -> None:
    if options.device_map in ("auto", "balanced", "balanced_low_0", "sequential"):
        return
    is_mapped = options.device_map is not None
    option, device = ("--device-map", options.device_map) if is_mapped else ("--device", options.device)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise LoadError(f"{option} {visible(str(device))}: {first_sentence(error)}; give {option} cpu") from None


def _loader(part: TextModel, options: LoadOptions, request: RecordRequest, writes: bool) -> Any:
    """Return the class of models with the chosen layers, and as few others as possible."""
    if writes and part.tower is None:
        return AutoModelForCausalLM
    layers = layer_count(part.config)
    keep = layers if writes else max(request.layers) + 1
    model_class = part.model_class or MODEL_MAPPING.get(type(part.config), None)
    # Some architectures have several classes, and a checkpoint may bring code with its own.
    is_whole = part.model_class is None and (keep == layers or options.trust_remote_code)
    if is_whole or not isinstance(model_class, type):
        return AutoModel
    whole_encoder = request.kind != "encoder"
    return truncated_class(model_class, part.path, keep, whole_encoder, writes, part.is_whole)


def _loaded(
    loader: Any, folder: Path | None, part: TextModel, options: LoadOptions, store: Store
) -> tuple[Any, Mapping[str, Any]]:
    is_spread = options.device_map not in (None, "cpu") and torch.accelerator.is_available()
    dtype = options.dtype or ("float32" if options.device == "cpu" and not is_spread else "auto")
    if folder is None and hasattr(loader, "_model_mapping"):  # an AutoModel looks into the folder
        loader = loader._model_mapping[type(part.loaded)]
    load = partial(
        loader.from_pretrained,
        folder,
        key_mapping=part.renamed or None,
        dtype=dtype if dtype == "auto" else getattr(torch, dtype),
        output_loading_info=True,
        tqdm_class=Download,
        ignore_mismatched_sizes=True,  # reported by us, with the names and the shapes
        **hub_arguments(options),
    )
    if folder is not None:
        return load(config=part.loaded, device_map=options.device_map)
    sliced: list[str] = []
    named = {name: LazyTensor(store, name, sliced) for name in store.names}
    load(config=deepcopy(part.loaded), state_dict=named, device_map={"": "meta"})
    store.prepare(sliced)
    unread = {name: LazyTensor(store, name) for name in store.names}
    return load(config=part.loaded, state_dict=unread, device_map=options.device_map)


class LazyTensor:
    """A tensor of a store as `from_pretrained` takes it in `state_dict`: it is read when it is sliced.

    For a model on the meta device its name is added to `names` instead.
    """

    def __init__(self, store: Store, name: str, names: list[str] | None = None) -> None:
        self._store, self._name, self._names = store, name, names
        self.shape = torch.Size(store.stored(name).shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        if self._names is not None:
            self._names.append(self._name)
            return torch.empty(self.shape, device="meta")[index]
        array = self._store.read(self._name)
        tensor = torch.from_numpy(array.copy())  # a mapped array is read-only
        return (tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor)[index]


def _check_report(name: str, report: Mapping[str, Any]) -> None:
    """Raise LoadError if a tensor of the model did not come from the checkpoint, or not as it is."""
    for key, shape, expected in sorted(report["mismatched_keys"]):
        raise wrong_shape(name, key, shape, expected)
    # A checkpoint saved with another head may lack a pooler, which comes after the last attention layer.
    if missing := sorted(key for key in report["missing_keys"] if not key.startswith("pooler")):
        lost = f"lack {len(missing)} of the model's tensors ({visible(missing[0])}, …)"
        raise LoadError(f"the weights of {visible(name)} {lost}; check that the files belong to this config.json")


def limits(model: Any) -> tuple[int | None, int | None]:
    """Return how many positions and token ids a model has embeddings for; None where that is not known."""
    limit, rows = positions(model.config), None
    with suppress(NotImplementedError, AttributeError):
        rows = model.get_input_embeddings().num_embeddings
    return None if limit is None else limit - first_position(model), rows


def first_position(model: Any) -> int:
    """Return the position of a first token: 0, or for RoBERTa and similar models the one after the padding's."""
    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    return next((index + 1 for table in tables if (index := getattr(table, "padding_idx", None)) is not None), 0)
