"""`attn tokens -m` without transformers and with it: the same tokens, whichever of them reads."""

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from imported import STARTED, imported_by
from tiny_tokenizers import STRINGS, save_tokenizer
from transformers import CONFIG_MAPPING

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


# What each family makes of a text is held in test_tokenizers.py; options change what comes after that.
@pytest.mark.parametrize("family", ["bert", "roberta", "llama"])
def test_every_option_gives_the_same(family: str, tmp_path: Path, attn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tokenizer(tmp_path, family)
    CONFIG_MAPPING[family](max_position_embeddings=12).save_pretrained(tmp_path)  # the model reads a dozen tokens
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


def test_neither_torch_nor_transformers_is_imported_where_they_are_not_needed(
    minilm: str, tmp_path: Path, attn: Run
) -> None:
    shown = ("tokens", "time flies", "-F", "json", "-m")
    assert not imported_by(STARTED, *shown, minilm) & {"torch", "transformers", "huggingface_hub"}
    for path in Path(minilm).iterdir():  # with a field that nobody has read yet
        if path.name != "tokenizer_config.json" and path.is_file():
            (tmp_path / path.name).symlink_to(path)
    fields = json.loads(Path(minilm, "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields | {"new_rule": 1}))
    assert "transformers" in imported_by(STARTED, *shown, tmp_path)
    assert attn(*shown, tmp_path).json["tokens"] == attn(*shown, minilm).json["tokens"]


def test_code_that_a_checkpoint_brings_is_left_to_transformers(minilm: str, attn: Run) -> None:
    expected = attn("tokens", "time flies", "-m", minilm, "-F", "json")
    assert attn("tokens", "time flies", "-m", minilm, "-F", "json", "--trust-remote-code") == expected
    with pytest.raises(numpy_engine.UnsupportedError, match="no code of a checkpoint"):
        numpy_engine.load_alone(resolve(minilm, LoadOptions()), LoadOptions(trust_remote_code=True))
