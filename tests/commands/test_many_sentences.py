"""`attn heads` and `attn diff` over many sentences: means, processes, and bad ones."""

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
    frame = attncli.heads(TEXTS, model="demo").to_dataframe("pandas")
    assert pd.read_parquet(path).astype(frame.dtypes).equals(frame)


def test_two_checkpoints_are_compared_over_many_sentences(attn: Run, tiny_llama: str, tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_bytes("\n".join(TEXTS[:3]).encode() + b"\n\xff\n")
    ran = attn("diff", "-m", "demo", "-m", tiny_llama, "--file", path, "-F", "json")
    assert ran.code == 5
    assert "attn: sentence 4: it is not UTF-8" in ran.err
    document = ran.json
    assert list(document) == ["schema", "a", "b", "sentences", "unit", "heads", "notes"]
    assert (document["schema"], document["sentences"]) == ("attncli.diff/1", 3)
    table = attn("diff", "-m", "demo", "-m", tiny_llama, "--file", path, "--top", "1").out
    count = sum(head["jensen_shannon"] > 0.05 for head in document["heads"])
    assert f"{count} of {len(document['heads'])} heads changed by more than 0.05 bits, most L" in table
    assert any("heads of the two models do not correspond" in note for note in document["notes"])
    assert "mean ± standard deviation over 3 sentences" in table
    first = document["heads"][0]
    assert f"L{first['layer']}H{first['head']}  {first['jensen_shannon']:.4f} ±{first['std']:.4f}" in table


def test_a_file_of_one_sentence_is_compared_as_that_sentence_is(attn: Run, tiny_llama: str, tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text(TEXTS[1] + "\n")
    models = ("-m", "demo", "-m", tiny_llama)
    assert attn("diff", *models, "--file", path).out == attn("diff", *models, TEXTS[1]).out
