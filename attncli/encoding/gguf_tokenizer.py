"""The tokenizer that a GGUF file holds, where it is sure which one it is.

<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer>: a list of pieces with a kind and a score each,
the merges of a byte-level vocabulary, and the name of the way in which its text is cut into words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from attncli.checkpoints.config_reader import UnsupportedError
from attncli.checkpoints.tensors.gguf import GgufFile
from attncli.encoding.fast_tokenizer import NativeTokenizer
from attncli.encoding.tokenizer_classes import QWEN2_WORDS, text_template

_Field = Callable[..., Any]  # of a file: see `_field`

_CONTROL, _OF_USER = 3, 4
_ENDS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _ENDS
_LIKE_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
_DIGITS_ALONE = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _LIKE_GPT2])


def _by(expression: str) -> Any:
    """Return the pre-tokenizer that cuts a text as a regular expression matches it."""
    words = pre_tokenizers.Split(Regex(expression), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# How the text of byte-level vocabularies is cut, by llama.cpp's names (src/llama-vocab.cpp).
_PRE_TOKENIZERS = {"gpt-2": _LIKE_GPT2, "llama-bpe": _by(_LLAMA3_WORDS), "qwen2": _by(QWEN2_WORDS)} | dict.fromkeys(
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_ALONE
)
_NORMALIZED = {"qwen2"}
_WHOLE_FIRST = {"llama-bpe"}  # a word that is a piece is not cut
_BEGINS = {"llama-bpe"}  # with a token of its own, where the file does not say


def tokenizer_of(file: GgufFile) -> NativeTokenizer:
    """Return the tokenizer of a file.

    Raises:
        UnsupportedError: it has none, or one that is not known.
    """
    field = partial(_field, file)
    pieces = field("tokens", list, [])
    if not pieces:
        raise UnsupportedError("the GGUF file has no tokenizer")
    kinds = field("token_type", np.ndarray, np.ones(len(pieces), int)).tolist()
    if len(kinds) != len(pieces):
        raise UnsupportedError(f"its tokenizer has {len(pieces)} pieces of {len(kinds)} kinds")
    named = {name: _piece(field, pieces, name) for name in ("bos", "eos", "unknown", "padding")}
    model = field("model", str)
    if model == "gpt2":
        tokenizer, begins = _by_bytes(field, pieces), field("pre", str) in _BEGINS
    elif model == "llama":
        tokenizer, begins = _by_scores(field, pieces, named["unknown"], _is_of_gemma(file)), True
    else:
        raise UnsupportedError(f"the tokenizer {model!r} of a GGUF file is not known")
    tokenizer.add_tokens(_added(pieces, kinds))
    first = named["bos"] if field("add_bos_token", bool, begins) else None
    last = named["eos"] if field("add_eos_token", bool) else None
    tokenizer.post_processor = text_template(first, last)(tokenizer)
    tokens = {"unk_token": named["unknown"] if model == "llama" else None, "bos_token": named["bos"],
              "eos_token": named["eos"], "pad_token": named["padding"]}  # fmt: skip
    template = field("chat_template", str)
    return NativeTokenizer(tokenizer, tokens, ["attention_mask"], "right", template)


def _field(file: GgufFile, name: str, kind: type, default: Any = None) -> Any:
    """Return a field that tells of the tokenizer.

    Raises:
        UnsupportedError: it is of another type.
    """
    full_name = f"tokenizer.{'' if name == 'chat_template' else 'ggml.'}{name}"
    value = file.metadata.get(full_name)
    if value is not None and type(value) is not kind:
        raise UnsupportedError(f"{full_name} is of another type than it has to be")
    return default if value is None else value


def _piece(field: _Field, pieces: list[str], name: str) -> str | None:
    """Return the piece that a special token is."""
    id_ = field(f"{name}_token_id", int)
    if id_ is not None and not 0 <= id_ < len(pieces):
        raise UnsupportedError(f"{name}_token_id is {id_!r}")
    return None if id_ is None else pieces[id_]


def _is_of_gemma(file: GgufFile) -> bool:
    return str(file.metadata.get("general.architecture")).startswith("gemma")


def _by_bytes(field: _Field, pieces: list[str]) -> Tokenizer:
    """Return a vocabulary whose alphabet is bytes."""
    merges, cut = field("merges", list, []), field("pre", str)
    if cut not in _PRE_TOKENIZERS:
        raise UnsupportedError(f"the tokenizer of a GGUF file cuts words in a way that is not known: {cut!r}")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = _bpe(pieces, pairs, ignore_merges=cut in _WHOLE_FIRST)
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[cut]
    if cut in _NORMALIZED:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _by_scores(field: _Field, pieces: list[str], unknown: str | None, is_of_gemma: bool) -> Tokenizer:
    """Return a vocabulary of sentencepiece, whose merges are in its scores."""
    scores = field("scores", np.ndarray)
    if field("remove_extra_whitespaces", bool) or unknown is None or scores is None or len(scores) != len(pieces):
        raise UnsupportedError("its sentencepiece vocabulary has no scores, or changes the blanks of a text")
    if is_of_gemma:  # whose merges are in the order of its pieces
        pieces = ["▁" * len(piece) if piece and not piece.strip(" ") else piece for piece in pieces]
        ranks = {piece: float(-index) for index, piece in enumerate(pieces)}
    else:
        ranks = {piece: float(score) for piece, score in zip(pieces, scores, strict=True)}
    ways = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
    tokenizer = _bpe(pieces, _merges(pieces, ranks), **ways)
    first = [normalizers.Prepend("▁")] if field("add_space_prefix", bool, True) else []
    tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "▁")])
    return tokenizer


def _bpe(pieces: list[str], merges: list[tuple[str, str]], **ways: Any) -> Tokenizer:
    try:
        return Tokenizer(models.BPE({piece: id_ for id_, piece in enumerate(pieces)}, merges, **ways))
    except Exception as error:  # the library raises bare Exception
        raise UnsupportedError(f"its tokenizer cannot be read: {error}") from None


def _merges(pieces: list[str], ranks: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return every way to put a piece together from two, the highest rank first."""
    ids = {piece: id_ for id_, piece in enumerate(pieces)}
    merges = [
        (ranks[piece], piece[:cut], piece[cut:])
        for piece in ids
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    merges.sort(key=lambda each: (-each[0], -len(each[1]), ids[each[1]], ids[each[2]]))
    return [(left, right) for _, left, right in merges]


def _added(pieces: list[str], kinds: list[int]) -> list[AddedToken]:
    """Return the pieces that are looked for before a text is cut."""
    both = zip(pieces, kinds, strict=True)
    return [
        AddedToken(piece, special=kind == _CONTROL, normalized=False)
        for piece, kind in both
        if kind in (_CONTROL, _OF_USER) and piece
    ]
