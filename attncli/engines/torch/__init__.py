"""Checkpoints that transformers runs: any text model that it loads, with the attention it really computed.

Importing this package imports neither torch nor transformers; `checkpoint` does, and so do the modules that it takes.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from attncli.engines.torch.refused import check_supported
from attncli.errors import LoadError, require
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.checkpoints.snapshot import Snapshot

_log = logging.getLogger(__name__)


def announce_import(what: str, snapshot: Snapshot) -> None:
    """Say that torch and transformers are imported now, which takes seconds; what is refused by name is refused before.

    Args:
        what: what needs them, the subject of the error's sentence.
        snapshot: the checkpoint that they are to run.

    Raises:
        LoadError: they cannot be imported, or the checkpoint is in a form that they do not read.
        NotExposedError: its architecture is refused.
    """
    if snapshot.gguf is not None:
        raise LoadError(
            f"{visible(snapshot.name)} is a GGUF file, which the native engine alone reads; this takes a checkpoint's "
            "folder"
        )
    check_supported(snapshot.name, snapshot.config)
    require(what, "torch", "transformers")
    if sys.flags.optimize > 1:
        raise LoadError("transformers needs the docstrings that python -OO leaves out; run with PYTHONOPTIMIZE=1")
    _log.info("importing torch and transformers")
    # Before any module here imports them: it tells the libraries to be quiet. It needs what they bring.
    from attncli.checkpoints.hub import silence_transformers

    silence_transformers()
