"""`attn heads` over many sentences: means, processes, and bad ones."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from running import Ran

import attncli

Run = Callable[..., Ran]
TEXTS = [
    "time flies",
    "the cat saw the dog",
    "a rose is a rose",
    "so it goes",
    "fruit flies like a banana",
    "one two one",
]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Sentences, of which the last one is none."""
    lines = [json.dumps({"text": text}) for text in TEXTS]
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join([*lines, '{"text": 5}']) + "\n")
    return path


def test_means_and_deviations_are_those_of_single_runs(attn: Run, records: Path) -> None:
    ran = attn("heads", "--file", records, "-F", "json")
    assert (ran.code, ran.json["sentences"]) == (5, 6)
    assert ran.err.startswith("attn: sentence 7:")
    single = [attn("heads", text, "-F", "json").json["heads"] for text in TEXTS]
    for place, head in enumerate(ran.json["heads"]):
        values = [one[place]["entropy"] for one in single]
        assert head["counts"]["entropy"] == 6
        assert head["entropy"] == pytest.approx(statistics.fmean(values), rel=1e-6)
        assert head["std"]["entropy"] == pytest.approx(statistics.stdev(values), rel=1e-5)
    path = records.with_name("heads.parquet")
    assert attn("heads", "--file", records, "-o", path).code == 5
    frame = attncli.heads(TEXTS, model="demo").to_dataframe()
    assert pd.read_parquet(path).astype(frame.dtypes).equals(frame)
