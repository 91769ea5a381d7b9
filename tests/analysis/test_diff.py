"""Tokens that two sequences share, and two traces compared, against plain loops over the weights."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import layer_of, tokens_of, trace_of, watched

from attncli.analysis.alignment import align
from attncli.analysis.diff import diff, shared_outcomes
from attncli.errors import InputError, UsageError
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Provenance, Trace

HEADS = 2


def softmax(scores: list[float], allowed: list[bool]) -> list[float]:
    exponentials = [math.exp(score) if may else 0.0 for score, may in zip(scores, allowed, strict=True)]
    return [each / sum(exponentials) for each in exponentials]


def traced(words: str, seed: int = 0, mask: str = "full", layers: tuple[int, ...] = (0,), heads: int = HEADS) -> Trace:
    tokens = tokens_of(*words.split())
    random = np.random.default_rng(seed)
    drawn = [random.standard_normal((2, heads, len(tokens), 3), dtype=np.float32) for _ in layers]
    made = [layer_of(q, k, mask=mask, layer=index) for index, (q, k) in zip(layers, drawn, strict=True)]
    return trace_of(*made, queries=tokens, keys=tokens, source=Provenance("file", layers=len(layers)))


def weights_by_hand(trace: Trace, layer: int, head: int, row: int) -> list[float]:
    recorded = trace.layer(layer)
    query = recorded.q[head, row].tolist()
    scores = [math.fsum(map(float.__mul__, query, key.tolist())) for key in recorded.k[head]]
    return softmax(scores, recorded.head(head).mask[row].tolist())


def divergence_by_hand(first: list[float], second: list[float]) -> float:
    """Return the divergence in bits, by way of entropies: H(mean) − mean of H."""

    def entropy(row: list[float]) -> float:
        return -math.fsum(mass * math.log(mass) / math.log(2) for mass in row if mass > 0)

    middle = [(one + other) / 2 for one, other in zip(first, second, strict=True)]
    return entropy(middle) - (entropy(first) + entropy(second)) / 2


sentences = st.lists(st.sampled_from("abcde"), min_size=1, max_size=6, unique=True).map(" ".join)


@settings(max_examples=60)
@given(sentences, sentences, st.sampled_from(["full", "causal", "window(2)"]))
def test_every_number_is_what_a_plain_loop_gives(one: str, other: str, mask: str) -> None:
    first, second = traced(one, 1, mask), traced(other, 2, mask)
    if not set(one.split()) & set(other.split()):
        with pytest.raises(InputError, match="share no token"):
            diff(first, second)
        return
    found = diff(first, second, top=1000)
    pairs = found.keys.pairs
    cells = {}
    for each in found.heads:
        divergences, elsewhere = [], []
        for rows in pairs:
            whole = [
                weights_by_hand(trace, 0, each.head, row) for trace, row in zip((first, second), rows, strict=True)
            ]
            shared = [[row[pair[side]] for pair in pairs] for side, row in enumerate(whole)]
            rest = [max(1 - math.fsum(row), 0.0) for row in shared]
            divergences.append(divergence_by_hand([*shared[0], rest[0]], [*shared[1], rest[1]]))
            elsewhere.append(rest)
            for place, (left, right) in enumerate(zip(*shared, strict=True)):
                cells[each.head, rows, pairs[place]] = left, right
        assert each.rows == len(pairs)
        assert each.jensen_shannon == pytest.approx(sum(divergences) / len(pairs), abs=1e-6)
        assert each.elsewhere == pytest.approx(
            [sum(side) / len(pairs) for side in zip(*elsewhere, strict=True)], abs=1e-6
        )
    for cell in found.cells:
        assert cell.weights == pytest.approx(cells.pop((cell.head, cell.query, cell.key)), abs=1e-6)
    assert all(left == pytest.approx(right, abs=1e-6) for left, right in cells.values())  # unchanged ones are left out


def test_query_rows_are_chosen_by_their_name_or_place_in_a() -> None:
    first, second = traced("a b c b", 1), traced("x a b c b", 2)
    assert diff(first, second, queries=["b"]).layers[0].chosen == ((1, 2), (3, 4))
    assert diff(first, second, queries=[-1]).layers[0].chosen == ((3, 4),)
    assert diff(first, second, queries=["c", "a", "c"]).layers[0].chosen == ((0, 1), (2, 3))
    with pytest.raises(UsageError, match="--query 'z': no such query token"):
        diff(first, second, queries=["z"])
    with pytest.raises(UsageError, match="--query 'x': only A has it; the tokens that both have are: a b c"):
        diff(second, first, queries=["x"])


def test_layers_and_heads_that_only_one_of_them_has_are_named() -> None:
    first, second = traced("a b", layers=(0, 1, 2), heads=3), traced("a b", 1, layers=(1, 2, 4), heads=2)
    found = diff(first, second)
    assert {(head.layer, head.head) for head in found.heads} == {(1, 0), (1, 1), (2, 0), (2, 1)}
    assert found.notes == ("only A has layer 0", "only A has head 2 of layers 1-2", "only B has layer 4")
    with pytest.raises(InputError, match="no head in common: only A has layer 0; only B has layer 1"):
        diff(traced("a b"), traced("a b", layers=(1,)))


def recorded(weights: list[list[float]], allowed: list[list[bool]] | None = None) -> Trace:
    tokens = tokens_of(*(f"w{index}" for index in range(len(weights[0]))))
    return trace_of(watched(weights, weights, allowed), queries=tokens, keys=tokens)


def test_a_row_without_a_key_or_with_nan_is_left_out_and_said() -> None:
    nan = math.nan
    same = [[1.0, 0.0], [0.0, 1.0]]
    found = diff(recorded(same), recorded([[nan, nan], [1.0, 0.0]]))
    assert (found.heads[0].rows, found.heads[0].jensen_shannon) == (1, 1.0)
    assert [cell.query for cell in found.cells] == [(1, 1), (1, 1)]
    blind = recorded([[0.5, 0.5], [0.0, 1.0]], [[False, False], [True, True]])
    found = diff(blind, recorded(same))
    assert (found.heads[0].rows, found.heads[0].jensen_shannon) == (1, 0.0)
    assert found.notes == ("1 head has rows that were not compared: without a key, padding, or NaN",)
    nothing = diff(recorded([[nan, nan]] * 2), recorded(same)).heads[0]
    assert (nothing.jensen_shannon, nothing.rows, nothing.elsewhere) == (None, 0, None)


def test_what_a_sink_takes_is_elsewhere_and_what_rounding_takes_is_not() -> None:
    row = np.array([[0.5, 0.495]], np.float32)
    both = np.array([0, 1])
    assert shared_outcomes(row, both, True)[0, -1] == pytest.approx(0.005, abs=1e-7)
    assert shared_outcomes(row, both, False)[0].tolist() == pytest.approx([0.5 / 0.995, 0.495 / 0.995, 0])
    half = np.array([[0.25, 0.25]], np.float32)  # recorded weights of a softmax with a sink that nobody recorded
    np.testing.assert_array_equal(shared_outcomes(half, both, False), [[0.25, 0.25, 0.5]])


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
