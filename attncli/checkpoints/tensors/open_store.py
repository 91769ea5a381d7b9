"""Which store holds a checkpoint's tensors, by the form that its weights have and where they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.checkpoints.folder import split_snapshot
from attncli.checkpoints.tensors import Store
from attncli.checkpoints.tensors.lora_store import LoraStore
from attncli.checkpoints.tensors.quantization import dequantized
from attncli.checkpoints.tensors.safetensors_store import Shards, has_shards
from attncli.checkpoints.weight_checks import check_beside, check_is_undone
from attncli.checkpoints.weight_formats import has_pickle

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions
    from attncli.checkpoints.tensors.lora_store import Adapter


def open_store(
    name: str,
    folder: Path,
    adapter: Adapter | None = None,
    fetching: LoadOptions | None = None,
    reads_pickles: bool = False,
) -> Store:
    """Return the tensors of a checkpoint, of which nothing is read yet.

    Args:
        name: of the checkpoint.
        folder: where its files are.
        adapter: what changes them.
        fetching: how what is not there is fetched from the hub, of which the folder is a snapshot; None: nothing is.
        reads_pickles: whether pickles are read where there are no other weights; it takes torch.

    Raises:
        LoadError: a file is damaged or cannot be opened, the weights are quantized in a way that is not undone, or the
            adapter was made for another model.
    """
    check_beside(name, folder)
    stored: Store = Shards(folder)
    if fetching is not None and is_fetched(folder, fetching):
        from attncli.checkpoints.tensors.remote import Remote

        stored = Remote(folder, fetching)
    elif reads_pickles and not has_shards(folder) and has_pickle(folder):
        from attncli.checkpoints.tensors.pickles import Pickles

        stored = Pickles(folder)
    store = dequantized(stored, folder)
    check_is_undone(name, folder, store)
    return store if adapter is None else LoraStore(store, adapter)


def is_fetched(folder: Path, fetching: LoadOptions | None) -> bool:
    """Return whether the tensors of a snapshot are fetched one by one; see `open_store`."""
    if fetching is None or fetching.whole_files or has_shards(folder):
        return False
    from attncli.checkpoints.tensors.cache import Notes

    snapshot, start = split_snapshot(folder)
    return Notes(snapshot).has_parts(start)


def is_plain(store: Store) -> bool:
    """Return whether the tensors are files that any library reads as they are."""
    return isinstance(store, Shards)


def rows_of_vocabulary(store: Store, rows: Any) -> Any:
    """Return how many embeddings a model has, whose configuration says how many, with the tokens of an adapter."""
    return store.resized.get(rows, rows) if isinstance(store, LoraStore) and type(rows) is int else rows
