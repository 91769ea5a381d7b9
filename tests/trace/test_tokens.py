"""Tokens: what is shown of them is safe, spelled as the text spells it, and a user finds them by it."""

import re
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from traces import tokens_of

from attncli.encoding import encode
from attncli.errors import InputMismatchError
from attncli.text import visible
from attncli.trace.tokens import Token, Tokens

BIDIRECTIONAL = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C]
ZERO_WIDTH = [0x200B, 0x2060, 0xFEFF, 0x00AD]
LINE_BREAKS = [0x2028, 0x2029, 0x0085]
CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
HIDDEN = {chr(code) for code in [*BIDIRECTIONAL, *ZERO_WIDTH, *LINE_BREAKS, *CONTROLS, *range(0xD800, 0xE000)]}

# Nothing is drawn for these either.
INVISIBLE = [0x180E, *range(0x2061, 0x2065), *range(0x206A, 0x2070), *range(0xFFF9, 0xFFFC), 0xE0001]


def test_no_control_reordering_or_zero_width_character_of_unicode_is_sent() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        is_hidden = (
            character in HIDDEN
            or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
            or unicodedata.bidirectional(character) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
            or code % 0x10000 in (0xFFFE, 0xFFFF)  # no characters, and not allowed in XML
        )
        if code in INVISIBLE:
            assert visible(character) != character
        elif is_hidden:
            assert visible(character).isascii()
            assert visible(character).startswith("\\")
        elif unicodedata.category(character) != "Cf":
            assert visible(character) == character


@pytest.mark.parametrize(("text", "label"), [
    ("time", "time"), ("##ing", "##ing"), ("Ġflies", "␣flies"), ("▁flies", "␣flies"), ("", "''"), ("\n", r"\n"),
    ("Ġ\x1b[31m", r"␣\x1b[31m"), ("\u0301", "◌\u0301"), ("\u200d👧", "◌\u200d👧"), (" ", "␣"), ("\u00a0", "␣"),
])  # fmt: skip
def test_a_label_is_the_token_as_people_read_it(text: str, label: str) -> None:
    assert tokens_of(text)[0].label == label


@pytest.mark.parametrize(("wanted", "places"), [
    ("time", [0]), ("the", [2, 5]), ("ing", [3]), ("Ġflies", [4]), ("␣flies", [4]), ("flies", [4]), ("-9", [0]),
    ("4", [4]), ("2024", [6]), (r"\x1b[31m", [7]), ("\x1b[31m", [7]), ("sun", [8]),
])  # fmt: skip
def test_a_token_is_found_by_its_text_its_label_or_its_index(wanted: str, places: list[int]) -> None:
    sequence = tokens_of("time", "[SEP]", "the", "##ing", "Ġflies", "the", "2024", "\x1b[31m", "▁sun")
    assert sequence.find(wanted, "query") == places


def test_a_word_of_several_pieces_is_its_last_piece() -> None:
    pieces = [("[CLS]", None), ("an", 0), ("arr", 3), ("##ow", 6), ("'", 8), ("Ġti", 10), ("me", 12), ("me", 14)]
    found = Tokens(
        Token(index, 0, text, start, None if start is None else start + len(text.lstrip("#Ġ")), start is None)
        for index, (text, start) in enumerate(pieces)
    )
    assert found.find("arrow", "query") == [3]
    assert found.pieces_note("arrow") == "'arrow' is pieces 2–3; this is its last, 3 ##ow"
    assert found.find("timeme", "key") == [7]
    assert not found.pieces_note("an")
    for no_word in ("anarrow", "time", "rrow"):  # of two words, a part of one, no pieces
        with pytest.raises(InputMismatchError, match="no such key token"):
            found.find(no_word, "key")


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
    return encode.tokens_of(tokenizer.encode(text), text)


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
