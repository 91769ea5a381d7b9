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

Run = Callable[..., Any]


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A BERT of word pieces: `flies` is `fl ##ies`; it adds [CLS] and [SEP], and lacks all else."""
    pieces = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "time", "fl", "##ies", "like", "a"]
    tokenizer = Tokenizer(WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(pieces[:5])
    folder = tmp_path / "bert"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "bert", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "hidden_act": "gelu",
        "intermediate_size": 8, "max_position_embeddings": 16, "type_vocab_size": 2, "vocab_size": len(pieces),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


# --- what is shown -----------------------------------------------------------------------------------------


def test_the_table_is_what_a_reader_needs(attn: Run, bert: Path) -> None:
    assert attn("tokens", "time flies away", "-m", bert).out.splitlines() == [
        "bert · 6 tokens of at most 16 · 2 special · 1 unknown · 3 words · 15 characters",
        "",
        "   id  token  characters  word",
        "0   1  [CLS]              0        special",
        "1   5  time   0:4         1",
        "2   6  fl     5:7         2 flies",
        "3   7  ##ies  7:10        2",
        "4   0  [UNK]  11:15       3        unknown: away",
        "5   2  [SEP]              4        special",
    ]
    assert attn("tokens", "time flies", "-m", bert, "--words", "--pair", "a").out.splitlines()[2:] == [
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
def test_rows_say_what_the_documents_say(attn: Run, bert: Path, tmp_path: Path, options: list[str]) -> None:
    texts = ["time flies away", 'a "quoted", word', "like"]
    arguments = ("tokens", *texts, "-m", bert, *options)
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
