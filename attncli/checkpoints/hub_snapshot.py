"""The small files of a checkpoint on the hub, for runs that fetch of its weights only what they read."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.checkpoints.folder import check_folder, opened, repository, snapshot, split_name
from attncli.checkpoints.hub import Download, check_answers, explained, hush_hub, is_offline, not_found
from attncli.checkpoints.nested import is_adapter
from attncli.checkpoints.tensors.cache import Notes
from attncli.checkpoints.tensors.safetensors_store import has_shards
from attncli.checkpoints.weight_checks import check_path
from attncli.errors import not_installed

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions

_log = logging.getLogger(__name__)

_CONFIG = "config.json"
# What tells how a model is made, how it is stored and how it reads; whoever needs more of a tokenizer asks for it.
_SMALL = re.compile(
    r"(config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|model\.safetensors\.index)\.json"
    r"|chat_template\.jinja"
    r"|([a-z_]*_)?quant[a-z]*(_[a-z_]*)?\.json|smash_config\.json"
)


def checkout(name: str, options: LoadOptions) -> Path | None:
    """Return the folder of a checkpoint whose weights are on the hub and can be fetched in parts; None for any other.

    The folder is in the hub's local cache, and has the small files. What a branch or tag names is not asked again while
    the cache knows it.

    Raises:
        LoadError: there is no such repository, it cannot be reached, or its files are not safe to read.
    """
    check_path(name)
    if options.whole_files or os.path.exists(name) or split_name(name)[1] or not_installed("huggingface_hub"):
        return None
    folder = snapshot(name, options.revision or "main")
    if has_shards(folder) or is_adapter(folder):
        return None
    notes = Notes(folder)
    if not _has_all(folder, notes):
        check_there(name, "configuration", options)
        if is_offline(options):
            return None
        check_answers(name, "configuration", options)
        with explained(name, "configuration", options):
            found = _fetched(name, options.revision or "main")
        if found is None:
            return None
        folder = found
        notes = Notes(folder)
    if not notes.has_parts() or has_shards(folder):
        return None
    check_folder(folder)
    return folder


def check_there(name: str, part: str, options: LoadOptions) -> None:
    """Refuse a name that nothing on this machine has, where no hub is asked or none answers: before long imports.

    Raises:
        LoadError: it names the part that is wanted.
    """
    is_here = os.path.exists(opened(name)) or os.path.isdir(repository(split_name(name)[0]))
    if is_here or not_installed("huggingface_hub"):
        return
    if is_offline(options):
        raise not_found(name, part, options)
    check_answers(name, part, options)


def _has_all(folder: Path, notes: Notes) -> bool:
    wanted = [file for file in notes.files if _SMALL.fullmatch(file)]
    return bool(wanted) and all(os.path.isfile(folder / file) for file in wanted)


def _fetched(name: str, revision: str) -> Path | None:
    """Fetch the small files; return their folder, or None where there is no configuration, as of an adapter."""
    hush_hub()
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    _log.info("asking the hub for %s", name)
    try:
        folder = Path(hf_hub_download(name, _CONFIG, revision=revision, tqdm_class=Download)).parent
    except LocalEntryNotFoundError:  # the hub could not be reached
        raise
    except EntryNotFoundError:
        return None
    commit = folder.name
    notes = Notes(folder)
    if not notes.files:
        listed = HfApi().model_info(name, revision=commit).siblings or ()
        notes.files = frozenset(each.rfilename for each in listed)
    for file in sorted(filter(_SMALL.fullmatch, notes.files)) if notes.has_parts() else ():
        hf_hub_download(name, file, revision=commit, tqdm_class=Download)
    return folder
