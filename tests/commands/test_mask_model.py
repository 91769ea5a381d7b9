"""`attn mask model` as a user runs it, natively and by transformers."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import ESCAPE, INPUT, USAGE, left_in, refused
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModel,
    Gemma2Config,
    LlamaConfig,
    MambaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    T5Config,
)

LOAD, NOT_EXPOSED = 3, 4
Run = Callable[..., Any]
WORDS = ["<unk>", "<s>", "<pad>", *"time flies like an arrow".split(), ESCAPE]


def save(config: PreTrainedConfig, folder: str, **tokenizer: Any) -> None:
    AutoModel.from_config(config).save_pretrained(folder)
    save_tokenizer(folder, pad_token="<pad>", **tokenizer)


def save_tokenizer(folder: str, **more: Any) -> None:
    """A tokenizer that puts <s> before each sentence, as Llama's does."""
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    names = {"unk_token": "<unk>", "bos_token": "<s>"} | more
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


@pytest.fixture
def gemma(folder: Path) -> str:
    """Layers with a sliding window of 3 and layers without one, in turn."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Gemma2Config(
        vocab_size=len(WORDS), num_hidden_layers=4, head_dim=8, sliding_window=3, pad_token_id=2, **sizes
    )
    save(config, "gemma")
    return "gemma"


def pictures(out: str) -> list[list[str]]:
    """The rows of each picture: a label, and a character for each cell."""
    found: list[list[str]] = []
    for line in out.splitlines():
        if line[:1].isdigit() and any(mark in line for mark in "█▓·"):
            found[-1].append(line.replace("██", "1").replace("▓▓", "2").replace(" ·", "0"))
        elif "queries ×" in line:
            found.append([])
    return found


def test_a_mask_is_drawn_for_each_kind_of_layer_and_each_sentence(attn: Run, gemma: str) -> None:
    ran = attn("mask", "model", "-m", gemma, "time flies like", "arrow")
    assert (ran.code, ran.err) == (0, "")
    for heading in (
        "sentence 1: time flies like",
        "sliding · layers 0,2 · window(3) · 4 queries × 4 keys",
        "full · layers 1,3 · causal · 4 queries × 4 keys",
        "sentence 2: arrow",
        "full · layers 0-3 · causal · 2 queries × 2 keys",
    ):
        assert heading in ran.out
    assert pictures(ran.out) == [
        ["0 <s>   2000", "1 time  1200", "2 flies 1120", "3 like  0112"],
        ["0 <s>   2000", "1 time  1200", "2 flies 1120", "3 like  1112"],
        ["0 <s>   20", "1 arrow 12"],
    ]


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_both_engines_show_the_same_masks(attn: Run, folder: Path, gemma: str, minilm: str, engine: str) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    save(LlamaConfig(vocab_size=len(WORDS), **sizes), "llama")
    for name, expected in {gemma: ["sliding", "full"], "llama": ["full"], minilm: ["bidirectional"]}.items():
        ran = attn("mask", "model", "-m", name, "time flies like an arrow", "-F", "json", "--engine", engine)
        assert [one["kind"] for one in ran.json] == expected, ran.err
        assert ran.json == attn("mask", "model", "-m", name, "time flies like an arrow", "-F", "json").json


def test_the_demo_model_is_read_without_torch(attn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("attncli.engines.torch.engine", "attncli.engines.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "full · layers 0-3 · causal · 8 queries × 8 keys" in attn("mask", "model", "-m", "demo").out


def test_an_encoder_decoder_has_three_kinds(attn: Run, folder: Path) -> None:
    sizes = {"d_model": 16, "d_ff": 16, "d_kv": 8, "num_heads": 2}
    save(T5Config(vocab_size=len(WORDS), num_layers=2, decoder_start_token_id=2, **sizes), "t5")
    documents = attn("mask", "model", "-m", "t5", "time flies like", "--target", "an arrow", "-F", "json").json
    found = {one["kind"]: (one["queries"], one["keys"], one["expression"]) for one in documents}
    assert found == {"encoder": (4, 4, "full"), "decoder": (4, 4, "causal"), "cross": (4, 4, "full")}
    alone = attn("mask", "model", "-m", "t5", "time flies like", "-F", "json").json
    assert [(one["kind"], one["queries"], one["keys"]) for one in alone] == [
        ("encoder", 4, 4), ("decoder", 5, 5), ("cross", 5, 4),
    ]  # fmt: skip
    cross = documents[-1]
    assert [token["text"] for token in cross["query_tokens"]] == ["<pad>", "<s>", "an", "arrow"]
    assert [token["text"] for token in cross["key_tokens"]] == ["<s>", "time", "flies", "like"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["gemma", " "], INPUT, "empty"),
        (["gone", "time"], LOAD, "there is no such folder"),
        (["mamba", "time"], NOT_EXPOSED, "no attention layers"),
        (["gemma", "time", "--target", "flies"], USAGE, "--target needs an encoder-decoder"),
        (["gemma", "time", "-o", "mask.csv"], USAGE, ".json, .svg, .html, .md or .txt"),
    ],
)
def test_a_bad_request_is_one_sentence_and_an_exit_code(
    attn: Run, gemma: str, arguments: list[str], code: int, words: str
) -> None:
    MambaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1).save_pretrained("mamba")
    save_tokenizer("mamba")
    before = left_in(Path())
    refused(attn("mask", "model", "-m", *arguments), code, words)
    assert left_in(Path()) == before
