"""`--min-weight`: the rows of the cells that weigh enough, and nothing else is lost."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Run = Callable[..., Any]

SENTENCE = "time flies like an arrow but fruit flies like a banana"


def rows(out: str) -> list[list[str]]:
    return [line.split("\t") for line in out.splitlines()[1:]]


def place(row: list[str]) -> tuple[int, int, int]:
    """The head, the query and the key of a row."""
    return int(row[3]), int(row[4]), int(row[6])


@pytest.mark.parametrize("least", ["0", "0.15", "0.3", "0.7", "1"])
@pytest.mark.parametrize("mask", ["causal", "none", "causal & window(2)"])
def test_the_rows_are_those_that_awk_would_keep(attn: Run, mask: str, least: str) -> None:
    every = rows(attn("inspect", SENTENCE, "--mask", mask, "-F", "tsv").out)
    expected = [row for row in every if row[9] == "true" and float(row[10]) >= float(least)]
    ran = attn("inspect", SENTENCE, "--mask", mask, "-F", "tsv", "--min-weight", least)
    assert (ran.code, ran.err) == (0, "")
    found = rows(ran.out)
    assert sorted(found, key=place) == expected
    # The heaviest key of each query stands first.
    order = [(place(row)[:2], -float(row[10]), place(row)[2]) for row in found]
    assert order == sorted(order)
    comma = attn("inspect", SENTENCE, "--mask", mask, "-F", "csv", "--min-weight", least).out
    assert comma == ran.out.replace("\t", ",")


def test_a_weight_is_kept_by_the_digits_that_it_is_written_with(attn: Run) -> None:
    # A float32 is not the decimal number that it is written as; some lie below theirs.
    every = rows(attn("inspect", SENTENCE, "-F", "tsv").out)
    weights = sorted({row[10] for row in every if row[9] == "true" and float(row[10]) < 1}, key=float)
    for least in weights[:: len(weights) // 20]:
        kept = rows(attn("inspect", SENTENCE, "-F", "tsv", "--min-weight", least).out)
        assert min((row[10] for row in kept), key=float) == least


def test_with_top_keys_both_hold(attn: Run) -> None:
    top = rows(attn("inspect", SENTENCE, "-F", "tsv", "--top-keys", "2").out)
    both = rows(attn("inspect", SENTENCE, "-F", "tsv", "--top-keys", "2", "--min-weight", "0.3").out)
    assert both == [row for row in top if float(row[10]) >= 0.3]
    assert 0 < len(both) < len(top)


def test_json_lists_the_same_keys_in_place_of_the_matrices(attn: Run) -> None:
    found = rows(attn("inspect", SENTENCE, "-F", "tsv", "--min-weight", "0.3").out)
    heads = attn("inspect", SENTENCE, "-F", "json", "--min-weight", "0.3").json["layers"][0]["heads"]
    assert set(heads[0]) == {"head", "top_keys", "metrics"}
    assert [
        (head["head"], query, key, weight)
        for head in heads
        for query, keys in enumerate(head["top_keys"])
        for key, weight in zip(keys["keys"], keys["weights"], strict=True)
    ] == [(*place(row), float(row[10])) for row in found]


def test_the_table_lists_them_too(attn: Run) -> None:
    out = attn("inspect", SENTENCE, "-H", "1", "--min-weight", "0.3", "--precision", "6").out
    assert "keys of each query with a weight of 0.3 or more" in out
    words = SENTENCE.split()
    for row in rows(attn("inspect", SENTENCE, "-H", "1", "-F", "tsv").out):
        _, query, key = place(row)
        (line,) = [each for each in out.splitlines() if each.split()[:3] == ["1", str(query), words[query]]]
        weight = float(np.float32(row[10]))  # as it was computed: its shortest digits are another number
        assert (f" {key} {words[key]} {weight:.6f}" in line) == (weight >= 0.3)


def test_a_table_of_no_keys_at_all_is_still_one(attn: Run) -> None:
    ran = attn("inspect", "a b", "-H", "0", "--mask", "none", "--min-weight", "1")
    assert (ran.code, ran.err) == (0, "")
    assert "0  0 a\n" in ran.out
    assert rows(attn("inspect", "a b", "-H", "0", "--mask", "none", "--min-weight", "1", "-F", "tsv").out) == []


def test_nan_is_never_left_out(attn: Run) -> None:
    ran = attn("inspect", "a b c", "-H", "0", "--mask", "causal & ~queries(1,2)", "--min-weight", "1", "-F", "tsv")
    assert [(row[4], row[6], row[10]) for row in rows(ran.out) if row[4] == "1"] == [
        ("1", key, "nan") for key in "012"
    ]  # fmt: skip


def test_a_stream_of_sentences_keeps_its_numbers(attn: Run) -> None:
    ran = attn("inspect", "-F", "jsonl", "--min-weight", "0.9", stdin="a b\n \nc d\n")
    assert ran.code == 5
    assert [json.loads(line)["text"] for line in ran.out.splitlines()] == ["a b", "c d"]
    found = attn("inspect", "-F", "tsv", "--min-weight", "0.9", stdin="a b\n \nc d\n").out
    assert {row[0] for row in rows(found)} == {"1", "3"}


@pytest.mark.parametrize("given", ["-0.1", "1.01", "nan", "inf", "half", ""])
def test_a_weight_is_a_number_between_0_and_1(attn: Run, given: str) -> None:
    ran = attn("inspect", "a b", f"--min-weight={given}")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "--min-weight" in ran.err


@pytest.mark.parametrize("least", ["0.9", "2", "1e300"])
def test_a_norm_is_held_against_it_whatever_its_size(attn: Run, least: str) -> None:
    every = rows(attn("inspect", SENTENCE, "--norms", "-F", "tsv").out)
    expected = [place(row) for row in every if row[9] == "true" and float(row[10]) >= float(least)]
    assert bool(expected) == (least != "1e300")
    ran = attn("inspect", SENTENCE, "--norms", "-F", "tsv", "--min-weight", least)
    assert (ran.code, ran.err) == (0, "")
    assert sorted(map(place, rows(ran.out))) == expected
