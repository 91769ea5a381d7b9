"""Checkpoints on this machine: those of the hub's local cache, and what a mistyped name may have meant."""

from __future__ import annotations

import os
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from attncli.checkpoints.checkpoint_folder import ADAPTER, CONFIG, DEMO, MOST_ENTRIES, hub_cache
from attncli.text import visible

_CONFIGS = (CONFIG, ADAPTER)


def cached_models() -> list[str]:
    """Return the names of the models and adapters in the hub's local cache."""
    configs = sorted(path for file in _CONFIGS for path in hub_cache().glob(f"models--*/snapshots/*/{file}"))
    folders = dict.fromkeys(config.parents[2].name for config in configs)
    return [name.removeprefix("models--").replace("--", "/", 1) for name in folders]


def nearby(name: str) -> str:
    """Return `; did you mean 'x'?` for the checkpoint of this machine with the name most alike, or nothing."""
    folder = os.path.dirname(name)
    found: list[str] = []
    with suppress(OSError, ValueError), os.scandir(folder or ".") as entries:
        found = sorted(os.path.join(folder, entry.name) for entry in islice(entries, MOST_ENTRIES))
    here = [one for one in found if one.endswith(".gguf") or any(Path(one, file).is_file() for file in _CONFIGS)]
    # A model of the hub is often called by the last part of its name.
    by_end = {model.rpartition("/")[2].lower(): model for model in cached_models()}
    table = by_end | {each.lower(): each for each in (DEMO, *here, *by_end.values())}
    near = [table[each] for each in get_close_matches(name.lower(), table, n=1)]
    return f"; did you mean '{visible(near[0])}'?" if near and near[0] != name else ""
