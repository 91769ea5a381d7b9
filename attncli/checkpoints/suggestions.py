"""Checkpoints on this machine: those of the hub's local cache, and what a mistyped name may have meant."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path

from attncli.checkpoints.checkpoint_folder import ADAPTER, CONFIG, DEMO, MOST_ENTRIES, hub_cache
from attncli.text import visible

CONFIGS = (CONFIG, ADAPTER)
_TELLING = (*CONFIGS, "modules.json", "model_index.json")
_ALIKE = 0.6  # of 1, as difflib takes it: one letter in three may be another
_SHORTEST = 3  # letters that a name has to hold, for the longer one to be meant by it


def cached_models() -> list[str]:
    """Return the names of the models and adapters in the hub's local cache."""
    configs = sorted(path for file in CONFIGS for path in hub_cache().glob(f"models--*/snapshots/*/{file}"))
    folders = dict.fromkeys(config.parents[2].name for config in configs)
    return [name.removeprefix("models--").replace("--", "/", 1) for name in folders]


def nearby(name: str) -> str:
    """Return `; did you mean 'x', a folder here, or 'y', in the local cache?`, and nothing where none is alike.

    Names are alike by their last part, whatever the case: `minilm` is held by all-MiniLM-L6-v2.
    """
    folder = os.path.dirname(name)
    near = {
        "in the box": _nearest(name, [DEMO]),
        "a folder here": _nearest(name, (os.path.join(folder, one) for one in _checkpoints(folder or "."))),
        "in the local cache": _nearest(name, cached_models()),
    }
    words = [f"'{visible(one)}', {where}" for where, one in near.items() if one and one != name]
    return f"; did you mean {', or '.join(words)}?" if words else ""


def _checkpoints(folder: str) -> Iterator[str]:
    """Yield the names of the checkpoints in a folder."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, MOST_ENTRIES))
    except (OSError, ValueError):
        return
    for name in names:
        path = Path(folder, name)
        if name.lower().endswith(".gguf") or any((path / file).is_file() for file in _TELLING):
            yield name


def _nearest(name: str, others: Iterable[str]) -> str | None:
    letters = _letters(name)
    alike = {other: _likeness(letters, _letters(other)) for other in others}
    best = max(alike, key=alike.__getitem__, default="")
    return best if best and alike[best] >= _ALIKE else None


def _letters(name: str) -> str:
    """Return the letters and digits of the last part of a name."""
    return "".join(each for each in name.rstrip("/").rpartition("/")[2].lower() if each.isalnum())


def _likeness(one: str, other: str) -> float:
    """Return how alike two names are, from 0 to 1: the share of letters in common, more where one holds the other."""
    share = SequenceMatcher(None, one, other).ratio()
    holds = min(len(one), len(other)) >= _SHORTEST and (one in other or other in one)
    return _ALIKE + (1 - _ALIKE) * share if holds else share
