"""Generated tokens against transformers' own `generate`, and their rows against a plain pass over the whole text."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import tiny_config, tiny_model
from conformance import save, save_for_auto
from refusals import INPUT, USAGE, refused
from running import Run
from transformers import AutoModelForCausalLM

import attncli
from attncli.errors import NotExposedError

pytestmark = pytest.mark.usefixtures("by_transformers")

TEXT = "w23 w42 w17 w88 w23"
IDS = [23, 42, 17, 88, 23]
COUNT = 6
EXPOSED = 4
EXACT = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    @cache
    def get(name: str, end: int | None = None) -> Path:
        torch.manual_seed(0)
        config = tiny_config(name)
        config.eos_token_id = end
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        return save_for_auto(model, tmp_path_factory.mktemp(name), pad_token=None)

    return get


Folder = Callable[..., Path]


@cache
def plainly(path: Path, count: int) -> tuple[list[int], list[np.ndarray[Any, Any]]]:
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    ids = torch.tensor([IDS])
    with torch.no_grad():
        written = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count)
        attentions = model(written, output_attentions=True, use_cache=False).attentions
    return written[0].tolist(), [layer[0].numpy() for layer in attentions]


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "bloom"])
def test_what_is_written_and_its_rows_are_those_of_transformers(attn: Run, folder: Folder, name: str) -> None:
    path = folder(name)
    ids, expected = plainly(path, COUNT)
    assert len(ids) == len(IDS) + COUNT
    options = ("-m", path, "--generate", str(COUNT), "--layer", "all", "-F", "json", "--show", "weights")
    document = attn("inspect", TEXT, *options).json
    assert [token["id"] for token in document["key_tokens"]] == ids
    # The rows of the queries that predicted the new tokens, each with its prediction.
    rows = [token["index"] for token in document["query_tokens"]]
    assert rows == list(range(len(IDS) - 1, len(IDS) + COUNT - 1))
    assert [token["predicted"]["id"] for token in document["query_tokens"]] == ids[len(IDS) :]
    assert [token["predicted"]["text"] for token in document["query_tokens"]] == [f"w{i}" for i in ids[len(IDS) :]]
    assert len(document["layers"]) == len(expected)
    for layer, weights in zip(document["layers"], expected, strict=True):
        found = np.array([head["weights"] for head in layer["heads"]])
        np.testing.assert_allclose(found, weights[:, rows], atol=EXACT)
        assert layer["proof"]["max_abs_error"] < EXACT


def test_the_text_ends_where_the_model_ends_it(attn: Run, folder: Folder) -> None:
    free, _ = plainly(folder("llama"), COUNT)
    end = free[len(IDS) + 2]
    stop = free.index(end, len(IDS)) - len(IDS) + 1
    path = folder("llama", end)
    ids, _ = plainly(path, COUNT)
    assert len(ids) == len(IDS) + stop < len(free)
    ran = attn("inspect", TEXT, "-m", path, "--generate", str(COUNT), "-F", "json", "--show", "weights")
    assert [token["id"] for token in ran.json["key_tokens"]] == ids
    assert len(ran.json["query_tokens"]) == stop
    assert f"the model ended the text with 'w{end}', token {stop} of {COUNT}" in ran.err


def test_what_writes_no_text_is_refused(
    attn: Run, minilm: str, folder: Folder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    refused(attn("inspect", "time", "-m", minilm, "--generate", "2"), EXPOSED, "encoder", "causal model")
    for name in ("bart", "t5"):
        both = tmp_path_factory.mktemp(name)
        save(tiny_model(name), both)
        refused(attn("inspect", "w7", "-m", both, "--generate", "2"), EXPOSED, "encoder-decoder", "causal model")
    refused(attn("inspect", "time", "--generate", "2"), USAGE, "toy layer")
    refused(attn("inspect", "time", "--generate", "0"), USAGE, "--generate")
    path = folder("llama")
    refused(attn("inspect", TEXT, "-m", path, "--generate", "2", "--mask", "full"), USAGE, "--mask")
    refused(attn("inspect", TEXT, "-m", path, "--generate", "60"), INPUT, "5 tokens and --generate 60 make 65", "64")


def test_a_model_that_looks_ahead_predicts_nothing(folder: Folder) -> None:
    # XLNet is trained as a language model, but reads its whole input in both directions.
    with pytest.raises(NotExposedError, match="attends to later tokens"):
        attncli.inspect(TEXT, model=str(folder("xlnet")), generate=2)
