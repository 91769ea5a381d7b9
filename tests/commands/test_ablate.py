"""`attn ablate` and `attn inspect --show next`: predictions, and what they lose."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native_variants import save_whole
from transformers import AutoModelForCausalLM

import attncli
from attncli.checkpoints.checkpoint_folder import demo_or
from attncli.errors import ExitCode

Run = Callable[..., Any]
TEXT = "one two three four one two"


@pytest.fixture(scope="module")
def logits() -> np.ndarray[Any, Any]:
    """The demo's logits for the next token, by transformers."""
    ids = attncli.tokenize(TEXT, model="demo").tokens.ids
    model = AutoModelForCausalLM.from_pretrained(demo_or("demo"), dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1].numpy()


def test_next_tokens_are_the_largest_logits_of_the_model(attn: Run, logits: np.ndarray[Any, Any]) -> None:
    found = attn("inspect", "-m", "demo", TEXT, "--show", "next", "-F", "json").json["next"]
    best = np.argsort(-logits)[: len(found)]
    assert [one["id"] for one in found] == best.tolist()
    np.testing.assert_allclose([one["logit"] for one in found], logits[best], atol=1e-4)
    expected = torch.tensor(logits).log_softmax(dim=-1)[best.tolist()]
    np.testing.assert_allclose([one["logprob"] for one in found], expected, atol=1e-4)
    shown = attn("inspect", "-m", "demo", TEXT, "--show", "next")
    assert "three is the likeliest next token after 6 two, probability 0.38" in shown.out
    for wrong in (["inspect", "a b"], ["inspect", "-m", "demo", "--mask", "full", "a b"]):
        assert attn(*wrong, "--show", "next").code == ExitCode.USAGE


def test_without_an_option_every_head_is_cut_alone(attn: Run, logits: np.ndarray[Any, Any]) -> None:
    ran = attn("ablate", TEXT)
    assert ran.err == ""
    assert "log-probability of three as the next token, the model's own first choice" in ran.out
    document = attn("ablate", TEXT, "-F", "json").json
    assert document["schema"] == "attncli.ablation/1"
    assert document["before"] == pytest.approx(float(torch.tensor(logits).log_softmax(dim=-1).max()), abs=1e-4)
    assert len(document["cut"]) == len(document["heads"]) == 16
    assert (document["after"], document["outcome"]["against"]) == (None, None)
    worst = max(document["heads"], key=lambda head: abs(head["change"]))
    assert f"L{worst['layer']}H{worst['head']}  {np.exp(worst['after']):#.3g} " in ran.out  # its probability
    assert worst["change"] == pytest.approx(worst["after"] - document["before"])


def test_heads_are_named_as_everywhere_and_cut_together(attn: Run) -> None:
    one, other, third = (
        attn("ablate", TEXT, *named, "-F", "json").json
        for named in (["--head", "2.3,3.3"], ["--head", "L2H3,L3H3"], ["--layer", "2-3", "--head", "3"])
    )
    assert one["after"] == other["after"] == third["after"]
    assert one["cut"] == [{"layer": 2, "head": 3}, {"layer": 3, "head": 3}]
    assert one["heads"] == []


def test_layers_of_several_masks_are_counted_each_by_its_own(attn: Run, tmp_path: Path) -> None:
    save_whole("gemma2", tmp_path, num_hidden_layers=2, sliding_window=3)
    line = ["ablate", "-m", str(tmp_path), "--edges", "window(3)", "--no-special", "w7 w8 w9 w10 w9 w11 w12 w13 w16"]
    assert "cut      0 of 24 edges in heads L0H0" in (whole := attn(*line)).out
    assert " 21 of 45 edges in heads L1H0" in whole.out
    assert "allows every key, so nothing is cut" in attn(*line, "--layer", "0").err
    assert attn(*line, "--head", "0.1,1.1", "-F", "json").json["edges"] == {
        "expression": "window(3)",
        "cut": 21,
        "of": 69,
        "heads": [{"layer": 0, "head": 1, "cut": 0, "of": 24}, {"layer": 1, "head": 1, "cut": 21, "of": 45}],
    }


def test_a_corpus_goes_into_a_folder_and_resumes(attn: Run, tmp_path: Path) -> None:
    file, folder = tmp_path / "lines.txt", tmp_path / "out"
    file.write_text(f"{TEXT}\nred green blue red green\n")
    line = ["ablate", "--file", str(file), "--head", "3.3", "-o", f"{folder}/", "-F", "jsonl"]
    assert attn(*line).code == ExitCode.OK
    (part,) = folder.glob("part-*.jsonl")
    written = [json.loads(one) for one in part.read_text().splitlines()]
    assert [one["sentence"] for one in written] == [1, 2]
    assert written[0]["after"] == attncli.ablate(TEXT, head="3.3").after
    assert "1 of them there before" in attn(*line).err
