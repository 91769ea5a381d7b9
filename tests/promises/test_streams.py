"""Encodings, colours, widths, checkpoints that print: nothing crashes, no number is lost, and output stays data."""

import json
import os
import re
import warnings
from pathlib import Path

import pytest
from running import program
from small_checkpoints import save_tiny_llama
from whole_program import whole_program

TEXT = "時間 flies café 🙂"
COMMANDS = {"inspect": ["inspect", TEXT], "why": ["why", "-m", "toy", TEXT, "--query", "2", "--key", "0"]}
SGR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("locale", ["C", "en_US.ISO-8859-1"])
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


@pytest.mark.parametrize(
    "environment",
    [
        {"FORCE_COLOR": "1", "TERM": "dumb"},
        {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        {"NO_COLOR": "1", "FORCE_COLOR": "1"},
        {"TERM": ""},
        *({"COLUMNS": width} for width in ("abc", "1", "9" * 5000)),  # a pipe has none
    ],
    ids=str,
)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_environment_takes_no_number_away(environment: dict[str, str], command: str) -> None:
    with whole_program() as attn:
        done, expected = attn(*COMMANDS[command], **environment), attn(*COMMANDS[command])
    plain = SGR.sub("", done.out)
    assert (done.code, SGR.sub("", done.err), "\x1b" in plain) == (0, expected.err, False)
    assert (plain != done.out) == ("FORCE_COLOR" in environment and "NO_COLOR" not in environment)
    digits = re.compile(r"-?\d+\.\d{4}")
    assert digits.findall(plain) == digits.findall(expected.out)


@pytest.mark.parametrize("width", ["1", "²", "9" * 5000])
def test_a_width_that_is_none_leaves_the_help_readable(width: str) -> None:
    done = program("mask", "diff", "--help", env=os.environ | {"COLUMNS": width, "TERMINAL_WIDTH": width})
    assert (done.returncode, done.stderr) == (0, "")
    assert "Showwheretwomasksdiffer" in "".join(re.findall(r"\w+", done.stdout))
    assert max(map(len, done.stdout.splitlines())) <= 1000


# --- checkpoints that talk ----------------------------------------------------------------------------------

CODE = """
import logging, os, sys, warnings
from transformers import LlamaModel

print("imported")

class TalkativeModel(LlamaModel):
    def __init__(self, config):
        print("made")
        warnings.warn("of an odd kind")
        logging.getLogger("transformers").error("an error of a library")
        super().__init__(config)

    def forward(self, *args, **kwargs):
        print("run", flush=True)
        sys.stdout.write("and run\\n")
        return super().forward(*args, **kwargs)
"""


@pytest.mark.usefixtures("by_transformers")
def test_what_a_checkpoint_prints_is_no_data(tmp_path: Path) -> None:
    folder = tmp_path / "talkative"
    save_tiny_llama(str(folder))
    (folder / "modeling_talkative.py").write_text(CODE, encoding="utf-8")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoModel": "modeling_talkative.TalkativeModel"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    options = ["-m", folder, "--trust-remote-code"]
    ran = program("inspect", *options, "-F", "json", "time flies like an arrow")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["schema"] == "attncli.trace/1"
    assert {"imported", "made", "run", "and run"} <= set(ran.stderr.splitlines())
    # The others over descriptors of their own too, but in one process, which imports torch once.
    with warnings.catch_warnings(), whole_program() as attn:
        warnings.simplefilter("ignore")
        again = attn("heads", *options, "-F", "tsv", "time flies like an arrow")
        assert {line.count("\t") for line in again.out.splitlines()} == {again.out.splitlines()[0].count("\t")}
        again = attn("inspect", *options, "-o", tmp_path / "x.json", "time flies like an arrow")
        assert (again.code, again.out) == (0, "")
        assert {"made", "run", "and run"} <= set(again.err.splitlines())
