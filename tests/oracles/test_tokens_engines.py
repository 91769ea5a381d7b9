"""`attn tokens -m` without transformers and with it: the same tokens, whichever of them reads."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import STRINGS, save_tokenizer
from transformers import AutoTokenizer

from attncli.checkpoints.options import LoadOptions
from attncli.checkpoints.snapshot import resolve
from attncli.encoding import auto_tokenizer as of_transformers
from attncli.engines import numpy as numpy_engine

Run = Callable[..., Any]

# Some of the awkward strings; a file has one in a line.
LINES = [text for text in STRINGS[::25] if "\n" not in text and "\r" not in text]
OPTIONS = [[], ["--no-special"], ["--hide-special"], ["--words"], ["--truncate", "--pair", "the time flies <s> [MASK]"]]


def refuse(*_: Any) -> Any:
    raise AssertionError("it was not to be asked")


def decline(*_: Any) -> Any:
    raise numpy_engine.UnsupportedError("not this time")


# What each family makes of a text is held in test_native_tokenizers.py; options change what comes after that.
@pytest.mark.parametrize("family", ["bert", "roberta", "llama"])
def test_every_option_gives_the_same(family: str, tmp_path: Path, attn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tokenizer(tmp_path, family, max_position_embeddings=12)  # the model reads a dozen tokens
    for options in OPTIONS:
        arguments = ("tokens", "-", "-m", tmp_path, "-F", "jsonl", *options)
        with monkeypatch.context() as patch:
            patch.setattr(of_transformers, "load_alone", refuse)
            without = attn(*arguments, stdin="\n".join(LINES))
        with monkeypatch.context() as patch:
            patch.setattr(numpy_engine, "load_alone", decline)
            assert without == attn(*arguments, stdin="\n".join(LINES))
        documents = list(map(json.loads, without.out.splitlines()))
        assert len(documents) > 0.9 * len(LINES)
        tokens = list(chain.from_iterable(document.get("tokens", []) for document in documents))
        assert len({token["word"] if "word" in token else token["index"] for token in tokens}) > 3
        limits = {document["limit"] for document in documents if "limit" in document}
        assert limits == {10 if "roberta" in family else 12}
        longest = max(document.get("length", 0) for document in documents)
        assert (longest <= min(limits)) == ("--truncate" in options)


RUN = """
import sys
from attncli.__main__ import main
try:
    main()
finally:
    print("IMPORTED", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def in_a_fresh_process(*arguments: Any) -> tuple[str, set[str]]:
    """Return what a command says, and which packages it has imported."""
    command = [sys.executable, "-c", RUN, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    lines = ran.stderr.splitlines()
    assert (ran.returncode, len(lines)) == (0, 1), ran.stderr
    return ran.stdout, set(lines[0].split()[1:])


def test_neither_torch_nor_transformers_is_imported_where_they_are_not_needed(minilm: str, tmp_path: Path) -> None:
    shown, imported = in_a_fresh_process("tokens", "-m", minilm, "time flies", "-F", "json")
    assert not imported & {"torch", "transformers", "huggingface_hub"}
    for path in Path(minilm).iterdir():  # with a field that nobody has read yet
        if path.name != "tokenizer_config.json" and path.is_file():
            (tmp_path / path.name).symlink_to(path)
    fields = json.loads(Path(minilm, "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields | {"new_rule": 1}))
    again, imported = in_a_fresh_process("tokens", "-m", tmp_path, "time flies", "-F", "json")
    assert "transformers" in imported
    assert json.loads(again)["tokens"] == json.loads(shown)["tokens"]
    expected = AutoTokenizer.from_pretrained(minilm)("time flies")["input_ids"]
    assert [token["id"] for token in json.loads(shown)["tokens"]] == expected


def test_code_that_a_checkpoint_brings_is_left_to_transformers(minilm: str, attn: Run) -> None:
    expected = attn("tokens", "time flies", "-m", minilm, "-F", "json")
    assert attn("tokens", "time flies", "-m", minilm, "-F", "json", "--trust-remote-code") == expected
    with pytest.raises(numpy_engine.UnsupportedError, match="no code of a checkpoint"):
        numpy_engine.load_alone(resolve(minilm, LoadOptions()), LoadOptions(trust_remote_code=True))
