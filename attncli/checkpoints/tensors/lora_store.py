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

_LORA_TENSOR = re.compile(r"(.+)\.(lora_(?:A|B|embedding_A|embedding_B))(?:\.weight)?")
# Kinds that put something before the text, in the input or among the keys.
_PROMPTS = {
    "PROMPT_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "PREFIX_TUNING", "CPT", "CARTRIDGE", "ADAPTION_PROMPT",
}  # fmt: skip
# Settings that are read, and those that were true of the training alone or are told by the tensors themselves.
_SETTINGS = {
    "alpha_pattern", "fan_in_fan_out", "init_lora_weights", "lora_alpha", "r", "rank_pattern", "use_rslora",
    "auto_mapping", "base_model_name_or_path", "bias", "ensure_weight_tying", "eva_config", "exclude_modules",
    "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "megatron_config",
    "megatron_core", "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "revision",
    "runtime_config", "target_modules", "task_type",
}  # fmt: skip
# PiSSA, OLoRA, CorDA and LoftQ take their beginning out of the base's weights, which are others afterwards.
_INITS = (None, True, False, "gaussian", "eva", "orthogonal")
# A name may be matched by an expression; one that repeats what repeats would keep the reader waiting for ever.
_QUIET_PATTERN = re.compile(r"[^()*+?{}|]*(?:[*+?][^()*+?{}|]*){0,2}")
_LONGEST_NAME = 300
_FLOATS = ("F64", "F32", "F16", "BF16")

_MERGE = (
    "merge it with peft: model = AutoPeftModelForCausalLM.from_pretrained(ADAPTER); model = model.merge_and_unload(); "
    "model.save_pretrained(FOLDER); then give that folder"
)


@dataclass(frozen=True)
class LoraUpdate:
    """What is added to one weight, s·B·A.

    Attributes:
        a: A, `[r, in]`, as it is stored; of an embedding `[r, vocabulary]`.
        b: B, `[out, r]`.
        scale: s.
        is_table: whether the weight is a table of embeddings, which is stored as `[vocabulary, out]`.
    """

    a: Shaped[np.ndarray, "R I"]
    b: Shaped[np.ndarray, "O R"]
    scale: float
    is_table: bool

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the weight, as `[out, in]`; of a table, as it is stored."""
        return (self.a.shape[1], len(self.b)) if self.is_table else (len(self.b), self.a.shape[1])

    def added_to(self, weight: Float[np.ndarray, "R C"], is_transposed: bool) -> Float[np.ndarray, "R C"]:
        """Return W + s·B·A.

        Args:
            weight: W.
            is_transposed: whether a square W is stored as `[in, out]`; of another one its shape says so.
        """
        # GPT-2 and its kin store [in, out].
        is_square = self.shape[0] == self.shape[1]
        turns = self.is_table or (is_transposed if is_square else self.shape != weight.shape)
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
        elif re.search(r"\.lora_\w+|token_adapter", own):  # a magnitude, a bias of its own, rows of tokens
            raise LoadError(f"the adapter {visible(name)} has {visible(own)}, which is more than LoRA; {_MERGE}")
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
    if kind in _PROMPTS:
        raise LoadError(
            f"{visible(name)} is an adapter of the kind {kind}, which changes no weights: it puts keys or "
            "embeddings of its own before the text; give the base model alone"
        )
    if kind != LORA:
        raise LoadError(f"{visible(name)} is an adapter of the kind {visible(kind)}, and attn reads LoRA; {_MERGE}")
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
    from attncli.checkpoints.tensors.pickles import tensors_in

    return tensors_in(files.path / ADAPTER_PICKLE)


def _update(name: str, module: str, parts: Mapping[str, np.ndarray[Any, Any]], config: Mapping[str, Any]) -> LoraUpdate:
    """Return what is added to the weight of one module."""
    is_table = "lora_embedding_A" in parts or "lora_embedding_B" in parts
    a, b = (parts.get(f"lora_embedding_{each}" if is_table else f"lora_{each}") for each in "AB")
    if len(parts) != 2 or a is None or b is None or a.ndim != 2 or b.ndim != 2 or not b.shape[1] == len(a) > 0:
        raise LoadError(
            f"the adapter {visible(name)} changes {visible(module)} by tensors that do not belong together; check that "
            "it is complete"
        )
    rank, patterns = len(a), config.get("rank_pattern")
    if rank not in (config.get("r", 8), *(patterns.values() if isinstance(patterns, Mapping) else ())):
        raise LoadError(
            f"the adapter {visible(name)} changes {visible(module)} by a rank that its {ADAPTER} does not give; check "
            "that the files belong together"
        )
    alpha = _alpha(name, module, config)
    return LoraUpdate(a, b, alpha / rank**0.5 if config.get("use_rslora") is True else alpha / rank, is_table)


def _alpha(name: str, module: str, config: Mapping[str, Any]) -> float:
    """Return α of a module, which `alpha_pattern` may set."""
    patterns = config.get("alpha_pattern") or {}
    alpha = config.get("lora_alpha", 8)
    for pattern, value in patterns.items() if isinstance(patterns, Mapping) else ():
        if not _QUIET_PATTERN.fullmatch(pattern) or len(module) > _LONGEST_NAME:
            raise LoadError(
                f"alpha_pattern of {visible(name)} has the expression {visible(pattern)}, which is not read; {_MERGE}"
            )
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                alpha = value
                break
        except re.error:
            raise LoadError(f"alpha_pattern of {visible(name)} has no expression: {visible(pattern)}") from None
    if type(alpha) not in (int, float) or not abs(alpha) < 1e30:
        raise LoadError(f"{ADAPTER} of {visible(name)} has {visible(repr(alpha)[:50])} for alpha; expected a number")
    return float(alpha)


class LoraStore:
    """The tensors of a model with a LoRA adapter; see `attncli.checkpoints.tensors.Store`.

    Attributes:
        form: of the model's tensors.
        names: of the model's tensors, and of those that the adapter has for parts which the files of the model lack,
            such as a head of its own.
        resized: how many rows the adapter's own tables have, by how many the model's have: it may know more tokens.

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
        self.resized: dict[int, int] = {}
        by_end = _by_ends(base.names)
        for tensor, array in adapter.whole.items():
            if found := self._name_in_base(by_end, tensor, self._whole):
                self._replace(found, array)
            else:
                self._added[tensor] = array
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
        parts = tensor.split(".")
        layer = next((place for place, part in enumerate(parts) if part.isdigit()), None)
        for start in range(max(len(parts) - 1 if layer is None else layer, 1)):
            found = by_end.get(".".join(parts[start:]), [])
            found = [tensor] if tensor in found else found
            found = _nearest(found, parts[:start])
            if len(found) > 1:
                raise self._misfit(tensor, f"which may be {visible(found[0])} or {visible(found[1])} of its base")
            if found and found[0] in taken:
                raise self._misfit(tensor, f"and so {visible(found[0])} of its base a second time")
            if found:
                return found[0]
        if layer is None:
            return None
        raise self._misfit(tensor, "which its base does not have")

    def _replace(self, tensor: str, array: np.ndarray[Any, Any]) -> None:
        """Put a tensor in place of the model's, after checking that it fits."""
        shape = self._base.stored(tensor).shape
        if array.shape != shape:
            if len(shape) != 2 or array.shape[1:] != shape[1:]:
                raise self._misfit(tensor, f"to one of shape {list(array.shape)}, where its base has {list(shape)}")
            self.resized[shape[0]] = len(array)
        self._whole[tensor] = array

    def _check_fits(self, tensor: str, update: LoraUpdate) -> None:
        stored = self._base.stored(tensor)
        if stored.type not in _FLOATS:
            raise self._misfit(tensor, f"which its base stores as {stored.type}, quantized")
        shape = self._whole[tensor].shape if tensor in self._whole else stored.shape
        if shape != update.shape and (update.is_table or shape != update.shape[::-1]):
            raise self._misfit(tensor, f"by tensors that do not fit the shape {list(shape)} which it has in its base")

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
        own = self._whole if name in self._whole else self._added
        rows = to_float32(own[name][list(indices)]) if name in own else self._base.rows(name, indices)
        if name not in self._updates:
            return rows
        update = self._updates[name]
        if not update.is_table:
            return self.read(name)[list(indices)]
        added = to_float32(update.a[:, list(indices)]).T @ to_float32(update.b).T
        return to_float32(rows) + added * np.float32(update.scale)


def _nearest(names: list[str], above: Sequence[str]) -> list[str]:
    """Return the names that share the most parts with what stands above: two towers may have layers of one name."""
    shared = [len(set(above) & set(name.split("."))) for name in names]
    return [name for name, count in zip(names, shared, strict=True) if count == max(shared)]


def _by_ends(names: Collection[str]) -> dict[str, list[str]]:
    """Return the names by each of their ends that may be all of a name elsewhere, the number of a layer included."""
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        layer = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
        for start in range(max(layer, 1)):
            found.setdefault(".".join(parts[start:]), []).append(name)
    return found
