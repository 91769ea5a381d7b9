"""`attn tokens`: its table, its formats, streams of sentences, saved traces, and what it refuses."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel, WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

import attncli
from attncli.errors import InputError, UsageError

Run = Callable[..., Any]

TEXT = "time flies like an arrow"


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


def test_the_words_of_the_toy_layer_have_the_ids_of_the_design(attn: Run) -> None:
    ran = attn("tokens", "Life is short eat dessert first", "-F", "json")
    assert (ran.code, ran.err) == (0, "")
    assert [token["id"] for token in ran.json["tokens"]] == [0, 4, 5, 2, 1, 3]
    assert ran.json["schema"] == "attncli.tokens/1"
    assert ran.json["source"] == {"kind": "toy", "model": None, "vocab": "words"}
    assert (ran.json["length"], ran.json["limit"], ran.json["pair"]) == (6, None, None)


def test_a_token_has_every_member_of_the_traces_tokens_and_more(attn: Run, vocab: str) -> None:
    for options in ([], ["--vocab", vocab], ["--pair", "a time"], ["--vocab", vocab, "--pair", "a time"]):
        found = attn("tokens", TEXT, "-F", "json", *options).json
        seen = attn("inspect", TEXT, "-F", "json", *options).json
        assert [{name: token[name] for name in seen["key_tokens"][0]} for token in found["tokens"]] == seen[
            "key_tokens"
        ]
        assert (found["text"], found["pair"]) == (seen["text"], seen["pair"])
        assert list(found["tokens"][0]) == [*seen["key_tokens"][0], "word", "unknown"]


def test_pieces_of_a_word_share_its_number_and_unknown_ones_are_marked(attn: Run, vocab: str) -> None:
    ran = attn("tokens", "time flies away", "--vocab", vocab, "-F", "json")
    rows = [(token["text"], token["word"], token["unknown"], token["special"]) for token in ran.json["tokens"]]
    assert rows == [
        ("[CLS]", 0, False, True),
        ("time", 1, False, False),
        ("fl", 2, False, False),
        ("##ies", 2, False, False),
        ("[UNK]", 3, True, False),
        ("[SEP]", 4, False, True),
    ]
    assert "lacks 'away', read as [UNK]" in ran.err
    merged = attn("tokens", "time flies away", "--vocab", vocab, "-F", "json", "--words").json["tokens"]
    rows = [(word["text"], word["start"], word["end"], word["pieces"], word["unknown"]) for word in merged]
    assert rows[1:4] == [("time", 0, 4, [1], False), ("flies", 5, 10, [2, 3], False), ("away", 11, 15, [4], True)]


def test_a_token_that_the_text_spells_out_is_not_unknown(attn: Run, vocab: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(vocab)
    tokenizer.add_special_tokens(["[UNK]"])
    tokenizer.save(str(tmp_path / "spelled.json"))
    ran = attn("tokens", "time [UNK] flies", "--vocab", tmp_path / "spelled.json", "-F", "json")
    assert [token["unknown"] for token in ran.json["tokens"] if token["text"] == "[UNK]"] == [False]
    assert ran.err == ""


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


def test_nothing_that_a_terminal_would_obey_is_printed(attn: Run) -> None:
    text = "\x1b[31mred \x07 \u202eolleh \ufeff [/INST] :smile: שלום"
    for options in ([], ["--words"], ["-F", "json"], ["-F", "tsv"], ["--color", "always"]):
        out = attn("tokens", text, *options).out
        assert "\x1b[31mred" not in out
        assert not {"\x07", "\u202e", "\ufeff"} & set(out)
    assert ":smile:" not in attn("tokens", text).out.splitlines()[0]
    assert "smile" in attn("tokens", text).out


def test_hidden_special_tokens_keep_their_places(attn: Run, vocab: str) -> None:
    ran = attn("tokens", "time flies", "--vocab", vocab, "--hide-special", "-F", "json")
    assert ([token["index"] for token in ran.json["tokens"]], ran.json["length"]) == ([1, 2, 3], 5)
    ran = attn("tokens", "time flies", "--vocab", vocab, "--no-special", "-F", "json")
    assert ([token["index"] for token in ran.json["tokens"]], ran.json["length"]) == ([0, 1, 2], 3)


# --- formats -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--words"], ["--hide-special"], ["--pair", "a like"]], ids=" ".join)
def test_rows_say_what_the_documents_say(attn: Run, vocab: str, tmp_path: Path, options: list[str]) -> None:
    texts = ["time flies away", 'a "quoted", word', "like"]
    arguments = ("tokens", *texts, "--vocab", vocab, *options)
    documents = [json.loads(line) for line in attn(*arguments, "-F", "jsonl").out.splitlines()]
    expected = [
        {"sentence": number, **token}
        for number, document in enumerate(documents, start=1)
        for token in document["tokens"]
    ]
    for token in expected:
        if "pieces" in token:
            token["pieces"] = " ".join(map(str, token["pieces"]))
            del token["id"]

    def field(value: Any) -> str:
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    header, *rows = (line.split("\t") for line in attn(*arguments, "-F", "tsv").out.splitlines())
    assert set(header) == set(expected[0])
    assert rows == [[field(token[name]) for name in header] for token in expected]
    assert list(csv.reader(io.StringIO(attn(*arguments, "-F", "csv").out))) == [header, *rows]
    ran = attn(*arguments, "-o", tmp_path / "tokens.parquet")
    assert (ran.code, ran.out) == (0, "")
    assert pq.read_table(tmp_path / "tokens.parquet").to_pylist() == expected
    assert attn(*arguments, "-F", "json").json == documents


def test_the_columns_of_tsv(attn: Run) -> None:
    header = attn("tokens", "time", "-F", "tsv").out.splitlines()[0]
    assert header == "sentence\tindex\tid\ttext\tstart\tend\tspecial\tsegment\tword\tunknown"


def test_what_separates_fields_is_escaped(attn: Run, tmp_path: Path) -> None:
    pieces = {"a\tb": 0, "c\nd": 1, "e\\f": 2}
    tokenizer = Tokenizer(WordLevel(pieces, unk_token="e\\f"))
    tokenizer.save(str(tmp_path / "odd.json"))
    for piece, escaped in (("a\tb", "a\\tb"), ("c\nd", "c\\nd"), ("e\\f", "e\\\\f")):
        ran = attn("tokens", "--vocab", tmp_path / "odd.json", "-F", "tsv", "--whole", stdin=piece)
        assert ran.out.splitlines()[1].split("\t")[3] == escaped
        assert ran.out.count("\n") == 2


# --- sentences ---------------------------------------------------------------------------------------------


def test_a_stream_is_not_read_ahead(attn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sentence is written before the next one is read, so that memory does not grow with their number."""
    from attncli.cli import sentences
    from attncli.engines.source import CorpusItem

    events: list[str] = []

    def lines(*_: Any) -> Any:
        for number in (1, 2, 3):
            events.append(f"read {number}")
            yield CorpusItem(number, f"sentence {number}")

    monkeypatch.setattr(sentences, "sentences", lines)
    from attncli.formats import tokens

    written = tokens.document

    def document(*arguments: Any, **options: Any) -> Any:
        events.append("write")
        return written(*arguments, **options)

    monkeypatch.setattr(tokens, "document", document)
    assert attn("tokens", "-F", "jsonl").code == 0
    assert events == ["read 1", "write", "read 2", "write", "read 3", "write"]


# --- saved traces ------------------------------------------------------------------------------------------


def test_the_tokens_of_a_saved_trace(attn: Run, vocab: str, tmp_path: Path) -> None:
    saved = tmp_path / "trace.safetensors"
    assert attn("inspect", "time flies", "--vocab", vocab, "--pair", "a", "--save", saved).code == 0
    direct = attn("tokens", "time flies", "--vocab", vocab, "--pair", "a", "-F", "json").json
    found = attn("tokens", "--from", saved, "-F", "json").json
    for token in direct["tokens"]:
        token["unknown"] = None  # a trace does not record what its vocabulary lacks
    assert found == direct | {"source": {"kind": "toy", "model": None, "vocab": None}}
    assert attn("tokens", "--from", saved, "--hide-special", "--words").code == 0


def test_a_trace_with_a_target_has_two_texts(attn: Run, tmp_path: Path) -> None:
    saved = tmp_path / "cross.safetensors"
    assert attn("inspect", "time flies", "--target", "die Zeit fliegt", "--save", saved).code == 0
    found = attn("tokens", "--from", saved, "-F", "json").json
    assert [(one["text"], one["length"]) for one in found] == [("time flies", 2), ("die Zeit fliegt", 3)]


def test_a_dump_without_places_has_no_words(attn: Run, tmp_path: Path) -> None:
    import numpy as np

    dump = tmp_path / "dump.safetensors"
    save_file({"q": np.ones((2, 3), np.float32), "k": np.ones((2, 3), np.float32)}, dump)
    ran = attn("tokens", "--from", dump, "-F", "json")
    assert [(token["word"], token["unknown"]) for token in ran.json["tokens"]] == [(None, None)] * 2
    assert attn("tokens", "--from", dump).code == 0
    ran = attn("tokens", "--from", dump, "--words", "-F", "json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "--words needs to know where each token stands" in ran.err


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([TEXT, "--hide-special"], "--hide-special does not apply to --vocab words"),
        ([TEXT, "--no-special"], "--no-special does not apply to --vocab words"),
        ([TEXT, "--offline"], "--offline does not apply to --vocab words"),
        ([TEXT, "--base", "main"], "--base does not apply to the toy layer's vocabulary"),
        ([TEXT, "--truncate"], "--truncate does not apply to the toy layer's vocabulary"),
        ([TEXT, "-m", "x", "--vocab", "words"], "--vocab does not apply to --model"),
        ([TEXT, "--whole"], "--whole applies to --file and standard input"),
        ([TEXT, "-F", "parquet"], "--format parquet writes a file"),
        ([TEXT, "-F", "json", "-o", "x.tsv"], "--format json contradicts the ending"),
        ([TEXT, "--precision", "3"], "no such option: --precision"),
        ([TEXT, "--from", "x.safetensors"], "TEXT does not apply to --from"),
        (["--from", "x.safetensors", "--vocab", "words"], "--vocab does not apply to --from"),
        (["--from", "x.safetensors", "--truncate"], "--truncate does not apply to --from"),
        (["--from", "x.safetensors", "--pair", "x"], "--pair does not apply to --from"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_an_option_that_does_not_apply_is_a_usage_error(attn: Run, arguments: list[str], said: str) -> None:
    ran = attn("tokens", *arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(f"attn: {said}")


def test_python_gives_what_the_command_gives(attn: Run, vocab: str) -> None:
    found = attncli.tokenize("time flies away", vocab=vocab)
    document = attn("tokens", "time flies away", "--vocab", vocab, "-F", "json").json
    assert found.tokens.ids == [token["id"] for token in document["tokens"]]
    assert found.unknown == {4}
    assert found.words is not None
    assert [word.text for word in found.words] == ["[CLS]", "time", "flies", "away", "[SEP]"]
    with pytest.raises(UsageError, match="--device does not apply"):
        attncli.tokenize("time", model="x", device="cuda")
    with pytest.raises(InputError, match="the sentence is empty"):
        attncli.tokenize(" ")
