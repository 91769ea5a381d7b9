"""Which tokens two sequences share."""

from hypothesis import given
from hypothesis import strategies as st

from attncli.analysis.alignment import align
from attncli.trace.tokens import Token, Tokens


def words(*texts: str, special: str = "") -> Tokens:
    return Tokens(Token(index, index, text, None, None, text in special.split()) for index, text in enumerate(texts))


def pieces(text: str, *found: tuple[str, int, int], segment: int = 0) -> Tokens:
    tokens = [
        Token(index, 0, spelled, start, end, segment=segment) for index, (spelled, start, end) in enumerate(found)
    ]
    assert all(0 <= token.start <= token.end <= len(text) for token in tokens)
    return Tokens(tokens)


def test_the_mark_of_a_space_makes_no_other_word_but_a_continuation_is_one() -> None:
    assert align(words("flies", "like"), words("Ġflies", "▁like")).pairs == ((0, 0), (1, 1))
    assert align(words("s"), words("##s")).pairs == ()


def test_in_one_text_two_tokenizers_share_what_is_the_same_characters() -> None:
    text = "Time flies fast"
    one = pieces(text, ("[CLS]", 0, 0), ("time", 0, 4), ("flies", 5, 10), ("fast", 11, 15))
    other = pieces(text, ("Time", 0, 4), ("Ġfl", 4, 7), ("ies", 7, 10), ("Ġfast", 10, 15))
    assert align(one, other, (text, None)).pairs == ((1, 0), (3, 3))
    assert align(one, other).pairs == ((3, 3),)  # two texts: time is not Time


letters = st.lists(st.sampled_from("abc"), max_size=9)


@given(letters, letters)
def test_pairs_rise_are_equal_and_columns_hold_every_token_once(one: list[str], other: list[str]) -> None:
    first, second = words(*one), words(*other)
    aligned = align(first, second)
    assert all(one[left] == other[right] for left, right in aligned.pairs)
    for before, after in zip(aligned.pairs, aligned.pairs[1:], strict=False):
        assert before[0] < after[0]
        assert before[1] < after[1]
    columns = list(aligned.columns())
    assert [left for left, _ in columns if left is not None] == list(range(len(one)))
    assert [right for _, right in columns if right is not None] == list(range(len(other)))
    assert set(aligned.pairs) <= set(columns)
    assert aligned.is_whole == (one == other)
    if set(one) & set(other):
        assert aligned.pairs
