"""A real language model in a GGUF file: ids by plain loops over llama.cpp's definition, attention by transformers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import regex
from gguf import GGUFReader
from readme import pages
from smollm import smollm_file

import attncli
from attncli.encoding.induction_probe import repeated_sequences
from attncli.engines.tokenize import open_tokenizer

TEXTS = (
    "When Mary and John went to the store, John gave a drink to",
    "In 1969 2 men, not 34567, walked 3.14 km; it's what they've said.",
    "def f(x):\n\treturn x ** 2  # 10 %\n\n\n  if  True:\n",
    "Grüße aus Zürich, naïve café — “quoted”… ½ ②",
    "時は矢のように飛ぶ。 Время летит. الوقت يطير",
    "🏳️‍🌈👩‍👩‍👧 emoji   and    runs of blanks    ",
    "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n",
    "I'LL THEY'RE don't 'tis 's 're\u00a0nbsp\u3000wide",
)


@pytest.fixture(scope="module")
def reader() -> GGUFReader:
    return GGUFReader(smollm_file())


def field(reader: GGUFReader, name: str) -> Any:
    return reader.fields[name].contents()


# --- ids -------------------------------------------------------------------------------------------------------------

# llama.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM: single digits, then GPT-2's expression on what is left.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def bytes_as_letters() -> dict[int, str]:
    """The letter that stands for each byte in a byte-level vocabulary (Radford et al. 2019)."""
    remaining = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in remaining]
    return {byte: chr(byte) for byte in remaining} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def words_of(text: str) -> list[str]:
    parts = [part for part in regex.split(r"(\p{N})", text) if part]
    return [
        word for part in parts for word in ([part] if regex.fullmatch(r"\p{N}", part) else regex.findall(GPT2, part))
    ]


def merged(pieces: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    while len(pieces) > 1:
        pairs = list(pairwise(pieces))
        best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        index = pairs.index(best)
        pieces = [*pieces[:index], "".join(best), *pieces[index + 2 :]]
    return pieces


def test_ids_are_those_of_the_definition(reader: GGUFReader) -> None:
    tokens: list[str] = field(reader, "tokenizer.ggml.tokens")
    kinds: list[int] = field(reader, "tokenizer.ggml.token_type")
    ids = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    ranks: dict[Any, int] = {pair: rank for rank, pair in enumerate(merges)}
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind in (3, 4)]
    letters = bytes_as_letters()

    def defined(part: str) -> list[int]:
        if part in special:
            return [ids[part]]
        words = ([letters[byte] for byte in word.encode()] for word in words_of(part))
        return [ids[piece] for word in words for piece in merged(word, ranks)]

    tokenizer = open_tokenizer(model=str(smollm_file()))
    for text in TEXTS:
        parts = regex.split("(" + "|".join(map(regex.escape, special)) + ")", text)
        assert tokenizer.tokenize(text).tokens.ids == [id_ for part in parts for id_ in defined(part)], text


# --- attention -------------------------------------------------------------------------------------------------------


def test_its_strongest_induction_heads_are_those_of_the_page_on_explanation() -> None:
    """What the model loses without them (Olsson et al. 2022) is on that page, docs/cookbook/explanation.md."""
    texts = repeated_sequences(str(smollm_file()))
    found = [(one.metrics["induction"] or 0, one) for one in attncli.heads(texts, str(smollm_file())).heads]
    best = sorted(found, key=lambda each: -each[0])[:5]
    assert ",".join(f"{one.layer}.{one.head}" for _, one in best) in pages()["docs/cookbook/explanation.md"]
    assert [share for share, _ in best[:3]] == pytest.approx([0.89, 0.74, 0.73], abs=0.01)
