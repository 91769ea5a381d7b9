"""Pairs of a query and its right keys: what a file may say, and the numbers against plain loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attncli
from attncli.analysis.pairs import PairReport, PairSummary, read_pairs
from attncli.errors import InputError, InputMismatchError

TEXT = "the cat saw the dog and the dog saw the cat"
LINES: list[dict[str, Any]] = [
    {"text": TEXT, "pairs": [{"query": 10, "keys": [1, 4]}, {"query": "dog", "keys": ["cat"], "among": ["saw", 0]}]},
    {"text": "time flies like an arrow", "query": [5, 14], "keys": [[0, 4]]},
]  # fmt: skip


def by_hand(trace: attncli.Trace, head: int, query: list[int], right: list[int], among: list[int]) -> list[float]:
    layer, sums = trace.layers[0], np.zeros(4)
    for row in query:
        weights, allowed = layer.head(head).weights[row], layer.head(head).mask[row]
        seen = [key for key in right if allowed[key]]
        competing = [key for key in among if allowed[key]]
        best = [key for key in competing if weights[key] == max(weights[competing])]  # "cat" and "cat" are alike
        sums += (
            len(set(best) & set(right)) / len(best), sum(weights[key] for key in seen), len(seen) / len(competing),
            len(seen) / allowed.sum(),
        )  # fmt: skip
    return (sums / len(query)).tolist()


def test_the_numbers_are_those_of_plain_loops() -> None:
    options: dict[str, Any] = {"num_heads": 4, "init": "normal", "seed": 3}
    report = attncli.heads(pairs=LINES, **options)
    one, other = (attncli.inspect(line["text"], **options) for line in LINES)
    for head in report.heads:
        expected = np.mean([
            by_hand(one, head.head, [10], [1, 4], [*range(11)]),
            by_hand(one, head.head, [4, 7], [1, 10], [0, 1, 2, 8, 10]),
            by_hand(other, head.head, [1, 2], [0], [*range(5)]),
        ], axis=0)  # fmt: skip
        found = (head.hits, head.weight, head.hits_uniform, head.weight_uniform)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert list(report.heads) == sorted(report.heads, key=lambda head: (-head.hits, -head.weight))
    assert (report.pairs, report.sentences, report.tokens) == (3, 2, (5, 11))


def test_with_targets_the_queries_are_theirs() -> None:
    lines: list[dict[str, Any]] = [
        {"text": "the cat sat", "target": "die Katze", "query": "Katze", "keys": ["cat"]},
        {"text": "a dog", "target": "ein Hund da", "query": [4, 8], "keys": [1]},
    ]
    report = attncli.heads(pairs=lines, seed=0)
    assert {head.kind for head in report.heads} == {"cross"}
    weights = [
        attncli.inspect(line["text"], target=line["target"], seed=0).layers[0].head(report.heads[0].head).weights[1, 1]
        for line in lines
    ]
    assert report.heads[0].weight == pytest.approx(np.mean(weights))


WRONG: dict[str, str] = {
    "{": "line 1 is not JSON",
    "[]": "line 1: it is not a JSON object",
    '{"text": "", "query": 0, "keys": [0]}': "line 1: 'text' is missing or no text",
    '\n{"text": "a", "qery": 0, "keys": [0]}': "line 2: there is no field 'qery'; did you mean 'query'?",
    '{"text": "a", "query": [3, 1], "keys": [0]}': "line 1: 'query' is not a token",
    '{"text": "a", "query": true, "keys": [0]}': "line 1: 'query' is not a token",
    '{"text": "a", "query": 0, "keys": "a"}': "line 1: 'keys' is not a list",
    '{"text": "a", "query": 0, "keys": [0, null]}': "line 1: 'keys' is not a list",
    '{"text": "a", "query": 0, "keys": [0], "among": 1}': "line 1: 'among' is not a list",
    '{"text": "a", "target": 1, "query": 0, "keys": [0]}': "line 1: 'target' is no text",
    '{"text": "a", "pairs": []}': "line 1: 'pairs' is not a list",
    '{"text": "a", "pairs": [{"query": 0, "keys": [0], "weight": 1}]}': "line 1: a pair is more or less",
    '{"text": "a", "pairs": [{"query": 0, "keys": [0]}], "query": 0}': "line 1: its pairs stand",
    "\n": "holds no pair",
}  # fmt: skip


@pytest.mark.parametrize("content", WRONG)
def test_a_line_that_is_no_pair_is_refused_by_its_number(content: str, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(content)
    with pytest.raises(InputError, match=r"pairs\.jsonl") as refused:
        read_pairs(file)
    assert WRONG[content] in str(refused.value)


@pytest.mark.parametrize(("wrong", "why"), [
    ({"query": "cow", "keys": [0]}, "sentence 1: query 'cow': no such query token"),
    ({"query": 3, "keys": [11]}, "sentence 1: key 11 is out of range"),
    ({"query": 3, "keys": [[43, 50]]}, r"sentence 1: key \[43, 50\]: no token has these characters"),
    ({"query": 3, "keys": [4]}, "sentence 1: the mask causal hides the keys from the query"),
    ({"pairs": [{"query": 3, "keys": [0]}, {"query": "cow", "keys": [0]}]}, "sentence 1: pair 2: query 'cow'"),
])  # fmt: skip
def test_a_pair_that_the_text_has_not_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(InputMismatchError, match=why):
        attncli.heads(pairs=[{"text": TEXT, **wrong}])


def test_a_pair_that_no_head_can_find_is_left_out_and_named() -> None:
    found, hidden = {"query": 10, "keys": [1]}, {"query": 3, "keys": [4]}
    lines = [{"text": TEXT, "pairs": [hidden, found]}, {"text": "a b", "query": 0, "keys": [1]}]
    report = attncli.heads(pairs=lines)
    reasons = ["sentence 1: pair 1: the mask causal hides the keys", "sentence 2: the mask causal hides the keys"]
    assert [one[: len(reason)] for one, reason in zip(report.left_out, reasons, strict=True)] == reasons
    assert (report.pairs, report.heads) == (1, attncli.heads(pairs=[{"text": TEXT, **found}]).heads)


def test_the_heads_that_chance_makes_as_good_as_the_best_are_those_of_a_simulation() -> None:
    random = np.random.default_rng(0)
    for pairs, chance, hits in ((2, 0.5, 1.0), (5, 0.2, 0.6), (24, 0.5, 0.75), (3, 1.0, 1.0), (4, 0.25, 0.0)):
        heads = tuple(PairSummary(0, "self", head, hits, 0.5, chance, 0.1) for head in range(12))
        report = PairReport(attncli.inspect("a").source, pairs, (3, 3), ("causal",), pairs, heads)
        drawn = random.binomial(pairs, chance, (20_000, 12)) >= hits * pairs - 1e-9
        assert report.by_chance == pytest.approx(drawn.sum(axis=1).mean(), abs=0.1)
