"""The files of a checkpoint: in a folder of the user's, or in the hub's local cache.

No file outside the folder is read, nor one that could keep a reader waiting for ever (a pipe, a device). The cache is
found as huggingface_hub finds it, without importing that or downloading anything:
https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from attncli.errors import LoadError
from attncli.files import MOST_SETTINGS, MOST_TEXT, Tensors, check_file, read_file
from attncli.text import visible

DEMO = "demo"  # the name of the small model in the box
_BOX = Path(__file__).with_name(DEMO)

ALONE = "model.safetensors"  # the weights of a checkpoint that is not in several files
INDEX = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
TEMPLATE = "chat_template.jinja"
TEMPLATES = "additional_chat_templates"  # the one folder of a checkpoint's in which transformers reads what it finds
# What is read whole, by endings: settings, vocabularies, templates, code.
TEXTS = (".json", ".txt", ".model", ".jinja", ".py", ".tiktoken", ".vocab")


def check_name(path: Path) -> None:
    """Refuse a path that is not UTF-8: tokenizers and safetensors open no other.

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


def opened(name: str) -> str:
    """Return the folder of the model in the box for `demo`, which hides `./demo`; any other name as it is."""
    return str(_BOX) if name == DEMO else name


def is_gguf(name: str) -> bool:
    """Return whether a path is that of a GGUF file."""
    return name.lower().endswith(".gguf") and os.path.isfile(name)


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not safe to read.

    Its name has to be UTF-8, what it holds plain files of usual sizes, and its weights have to be in it: an archive can
    hold devices and pipes, and an index of shards can name any path (GHSA-4j2p-28q2-5m79, of a library that opens it).

    Raises:
        LoadError: it is not; the sentence names the first thing that is wrong.
    """
    check_name(folder)
    try:
        named = os.listdir(folder)
        if (folder / TEMPLATES).is_dir():
            named += [os.path.join(TEMPLATES, name) for name in os.listdir(folder / TEMPLATES)]
    except OSError as error:
        raise LoadError(f"the folder {visible(str(folder))} cannot be read: {error.strerror}") from None
    _refuse_special(folder, named)  # which an index may be as well
    shards = {file for index in (INDEX, PICKLE_INDEX) for file in shards_of(folder, index).values()}
    for file in sorted(shards):
        if os.path.isabs(file) or ".." in Path(file).parts:
            raise LoadError(
                f"the weights of {visible(str(folder))} are said to be in {visible(file)}, which is not in that "
                "folder; check where the checkpoint comes from"
            )
    _refuse_special(folder, sorted(shards))


def _refuse_special(folder: Path, names: list[str]) -> None:
    for path in (folder / name for name in names):
        if not path.exists() or path.is_dir():
            continue
        try:
            check_file(path, MOST_TEXT if path.name.endswith(TEXTS) else None)
        except OSError as error:
            raise LoadError(f"{visible(str(path))} {error}; a checkpoint's folder holds files of usual sizes") from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, an empty one if there is no such file.

    Raises:
        LoadError: it is damaged.
    """
    try:
        content = json.loads(read_file(path, MOST_TEXT).decode("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{visible(str(path))} cannot be read: {visible(str(error))}") from None
    if type(content) is not dict:
        raise LoadError(f"{visible(str(path))} holds no JSON object")
    return content


def shards_of(folder: Path, index: str = INDEX) -> dict[str, str]:
    """Return the file that each tensor is in, as a path in the folder; nothing where there is no readable index."""
    try:
        listed = json.loads(read_file(folder / index, MOST_TEXT).decode("utf-8"))["weight_map"]
        return {str(name): os.fspath(file) for name, file in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def map_weights(path: Path) -> Tensors:
    """Map the tensors of a file.

    Raises:
        LoadError: it is damaged.
    """
    try:
        return Tensors(path)
    except Exception as error:  # the library raises its own, and OSError
        reason = visible(str(error).partition("\n")[0])
        raise LoadError(f"the weights {visible(str(path))} cannot be read: {reason}") from None


def home() -> Path:
    """Return the folder in which the hub's client keeps what it has on this machine."""
    environment = os.environ.get
    folder = environment("HF_HOME") or os.path.join(environment("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.path.expandvars(folder)).expanduser()


def cache() -> Path:
    """Return the folder of the local cache."""
    folder = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(folder)).expanduser() if folder else home() / "hub"


def split_name(name: str) -> tuple[str, str]:
    """Return the name of a repository on the hub, and the folder in it, if there is one: org/name/checkpoint-500."""
    parts = name.split("/")
    return "/".join(parts[:2]), "/".join(parts[2:])


def repository(name: str) -> Path:
    """Return the folder that a model has in the cache, or would have."""
    return cache() / ("models--" + name.replace("/", "--"))


def repository_name(snapshot: Path) -> str:
    """Return the name of the repository that a folder of the cache is a snapshot of."""
    return snapshot.parents[1].name.removeprefix("models--").replace("--", "/")


def split_snapshot(folder: Path) -> tuple[Path, str]:
    """Return the snapshot that a folder of the cache is in, and what leads from there to it: checkpoint-500/."""
    inside = folder.relative_to(cache()).parts[3:]
    return folder.parents[len(inside) - 1] if inside else folder, "".join(f"{part}/" for part in inside)


def snapshot(name: str, revision: str) -> Path:
    """Return the folder that a model's files at a branch, tag or commit have in the cache, or would have."""
    return snapshot_in(repository(name), revision)


def snapshot_in(folder: Path, revision: str) -> Path:
    """Return the folder that the files of a model of the cache have at a branch, tag or commit, or would have."""
    try:
        commit = read_file(folder / "refs" / revision, MOST_SETTINGS).decode().strip()
    except (OSError, ValueError):
        commit = revision
    return folder / "snapshots" / commit


def folder_of(name: str, revision: str | None) -> Path:
    """Return the folder that a name stands for: itself, or one of the hub's local cache, which need not be there."""
    return Path(name) if os.path.isdir(name) else snapshot(name, revision or "main")


def is_known(folder: Path, name: str) -> bool:
    """Return whether a snapshot has a file, or is known to lack it because the hub has none."""
    absent = folder.absolute().parents[1] / ".no_exist" / folder.name
    return os.path.exists(folder / name) or os.path.exists(absent / name)
