"""`attn heads` and `attn diff` over many sentences: groups, parts that are merged, processes, and bad ones."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

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
    """Sentences with labels; one has none, and one is no sentence."""
    labels = ["x", "y", "x", 3, "y", None]
    lines = [json.dumps({"text": text, "label": label}) for text, label in zip(TEXTS, labels, strict=True)]
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join([*lines, '{"text": 5}']) + "\n")
    return path


def without_group(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{name: value for name, value in row.items() if name != "group"} for row in rows]


def test_groups_are_what_separate_runs_give(attn: Run, records: Path) -> None:
    ran = attn("heads", "--file", records, "--by", "label", "-F", "json")
    assert ran.code == 5
    assert ran.err.startswith("attn: sentence 7:")
    document = ran.json
    named = [{"group": "3", "sentences": 1}, {"group": "x", "sentences": 2}, {"group": "y", "sentences": 2}]
    assert (document["sentences"], document["by"]) == (6, "label")
    assert document["groups"] == [*named, {"group": None, "sentences": 1}]
    of_groups: dict[str | None, list[str]] = {"3": TEXTS[3:4], "x": TEXTS[:3:2], "y": TEXTS[1:5:3], None: TEXTS[5:]}
    rows = list(
        csv.DictReader(io.StringIO(attn("heads", "--file", records, "--by", "label", "-F", "tsv").out), delimiter="\t")
    )
    table = attn("heads", "--file", records, "--by", "label", "--metrics", "sink").out
    for group, texts in of_groups.items():
        alone = attn("heads", *texts, "--each", "-F", "json").json["heads"]
        entries = [entry for entry in document["heads"] if entry["group"] == group]
        for entry, head in zip(entries, alone, strict=True):
            assert {name: entry[name] for name in head} == head
        own = [row for row in rows if row["group"] == (group or "")]
        assert [row["sink"] for row in own] == [str(head["sink"]) for head in alone]
        assert f"toy layer · label {group or '–'} · 4 heads" in table


def test_parts_that_are_merged_are_the_whole(attn: Run, tmp_path: Path) -> None:
    for number, texts in enumerate((TEXTS[:1], TEXTS[1:4], TEXTS[4:])):
        assert attn("heads", *texts, "--each", "-o", tmp_path / f"{number}.parquet").code == 0
    parts = [tmp_path / f"{number}.parquet" for number in range(3)]
    for shown in ("-F json", "-F tsv", "--sort sink --top 2", "--grid entropy", "--label", "--spread ci95"):
        assert (
            attn("heads", "--merge", *parts, *shown.split()).out == attn("heads", *TEXTS, "--each", *shown.split()).out
        )


def test_the_induction_test_can_be_merged(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "test.parquet"
    assert attn("heads", "-m", "demo", "--induction", "-o", path).code == 0
    assert attn("heads", "--merge", path).out == attn("heads", "-m", "demo", "--induction").out


def test_processes_give_the_digits_of_one(attn: Run, records: Path) -> None:
    ways = [attn("heads", "--file", records, "--by", "label", "-F", "json", "--jobs", jobs) for jobs in ("1", "2")]
    assert ways[0].out == ways[1].out
    assert ways[0].err == ways[1].err


def test_intervals_and_quantiles_stand_beside_means(attn: Run) -> None:
    document = attn("heads", *TEXTS, "--each", "-F", "json").json
    survey = attncli.heads(TEXTS)
    means = attn("heads", *TEXTS, "--each", "--spread", "ci95", "--metrics", "entropy").out
    medians = attn("heads", *TEXTS, "--each", "--spread", "quantiles", "--metrics", "entropy").out
    for entry, head in zip(document["heads"], survey.heads, strict=True):
        low, high = entry["ci95"]["entropy"]
        assert (low, high) == head.ci95["entropy"]
        assert low < entry["entropy"] < high
        assert entry["min"]["entropy"] <= entry["quantiles"]["0.5"]["entropy"] <= entry["max"]["entropy"]
        assert f"{entry['entropy']:.4f} [{low:.4f}, {high:.4f}]" in means
        first, middle, last = (entry["quantiles"][share]["entropy"] for share in ("0.05", "0.5", "0.95"))
        assert f"{middle:.4f} [{first:.4f}, {last:.4f}]" in medians
    assert "mean and its 95 % confidence interval over 6 sentences" in means
    assert "median and 5 % to 95 % quantile, to 1 %, over 6 sentences" in medians


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        ("--merge", 2, "--merge: give files that attn heads -o FILE.parquet has written"),
        ("--merge missing.parquet", 5, "cannot read missing.parquet"),
        ("--merge a.parquet -m demo", 2, "--model does not apply to --merge"),
        ("--merge a.parquet --by label", 2, "--by does not apply to --merge"),
        ("--merge a.parquet --jobs 2", 2, "--jobs does not apply to --merge"),
        ("time --by label", 2, "--by applies to --file"),
        ("--file some.jsonl --by lable", 5, "some.jsonl has no field 'lable'; there are text, label; did you mean"),
        ("--file some.jsonl --by text,label", 2, "--by 'text,label': expected one name of a field or a column"),
        ("--file some.jsonl --keep label", 2, "--keep does not apply to numbers over all sentences; --by NAME makes"),
        ("--file some.txt --by label", 2, "--by does not apply to some.txt, which is text; it names a field"),
        ("time -F parquet", 2, "say where with --output"),
        ("time --grid sink --spread ci95", 2, "--spread does not apply to --grid"),
    ],
)
def test_a_bad_request_is_one_sentence_and_its_code(
    attn: Run, records: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, code: int, why: str
) -> None:
    monkeypatch.chdir(records.parent)
    Path("some.txt").write_text("time flies\n")
    ran = attn("heads", *arguments.split())
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.count("\n") == 1
    assert why in ran.err


def test_two_checkpoints_are_compared_over_many_sentences(attn: Run, tiny_llama: str, tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_bytes("\n".join(TEXTS[:3]).encode() + b"\n\xff\n")
    ran = attn("diff", "-m", "demo", "-m", tiny_llama, "--file", path, "-F", "json")
    assert ran.code == 5
    assert "attn: sentence 4: it is not UTF-8" in ran.err
    document = ran.json
    assert list(document) == ["schema", "a", "b", "sentences", "unit", "heads", "notes"]
    assert (document["schema"], document["sentences"]) == ("attncli.diff/1", 3)
    single = [attn("diff", "-m", "demo", "-m", tiny_llama, text, "-F", "json").json["heads"] for text in TEXTS[:3]]
    for head in document["heads"]:
        same = [
            each for one in single for each in one if (each["layer"], each["head"]) == (head["layer"], head["head"])
        ]
        known = [each["jensen_shannon"] for each in same if each["jensen_shannon"] is not None]
        assert head["count"] == len(known)
        assert head["jensen_shannon"] == pytest.approx(sum(known) / len(known), rel=1e-5)  # they are computed together
    table = attn("diff", "-m", "demo", "-m", tiny_llama, "--file", path, "--top", "1").out
    assert (
        f"heads that changed most, of {len(document['heads'])} · Jensen-Shannon divergence, 0 to 1 bit · 3 sentences"
        in table
    )
    first = document["heads"][0]
    assert f"{first['layer']:>5}  {first['head']:>4}  {first['jensen_shannon']:.4f} ±{first['std']:.4f}" in table


def test_a_file_of_one_sentence_is_compared_as_that_sentence_is(attn: Run, tiny_llama: str, tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text(TEXTS[1] + "\n")
    models = ("-m", "demo", "-m", tiny_llama)
    assert attn("diff", *models, "--file", path).out == attn("diff", *models, TEXTS[1]).out


def test_a_folder_has_the_parts_of_a_corpus_and_is_gone_on_with(attn: Run, records: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    command = ("heads", "--file", records, "--by", "label", "-o", f"{folder}/")
    first = attn(*command)
    assert (first.code, first.out) == (5, "")
    assert "7 sentences in 1 part" in first.err
    part = folder / "part-00000-00000.parquet"
    whole = part.read_bytes()
    assert "1 of them there before" in attn(*command).err
    part.unlink()
    attn(*command, "--jobs", "2")
    assert part.read_bytes() == whole
    assert attn("heads", "--merge", folder).out == attn(*command[:-2]).out
    other = attn("heads", "--file", records, "-o", f"{folder}/")
    assert (other.code, "holds parts of another run: --by was label" in other.err) == (2, True)
    into = attn("heads", "--merge", folder, "-o", f"{tmp_path}/more/")
    assert (into.code, "--merge puts all into one file" in into.err) == (2, True)
