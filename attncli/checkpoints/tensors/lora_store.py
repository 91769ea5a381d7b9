"""LoRA adapters as peft saves them: the weights that one changes are computed where they are read, in float32.

A weight W becomes W + s·B·A with s = α/r, or α/√r where the adapter is rank-stabilized (Hu et al. 2021,
arXiv:2106.09685; Kalajdzievski 2023, arXiv:2312.03732): what peft's merge_and_unload makes of the model, and what it
computes unmerged too. Adapters of other kinds are refused with the lines that merge them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.checkpoints.checkpoint_folder import ADAPTER, ADAPTER_PICKLE, ADAPTER_WEIGHTS, LORA, map_weights
from attncli.checkpoints.tensors import Store, Stored
from attncli.errors import LoadError, require
from attncli.files import Tensors, to_float32
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

    from attncli.checkpoints.checkpoint_folder import CheckpointFolder

_LORA_TENSOR = re.compile(r"(.+)\.lora_(A|B)\.weight")
# Settings that are read, and those that were true of the training alone or are told by the tensors themselves.
_SETTINGS = {
    "fan_in_fan_out", "init_lora_weights", "lora_alpha", "r", "use_rslora",
    "auto_mapping", "base_model_name_or_path", "bias", "ensure_weight_tying", "eva_config", "exclude_modules",
    "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "megatron_config",
    "megatron_core", "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "revision",
    "runtime_config", "target_modules", "task_type",
}  # fmt: skip
# PiSSA, OLoRA, CorDA and LoftQ take their beginning out of the base's weights, which are others afterwards.
_INITS = (None, True, False, "gaussian", "eva", "orthogonal")
_FLOATS = ("F64", "F32", "F16", "BF16")

_MERGE = (
    "merge it with peft: model = AutoPeftModelForCausalLM.from_pretrained(ADAPTER); model = model.merge_and_unload(); "
    "model.save_pretrained(FOLDER); then give that folder"
)


@dataclass(frozen=True)
class LoraUpdate:
    """What is added to one weight, s·B·A.

    Attributes:
        a: A, `[r, in]`, as it is stored.
        b: B, `[out, r]`.
        scale: s.
    """

    a: Shaped[np.ndarray, "R I"]
    b: Shaped[np.ndarray, "O R"]
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the weight, as `[out, in]`."""
        return len(self.b), self.a.shape[1]

    def added_to(self, weight: Float[np.ndarray, "R C"], is_transposed: bool) -> Float[np.ndarray, "R C"]:
        """Return W + s·B·A.

        Args:
            weight: W.
            is_transposed: whether a square W is stored as `[in, out]`; of another one its shape says so.
        """
        # GPT-2 and its kin store [in, out].
        is_square = self.shape[0] == self.shape[1]
        turns = is_transposed if is_square else self.shape != weight.shape
        added = to_float32(self.b) @ to_float32(self.a)
        return weight + (added.T if turns else added) * np.float32(self.scale)


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter, of whose numbers nothing is read yet.

    Attributes:
        name: as the user knows it, a folder or a name on the hub.
        is_transposed: whether the weights that it changes are stored as [in, out], where their shape does not say.
        updates: by the name of the module.
        whole: tensors that stand in place of the model's, by their names.
    """

    name: str
    is_transposed: bool
    updates: Mapping[str, LoraUpdate]
    whole: Mapping[str, np.ndarray[Any, Any]]


def read_adapter(name: str, files: CheckpointFolder) -> Adapter:
    """Read an adapter's configuration and map its tensors; those of a pickle take torch's restricted unpickler.

    Args:
        name: as the user knows it.
        files: of the adapter.

    Raises:
        LoadError: it is damaged, or no LoRA.
    """
    config = files.read_json(ADAPTER)  # which `check_adapter` has passed
    pairs: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    whole: dict[str, np.ndarray[Any, Any]] = {}
    for tensor, array in _tensors(name, files).items():
        own = tensor.removeprefix("base_model.model.")
        if match := _LORA_TENSOR.fullmatch(own):
            pairs.setdefault(match[1].removesuffix(".base_layer"), {})[match[2]] = array
        elif re.search(r"\.lora_\w+|token_adapter", own):  # a magnitude, a bias of its own, a table of embeddings
            raise LoadError(f"the adapter {visible(name)} has {visible(own)}, which is not read; {_MERGE}")
        else:
            whole[own.replace(".base_layer.", ".")] = array
    updates = {module: _update(name, module, parts, config) for module, parts in pairs.items()}
    if not updates and not whole:
        raise LoadError(f"the adapter {visible(name)} holds no tensors; check that its folder is complete")
    return Adapter(name, config.get("fan_in_fan_out") is True, updates, whole)


def check_adapter(name: str, files: CheckpointFolder) -> None:
    """Refuse an adapter that is no LoRA, by its configuration; see `read_adapter`.

    Raises:
        LoadError: it is damaged, or of a kind that is not read.
    """
    config = files.read_json(ADAPTER)
    kind = config.get("peft_type")
    if not isinstance(kind, str):
        raise LoadError(f"{ADAPTER} of {visible(name)} names no peft_type; expected the adapter that peft saved")
    if kind != LORA:
        raise LoadError(
            f"{visible(name)} is an adapter of the kind {visible(kind)}, and attn reads LoRA; give the base model "
            f"alone, or, if it changes weights, {_MERGE}"
        )
    for setting, value in sorted(config.items()):
        if setting not in _SETTINGS and value not in (None, False, [], {}, ""):
            raise LoadError(
                f"{ADAPTER} of {visible(name)} sets {visible(setting)}, which is not read and may change the numbers; "
                f"{_MERGE}"
            )
    init = config.get("init_lora_weights")
    if init not in _INITS:
        raise LoadError(
            f"the adapter {visible(name)} began with init_lora_weights {visible(repr(init)[:50])}, "
            "which changes the weights of its base too; save it with path_initial_model_for_weight_conversion"
        )


def _tensors(name: str, files: CheckpointFolder) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return an adapter's tensors: mapped, where they are not in a pickle."""
    if ADAPTER_WEIGHTS in files:
        file: Tensors = map_weights(files.path / ADAPTER_WEIGHTS)
        for tensor, kind in sorted(file.types.items()):
            if kind not in _FLOATS:
                raise LoadError(f"the adapter {visible(name)} has {visible(tensor)} as {kind}; expected floats")
        return file.mapped
    if ADAPTER_PICKLE not in files:
        raise LoadError(
            f"{visible(name)} has an adapter ({ADAPTER}) without its weights, {ADAPTER_WEIGHTS}; put that file beside "
            f"it, or take {ADAPTER} away"
        )
    require(f"the pickle of {visible(name)}", "torch")
    from attncli.checkpoints.tensors.pickles import Pickles

    pickled = Pickles([files.path / ADAPTER_PICKLE])
    return {tensor: pickled.read(tensor) for tensor in pickled.names}


def _update(name: str, module: str, parts: Mapping[str, np.ndarray[Any, Any]], config: Mapping[str, Any]) -> LoraUpdate:
    """Return what is added to the weight of one module."""
    a, b = parts.get("A"), parts.get("B")
    rank = config.get("r", 8)
    if a is None or b is None or a.ndim != 2 or b.ndim != 2 or not b.shape[1] == len(a) == rank > 0:
        raise LoadError(
            f"the adapter {visible(name)} changes {visible(module)} by tensors that are not of the rank that its "
            f"{ADAPTER} gives; check that the files belong together"
        )
    alpha = config.get("lora_alpha", 8)
    if type(alpha) not in (int, float) or not abs(alpha) < 1e30:
        raise LoadError(f"{ADAPTER} of {visible(name)} has {visible(repr(alpha)[:50])} for alpha; expected a number")
    return LoraUpdate(a, b, alpha / rank**0.5 if config.get("use_rslora") is True else alpha / rank)


class LoraStore:
    """The tensors of a model with a LoRA adapter; see `attncli.checkpoints.tensors.Store`.

    Attributes:
        form: of the model's tensors.
        names: of the model's tensors, and of those that the adapter has for parts which the files of the model lack,
            such as a head of its own.

    Raises:
        LoadError: the adapter does not fit the model.
    """

    def __init__(self, base: Store, adapter: Adapter) -> None:
        self._base = base
        self.form = base.form
        self._adapter = adapter
        self._updates: dict[str, LoraUpdate] = {}
        self._whole: dict[str, np.ndarray[Any, Any]] = {}
        self._added: dict[str, np.ndarray[Any, Any]] = {}
        by_end: dict[str, list[str]] = {}
        for name in base.names:
            by_end.setdefault(_end(name), []).append(name)
        for tensor, array in adapter.whole.items():
            found = self._name_in_base(by_end, tensor, self._whole)
            if found and array.shape != (shape := base.stored(found).shape):
                raise self._misfit(tensor, f"to one of shape {list(array.shape)}, where its base has {list(shape)}")
            (self._whole if found else self._added)[found or tensor] = array
        for module, update in adapter.updates.items():
            if found := self._name_in_base(by_end, f"{module}.weight", self._updates):
                self._check_fits(found, update)
                self._updates[found] = update
            else:
                self._added |= {f"{module}.lora_A": update.a, f"{module}.lora_B": update.b}
        if not self._updates and not self._whole:
            raise self._misfit(next(iter(self._added)), "which its base does not have")
        self.names: Collection[str] = {**dict.fromkeys(base.names), **dict.fromkeys(self._added)}.keys()

    def _misfit(self, tensor: str, what: str) -> LoadError:
        return LoadError(
            f"the adapter {visible(self._adapter.name)} changes {visible(tensor)}, {what}; --base names the model that "
            "it was made for"
        )

    def _name_in_base(self, by_end: Mapping[str, list[str]], tensor: str, taken: Collection[str]) -> str | None:
        """Return the model's name of a tensor; None for one outside the layers that the model does not have.

        Either may have been saved without the head that the other has on top, so that names differ in how they begin.
        """
        found = by_end.get(_end(tensor), [])
        same = [name for name in found if f".{name}".endswith(f".{tensor}") or f".{tensor}".endswith(f".{name}")]
        if not same and _is_in_layer(tensor):  # two towers may have layers of one name
            shared = {name: len({*name.split(".")} & {*tensor.split(".")}) for name in found}
            same = [name for name in found if shared[name] == max(shared.values())]
        found = [tensor] if tensor in found else same
        if len(found) > 1:
            raise self._misfit(tensor, f"which may be {visible(found[0])} or {visible(found[1])} of its base")
        if found and found[0] in taken:
            raise self._misfit(tensor, f"and so {visible(found[0])} of its base a second time")
        if not found and _is_in_layer(tensor):
            raise self._misfit(tensor, "which its base does not have")
        return found[0] if found else None

    def _check_fits(self, tensor: str, update: LoraUpdate) -> None:
        stored = self._base.stored(tensor)
        if stored.type not in _FLOATS:
            raise self._misfit(tensor, f"which its base stores as {stored.type}, quantized")
        if stored.shape not in (update.shape, update.shape[::-1]):
            raise self._misfit(
                tensor, f"by tensors that do not fit the shape {list(stored.shape)} which it has in its base"
            )

    def stored(self, name: str) -> Stored:
        """See `attncli.checkpoints.tensors.Store.stored`."""
        own = self._whole if name in self._whole else self._added
        if name in own:
            return Stored("F32", own[name].shape)
        stored = self._base.stored(name)
        return Stored("F32", stored.shape) if name in self._updates else stored

    def prepare(self, names: Collection[str]) -> None:
        """See `attncli.checkpoints.tensors.Store.prepare`."""
        self._base.prepare(names)

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """See `attncli.checkpoints.tensors.Store.read`."""
        own = self._whole if name in self._whole else self._added
        tensor = to_float32(own[name]) if name in own else self._base.read(name)
        if name not in self._updates:
            return tensor
        return self._updates[name].added_to(to_float32(tensor), self._adapter.is_transposed)

    def rows(self, name: str, indices: Sequence[int]) -> np.ndarray[Any, Any]:
        """See `attncli.checkpoints.tensors.Store.rows`."""
        is_own = name in self._updates or name in self._whole or name in self._added
        return self.read(name)[list(indices)] if is_own else self._base.rows(name, indices)


def _is_in_layer(name: str) -> bool:
    return any(part.isdigit() for part in name.split("."))


def _end(name: str) -> str:
    """Return the end of a tensor's name that is the same in every model: from its layer on, or its last two parts."""
    parts = name.split(".")
    layer = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[max(layer - 1, 0) :])
