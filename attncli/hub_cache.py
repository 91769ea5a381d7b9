"""The hub's local cache, found and laid out as huggingface_hub does it; nothing is imported or downloaded.

Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

from __future__ import annotations

import os
from pathlib import Path

from attncli.files import MOST_SETTINGS, read_file


def cache() -> Path:
    """Return the folder of the local cache."""
    environment = os.environ.get
    home = environment("HF_HOME") or os.path.join(environment("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    folder = environment("HF_HUB_CACHE") or environment("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(folder)).expanduser()


def repository(name: str) -> Path:
    """Return the folder of a model in the cache, whether it is there or not."""
    return cache() / ("models--" + name.replace("/", "--"))


def snapshot(name: str, revision: str) -> Path:
    """Return the folder of a model's files at a branch, a tag or a commit, whether it is there or not."""
    folder = repository(name)
    try:
        commit = read_file(folder / "refs" / revision, MOST_SETTINGS).decode().strip()
    except (OSError, ValueError):
        commit = revision
    return folder / "snapshots" / commit


def is_known(folder: Path, name: str) -> bool:
    """Return whether a file is in a snapshot's folder, or was found not to be on the hub."""
    return os.path.exists(folder / name) or os.path.exists(folder.parents[1] / ".no_exist" / folder.name / name)
