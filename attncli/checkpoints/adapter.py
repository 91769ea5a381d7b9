"""What an adapter of PEFT's says: its adapter_config.json, and its tensors by the parts of the model that they change.

Read are the kinds that change weights by a formula: LoRA and what is built on it (DoRA, rank-stabilized), IA³, LoHa and
LoKr. <https://huggingface.co/docs/peft/package_reference/peft_types>
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attncli.checkpoints.folder import map_weights, read_json
from attncli.checkpoints.nested import ADAPTER, ADAPTER_PICKLE, ADAPTER_WEIGHTS
from attncli.errors import LoadError, require
from attncli.files import Tensors
from attncli.text import visible

# Which tensors of a kind change a part of the model; what has another name stands in place of one of the model's.
_PARTS = {
    "LORA": r"lora_(?:A|B|embedding_A|embedding_B|magnitude_vector)|token_adapter\.trainable_tokens_delta",
    "IA3": r"ia3_l",
    "LOHA": r"hada_w[12]_[ab]",
    "LOKR": r"lokr_w[12](?:_[ab])?",
}
# Kinds that put something before the text, in the input or among the keys.
_OF_INPUT = {
    "PROMPT_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "PREFIX_TUNING", "CPT", "CARTRIDGE", "ADAPTION_PROMPT",
}  # fmt: skip
# Of what a configuration may say besides: what was true of the training alone, or is told by the tensors themselves.
_HARMLESS = """
auto_mapping base_model_name_or_path bias decompose_both decompose_factor ensure_weight_tying eva_config exclude_modules
feedforward_modules inference_mode init_ia3_weights init_weights layers_pattern layers_to_transform loftq_config
lora_bias lora_dropout megatron_config megatron_core module_dropout modules_to_save peft_type peft_version
qalora_group_size rank_dropout rank_dropout_scale revision runtime_config target_modules task_type use_effective_conv2d
"""
_READ = """
alpha alpha_pattern fan_in_fan_out init_lora_weights lora_alpha r rank_pattern trainable_token_indices use_dora
use_rslora
"""
_KNOWN = {*_HARMLESS.split(), *_READ.split()}
# PiSSA, OLoRA, CorDA and LoftQ take their beginning out of the base's weights, which are others afterwards.
_BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal")
# A name may be matched by an expression; one that repeats what repeats would keep the reader waiting for ever.
_QUIET_PATTERN = re.compile(r"[^()*+?{}|]*(?:[*+?][^()*+?{}|]*){0,2}")
_LONGEST_NAME = 300

_MERGE = "merge it with peft's merge_and_unload and save the model"


@dataclass(frozen=True)
class Change:
    """How one part of the model, a module with a weight, is changed.

    Attributes:
        kind: of the adapter.
        parts: its tensors of this module, by their names; float32.
        scale: what a product of them is multiplied by.
        tokens: the rows that it replaces, where it has rows of its own.
    """

    kind: str
    parts: Mapping[str, np.ndarray[Any, Any]]
    scale: float
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Adapter:
    """An adapter.

    Attributes:
        name: as the user knows it, a folder or a name on the hub.
        kind: LORA, IA3, LOHA or LOKR.
        is_transposed: whether the weights that it changes are stored as [in, out], where their shape does not say.
        changes: by the name of the module.
        whole: tensors that stand in place of the model's, by their names.
    """

    name: str
    kind: str
    is_transposed: bool
    changes: Mapping[str, Change]
    whole: Mapping[str, np.ndarray[Any, Any]]


def read_adapter(name: str, folder: Path, allow_pickle: bool) -> Adapter:
    """Read an adapter; of its numbers nothing is read yet.

    Args:
        name: as the user knows it.
        folder: where its files are.
        allow_pickle: whether a .bin may be read, with torch's restricted unpickler.

    Raises:
        LoadError: it is damaged, or of a kind that is not read.
    """
    kind = kind_of(name, folder)
    said = read_json(folder / ADAPTER)
    found: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    whole: dict[str, np.ndarray[Any, Any]] = {}
    part = re.compile(rf"(.+)\.({_PARTS[kind]})(\.weight|\.bias)?")
    for tensor, array in _tensors(name, folder, allow_pickle).items():
        own = tensor.removeprefix("base_model.model.")
        if match := part.fullmatch(own):
            found.setdefault(match[1].removesuffix(".base_layer"), {})[match[2] + (match[3] or "")] = array
        else:
            whole[own.replace(".base_layer.", ".")] = array
    changes = {module: _change(name, kind, module, parts, said) for module, parts in found.items()}
    if not changes and not whole:
        raise LoadError(f"the adapter {visible(name)} holds no tensors; check that its folder is complete")
    return Adapter(name, kind, said.get("fan_in_fan_out") is True, changes, whole)


def kind_of(name: str, folder: Path) -> str:
    """Return the kind of an adapter, by its configuration; see `read_adapter`.

    Raises:
        LoadError: it is damaged, or of a kind that is not read.
    """
    said = read_json(folder / ADAPTER)
    kind = said.get("peft_type")
    if not isinstance(kind, str):
        raise LoadError(f"{ADAPTER} of {visible(name)} names no peft_type; expected the adapter that peft saved")
    if kind in _OF_INPUT:
        raise LoadError(
            f"{visible(name)} is an adapter of the kind {kind}, which changes no weights: it puts keys or "
            "embeddings of its own before the text; give the base model alone"
        )
    if kind not in _PARTS:
        raise LoadError(
            f"{visible(name)} is an adapter of the kind {visible(kind)}; LORA, IA3, LOHA and LOKR are read; {_MERGE}"
        )
    for setting, value in sorted(said.items()):
        if setting not in _KNOWN and value not in (None, False, [], {}, ""):
            raise LoadError(
                f"{ADAPTER} of {visible(name)} sets {visible(setting)}, which is not read and may change the numbers; "
                f"{_MERGE}"
            )
    begun = said.get("init_lora_weights")
    if kind == "LORA" and begun not in _BEGINNINGS:
        raise LoadError(
            f"the adapter {visible(name)} began with init_lora_weights {visible(repr(begun)[:50])}, "
            "which changes the weights of its base too; save it with path_initial_model_for_weight_conversion"
        )
    return kind


def _tensors(name: str, folder: Path, allow_pickle: bool) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return an adapter's tensors: mapped, where they are not in a pickle."""
    if (folder / ADAPTER_WEIGHTS).is_file():
        file: Tensors = map_weights(folder / ADAPTER_WEIGHTS)
        for tensor, kind in sorted(file.types.items()):
            if kind not in ("F64", "F32", "F16", "BF16"):
                raise LoadError(f"the adapter {visible(name)} has {visible(tensor)} as {kind}; expected floats")
        return file.mapped
    if not (folder / ADAPTER_PICKLE).is_file():
        raise LoadError(
            f"{visible(name)} has an adapter ({ADAPTER}) without its weights, {ADAPTER_WEIGHTS}; put that file beside "
            f"it, or take {ADAPTER} away"
        )
    if not allow_pickle:
        raise LoadError(
            f"the adapter {visible(name)} has its weights in a pickle ({ADAPTER_PICKLE}), which may hold code; "
            "--allow-pickle reads the tensors in it and nothing else, or save it again as safetensors"
        )
    require(f"the pickle of {visible(name)}", "torch")
    from attncli.checkpoints.tensors.pickles import tensors_in

    return tensors_in(folder / ADAPTER_PICKLE)


def _change(
    name: str, kind: str, module: str, parts: Mapping[str, np.ndarray[Any, Any]], said: Mapping[str, Any]
) -> Change:
    """Return the change of one module."""
    bare = {part.removesuffix(".weight"): array for part, array in parts.items()}
    tokens = "token_adapter.trainable_tokens_delta"
    if tokens in bare:
        return Change("TOKENS", bare, 1.0, _tokens(name, module, said.get("trainable_token_indices"), bare[tokens]))
    if kind == "IA3":
        return Change(kind, bare, 1.0)
    rank = _rank(name, module, kind, bare, said)
    alpha = _alpha(name, module, said)
    is_dora = "lora_magnitude_vector" in bare
    if is_dora != (said.get("use_dora") is True and kind == "LORA"):
        raise LoadError(f"the adapter {visible(name)} and its {ADAPTER} differ in use_dora, at {visible(module)}")
    scale = alpha / rank**0.5 if said.get("use_rslora") is True else alpha / rank
    return Change(kind, bare, scale)


def _rank(name: str, module: str, kind: str, parts: Mapping[str, np.ndarray[Any, Any]], said: Mapping[str, Any]) -> int:
    """Return the rank of a module's change, as its tensors have it; LoadError where they do not fit each other."""
    pairs = {
        "LORA": (("lora_B", "lora_A"), ("lora_embedding_B", "lora_embedding_A")),
        "LOHA": (("hada_w1_a", "hada_w1_b"), ("hada_w2_a", "hada_w2_b")),
        "LOKR": (("lokr_w1_a", "lokr_w1_b"), ("lokr_w2_a", "lokr_w2_b")),
    }[kind]
    there = [pair for pair in pairs if pair[0] in parts or pair[1] in parts]
    factors = [[parts.get(each) for each in pair] for pair in there]
    widths = {_common_width(one, other) for one, other in factors}
    is_whole = {
        "LORA": len(there) == 1,
        "LOHA": len(there) == 2,
        "LOKR": all((factor in parts) != (f"{factor}_a" in parts) for factor in ("lokr_w1", "lokr_w2")),
    }[kind]
    if not is_whole or None in widths:
        raise LoadError(
            f"the adapter {visible(name)} changes {visible(module)} by tensors that do not belong together; check that "
            "it is complete"
        )
    known = said.get("rank_pattern") or {}
    allowed = [said.get("r", 8), *(known.values() if isinstance(known, Mapping) else ())]
    given = {each for each in allowed if type(each) is int and each > 0}
    ranks = {each for each in widths if each} or given  # LoKr with whole factors does not tell
    if len(ranks) != 1 or not ranks <= given:
        raise LoadError(
            f"the adapter {visible(name)} changes {visible(module)} by a rank that its {ADAPTER} does not give; check "
            "that the files belong together"
        )
    return ranks.pop()


def _common_width(one: np.ndarray[Any, Any] | None, other: np.ndarray[Any, Any] | None) -> int | None:
    """Return what two matrices have in common where they are multiplied; None if they cannot be."""
    if one is None or other is None or one.ndim != 2 or other.ndim != 2 or one.shape[1] != len(other):
        return None
    return len(other) or None


def _alpha(name: str, module: str, said: Mapping[str, Any]) -> float:
    """Return what is divided by the rank for a module."""
    patterns = said.get("alpha_pattern") or {}
    alpha = said.get("lora_alpha", said.get("alpha", 8))
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


def _tokens(name: str, module: str, said: Any, rows: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """Return the tokens whose rows an adapter has."""
    if isinstance(said, Mapping):
        said = next((value for key, value in said.items() if f".{module}".endswith(f".{key}")), None)
    if not isinstance(said, list) or not all(type(each) is int and each >= 0 for each in said) or rows.ndim != 2:
        raise LoadError(f"the adapter {visible(name)} has rows of {visible(module)}, and does not say of which tokens")
    if len(said) != len(rows):
        raise LoadError(f"the adapter {visible(name)} has {len(rows)} rows of {visible(module)} for {len(said)} tokens")
    return tuple(said)
