"""Where sentences come from: arguments, standard input, files, pairs and targets."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import INPUT, refused

Run = Callable[..., Any]

TWO = [("1", "time flies"), ("2", "fruit flies like")]
LATIN = b"time flies\nfruit\nna\xefve\n"
NO_TEXT = "expected UTF-8, one sentence a line"
FILES = {
    "sentences.txt": b"time flies\nfruit flies like",
    "latin1.txt": LATIN,
    "my notes.txt": b"time flies\n",
    "data": b"\xa7\x03\n\xf2\n\x11\0\0\x07\n" * 9,
    "my adapter/adapter_config.json": b"{}",
    "my model/config.json": b"{}",
}


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    """A folder with files of sentences, and one that holds a model."""
    for name in ("my adapter", "my model"):
        (folder / name).mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)


def texts(out: str) -> list[tuple[str, str]]:
    """Return the number of each sentence and its tokens, from TSV rows."""
    found: dict[str, dict[str, str]] = {}
    for row in (line.split("\t") for line in out.splitlines()[1:]):
        found.setdefault(row[0], {})[row[6]] = row[7]
    return [(number, " ".join(tokens.values())) for number, tokens in found.items()]


READ: dict[str, tuple[list[str], bytes, list[tuple[str, str]], str]] = {
    "arguments": (["time flies", "fruit flies like"], b"fruit\n", TWO, ""),
    "one blank": (["time", "flies\u3000like"], b"", [("1", "time"), ("2", "flies like")], ""),
    "a word": (["time"], b"", [("1", "time")], ""),
    "a line end": (["time\nflies"], b"", [("1", "time flies")], ""),
    "a dash at the front": (["--", "--time flies"], b"", [("1", "--time flies")], ""),
    "words": (
        ["a", "b"], b"", [("1", "a"), ("2", "b")],
        "each of the 2 words is a sentence here; put a sentence in quotes",
    ),
    "a dash": (["-"], FILES["sentences.txt"], TWO, ""),
    "a pipe": ([], FILES["sentences.txt"], TWO, ""),
    "a file": (["--file", "sentences.txt"], b"ignored\n", TWO, ""),
    "other line ends": ([], b"\xef\xbb\xbftime flies\r\nfruit flies like\r\n", TWO, ""),
    "nearly a packed file": ([], b"BZh is a name\n", [("1", "BZh is a name")], ""),
    "nearly an archive": ([], b"PK\n", [("1", "PK")], ""),
    "empty lines": (
        [], b"\n\r\ntime flies\n\n\nfruit\n\n", [("3", "time flies"), ("6", "fruit")],
        "standard input: 5 empty lines were skipped",
    ),
    "lines of blanks": (
        ["-"], b"  \ntime flies\n\t\n\xc2\xa0\xe3\x80\x80\nfruit\n", [("2", "time flies"), ("5", "fruit")],
        "standard input: 3 empty lines were skipped",
    ),
    "the name of a file": (
        ["my notes.txt"], b"", [("1", "my notes.txt")],
        "my notes.txt is a file, read as a sentence here; --file 'my notes.txt' opens it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_sentences_are_read_and_what_they_might_have_been_is_said(attn: Run, name: str) -> None:
    arguments, stdin, found, note = READ[name]
    ran = attn("inspect", "-F", "tsv", *arguments, stdin=stdin)
    assert (ran.code, ran.err) == (0, f"attn: {note}\n" if note else "")
    assert [(number, text.replace(" ", "")) for number, text in texts(ran.out)] == [
        (number, text.replace(" ", "")) for number, text in found
    ]


BINARY = {
    "xz": lzma.compress(b"time\n"), "gzip": gzip.compress(b"time\n"), "bz2": bz2.compress(b"time\n"),
    "zip": b"PK\x03\x04\x14\0", "png": b"\x89PNG\r\n\x1a\n\0\0", "pdf": b"%PDF-1.7\n%\xe2\xe3\n",
    "npy": b"\x93NUMPY\x01\0v\0{'descr'}\n", "line ends by chance": FILES["data"],
    **{encoding: "\ufefftime\r\nfruit\r\n".encode(encoding) for encoding in ("utf-16-be", "utf-32-le")},
    "utf-16 without a mark": "na\u00efve caf\u00e9\n".encode("utf-16-le"),
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_what_is_no_text_is_one_sentence(attn: Run, name: str) -> None:
    why = f"is compressed, binary or in another encoding; {NO_TEXT}"
    if name != "line ends by chance":  # of which a pipe shows the first line alone
        refused(attn("tokens", stdin=BINARY[name]), INPUT, f"attn: standard input {why}")
    Path("some").write_bytes(BINARY[name])
    refused(attn("tokens", "--file", "some"), INPUT, f"attn: some {why}")


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "reason"),
    [
        ([], b"", 2, 'give a sentence, such as "time flies like an arrow", or --file sentences.txt'),
        (["-"], b"", 5, "standard input holds no sentence; expected one a line"),
        (["-"], b"\n\r\n\n", 5, "standard input holds no sentence; expected one a line"),
        (["--whole"], b"\n\r\n\n", 5, "standard input holds no sentence; expected one a line"),
        (["--whole"], LATIN, 5, "it is not UTF-8 at byte 20; convert standard input to UTF-8 first"),
        (["time flies", "-"], b"fruit\n", 2, "- reads standard input; give it without"),
        (["-", "--file", "sentences.txt"], b"", 2, "give sentences or --file, not both"),
        (["--file", ""], b"", 2, "--file: the file name is empty"),
        (["time flies", "--whole"], b"", 2, "--whole does not apply to TEXT, which is one text already"),
        (["time flies", "--column", "x"], b"", 2, "--column does not apply to sentences without --file; give --file"),
        (["demo", "time flies"], b"", 2, "demo is a model, not a sentence; did you mean -m demo?"),
        (["my adapter", "time flies"], b"", 2, "my adapter is a model, not a sentence; did you mean -m 'my adapter'?"),
        (["my model", "time flies"], b"", 2, "my model is a model, not a sentence; did you mean -m 'my model'?"),
    ],
)
def test_where_no_sentence_is_found_is_one_sentence(
    attn: Run, arguments: list[str], stdin: bytes, code: int, reason: str
) -> None:
    for command in ("inspect", "tokens"):
        refused(attn(command, *arguments, stdin=stdin), code, f"attn: {reason}")


def test_whole_is_one_text_newlines_and_all(attn: Run) -> None:
    text = "na\u00efve \u6f22\u5b57\r\n\narrow \U0001f44d end\n"
    Path("text.txt").write_bytes(f"\ufeff{text}".encode())
    for ran in (
        attn("inspect", "--file", "text.txt", "--whole", "-F", "json"),
        attn("inspect", "--whole", "-F", "json", stdin=Path("text.txt").read_bytes()),
    ):
        assert ran.json["text"] == text
        for token in ran.json["key_tokens"]:  # offsets are characters of the text
            assert text[token["start"] : token["end"]] == token["text"]
