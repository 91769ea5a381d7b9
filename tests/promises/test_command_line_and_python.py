"""What the command line computes, Python computes, to the last bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attncli
from attncli.trace.store import load

Run = Callable[..., Any]
TEXT = "time flies like an arrow"

# Options of `attn inspect`, MODEL being a tiny decoder, and those of `attncli.inspect`.
TRACES: dict[str, dict[str, Any]] = {
    "--num-heads 2 --d-model 8 --seed 3": {"num_heads": 2, "d_model": 8, "seed": 3},
    "--d-k 3 --d-v 5 --init uniform --positions sinusoidal": {
        "d_k": 3, "d_v": 5, "init": "uniform", "positions": "sinusoidal",
    },
    "--project qk --scale none --no-out-proj": {"project": "qk", "scale": "none", "out_proj": False},
    "--rng torch --vocab-size 40": {"rng": "torch", "vocab_size": 40},
    "--pair fruit --mask window(2)": {"pair": "fruit", "mask": "window(2)"},
    "--target fruit --kind cross": {"target": "fruit", "kind": "cross"},
    "--vocab MODEL": {"vocab": "MODEL"},
    "--model MODEL --layer 0,2 --head 1": {"model": "MODEL", "layer": [0, 2], "head": 1},
    "--model MODEL --engine transformers --layer all": {"model": "MODEL", "engine": "transformers", "layer": "all"},
    "--model MODEL --dtype float16": {"model": "MODEL", "dtype": "float16"},
    "--model MODEL --generate 2": {"model": "MODEL", "generate": 2},
    "--model demo --no-special --offline": {"model": "demo", "special": False, "offline": True},
}  # fmt: skip


@pytest.mark.parametrize("options", TRACES)
def test_a_trace_is_the_same(options: str, attn: Run, tiny_llama: str, tmp_path: Path) -> None:
    words = [tiny_llama if word == "MODEL" else word for word in options.split()]
    keywords = {name: tiny_llama if value == "MODEL" else value for name, value in TRACES[options].items()}
    assert attn("inspect", TEXT, *words, "--save", tmp_path / "shell.safetensors").code == 0
    attncli.inspect(TEXT, **keywords).save(tmp_path / "python.safetensors")
    shell, python = (load(tmp_path / f"{name}.safetensors") for name in ("shell", "python"))
    assert (shell.key_tokens, shell.query_tokens) == (python.key_tokens, python.query_tokens)
    for one, other in zip(shell.layers, python.layers, strict=True):
        assert (one.layer, one.kind, one.heads) == (other.layer, other.kind, other.heads)
        for first, second in ((one.head(head), other.head(head)) for head in one.heads):
            for name in ("q", "k", "v", "scores", "weights", "output"):
                np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_derived_numbers_are_the_same(attn: Run, tiny_llama: str) -> None:
    trace = attncli.inspect(TEXT, model=tiny_llama, layer="all")
    for option, keywords in {"--norms": {"norms": True}, "--rollout": {"rollout": True, "layer": "all"}}.items():
        ran = attn("inspect", TEXT, "-m", tiny_llama, "-l", "all", option, "-F", "json")
        derived = attncli.derive(trace, **keywords)
        for shown, layer in zip(ran.json["layers"], derived.layers, strict=True):
            for head, own_head in zip(shown["heads"], layer.heads, strict=True):
                own = layer.head(own_head).weights
                np.testing.assert_array_equal(np.array(head[layer.measure], np.float32), own.astype(np.float32))


def test_metrics_of_heads_are_the_same(attn: Run) -> None:
    rows = attn("heads", TEXT, "-m", "demo", "-F", "json").json["heads"]
    report = attncli.heads(TEXT, model="demo")
    assert len(rows) == len(report.heads)
    for row, head in zip(rows, report.heads, strict=True):
        assert (row["layer"], row["head"]) == (head.layer, head.head)
        assert head.metrics.items() <= row.items()


def test_parts_of_a_score_and_differences_are_the_same(attn: Run) -> None:
    row = attn("why", "-m", "toy", TEXT, "-q", "arrow", "-k", "flies", "-H", "1", "-F", "json").json
    (cell,) = attncli.why(TEXT, query="arrow", key="flies", head=1)
    assert {np.float32(cell.score), np.float32(cell.weight)} <= set(map(np.float32, numbers(row)))
    other = "fruit flies like an arrow"
    shown = attn("diff", TEXT, other, "-m", "demo", "-F", "json").json
    report = attncli.diff(*(attncli.inspect(text, model="demo", layer="all") for text in (TEXT, other)))
    assert {float(head.jensen_shannon) for head in report.heads} <= numbers(shown)


def test_findings_are_the_same(attn: Run, tiny_llama: str, tmp_path: Path) -> None:
    np.save(tmp_path / "mask.npy", np.eye(4, k=1, dtype=bool) | np.tri(4, dtype=bool))
    ran = attn("mask", "check", tmp_path / "mask.npy", "--for", "sdpa", "--expect", "causal", "-F", "json")
    findings = attncli.mask(tmp_path / "mask.npy", api="sdpa").check("causal")
    assert [one["message"] for one in ran.json["findings"]] == [one.message for one in findings] != []
    ran, findings = attn("check", TEXT, "-m", tiny_llama, "-F", "json"), attncli.check(tiny_llama, TEXT).findings
    assert [one["code"] for one in ran.json["findings"]] == [one.code for one in findings]


def numbers(document: Any) -> set[float]:
    """Return every number of a document."""
    if isinstance(document, dict):
        return numbers([*document.values()])
    if isinstance(document, list):
        return set().union(*map(numbers, document))
    return {float(document)} if isinstance(document, int | float) else set()
