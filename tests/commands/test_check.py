"""`attn check`: healthy models have no finding, and every planted mistake has its own."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import MORE, each, tiny_config, tiny_model, tiny_text_part
from conformance import NOT_REACHED, calmed, save_for_auto, save_tokenizer, tokenizer_in
from planted import BUGS, Bug
from refusals import refused

import attncli
from attncli.analysis.check import DEFAULT_TEXTS
from attncli.analysis.check.report import Invariance, Report
from attncli.checkpoints.options import LoadOptions
from attncli.encoding import auto_tokenizer
from attncli.engines.torch import load
from attncli.masks.findings import Finding

TEXTS = ["w7 w8 w9 w10 w11", "w21 w22 w23 w24 w25 w26 w27 w28 w29", "w40 w41 w42"]

WAYS = {"batch", "padding-side", "cache", "backend", "packing"}

Checked = Callable[..., Report]
Run = Callable[..., Any]

# What transformers 5.23 itself computes differently, found by the check.
KNOWN = {
    "convbert": ({"batch", "padding-side"}, "its convolutions read the padding"),
    "fsmt": ({"cache"}, "its decoder leaves the causal mask out while it fills a cache"),
    "minimax_m3_vl_text": ({"dead-row", "padding-side"}, "its blocks are counted from the padding, its local one not"),
    "markuplm": ({"padding-side"}, "the test's tokenizer pads with another id than the one it counts positions by"),
    "mobilebert": ({"batch", "padding-side"}, "its embeddings are of three neighbours, padding among them"),
    "nemotron_h": ({"cache"}, "a recurrent step is not a step of its scan"),
    "nystromformer": ({"batch", "padding-side"}, "its landmarks are means over segments, padding among them"),
    "recurrent_gemma": ({"padding-side"}, "its recurrence reads the padding"),
    "zamba2": ({"cache"}, "a recurrent step is not a step of its scan"),
}


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checked:
    """Check a tiny model, with something planted in it or nothing; its weights never see the disk."""

    def check(name: str, plant: Any = None, texts: list[str] = TEXTS, **options: Any) -> Report:
        tiny_config(name).save_pretrained(tmp_path)
        save_tokenizer(tmp_path)

        def planted(_: str, __: Any, how: LoadOptions, *___: Any) -> tuple[Any, tuple[str, ...], str]:
            model = tiny_text_part(name, None)
            if name == "mobilebert":  # its norms divide by nothing: scores would be of 1e25
                model = calmed(calmed(model))
            model.to(getattr(torch, how.dtype or "float32")).config.use_cache = False
            if plant is not None:
                plant(model, monkeypatch)
            return model, (), ""

        monkeypatch.setattr(auto_tokenizer, "load_tokenizer", tokenizer_in)
        monkeypatch.setattr(load, "load_model", planted)
        return attncli.check(str(tmp_path), texts, special=False, **options)

    return check


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the tiny model of an architecture other values."""
    return lambda name, **more: monkeypatch.setitem(MORE, name, MORE.get(name, {}) | more)


def planted_by(name: str) -> Bug:
    return next(bug for bug in BUGS if bug.name == name)


def of_code(report: Report, code: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.code == code]


def compared(report: Report, name: str) -> Invariance:
    return next(each for each in report.invariances if each.name == name)


def errors(report: Report) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity == "error"}


# --- healthy models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", each(*NOT_REACHED))
def test_a_healthy_model_has_no_finding(name: str, checked: Checked) -> None:
    report = checked(name, texts=TEXTS[:2])
    expected, reason = KNOWN.get(name, (set(), ""))
    assert errors(report) == expected, (reason, report.findings)
    assert compared(report, "batch").change is not None
    assert all(each.change is not None or each.reason for each in report.invariances)
    assert {each.name for each in report.invariances} == WAYS


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("phi3", {"sliding_window": 3}),
        ("qwen3_moe", {"use_sliding_window": False}),
        ("llama4_text", {"attention_chunk_size": 3}),
        ("gemma3_text", {"use_bidirectional_attention": True}),
        ("modernbert", {"local_attention": 6}),
        ("gpt_neo", {"window_size": 4}),
        ("bert", {"is_decoder": True}),
        ("llama", {"is_causal": False}),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}),
    ],
    ids=str,
)
def test_the_mask_that_a_configuration_implies_is_the_one_its_code_builds(
    name: str, more: dict[str, Any], checked: Checked, configured: Callable[..., None]
) -> None:
    configured(name, **more)
    report = checked(name)
    assert errors(report) == set(), report.findings
    assert any(expression != "full" for expression, _, _ in report.masks) == (name != "llama")


def test_the_softmax_that_float64_overflows_is_found(checked: Checked) -> None:
    # Llama's eager attention takes the softmax in float32, where float64's lowest number is -inf: rows of padding
    # become NaN, and by their values everything after them.
    assert errors(checked("llama", dtype="float64")) == {"dead-row"}


# --- planted mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bug", BUGS, ids=[f"{bug.architecture}: {bug.name}" for bug in BUGS])
def test_every_planted_mistake_has_its_own_finding(bug: Bug, checked: Checked) -> None:
    report = checked(bug.architecture, bug.plant)
    assert bug.codes <= errors(report), report.findings
    # Nothing else is wrong with the layers; that other ways of running them differ may well follow.
    assert errors(report) - bug.codes - WAYS <= bug.also, report.findings
    found = [finding for finding in report.findings if finding.code in bug.codes]
    assert any(bug.says in finding.message for finding in found)
    assert all(finding.advice for finding in found if finding.severity == "error" and finding.code in ("leak", "pad"))


def test_a_finding_says_where_and_how_much(checked: Checked) -> None:
    bug = planted_by("mask dropped in one layer")
    report = checked(bug.architecture, bug.plant)
    (finding,) = of_code(report, "leak")
    assert (finding.layer, finding.kind) == (1, "self")
    assert finding.count == 9 * 8 // 2  # every future cell of the longest sentence
    assert finding.cells[0] == (0, 1)
    assert compared(report, "cache").first == (1, "self")
    # The weight is the model's own: the row of the first token, in the head that looks ahead most.
    most = float(finding.message.partition("up to ")[2].partition(" ")[0])
    assert finding.head is not None
    assert 0 < most <= 1


@pytest.mark.parametrize(
    ("code", "when"),
    [
        ("cache", lambda _, inputs: inputs.get("past_key_values") is not None),
        ("backend", lambda model, _: model.config._attn_implementation == "sdpa"),
    ],
)
def test_what_does_not_run_is_an_error_and_not_left_out(
    code: str, when: Callable[[Any, dict[str, Any]], bool], checked: Checked
) -> None:
    def crashing(model: Any, _: pytest.MonkeyPatch) -> None:
        forward = model.forward

        @functools.wraps(forward)
        def crash(*args: Any, **kwargs: Any) -> Any:
            if when(model, kwargs):
                raise RuntimeError("the sizes must match")
            return forward(*args, **kwargs)

        model.forward = crash

    report = checked("llama", crashing)
    assert errors(report) == {code}
    assert "it does not run (the sizes must match)" in of_code(report, code)[0].message


# --- the program -------------------------------------------------------------------------------------------


REMOTE = """
from transformers import LlamaModel

class MineModel(LlamaModel):
    def __init__(self, config):
        super().__init__(config)

        def dropped(module, args, kwargs):
            kwargs["attention_mask"] = None
            return args, kwargs

        self.layers[1].register_forward_pre_hook(dropped, with_kwargs=True)
"""


@pytest.fixture(scope="module")
def buggy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that brings its own code, which has lost the mask of one layer."""
    folder = save_for_auto(tiny_model("llama"), tmp_path_factory.mktemp("buggy"), eos_token="<pad>")
    (folder / "modeling_mine.py").write_text(REMOTE, encoding="utf-8")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoModel": "modeling_mine.MineModel"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_a_checkpoint_with_a_mistake_in_its_own_code_fails(buggy: Path, attn: Run, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    ran = attn("check", "-m", buggy, "--trust-remote-code", *TEXTS, "-o", out)
    assert (ran.code, ran.out) == (1, "")
    found = json.loads(out.read_text(encoding="utf-8"))
    assert (found["schema"], found["ok"], found["architecture"]) == ("attncli.findings/1", False, "llama")
    assert {"leak", "no-mask"} <= {finding["code"] for finding in found["findings"] if finding["layer"] == 1}
    assert found["implied"] == [{"mask": "causal", "kind": "self", "layers": [0, 1, 2]}]
    assert found["tokens"] == [5, 9, 3]


def test_findings_are_a_line_each_with_what_to_do(buggy: Path, attn: Run) -> None:
    ran = attn("check", "-m", buggy, "--trust-remote-code", *TEXTS, "--width", "200")
    assert ran.code == 1
    lines = ran.out.splitlines()
    (number,) = (i for i, line in enumerate(lines) if re.match("error +leak +layer 1: attends to the future", line))
    assert "of a row's weight in head" in lines[number]
    assert lines[number + 1].strip().startswith("cells (0,1)")
    assert lines[number + 2].strip().startswith("the mask must forbid every key after the query")
    assert "leak in layer 1" in lines  # whose wrong cells are drawn
    assert re.search(r"^A only mask: \d+ cells   ░ both", ran.out, re.MULTILINE)
    assert lines[-1] == "6 errors, 2 notes"
    assert any(line.startswith("cache") and line.endswith("from layer 1 on") for line in lines)


@pytest.mark.parametrize(("fail_on", "code"), [("leak,pad", 1), ("row-sum", 0), ("tokenizer", 1)])
def test_fail_on_chooses_what_fails(fail_on: str, code: int, buggy: Path, attn: Run) -> None:
    assert attn("check", "-m", buggy, "--trust-remote-code", *TEXTS, "--fail-on", fail_on).code == code


def test_a_healthy_checkpoint_is_summed_up_and_the_library_gives_what_the_command_prints(
    minilm: str, attn: Run
) -> None:
    ran = attn("check", "-m", minilm)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[-1] == "ok: nothing found"
    assert "implied masks: full in layers 0-5" in ran.out
    assert attn("check", "-m", minilm, "--ids", "101 2051 102").code == 0
    document = attn("check", "-m", minilm, "-l", "0,5", "-F", "json").json
    assert document["ok"] is True
    assert document["findings"] == []
    assert len(document["tokens"]) == len(DEFAULT_TEXTS)
    report = attncli.check(minilm, layer="0,5")
    assert report.masks == (("full", "self", (0, 5)),)
    for ours, theirs in zip(report.invariances, document["invariances"], strict=True):
        assert (ours.name, ours.reason) == (theirs["name"], theirs["reason"])
        np.testing.assert_allclose(ours.change or 0, theirs["change"] or 0, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["check"], 2, "give the checkpoint with -m: attn check -m demo"),
        (["check", "-m", "nowhere/at-all"], 3, "was not found"),
        (["check", "-m", "MINILM", "  "], 5, "is empty"),
        (["check", "-m", "MINILM", "--fail-on", "leek"], 2, "--fail-on 'leek'"),
        (["check", "-m", "MINILM", "--layer", "9"], 2, "out of range"),
        (["check", "-m", "MINILM", "--ids"], 2, '--ids needs a text of token ids: attn check … --ids "101 2051 102"'),
        (["check", "-m", "MINILM", "time " * 600], 5, "reads at most 512"),
        (["check", "-m", "MINILM", "-o", "found.tsv"], 2, "ending in .json, .svg, .html, .md or .txt"),
        (["check", "-m", "MINILM", "--target", "a b"], 2, "--target needs an encoder-decoder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_requests_get_one_sentence(arguments: list[str], code: int, shown: str, minilm: str, attn: Run) -> None:
    refused(attn(*[minilm if argument == "MINILM" else argument for argument in arguments]), code, shown)
