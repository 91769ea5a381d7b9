"""Checkpoints that transformers runs: any text model that it loads, with the attention it really computed.

Importing this package imports neither torch nor transformers; `checkpoint` does, and so do the modules that it takes.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from attncli.checkpoints.folder import folder_of, opened, read_json
from attncli.engines.torch.refused import check_supported
from attncli.errors import LoadError, require

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions

_log = logging.getLogger(__name__)


def announce_import(what: str, model: str, options: LoadOptions) -> None:
    """Say that torch and transformers are imported now, which takes seconds; a name that is nowhere is refused before.

    Args:
        what: what needs them, the subject of the error's sentence.
        model: folder or hub name of the checkpoint that they are to run.
        options: how it is loaded.

    Raises:
        LoadError: they cannot be imported, or there is no such checkpoint.
        NotExposedError: its architecture is refused.
    """
    config = folder_of(opened(model), options.revision) / "config.json"
    if config.is_file():  # which is sooner read than they are imported
        check_supported(model, read_json(config))
    require(what, "torch", "transformers")
    from attncli.checkpoints.hub_snapshot import check_there

    check_there(model, "configuration", options)
    if sys.flags.optimize > 1:
        raise LoadError("transformers needs the docstrings that python -OO leaves out; run with PYTHONOPTIMIZE=1")
    _log.info("importing torch and transformers")
    # Before any module here imports them: it tells the libraries to be quiet. It needs what they bring.
    from attncli.checkpoints.hub import hush

    hush()
