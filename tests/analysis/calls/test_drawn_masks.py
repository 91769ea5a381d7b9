"""Masks drawn from rules × padding × what is done with the queries of padding: how they are named and judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from live_calls import mask_argument

from attncli.analysis.calls.calls import Calls
from attncli.analysis.calls.expectations import UnexpectedError
from attncli.masks.expressions import Grid, Pad, map_leaves
from attncli.masks.recognition import Rule, RuleVariant, RuleWithExceptions, rule_of
from attncli.recording.call import AttentionCall, CallSite

Plane = np.ndarray  # of booleans, [T, T], True = attend


class Drawn(NamedTuple):
    """A mask, and what it is."""

    rule: str  # as an expression, without padding
    trick: str  # what the queries of padding see
    side: str  # on which the padding is, or `gaps`; `none` without
    tokens: np.ndarray  # `[B, T]`, which keys are words
    cells: np.ndarray  # `[B, 1, T, T]`, True = attend

    @property
    def expected(self) -> str:
        """What a user expects it to be."""
        if self.side == "none":
            return self.rule
        pad = "pad"
        return pad if self.rule == "full" else f"({self.rule}) & {pad}" if "|" in self.rule else f"{self.rule} & {pad}"

    def __str__(self) -> str:
        return f"{self.rule} × {self.side} {self.tokens.sum(1).tolist()} of {self.tokens.shape[1]} × {self.trick}"


def _documents(i: np.ndarray, j: np.ndarray, lengths: list[int]) -> Plane:
    number = np.repeat(np.arange(len(lengths)), lengths)
    return number[i] == number[j]


def draw_rule(rng: np.random.Generator, size: int) -> tuple[str, Plane]:
    """Return an expression and its cells."""
    i, j = np.arange(size)[:, None], np.arange(size)[None, :]
    w, n, c = (int(each) for each in rng.integers(2, max(size // 2, 3), 3))
    cut = sorted({int(each) for each in rng.integers(2, size - 1, 2)}) if size > 5 else [2]
    lengths = np.diff([0, *cut, size]).tolist()
    docs = ",".join(map(str, lengths))
    rules: list[tuple[str, Callable[[], Plane]]] = [
        ("full", lambda: (i == i) & (j == j)),
        ("causal", lambda: j <= i),
        (f"window({w})", lambda: (j <= i) & (j > i - w)),
        (f"band({w},{n})", lambda: (j >= i - w) & (j <= i + n)),
        (f"chunk({c})", lambda: i // c == j // c),
        (f"causal & chunk({c})", lambda: (i // c == j // c) & (j <= i)),
        (f"docs({docs})", lambda: _documents(i, j, lengths)),
        (f"causal & docs({docs})", lambda: _documents(i, j, lengths) & (j <= i)),
        (f"causal | prefix({n})", lambda: (j <= i) | (j < n)),
        (f"causal & (window({w}) | prefix({n}))", lambda: (j <= i) & ((j > i - w) | (j < n))),
        (f"band({w},{w}) | global(0)", lambda: (abs(i - j) <= w) | (i == 0) | (j == 0)),
        (f"dilated({w},2)", lambda: (j <= i) & ((i - j) % 2 == 0) & (i - j < 2 * w)),
        (f"band(0,{size - 1})", lambda: j >= i),
        (f"band({size - 1},1)", lambda: j <= i + 1),
    ]
    weights = np.array([4, 6, 3, 1, 1, 1, 1, 3, 2, 2, 1, 1, 0.5, 0.5])
    name, cells = rules[rng.choice(len(rules), p=weights / weights.sum())]
    return name, np.broadcast_to(cells(), (size, size))


TRICKS: dict[str, Callable[[Plane, np.ndarray, Plane], Plane]] = {
    # What a query of padding sees, from the rule, the words of its row, and the diagonal.
    "the words": lambda rule, words, own: rule & words,
    "nothing": lambda rule, words, own: rule & False,
    "themselves": lambda rule, words, own: own,
    "the words and themselves": lambda rule, words, own: (rule & words) | own,
    "each other": lambda rule, words, own: rule & ~words,
    "everything": lambda rule, words, own: rule | True,
    "everything, where they would see nothing": lambda rule, words, own: (
        (rule & words) | ~(rule & words).any(1, keepdims=True)
    ),
    "the rule alone": lambda rule, words, own: rule,
}


def draw_tokens(rng: np.random.Generator, batch: int, size: int, side: str) -> np.ndarray:
    """Return which keys of each row are words."""
    lengths = rng.integers(1 + size // 4, size + 1, batch)
    if rng.random() < 0.8:
        lengths[rng.integers(batch)] = size
    places = np.arange(size)[None, :]
    if side == "none":
        return np.ones((batch, size), bool)
    if side == "left":
        return places >= size - lengths[:, None]
    return places < lengths[:, None]


def draw(rng: np.random.Generator) -> Drawn:
    """Return a mask."""
    size, batch = int(rng.integers(4, 25)), int(rng.integers(1, 5))
    rule, plane = draw_rule(rng, size)
    side = str(rng.choice(["none", "right", "left"], p=[0.2, 0.5, 0.3]))
    trick = str(rng.choice([*TRICKS])) if side != "none" else "the words"
    tokens = draw_tokens(rng, batch, size, side)
    own = np.eye(size, dtype=bool)
    cells = np.stack([np.where(words[:, None], plane & words, TRICKS[trick](plane, words, own)) for words in tokens])[
        :, None
    ]
    if tokens.all():
        side, trick = "none", "the words"
    return Drawn(rule, trick, side, tokens, cells)


def drawn(seed: int, count: int) -> Iterator[Drawn]:
    """Yield so many masks."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield draw(rng)


MASKS = [*drawn(0, 400)]


def of_words(variant: RuleVariant, mask: Drawn) -> np.ndarray:
    """What a name says of every query, where its `pad` is the true padding of the rows that it calls padded."""
    _, _, queries, keys = mask.cells.shape
    rows = list(variant.rows)
    padded = ~np.broadcast_to(variant.tokens, (len(rows), keys)).all(axis=1, keepdims=True)
    true = Pad(lengths=np.where(padded, mask.tokens[rows], True))
    grid = Grid(np.arange(queries)[:, None], keys, variant.past, queries)
    expression = variant.expression
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
    for mask in MASKS[:100]:
        wrong = mask.cells.copy()
        row = int(rng.integers(len(wrong)))
        query, key = int(rng.choice(np.flatnonzero(mask.tokens[row]))), int(rng.integers(wrong.shape[3]))
        wrong[row, 0, query, key] ^= True
        calls = Calls()
        calls.take(call(wrong))
        lengths = {"lengths": mask.tokens} if "pad" in mask.expected else {}
        with pytest.raises(UnexpectedError):
            calls.check(mask.expected, **lengths)
