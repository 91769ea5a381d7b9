"""`attn tokens`: its table, its formats, streams of sentences, saved traces, and what it refuses."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

Run = Callable[..., Any]


@pytest.fixture
def vocab(tmp_path: Path) -> str:
    """A tokenizer.json of word pieces: `flies` is `fl ##ies`; it adds [CLS] and [SEP], and lacks all else."""
    pieces = ["[UNK]", "[CLS]", "[SEP]", "time", "fl", "##ies", "like", "a"]
    tokenizer = Tokenizer(WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 1), ("[SEP]", 2)]
    )
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


# --- what is shown -----------------------------------------------------------------------------------------


def test_the_table_is_what_a_reader_needs(attn: Run, vocab: str) -> None:
    assert attn("tokens", "time flies away", "--vocab", vocab).out.splitlines() == [
        f"{vocab} · 6 tokens · 2 special · 1 unknown · 3 words · 15 characters",
        "",
        "   id  token  characters  word",
        "0   1  [CLS]              0        special",
        "1   3  time   0:4         1",
        "2   4  fl     5:7         2 flies",
        "3   5  ##ies  7:10        2",
        "4   0  [UNK]  11:15       3        unknown: away",
        "5   2  [SEP]              4        special",
    ]
    assert attn("tokens", "time flies", "--vocab", vocab, "--words", "--pair", "a").out.splitlines()[2:] == [
        "   word   characters  segment  pieces",
        "0  [CLS]                    0  1  [CLS]     special",
        "1  time   0:4               0  1  time",
        "2  flies  5:10              0  2  fl ##ies",
        "3  [SEP]                    0  1  [SEP]     special",
        "4  a      0:1               1  1  a",
        "5  [SEP]                    1  1  [SEP]     special",
    ]


# --- formats -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["--words"], ["--hide-special", "--pair", "a like"]], ids=" ".join)
def test_rows_say_what_the_documents_say(attn: Run, vocab: str, tmp_path: Path, options: list[str]) -> None:
    texts = ["time flies away", 'a "quoted", word', "like"]
    arguments = ("tokens", *texts, "--vocab", vocab, *options)
    documents = [json.loads(line) for line in attn(*arguments, "-F", "jsonl").out.splitlines()]
    expected = [{"sentence": number, **token} for number, one in enumerate(documents, 1) for token in one["tokens"]]
    for token in expected:
        if "pieces" in token:
            token["pieces"] = " ".join(map(str, token["pieces"]))
            del token["id"]
    ran = attn(*arguments, "-o", tmp_path / "tokens.parquet")
    assert (ran.code, ran.out) == (0, "")
    assert pq.read_table(tmp_path / "tokens.parquet").to_pylist() == expected
    rows = list(csv.DictReader(io.StringIO(attn(*arguments, "-F", "csv").out)))
    assert [row["text"] for row in rows] == [token["text"] for token in expected]
    assert set(rows[0]) == set(expected[0])
    tsv = attn(*arguments, "-F", "tsv").out
    assert [list(row.values()) for row in rows] == [line.split("\t") for line in tsv.splitlines()[1:]]
    assert attn(*arguments, "-F", "json").json == documents
