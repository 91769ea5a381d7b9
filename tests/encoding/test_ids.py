"""Checkpoints without a tokenizer: another one, or a text of token ids."""

from pathlib import Path
from shutil import copy

import numpy as np
import pytest

import attncli
from attncli.checkpoints.checkpoint_folder import demo_or
from attncli.errors import InputError, LoadError

TEXT = "the cat sat on the mat"


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """The demo without its tokenizer."""
    for name in ("config.json", "model.safetensors"):
        copy(Path(demo_or("demo")) / name, tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_ids_and_another_tokenizer_give_the_weights_of_the_whole_checkpoint(bare: str, engine: str) -> None:
    wanted = attncli.inspect(TEXT, "demo", layer="all", engine=engine)
    by_ids = attncli.inspect(" ".join(map(str, wanted.key_tokens.ids)), bare, layer="all", engine=engine, ids=True)
    by_tokenizer = attncli.inspect(TEXT, bare, layer="all", engine=engine, tokenizer="demo")
    assert by_tokenizer.key_tokens == wanted.key_tokens
    assert [token.text for token in by_ids.key_tokens] == [str(id_) for id_ in wanted.key_tokens.ids]
    for found in (by_ids, by_tokenizer):
        for one, other in zip(found.layers, wanted.layers, strict=True):
            np.testing.assert_array_equal(one.head(2).weights, other.head(2).weights)


def test_bad_ids_and_no_tokenizer_are_one_sentence(bare: str) -> None:
    with pytest.raises(LoadError, match="name another with --tokenizer, or give --ids"):
        attncli.inspect(TEXT, bare)
    with pytest.raises(InputError, match="expected token ids, such as 101 2051, and x is none"):
        attncli.inspect("1 x", bare, ids=True)
    with pytest.raises(InputError, match=r"the token id 3000 is none of .*, which has 3000 ids"):
        attncli.inspect("1 3000", bare, ids=True)
    with pytest.raises(LoadError, match="was not found"):
        attncli.inspect(TEXT, bare, tokenizer="./missing")
