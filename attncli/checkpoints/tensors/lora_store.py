"""LoRA adapters as peft saves them: changed weights are computed where they are read, in float32.

A weight W becomes W + s·B·A with s = α/r, or α/√r where the adapter is rank-stabilized (Hu et al. 2021,
arXiv:2106.09685; Kalajdzievski 2023, arXiv:2312.03732). Adapters of other kinds are refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial

import numpy as np

from attncli.checkpoints.checkpoint_folder import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    LORA,
    CheckpointFolder,
    map_weights,
)
from attncli.checkpoints.tensors import Array, ComputedStore, ComputedTensor, Store, is_in_layer
from attncli.errors import LoadError
from attncli.files import FLOATS, to_float32
from attncli.text import visible

_LORA_TENSOR = re.compile(r"(.+)\.lora_(A|B)\.weight")
# Settings that are read, and those of the training alone or evident from the tensors.
_SETTINGS = {
    "fan_in_fan_out", "init_lora_weights", "lora_alpha", "r", "use_rslora",
    "auto_mapping", "base_model_name_or_path", "bias", "ensure_weight_tying", "eva_config", "exclude_modules",
    "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "megatron_config",
    "megatron_core", "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "revision",
    "runtime_config", "target_modules", "task_type",
}  # fmt: skip
# PiSSA, OLoRA, CorDA and LoftQ initialise from the base's weights, and change these.
_INITS = (None, True, False, "gaussian", "eva", "orthogonal")

_MERGE = (
    "merge it with peft: model = AutoPeftModelForCausalLM.from_pretrained(ADAPTER); model = model.merge_and_unload(); "
    "model.save_pretrained(FOLDER); then give that folder"
)


def check_adapter(name: str, files: CheckpointFolder) -> None:
    """Refuse an adapter by its configuration; LoadError if it is no LoRA, or damaged."""
    config, whose = files.read_json(ADAPTER), f"{ADAPTER} of {visible(name)}"
    kind, init, alpha = config.get("peft_type"), config.get("init_lora_weights"), config.get("lora_alpha", 8)
    if not isinstance(kind, str):
        raise LoadError(f"{whose} names no peft_type; expected the adapter that peft saved")
    if kind != LORA:
        other = f"{visible(name)} is an adapter of the kind {visible(kind)}, and attn reads LoRA"
        raise LoadError(f"{other}; give the base model alone, or {_MERGE}")
    for setting, value in sorted(config.items()):
        if setting not in _SETTINGS and value not in (None, False, [], {}, ""):
            doubt = "which attn ignores although it may change the numbers"
            raise LoadError(f"{whose} sets {visible(setting)}, {doubt}; {_MERGE}")
    if init not in _INITS:
        base = "which also changes its base; save it with path_initial_model_for_weight_conversion"
        raise LoadError(f"{whose} sets init_lora_weights {visible(repr(init)[:50])}, {base}")
    if type(alpha) not in (int, float) or not abs(alpha) < 1e30:
        raise LoadError(f"{whose} has {visible(repr(alpha)[:50])} for alpha; expected a number")


def _tensors(name: str, files: CheckpointFolder) -> Mapping[str, Array]:
    """Return an adapter's tensors, mapped."""
    if ADAPTER_WEIGHTS not in files:
        where = f"{name} has an adapter ({ADAPTER}) without its weights, {ADAPTER_WEIGHTS}{files.summary}"
        raise LoadError(f"{where}; save it with peft as safetensors, or remove {ADAPTER}")
    file = map_weights(files.path / ADAPTER_WEIGHTS)
    for tensor, kind in sorted(file.types.items()):
        if kind not in FLOATS:
            raise LoadError(f"the adapter {name} has {visible(tensor)} as {kind}; expected floats")
    return file.mapped


def with_adapter(base: Store, adapter: str, files: CheckpointFolder) -> Store:
    """Return the tensors of a model with a LoRA adapter that `check_adapter` has passed; LoadError if it does not fit.

    Its names are the model's, and the adapter's for parts that the files of the model lack, such as a head of its own.
    """
    adapter, names = visible(adapter), _BaseNames(base, visible(adapter))
    config = files.read_json(ADAPTER)
    rank, alpha = config.get("r", 8), config.get("lora_alpha", 8)
    pairs: dict[str, dict[str, Array]] = {}
    replaced: dict[str, Array] = {}  # tensors of the model, and those that it lacks
    for stored, array in _tensors(adapter, files).items():
        tensor = stored.removeprefix("base_model.model.")
        if match := _LORA_TENSOR.fullmatch(tensor):
            pairs.setdefault(match[1].removesuffix(".base_layer"), {})[match[2]] = array
            continue
        if re.search(r"\.lora_\w+|token_adapter", tensor):  # a magnitude, a bias of its own, a table of embeddings
            raise LoadError(f"the adapter {adapter} has {visible(tensor)}, which attn cannot read; {_MERGE}")
        tensor = tensor.replace(".base_layer.", ".")
        target = names.find(tensor, replaced)
        if target and array.shape != (shape := base.stored(target).shape):
            raise names.misfit(tensor, f"to one of shape {list(array.shape)}, where its base has {list(shape)}")
        replaced[target or tensor] = array
    updates: dict[str, tuple[Array, Array, float, bool]] = {}  # of the model's tensors; see `_updated`
    for module, parts in pairs.items():
        a, b = parts.get("A"), parts.get("B")
        if a is None or b is None or a.ndim != 2 or b.ndim != 2 or not b.shape[1] == len(a) == rank > 0:
            what = f"{visible(module)} with tensors of another rank than its {ADAPTER} gives"
            raise LoadError(f"the adapter {adapter} changes {what}; check that the files belong together")
        if (target := names.find(f"{module}.weight", updates)) is None:
            replaced |= {f"{module}.lora_A": a, f"{module}.lora_B": b}
            continue
        stored_type, shape = base.stored(target)
        if stored_type not in FLOATS:
            raise names.misfit(target, f"which its base stores as {stored_type}, quantized")
        if (len(b), a.shape[1]) not in (shape, shape[::-1]):
            raise names.misfit(target, f"by tensors that do not fit the shape {list(shape)} which it has in its base")
        # GPT-2 and similar models store [in, out], which shows in the shape unless it is a square.
        is_turned = config.get("fan_in_fan_out") is True if shape == shape[::-1] else (len(b), a.shape[1]) != shape
        scale = alpha / (rank**0.5 if config.get("use_rslora") is True else rank)
        updates[target] = a, b, scale, is_turned
    if not updates and not replaced:
        raise LoadError(f"the adapter {adapter} holds no tensors; check that its folder is complete")
    if not updates and replaced.keys().isdisjoint(base.names):
        raise names.misfit(next(iter(replaced)), "which its base does not have")
    tensors = {name: ComputedTensor(array.shape, (), partial(to_float32, array)) for name, array in replaced.items()}
    store = ComputedStore(base, tensors, base.form)
    changed = {
        name: ComputedTensor(store.stored(name).shape, (name,), partial(_updated, store, name, *update))
        for name, update in updates.items()
    }
    return ComputedStore(store, changed, base.form)


def _updated(store: Store, name: str, a: Array, b: Array, scale: float, is_turned: bool) -> Array:
    product = to_float32(b) @ to_float32(a)
    return to_float32(store.read(name)) + (product.T if is_turned else product) * np.float32(scale)


class _BaseNames:
    """The names of a model's tensors, which an adapter's may differ from in their beginning."""

    def __init__(self, base: Store, adapter: str) -> None:
        self._adapter = adapter
        self._by_end: dict[str, list[str]] = {}
        for name in base.names:
            self._by_end.setdefault(_end(name), []).append(name)

    def misfit(self, tensor: str, what: str) -> LoadError:
        """Return the error for a tensor of the adapter that does not fit."""
        where = f"the adapter {self._adapter} changes {visible(tensor)}"
        return LoadError(f"{where}, {what}; give its own base with --base")

    def find(self, tensor: str, changed: Collection[str]) -> str | None:
        """Return the model's name of a tensor; None for one in layers that the model does not have."""
        names = self._by_end.get(_end(tensor), [])
        if tensor in names:
            names = [tensor]
        elif is_in_layer(tensor):  # two towers may have layers of one name
            shared = [len({*name.split(".")} & {*tensor.split(".")}) for name in names]
            names = [name for name, count in zip(names, shared, strict=True) if count == max(shared)]
        else:
            names = [name for name in names if f".{name}".endswith(f".{tensor}") or f".{tensor}".endswith(f".{name}")]
        if len(names) > 1:
            raise self.misfit(tensor, f"which may be {visible(names[0])} or {visible(names[1])} of its base")
        if names and names[0] in changed:
            raise self.misfit(tensor, f"and so {visible(names[0])} of its base a second time")
        if not names and is_in_layer(tensor):
            raise self.misfit(tensor, "which its base does not have")
        return names[0] if names else None


def _end(name: str) -> str:
    """Return the end of a tensor's name that is the same in every model: from its layer on, or its last two parts."""
    parts = name.split(".")
    layer = next((index for index, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[max(layer - 1, 0) :])
