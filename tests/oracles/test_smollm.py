"""A real language model in a GGUF file: its ids by llama.cpp's definition, and its induction heads."""

from __future__ import annotations

import re

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


def test_ids_are_those_of_the_definition() -> None:
    """In llama.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM: single digits, then GPT-2's expression on what is left."""
    fields = GGUFReader(smollm_file()).fields
    tokens, kinds, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges"))
    ids = {token: index for index, token in enumerate(tokens)}
    defined = Tokenizer(models.BPE(ids, [*map(tuple, map(str.split, merges))]))
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    defined.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_bytes])
    defined.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind in (3, 4)])
    tokenizer = open_tokenizer(model=str(smollm_file()))
    for text in TEXTS:
        assert tokenizer.tokenize(text).tokens.ids == defined.encode(text).ids, text


def test_its_strongest_induction_heads_are_those_of_the_page_on_explanation() -> None:
    """What the model loses without them (Olsson et al. 2022) is on that page, docs/cookbook/explanation.md."""
    model = str(smollm_file())
    texts = repeated_sequences(model)[:2]  # which are enough to tell them from the others
    found = [(one.metrics["induction"] or 0, f"{one.layer}.{one.head}") for one in attncli.heads(texts, model).heads]
    shares, heads = zip(*sorted(found, reverse=True)[:6], strict=True)
    (of_the_page, *_) = re.findall(r"--head ((?:[\d.]+,){4}[\d.]+) ", pages()["docs/cookbook/explanation.md"])
    assert {*heads[:5]} == {*of_the_page.split(",")}
    assert shares[0] > 0.85
    assert shares[4] > 0.6 > shares[5]
