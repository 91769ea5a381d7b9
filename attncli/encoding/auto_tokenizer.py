"""Tokenizers of checkpoints as transformers loads them, with the model or alone.

Many of transformers' classes build their pipeline themselves and take no more than the vocabulary from tokenizer.json
(BertTokenizer, Qwen2Tokenizer), so that no other reader of this file can be trusted to give the same tokens.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from attncli.checkpoints.hub import BRINGS_CODE, silence_transformers, translate_errors
from attncli.checkpoints.weight_checks import unknown_quantization
from attncli.encoding.encode import TokenizerOutput
from attncli.encoding.vocabulary_files import check_vocabulary
from attncli.errors import LoadError, require
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.checkpoints.checkpoint_folder import CheckpointFolder
    from attncli.checkpoints.options import LoadOptions
    from attncli.checkpoints.snapshot import Snapshot

# Endings of vocabularies, and those that sentencepiece reads.
_LOOKED_FOR = ("tokenizer.json", "tokenizer.model", "spiece.model", "tekken.json", "vocab.json", "vocab.txt")
_VOCABULARIES = (*_LOOKED_FOR, ".model", ".spm", ".tokenizer", ".codes", "dict.txt")
_OF_SENTENCEPIECE = (".model", ".spm")

# RoBERTa and similar models: they number their positions from the one after the padding's.
_AFTER_PADDING = frozenset({
    "camembert", "data2vec-text", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "prophetnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip
_POSITIONS = ("max_position_embeddings", "max_seq_len", "max_target_positions", "max_text_positions")


def load_tokenizer(snapshot: Snapshot, options: LoadOptions, config: Any = None) -> Any:
    """Load a checkpoint's tokenizer.

    Args:
        snapshot: the checkpoint's files.
        options: how to load.
        config: of the model, for a tokenizer in a folder of its own.

    Raises:
        LoadError: it has none, or it cannot be read, or a package is missing that reads its files.
    """
    name, files = snapshot.model_name, snapshot.tokenizer
    with translate_errors(name, "tokenizer"):
        try:
            is_apart = files.path != snapshot.folder
            tokenizer = _loaded(files, hub_arguments(options) | ({"config": config} if is_apart else {}))
        except Exception as error:  # of whatever reads the files
            if isinstance(error, AttributeError):
                check_quantization(snapshot)
            _check_files(name, files, error)
            raise
        # An empty special token is in no vocabulary: transformers looks for its id without end.
        for name_of_token in getattr(tokenizer, "SPECIAL_TOKENS_ATTRIBUTES", ()):
            if getattr(tokenizer, name_of_token, None) == "":
                setattr(tokenizer, name_of_token, None)
    if len(tokenizer) < 100 and set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise _no_tokenizer(name)  # transformers makes one up, of special tokens alone
    return tokenizer if getattr(tokenizer, "is_fast", False) else PythonTokenizer(tokenizer)


def _loaded(files: CheckpointFolder, options: dict[str, Any]) -> Any:
    """Return the tokenizer that transformers makes without mistral-common, whether that is installed or not."""
    from transformers import AutoTokenizer, TokenizersBackend

    is_alone = "tokenizer.json" not in files and not options["trust_remote_code"]
    for name in files.sizes:
        check_vocabulary(files.path / name, read_sentencepiece, is_alone=is_alone)
    tokenizer = AutoTokenizer.from_pretrained(files.path, mistral_format=False, **options)
    if type(tokenizer).__name__ == "MistralCommonBackend":  # which tokenizer_config.json names
        return TokenizersBackend.from_pretrained(files.path, **options)
    return tokenizer


def read_sentencepiece(content: bytes) -> Any:
    """Parse a model of sentencepiece as a message of protobuf; None where no package reads it.

    Raises:
        ValueError: it is none.
    """
    from transformers.convert_slow_tokenizer import import_protobuf

    try:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        model = import_protobuf().ModelProto()
    except ImportError:
        return None
    try:
        model.ParseFromString(content)
    except DecodeError:
        raise ValueError("it is damaged") from None
    return model


def load_alone(snapshot: Snapshot, options: LoadOptions) -> tuple[Any, int | None]:
    """Load a checkpoint's tokenizer and nothing else; return it, and the most tokens that its model reads.

    Without a configuration the limit is the tokenizer's; None is no limit.

    Raises:
        LoadError: see `load_tokenizer`.
    """
    from transformers import AutoConfig

    silence_transformers()
    config = None  # if it has none that transformers knows
    tolerated = suppress(OSError, ValueError, KeyError, AttributeError)  # the last of an odd quantization
    with translate_errors(snapshot.model_name, "configuration"), tolerated:
        config = AutoConfig.from_pretrained(snapshot.folder, **hub_arguments(options))
    tokenizer = load_tokenizer(snapshot, options, config)
    if config is not None:
        return tokenizer, limit_by(config)
    limit = tokenizer.model_max_length
    return tokenizer, limit if limit < sys.maxsize else None  # transformers writes "no limit" as 1e30


def check_quantization(snapshot: Snapshot) -> None:
    """Raise LoadError where the quantization in a config.json is no object."""
    if not isinstance(snapshot.config.get("quantization_config"), dict | None):
        raise unknown_quantization(snapshot.model_name, None)


def positions(config: Any) -> int | None:
    """Return how many positions a configuration counts, or None where it sets no limit."""
    limits = (getattr(_counting(config), name, None) for name in _POSITIONS)
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)


def _counting(config: Any) -> Any:
    """Return the configuration that counts positions: the model's own, or that of its language model or decoder."""
    if not any(hasattr(config, name) for name in _POSITIONS):
        with suppress(ValueError):  # it has several
            return config.get_text_config(decoder=True)
    return config


def limit_by(config: Any) -> int | None:
    """Return the most tokens that a model reads, by its configuration alone; None where that sets no limit."""
    limit, config = positions(config), _counting(config)
    if limit is None or config.model_type not in _AFTER_PADDING or config.pad_token_id is None:
        return limit
    return limit - config.pad_token_id - 1


def hub_arguments(options: LoadOptions) -> dict[str, Any]:
    """Return the options as arguments of transformers' `from_pretrained` for a folder.

    Code that a checkpoint brings may be in another repository.
    """
    is_local = options.offline or not options.trust_remote_code
    return {"local_files_only": is_local, "trust_remote_code": options.trust_remote_code}


def _check_files(name: str, files: CheckpointFolder, error: Exception) -> None:
    """Raise LoadError where a vocabulary or the package that reads it is missing, as transformers may not."""
    if BRINGS_CODE in str(error):
        return
    if not any(file.endswith(_VOCABULARIES) for file in files.sizes):
        raise _no_tokenizer(name)
    of_sentencepiece = sorted(file for file in files.sizes if file.endswith(_OF_SENTENCEPIECE))
    if "tokenizer.json" not in files and of_sentencepiece:
        needed = ("sentencepiece", "google.protobuf")
        require(f"the tokenizer of {visible(name)} is in {visible(of_sentencepiece[0])}, and reading that", *needed)


def _no_tokenizer(name: str) -> LoadError:
    """Return the error of a checkpoint that brings no vocabulary."""
    return LoadError(
        f"{visible(name)} has no tokenizer: none of {', '.join(_LOOKED_FOR)} is there; put its tokenizer.json beside "
        "config.json"
    )


class PythonTokenizer:
    """A tokenizer of transformers in pure Python, called like those that return offsets."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *texts: str | None, **how: Any) -> TokenizerOutput:
        """Return the inputs of the model for a text, or for a target (`text_target`)."""
        if any(text is not None for text in texts[1:]):
            raise ValueError("its tokenizer does not separate two texts; drop --pair")
        inputs, uncut = dict(self._tokenizer(*texts[:1], **how)), {"truncation": False, "max_length": None}
        ids = [int(each) for each in inputs["input_ids"]]
        pieces = [self._tokenizer.convert_ids_to_tokens(id_) for id_ in ids]
        # The number of tokens that the tokenizer puts before a text, and behind it.
        with_special, own = (
            list(self._tokenizer(*texts[:1], **how | uncut | {"add_special_tokens": adds})["input_ids"])
            for adds in (how["add_special_tokens"], False)
        )
        before = next((start for start in range(len(with_special)) if with_special[start : start + len(own)] == own), 0)
        behind = max(len(with_special) - before - len(own), 0)
        is_own = [before <= index < len(ids) - behind for index in range(len(ids))]
        encoding = SimpleNamespace(
            ids=ids,
            tokens=[f"<id {id_}>" if piece is None else str(piece) for id_, piece in zip(ids, pieces, strict=True)],
            offsets=[(None, None)] * len(ids),
            special_tokens_mask=[not each for each in is_own],
            sequence_ids=[0 if each else None for each in is_own],
            word_ids=[None] * len(ids),
        )
        return TokenizerOutput(inputs, encoding)
