"""Why a checkpoint's tokenizer cannot be loaded: which of its files are there, and which packages read them.

Transformers tries one reader after the other and says what the last of them missed, which may not be the true cause.
"""

from __future__ import annotations

import re
from pathlib import Path

from attncli.checkpoints.hub import BRINGS_CODE
from attncli.errors import LoadError, require
from attncli.text import visible

# Where the common classes keep their vocabulary, and what the files of all of them end in.
_LOOKED_FOR = (
    "tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "tiktoken.model",
    "vocab.json", "vocab.txt",
)  # fmt: skip
_VOCABULARIES = (*_LOOKED_FOR, ".model", ".spm", ".tiktoken", ".tokenizer", ".codes", "dict.txt")
_READ_BY_PYTHON = ("sacremoses",)  # what classes in pure Python import, and name when it is missing
_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")  # a line of such a file: a piece's bytes in base64, its rank
_LONGEST = 4096  # bytes of such a line that are looked at


def check_files(name: str, folder: Path, error: Exception) -> None:
    """Say what is missing where a tokenizer could not be loaded; return where nothing is, as far as one can see.

    Args:
        name: of the checkpoint.
        folder: that has its files.
        error: what transformers raised.

    Raises:
        LoadError: a package is missing, or there is no vocabulary.
    """
    if BRINGS_CODE in str(error):
        return
    found = sorted(path.name for path in folder.glob("*"))
    if not any(each.endswith(_VOCABULARIES) for each in found):
        raise no_tokenizer(name)
    if "tokenizer.json" in found:
        return
    for file in found:
        if packages := _readers(folder / file):
            require(f"the tokenizer of {visible(name)} is in {visible(file)}, and reading that", *packages)
    for package in _READ_BY_PYTHON:
        if package in str(error):
            require(f"the tokenizer of {visible(name)}", package)


def no_tokenizer(name: str) -> LoadError:
    """Return the error of a checkpoint that brings no vocabulary."""
    return LoadError(
        f"{visible(name)} has no tokenizer: none of {', '.join(_LOOKED_FOR)} is there; put its tokenizer.json beside "
        "config.json"
    )


def _readers(path: Path) -> tuple[str, ...]:
    """Return the packages that read a file, by the names of their imports; none for what needs no package."""
    if not path.name.endswith((".model", ".spm", ".tiktoken")):
        return ()
    with path.open("rb") as file:
        is_tiktoken = _TIKTOKEN.match(file.readline(_LONGEST))
    return ("tiktoken",) if is_tiktoken else ("sentencepiece", "google.protobuf")
