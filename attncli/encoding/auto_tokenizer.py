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
from attncli.checkpoints.tensors import unknown_quantization
from attncli.encoding.encode import IdTokenizer, TokenizerOutput
from attncli.encoding.fast_tokenizer import AFTER_PADDING, read_vocabulary
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

_POSITIONS = ("max_position_embeddings", "max_seq_len", "max_target_positions", "max_text_positions")


def load_tokenizer(snapshot: Snapshot, options: LoadOptions, config: Any = None) -> Any:
    """Load a checkpoint's tokenizer; LoadError if it has none, or a package is missing that reads its files."""
    from transformers import AutoTokenizer, TokenizersBackend

    if options.ids:
        return IdTokenizer()
    name, files, how = snapshot.model_name, snapshot.tokenizer, hub_arguments(options)
    apart = {"config": config} if files.path != snapshot.folder else {}
    with translate_errors(name, "tokenizer"):
        for file in files.sizes:
            if file == "tokenizer.json" or file.endswith(_OF_SENTENCEPIECE):
                read_vocabulary(files.path / file)
        try:
            tokenizer = AutoTokenizer.from_pretrained(files.path, mistral_format=False, **how, **apart)
            if type(tokenizer).__name__ == "MistralCommonBackend":  # which tokenizer_config.json names
                tokenizer = TokenizersBackend.from_pretrained(files.path, **how, **apart)
        except Exception as error:  # of whatever reads the files
            if isinstance(error, AttributeError):
                check_quantization(snapshot)
            if BRINGS_CODE not in str(error):
                _check_files(name, files)
            raise
        # An empty special token is in no vocabulary: transformers looks for its id without end.
        for token in getattr(tokenizer, "SPECIAL_TOKENS_ATTRIBUTES", ()):
            if getattr(tokenizer, token, None) == "":
                setattr(tokenizer, token, None)
    if len(tokenizer) < 100 and set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise _no_tokenizer(name)  # transformers makes one up, of special tokens alone
    return tokenizer if getattr(tokenizer, "is_fast", False) else PythonTokenizer(tokenizer)


def load_alone(snapshot: Snapshot, options: LoadOptions) -> tuple[Any, int | None]:
    """Load a checkpoint's tokenizer and nothing else; return it, and the most tokens that its model reads.

    Without a configuration the limit is the tokenizer's; None is no limit. See `load_tokenizer` for the errors.
    """
    from transformers import AutoConfig

    silence_transformers()
    config = None  # if it has none that transformers knows
    tolerated = suppress(OSError, ValueError, KeyError, AttributeError)  # the last of an odd quantization
    with translate_errors(snapshot.model_name, "configuration"), tolerated:
        config = AutoConfig.from_pretrained(snapshot.folder, **hub_arguments(options))
    tokenizer = load_tokenizer(snapshot, options, config)
    if config is not None:
        limit = positions(config)
        is_shifted = limit is not None and config.model_type in AFTER_PADDING and config.pad_token_id is not None
        return tokenizer, limit - config.pad_token_id - 1 if is_shifted else limit
    limit = tokenizer.model_max_length
    return tokenizer, limit if limit < sys.maxsize else None  # transformers writes "no limit" as 1e30


def check_quantization(snapshot: Snapshot) -> None:
    """Raise LoadError where the quantization in a config.json is no object."""
    if not isinstance(snapshot.config.get("quantization_config"), dict | None):
        raise unknown_quantization(snapshot.model_name, None)


def positions(config: Any) -> int | None:
    """Return how many positions a model's configuration counts, or its language model's; None without a limit."""
    if not any(hasattr(config, name) for name in _POSITIONS):
        with suppress(ValueError):  # it has several
            config = config.get_text_config(decoder=True)
    limits = (getattr(config, name, None) for name in _POSITIONS)
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)


def hub_arguments(options: LoadOptions) -> dict[str, Any]:
    """Return the options as arguments of transformers' `from_pretrained` for a folder."""
    is_local = options.offline or not options.trust_remote_code  # whose code may be in another repository
    return {"local_files_only": is_local, "trust_remote_code": options.trust_remote_code}


def _check_files(name: str, files: CheckpointFolder) -> None:
    """Raise LoadError where a vocabulary or the package that reads it is missing, as transformers may not."""
    if not any(file.endswith(_VOCABULARIES) for file in files.sizes):
        raise _no_tokenizer(name)
    of_sentencepiece = sorted(file for file in files.sizes if file.endswith(_OF_SENTENCEPIECE))
    if "tokenizer.json" not in files and of_sentencepiece:
        needed = ("sentencepiece", "google.protobuf")
        require(f"the tokenizer of {visible(name)} is in {visible(of_sentencepiece[0])}, and reading that", *needed)


def _no_tokenizer(name: str) -> LoadError:
    why = f"none of {', '.join(_LOOKED_FOR)} is there"
    advice = "put its tokenizer.json beside config.json, name another with --tokenizer, or give --ids"
    return LoadError(f"{visible(name)} has no tokenizer: {why}; {advice}")


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
        inputs = dict(self._tokenizer(*texts[:1], **how))
        ids = [int(value) for value in inputs["input_ids"]]
        pieces = map(self._tokenizer.convert_ids_to_tokens, ids)
        special = {*self._tokenizer.all_special_ids} - {self._tokenizer.unk_token_id}
        is_special = [id_ in special for id_ in ids]
        encoding = SimpleNamespace(
            ids=ids,
            tokens=[f"<id {id_}>" if piece is None else str(piece) for id_, piece in zip(ids, pieces, strict=True)],
            offsets=[(None, None)] * len(ids),
            special_tokens_mask=is_special,
            sequence_ids=[None if value else 0 for value in is_special],
            word_ids=[None] * len(ids),
        )
        return TokenizerOutput(inputs, encoding)
