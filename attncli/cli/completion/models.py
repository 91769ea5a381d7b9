"""Checkpoints on this machine: those of the hub's local cache, and what a config.json says of layers and heads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from attncli.files import MOST_SETTINGS, read_file
from attncli.sources.folder import cache, repository, snapshot

# How architectures call the same numbers.
_LAYERS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_encoder_layers",
    "num_decoder_layers", "layers_block_type",
)  # fmt: skip
_HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "encoder_attention_heads",
    "decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads",
)  # fmt: skip
_NESTED = ("text_config", "encoder", "decoder")
_MOST = 10_000  # no model has as many layers or heads


class Sizes(NamedTuple):
    """How many layers and heads a model has; 0 is unknown."""

    layers: int
    heads: int


def cached_models() -> list[str]:
    """Return the names of the models in the local cache, sorted; those without a config.json are left out."""
    names = []
    for folder in sorted(_folders(cache())):
        kind, _, name = folder.name.partition("--")
        if kind == "models" and name.isprintable() and any(_configs(folder)):
            names.append(name.replace("--", "/", 1))
    return names


def cached_revisions(name: str) -> list[str]:
    """Return the branches and tags of a model that the local cache knows."""
    refs = repository(name) / "refs"
    found = sorted(path.relative_to(refs).as_posix() for path in refs.rglob("*") if path.is_file())
    return [name for name in found if name.isprintable()]


def sizes(name: str, revision: str) -> Sizes:
    """Return how many layers and heads a checkpoint has, from its config.json.

    Args:
        name: a folder, or a name in the local cache.
        revision: which one of the cache.
    """
    folder = Path(name).expanduser()
    config = _read((folder if folder.is_dir() else snapshot(name, revision)) / "config.json")
    return Sizes(_largest(config, _LAYERS), _largest(config, _HEADS))


def _configs(repository: Path) -> Iterable[Path]:
    configs = (folder / "config.json" for folder in _folders(repository / "snapshots"))
    return (config for config in configs if config.is_file())


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []


def _read(config: Path) -> dict[str, Any]:
    try:
        read = json.loads(read_file(config, MOST_SETTINGS))
    except (OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _largest(config: dict[str, Any], names: Iterable[str]) -> int:
    """Return the largest of what these names count, in the configuration and those nested in it for text."""
    parts = [config, *(config[name] for name in _NESTED if isinstance(config.get(name), dict))]
    values = [part.get(name) for part in parts for name in names]
    numbers = [len(value) if isinstance(value, list) else value for value in values]
    return max((number for number in numbers if isinstance(number, int) and 0 < number <= _MOST), default=0)
