"""Checkpoints that transformers runs: any text model that it loads, with the attention it really computed.

Importing this package imports neither torch nor transformers; `engine` does, and so do the modules that it uses.
Architectures that are refused by their name, with the reason, are refused here, before that.
"""

from __future__ import annotations

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
    """Announce the import of torch and transformers, which takes seconds, after refusing checkpoints by their names.

    Args:
        what: the subject of the error's sentence.
        snapshot: the checkpoint that they are to run.

    Raises:
        LoadError: they cannot be imported, or the checkpoint is in a form that they do not read.
        NotExposedError: its architecture is refused.
    """
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


_NO_WEIGHTS = "has no weight for each pair of tokens: it"
_NO_TOKENS = "has queries and keys that are no tokens: it"
_READS = "reads {} into its text part; give a text model"
_PICTURE, _SOUND = _READS.format("a picture"), _READS.format("a sound")
_REFUSED = {
    "blt": "is several models in one, of bytes and groups of bytes; give a text model",
    "bridgetower": _PICTURE,
    "canine": f"{_NO_TOKENS} hashes characters, and its deep layers attend to groups of four",
    "cohere_asr": _SOUND,
    "cpmant": f"{_NO_TOKENS} puts prompts of its own before each text",
    "deepseek_v4": f"{_NO_TOKENS} attends to blocks of tokens that a compressor made, behind the tokens",
    "diffusion_gemma": _READS.format("a canvas of noise"),
    "evolla": _READS.format("a protein"),
    "funnel": f"{_NO_TOKENS} pools its queries from block to block",
    "idefics": _PICTURE,
    **dict.fromkeys(("led", "longformer"), f"{_NO_WEIGHTS} computes a band of scores, in blocks"),
    "longt5": f"{_NO_TOKENS} attends to blocks of neighbours and to sums of blocks",
    "moonshine_streaming": _SOUND,
    "mra": f"{_NO_WEIGHTS} approximates attention by the means of blocks, and looks at single tokens in some alone",
    "pegasus_x": f"{_NO_TOKENS} attends to blocks, and to global positions of its own",
    "pi0": _READS.format("a picture and a robot's state"),
    "pix2struct": _PICTURE,
    "pp_formulanet": _PICTURE,
    "prophetnet": f"{_NO_WEIGHTS} predicts several tokens at once, in streams that attend to each other",
    "reformer": f"{_NO_WEIGHTS} hashes tokens into buckets, in rounds whose outputs are mixed",
    "speech-encoder-decoder": _SOUND,
    "t5gemma2": "attends to both of its texts in one softmax; give a text model",
    "udop": _PICTURE,
    "vilt": _PICTURE,
    "voxtral_realtime": _SOUND,
    "xlm-prophetnet": f"{_NO_WEIGHTS} predicts several tokens at once, in streams that attend to each other",
    "yoso": f"{_NO_WEIGHTS} estimates attention by how often hashes of queries and keys collide, without a softmax",
}


def check_supported(name: str, config: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose architecture is refused, or that of its encoder or decoder.

    Args:
        name: of the checkpoint.
        config: its config.json.

    Raises:
        NotExposedError: it is refused.
    """
    for part in (config, config.get("encoder"), config.get("decoder")):
        if not isinstance(part, Mapping):
            continue
        kind = part.get("model_type")
        if isinstance(kind, str) and kind in _REFUSED:
            raise NotExposedError(f"{visible(name)} ({kind}) {_REFUSED[kind]}")
