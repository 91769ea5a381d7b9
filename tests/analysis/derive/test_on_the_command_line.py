"""The derived views as a user runs them: tables, JSON, TSV, saved traces, errors, widths."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer that has merged little: most words have several pieces, and many are halves."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["time flies like an arrow"] * 9, trainer)
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_the_rule_is_printed_and_the_words_say_their_pieces(attn: Run, byte_level: Path) -> None:
    ran = attn("inspect", "time flies 你好", "--vocab", byte_level, "--words", "--head", "0")
    assert (ran.code, ran.err) == (0, "")
    assert "the weight on a word is the sum over its pieces, the weight from a word the mean over its pieces" in ran.out
    assert re.search(r"tokens +0 time +1 flies +2 你好", ran.out)
    assert re.search(r"pieces +0(-\d+)? +\d+-\d+ +\d+-\d+", ran.out)
    assert "<" not in ran.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rollout", "--query", "2"], "query 1 'b' in some heads; the softmax"),
        (["--mean", "heads", "--head", "0,2"], ""),
    ],
)
def test_a_row_without_a_key_is_warned_about_whatever_is_made_of_it(
    attn: Run, tmp_path: Path, options: list[str], words: str
) -> None:
    allowed = np.ones((4, 3, 3), bool)
    allowed[1, 1] = False
    np.save(tmp_path / "mask.npy", allowed)
    ran = attn("inspect", "a b c", "--mask", f"file('{tmp_path / 'mask.npy'}')", *options)
    assert ran.code == 0
    assert ran.err.count("\n") == bool(words)
    assert words in ran.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rollout", "--head", "1"], "mean over all heads; drop one of them"),
        (["--rollout", "--mean", "heads"], "already averages"),
        (["--mean", "layers"], "several layers"),
        (
            ["--words", "--show", "q"],
            "have only tokens, shapes, mask, weights, heatmap, metrics, proof",
        ),
        (["--mean", "rows"], "'rows' is not"),
    ],
)
def test_what_does_not_apply_is_a_usage_error(attn: Run, options: list[str], words: str) -> None:
    ran = attn("inspect", "time flies", *options)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert ran.err.count("\n") == 1


def test_a_dump_has_no_words_and_no_values(attn: Run, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "dump.safetensors"
    save_file({name: np.ones((3, 2), np.float32) for name in "qk"}, path)
    ran = attn("inspect", "--from", path, "--words")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "the position of each token" in ran.err
    ran = attn("inspect", "--from", path, "--norms")
    assert (ran.code, "needs the values V" in ran.err) == (4, True)
    assert attn("inspect", "--from", path, "--rollout").code == 0
