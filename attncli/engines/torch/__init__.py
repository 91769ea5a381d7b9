"""Checkpoints that transformers runs: any text model that it loads, with the attention it really computed.

Importing this package imports neither torch nor transformers; `engine` does, and so do the modules that it uses.
Architectures that read more than text are refused by their name here, before that.
"""

from __future__ import annotations

import gc
import importlib
import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attncli.errors import LoadError, NotExposedError, require
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.checkpoints.snapshot import Snapshot

_log = logging.getLogger(__name__)


def announce_import(what: str, snapshot: Snapshot) -> None:
    """Announce the import of torch and transformers, which takes seconds; LoadError if it, or the model, fails."""
    if snapshot.gguf is not None:
        raise LoadError(
            f"{visible(snapshot.name)} is a GGUF file, which the native engine alone reads; give a checkpoint's folder"
        )
    check_supported(snapshot.name, snapshot.config)
    require(what, "torch", "transformers")
    if sys.flags.optimize > 1:
        raise LoadError("transformers needs the docstrings that python -OO leaves out; run with PYTHONOPTIMIZE=1")
    _log.info("importing torch and transformers")
    # Before any module here imports them: it tells the libraries to be quiet. It needs what they bring.
    from attncli.checkpoints.hub import silence_transformers

    silence_transformers()
    is_collecting = gc.isenabled()
    gc.disable()  # these imports make a million objects and no garbage
    try:
        importlib.import_module("transformers.modeling_utils")
    finally:
        gc.freeze()
        gc.unfreeze()  # all of them are old from here on, and not looked through now
        if is_collecting:
            gc.enable()


_REFUSED = {
    **dict.fromkeys(("bridgetower", "idefics", "pix2struct", "pp_formulanet", "udop", "vilt"), "reads a picture"),
    **dict.fromkeys(
        ("cohere_asr", "moonshine_streaming", "speech-encoder-decoder", "voxtral_realtime"), "reads a sound"
    ),
    "diffusion_gemma": "reads a canvas of noise",
    "evolla": "reads a protein",
    "pi0": "reads a picture and a robot's state",
    "t5gemma2": "attends to both of its texts in one softmax",
}


def check_supported(name: str, config: Mapping[str, Any]) -> None:
    """Raise NotExposedError for a checkpoint that reads more than text, or whose encoder or decoder does."""
    for part in (config, config.get("encoder"), config.get("decoder")):
        kind = part.get("model_type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and kind in _REFUSED:
            raise NotExposedError(f"{visible(name)} ({kind}) {_REFUSED[kind]}; give a text model")
