"""The files of a checkpoint's folder: whatever else it holds, no reader leaves it, or waits for ever."""

from __future__ import annotations

import json
import os
from pathlib import Path

from attncli.errors import LoadError
from attncli.tokens import visible

INDEX = "model.safetensors.index.json"
_INDEX_OF_PICKLES = "pytorch_model.bin.index.json"


def check_name(path: Path) -> None:
    """Refuse a path that the libraries which open it cannot be told: tokenizers and safetensors take UTF-8 alone.

    Raises:
        LoadError: it is not UTF-8.
    """
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise LoadError(
            f"the name {visible(str(path))} is not UTF-8, and tokenizers and safetensors open no other; rename it, or "
            "give a link to it"
        ) from None


def check_folder(folder: Path) -> None:
    """Refuse a folder of no UTF-8 name, in which something is no file, or whose weights are said to be elsewhere.

    A download makes neither of the last two, but an archive can, and an index of shards can name any path:
    GHSA-4j2p-28q2-5m79, of a library that opens what it is told to.

    Raises:
        LoadError: with the name of the first.
    """
    check_name(folder)
    try:
        named = os.listdir(folder)
    except OSError as error:
        raise LoadError(f"the folder {visible(str(folder))} cannot be read: {error.strerror}") from None
    _refuse_special(folder, named)  # which an index may be as well
    shards = {file for index in (INDEX, _INDEX_OF_PICKLES) for file in shards_of(folder, index).values()}
    for file in sorted(shards):
        if os.path.isabs(file) or ".." in Path(file).parts:
            raise LoadError(
                f"the weights of {visible(str(folder))} are said to be in {visible(file)}, which is not in that "
                "folder; check where the checkpoint comes from"
            )
    _refuse_special(folder, sorted(shards))


def _refuse_special(folder: Path, names: list[str]) -> None:
    for path in (folder / name for name in names):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise LoadError(f"{visible(str(path))} is a pipe or a device; a checkpoint's folder holds files")


def shards_of(folder: Path, index: str = INDEX) -> dict[str, str]:
    """Return the file that each tensor is in, by its path in the folder; nothing where no index says so."""
    try:
        listed = json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"]
        return {str(name): os.fspath(file) for name, file in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
