"""The rule that a mask follows, found from its cells alone: each rule as plain loops, batches of any padding."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli.masks.expressions import Grid
from attncli.masks.recognition import Rule, rule_of

# --- batches and heads ---------------------------------------------------------------------------------------

Allows = Callable[[int, int], bool]  # query position (past included), key position


def loops(allows: Allows, queries: int, keys: int, past: int) -> np.ndarray:
    return np.array([[allows(past + row, key) for key in range(keys)] for row in range(queries)])


def documents(lengths: list[int]) -> Allows:
    number = [place for place, length in enumerate(lengths) for _ in range(length)]
    return lambda i, j: number[i] == number[j]


def both(one: Allows, other: Allows) -> Allows:
    return lambda i, j: one(i, j) and other(i, j)


def causal(i: int, j: int) -> bool:
    return j <= i


BY_HAND: dict[str, Allows] = {
    "full": lambda i, j: True,
    "causal": causal,
    "window(3)": lambda i, j: j in (i, i - 1, i - 2),
    "causal & ~window(1)": lambda i, j: j < i,
    "band(2,1)": lambda i, j: j in (i - 2, i - 1, i, i + 1),
    "causal | prefix(4)": lambda i, j: j < 4 or j <= i,
    "causal & chunk(5)": lambda i, j: i // 5 == j // 5 and j <= i,
    "causal & docs(3,2,7)": both(causal, documents([3, 2, 7])),
    "window(3) & docs(5,7)": both(lambda i, j: i - 3 < j <= i, documents([5, 7])),
    "dilated(3,2)": lambda i, j: j in (i, i - 2, i - 4),
    "global(0,6)": lambda i, j: i in (0, 6) or j in (0, 6),
    "window(2) | global(1)": lambda i, j: j in (i, i - 1) or i == 1 or j == 1,
    "causal & (window(3) | prefix(2))": lambda i, j: j <= i and (j > i - 3 or j < 2),
}


def reproduced(rule: Rule) -> np.ndarray:
    """The cells of every variant, laid out by the expressions alone."""
    _, _, queries, keys = rule.shape
    cells = np.zeros(rule.shape, bool)
    for variant in rule.variants:
        grid = Grid(np.arange(queries)[:, None], keys, variant.past, queries)
        laid = np.broadcast_to(variant.expression.allowed(grid), (len(variant.rows), 1, queries, keys))
        cells[np.ix_(variant.rows, variant.heads)] = laid
    return cells


@pytest.mark.parametrize("name", BY_HAND)
def test_each_rule_is_told_by_its_name(name: str) -> None:
    cells = loops(BY_HAND[name], 12, 12, 0)
    rule = rule_of(cells[None, None], (2, 3, 12, 12))
    assert (rule.text, str(rule.expression), rule.padded, rule.varies) == (name, name, (), None)
    whole = np.broadcast_to(cells, (2, 3, 12, 12)).copy()
    assert rule_of(whole, (2, 3, 12, 12)).text == name
    assert (reproduced(rule) == whole).all()


@pytest.mark.parametrize(("name", "side"), [("full", "left"), ("causal", "right"), ("causal & docs(3,2,7)", "left")])
def test_the_padding_of_each_row_is_told(name: str, side: str) -> None:
    lengths = (9, 12, 12, 10)
    tokens = [[key < length if side == "right" else key >= 12 - length for key in range(12)] for length in lengths]
    cells = loops(BY_HAND[name], 12, 12, 0) & np.array(tokens)[:, None, None]
    rule = rule_of(cells, (4, 2, 12, 12))
    pad = "pad" if side == "right" else "pad(left)"
    assert rule.text == f"{pad if name == 'full' else f'{name} & {pad}'} (rows 0, 3 of 4)"
    assert (rule.padded, rule.varies) == ((0, 3), None)
    assert (rule.tokens == np.array(tokens)).all()
    assert (reproduced(rule) == np.broadcast_to(cells, (4, 2, 12, 12))).all()


def test_padding_of_all_rows_alike_is_a_number_and_of_all_rows_is_no_list() -> None:
    lower, keys = np.tri(6, dtype=bool), np.arange(6)
    assert rule_of((lower & (keys < 4))[None, None], (3, 1, 6, 6)).text == "causal & pad(right=2)"
    assert rule_of((lower & (keys < 4))[None, None], (3, 1, 6, 6)).tokens.sum(axis=1).tolist() == [4, 4, 4]
    assert rule_of(lower & (keys < np.array([4, 3])[:, None])[:, None, None], (2, 1, 6, 6)).text == "causal & pad"
    assert rule_of(((keys != 2) & (keys < 5))[None, None, None], (1, 1, 6, 6)).text == "pad with gaps"
    gaps = np.array([[1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0]], bool)[:, None, None]
    assert rule_of(gaps & lower, (2, 1, 6, 6)).text == "causal & pad with gaps (row 1 of 2)"
    sides = np.array([[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]], bool)[:, None, None]
    assert rule_of(sides & lower, (2, 1, 6, 6)).text == "causal & pad"
    empty = np.array([[1, 1, 1], [0, 0, 0]], bool)[:, None, None]
    assert rule_of(empty, (2, 1, 3, 3)).tokens.sum(axis=1).tolist() == [3, 0]


def test_top_left_and_bottom_right_are_told_apart() -> None:
    shape = (1, 1, 3, 7)
    left, right = (np.tri(3, 7, past, dtype=bool)[None, None] for past in (0, 4))
    found = [(rule.text, rule.variants[0].past) for rule in (rule_of(left, shape), rule_of(right, shape))]
    assert found == [("causal, aligned top-left", 0), ("causal", 4)]
    assert rule_of(right, shape, 0).text == "causal, aligned bottom-right (past 4)"
    assert rule_of(left, shape, 0).text == "causal"
    padded = np.tri(3, 7, dtype=bool) & (np.arange(7) < np.array([3, 2])[:, None])[:, None, None]
    assert rule_of(padded, (2, 1, 3, 7)).text == "causal & pad (row 1 of 2), aligned top-left"


def test_heads_and_rows_with_rules_of_their_own_are_named() -> None:
    lower, whole = np.tri(12, dtype=bool), np.ones((12, 12), bool)
    heads = rule_of(np.stack([lower] * 4 + [whole] * 4)[None], (2, 8, 12, 12))
    assert (heads.text, heads.varies, heads.expression) == ("heads 0-3 causal, 4-7 full", "heads", None)
    assert (reproduced(heads)[1] == np.stack([lower] * 4 + [whole] * 4)).all()
    rows = np.stack([loops(documents(lengths), 10, 10, 0) for lengths in ([3, 2, 5], [4, 6], [3, 2, 5])])
    packed = rule_of(rows[:, None], (3, 2, 10, 10))
    assert (packed.text, packed.varies) == ("rows 0, 2 docs(3,2,5), 1 docs(4,6)", "rows")
    assert (reproduced(packed) == rows[:, None]).all()
    padded = np.stack([np.stack([lower, whole]) & (np.arange(12) < length) for length in (12, 7)])
    assert rule_of(padded, (2, 2, 12, 12)).text == "heads 0 causal & pad (row 1 of 2), 1 pad (row 1 of 2)"
    long = loops(documents(list(range(1, 12))), 66, 66, 0)
    assert rule_of(long[None, None], (1, 1, 66, 66)).text == "docs(1,2,3,4,… 11 in all)"
    many = np.stack([loops(BY_HAND[name], 12, 12, 0) for name in list(BY_HAND)[:6]])
    text = rule_of(many[None], (1, 6, 12, 12)).text
    assert text == "heads 0 full, 1 causal, 2 window(3) and 3 more"


def test_cells_that_follow_no_rule_are_said_to_be_their_own() -> None:
    random = np.random.default_rng(0).random((2, 3, 9, 9)) < 0.4
    rule = rule_of(random, (2, 3, 9, 9))
    share = round(100 * random.mean())
    assert rule.text == f"irregular mask, {share} % of cells allowed"
    assert (rule.expression, rule.varies, len(rule.variants)) == (None, None, 1)
    assert rule_of(np.zeros((1, 1, 4, 4), bool), (2, 1, 4, 4)).text == "nothing: every key is masked"
    some = np.tri(9, dtype=bool) & (np.arange(9) < np.array([9, 7, 5, 9])[:, None])[:, None]
    some[0, 2, 6] = True  # one wrong cell does not hide what the other rows are
    assert rule_of(some[:, None], (4, 1, 9, 9)).text == "rows 1-3 causal & pad (rows 1-2 of 4), 0 irregular mask"
    lost = np.stack([loops(documents([4, 5]), 9, 9, 0), np.zeros((9, 9), bool), loops(documents([3, 6]), 9, 9, 0)])
    assert rule_of(lost[:, None], (3, 1, 9, 9)).text == (
        "rows 0 docs(4,5), 2 docs(3,6), 1 nothing: every key is masked"
    )
    two = np.stack([np.tri(9, dtype=bool), random[0, 0]])
    assert rule_of(two[:, None], (2, 1, 9, 9)).text == "rows 0 causal, 1 irregular mask"


def test_a_query_after_a_cache_is_told_by_its_padding() -> None:
    tokens = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], bool)[:, None, None]
    assert rule_of(tokens, (2, 4, 1, 5)).text == "pad(left) (row 1 of 2)"
    assert rule_of(np.ones((1, 1, 1, 5), bool), (2, 4, 1, 5)).text == "full"
    assert rule_of(np.arange(5)[None, None, None] < 1, (1, 4, 1, 5)).text == "causal, aligned top-left"


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_whatever_is_recognised_gives_the_very_cells(data: st.DataObject) -> None:
    batch, heads, queries, keys = shape = tuple(data.draw(st.integers(1, 4)) for _ in range(4))
    compact = [data.draw(st.sampled_from([1, side])) for side in shape]
    bits = data.draw(st.lists(st.booleans(), min_size=int(np.prod(compact)), max_size=int(np.prod(compact))))
    cells = np.array(bits).reshape(compact)
    rule = rule_of(cells, shape, data.draw(st.integers(0, 3)))
    whole = np.broadcast_to(cells, shape)
    covered = np.zeros((batch, heads), bool)
    for variant in rule.variants:
        covered[np.ix_(variant.rows, variant.heads)] = True
        if variant.expression is not None:
            grid = Grid(np.arange(queries)[:, None], keys, variant.past, queries)
            laid = np.broadcast_to(variant.expression.allowed(grid), (len(variant.rows), 1, queries, keys))
            assert (laid == whole[np.ix_(variant.rows, variant.heads)]).all()
    assert covered.all()
