"""Masks drawn from rules × padding × what is done with the queries of padding: how they are named and judged."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from drawn_masks import Drawn, drawn
from live_calls import mask_argument

from attncli.analysis.calls.calls import Calls
from attncli.analysis.calls.expectations import UnexpectedError
from attncli.masks.expressions import Grid, Pad, map_leaves
from attncli.masks.recognition import Rule, RuleVariant, RuleWithExceptions, rule_of
from attncli.recording.call import AttentionCall, CallSite

MASKS = [*drawn(0, 1000)]


def of_words(variant: RuleVariant, mask: Drawn) -> np.ndarray:
    """What a name says of every query, where its `pad` is the true padding of the rows that it calls padded."""
    _, _, queries, keys = mask.cells.shape
    rows = list(variant.rows)
    padded = ~np.broadcast_to(variant.tokens, (len(rows), keys)).all(axis=1, keepdims=True)
    true = Pad(lengths=np.where(padded, mask.tokens[rows], True))
    grid = Grid(np.arange(queries)[:, None], keys, variant.past, queries)
    expression = variant.expression
    assert expression is not None
    if isinstance(expression, RuleWithExceptions):
        expression = expression._replace(inner=map_leaves(expression.inner, lambda leaf: truly(leaf, true)))
    else:
        expression = map_leaves(expression, lambda leaf: truly(leaf, true))
    return np.broadcast_to(expression.allowed(grid), (len(rows), 1, queries, keys))


def truly(leaf: Any, true: Pad) -> Any:
    return true if isinstance(leaf, Pad) else leaf


def wrong_names(rule: Rule, mask: Drawn) -> tuple[bool, bool]:
    """Whether a name is wrong of queries of words, and of queries of padding; one that says nothing is not."""
    of_word = of_padding = False
    for variant in rule.variants:
        if variant.expression is None:
            continue
        rows = list(variant.rows)
        wrong = (of_words(variant, mask) != mask.cells[rows]).any(axis=(1, 3))
        says_others = str(variant.expression).endswith("see other keys")
        of_word |= bool((wrong & mask.tokens[rows]).any())
        of_padding |= bool((wrong & ~mask.tokens[rows]).any()) and not says_others
    return of_word, of_padding


@pytest.mark.parametrize("is_known", [False, True], ids=["shown by the mask", "known"])
def test_words_are_named_first_and_right(is_known: bool) -> None:
    count: Counter[str] = Counter()
    for mask in MASKS:
        batch, _, queries, keys = mask.cells.shape
        tokens = mask.tokens if is_known else None
        rule = rule_of(mask.cells, (batch, 2, queries, keys), tokens=tokens)
        of_word, of_padding = wrong_names(rule, mask)
        assert not of_word, f"{mask} is called {rule.text}"
        count["padding"] += of_padding
        count["unnamed"] += any(variant.expression is None for variant in rule.variants)
    assert count["padding"] <= len(MASKS) / 100
    assert count["unnamed"] <= len(MASKS) / (100 if is_known else 20)


def call(mask: np.ndarray) -> AttentionCall:
    batch, _, queries, keys = mask.shape
    q, k = torch.zeros(batch, 2, queries, 4), torch.zeros(batch, 2, keys, 4)
    facts = {"scale": 0.5, "dtype": "float32", "device": "cpu", "output": torch.ones(batch, 2, queries, 4)}
    own = mask_argument(torch.from_numpy(mask.copy()))
    return AttentionCall(
        "sdpa", CallSite("m.py", 1, "f", "attn"), (batch, 2, queries, keys), q=q, k=k, v=k, masks=(own,), **facts
    )


@pytest.mark.filterwarnings("ignore:cannot check `pad`")  # of a batch without any
def test_what_is_right_is_not_accused() -> None:
    for mask in MASKS:
        calls = Calls()
        calls.take(call(mask.cells))
        calls.finish()
        assert not calls.notes
        assert not [one.message for one in calls.findings if one.severity == "error"], str(mask)
        calls.check(mask.expected)
        if "pad" in mask.expected:
            calls.check(mask.expected, lengths=mask.tokens)


def test_one_wrong_cell_of_a_word_is_found() -> None:
    rng = np.random.default_rng(0)
    for mask in MASKS[:200]:
        wrong = mask.cells.copy()
        row = int(rng.integers(len(wrong)))
        query, key = int(rng.choice(np.flatnonzero(mask.tokens[row]))), int(rng.integers(wrong.shape[3]))
        wrong[row, 0, query, key] ^= True
        calls = Calls()
        calls.take(call(wrong))
        lengths = {"lengths": mask.tokens} if "pad" in mask.expected else {}
        with pytest.raises(UnexpectedError):
            calls.check(mask.expected, **lengths)


def test_some_is_said_where_it_is_some() -> None:
    """Libraries let the queries of padding that would see nothing see every key."""
    keys = np.arange(6)
    words = keys < np.array([[6], [3]])
    plane = np.abs(keys[:, None] - keys) <= 1
    cells = (plane & words[:, None])[:, None]
    rule = rule_of(cells | ~cells.any(axis=-1, keepdims=True), (2, 1, 6, 6))
    assert rule.text == "band(1,1) & pad (row 1 of 2), some padding queries see every key"
    rule = rule_of(cells & words[:, None, :, None], (2, 1, 6, 6))
    assert rule.text == "band(1,1) & pad (row 1 of 2), padding queries see nothing"
