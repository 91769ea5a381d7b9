"""Every format tells the same numbers, in the shapes that other programs rely on, and harms no terminal."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outputs import hold, strict_json
from safetensors.numpy import save_file

import attncli

Run = Callable[..., Any]

SENTENCE = "time flies like an arrow"


def rows_of(text: str, delimiter: str = "\t") -> list[dict[str, str]]:
    if delimiter == ",":
        return list(csv.DictReader(io.StringIO(text)))
    header, *lines = text.split("\n")[:-1]
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


def heads_of(attn: Run, *arguments: Any) -> list[dict[str, Any]]:
    return strict_json(attn("inspect", *arguments, "-F", "json").out)["layers"][0]["heads"]


def printed(table: str) -> dict[int, list[list[str]]]:
    """Return the cells that a table prints for each head, where it shows one matrix a head."""
    heads: dict[int, list[list[str]]] = {}
    for line in table.splitlines():
        if title := re.match(r"head (\d+) of", line):
            heads[int(title[1])] = []
        elif heads and (row := re.match(r"\s*\d+ \S+ +(.+)$", line)):
            heads[max(heads)].append(row[1].split())
    return heads


def dump(folder: Path, q: np.ndarray, tokens: list[str] | None = None) -> Path:
    metadata = {"tokens": json.dumps(tokens)} if tokens else None
    ones = np.ones_like(q)
    save_file({"q": q, "k": q if tokens else ones, "v": ones}, folder / "dump.safetensors", metadata=metadata)
    return folder / "dump.safetensors"


# --- the same numbers --------------------------------------------------------------------------------------


def test_every_format_and_the_table_carry_the_same_numbers(attn: Run) -> None:
    base = ["inspect", SENTENCE, "-H", "0,3", "--precision", "6"]
    (layer,) = attn(*base, "-F", "json").json["layers"]
    _, queries, keys = layer["shapes"]["weights"]
    cells = {
        (head["head"], row, column): tuple(head[name][row][column] for name in ("scores", "mask", "weights"))
        for head in layer["heads"]
        for row in range(queries)
        for column in range(keys)
    }
    assert len(cells) == len(layer["heads"]) * queries * keys
    assert len({score for score, _, _ in cells.values()}) > len(cells) // 2
    assert strict_json(attn(*base, "-F", "jsonl").out)["layers"] == [layer]
    for name, delimiter in (("tsv", "\t"), ("csv", ",")):
        read = {
            tuple(int(row[name]) for name in ("head", "query", "key")): (
                float(row["score"]), row["allowed"] == "true", float(row["weight"])
            )
            for row in rows_of(attn(*base, "-F", name).out, delimiter)
        }  # fmt: skip
        assert read == cells
    tables = {part: printed(attn(*base, "--show", part).out) for part in ("scores", "weights")}
    for (head, row, column), (score, allowed, weight) in cells.items():
        assert float(tables["scores"][head][row][column]) == score
        shown = tables["weights"][head][row][column]
        assert (shown == "·") is not allowed
        assert (0.0 if shown == "·" else float(shown)) == weight
    assert tables["scores"].keys() == tables["weights"].keys() == {head["head"] for head in layer["heads"]}


def test_all_digits_are_there_and_no_more(attn: Run, tmp_path: Path) -> None:
    trace = attncli.inspect(SENTENCE).layer(0)
    out = attn("inspect", SENTENCE, "-F", "json", "--show", "q,k,v,scores,weights,output,metrics").out
    for head in strict_json(out)["layers"][0]["heads"]:
        for name in ("q", "k", "v", "scores", "weights", "output"):
            np.testing.assert_array_equal(np.array(head[name], np.float32), getattr(trace.head(head["head"]), name))
    numbers = re.findall(r"-?\d+\.\d+(?:e-?\d+)?", json.dumps(json.loads(out, parse_float=str)["layers"][0]["heads"]))
    assert len(numbers) > 500
    assert all(float(text) == float(str(np.float32(text))) for text in numbers)
    for row in rows_of(attn("inspect", SENTENCE, "-F", "tsv").out):
        assert all(text == str(np.float32(text)) for text in (row["score"], row["weight"]))
    double = np.random.default_rng(0).standard_normal((1, 3, 4))
    np.testing.assert_array_equal(
        np.array(heads_of(attn, "--from", dump(tmp_path, double), "--show", "q")[0]["q"]), double[0]
    )


# --- the JSON document -------------------------------------------------------------------------------------


def test_show_selects_what_heads_hold_and_nothing_else(attn: Run) -> None:
    whole = attn("inspect", SENTENCE, "-F", "json").json
    default = whole.pop("layers")[0]
    del default["heads"]
    matrices = ("q", "k", "v", "scores", "mask", "weights", "output", "metrics")
    for part in ("q", "mask", "output", "metrics", "tokens"):
        document = attn("inspect", SENTENCE, "-F", "json", "--show", part).json
        layer = document.pop("layers")[0]
        assert document == whole
        assert [set(head) for head in layer.pop("heads")] == [{"head", *({part} & {*matrices})}] * 4
        assert ("projected" in layer) is (part == "output")
        layer.pop("projected", None)
        assert layer == default


def test_what_is_no_number_is_a_string_and_the_document_stays_valid(attn: Run, tmp_path: Path) -> None:
    ran = attn("inspect", "time flies", "--mask", "~full", "-F", "json", "--show", "scores,mask,weights,output,metrics")
    assert (ran.code, ran.err.count("\n")) == (0, 1)
    assert ran.err.startswith("attn: warning: ")
    for head in strict_json(ran.out)["layers"][0]["heads"]:
        assert head["weights"] == [["nan", "nan"], ["nan", "nan"]]
        assert {type(value) for row in head["output"] for value in row} == {str}
        assert {type(value) for row in head["scores"] for value in row} == {float}
        assert head["mask"] == [[False, False], [False, False]]
        assert set(head["metrics"].values()) == {None}
    path = dump(tmp_path, np.array([[[np.inf, 0, 0], [-np.inf, 0, 0]]], np.float32))  # infinities keep their sign
    (head,) = heads_of(attn, "--from", path)
    assert head["scores"] == [["inf", "inf"], ["-inf", "-inf"]]
    assert head["weights"] == [["nan", "nan"], ["nan", "nan"]]
    rows = rows_of(attn("inspect", "--from", path, "-F", "tsv").out)
    assert [row["score"] for row in rows] == ["inf", "inf", "-inf", "-inf"]


# --- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["json", "svg", "html", "md"])
def test_the_ending_of_the_file_decides_the_format(attn: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"out.{name.upper()}"
    path.write_text("precious", encoding="utf-8")
    assert attn("inspect", " ", "-o", path).code == 5  # and a run that fails leaves it as it was
    assert path.read_text(encoding="utf-8") == "precious"
    ran = attn("inspect", SENTENCE, "-o", path)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert path.read_text(encoding="utf-8") == attn("inspect", SENTENCE, "-F", name).out
    assert list(tmp_path.iterdir()) == [path]


# --- harmless ----------------------------------------------------------------------------------------------

HOSTILE = (
    "\x1b[31mred\x1b[0m \x07bell \x9b31m \x85next \u202egnp.exe\u202c \u2066iso\u2069 \u200bzero \u2028line \x7f "
    "[/INST] [bold]x[/bold] :smile: 漢字 \U0001f469\u200d\U0001f467 👍🏽 ␛"
)


@pytest.mark.parametrize("name", ["table", "json", "jsonl", "tsv", "csv", "svg", "html", "md"])
def test_no_control_character_of_a_sentence_reaches_the_output(attn: Run, name: str) -> None:
    for options in (["--pair", HOSTILE], ["--target", HOSTILE]):
        ran = attn("inspect", HOSTILE, *options, "-F", name)
        assert ran.code == 0
        hold(ran.code, ran.out, ran.err, name)
    assert name not in ("json", "jsonl") or strict_json(ran.out)["text"] == HOSTILE


def test_tokens_are_escaped_in_rows_whole_in_documents_and_not_interpreted_in_tables(attn: Run, tmp_path: Path) -> None:
    tokens = [
        "a\tb",
        "c\nd",
        "e\\f",
        'g,"h"',
        "\x1b[31m",
        "\r",
        "[/INST]",
        "[bold]x",
        "[link=x]",
        ":smile:",
        "漢字",
        "👍",
    ]
    tokens += ["\u202ex", "=1+2", "-", "@x"]  # also what a spreadsheet would calculate
    q = np.random.default_rng(0).standard_normal((1, len(tokens), 4), dtype=np.float32)
    path = dump(tmp_path, q, tokens)
    changed = {
        "a\tb": "a\\tb",
        "c\nd": "c\\nd",
        "e\\f": "e\\\\f",
        "\x1b[31m": "\\x1b[31m",
        "\r": "\\r",
        "\u202ex": "\\u202ex",
    }
    escaped = [changed.get(token, token) for token in tokens]
    for name, delimiter in (("tsv", "\t"), ("csv", ",")):
        rows = rows_of(attn("inspect", "--from", path, "-F", name).out, delimiter)
        assert [row["key_token"] for row in rows[: len(tokens)]] == escaped
        assert [row["query_token"] for row in rows[:: len(tokens)]] == escaped
    document = attn("inspect", "--from", path, "-F", "json").json
    assert [token["text"] for token in document["key_tokens"]] == tokens
    out = attn("inspect", "--from", path, "--show", "tokens,weights").out
    for shown in ["[/INST]", "[bold]x", "[link=x]", ":smile:", "漢字", "👍", "\\x1b[31m", "\\u202ex"]:
        assert out.count(shown) == 3, shown  # in the list, before its row and above its column
    assert "😄" not in out
