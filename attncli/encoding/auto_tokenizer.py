"""A checkpoint's tokenizer: the one that transformers makes of its files, with the model or alone.

Many of transformers' classes build their pipeline themselves and take no more than the vocabulary from tokenizer.json
(BertTokenizer, Qwen2Tokenizer), so that no other reader of this file can be trusted to give the same tokens.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.checkpoints.folder import check_folder, folder_of
from attncli.checkpoints.hub import BRINGS_CODE, download_adapter, explained, hush, is_local, unreached
from attncli.checkpoints.inside import download_inside
from attncli.checkpoints.locating import locate
from attncli.checkpoints.weight_checks import unknown_quantization
from attncli.encoding.python_tokenizer import PythonTokenizer
from attncli.encoding.vocabulary_files import check_vocabulary, is_tiktoken
from attncli.errors import LoadError, require
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions

_COMMIT = re.compile("[0-9a-f]{40}")
_LONGEST_LINE = 4096  # bytes of the first line of a vocabulary
# Where the common classes keep their vocabulary, and what the files of all of them end in.
_LOOKED_FOR = (
    "tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "tiktoken.model",
    "vocab.json", "vocab.txt",
)  # fmt: skip
_VOCABULARIES = (*_LOOKED_FOR, ".model", ".spm", ".tiktoken", ".tokenizer", ".codes", "dict.txt")

# RoBERTa and its kin: they number their positions from the one after the padding's.
_AFTER_PADDING = frozenset({
    "camembert", "data2vec-text", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "prophetnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip


_POSITIONS = ("max_position_embeddings", "max_seq_len", "max_target_positions", "max_text_positions")


def load_tokenizer(name: str, options: LoadOptions, folder: Path | None = None, config: Any = None) -> Any:
    """Load a checkpoint's tokenizer.

    Args:
        name: folder or hub name.
        options: how to load.
        folder: where the tokenizer is, if it is in a folder of its own.
        config: of the model, for a tokenizer in a folder of its own.

    Raises:
        LoadError: it has none, or it cannot be read, or a package is missing that reads its files.
    """
    with explained(name, "tokenizer", options):
        try:
            own = hub_arguments(name, options) | ({} if folder is None else {"config": config})
            tokenizer = _loaded(folder or name, own)
        except Exception as error:  # of whatever reads the files
            if isinstance(error, AttributeError):
                check_quantization(name, options)
            _check_files(name, folder or folder_of(name, options.revision), error)
            raise
        # An empty special token is in no vocabulary: transformers looks for its id without end.
        for each in getattr(tokenizer, "SPECIAL_TOKENS_ATTRIBUTES", ()):
            if getattr(tokenizer, each, None) == "":
                setattr(tokenizer, each, None)
    if len(tokenizer) < 100 and set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise _no_tokenizer(name)  # transformers makes one up, of special tokens alone
    return tokenizer if getattr(tokenizer, "is_fast", False) else PythonTokenizer(tokenizer)


def _loaded(place: str | Path, options: dict[str, Any]) -> Any:
    """Return the tokenizer that transformers makes without mistral-common, whether that is installed or not."""
    from transformers import AutoTokenizer, TokenizersBackend

    with _checked():
        tokenizer = AutoTokenizer.from_pretrained(place, mistral_format=False, **options)
        if type(tokenizer).__name__ == "MistralCommonBackend":  # which tokenizer_config.json names
            return TokenizersBackend.from_pretrained(place, **options)
    return tokenizer


@contextmanager
def _checked() -> Iterator[None]:
    """Let transformers read no file of a vocabulary that is not checked, also of those that it has just downloaded."""
    from transformers import PreTrainedTokenizerBase

    own = vars(PreTrainedTokenizerBase)["_from_pretrained"]

    def read(kind: Any, files: dict[str, Any], *rest: Any, **options: Any) -> Any:
        for path in files.values():
            if isinstance(path, str):
                check_vocabulary(Path(path))
        return own.__func__(kind, files, *rest, **options)

    PreTrainedTokenizerBase._from_pretrained = classmethod(read)
    try:
        yield
    finally:
        PreTrainedTokenizerBase._from_pretrained = own


def load_alone(name: str, options: LoadOptions) -> tuple[Any, int | None]:
    """Load a checkpoint's tokenizer and nothing else; return it, and how many tokens its model reads at most.

    Without a configuration the tokenizer itself says how many; None is no limit.

    Raises:
        LoadError: see `load_tokenizer`.
    """
    if os.path.isdir(name):
        check_folder(Path(name))
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # to install torch
    hush()
    place = locate(name, options, for_tokenizer=True)
    if place.lacks(options.base) and download_adapter(name, options):
        place = locate(name, options, for_tokenizer=True)
    own = place.options(options)
    config = None if place.tokenizer is None else _config(place.model, own)
    try:
        with place.reading():
            tokenizer = load_tokenizer(place.model, own, place.tokenizer, config)
    except LoadError:
        if os.path.isdir(place.model) or not download_inside(place.model, own, for_tokenizer=True):
            raise
        return load_alone(name, options)
    config = config or _config(place.model, own)
    if config is not None:
        return tokenizer, limit_by(config)
    limit = tokenizer.model_max_length
    return tokenizer, limit if limit < sys.maxsize else None  # transformers writes "no limit" as 1e30


def check_quantization(name: str, options: LoadOptions) -> None:
    """Raise LoadError where a config.json says something of its quantization that is no object."""
    from transformers import PreTrainedConfig

    said, _ = PreTrainedConfig.get_config_dict(name, **hub_arguments(name, options))
    if not isinstance(said.get("quantization_config"), dict | None):
        raise unknown_quantization(name, None)


def positions(config: Any) -> int | None:
    """Return how many positions a configuration counts, or None where it sets no limit."""
    config = _counting(config)
    limits = (getattr(config, name, None) for name in _POSITIONS)
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)


def _counting(config: Any) -> Any:
    """Return the configuration that counts positions: the model's own, or that of its language model or decoder."""
    if not any(hasattr(config, name) for name in _POSITIONS):
        with suppress(ValueError):  # it has several
            return config.get_text_config(decoder=True)
    return config


def _config(name: str, options: LoadOptions) -> Any:
    """Return a checkpoint's configuration; None if it has none that transformers knows."""
    from transformers import AutoConfig

    with suppress(OSError, ValueError, KeyError):
        return AutoConfig.from_pretrained(name, **hub_arguments(name, options))
    return None


def limit_by(config: Any) -> int | None:
    """Return how many tokens a model reads at most, by its configuration alone; None where that sets no limit."""
    limit, config = positions(config), _counting(config)
    if limit is None or config.model_type not in _AFTER_PADDING or config.pad_token_id is None:
        return limit
    return limit - config.pad_token_id - 1


def hub_arguments(name: str, options: LoadOptions) -> dict[str, Any]:
    """Return what transformers' `from_pretrained` takes of the options for a folder or a name on the hub."""
    revision = options.revision or "main"
    return {
        "revision": revision,
        # What is at a commit stays as it is, and is not asked for where it is here.
        "local_files_only": options.offline if _COMMIT.fullmatch(revision) else is_local(name, options),
        "trust_remote_code": options.trust_remote_code,
    }


def _check_files(name: str, folder: Path, error: Exception) -> None:
    """Say what is missing where a tokenizer could not be loaded; return where nothing is, as far as one can see.

    Transformers tries one reader after the other, and what it says of the last may not be the true cause.

    Args:
        name: of the checkpoint.
        folder: that has its files; of one from the hub, those that were downloaded.
        error: what transformers raised.

    Raises:
        LoadError: a package is missing, or there is no vocabulary.
    """
    if BRINGS_CODE in str(error):
        return
    found = sorted(path.name for path in folder.glob("*"))
    if folder.is_dir() and not any(each.endswith(_VOCABULARIES) for each in found) and unreached(error) is None:
        raise _no_tokenizer(name)
    if "tokenizer.json" in found:
        return
    for file in found:
        if packages := _readers(folder / file):
            require(f"the tokenizer of {visible(name)} is in {visible(file)}, and reading that", *packages)
    if "sacremoses" in str(error):  # which a class in pure Python imports
        require(f"the tokenizer of {visible(name)}", "sacremoses")


def _no_tokenizer(name: str) -> LoadError:
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
        first = file.readline(_LONGEST_LINE)
    return ("tiktoken",) if is_tiktoken(first) else ("sentencepiece", "google.protobuf")
