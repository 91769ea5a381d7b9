"""Which store holds a checkpoint's tensors, by the form that its weights have."""

from __future__ import annotations

from pathlib import Path

from attncli.sources.tensors import Store
from attncli.sources.tensors.shards import Shards


def open_store(folder: Path) -> Store:
    """Return the tensors of a checkpoint, of which nothing is read yet.

    Args:
        folder: where its files are.

    Raises:
        LoadError: a file is damaged.
    """
    return Shards(folder)


def is_plain(store: Store) -> bool:
    """Return whether the tensors are files that any library reads as they are."""
    return isinstance(store, Shards)
