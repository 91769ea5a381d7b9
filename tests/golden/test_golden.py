"""Machine formats over a spread of inputs print what they printed.

`GOLDEN=write pytest tests/golden` takes the files anew, which is right only for a change that users are told of.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from running import Ran

EXPECTED = Path(__file__).with_name("expected")
TEXT = "time flies like an arrow"
FORMATS = ("json", "jsonl", "tsv", "csv", "md")

INPUTS: dict[str, tuple[str, ...]] = {
    "toy": ("inspect", TEXT, "--num-heads", "2", "--d-model", "8"),
    "pair": ("inspect", TEXT, "--pair", "fruit flies", "--num-heads", "1", "--d-model", "4", "--mask", "full"),
    "target": ("inspect", TEXT, "--target", "le temps vole", "--num-heads", "1", "--d-model", "4"),
    "masked": ("inspect", TEXT, "--num-heads", "2", "--d-model", "8", "--mask", "window(2) & ~keys(1,2)"),
    "blind": ("inspect", "a b c", "--num-heads", "1", "--d-model", "4", "--mask", "causal & pad(left=1)"),
    "uniform": ("inspect", TEXT, "--num-heads", "1", "--d-model", "4", "--init", "linear", "--project", "qk"),
    "demo": ("inspect", "-m", "demo", "time flies", "--layer", "1", "--head", "0,2"),
    "demo-words": ("inspect", "-m", "demo", "unbelievable stories", "--words", "--head", "0"),
    "demo-query": ("inspect", "-m", "demo", TEXT, "--query", "-1", "--top-keys", "2"),
    "demo-norms": ("inspect", "-m", "demo", TEXT, "--norms", "--head", "1"),
    "demo-rollout": ("inspect", "-m", "demo", TEXT, "--rollout"),
    "corpus": ("inspect", "time flies", "an arrow flies", "--num-heads", "1", "--d-model", "4", "--show", "metrics"),
    "heads": ("heads", "-m", "demo", TEXT), "tokens": ("tokens", "-m", "demo", "unbelievable stories of Zürich"),
    "diff": ("diff", "-m", "demo", "time flies", "time stops"), "check": ("check", "-m", "demo", TEXT),
}  # fmt: skip
FEW = {"heads": ("json", "tsv", "csv"), "tokens": ("json", "jsonl", "tsv", "csv"), "diff": ("json", "md"),
       "check": ("json",), "toy": FORMATS, "demo-query": FORMATS, "corpus": FORMATS}  # fmt: skip
CASES = {f"{name}.{form}": (*INPUTS[name], "-F", form) for name in INPUTS for form in FEW.get(name, ("json", "tsv"))}
_NUMBER = re.compile(r"-?\d*\.?\d+(?:[eE][-+]?\d+)?")


def is_close(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return False
    decimals = min(len(number.partition("e")[0].partition(".")[2]) for number in (one, other))
    rounding = 1.01 * 10.0**-decimals if "." in one + other and "e" not in one + other else 0
    return math.isclose(float(one), float(other), rel_tol=1e-4, abs_tol=max(rounding, 2e-6))


def compare(name: str, found: str) -> None:
    file = EXPECTED / name
    if os.environ.get("GOLDEN") == "write":
        file.write_text(found, encoding="utf-8")
    expected = file.read_text(encoding="utf-8")
    if file.suffix in (".json", ".jsonl"):  # whose blanks, and the order of whose members, mean nothing
        found, expected = (
            "\n".join(json.dumps(json.loads(each), sort_keys=True) for each in texts)
            for texts in (([text] if file.suffix == ".json" else text.splitlines()) for text in (found, expected))
        )
    assert re.split(r"[\s─━]+", _NUMBER.sub("#", found)) == re.split(r"[\s─━]+", _NUMBER.sub("#", expected))
    pairs = zip_longest(_NUMBER.findall(found), _NUMBER.findall(expected))
    assert [pair for pair in pairs if not is_close(*pair)] == []


@pytest.mark.parametrize("name", CASES)
def test_the_program_prints_what_it_printed(name: str, attn: Callable[..., Ran]) -> None:
    compare(name, attn(*CASES[name]).out)


@pytest.mark.parametrize("name", ["toy", "masked", "demo", "demo-query"])
def test_a_parquet_file_holds_what_it_held(name: str, attn: Callable[..., Ran], tmp_path: Path) -> None:
    assert attn(*INPUTS[name], "-o", tmp_path / "cells.parquet").code == 0
    table = pq.read_table(tmp_path / "cells.parquet")
    lines = [f"{field.name}: {field.type}" for field in table.schema]
    lines += [" ".join(map(str, row.values())) for row in table.to_pylist()]
    compare(f"{name}.parquet.txt", "\n".join(lines) + "\n")


def test_a_saved_trace_is_the_one_that_was_computed(attn: Callable[..., Ran], tmp_path: Path) -> None:
    ran = attn(*INPUTS["masked"], "-F", "json", "--save", tmp_path / "trace.safetensors")
    again = attn("inspect", "--from", tmp_path / "trace.safetensors", "-F", "json")
    assert again.out.count('"head"') == ran.out.count('"head"') == 2
    compare("from-saved.json", again.out.replace(str(tmp_path), ""))
