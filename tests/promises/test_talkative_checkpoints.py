"""Checkpoints that talk while they are loaded and run: standard output stays data."""

import json
import warnings
from pathlib import Path

import pytest
from running import program
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
