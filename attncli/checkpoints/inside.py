"""Checkpoints in the folders of a repository on the hub, which are opened as the same folders on a disk are.

`org/name` stands for the only checkpoint in such a repository, `org/name/checkpoint-500` for one of several. Its small
files are downloaded into the hub's local cache, and nothing of the other folders but what tells them apart.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from attncli.checkpoints.folder import ALONE, INDEX, TEXTS, snapshot, split_name
from attncli.checkpoints.nested import ADAPTER, DEEPEST, MOST, is_adapter, taken
from attncli.checkpoints.tensors.cache import Notes
from attncli.checkpoints.weight_formats import pickled

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions

_CONFIG = "config.json"
_TELLING = (_CONFIG, ADAPTER, "modules.json", "model_index.json")
_OF_TRAINING = ("trainer_state.json",)  # which grows with every step
_WEIGHTS = re.compile(r"(adapter_)?model(-\d+-of-\d+)?\.safetensors")
_PICKLES = re.compile(r"adapter_model\.bin|pytorch_model(-\d+-of-\d+)?\.bin")


def found_inside(name: str, options: LoadOptions, *, for_tokenizer: bool) -> tuple[str, Path] | None:
    """Return what a view shows of the checkpoint in a repository's folder, and that folder in the hub's local cache.

    Args:
        name: of the repository, with the folder or without.
        options: `revision` and `allow_pickle` say which files.
        for_tokenizer: whether a tokenizer is enough.

    Returns:
        None where the repository is a checkpoint itself, and where the cache has not all of it.

    Raises:
        LoadError: there are several, or the only weights are pickles, which are not allowed.
    """
    repository, within = split_name(name)
    root = snapshot(repository, options.revision or "main")
    files = Notes(root).files
    telling = _telling(files, within)
    if not telling or not _has_all(root, telling):
        return None
    folder = Path(taken(str(root / within), name))
    if not is_adapter(folder) and not (folder / _CONFIG).is_file():
        return None
    inside = folder.relative_to(root).as_posix()
    if not _has_all(root, _wanted(f"{repository}/{inside}", files, inside, options, for_tokenizer)):
        return None
    return f"{repository}/{inside}", folder


def download_inside(name: str, options: LoadOptions, *, for_tokenizer: bool) -> bool:
    """Download the checkpoint in a repository's folder; return whether there is one; see `found_inside`.

    Raises:
        LoadError: see `found_inside`, or some of its files could not be had.
    """
    from huggingface_hub import HfApi, snapshot_download

    from attncli.checkpoints.hub import Download, explained, is_local

    repository, within = split_name(name)
    revision = options.revision or "main"
    is_one_itself = not within and os.path.isfile(snapshot(repository, revision) / _CONFIG)
    if is_one_itself or is_local(name, options):
        return False
    with explained(name, "configuration", options):
        try:
            listed = HfApi().model_info(repository, revision=revision).siblings or ()
        except Exception:  # of the client
            if within:
                raise
            return False  # it was asked for before, and what was wrong is known
    files = frozenset(each.rfilename for each in listed)

    def fetch(some: Collection[str]) -> Path:
        exactly = [glob.escape(file) for file in some]
        with explained(name, "model", options):
            return Path(snapshot_download(repository, revision=revision, allow_patterns=exactly, tqdm_class=Download))

    telling = _telling(files, within)
    if not telling:
        return False
    root = fetch(telling)
    Notes(root).files = files
    inside = Path(taken(str(root / within), name)).relative_to(root).as_posix()
    fetch(_wanted(f"{repository}/{inside}", files, inside, options, for_tokenizer))
    return found_inside(name, options, for_tokenizer=for_tokenizer) is not None


def _has_all(root: Path, files: Collection[str]) -> bool:
    return all(os.path.isfile(root / file) for file in files)


def _telling(files: frozenset[str], within: str) -> list[str]:
    """Return the files that tell where the checkpoints are; none where there is one without looking into folders."""
    if not within and not files.isdisjoint((_CONFIG, ADAPTER)):
        return []
    start = within + "/" if within else ""
    below = [PurePosixPath(file) for file in files if file.startswith(start)]
    depth = len(PurePosixPath(within).parts) + DEEPEST
    return sorted(str(path) for path in below if path.name in _TELLING and len(path.parts) <= depth + 1)[:MOST]


def _wanted(name: str, files: Collection[str], inside: str, options: LoadOptions, for_tokenizer: bool) -> list[str]:
    """Return the files of a checkpoint in a folder, and of the tokenizer beside it, that are downloaded.

    Tensors in safetensors files are not: they are fetched as they are read; see `attncli.checkpoints.tensors.remote`.

    Raises:
        LoadError: its only weights are pickles, which are not allowed.
    """
    folder = PurePosixPath(inside)
    places = {folder, folder.parent, folder.with_name(folder.name.replace("text_encoder", "tokenizer"))}
    paths = sorted(map(PurePosixPath, files))
    small = [path for path in paths if path.parent in places and path.name.endswith(TEXTS)]
    wanted = [str(path) for path in small if path.name not in _OF_TRAINING]
    if for_tokenizer:
        return wanted
    own = {path.name: str(path) for path in paths if path.parent == folder}
    if not options.whole_files and ADAPTER not in own and (ALONE in own or INDEX in own):
        return wanted
    weights = [path for file, path in own.items() if _WEIGHTS.fullmatch(file)]
    pickles = [path for file, path in own.items() if _PICKLES.fullmatch(file)]
    if pickles and not weights and not options.allow_pickle:
        raise pickled(name)
    return wanted + (weights or pickles)
