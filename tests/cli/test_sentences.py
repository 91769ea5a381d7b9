"""Where sentences come from: arguments, standard input, files, pairs and targets."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


def texts(out: str) -> list[tuple[str, str]]:
    """Return the number of each sentence and its tokens, from TSV rows."""
    rows = [line.split("\t") for line in out.splitlines()[1:]]
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        found.setdefault(row[0], {})[row[6]] = row[7]
    return [(number, " ".join(tokens.values())) for number, tokens in found.items()]


def test_each_argument_is_a_sentence(attn: Run) -> None:
    ran = attn("inspect", "time flies", "fruit flies like", "-F", "tsv")
    assert (ran.code, ran.err) == (0, "")
    assert texts(ran.out) == [("1", "time flies"), ("2", "fruit flies like")]


def test_words_without_quotes_are_a_sentence_each_and_a_note_says_so(attn: Run) -> None:
    for command in ("inspect", "heads", "tokens"):
        ran = attn(command, "time", "flies", "like", "-F", "tsv")
        assert (ran.code, ran.out) == (0, attn(command, "-F", "tsv", stdin="time\nflies\nlike\n").out)
        assert ran.err == "attn: 3 words were taken as a sentence each; quotes make them one\n"
    ran = attn("why", "time", "flies", "-q", "flies", "-F", "json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith("attn: attn why explains one trace; give one sentence")


@pytest.mark.parametrize("arguments", [["time", "flies like"], ["time", "flies\u3000like"], ["time"]])
def test_texts_are_sentences_without_a_note_where_one_has_a_blank(attn: Run, arguments: list[str]) -> None:
    ran = attn("inspect", *arguments, "-F", "tsv")
    assert (ran.code, ran.err) == (0, "")
    found = [" ".join(text.split()) for text in arguments]
    assert texts(ran.out) == [(str(number), text) for number, text in enumerate(found, 1)]


def test_an_empty_text_is_no_word_of_a_sentence(attn: Run) -> None:
    ran = attn("inspect", "time flies", "", "-F", "tsv")
    assert (ran.code, texts(ran.out)) == (5, [("1", "time flies")])
    assert ran.err == "attn: sentence 2: the sentence is empty; expected at least one word\n"


def test_the_name_of_a_model_is_a_text_and_a_note_says_so(
    attn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my model").mkdir()
    assert attn("tokens", "my model").err == ""
    for path in ("config.json", "my model/config.json"):
        Path(path).write_text("{}", encoding="utf-8")
    for name, quoted in (("demo", "demo"), ("my model", "'my model'")):
        ran = attn("tokens", name, "time flies", "-F", "json")
        assert (ran.code, [each["text"] for each in ran.json]) == (0, [name, "time flies"])
        assert ran.err == (
            f"attn: {name} is the name of a model, and was taken as a text; --model {quoted} loads the model\n"
        )
    assert "name of a model" not in attn("tokens", "", "demo flies").err


def test_the_name_of_a_file_is_a_text_and_a_note_says_so(
    attn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my notes.txt").write_text("time flies\n", encoding="utf-8")
    ran = attn("tokens", "my notes.txt", "-F", "json")
    assert (ran.code, ran.json["text"]) == (0, "my notes.txt")
    assert ran.err == (
        "attn: my notes.txt is the name of a file, and was taken as a text; --file 'my notes.txt' reads the file\n"
    )
    assert "--file 'my notes.txt' reads the file" in attn("diff", "my notes.txt", "my time").err
    assert attn("inspect", "time flies", "--save", "trace.safetensors").code == 0
    assert "--from trace.safetensors reads the file" in attn("inspect", "trace.safetensors").err


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"])
@pytest.mark.parametrize("whole", [[], ["--whole"]], ids=["lines", "whole"])
def test_what_is_packed_under_another_name_is_one_sentence(
    attn: Run, tmp_path: Path, pack: Callable[[bytes], bytes], whole: list[str]
) -> None:
    path = tmp_path / "my sentences"
    path.write_bytes(pack(b"time flies\nfruit flies\n"))
    for ran, name in (
        (attn("heads", "--file", path, *whole), path),
        (attn("tokens", "-", *whole, stdin=path.read_bytes()), "standard input"),
    ):
        assert (ran.code, ran.out) == (5, "")
        assert ran.err == f"attn: {name} is packed and no text; expected UTF-8, one sentence a line\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PK\x03\x04\x14\0", "is a zip archive and no text"),
        (b"%PDF-1.7\n%\xe2\xe3\n", "is a PDF document and no text"),
        (b"\x89PNG\r\n\x1a\n\0\0", "is a picture and no text"),
        (b"\x93NUMPY\x01\0v\0{'descr': '<f4'}\n", "is binary and no text"),
        (b"\x7fELF\x02\x01\x01\0\0\n", "is binary and no text"),
    ],
)
def test_what_is_no_text_is_one_sentence(attn: Run, content: bytes, said: str) -> None:
    ran = attn("inspect", "-", stdin=content)
    assert (ran.code, ran.out) == (5, "")
    assert ran.err == f"attn: standard input {said}; expected UTF-8, one sentence a line\n"


def test_binary_data_has_line_ends_by_chance(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"\xa7\x03\n\xf2\n\x11\0\0\x07\n" * 9)
    ran = attn("inspect", "--file", path)
    assert (ran.code, ran.out) == (5, "")
    assert ran.err == f"attn: {path} is binary and no text; expected UTF-8, one sentence a line\n"


@pytest.mark.parametrize("text", ["BZh is a name", "PAR1 is a receptor", "PK", "%PDF is a comment"])
def test_a_text_that_begins_nearly_as_a_file_does_is_read(attn: Run, text: str) -> None:
    assert attn("tokens", "-", "-F", "json", stdin=f"{text}\n").json["text"] == text


def test_a_trace_that_is_read_as_text_says_how_it_is_read(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    assert attn("inspect", "time flies", "--save", path).code == 0
    ran = attn("inspect", "--file", path)
    assert (ran.code, ran.out) == (5, "")
    assert ran.err.endswith(" is binary and no text; expected UTF-8, one sentence a line; --from reads a saved trace\n")


@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE"])
def test_utf_16_without_a_mark_is_no_text(attn: Run, encoding: str) -> None:
    ran = attn("inspect", "-", stdin="naïve café — 10 €\n".encode(encoding))
    assert (ran.code, ran.out) == (5, "")
    assert ran.err == "attn: standard input is binary and no text; expected UTF-8, one sentence a line\n"


def test_a_table_of_several_sentences_is_the_tables_of_each(attn: Run) -> None:
    both = attn("inspect", "time flies", "fruit flies").out
    assert both == attn("inspect", "time flies").out + "\n" + attn("inspect", "fruit flies").out


def test_a_sentence_does_not_change_the_one_that_follows(attn: Run) -> None:
    alone = attn("inspect", "fruit", "-F", "json").json
    assert attn("inspect", "time flies", "fruit", "-F", "json").json[1] == alone | {"sentence": 2}


def test_an_argument_may_hold_newlines_and_stays_one_text(attn: Run) -> None:
    document = attn("inspect", "time\nflies", "-F", "json").json
    assert document["text"] == "time\nflies"
    assert [token["text"] for token in document["query_tokens"]] == ["time", "flies"]


@pytest.mark.parametrize("arguments", [["-"], []], ids=["dash", "piped"])
def test_standard_input_is_one_sentence_a_line(attn: Run, arguments: list[str]) -> None:
    ran = attn("inspect", *arguments, "-F", "tsv", stdin="time flies\nfruit flies like\n")
    assert (ran.code, ran.err) == (0, "")
    assert texts(ran.out) == [("1", "time flies"), ("2", "fruit flies like")]


def test_standard_input_is_left_alone_where_there_is_a_text(attn: Run) -> None:
    assert texts(attn("inspect", "time flies", "-F", "tsv", stdin="fruit\n").out) == [("1", "time flies")]


def test_a_file_is_one_sentence_a_line(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "sentences.txt"
    path.write_text("time flies\nfruit flies like", encoding="utf-8")
    ran = attn("inspect", "--file", path, "-F", "tsv", stdin="ignored\n")
    assert texts(ran.out) == [("1", "time flies"), ("2", "fruit flies like")]
    assert attn("inspect", "-f", path, "-F", "tsv").out == ran.out


def test_empty_lines_are_skipped_and_lines_keep_their_numbers(attn: Run) -> None:
    ran = attn("inspect", "-F", "tsv", stdin="\n\r\ntime flies\n\n\nfruit\n\n")
    assert texts(ran.out) == [("3", "time flies"), ("6", "fruit")]
    assert (ran.code, ran.err) == (0, "attn: standard input: 5 empty lines were skipped\n")


def test_line_ends_of_other_systems_and_a_byte_order_mark_are_not_text(attn: Run) -> None:
    ran = attn("inspect", "-F", "jsonl", stdin=b"\xef\xbb\xbftime flies\r\n\r\nfruit flies\r\n")
    assert '"text": "time flies"' in ran.out.splitlines()[0]
    assert '"text": "fruit flies"' in ran.out.splitlines()[1]
    assert len(ran.out.splitlines()) == 2


def test_only_the_ends_of_a_line_are_taken_from_it(attn: Run) -> None:
    assert attn("inspect", "-F", "json", stdin="  time flies \n").json["text"] == "  time flies "
    # A line separator of Unicode is a character of the sentence.
    assert attn("inspect", "-F", "json", stdin="time\u2028flies\n").json["text"] == "time\u2028flies"


@pytest.mark.parametrize("arguments", [["-"], ["--file"]], ids=["standard input", "file"])
def test_whole_is_one_text_newlines_and_all(attn: Run, tmp_path: Path, arguments: list[str | Path]) -> None:
    text = "time flies\n\nlike an arrow\n"
    path = tmp_path / "text.txt"
    path.write_text("\ufeff" + text, encoding="utf-8")
    if arguments == ["--file"]:
        document = attn("inspect", "--file", path, "--whole", "-F", "json").json
    else:
        document = attn("inspect", "--whole", "-F", "json", stdin=path.read_bytes()).json
    assert document["text"] == text
    assert [token["text"] for token in document["key_tokens"]] == ["time", "flies", "like", "an", "arrow"]


def test_offsets_are_characters_of_the_text(attn: Run) -> None:
    document = attn("inspect", "-F", "json", "--whole", stdin="naïve 漢字\r\narrow 👍 end").json
    for token in document["key_tokens"]:
        assert document["text"][token["start"] : token["end"]] == token["text"]


@pytest.mark.parametrize("stdin", ["", "\n\r\n\n"], ids=["empty", "empty lines"])
@pytest.mark.parametrize("arguments", [[], ["-"], ["--whole"]], ids=["piped", "dash", "whole"])
def test_no_sentence_at_all_is_said(attn: Run, arguments: list[str], stdin: str) -> None:
    ran = attn("inspect", *arguments, stdin=stdin)
    assert (ran.code, ran.out) == (5, "")
    assert ran.err == "attn: standard input holds no sentence; expected one a line\n"


def test_the_line_that_is_not_utf_8_is_named(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"time flies\nfruit\nna\xefve\n")
    for arguments, name in ((["--file", path], str(path)), (["-"], "standard input")):
        ran = attn("inspect", *arguments, "-F", "tsv", stdin=path.read_bytes())
        assert (ran.code, texts(ran.out)) == (5, [("1", "time flies"), ("2", "fruit")])
        assert ran.err == f"attn: sentence 3: it is not UTF-8 at byte 3; convert {name} to UTF-8 first\n"


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-16-BE", "UTF-32", "UTF-32-BE"])
@pytest.mark.parametrize("arguments", [["inspect", "-F", "tsv"], ["inspect", "--whole"], ["heads"], ["tokens"]])
def test_another_encoding_of_unicode_is_named_once(encoding: str, arguments: list[str], attn: Run) -> None:
    mark = "\ufeff" if encoding.endswith("BE") else ""  # Python writes one where the order of bytes is not given
    ran = attn(*arguments, "-", stdin=(mark + "time flies\r\nfruit flies\r\n").encode(encoding))
    assert (ran.code, ran.out) == (5, "")
    assert ran.err == "attn: standard input is UTF-16 or UTF-32; expected UTF-8, one sentence a line\n"


def test_a_whole_text_that_is_not_utf_8_does_not_blame_the_wrong_line(attn: Run) -> None:
    ran = attn("inspect", "--whole", stdin=b"time flies\n\nna\xefve\n")
    assert (ran.code, ran.out) == (5, "")
    assert "not UTF-8" in ran.err
    assert "line 1" not in ran.err


@pytest.mark.parametrize(
    "arguments",
    [["-", "time flies"], ["time flies", "-"], ["-", "-"]],
    ids=["before", "after", "twice"],
)
def test_a_dash_cannot_stand_beside_a_sentence(attn: Run, arguments: list[str]) -> None:
    ran = attn("inspect", *arguments, stdin="fruit\n")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("attn: - reads the sentences from standard input")


def test_two_places_to_look_for_sentences_contradict_each_other(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "sentences.txt"
    path.write_text("time flies\n", encoding="utf-8")
    for arguments in (["time flies", "--file", path], ["-", "--file", path], ["time flies", "--whole"]):
        ran = attn("inspect", *arguments)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)


def test_a_sentence_that_begins_with_a_dash_follows_two_dashes(attn: Run) -> None:
    assert attn("inspect", "-F", "json", "--", "--time flies").json["text"] == "--time flies"


# --- two texts ---------------------------------------------------------------------------------------------


def test_a_pair_is_one_sequence_of_two_segments(attn: Run) -> None:
    document = attn("inspect", "time flies", "--pair", "fruit flies", "-F", "json").json
    assert (document["text"], document["pair"], document["target"]) == ("time flies", "fruit flies", None)
    assert document["query_tokens"] == document["key_tokens"]
    assert [(t["text"], t["segment"], t["start"]) for t in document["key_tokens"]] == [
        ("time", 0, 0),
        ("flies", 0, 5),
        ("fruit", 1, 0),
        ("flies", 1, 6),
    ]
    assert document["layers"][0]["shapes"]["scores"] == [4, 4, 4]


def test_a_pair_is_read_as_bert_takes_it(attn: Run, minilm: str) -> None:
    model = ("-m", minilm, "-H", "0", "--engine", "verify", "-F", "json")
    document = attn("inspect", "time flies", "--pair", "fruit", *model).json
    assert [token["text"] for token in document["key_tokens"]] == ["[CLS]", "time", "flies", "[SEP]", "fruit", "[SEP]"]
    assert [token["segment"] for token in document["key_tokens"]] == [0, 0, 0, 0, 1, 1]
    assert [token["special"] for token in document["key_tokens"]] == [True, False, False, True, False, True]
    assert document["layers"][0]["proof"]["max_abs_error"] < 1e-5
    alone = attn("inspect", "time flies fruit", "-m", minilm, "-H", "0", "-F", "json").json
    assert alone["layers"][0]["heads"][0]["weights"][0] != document["layers"][0]["heads"][0]["weights"][0]


def test_the_table_marks_where_the_second_text_begins(attn: Run) -> None:
    both = attn("inspect", "time flies", "--pair", "fruit flies").out
    alone = attn("inspect", "time flies fruit flies").out
    for mark in "│─":
        assert mark in both
        assert mark not in alone


def test_a_target_gives_the_queries_and_the_text_the_keys(attn: Run) -> None:
    document = attn("inspect", "time flies like", "--target", "fruit flies", "-F", "json").json
    assert (document["text"], document["pair"], document["target"]) == ("time flies like", None, "fruit flies")
    assert [token["text"] for token in document["query_tokens"]] == ["fruit", "flies"]
    assert [token["text"] for token in document["key_tokens"]] == ["time", "flies", "like"]
    (layer,) = document["layers"]
    assert layer["kind"] == "cross"
    assert layer["shapes"]["weights"] == [4, 2, 3]
    assert layer["heads"][0]["mask"] == [[True] * 3] * 2
    # One vocabulary: the same word has the same row in both.
    assert document["query_tokens"][1]["id"] == document["key_tokens"][1]["id"]


def test_every_sentence_gets_the_same_pair_and_target(attn: Run) -> None:
    for option in ("--pair", "--target"):
        documents = attn("inspect", "time flies", "fruit", option, "like an arrow", "-F", "json").json
        alone = [attn("inspect", text, option, "like an arrow", "-F", "json").json for text in ("time flies", "fruit")]
        assert documents == [one | {"sentence": number} for number, one in enumerate(alone, start=1)]


def test_a_checkpoint_without_a_decoder_refuses_a_target(attn: Run, tiny_llama: str) -> None:
    ran = attn("inspect", "time flies", "--target", "fruit", "-m", tiny_llama)
    assert (ran.code, ran.out) == (2, "")
    assert "--target" in ran.err
