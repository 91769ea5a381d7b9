"""`attn heads` as a user runs it: tables, rows, documents and maps."""

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from running import Ran

import attncli
from attncli.analysis import OF_ANY_TEXT as NAMES

Run = Callable[..., Ran]
TEXT = "the cat saw the dog and the dog saw the cat"
TWO = ("time flies like an arrow", TEXT, "--seed", "0")


def rows_of(out: str, comma: str = "\t") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(out), delimiter=comma))


def test_every_format_has_the_same_numbers(attn: Run, tmp_path: Path) -> None:
    document = attn("heads", *TWO, "-F", "json").json
    assert document["schema"] == "attncli.heads/1"
    assert document["sentences"] == 2
    tsv, comma = attn("heads", *TWO, "-F", "tsv").out, attn("heads", *TWO, "-F", "csv").out
    assert tsv.replace("\t", ",") == comma
    rows = rows_of(tsv)
    for entry, row in zip(document["heads"], rows, strict=True):
        assert (row["layer"], row["kind"], row["head"]) == (str(entry["layer"]), entry["kind"], str(entry["head"]))
        for name in NAMES:
            assert (float(row[name]) if row[name] else None) == entry[name]
            assert (float(row[f"{name}_std"]) if row[f"{name}_std"] else None) == entry["std"][name]
            assert int(row[f"{name}_count"]) == entry["counts"][name]
    path = tmp_path / "heads.tsv"
    assert attn("heads", *TWO, "-o", path).out == ""
    assert path.read_text() == tsv
    table = attn("heads", *TWO, "--all", "--precision", "3").out
    for entry in document["heads"]:
        assert f"{entry['entropy']:.3f} ±{entry['std']['entropy']:.3f}" in table


def test_the_induction_test_says_what_it_ran_on(attn: Run, tiny_llama: str) -> None:
    ran = attn("heads", "-m", tiny_llama, "--induction")
    assert (ran.code, ran.err) == (0, "")
    assert "10 sequences of 19 tokens · random tokens twice" in ran.out
    (header,) = [line.split() for line in attn("heads", "-m", tiny_llama, "--induction", "--all").out.splitlines()][2:3]
    assert header == ["layer", "head", "label", "induction", "previous", "duplicate"]
    heads = attn("heads", "-m", tiny_llama, "--induction", "-F", "json").json["heads"]
    assert [head["induction"] for head in heads] == sorted((head["induction"] for head in heads), reverse=True)
    assert "over 10 sequences" in attn("heads", "-m", tiny_llama, "--induction", "--metrics", "sink").out


@pytest.mark.parametrize("extra", [[], ["-F", "json"], ["-j", "2", "-F", "tsv"]])
def test_a_pair_that_the_mask_hides_is_left_out_and_the_run_goes_on(
    attn: Run, tmp_path: Path, extra: list[str]
) -> None:
    hidden, found = {"query": 1, "keys": [3]}, {"query": 6, "keys": ["cat"]}
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps({"text": TEXT, "pairs": [pair]}) for pair in (found, hidden, found)))
    ran = attn("heads", "-m", "demo", "--pairs", file, *extra)
    assert ran.code == 0
    assert "warning: 1 of 3 pairs is left out; sentence 2: the mask causal hides the keys" in ran.err
    if not extra:
        assert "2 of 3 pairs in 2 texts" in ran.out
    file.write_text(json.dumps({"text": TEXT, "pairs": [hidden]}))
    assert (attn("heads", "-m", "demo", "--pairs", file).code) == 2


def test_pairs_rank_heads_in_every_format_and_a_bad_line_is_named(attn: Run, tmp_path: Path) -> None:
    lines = [
        {"text": TEXT, "pairs": [{"query": 10, "keys": [1]}, {"query": "dog", "keys": ["cat"], "among": ["saw"]}]},
        {"text": TEXT, "query": "cow", "keys": [0]},
        {"text": "time flies", "query": [5, 10], "keys": ["time"]},
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    ran = attn("heads", "-m", "demo", "--pairs", file, "-F", "json")
    assert (ran.code, "sentence 2: query 'cow': no such query token" in ran.err) == (5, True)
    document = ran.json
    assert (document["schema"], document["texts"], document["pairs"]) == ("attncli.pairs/1", 2, 3)
    rows = rows_of(attn("heads", "-m", "demo", "--pairs", file, "-F", "tsv", "--top", "3", "-j", "2").out)
    assert [{name: str(value) for name, value in head.items()} for head in document["heads"][:3]] == rows
    report = attncli.heads(model="demo", pairs=[lines[0], lines[2]])
    for head, entry in zip(report.heads, document["heads"], strict=True):
        assert asdict(head) == pytest.approx(entry, abs=1e-5)
    assert re.search(r"With 3 pairs, \d\S* of 16\s+heads", attn("heads", "-m", "demo", "--pairs", file).out)
    shown = attn("heads", "-m", "demo", "--pairs", file).out
    assert f"L{rows[0]['layer']}H{rows[0]['head']} " in shown
    assert re.search(r"median +\d.*\n.*uniform +\d", shown)
