"""Forms of weights that are not read: what is said of a folder that has nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from attncli.checkpoints.folder import ALONE, INDEX
from attncli.errors import LoadError
from attncli.text import visible

# By the names of files and folders; the first that is there names the form.
_FORMS = (
    (r"consolidated.*\.safetensors$", "in Mistral's own form", "the files of the same model for transformers"),
    (r"consolidated.*\.pth$", "in Meta's own form", "the files of the same model for transformers"),
    (r"\.distcp$|^pytorch_model_fsdp_\d+$|^__\d+_\d+\.distcp$", "in the pieces of FSDP", "what merge-weights makes"),
    (r"^zero_to_fp32\.py$|^global_step\d+$", "in the pieces of DeepSpeed", "what its zero_to_fp32.py makes"),
    (r"\.onnx$|^onnx$", "for ONNX", "the model that it was exported from"),
    (r"\.h5$|^saved_model\.pb$", "for TensorFlow", "what transformers 4 saves of it with from_tf=True"),
    (r"\.msgpack$", "for Flax", "what transformers 4 saves of it with from_flax=True"),
    (r"^openvino_.*\.(xml|bin)$", "for OpenVINO", "the model that it was exported from"),
    (r"\.ot$", "for Rust", "the model that it was exported from"),
    (r"\.tflite$|\.mlpackage$|\.mlmodel$", "for a telephone", "the model that it was exported from"),
    (r"^model\..+\.safetensors$", "of a variant", "a copy in which it is called model.safetensors"),
)
_PICKLE = re.compile(r"pytorch_model.*\.bin(\.index\.json)?$")


def has_pickle(folder: Path, listed: Iterable[str] = ()) -> bool:
    """Return whether a folder has weights in pickles, or the hub has them among the files that it has listed."""
    return any(map(_PICKLE.match, [*_names(folder), *listed]))


def pickled(name: str) -> LoadError:
    """Return the error of a checkpoint whose only weights are pickles, which are not allowed."""
    return LoadError(
        f"{visible(name)} has its weights in a pickle, which may hold code; --allow-pickle reads the tensors in it and "
        "nothing else, or save it again as safetensors"
    )


def check_form(name: str, folder: Path) -> None:
    """Refuse a folder whose weights are in a form that nobody here reads, or that has none.

    Args:
        name: of the checkpoint.
        folder: where its files are.

    Raises:
        LoadError: it has no safetensors file, and no pickle.
    """
    if (folder / ALONE).is_file() or (folder / INDEX).is_file() or has_pickle(folder):
        return
    if said := other_form(folder):
        raise LoadError(f"the weights of {visible(name)} are {said}")
    raise LoadError(f"{visible(name)} has a config.json and no weights: expected {ALONE}, or {INDEX} and its files")


def other_form(folder: Path) -> str | None:
    """Return in which form a folder has weights that are not read, and what to give instead; None if it has none."""
    names = _names(folder)
    for pattern, form, advice in _FORMS:
        found = next(filter(re.compile(pattern).search, names), None)
        if found is not None:
            return f"{form} alone ({visible(found)}), which is not read; give {advice}"
    return None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
