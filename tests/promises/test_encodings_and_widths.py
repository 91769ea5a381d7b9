"""Encodings, colours and widths of the environment: output is UTF-8 everywhere, and no number is lost."""

import json
import os
import re
from functools import cache
from pathlib import Path

import pytest
from running import Ran, program
from whole_program import whole_program

TEXT = "時間 flies café 🙂"
COMMANDS = {"inspect": ["inspect", TEXT], "why": ["why", TEXT, "--query", "2", "--key", "0"]}


@cache
def ran(command: str) -> Ran:
    with whole_program() as attn:
        return attn(*COMMANDS[command])


@pytest.mark.parametrize("locale", ["C", "en_US.ISO-8859-1"])
def test_texts_and_files_are_utf_8_whatever_the_locale(locale: str, tmp_path: Path) -> None:
    environment = os.environ | {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment.pop("PYTHONIOENCODING", None)
    piped = program("tokens", "-", "-F", "json", env=environment, input=TEXT)
    assert (piped.returncode, piped.stderr, json.loads(piped.stdout)["text"]) == (0, "", TEXT)
    assert program("inspect", "time flies", "-o", tmp_path / "été.json", env=environment).returncode == 0
    assert [file.name for file in tmp_path.iterdir()] == ["été.json"]


def test_a_text_that_is_not_utf_8_is_refused() -> None:
    broken = program("tokens", os.fsdecode(b"na\xefve"), "-F", "json")
    assert broken.returncode == 5
    assert broken.stderr == "attn: the sentence is not valid UTF-8 at character 3; convert it to UTF-8 first\n"


SGR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    "environment",
    [
        {"FORCE_COLOR": "1", "TERM": "dumb"},
        {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor"},
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
