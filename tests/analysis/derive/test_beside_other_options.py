"""Derived numbers beside chosen rows, heaviest keys, one screen, exports, the page, and other readers of traces."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

import attncli
from attncli.errors import UsageError

Run = Callable[..., Any]
SENTENCE = "time flies like an arrow, they say"
DERIVATIONS = (["--norms"], ["--words"], ["--rollout"], ["--mean", "heads"])
NAMES = ("norms", "words", "rollout", "mean")


def matrix(document: dict[str, Any], name: str = "weights") -> np.ndarray[Any, Any]:
    return np.array([[head[name] for head in layer["heads"]] for layer in document["layers"]])


@pytest.mark.parametrize("options", DERIVATIONS, ids=NAMES)
def test_chosen_rows_are_a_slice_and_heaviest_keys_those_of_a_sort(attn: Run, options: list[str]) -> None:
    measure = "norms" if "--norms" in options else "weights"
    whole = matrix(attn("inspect", SENTENCE, *options, "-F", "json").json, measure)
    command = ("inspect", SENTENCE, *options, "--query", "2:5", "--top-keys", "3")
    document = attn(*command, "-F", "json").json
    assert len(document["query_tokens"]) == 3
    header, *lines = attn(*command, "-F", "tsv").out.splitlines()
    assert header.split("\t")[-1] == measure.removesuffix("s")
    rows = iter([line.split("\t") for line in lines])
    for layer, recorded in zip(document["layers"], whole, strict=True):
        for head, weights in zip(layer["heads"], recorded, strict=True):
            for found, row in zip(head["top_keys"], weights[2:5].tolist(), strict=True):
                expected = sorted(range(len(row)), key=lambda key: (-row[key], key))[:3]
                assert found["keys"] == expected
                assert found[measure] == pytest.approx([row[key] for key in expected], abs=1e-6)
                for key, number in zip(expected, found[measure], strict=True):
                    line = next(rows)
                    assert (line[3], line[6], line[8], float(line[-1])) == (str(head["head"]), str(key), "", number)
    assert next(rows, None) is None


def test_a_long_text_is_one_screen_of_derived_numbers_too(attn: Run) -> None:
    for options, width in zip(DERIVATIONS, (60, 100, 200, 60), strict=True):
        ran = attn("inspect", "time flies like an arrow " * 40, *options, "--width", str(width))
        lines = ran.out.splitlines()
        assert (ran.code, len(lines) <= 40, max(map(cell_len, lines)) <= width) == (0, True, True)
        assert "200 tokens: showing blocks of cells" in ran.err
        assert "d_k" not in ran.out  # no shapes: there are no arrays, or no room


def test_other_readers_want_what_was_recorded() -> None:
    trace = attncli.inspect(SENTENCE, num_heads=2)
    derived = attncli.derive(trace, norms=True)
    for name, read in {
        "heads": lambda: attncli.heads(derived),
        "why": lambda: attncli.why(derived, query=0),
        "diff": lambda: attncli.diff(trace, derived),
        "derive": lambda: attncli.derive(derived, words=True),
    }.items():
        with pytest.raises(UsageError, match=f"^{name} needs a recorded trace"):
            read()
    assert derived.recorded is trace
    assert trace.recorded is trace
