"""Which store holds a checkpoint's tensors, by the form that its weights have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.sources.tensors import Store
from attncli.sources.tensors.adapted import Adapted
from attncli.sources.tensors.quantized import dequantized
from attncli.sources.tensors.shards import Shards

if TYPE_CHECKING:
    from attncli.sources.adapter import Adapter


def open_store(folder: Path, adapter: Adapter | None = None) -> Store:
    """Return the tensors of a checkpoint, of which nothing is read yet.

    Args:
        folder: where its files are.
        adapter: what changes them.

    Raises:
        LoadError: a file is damaged, the weights are quantized in a way that is not undone, or the adapter was made for
            another model.
    """
    store = dequantized(Shards(folder), folder)
    return store if adapter is None else Adapted(store, adapter)


def is_plain(store: Store) -> bool:
    """Return whether the tensors are files that any library reads as they are."""
    return isinstance(store, Shards)


def rows_of_vocabulary(store: Store, rows: Any) -> Any:
    """Return how many embeddings a model has, whose configuration says how many, with the tokens of an adapter."""
    return store.resized.get(rows, rows) if isinstance(store, Adapted) and type(rows) is int else rows
