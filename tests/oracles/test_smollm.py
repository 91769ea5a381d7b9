"""A real language model in a GGUF file: its ids by llama.cpp's definition, and its induction heads."""

from __future__ import annotations

from typing import Any

import pytest
from gguf import GGUFReader
from readme import pages
from smollm import smollm_file
from tokenizers import Tokenizer, models, pre_tokenizers

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


def test_ids_are_those_of_the_definition(reader: GGUFReader) -> None:
    """In llama.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM: single digits, then GPT-2's expression on what is left."""
    tokens, kinds = field(reader, "tokenizer.ggml.tokens"), field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    defined = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    defined.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_bytes])
    defined.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind in (3, 4)])
    tokenizer = open_tokenizer(model=str(smollm_file()))
    for text in TEXTS:
        assert tokenizer.tokenize(text).tokens.ids == defined.encode(text).ids, text


def test_its_strongest_induction_heads_are_those_of_the_page_on_explanation() -> None:
    """What the model loses without them (Olsson et al. 2022) is on that page, docs/cookbook/explanation.md."""
    texts = repeated_sequences(str(smollm_file()))
    found = [(one.metrics["induction"] or 0, one) for one in attncli.heads(texts, str(smollm_file())).heads]
    best = sorted(found, key=lambda each: -each[0])[:5]
    assert ",".join(f"{one.layer}.{one.head}" for _, one in best) in pages()["docs/cookbook/explanation.md"]
    assert [share for share, _ in best[:3]] == pytest.approx([0.89, 0.74, 0.73], abs=0.01)
