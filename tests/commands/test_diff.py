"""`attn diff` as a user runs it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attncli

FLIES = ("time flies like an arrow", "fruit flies like a banana")

Run = Callable[..., Any]


@pytest.fixture
def traces(tmp_path: Path, attn: Run) -> tuple[Path, Path]:
    """The same sentence through two layers of other seeds."""
    paths = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for seed, path in enumerate(paths):
        assert attn("inspect", FLIES[0], "--seed", str(seed), "--save", path).code == 0
    return paths


def test_two_traces_are_compared_without_the_model(traces: tuple[Path, Path], attn: Run) -> None:
    ran = attn("diff", "--from", traces[0], "--from", traces[1], "--head", "0-2")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("A  toy layer")
    assert " heads changed by more than 0.05 bits" in ran.out
    first, second = (attncli.load(path) for path in traces)
    same = attn("diff", "--from", traces[0], "--from", traces[0])
    assert (same.code, same.err) == (0, "")
    assert "No head of 4 changed: the weights are the same" in same.out
    document = attn("diff", "--from", traces[0], "--from", traces[1], "-F", "json").json
    expected = attncli.diff(first, second)
    assert [head["jensen_shannon"] for head in document["heads"]] == [head.jensen_shannon for head in expected.heads]


def test_the_cells_that_changed_most_have_the_weights_of_both(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "diff.json"
    assert attn("diff", *FLIES, "-o", path, "--top", "3", "--precision", "2").out == ""
    document = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert document["shared"] == {"queries": [[1, 1], [2, 2]], "keys": [[1, 1], [2, 2]]}
    assert len(document["cells"]) == 3
    for cell in document["cells"]:
        for side, text in zip("ab", FLIES, strict=True):
            head = attncli.inspect(text).layer(0).head(cell["head"])
            weight = float(head.weights[cell[side]["query"], cell[side]["key"]])
            assert cell[side]["weight"] == round(weight, 2)
