"""Where sentences come from: arguments, standard input, files, pairs and targets."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

TWO = [("1", "time flies"), ("2", "fruit flies like")]
LATIN = b"time flies\nfruit\nna\xefve\n"
NO_TEXT = "expected UTF-8, one sentence a line"
FILES = {
    "sentences.txt": b"time flies\nfruit flies like",
    "latin1.txt": LATIN,
    "my notes.txt": b"time flies\n",
    "data": b"\xa7\x03\n\xf2\n\x11\0\0\x07\n" * 9,
    "packed": lzma.compress(b"time flies\n"),
    "my model/config.json": b"{}",
}


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    """A folder with files of sentences, and one that holds a model."""
    (folder / "my model").mkdir()
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
    "words": (["a", "b"], b"", [("1", "a"), ("2", "b")], "2 words were taken as a sentence each; quotes make them one"),
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
    "a model": (
        ["demo", "time flies"], b"", [("1", "demo"), ("2", "time flies")],
        "demo is the name of a model, and was taken as a text; --model demo loads the model",
    ),
    "a folder of a model": (
        ["my model"], b"", [("1", "my model")],
        "my model is the name of a model, and was taken as a text; --model 'my model' loads the model",
    ),
    "the name of a file": (
        ["my notes.txt"], b"", [("1", "my notes.txt")],
        "my notes.txt is the name of a file, and was taken as a text; --file 'my notes.txt' reads the file",
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


REFUSED: dict[str, tuple[list[str], bytes, int, str]] = {
    "packed, a file": (["--file", "packed"], b"", 5, f"packed is packed and no text; {NO_TEXT}"),
    **{f"packed by {pack.__module__}": ([], pack(b"time\n"), 5, f"standard input is packed and no text; {NO_TEXT}")
       for pack in (gzip.compress, bz2.compress)},
    "an archive": ([], b"PK\x03\x04\x14\0", 5, f"standard input is a zip archive and no text; {NO_TEXT}"),
    "a picture": ([], b"\x89PNG\r\n\x1a\n\0\0", 5, f"standard input is a picture and no text; {NO_TEXT}"),
    "a PDF": ([], b"%PDF-1.7\n%\xe2\xe3\n", 5, f"standard input is a PDF document and no text; {NO_TEXT}"),
    "an array": ([], b"\x93NUMPY\x01\0v\0{'descr'}\n", 5, f"standard input is binary and no text; {NO_TEXT}"),
    "line ends by chance": (["--file", "data"], b"", 5, f"data is binary and no text; {NO_TEXT}"),
    "UTF-16 without a mark": ([], "na\u00efve caf\u00e9\n".encode("utf-16-le"), 5, "standard input is binary and no"),
    **{encoding: (more, "\ufefftime flies\r\nfruit\r\n".encode(encoding), 5,
                  f"standard input is UTF-16 or UTF-32; {NO_TEXT}")
       for encoding, more in (("utf-16-be", ["--whole"]), ("utf-32-le", []))},
    "nothing": ([], b"", 5, "standard input holds no sentence; expected one a line"),
    "empty lines": (["-"], b"\n\r\n\n", 5, "standard input holds no sentence; expected one a line"),
    "whole empty lines": (["--whole"], b"\n\r\n\n", 5, "standard input holds no sentence; expected one a line"),
    "whole in another encoding": (["--whole"], LATIN, 5, "it is not UTF-8"),
    "a dash and a text": (["time flies", "-"], b"fruit\n", 2, "- reads the sentences from standard input"),
    "two dashes": (["-", "-"], b"fruit\n", 2, "- reads the sentences from standard input"),
    "a dash and a file": (["-", "--file", "sentences.txt"], b"", 2, ""),
    "a text that is whole": (["time flies", "--whole"], b"", 2, "--whole applies to --file and standard input"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("command", ["inspect", "tokens"])
def test_what_is_no_text_is_one_sentence(attn: Run, command: str, name: str) -> None:
    arguments, stdin, code, said = REFUSED[name]
    ran = attn(command, *arguments, stdin=stdin)
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert ran.err.startswith(f"attn: {said}")


def test_one_trace_is_not_made_of_words(attn: Run) -> None:
    ran = attn("why", "time", "flies", "-q", "flies", "-F", "json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith("attn: attn why explains one trace; give one sentence")
    assert "--file 'my notes.txt' reads the file" in attn("diff", "my notes.txt", "my time").err


def test_a_saved_trace_is_told_from_a_text(attn: Run) -> None:
    assert attn("inspect", "time flies", "--save", "trace.safetensors").code == 0
    assert "--from trace.safetensors reads the file" in attn("inspect", "trace.safetensors").err
    ran = attn("inspect", "--file", "trace.safetensors")
    assert (ran.code, ran.out) == (5, "")
    assert ran.err.endswith(f" is binary and no text; {NO_TEXT}; --from reads a saved trace\n")


def test_the_line_that_is_not_utf_8_is_named(attn: Run) -> None:
    for arguments, name in ((["--file", "latin1.txt"], "latin1.txt"), (["-"], "standard input")):
        ran = attn("inspect", *arguments, "-F", "tsv", stdin=LATIN)
        assert (ran.code, texts(ran.out)) == (5, [("1", "time flies"), ("2", "fruit")])
        assert ran.err == f"attn: sentence 3: it is not UTF-8 at byte 3; convert {name} to UTF-8 first\n"


def test_several_sentences_are_each_as_it_is_alone(attn: Run) -> None:
    both = attn("inspect", "time flies", "fruit flies").out
    assert both == attn("inspect", "time flies").out + "\n" + attn("inspect", "fruit flies").out
    for more in ([], ["--pair", "like an arrow"], ["--target", "like an arrow"]):
        documents = attn("inspect", "time flies", "fruit", *more, "-F", "json").json
        alone = [attn("inspect", text, *more, "-F", "json").json for text in ("time flies", "fruit")]
        assert documents == [one | {"sentence": number} for number, one in enumerate(alone, start=1)]


def test_only_the_ends_of_a_line_are_taken_from_it(attn: Run) -> None:
    assert attn("inspect", "-F", "json", stdin="  time flies \n").json["text"] == "  time flies "
    # A line separator of Unicode is a character of the sentence.
    assert attn("inspect", "-F", "json", stdin="time\u2028flies\n").json["text"] == "time\u2028flies"


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


def test_a_checkpoint_without_a_decoder_refuses_a_target(attn: Run, tiny_llama: str) -> None:
    ran = attn("inspect", "time flies", "--target", "fruit", "-m", tiny_llama)
    assert (ran.code, ran.out) == (2, "")
    assert "--target" in ran.err
