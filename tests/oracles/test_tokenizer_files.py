"""Tokenizers in every form but tokenizer.json, on files of the forms' own libraries, against transformers' classes."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from tokenizer_folders import IN_PYTHON, PLACED, ranks
from transformers import AutoTokenizer, MarianConfig, MarianModel, TokenizersBackend

Run = Callable[..., Any]

TEXTS = ["time flies like an arrow", "  naïve cafe\u0301 ☃ 2024", "LIKE </s> an <unk> end"]
LOAD = 3


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:

    @cache
    def folder(kind: str) -> Path:
        made = tmp_path_factory.mktemp("tokenizer")
        (PLACED | IN_PYTHON)[kind](made)
        return made

    return folder


def own(folder: Path) -> Any:
    """The tokenizer that transformers has for a folder, without mistral-common."""
    printed = (folder / "tokenizer_config.json").read_text() if (folder / "tokenizer_config.json").exists() else ""
    if "MistralCommonBackend" in printed:
        return TokenizersBackend.from_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder, mistral_format=False)


@pytest.mark.parametrize("kind", [*PLACED, *IN_PYTHON])
def test_ids_and_pieces_are_those_of_transformers(attn: Run, folder_of: Callable[[str], Path], kind: str) -> None:
    folder = folder_of(kind)
    tokenizer = own(folder)
    assert tokenizer.is_fast == (kind in PLACED)
    for options in ([], ["--no-special"]):
        ran = attn("tokens", *TEXTS, *options, "-m", folder, "-F", "jsonl")
        assert ran.code == 0, ran.err
        for text, line in zip(TEXTS, ran.out.splitlines(), strict=True):
            tokens = json.loads(line)["tokens"]
            expected = tokenizer(text, add_special_tokens=not options)
            ids = expected["input_ids"]
            assert [token["id"] for token in tokens] == ids
            pieces = expected.tokens() if kind in PLACED else tokenizer.convert_ids_to_tokens(ids)
            assert [token["text"] for token in tokens] == pieces
            assert all((token["start"] is None) == (token["end"] is None) for token in tokens)
            assert any(token["start"] is not None for token in tokens) == (kind in PLACED)


def test_a_vocabulary_of_tiktoken_is_refused(attn: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    ranks(tmp_path / "tokenizer.model")
    refused(
        attn("tokens", "time", "-m", tmp_path),
        LOAD,
        "it is a vocabulary of tiktoken; give a checkpoint that has a tokenizer.json",
    )


# --- tokens without places ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A translator with random weights, whose tokenizer says nothing of places."""
    folder = tmp_path_factory.mktemp("marian")
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=90, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, pad_token_id=1,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64,
        decoder_start_token_id=1, decoder_vocab_size=90, init_std=0.5,
    )  # fmt: skip
    MarianModel(config).save_pretrained(folder)
    saved = (folder / "config.json").read_text()
    IN_PYTHON["marian"](folder)
    (folder / "config.json").write_text(saved)
    return str(folder)


def test_attention_between_tokens_without_places_is_that_of_the_model(attn: Run, marian: str) -> None:
    text, target = "time flies like an arrow", "fruit flies"
    tokenizer = AutoTokenizer.from_pretrained(marian)
    model = MarianModel.from_pretrained(marian, attn_implementation="eager")
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    decoder = torch.tensor([[model.config.decoder_start_token_id, *tokenizer(text_target=target)["input_ids"][:-1]]])
    output = model(ids, decoder_input_ids=decoder, output_attentions=True)
    document = attn("inspect", text, "--target", target, "-m", marian, "-F", "json", "--show", "weights").json
    assert [token["id"] for token in document["query_tokens"]] == decoder[0].tolist()
    assert [token["special"] for token in document["key_tokens"]] == [False] * (ids.shape[1] - 1) + [True]
    assert {token["start"] for token in document["key_tokens"]} == {None}
    (cross,) = (layer for layer in document["layers"] if layer["kind"] == "cross")
    found = torch.tensor([head["weights"] for head in cross["heads"]])
    assert (found - output.cross_attentions[0][0]).abs().max() < 1e-6
