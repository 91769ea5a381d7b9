"""Tokenizers of GGUF files, where their kind is certain: those whose alphabet is bytes.

<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer>: a list of pieces with a kind each, the merges,
and the name of the pre-tokenizer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from attncli.checkpoints.checkpoint_folder import UnsupportedError
from attncli.checkpoints.tensors.gguf import GgufFile
from attncli.encoding.fast_tokenizer import QWEN2_WORDS, NativeTokenizer, text_template, words_of_bytes

_CONTROL, _OF_USER = 3, 4
_ENDS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _ENDS
_LIKE_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
_DIGITS_ALONE = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _LIKE_GPT2])
# Pre-tokenizers, by llama.cpp's names (src/llama-vocab.cpp).
_PRE_TOKENIZERS = {
    "gpt-2": _LIKE_GPT2,
    "llama-bpe": words_of_bytes(_LLAMA3_WORDS),
    "qwen2": words_of_bytes(QWEN2_WORDS),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_ALONE),
}
_NORMALIZED = "qwen2"
_LLAMA3 = "llama-bpe"  # a word that is a piece is not cut, and a text begins with a special token


def tokenizer_of(file: GgufFile) -> NativeTokenizer:
    """Return the tokenizer of a file; UnsupportedError if it has none, or an unknown one."""

    def field(name: str, kind: type, default: Any = None) -> Any:
        value = file.metadata.get(name)
        if value is not None and type(value) is not kind:
            raise UnsupportedError(f"{name} has another type than expected")
        return default if value is None else value

    pieces = field("tokenizer.ggml.tokens", list, [])
    kinds = field("tokenizer.ggml.token_type", np.ndarray, np.ones(len(pieces), int)).tolist()
    if not pieces or len(kinds) != len(pieces):
        raise UnsupportedError(f"its tokenizer has {len(pieces)} pieces of {len(kinds)} kinds")

    def special(name: str) -> str | None:
        id_ = field(f"tokenizer.ggml.{name}_token_id", int)
        if id_ is not None and not 0 <= id_ < len(pieces):
            raise UnsupportedError(f"{name}_token_id is {id_!r}")
        return None if id_ is None else pieces[id_]

    model, cut = field("tokenizer.ggml.model", str), field("tokenizer.ggml.pre", str)
    if model != "gpt2":
        raise UnsupportedError(
            f"the tokenizer {model!r} of a GGUF file is none whose alphabet is bytes; give the checkpoint that the "
            "file was made from"
        )
    if cut not in _PRE_TOKENIZERS:
        raise UnsupportedError(f"the tokenizer of a GGUF file splits words in an unknown way: {cut!r}")
    merges = [merge.partition(" ")[::2] for merge in field("tokenizer.ggml.merges", list, [])]
    ids = {piece: id_ for id_, piece in enumerate(pieces)}
    try:
        tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=cut == _LLAMA3))
    except Exception as error:  # the library raises bare Exception
        raise UnsupportedError(f"its tokenizer cannot be read: {error}") from None
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[cut]
    if cut == _NORMALIZED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([
        AddedToken(piece, special=kind == _CONTROL, normalized=False)
        for piece, kind in zip(pieces, kinds, strict=True)
        if kind in (_CONTROL, _OF_USER) and piece
    ])  # fmt: skip
    tokens = {"bos_token": special("bos"), "eos_token": special("eos"), "pad_token": special("padding")}
    first = tokens["bos_token"] if field("tokenizer.ggml.add_bos_token", bool, cut == _LLAMA3) else None
    last = tokens["eos_token"] if field("tokenizer.ggml.add_eos_token", bool) else None
    tokenizer.post_processor = text_template(first, last)(tokenizer)
    return NativeTokenizer(tokenizer, tokens, ["attention_mask"], "right", field("tokenizer.chat_template", str))
