"""`attn why --composition` as a user runs it, and the same in Python."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attncli
from attncli.analysis.composition import Composition

# Its induction head, 3.3, attends to the token after the earlier `saw`.
TEXT = "the dog saw a cat and the dog saw a fish"
CELL = ("why", "-m", "demo", TEXT, "--head", "3.3", "-q", "9", "--composition")
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def split() -> Composition:
    result: Composition = attncli.inspect(TEXT, "demo", layer=3).layer(3).head(3).composition(9, 4)
    return result


def test_the_key_is_found_through_the_previous_token_head(attn: Run, split: Composition) -> None:
    ran = attn(*CELL)
    assert (ran.code, ran.err) == (0, "")
    assert "query 9 saw → key 4 a · layer 3 · head 3 of 4" in ran.out  # without --key, the heaviest
    assert re.search(r"Key 4 is found mostly through L2H3, which wrote \d+ % of its margin\.", ran.out)
    assert "mean of 9 other keys" in ran.out
    first = split.of_side("key")[0]
    assert (first.writer, first.layer, first.head) == ("head", 2, 3)
    assert first.margin > 0.9 * split.margin
    assert f"{first.value:.4f}" in ran.out
    assert "8 other writers" in ran.out
    assert ran.out == attn(*CELL, "-k", "4").out


def test_its_document_is_the_composition_of_python_and_adds_up(attn: Run, split: Composition) -> None:
    document = attn(*CELL, "-F", "json").json
    assert document["schema"] == "attncli.composition/1"
    assert [document[name] for name in ("layer", "head", "query", "key")] == [3, 3, 9, 4]
    assert document["terms"] == [term._asdict() for term in split.terms]
    for side in ("key", "query"):
        values = [term["value"] for term in document["terms"] if term["side"] == side]
        assert len(values) == 1 + 3 * (4 + 1)
        assert sum(values) == pytest.approx(document["score"], abs=1e-4)
    assert attn(*CELL, "-F", "json", "--precision", "2").json["terms"][0]["value"] == round(split.terms[0].value, 2)


def test_a_saved_trace_has_no_weights(attn: Run, tmp_path: Path) -> None:
    attncli.inspect(TEXT, "demo", layer=3).save(tmp_path / "saved.safetensors")
    ran = attn("why", "--from", tmp_path / "saved.safetensors", "-q", "9", "-H", "3", "--composition")
    assert ran.code == 2
    assert ran.err == "attn: --composition needs the weights of a checkpoint; give --model and the text\n"
