"""`attn heads` as a user runs it: tables, rows, documents and maps."""

import csv
import io
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import USAGE, refused
from rich.cells import cell_len
from running import Ran, on_terminal, plain, printed, text_shown

import attncli
from attncli.analysis.heads import HeadReport, HeadSummary
from attncli.analysis.metric_names import NAMES
from attncli.render.heads import HeadTable, grid_parts, table_parts
from attncli.render.palette import Palette
from attncli.trace.trace import Provenance

Run = Callable[..., Ran]
TEXT = "the cat saw the dog and the dog saw the cat"
TWO = ("time flies like an arrow", TEXT)


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
    table = attn("heads", *TWO, "--precision", "3").out
    for entry in document["heads"]:
        assert f"{entry['entropy']:.3f} ±{entry['std']['entropy']:.3f}" in table


def test_what_is_undefined_is_null_empty_or_a_dash_and_sorts_last(attn: Run) -> None:
    text = "time flies"
    assert attn("heads", text, "-F", "json").json["heads"][0]["duplicate"] is None
    assert rows_of(attn("heads", text, "-F", "tsv").out)[0]["duplicate"] == ""
    table = attn("heads", text, "--sort", "duplicate").out
    assert "layer  head  duplicate  entropy" in table
    assert "–" in table
    assert "– not defined for this sentence" in table
    grid = attn("heads", text, "--grid", "duplicate").out
    assert "layer 0 – – – –" in " ".join(grid.split())
    assert "highest" not in grid


def test_the_table_says_over_how_many_sentences_a_metric_is_defined(attn: Run) -> None:
    assert (
        "duplicate, induction over the 1 in which it is defined; special, separator over none"
        in attn("heads", *TWO).out
    )


def test_sorted_the_best_heads_come_first(attn: Run) -> None:
    whole = rows_of(attn("heads", TEXT, "-F", "tsv").out)
    by_value = sorted(whole, key=lambda row: float(row["induction"]))
    assert rows_of(attn("heads", TEXT, "--sort", "-induction", "-F", "tsv").out) == by_value
    assert rows_of(attn("heads", TEXT, "--sort", "induction", "--top", "2", "-F", "tsv").out) == by_value[:1:-1]
    ran = attn("heads", TEXT, "--sort", "induction", "--top", "2")
    assert "2 of 4 heads" in ran.out
    assert [line.split()[1] for line in ran.out.splitlines()[4:6]] == [row["head"] for row in by_value[:1:-1]]


def test_in_colour_the_map_has_numbers_where_they_fit(attn: Run) -> None:
    wide = attn("heads", TEXT, "--grid", "entropy", "--color", "always", TERM="xterm-256color").out
    for entry in attn("heads", TEXT, "-F", "json").json["heads"]:
        assert f" {entry['entropy']:.2f}\x1b" in wide
    many = attn("heads", TEXT, "--num-heads", "16", "--grid", "entropy", "--color", "always", "--width", "60")
    (cells,) = [line for line in many.out.splitlines() if line.startswith("layer 0") and ":" not in line]
    assert "." not in cells


def test_on_one_screen_a_wide_table_is_folded_and_beyond_it_columns_go(attn: Run) -> None:
    few = attn("heads", TEXT, "--width", "60").out
    assert [line for line in few.splitlines() if line.startswith("layer ")][1:]
    assert "no room for" not in few
    assert all(few.count(f" {name}") == 1 for name in NAMES if name not in ("special", "separator"))
    many = attn("heads", TEXT, "--num-heads", "40", "--d-model", "40", "--width", "60", "--sort", "max_score").out
    (header,) = [line for line in many.splitlines() if line.startswith("layer ")]
    shown = header.split()[2:]
    assert shown[0] == "max_score"
    _, _, note = many.rpartition("\n\n")
    gone, _, rest = " ".join(note.split()).partition("no room for ")[2].partition("; ")
    assert sorted([*shown, *gone.split(", "), "special", "separator"]) == sorted(NAMES)
    assert rest == "-F tsv has them, --metrics chooses"
    assert "special, separator not defined for this sentence" in note


def test_a_saved_trace_and_the_other_options_of_a_source(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "cat.safetensors"
    assert attn("inspect", TEXT, "--mask", "full", "--seed", "3", "--save", path).code == 0
    saved, run = (
        attn("heads", "--from", path, "-F", "tsv"),
        attn("heads", TEXT, "--mask", "full", "--seed", "3", "-F", "tsv"),
    )
    assert saved.out == run.out
    assert len(rows_of(attn("heads", "--from", path, "--head", "1,2", "-F", "tsv").out)) == 2


LABELLED = (TEXT, "--num-heads", "8", "--init", "normal", "--label")


def test_every_format_has_the_same_labels(attn: Run) -> None:
    heads = attn("heads", *LABELLED, "-F", "json").json["heads"]
    assert len({head["label"] for head in heads}) > 1
    table = attn("heads", *LABELLED, "--precision", "3").out.partition("layer  head")[2].splitlines()[1:]
    rows = rows_of(attn("heads", *LABELLED, "-F", "tsv").out)
    for head, row, line in zip(heads, rows, table, strict=False):
        assert [row["layer"], row["head"]] == line.split()[:2] == [str(head["layer"]), str(head["head"])]
        assert row["label"] == (head["label"] or "")
        assert (head["label"] or "mixed") in line
        assert row["labels"] == ";".join(label["label"] for label in head["labels"])
        numbers = [row[f"label_{name}"] for name in ("score", "baseline", "gain")]
        first = [head["labels"][0][name] for name in ("score", "baseline", "gain")] if head["labels"] else []
        assert [float(number) for number in numbers if number] == first
        assert [word for word in line.split() if "." in word][: len(first)] == [f"{each:.3f}" for each in first]


def test_with_label_top_keeps_some_heads_of_each_label(attn: Run) -> None:
    labels = [row["label"] for row in rows_of(attn("heads", *LABELLED, "-F", "tsv").out)]
    remaining = [row["label"] for row in rows_of(attn("heads", *LABELLED, "--top", "1", "-F", "tsv").out)]
    assert remaining == list(dict.fromkeys(labels))


def test_the_induction_test_says_what_it_ran_on(attn: Run, tiny_llama: str) -> None:
    ran = attn("heads", "-m", tiny_llama, "--induction")
    assert (ran.code, ran.err) == (0, "")
    assert "10 sequences of 19 tokens · random tokens twice" in ran.out
    (header,) = [line.split() for line in ran.out.splitlines() if line.startswith("layer")]
    assert header == ["layer", "head", "induction", "previous", "duplicate"]
    heads = attn("heads", "-m", tiny_llama, "--induction", "-F", "json").json["heads"]
    assert [head["induction"] for head in heads] == sorted((head["induction"] for head in heads), reverse=True)
    grid = attn("heads", "-m", tiny_llama, "--induction", "--grid", "induction").out
    assert "induction, mean over 10 sequences" in grid
    assert "same token and induction rest on" not in attn("heads", "-m", tiny_llama, "--induction", "--label").out


def test_the_induction_test_of_a_model_that_sees_later_keys_has_a_warning(attn: Run, minilm: str) -> None:
    ran = attn("heads", "-m", minilm, "--induction", "--layer", "0", "--top", "1")
    assert ran.code == 0
    assert "--induction is a test of causal models" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize(("heads", "view"), [(4, ""), (60, ""), (60, "label"), (60, "sort"), (60, "label metrics")])
def test_in_a_terminal_it_is_one_screen(width: int, heads: int, view: str) -> None:
    found = attncli.heads(TEXT, num_heads=heads, d_model=heads)
    shown = HeadTable("sink" if view == "sort" else None, "label" in view, None, 43)
    if "label" in view:
        found = found.by_label().only(("entropy", "sink") if "metrics" in view else ())
    out = printed(table_parts(found, shown, Palette("truecolor"), width), Palette("truecolor"), width)
    written = plain(out).splitlines()
    assert len(written) <= 43
    assert all(cell_len(line) <= width for line in written)
    rows = [line for line in written if line.startswith("    0  ")]
    message = " ".join(" ".join(written).split())
    assert ("one screen: " in message) == (heads == 60)
    if heads == 60:
        assert f"{len(rows)} of 60 heads" in message
        assert len(written) >= 38  # and no line of it is wasted
    if view == "label":
        labels = {head.labels[0].name if head.labels else "mixed" for head in found.heads}
        assert all(any(label in row for row in rows) for label in labels)


def test_all_shows_what_a_screen_has_no_room_for() -> None:
    command = ("heads", TEXT, "--num-heads", "60", "--d-model", "60", "--label")
    for more in ((), ("--all",)):
        shown = text_shown(on_terminal(*command, *more, out=True, COLUMNS="80", LINES="24", PAGER="cat")[2])
        lines = [line for line in shown.splitlines() if line.startswith("    0  ")]
        assert (len(lines) == 60) == (len(shown.splitlines()) > 39) == bool(more)
        assert ("--all shows the rest" in " ".join(shown.split())) == (not more)


def test_where_no_head_is_called_induction_the_test_for_it_is_named(attn: Run) -> None:
    message = "--induction looks for induction heads"
    assert message in attn("heads", "-m", "demo", "time flies", "--label").out
    assert message not in attn("heads", "-m", "demo", "one two three four five one two three four five", "--label").out
    assert message not in attn("heads", "time flies", "--label").out  # the toy layer has none


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--metrics", "sink,entrpy"], "did you mean 'entropy'?"),
        (["--layer", "1"], "out of range"),
        (["--query", "nowhere"], "no such query token"),
        (["-F", "parquet"], "give --output"),
        (["-o", "heads/"], "attn heads writes one table, and no folder of parts; attn inspect -o FOLDER/ --show"),
        (["-o", "heads.jsonl"], "expected a file ending in .json, .tsv, .csv, .parquet, .svg, .pdf, .png, .html, .md"),
    ],
    ids=str,
)
def test_a_bad_request_is_one_sentence(attn: Run, arguments: list[str], says: str) -> None:
    refused(attn("heads", "time flies", *arguments), USAGE, says)


def test_a_map_has_no_range_of_infinities_and_no_undefined_head_at_an_end() -> None:
    values = [math.inf, 1.0, 2.0, None]
    heads = tuple(
        HeadSummary(0, "self", index, dict.fromkeys(NAMES, value), dict.fromkeys(NAMES), dict.fromkeys(NAMES, 1))
        for index, value in enumerate(values)
    )
    found = HeadReport(Provenance("file"), 1, (3, 3), ("full",), len(heads), heads)
    shown = plain(printed(grid_parts(found, "max_score", Palette(), None, None), Palette(), 200)).splitlines()
    assert shown[1] == "max_score   1  ░░░ 1.2 ░▒▒▒ 1.5 ▒▓▓▓ 1.8 ▓███ 2   – not defined   I infinite"
    ends = [line.split("   ")[1] for line in shown[-2:]]
    assert [end.rpartition(": ")[2] for end in ends] == ["inf", "1.0000"]
    assert not any("head 3" in line for line in shown[-2:])


def test_a_thousand_warnings_are_counted(attn: Run) -> None:
    ran = attn("heads", "--mask", "~causal", stdin="\n".join(f"x w{number}" for number in range(1000)))
    assert len(ran.err.splitlines()) == 21
    assert "980 more" in ran.err
