"""Checkpoints in the folders of a folder: of a training, sentence-transformers, diffusers, the hub's cache."""

from __future__ import annotations

import json
import os
import re
from itertools import islice
from pathlib import Path

from attncli.checkpoints.folder import read_json, snapshot_in
from attncli.errors import LoadError
from attncli.files import MOST_SETTINGS, read_file
from attncli.text import visible

ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_PICKLE = "adapter_model.bin"

_OF_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model",
    "sentencepiece.bpe.model", "tekken.json",
)  # fmt: skip
_OF_TRAINING = re.compile(r"checkpoint-\d+")
_REVISION = re.compile(r"\w[\w-]*(?:[./]\w[\w-]*)*")  # which cannot lead out of the cache
DEEPEST = 3  # models--org--name/snapshots/COMMIT/0_Transformer
MOST = 1000  # entries of a folder that are looked into
_LISTED = 8  # checkpoints that a sentence names


def is_adapter(folder: Path) -> bool:
    """Return whether a folder has an adapter's configuration."""
    return (folder / ADAPTER).is_file()


def has_adapter_weights(folder: Path) -> bool:
    """Return whether a folder has an adapter's weights."""
    return (folder / ADAPTER_WEIGHTS).is_file() or (folder / ADAPTER_PICKLE).is_file()


def base_of(folder: Path) -> tuple[str, str]:
    """Return the folder or the name on the hub of the model under an adapter, as the adapter says, and its revision.

    A path may be relative to the folder that the program runs in, as for peft, or to the adapter's. The revision is
    empty where none is named.

    Raises:
        LoadError: it names none, or its file is damaged.
    """
    said = read_json(folder / ADAPTER)
    base, revision = said.get("base_model_name_or_path"), said.get("revision")
    if not isinstance(base, str) or not base or "\0" in base:
        raise LoadError(f"{ADAPTER} of {visible(str(folder))} names no base model; --base names it")
    if not os.path.isdir(base) and os.path.isdir(folder / base):
        base = os.path.normpath(folder / base)
    if os.path.isdir(base) or not isinstance(revision, str) or not _REVISION.fullmatch(revision):
        revision = ""
    return base, revision


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder has the configuration of a model with a type, or of an adapter.

    A pooling module of sentence-transformers has a config.json as well, and so has each part of a diffusers pipeline.
    """
    if is_adapter(folder):
        return True
    try:
        return "model_type" in read_json(folder / "config.json")
    except LoadError:
        return True  # that it is damaged is to be said, not hidden


def inner(folder: Path) -> list[Path]:
    """Return the folders that hold the checkpoints of one that is none itself, in the order of their numbers."""
    if (folder / "modules.json").is_file():
        found = _modules(folder)
    elif (folder / "model_index.json").is_file():
        found = [each for each in _subfolders(folder) if each.name.startswith("text_encoder")]
    elif (folder / "snapshots").is_dir():
        current = snapshot_in(folder, "main")
        found = [current] if current.is_dir() else _subfolders(folder / "snapshots")
    elif folder.name == "snapshots" and (folder.parent / "refs").is_dir():
        return inner(folder.parent)
    else:
        found = [each for each in _subfolders(folder) if is_checkpoint(each)]
    return sorted(found, key=_in_order)


def taken(folder: str, name: str | None = None) -> str:
    """Return the folder itself if it has a checkpoint, or the only one in it that does; itself if there is none.

    Args:
        folder: where to look.
        name: of it on the hub, if it is a repository's.

    Raises:
        LoadError: there are several.
    """
    path = folder
    for _ in range(DEEPEST):
        if os.path.isfile(os.path.join(path, "config.json")) or is_adapter(Path(path)):
            return path
        found = inner(Path(path))
        if len(found) > 1:
            names = [visible(each.name) for each in found]
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            what = f"the folder {visible(path)}" if name is None else f"{visible(name)}, on the hub,"
            one = "one of them" if name is None else f"one of them, as in {visible(name)}/{names[0]}"
            listed = ", ".join(names[:_LISTED])
            raise LoadError(f"{what} holds {len(names)} checkpoints: {listed}{more}; give {one}")
        if not found:
            break
        path = str(found[0])
    return path if os.path.isfile(os.path.join(path, "config.json")) or is_adapter(Path(path)) else folder


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has a file of a tokenizer."""
    return any(os.path.isfile(folder / name) for name in _OF_TOKENIZER)


def tokenizer_beside(folder: Path) -> Path | None:
    """Return the folder of a tokenizer for a checkpoint without one; None if there is none.

    That of a diffusers text encoder stands beside it. That of a checkpoint-500 is where the training has put the rest.
    """
    folder = folder.absolute()
    if _OF_TRAINING.fullmatch(folder.name) and has_tokenizer(folder.parent):
        return folder.parent
    if folder.name.startswith("text_encoder") and (folder.parent / "model_index.json").is_file():
        beside = folder.with_name(folder.name.replace("text_encoder", "tokenizer"))
        return beside if beside.is_dir() else None
    return None


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in islice(entries, MOST) if entry.is_dir()]
    except OSError:
        return []


def _modules(folder: Path) -> list[Path]:
    """Return the folders of the modules of sentence-transformers that are models."""
    try:
        listed = json.loads(read_file(folder / "modules.json", MOST_SETTINGS))
        names = [str(each["path"]) for each in listed if isinstance(each, dict) and each.get("path")]
    except (OSError, ValueError, TypeError, RecursionError):
        return []
    inside = [folder / name for name in names if not os.path.isabs(name) and ".." not in Path(name).parts]
    return [each for each in inside if each.is_dir() and is_checkpoint(each)]


def _in_order(path: Path) -> list[tuple[int, str]]:
    """Return what sorts checkpoint-500 before checkpoint-1000."""
    return [(int(part) if part.isdecimal() and len(part) < 20 else -1, part) for part in re.split(r"(\d+)", path.name)]
