"""Tiny tokenizers of every family that the native engine computes, trained on texts that tokenizers stumble over."""

import json
import random
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

# fmt: off
AWKWARD = (
    "a", " a", "a ", "  a  b ", "\ta\n\nb\r\n", "A", "HELLO World", "don't we'll I'M", "…", ".", "?!?!", "--",
    "\u00a0a\u2003b\u3000c\u200bd\ufeffe\u2028f\u0085g", "a\u0000b\u0007c\u007fd\x1be", "\u200d", "\u0301", " ",
    "e\u0301 é e\u0301\u0323", "ﬁ ﬂ ½ ² Ⅷ ㎏ ª", "İstanbul ıI ſ ß ẞ ΣΑΣ ς", "Å Å ö o\u0308", "ệ ê\u0323",
    "क्षि தமிழ் ไทย ລາວ", "👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷 👍🏽 ☺️ ❤", "שלום עולם", "مَرْحَبًا", "日本語のテスト", "中文abc混合", "한국어 각",
    "𠀀𪜶 𝒳 𐍈", "x" * 250, "ab" * 90 + " c", "http://a.b/c?d=e&f=%20#g", "x=[i**2 for i in range(10)]  # c",
    "1,234.56 007 ٣ ³ 12345678",
)
SPECIAL = [
    *"[CLS] [SEP] [MASK] [PAD] [UNK] <s> </s> <unk> <pad> <mask> <|endoftext|> <bos> <eos> <|im_start|> ▁ ## Ġ".split(),
    "<0x41>", "<s>NOTUSED", "<|padding|>", "<extra>", "[NEW]", "wide load", "▁the",
]
BLOCKS = (  # of Unicode
    (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE00), (0xE00, 0x1200),
    (0x1E00, 0x2100), (0x2000, 0x2070), (0x2190, 0x2C00), (0x3000, 0x3200), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xF900, 0xFE10), (0xFE20, 0xFFFE), (0x10000, 0x10400), (0x1D400, 0x1D800), (0x1F300, 0x1FB00), (0xE0000, 0xE0080),
)
# fmt: on
WORDS = "the time Flies like naïve café arrow don't 2024 <s> [MASK] <|endoftext|> un##happy".split()


def _awkward() -> Iterator[str]:
    draw = random.Random(7)
    yield from AWKWARD
    for token in SPECIAL:
        yield from (token, f" {token}", f"a{token}b", f"a {token} b", f"{token}{token}", token.lower())
        yield f"a\n{token}\t."
    while True:
        low, high = draw.choice(BLOCKS)
        letters = "".join(chr(draw.randrange(low, high)) for _ in range(draw.randint(1, 12)))
        some = [
            draw.choice([letters, draw.choice(WORDS), draw.choice(WORDS).upper()]) for _ in range(draw.randint(1, 9))
        ]
        text = draw.choice([" ", "  ", "", "\n", "\u00a0", "-"]).join(some)
        if text.strip():
            yield draw.choice([text, unicodedata.normalize("NFD", text), text.title()])


STRINGS = list(dict.fromkeys(islice(_awkward(), 2000)))[:1000]
CORPUS = [*STRINGS[::2], *["the time flies like an arrow; the café is naïve, don't unhappy 2024 HELLO world"] * 30]


def _trained(tokenizer: Tokenizer, trainer: Any, corpus: list[str] = CORPUS) -> dict[str, Any]:
    tokenizer.train_from_iterator(corpus, trainer)
    return dict(json.loads(tokenizer.to_str())["model"])


def _bytes(tokens: list[str]) -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model = _trained(tokenizer, trainers.BpeTrainer(vocab_size=700, special_tokens=tokens, initial_alphabet=alphabet))
    return {"vocab": model["vocab"], "merges": [tuple(pair) for pair in model["merges"]]}


def _fallback(tokens: list[str]) -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokens = [*tokens, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=tokens, limit_alphabet=120)
    model = _trained(tokenizer, trainer, CORPUS[::4])
    return {"vocab": model["vocab"], "merges": [tuple(pair) for pair in model["merges"]]}


def _word_pieces(tokens: list[str]) -> dict[str, Any]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=tokens, limit_alphabet=150)
    return {"vocab": _trained(tokenizer, trainer)["vocab"]}


BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
END = ["<|endoftext|>"]
# The model type, its tokenizer class, and what it is made of.
FAMILIES: dict[str, tuple[str, Callable[[list[str]], dict[str, Any]], list[str]]] = {
    "bert": ("BertTokenizer", _word_pieces, BERT), "distilbert": ("DistilBertTokenizer", _word_pieces, BERT),
    "roberta": ("RobertaTokenizer", _bytes, ROBERTA), "gpt2": ("GPT2Tokenizer", _bytes, END),
    "gpt_neox": ("GPTNeoXTokenizer", _bytes, [*END, "<|padding|>"]),
    "llama": ("LlamaTokenizer", _fallback, ["<unk>", "<s>", "</s>"]),
    "mistral": ("LlamaTokenizer", _fallback, ["<unk>", "<s>", "</s>"]), "qwen2": ("Qwen2Tokenizer", _bytes, END),
    "gemma": ("GemmaTokenizer", _fallback, ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]),
    "gemma3_text": ("GemmaTokenizer", _fallback, ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]),
}  # fmt: skip


@cache
def _vocabulary(train: Callable[[list[str]], dict[str, Any]], tokens: tuple[str, ...]) -> dict[str, Any]:
    return train(list(tokens))


def save_tokenizer(folder: Path, family: str, **config: Any) -> Path:
    name, train, tokens = FAMILIES[family]
    made = getattr(transformers, name)(**_vocabulary(train, tuple(tokens)))
    made.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": family, **config}))
    return folder
