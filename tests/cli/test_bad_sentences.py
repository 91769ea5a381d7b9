"""Streams of sentences, some of which are bad: what is said, what takes their place, and how the run ends."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from attncli.corpus import readers

Run = Callable[..., Any]

LINES = b"\xef\xbb\xbftime flies\r\n\r\nna\xefve\r\n \t\r\nfruit flies like\r\n\xff\n\nan arrow"
SAID = [
    "attn: sentence 3: it is not UTF-8 at byte 3; convert standard input to UTF-8 first",
    "attn: sentence 6: it is not UTF-8 at byte 1; convert standard input to UTF-8 first",
]
NOTE = "attn: standard input: 3 empty lines were skipped"
GOOD = {1: "time flies", 5: "fruit flies like", 8: "an arrow"}


def said(err: str) -> list[str]:
    """Return the lines about bad sentences; the note on empty ones comes once, when the input has been read."""
    lines = err.splitlines()
    assert lines.count(NOTE) == 1
    return [line for line in lines if line != NOTE]


@pytest.mark.parametrize("command", ["inspect", "tokens"])
def test_json_lines_and_rows_lack_the_bad_sentences(attn: Run, command: str) -> None:
    ran = attn(command, "-F", "jsonl", stdin=LINES)
    assert (ran.code, said(ran.err)) == (5, SAID)
    assert [json.loads(line)["text"] for line in ran.out.splitlines()] == list(GOOD.values())
    ran = attn(command, "-F", "tsv", stdin=LINES)
    assert (ran.code, said(ran.err)) == (5, SAID)
    _, *rows = ran.out.splitlines()
    expected = []
    for number, text in GOOD.items():
        _, *own = attn(command, text, "-F", "tsv").out.splitlines()
        expected += [f"{number}{row[1:]}" for row in own]
    assert rows == expected
    ran = attn(command, stdin=LINES)
    assert (ran.code, said(ran.err)) == (5, SAID)
    assert ran.out == attn(command, *GOOD.values()).out


@pytest.mark.parametrize("options", [["inspect"], ["heads", "--whole"], ["tokens"]], ids=" ".join)
def test_standard_input_is_a_file_called_minus(attn: Run, options: list[str]) -> None:
    texts = b"time flies\n\nlike an arrow\n"
    ran = attn(*options, "--file", "-", "-F", "tsv", stdin=texts)
    assert (ran.code, ran.out != "") == (0, True)
    assert ran == attn(*options, "-", "-F", "tsv", stdin=texts)


def test_one_json_document_is_no_array_but_several_sentences_are(attn: Run) -> None:
    assert attn("inspect", "-F", "json", stdin="time flies\n").json["text"] == "time flies"
    assert [one["text"] for one in attn("inspect", "-F", "json", stdin=b"\xff\ntime flies\n").json] == ["time flies"]
    assert attn("inspect", "-F", "json", stdin=b"\xff\n").json == []


LACKING = b"the fox\na dog\nthe cow\n"
CHOICES = {
    "--query fox": ([1], "--query 'fox': no such query token; the tokens are: a dog"),
    "--key dog": ([2], "--key 'dog': no such key token; the tokens are: the fox"),
    "--query the": ([1, 3], "--query 'the': no such query token; the tokens are: a dog"),
    "--query 5:": ([], "--query 5: leaves no query to show; without it they are 0..1"),
}


@pytest.mark.parametrize("options", CHOICES)
def test_a_sentence_without_the_tokens_that_are_asked_for_is_a_bad_one(attn: Run, options: str) -> None:
    numbers, reason = CHOICES[options]
    ran = attn("inspect", *options.split(), "-F", "jsonl", stdin=LACKING)
    assert [json.loads(line)["sentence"] for line in ran.out.splitlines()] == numbers
    errors = [line.removeprefix("attn: sentence ").partition(": ") for line in ran.err.splitlines()]
    assert [int(number) for number, _, _ in errors] == [number for number in (1, 2, 3) if number not in numbers]
    assert ran.code == 5
    assert reason in [error for _, _, error in errors]


def test_a_line_without_an_end_takes_no_more_than_so_much_memory(attn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_BYTES", 2**20)
    long = b"x" * 2**20
    lines = b"\n".join([b"a", long, long + b"x", long * 3 + b"yy", b"b", long + b"\r", long * 2])
    ran = attn("tokens", "-F", "jsonl", stdin=lines)
    lengths = {one["sentence"]: len(one["text"]) for one in map(json.loads, ran.out.splitlines())}
    assert lengths == {1: 1, 2: 2**20, 5: 1, 6: 2**20}
    assert ran.err.count("it is longer than 1 MiB") == 3
