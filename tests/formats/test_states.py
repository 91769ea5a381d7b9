"""Statistics of heads in files: what is read is what was written, and what cannot be is said."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

import attncli
from attncli.analysis.heads import Gathering, Survey, SurveyStates
from attncli.errors import InputError, UsageError
from attncli.formats.states import merged_files, read_states, table_of, write_states
from attncli.trace.trace import Trace
from attncli.trace.view import View

TEXTS = ["time flies like an arrow", "fruit flies", "a rose is a rose is a rose", "one two one", "x", "so it goes"]


def traces(**options: int) -> list[Trace]:
    return [attncli.inspect(text, num_heads=2, d_model=8, **options) for text in TEXTS]


def states(some: list[Trace], by: str | None = None, view: View | None = None) -> SurveyStates:
    gathered = Gathering(view or View(), by=by)
    for number, trace in enumerate(some):
        object.__setattr__(trace, "kept", {"odd": bool(len(trace.text) % 2)} if number else {})
        gathered.add(number, trace)
    return gathered.states()


def written(states: SurveyStates, path: Path) -> Path:
    write_states(states, path)
    return path


def merged(*paths: Path) -> SurveyStates:
    return merged_files((path, path.name) for path in paths)


@pytest.mark.parametrize("by", [None, "odd"])
def test_what_is_read_is_what_was_written(tmp_path: Path, by: str | None) -> None:
    given = states(traces(), by)
    read = read_states(written(given, tmp_path / "a.parquet"), "a")
    assert read.surveys() == given.surveys()
    assert [survey.group and survey.group.value for survey in read.surveys()] == (
        [None] if by is None else ["false", "true", None]
    )
    assert str(table_of(read).to_pylist()) == str(table_of(given).to_pylist())


def test_files_of_parts_are_merged_to_what_the_whole_gives(tmp_path: Path) -> None:
    some = traces()
    parts = [written(states(part), tmp_path / f"{len(part)}.parquet") for part in (some[:1], some[1:3], some[3:])]
    (whole,) = merged(*parts).surveys()
    assert whole == attncli.heads(TEXTS, num_heads=2, d_model=8)
    # And where the tables stand behind each other in one file.
    together = pyarrow.concat_tables([parquet.read_table(part) for part in parts])
    parquet.write_table(together, tmp_path / "all.parquet")
    assert merged(tmp_path / "all.parquet").surveys() == [whole]


def test_the_columns_are_numbers_that_other_programs_read(tmp_path: Path) -> None:
    found: Survey = attncli.heads(TEXTS, num_heads=2, d_model=8)
    rows = parquet.read_table(written(states(traces()), tmp_path / "a.parquet")).to_pylist()
    for row in rows:
        head = found.heads[row["head"]]
        assert row["count"] == head.counts[row["metric"]] == sum(row["bucket_counts"])
        if row["count"]:
            assert row["mean"] == pytest.approx(head.metrics[row["metric"]])
        if row["count"] > 1:
            assert (row["m2"] / (row["count"] - 1)) ** 0.5 == pytest.approx(head.std[row["metric"]])


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    mine = written(states(traces()), tmp_path / "mine.parquet")
    others = {
        "is of seed 0, the other of 3": states(traces(seed=3)),
        "the same layers and heads": states([attncli.inspect("a b", num_heads=4, d_model=8)]),
        "in no groups, the other grouped by odd": states(traces(), "odd"),
        "other queries": states(traces(), view=View(queries=(0,))),
    }
    for number, (why, other) in enumerate(others.items()):
        path = written(other, tmp_path / f"{number}.parquet")
        with pytest.raises(UsageError, match=f"{number}.parquet does not go with those before it: .*{why}"):
            merged(mine, path)


def test_a_file_that_is_none_of_them_is_named(tmp_path: Path) -> None:
    good = written(states(traces()), tmp_path / "good.parquet")
    table = parquet.read_table(good)
    content = good.read_bytes()
    bad = {
        "missing": None,
        "empty": b"",
        "cut": content[:-20],
        "other": pyarrow.table({"a": [1]}),
        "rows": table.slice(3),
        "order": pyarrow.concat_tables([table.slice(0, 5), table]),
        "counts": table.set_column(5, "count", pyarrow.array([7] * len(table))),
        "about": table.set_column(15, "about", pyarrow.array(["{"] * len(table))),
    }
    for name, content_ in bad.items():
        path = tmp_path / f"{name}.parquet"
        if isinstance(content_, bytes):
            path.write_bytes(content_)
        elif content_ is not None:
            parquet.write_table(content_, path)
        with pytest.raises(InputError, match=f"cannot read {path.name}, which attn heads -o"):
            merged(good, path)


def test_no_byte_changes_without_being_noticed(tmp_path: Path) -> None:
    given = states(traces())
    surveys, good = given.surveys(), written(given, tmp_path / "good.parquet").read_bytes()
    noticed = 0
    places = range(7, len(good), len(good) // 40)
    for place in places:
        path = tmp_path / "bad.parquet"
        path.write_bytes(good[:place] + bytes([good[place] ^ 64]) + good[place + 1 :])
        try:
            assert read_states(path, "bad").surveys() == surveys  # it is of no use to us, as statistics of pages
        except InputError:
            noticed += 1
    assert noticed > len(places) / 2


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    good = written(states(traces()), tmp_path / "good.parquet")
    table = parquet.read_table(good)
    rows = table.to_pylist()
    about = json.loads(rows[0]["about"])
    said: list[dict[str, Any]] = [
        *({**about, name: value} for name in set(about) - {"by"} for value in (None, "\x1b[2J", -1, 10**30, {}, True)),
        *(
            {**about, "source": {**about["source"], name: value}}
            for name, value in {
                "model": 3,
                "layers": None,
                "details": [],
                "notes": [1],
                "seed": 0.5,
                "kind": None,
            }.items()
        ),
    ]
    bad = [[{**row, "about": json.dumps(one)} for row in rows] for one in said]
    bad.append([{**row, "about": "[" * 100_000} for row in rows])
    bad.append(rows[::-1])  # each number would be another head's
    wrong: list[tuple[str, Any]] = [
        *((name, -1) for name in ("count", "uniform_count", "m2")),
        *((name, None) for name in ("mean", "min", "max", "uniform_mean", "metric", "head", "buckets")),
        *(("head", 99), ("kind", "x"), ("metric", "x"), ("bucket_counts", [-5]), ("count", 2**62)),
    ]
    bad.extend([*rows[:5], {**rows[5], name: value}, *rows[6:]] for name, value in wrong)
    for one in bad:
        parquet.write_table(pyarrow.Table.from_pylist(one, schema=table.schema), tmp_path / "bad.parquet")
        with pytest.raises(InputError, match=r"cannot read bad, which attn heads -o"):
            read_states(tmp_path / "bad.parquet", "bad")
