"""Encodings, colours and widths of the environment: nothing crashes, and nothing that was said is lost."""

import json
import os
import re
from functools import cache
from typing import Any

import pytest
from running import Ran, program
from whole_program import whole_program

from attncli.cli.command import as_utf8

TEXT = "時間 flies café 🙂"
COMMANDS = {
    "inspect": ["inspect", TEXT],
    "top keys": ["inspect", TEXT, "--top-keys", "2", "--show", "tokens,weights,metrics"],
    "tsv": ["inspect", TEXT, "-F", "tsv"],
    "mask show": ["mask", "show", "causal & window(2)", TEXT],
    "mask check": ["mask", "check", "window(2)", "--expect", "causal", "--size", "4"],
    "heads": ["heads", TEXT, "--num-heads", "4"],
    "why": ["why", TEXT, "--query", "2", "--key", "0"],
    "diff": ["diff", TEXT, "時間 like café 🙂"],
    "help": ["inspect", "--help"],
    "error": ["inspect", TEXT, "--query", "時"],
}
ENCODINGS = ["ascii", "cp1252"]
# What is written for a glyph of ours where there is none; a word of somebody else's becomes an escape instead.
# Blocks have eight shades and ASCII ten: a legend has other numbers between them.
_BOUND = re.compile(r"(?<=[░▒▓█:=*#%@] )[\d.e-]+(?= +[░▒▓█:=*#%@])")
_INSTEAD = {"ᵀ": " T", "×": "x", "·": " ", "−": "-", "–": "-", ".": " ", "^": " "}


@cache
def ran(command: str, encoding: str = "utf-8") -> Ran:
    with whole_program() as attn:
        return attn(*COMMANDS[command], encoding=encoding)


def unescaped(text: str) -> str:
    found = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
    return found.sub(lambda match: chr(int(match[1] or match[2] or match[3], 16)), text)


def words(text: str) -> list[str]:
    """Every token and number, in order; labels that are cut to a column's width stand whole beside the rows."""
    text = _BOUND.sub("", unescaped(text))
    whole = [word for word in text.split() if not re.search(r"\\|…|\.\.$", word)]
    text = " ".join(whole)
    text = "".join(_INSTEAD.get(character, character) for character in re.sub(r"(?<=\d)\.(?=\d)", ",", text))
    return re.findall(r"[-+]?\w[\w,]*|🙂", text)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_word_and_number_is_there_in_every_encoding(command: str, encoding: str) -> None:
    encoded, expected = ran(command, encoding), ran(command)
    assert encoded.code == expected.code == {"mask check": 1, "error": 2}.get(command, 0)
    assert "Traceback" not in encoded.err
    cut = set(re.findall(r"\S*(?:…|\.\.)(?=\s)", encoded.out))  # headers of narrow columns
    assert len(cut) <= 2
    heads = {label for label in ("時間", "🙂") if cut}
    if command == "diff":  # whose maps have numbers in cells that are as wide as their tokens
        listed = [[word for word in words(one.out) if re.search(r",\d{4}$", word)] for one in (encoded, expected)]
        assert listed[0] == listed[1] != []
        assert {*TEXT.split()} <= set(words(encoded.out))
        return
    assert [word for word in words(encoded.out) if word not in heads] == [
        word for word in words(expected.out) if word not in heads
    ]
    assert set(words(encoded.out)) == set(words(expected.out))
    assert words(encoded.err) == words(expected.err)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_masked_cell_is_no_low_one_and_a_glyph_is_no_token(encoding: str) -> None:
    out = ran("mask show", encoding).out
    lines = [line.split()[2:] for line in out.splitlines() if re.match(r"\d ", line)][:4]
    masked = "." if encoding == "ascii" else "·"
    for query, line in enumerate(lines):  # window(2): itself and the one before
        cells = "".join(line)
        assert len(re.findall(re.escape(masked), cells)) == len(lines) - min(query + 1, 2), out
    with whole_program() as attn:
        texts = ("a × b", "a x b", "a -> b")
        outputs = [attn("inspect", text, "--show", "tokens", encoding="ascii").out for text in texts]
    assert len(set(outputs)) == 3
    assert "\\xd7" in outputs[0]


def test_a_locale_of_ascii_alone_reads_utf_8_from_a_pipe_and_writes_files_of_any_name(tmp_path: Any) -> None:
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment.pop("PYTHONIOENCODING", None)
    ran = program("inspect", "--show", "tokens", "-", env=environment, input=TEXT)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\\u6642\\u9593" in ran.stdout
    assert program("inspect", "time flies", "-o", tmp_path / "été.json", env=environment).returncode == 0
    assert [file.name for file in tmp_path.iterdir()] == ["été.json"]


@pytest.mark.parametrize("locale", ["C", "POSIX", "en_US.ISO-8859-1"])
def test_a_text_is_utf_8_whatever_the_locale(locale: str) -> None:
    environment = os.environ | {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment.pop("PYTHONIOENCODING", None)
    arguments = ("inspect", TEXT, "--pair", "größer", "--query", "größer", "-F", "json")
    ran, expected = program(*arguments, env=environment), program(*arguments, env=os.environ)
    assert (ran.returncode, ran.stderr) == (expected.returncode, expected.stderr) == (0, "")
    assert json.loads(ran.stdout) == json.loads(expected.stdout)
    piped = program("tokens", "-", "-F", "json", env=environment, input=TEXT)
    assert json.loads(piped.stdout)["text"] == TEXT
    broken = program("tokens", os.fsdecode(b"na\xefve"), "-F", "json", env=environment)
    assert broken.returncode == 5
    assert broken.stderr == "attn: the sentence is not valid UTF-8 at character 3; convert it to UTF-8 first\n"


def test_a_text_in_the_encoding_of_a_locale_stays_as_python_decodes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsencode", lambda text: text.encode("latin-1", "surrogateescape"))
    assert as_utf8(TEXT.encode().decode("latin-1")) == TEXT
    assert as_utf8("naïve") == "naïve"  # bytes of Latin-1
    assert as_utf8("time") == "time"


SGR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    "environment",
    [
        {"FORCE_COLOR": "1", "TERM": "dumb"},
        {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        {"FORCE_COLOR": "1", "encoding": "ascii"},
        {"NO_COLOR": "1", "FORCE_COLOR": "1"},
        {"TERM": ""},
    ],
    ids=str,
)
def test_colour_takes_no_number_away(environment: dict[str, str]) -> None:
    for command in ("inspect", "why"):
        with whole_program() as attn:
            done = attn(*COMMANDS[command], **environment)
        assert (done.code, SGR.sub("", done.err)) == (0, ran(command).err)
        plain = SGR.sub("", done.out)
        assert "\x1b" not in plain
        assert (plain != done.out) == ("FORCE_COLOR" in environment and "NO_COLOR" not in environment)
        digits = re.compile(r"-?\d+\.\d{4}")
        assert digits.findall(plain) == digits.findall(ran(command).out)


@pytest.mark.parametrize("width", ["1", "²", "9" * 5000])
def test_a_width_that_is_none_leaves_the_help_readable(width: str) -> None:
    done = program("mask", "diff", "--help", env=os.environ | {"COLUMNS": width, "TERMINAL_WIDTH": width})
    assert (done.returncode, done.stderr) == (0, "")
    help_text = "".join(re.findall(r"\w+", done.stdout))
    assert "Showwheretwomasksdiffer" in help_text
    assert "Writetoafile" in help_text
    assert max(map(len, done.stdout.splitlines())) <= 1000


def test_no_width_of_the_environment_changes_what_a_pipe_gets() -> None:
    with whole_program() as attn:
        for width in ("abc", "1", "200"):
            assert attn(*COMMANDS["inspect"], COLUMNS=width) == ran("inspect")
