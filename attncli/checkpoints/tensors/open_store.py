"""Opens the store of a checkpoint's tensors that fits the form and the place of its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.checkpoints.checkpoint_folder import PICKLE, PICKLE_INDEX, WEIGHTS, WEIGHTS_INDEX
from attncli.checkpoints.tensors.safetensors_store import Shards
from attncli.checkpoints.weight_checks import quantization_of
from attncli.errors import LoadError
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.checkpoints.snapshot import Snapshot
    from attncli.checkpoints.tensors import Store


def open_store(snapshot: Snapshot) -> Store:
    """Open the tensors of a checkpoint without reading them; a codec is imported where one is needed.

    Raises:
        LoadError: a file is damaged or cannot be opened, the weights are quantized in a way that is not undone, or the
            adapter was made for another model.
    """
    store = _as_stored(snapshot)
    if (config := quantization_of(snapshot.config)) is not None:
        from attncli.checkpoints.tensors.quantization import dequantized

        store = dequantized(store, snapshot, config)
    if snapshot.adapter is None:
        return store
    from attncli.checkpoints.tensors.lora_store import with_adapter

    return with_adapter(store, snapshot.name, snapshot.adapter)


def _as_stored(snapshot: Snapshot) -> Store:
    remote, files = snapshot.remote, snapshot.files
    if remote is not None and not remote.sizes.keys().isdisjoint((WEIGHTS, WEIGHTS_INDEX)):
        from attncli.checkpoints.tensors.hub_store import HubStore

        return HubStore(snapshot.model_name, files, remote)
    if not snapshot.is_pickled:
        if WEIGHTS not in files and WEIGHTS_INDEX not in files:
            raise LoadError(
                f"{visible(snapshot.model_name)} has a config.json but no weights{files.summary}: expected {WEIGHTS}, "
                f"or {WEIGHTS_INDEX} and its files"
            )
        return Shards(files)
    names = {PICKLE} if PICKLE in (remote or files).sizes else set(files.shards(PICKLE_INDEX).values())
    if remote is not None:
        remote.fetch(names, "model")
    from attncli.checkpoints.tensors.pickles import Pickles

    return Pickles(files.path / name for name in sorted(names))


def is_plain(snapshot: Snapshot, store: Store) -> bool:
    """Return whether the weights are plain files on this machine, which any library can read."""
    is_here = snapshot.remote is None or snapshot.is_pickled
    return is_here and snapshot.adapter is None and not store.form
