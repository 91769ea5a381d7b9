"""Streams of sentences, some of which are bad: what is said, what takes their place, and how the run ends."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from attncli.corpus import lines as corpus_lines
from attncli.engines import open_source
from attncli.engines.source import CorpusItem, trace_stream
from attncli.errors import Failure, InputError, raise_on_failure
from attncli.trace.trace import Trace

Run = Callable[..., Any]

LINES = b"\xef\xbb\xbftime flies\r\n\r\nna\xefve\r\n \t\r\nfruit flies like\r\n\xff\n\nan arrow"
SAID = [
    "attn: sentence 3: it is not UTF-8 at byte 3; convert standard input to UTF-8 first",
    "attn: sentence 4: the sentence is empty; expected at least one word",
    "attn: sentence 6: it is not UTF-8 at byte 1; convert standard input to UTF-8 first",
]
NOTE = "attn: standard input: 2 empty lines were skipped"
GOOD = {1: "time flies", 5: "fruit flies like", 8: "an arrow"}


def said(err: str) -> list[str]:
    """Return the lines about bad sentences; the note on empty ones comes once, when the input has been read."""
    lines = err.splitlines()
    assert lines.count(NOTE) == 1
    return [line for line in lines if line != NOTE]


def test_json_lines_lack_the_bad_sentences(attn: Run) -> None:
    ran = attn("inspect", "-F", "jsonl", stdin=LINES)
    assert (ran.code, said(ran.err)) == (5, SAID)
    assert [json.loads(line)["text"] for line in ran.out.splitlines()] == list(GOOD.values())


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_with_keep_errors_an_error_stands_in_the_place_of_a_bad_sentence(attn: Run, form: str) -> None:
    ran = attn("inspect", "-F", form, "--keep-errors", stdin=LINES)
    assert (ran.code, said(ran.err)) == (5, SAID)
    documents = ran.json if form == "json" else [json.loads(line) for line in ran.out.splitlines()]
    assert [one.get("text") for one in documents] == ["time flies", None, None, "fruit flies like", None, "an arrow"]
    for document, line in zip((documents[1], documents[2], documents[4]), SAID, strict=True):
        assert list(document) == ["schema", "sentence", "error"]
        assert document["schema"] == "attncli.error/1"
        assert line == f"attn: sentence {document['sentence']}: {document['error']}"


@pytest.mark.parametrize("form", ["tsv", "csv"])
def test_rows_are_those_of_the_good_sentences_under_their_own_numbers(attn: Run, form: str) -> None:
    ran = attn("inspect", "-F", form, stdin=LINES)
    assert (ran.code, said(ran.err)) == (5, SAID)
    header, *rows = ran.out.splitlines()
    expected = [header]
    for number, text in GOOD.items():
        own = attn("inspect", text, "-F", form).out.splitlines()
        expected += [f"{number}{row[1:]}" for row in own[1:]]
    assert [header, *rows] == expected


def test_tables_are_those_of_the_good_sentences(attn: Run) -> None:
    ran = attn("inspect", stdin=LINES)
    assert (ran.code, said(ran.err)) == (5, SAID)
    assert ran.out == attn("inspect", *GOOD.values()).out


def test_heads_are_measured_over_the_good_sentences(attn: Run) -> None:
    for form in ("tsv", "json", "table"):
        ran = attn("heads", "-F", form, stdin=LINES)
        assert (ran.code, said(ran.err)) == (5, SAID)
        assert ran.out == attn("heads", "-F", form, *GOOD.values()).out


@pytest.mark.parametrize("command", ["inspect", "heads"])
def test_fail_fast_stops_at_the_first(attn: Run, command: str) -> None:
    ran = attn(command, "-F", "tsv", "--fail-fast", stdin=LINES)
    assert (ran.code, ran.err.splitlines()) == (5, SAID[:1])
    assert {row.split("\t")[0] for row in ran.out.splitlines()[1:]} == ({"1"} if command == "inspect" else set())


@pytest.mark.parametrize("command", ["inspect", "heads", "tokens"])
@pytest.mark.parametrize("options", [[], ["--whole"]], ids=lambda options: " ".join(options))
def test_standard_input_is_a_file_called_minus(attn: Run, command: str, options: list[str]) -> None:
    texts = b"time flies\n\nlike an arrow\n"
    ran = attn(command, "--file", "-", "-F", "tsv", *options, stdin=texts)
    assert (ran.code, ran.out != "") == (0, True)
    assert ran == attn(command, "-", "-F", "tsv", *options, stdin=texts)


def test_several_arguments_are_a_stream_too(attn: Run) -> None:
    ran = attn("inspect", "time flies", " ", "an arrow", "-F", "jsonl")
    assert (ran.code, ran.err) == (5, "attn: sentence 2: the sentence is empty; expected at least one word\n")
    assert [json.loads(line)["text"] for line in ran.out.splitlines()] == ["time flies", "an arrow"]


@pytest.mark.parametrize("command", ["inspect", "tokens"])
@pytest.mark.parametrize("options", [[], ["--fail-fast"]])
def test_a_single_bad_text_is_an_error_of_one_sentence(attn: Run, command: str, options: list[str]) -> None:
    ran = attn(command, " ", "-F", "jsonl", *options)
    assert (ran.code, ran.out, ran.err) == (5, "", "attn: the sentence is empty; expected at least one word\n")
    ran = attn(command, "--whole", "-F", "jsonl", *options, stdin=b"time\xff")
    assert (ran.code, ran.out) == (5, "")
    assert ran.err == "attn: it is not UTF-8 at byte 5; convert standard input to UTF-8 first\n"


@pytest.mark.parametrize("command", ["inspect", "tokens"])
def test_a_single_bad_text_has_its_place_in_a_loop_of_the_shell(attn: Run, command: str) -> None:
    ran = attn(command, " ", "-F", "jsonl", "--keep-errors")
    assert ran.code == 5
    assert ran.json == attn(command, "-F", "jsonl", "--keep-errors", stdin=" ").json
    assert ran.json["schema"] == "attncli.error/1"


def test_one_json_document_is_no_array_but_several_sentences_are(attn: Run) -> None:
    assert attn("inspect", "-F", "json", stdin="time flies\n").json["text"] == "time flies"
    assert [one["text"] for one in attn("inspect", "-F", "json", stdin="time flies\n \n").json] == ["time flies"]
    assert [one["text"] for one in attn("inspect", "-F", "json", stdin=" \ntime flies\n").json] == ["time flies"]
    assert attn("inspect", "-F", "json", stdin=" \n \n").json == []
    assert attn("inspect", "-F", "json", stdin=" \n").json == []
    assert attn("inspect", "-F", "json", "--keep-errors", stdin=" \n").json["sentence"] == 1


def test_where_every_sentence_is_bad_the_output_is_still_one_of_its_format(attn: Run, tmp_path: Path) -> None:
    for form, expected in (("jsonl", 0), ("tsv", 1), ("csv", 1)):
        ran = attn("inspect", "-F", form, stdin=" \n\xa0\n")
        assert (ran.code, ran.out.count("\n"), ran.err.count("\n")) == (5, expected, 2)
    for ending in ("svg", "md", "txt"):
        ran = attn("inspect", "-o", tmp_path / f"map.{ending}", stdin=" \n \n")
        assert ran.code == 5
        assert ran.err.splitlines()[2:] == ["attn: there is nothing to draw: no sentence could be read"]
    assert attn("heads", stdin=" \n \n").err.splitlines()[2:] == [
        "attn: there is no sentence to survey the heads of"
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_good_sentences_is_whole(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert attn("inspect", "-o", path, stdin=LINES).code == 5
    assert path.read_text(encoding="utf-8") == attn("inspect", "-F", "jsonl", stdin=LINES).out
    documents = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert {one["sentence"]: one["text"] for one in documents} == GOOD
    assert list(tmp_path.iterdir()) == [path]


LACKING = b"the fox\na dog\nthe cow\n"
CHOICES = {
    "--query fox": ([1], "--query 'fox': no such query token; the tokens are: a dog"),
    "--key dog": ([2], "--key 'dog': no such key token; the tokens are: the fox"),
    "--query the": ([1, 3], "--query 'the': no such query token; the tokens are: a dog"),
    "--vocab-size 1": ([], "--vocab-size 1: the text has 2 different words; give at least that"),
    "--query 5:": ([], "--query 5: leaves no query to show; without it they are 0..1"),
}


@pytest.mark.parametrize("options", CHOICES)
def test_a_sentence_without_the_tokens_that_are_asked_for_is_a_bad_one(attn: Run, options: str) -> None:
    numbers, reason = CHOICES[options]
    ran = attn("inspect", *options.split(), "-F", "jsonl", "--keep-errors", stdin=LACKING)
    documents = [json.loads(line) for line in ran.out.splitlines()]
    assert [one["sentence"] for one in documents] == [1, 2, 3]
    assert [one["sentence"] for one in documents if one["schema"] == "attncli.trace/1"] == numbers
    errors = {one["sentence"]: one["error"] for one in documents if one["schema"] == "attncli.error/1"}
    assert ran.err == "".join(f"attn: sentence {number}: {error}\n" for number, error in errors.items())
    assert ran.code == 5
    assert reason in errors.values()
    rows = attn("inspect", *options.split(), "-F", "tsv", stdin=LACKING)
    assert (rows.code, rows.err) == (5, ran.err)
    assert {int(line.split("\t")[0]) for line in rows.out.splitlines()[1:]} == set(numbers)


def test_where_the_only_sentence_lacks_a_token_the_option_is_wrong(attn: Run) -> None:
    ran = attn("inspect", "a dog", "--query", "fox")
    assert (ran.code, ran.out, ran.err) == (
        2, "", "attn: --query 'fox': no such query token; the tokens are: a dog\n"
    )  # fmt: skip


def test_heads_are_measured_over_the_sentences_that_have_the_query(attn: Run) -> None:
    ran = attn("heads", "--query", "the", "-F", "tsv", stdin=LACKING)
    assert ran.code == 5
    assert ran.err == "attn: sentence 2: --query 'the': no such query token; the tokens are: a dog\n"
    assert ran.out == attn("heads", "--query", "the", "-F", "tsv", "the fox", "the cow").out


@pytest.mark.parametrize("command", [["inspect", "--query", "the"], ["tokens"]], ids=lambda given: given[0])
@pytest.mark.parametrize(("lines", "texts"), [
    (b"the fox\n\xff\nthe cow\n", ["the fox"]),
    (b"the fox\nthe cow\n\xff\n", ["the fox", "the cow"]),
    (b"\xff\nthe fox\n", None),
])  # fmt: skip
def test_an_error_that_ends_the_stream_ends_the_array(
    attn: Run, command: list[str], lines: bytes, texts: list[str] | None
) -> None:
    ran = attn(*command, "-F", "json", "--fail-fast", stdin=lines)
    assert ran.code == 5
    assert ran.err.count("\n") == 1
    assert ran.out == "" if texts is None else [one["text"] for one in ran.json] == texts


def test_the_first_trace_says_what_is_measured_though_a_bad_sentence_comes_before_it(attn: Run) -> None:
    ran = attn("inspect", "--norms", "-F", "tsv", stdin=b" \ntime flies\n")
    header, *rows = ran.out.splitlines()
    assert header.split("\t")[-1] == "norm"
    assert rows == attn("inspect", "--norms", "-F", "tsv", stdin=b"\ntime flies\n").out.splitlines()[1:]


def test_a_line_without_an_end_takes_no_more_than_so_much_memory(attn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_lines, "MOST_BYTES", 2**20)
    long = b"x" * 2**20
    lines = b"\n".join([b"a", long, long + b"x", long * 3 + b"yy", b"b", long + b"\r", long * 2])
    ran = attn("tokens", "-F", "jsonl", "--keep-errors", stdin=lines)
    documents = [json.loads(line) for line in ran.out.splitlines()]
    assert [one["sentence"] for one in documents] == [1, 2, 3, 4, 5, 6, 7]
    assert [len(one["text"]) if "text" in one else None for one in documents] == [1, 2**20, None, None, 1, 2**20, None]
    assert "it is longer than 1 MiB" in documents[2]["error"]


def test_options_that_do_not_apply_are_refused(attn: Run, tmp_path: Path) -> None:
    for arguments in (["-F", "tsv"], [], ["-F", "jsonl", "--fail-fast"], ["-o", tmp_path / "x.html"]):
        ran = attn("inspect", "time flies", "--keep-errors", *arguments)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert ran.err.startswith("attn: --keep-errors does not apply to ")
    assert attn("inspect", "time flies", "--save", tmp_path / "x.safetensors").code == 0
    for option in ("--keep-errors", "--fail-fast"):
        ran = attn("inspect", "--from", tmp_path / "x.safetensors", option, "-F", "jsonl")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith(f"attn: {option} does not apply to --from")


@pytest.mark.parametrize("command", ["inspect", "tokens"])
def test_a_pair_that_is_bad_is_said_once(attn: Run, command: str) -> None:
    ran = attn(command, "time flies", "an arrow", "--pair", " ", "-F", "jsonl")
    assert (ran.code, ran.out, ran.err) == (5, "", "attn: the pair is empty; expected at least one word\n")


def test_a_document_leaves_before_the_next_line_is_read(attn: Run) -> None:
    read: list[int] = []

    def lines() -> Iterator[CorpusItem]:
        for number in (1, 2, 3):
            read.append(number)
            yield CorpusItem(number, "time flies")

    answers = trace_stream(open_source(), lines(), None, None)
    for number in (1, 2, 3):
        next(answers)
        assert read == list(range(1, number + 1))


def test_a_warning_names_its_sentence_where_there_are_several(attn: Run) -> None:
    one = attn("inspect", "time flies", "--mask", "~full", "-F", "tsv").err.splitlines()
    several = attn("inspect", "time", "time flies", "--mask", "~full", "-F", "tsv").err.splitlines()
    assert all(line.startswith("attn: warning: ") and "sentence" not in line for line in one)
    assert [line.removeprefix("attn: warning: sentence ")[:3] for line in several] == ["1: ", "2: "]
    assert several[1].replace("sentence 2: ", "") in one


class Crowded:
    """A source in whose memory one sentence at a time finds room, and a word of more than five letters none."""

    can_batch = True
    parallel_from = 512

    def __init__(self) -> None:
        self.layer = open_source()

    def traces(self, texts: Sequence[str], pair: str | None, target: str | None) -> Iterator[Trace]:
        if len(texts) > 1 or len(texts[0]) > 5:
            raise InputError("no room")
        return iter([self.layer.trace(texts[0])])


def test_a_sentence_is_not_blamed_for_the_others_that_run_beside_it() -> None:
    words = ["time", "flies", "like", "banana", "an", "arrow", "strawberry", "fruit"]
    sentences = (CorpusItem(number, word) for number, word in enumerate(words, start=1))
    answers: list[Any] = [answer for _, answer in trace_stream(Crowded(), sentences, None, None)]  # type: ignore[arg-type]
    found = [None if isinstance(answer, Failure) else answer.text for answer in answers]
    assert found == [word if len(word) < 6 else None for word in words]


def test_refusing_names_the_sentence_unless_it_is_alone() -> None:
    answers: list[tuple[int, str | Failure]] = [(1, "one"), (7, Failure("it is odd")), (8, "eight")]
    found = raise_on_failure(answers)
    assert next(found) == (1, "one")
    with pytest.raises(InputError, match=r"^sentence 7: it is odd$"):
        next(found)
    with pytest.raises(InputError, match=r"^it is odd$"):
        list(raise_on_failure(answers, is_alone=True))
