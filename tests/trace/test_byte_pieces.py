"""Byte-level pieces are shown as the text spells them, and no other vocabulary is taken for one."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from attncli.encoding.encode import tokens_of
from attncli.trace.tokens import Tokens

CORPUS = ["time flies like an arrow, naïve 日本 日本 日本語"] * 5


def byte_level(trim: bool = True, normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def read(tokenizer: Tokenizer, text: str) -> Tokens:
    return tokens_of(tokenizer.encode(text), text)


@pytest.mark.parametrize("trim", [True, False])
def test_whole_characters_are_themselves_and_halves_of_them_are_bytes(trim: bool) -> None:
    tokens = read(byte_level(trim), "time flies naïve 日本 你\n")
    assert [token.label for token in tokens] == [
        "time", "␣flies", "␣naïve", "␣日本", "␣", "<E4>", "<BD>", "<A0>", "\\n",
    ]  # fmt: skip
    assert [token.text for token in tokens][:2] == ["time", "Ġflies"]
    assert tokens.find("日本", "query") == [3]
    assert tokens.find("flies", "query") == [1]


@pytest.mark.parametrize("text", ["½", "Ãé", "naïve 日本", "<0xE4>"])
def test_plain_vocabularies_are_never_taken_for_bytes(text: str) -> None:
    words = {word: index for index, (word, _) in enumerate(pre_tokenizers.Whitespace().pre_tokenize_str(text))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = read(tokenizer, text)
    assert [token.label for token in tokens] == list(words)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>"), min_size=1, max_size=20))
@settings(max_examples=150)
def test_the_bytes_of_any_text_are_all_there(text: str) -> None:
    tokens = read(TOKENIZER, text)
    shown = "".join(token.text.replace("Ġ", " ") if token.shown is None else token.shown for token in tokens)
    parts = re.split(r"<((?:[0-9A-F]{2} ?)+)>", shown)
    found = [part.encode() if place % 2 == 0 else bytes.fromhex(part) for place, part in enumerate(parts)]
    assert b"".join(found) == text.encode()


TOKENIZER = byte_level()
