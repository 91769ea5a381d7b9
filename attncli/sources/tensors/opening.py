"""Which store holds a checkpoint's tensors, by the form that its weights have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attncli.sources.tensors import Store
from attncli.sources.tensors.shards import Shards, has_shards

if TYPE_CHECKING:
    from attncli.sources.options import LoadOptions


def open_store(folder: Path, fetching: LoadOptions | None = None) -> Store:
    """Return the tensors of a checkpoint, of which nothing is read yet.

    Args:
        folder: where its files are.
        fetching: how what is not there is fetched from the hub, of which the folder is a snapshot; None: nothing is.

    Raises:
        LoadError: a file is damaged.
    """
    if fetching is not None and not fetching.whole_files and not has_shards(folder):
        from attncli.sources.tensors.cache import Notes

        if Notes(folder).has_parts:
            from attncli.sources.tensors.remote import Remote

            return Remote(folder, fetching)
    return Shards(folder)


def is_plain(store: Store) -> bool:
    """Return whether the tensors are files that any library reads as they are."""
    return isinstance(store, Shards)
