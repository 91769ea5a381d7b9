"""Folders of tokenizers in every form but tokenizer.json, made by the libraries whose forms they are."""

import base64
import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece

LINES = [
    "time flies like an arrow", "fruit flies like a banana", "the café is naïve, déjà vu",
    "unbelievable things happen in 2024", "what is a head? it attends to words.",
]  # fmt: skip
_CUSTOM = "from transformers import ByT5Tokenizer\n\n\nclass Bytes(ByT5Tokenizer):\n    pass\n"


@cache
def spm(kind: str, size: int, **ids: Any) -> bytes:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 4), model_writer=written, model_type=kind, vocab_size=size,
        hard_vocab_limit=False, minloglevel=2, **ids,
    )  # fmt: skip
    return written.getvalue()


def _spm(model_type: str, file: str, kind: str = "unigram", size: int = 70, **ids: Any) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        _config(folder, model_type)
        (folder / file).write_bytes(spm(kind, size, **ids))

    return save


def _config(folder: Path, model_type: str, tokenizer_class: str | None = None, **fields: Any) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if tokenizer_class is not None or fields:
        named = {} if tokenizer_class is None else {"tokenizer_class": tokenizer_class}
        (folder / "tokenizer_config.json").write_text(json.dumps(named | fields))


def _pieces() -> list[str]:
    model = sentencepiece.SentencePieceProcessor(model_proto=spm("unigram", 70))
    return [model.id_to_piece(index) for index in range(3, model.get_piece_size())]


def marian(folder: Path) -> None:
    _config(folder, "marian")
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(spm("unigram", 70))
    pieces = ["</s>", "<unk>", *_pieces(), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: index for index, piece in enumerate(pieces)}))


def byt5(folder: Path) -> None:
    _config(folder, "t5", "ByT5Tokenizer")


_RANKED = [*(bytes([byte]) for byte in range(256)), b"ti", b"me", b"time", b" f", b"li", b" fli", b"es", b" flies"]


def custom(folder: Path) -> None:
    _config(folder, "llama", "Bytes", auto_map={"AutoTokenizer": ["tokenization_own.Bytes", None]})
    (folder / "tokenization_own.py").write_text(_CUSTOM)


CONTROLS = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
).split()
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _tekken(tokenizer_class: str | None = None) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        _config(folder, "mistral", tokenizer_class)
        specials = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(CONTROLS)]
        vocabulary = [
            {"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": piece.decode(errors="replace")}
            for rank, piece in enumerate(_RANKED)
        ]
        sizes = {"default_vocab_size": len(_RANKED) + len(CONTROLS), "default_num_special_tokens": len(CONTROLS)}
        config = {"pattern": _WORDS, "num_vocab_tokens": len(_RANKED), "version": "v7"} | sizes
        content = {"config": config, "special_tokens": specials, "vocab": vocabulary}
        (folder / "tekken.json").write_text(json.dumps(content))

    return save


# What sets each in an empty folder. Those in Python alone do not say where their pieces stand.
PLACED: dict[str, Callable[[Path], None]] = {
    "llama": _spm("llama", "tokenizer.model", "bpe", 330, byte_fallback=True),
    "gemma": _spm("gemma", "tokenizer.model", "bpe", 330, byte_fallback=True, pad_id=0, eos_id=1, bos_id=2, unk_id=3),
    "t5": _spm("t5", "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1),
    "xlm-roberta": _spm("xlm-roberta", "sentencepiece.bpe.model"),
    "albert": _spm("albert", "spiece.model", size=72, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
        control_symbols="[CLS],[SEP],[MASK]"),
    "tekken": _tekken(),
    "tekken of mistral-common": _tekken("MistralCommonBackend"),
}  # fmt: skip
IN_PYTHON: dict[str, Callable[[Path], None]] = {
    "marian": marian, "bert-generation": _spm("bert-generation", "spiece.model"), "byt5": byt5,
}  # fmt: skip
