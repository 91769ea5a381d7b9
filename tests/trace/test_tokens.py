"""Tokens: what is shown of them is safe, and a user finds them by what is shown."""

import sys
import unicodedata

import pytest
from hypothesis import strategies as st

from attncli.errors import InputMismatchError, UsageError
from attncli.text import visible
from attncli.trace.tokens import Token, Tokens

BIDIRECTIONAL = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C]
ZERO_WIDTH = [0x200B, 0x2060, 0xFEFF, 0x00AD]
LINE_BREAKS = [0x2028, 0x2029, 0x0085]
CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
HIDDEN = {chr(code) for code in [*BIDIRECTIONAL, *ZERO_WIDTH, *LINE_BREAKS, *CONTROLS, *range(0xD800, 0xE000)]}

# Nothing is drawn for these either.
INVISIBLE = [0x180E, *range(0x2061, 0x2065), *range(0x206A, 0x2070), *range(0xFFF9, 0xFFFC), 0xE0001]

any_text = st.text(st.one_of(st.characters(), st.sampled_from(sorted(HIDDEN))))


def token(text: str, index: int = 0) -> Token:
    return Token(index, 0, text, None, None)


def tokens(*texts: str) -> Tokens:
    return Tokens(token(text, index) for index, text in enumerate(texts))


# --- shown safely --------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("text", "shown"), [
    ("naïve 日本語 ελληνικά עברית", "naïve 日本語 ελληνικά עברית"), ("👩‍👩‍👧 क्‍ष", "👩‍👩‍👧 क्‍ष"),
    ("a\nb\tc\r", r"a\nb\tc\r"), ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"), ("\x00\x7f\x85", r"\x00\x7f\x85"),
    ("\u202egpj.exe", r"\u202egpj.exe"), ("a\u200bb\ufeff\u00ad", r"a\u200bb\ufeff\xad"), ("\udcff", r"\udcff"),
])  # fmt: skip
def test_what_is_hidden_is_written_as_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(("text", "label"), [
    ("time", "time"), ("##ing", "##ing"), ("Ġflies", "␣flies"), ("▁flies", "␣flies"), ("", "''"), ("\n", r"\n"),
    ("Ġ\x1b[31m", r"␣\x1b[31m"), ("\u0301", "◌\u0301"), ("\u200d👧", "◌\u200d👧"), (" ", "␣"), ("\u00a0", "␣"),
])  # fmt: skip
def test_a_label_is_the_token_as_people_read_it(text: str, label: str) -> None:
    assert token(text).label == label


# --- found by what is shown ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "places"), [
    ("time", [0]), ("the", [2, 5]), ("ing", [3]), ("Ġflies", [4]), ("␣flies", [4]), ("flies", [4]), ("-9", [0]),
    ("4", [4]), ("2024", [6]), (r"\x1b[31m", [7]), ("\x1b[31m", [7]), ("sun", [8]),
])  # fmt: skip
def test_a_token_is_found_by_its_text_its_label_or_its_index(wanted: str, places: list[int]) -> None:
    sequence = tokens("time", "[SEP]", "the", "##ing", "Ġflies", "the", "2024", "\x1b[31m", "▁sun")
    assert sequence.find(wanted, "query") == places


@pytest.mark.parametrize("wanted", ["3", "-4"])
def test_an_index_out_of_range_is_refused_with_the_range(wanted: str) -> None:
    with pytest.raises(UsageError) as refused:
        tokens("a", "b", "c").find(wanted, "query")
    assert str(refused.value) == f"--query {wanted} is out of range: there are 3 query tokens, 0..2"


def test_a_near_miss_is_suggested_as_it_is_shown() -> None:
    with pytest.raises(UsageError) as refused:
        tokens("time", "Ġflies", "like").find("flys", "key")
    assert str(refused.value) == "--key 'flys': no such key token; did you mean '␣flies'?"


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
