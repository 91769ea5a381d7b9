"""`attn heads` on checkpoints: heads whose weights are written by hand, and the real one against transformers."""

import math
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

Run = Callable[..., Any]
# --- planted heads -------------------------------------------------------------------------------------------

WORDS = "<unk> start a b c d e f".split()
POSITIONS = 16
SIZE = 32  # of a head
WIDTH = 4 * SIZE  # of the model
# What a hidden state holds, each a one-hot: which word it is, where it stands, and which word stands before it.
WORD = range(len(WORDS))
PLACE = range(len(WORDS), len(WORDS) + POSITIONS)
BEFORE = range(PLACE.stop, PLACE.stop + len(WORDS))
STRONG = 20 * math.sqrt(SIZE)  # a score of 20: e^20 times any other

PREVIOUS, FIRST, UNIFORM, DUPLICATE, INDUCTION = (0, 0), (0, 1), (0, 2), (0, 3), (1, 2)
SELF = [(1, 0), (1, 1), (1, 3)]


def _planted() -> GPT2LMHeadModel:
    """A GPT-2 of two layers of four heads, each of which does one thing."""
    sizes = {"vocab_size": len(WORDS), "n_positions": POSITIONS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4}
    config = GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config)
    for parameter in model.parameters():
        parameter.zero_()
    transformer = model.transformer
    transformer.wte.weight[:, WORD] = torch.eye(len(WORDS))
    transformer.wpe.weight[:, PLACE] = torch.eye(POSITIONS)
    for layer, block in enumerate(transformer.h):
        # Every state is a sum of the same number of one-hots, so its norm can be undone: LayerNorm(x) = x.
        mean = (2 + layer) / WIDTH
        block.ln_1.weight[:] = math.sqrt(mean - mean**2 + config.layer_norm_epsilon)
        block.ln_1.bias[:] = mean
    queries, keys, values = ({head: _part(model, head, part) for head in _heads()} for part in range(3))
    for place in range(POSITIONS - 1):
        queries[PREVIOUS][0][PLACE[place + 1], place] = STRONG
        keys[PREVIOUS][0][PLACE[place], place] = 1
    queries[FIRST][1][0] = STRONG
    keys[FIRST][0][PLACE[0], 0] = 1
    for number, dimension in enumerate([*WORD, *PLACE]):
        queries[DUPLICATE][0][dimension, number] = STRONG if dimension in WORD else -STRONG
        keys[DUPLICATE][0][dimension, number] = 1
    for number, (word, before) in enumerate(zip(WORD, BEFORE, strict=True)):
        values[PREVIOUS][0][word, number] = 1
        transformer.h[0].attn.c_proj.weight[number, before] = 1
        queries[INDUCTION][0][word, number] = STRONG
        keys[INDUCTION][0][before, number] = 1
    for head in SELF:
        for number, place in enumerate(PLACE):
            queries[head][0][place, number] = STRONG
            keys[head][0][place, number] = 1
    return model


def _heads() -> list[tuple[int, int]]:
    return [(layer, head) for layer in range(2) for head in range(4)]


def _part(model: GPT2LMHeadModel, place: tuple[int, int], part: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrix `[model width, head size]` and the bias of a head's queries (0), keys (1) or values (2)."""
    layer, head = place
    linear = model.transformer.h[layer].attn.c_attn
    columns = slice(part * WIDTH + head * SIZE, part * WIDTH + (head + 1) * SIZE)
    return linear.weight[:, columns], linear.bias[columns]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("planted"))
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    with torch.no_grad():
        _planted().save_pretrained(folder)
    return folder


TEXT = "start a b c d a b c e f a b"


def test_a_planted_head_is_on_top_of_its_column(planted: str, attn: Run) -> None:
    uniform = {
        "entropy": statistics.fmean(map(math.log, range(1, 13))),
        "effective_keys": statistics.fmean(range(1, 13)),
    }
    one = {"previous": PREVIOUS, "sink": FIRST, "duplicate": DUPLICATE, "induction": INDUCTION}
    for metric, head in {**one, **dict.fromkeys(uniform, UNIFORM)}.items():
        ran = attn("heads", "-m", planted, TEXT, "--sort", metric, "--top", "2", "-F", "json")
        assert (ran.code, ran.err) == (0, "")
        first, second = ran.json["heads"]
        assert (first["layer"], first["head"]) == head
        assert first[metric] == pytest.approx(uniform.get(metric, 1.0), abs=1e-4)
        assert second[metric] < 0.9 * first[metric]  # and nothing comes near


def test_each_planted_head_has_its_label(planted: str, attn: Run) -> None:
    heads = attn("heads", "-m", planted, "start a b c d a b c d", "-F", "json").json["heads"]
    found = {(head["layer"], head["head"]): head["label"] for head in heads}
    expected = {PREVIOUS: "previous", FIRST: "sink", UNIFORM: "broad", DUPLICATE: "duplicate", INDUCTION: "induction"}
    assert {place: found[place] for place in expected} == expected
    assert [found[place] for place in SELF] == ["self"] * 3


def test_the_test_on_random_tokens_finds_the_induction_head_alone(planted: str, attn: Run) -> None:
    ran = attn("heads", "-m", planted, "--induction", "-F", "json")
    assert (ran.code, ran.err) == (0, "")
    first, second, *_ = ran.json["heads"]
    assert (first["layer"], first["head"]) == INDUCTION
    # Seven words twice, with nothing before them: the first of all looks back at itself, as if it stood before itself
    # too, so that where it comes again half of the weight is there.
    assert first["induction"] == pytest.approx(6.5 / 7, abs=1e-4)
    assert first["std"]["induction"] == pytest.approx(0.0, abs=1e-4)
    assert second["induction"] < 0.5
    labelled = attn("heads", "-m", planted, "--induction", "-F", "json").json["heads"]
    assert [(head["layer"], head["head"]) for head in labelled if head["label"] == "induction"] == [INDUCTION]
