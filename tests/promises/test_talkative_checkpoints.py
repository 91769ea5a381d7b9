"""Checkpoints that talk while they are loaded and run: standard output stays data. Signals while one is loaded."""

import json
import random
import signal
import time
import warnings
from pathlib import Path

import pytest
from running import program
from signalled import STOPPED, ended
from small_checkpoints import save_tiny_llama
from whole_program import whole_program

pytestmark = pytest.mark.usefixtures("by_transformers")

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


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose own code prints when it is imported, made and run."""
    folder = tmp_path_factory.mktemp("talkative")
    save_tiny_llama(str(folder))
    (folder / "modeling_talkative.py").write_text(CODE, encoding="utf-8")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoModel": "modeling_talkative.TalkativeModel"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_what_a_checkpoint_prints_is_no_data(talkative: Path, tmp_path: Path) -> None:
    given = ["-m", talkative, "--trust-remote-code"]
    ran = program("inspect", *given, "-F", "json", "time flies like an arrow")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["schema"] == "attncli.trace/1"
    assert {"imported", "made", "run", "and run"} <= set(ran.stderr.splitlines())
    # The others over descriptors of their own too, but in one process, which imports torch once.
    with warnings.catch_warnings(), whole_program() as attn:
        warnings.simplefilter("ignore")
        again = attn("heads", *given, "-F", "tsv", "time flies like an arrow")
        assert again.out.splitlines()[0].startswith("layer\t")
        assert {line.count("\t") for line in again.out.splitlines()} == {again.out.splitlines()[0].count("\t")}
        again = attn("check", *given, "-F", "json", "time flies like an arrow")
        assert again.json["schema"] == "attncli.findings/1"
        assert {"made", "run", "and run"} <= set(again.err.splitlines())
        again = attn("inspect", *given, "-o", tmp_path / "x.json", "time flies like an arrow")
        assert (again.code, again.out) == (0, "")
        assert {"made", "run", "and run"} <= set(again.err.splitlines())


@pytest.mark.usefixtures("signals_arrive")
@pytest.mark.parametrize(
    ("engine", "sentences", "number"), [("transformers", 1, signal.SIGINT), ("native", 60, signal.SIGTERM)]
)
def test_a_signal_while_a_checkpoint_is_loaded_and_run_ends_quietly(
    engine: str, sentences: int, number: signal.Signals, minilm: str, tmp_path: Path
) -> None:
    result = tmp_path / "x.json"
    arguments = ["inspect", "-m", minilm, "--engine", engine, "-o", str(result), *["time flies"] * sentences]
    began = time.monotonic()
    ran = program(*arguments)
    seconds = time.monotonic() - began
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")  # a real checkpoint says nothing
    whole = result.read_bytes()
    drawn = random.Random(0)
    code = 0
    while code == 0:
        result.unlink(missing_ok=True)
        code, errors, lasted = ended(arguments, number, drawn.uniform(0, seconds))
        assert errors == b"" or (sentences > 1 and STOPPED.fullmatch(errors.decode()))
        assert code in (128 + number, -number, 0), (number, code)
        assert [file.read_bytes() for file in tmp_path.iterdir()] in ([], [whole])
        if code == 0:  # it was sooner done than the one before
            seconds = lasted
