"""The graphs of a model that was exported to ONNX, and the folder of its configuration and tokenizer."""

from __future__ import annotations

import os
from pathlib import Path

from attncli.checkpoints.checkpoint_folder import CONFIG, CheckpointFolder
from attncli.errors import LoadError
from attncli.text import visible

ONNX = ".onnx"
CACHED = "use_cache_branch"  # the input by which a merged decoder chooses between its two graphs
_ENCODER = "encoder_model"
_DECODERS = ("decoder_model", "decoder_model_merged")
_WHOLE = ("model", *_DECODERS)  # the last two are of a decoder without an encoder


def graphs_of(path: Path) -> tuple[Path, ...]:
    """Return the graphs that a file or a folder names: one, or those of an encoder and of its decoder; or none.

    A folder's graphs may be in `onnx/`, as transformers.js has them. LoadError if there are several to choose from.
    """
    if not path.is_dir():
        encoder = path.with_name(path.name.replace(next(iter(_DECODERS)), _ENCODER).replace("_merged", ""))
        is_decoder = path.name.startswith(_DECODERS) and encoder.is_file()
        return (encoder, path) if is_decoder else (path,)
    for folder in (path, path / "onnx"):
        files = {file.stem: file for file in sorted(folder.glob("*" + ONNX)) if file.is_file()}
        for name in (name for name in files if name.startswith(_ENCODER)):  # `_quantized` may follow
            decoders = (decoder + name.removeprefix(_ENCODER) for decoder in _DECODERS)
            if decoder := next((decoder for decoder in decoders if decoder in files), None):
                return files[name], files[decoder]
        if whole := next((name for name in _WHOLE if name in files), None):
            return (files[whole],)
        if len(files) > 1:
            listed = ", ".join(visible(name + ONNX) for name in list(files)[:8])
            where = f"the folder {visible(str(folder))} holds {len(files)} ONNX files"
            raise LoadError(f"{where}; give one of them: {listed}")
        if files:
            return tuple(files.values())
    return ()


def folder_of(graph: Path) -> CheckpointFolder:
    """Return the folder with the configuration and the tokenizer of a graph: its own, or the one above."""
    inner = Path(os.path.abspath(graph)).parent
    texts = (CONFIG, "tokenizer.json")
    is_above = not any((inner / name).is_file() for name in texts)
    folder = inner.parent if is_above and any((inner.parent / name).is_file() for name in texts) else inner
    return CheckpointFolder(folder)
