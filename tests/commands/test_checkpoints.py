"""`attn heads` and `attn diff` over the checkpoints of a run: the same numbers as of each alone, and what drifted."""

import csv
import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from running import Ran
from safetensors.numpy import load_file, save_file

import attncli
from attncli.analysis.metrics import WEIGHTS
from attncli.analysis.training import changed_heads, steps_of

USAGE, LOAD = 2, 3
TEXT = "one two three four five one two three four five"
STEPS = {2: 1.0, 30: 0.6, 100: 0.1}  # the factor of a layer's queries
Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The demo with queries of its last layer that shrink, in the order in which a shell lists the folders."""
    demo, run = Path(attncli.__file__).parent / "checkpoints" / "demo", tmp_path_factory.mktemp("run")
    for step, factor in STEPS.items():
        folder = run / f"ckpt-{step}"
        shutil.copytree(demo, folder)
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.3.self_attn.q_proj.weight"] *= np.array(factor, np.float16)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return [str(run / f"ckpt-{step}") for step in (100, 2, 30)]


def rows_of(text: str) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(text))]


def test_rows_are_those_of_each_checkpoint_in_the_order_of_steps(attn: Run, checkpoints: list[str]) -> None:
    ran = attn("heads", "-m", *checkpoints, TEXT, "-F", "csv")
    assert (ran.code, ran.err) == (0, "")
    by_step = {int(name.rpartition("-")[2]): name for name in checkpoints}
    alone = {step: rows_of(attn("heads", "-m", by_step[step], TEXT, "-F", "csv").out) for step in STEPS}
    expected = [{"step": str(step), "checkpoint": by_step[step], **row} for step in STEPS for row in alone[step]]
    assert rows_of(ran.out) == expected


def test_what_drifted_most_comes_first_with_its_labels(attn: Run, checkpoints: list[str]) -> None:
    out = attn("heads", "-m", *checkpoints, TEXT).out
    first, last = (attn("heads", "-m", checkpoints[at], TEXT, "-F", "json").json["heads"] for at in (1, 0))
    names = ("previous", "next", "self", "sink", "duplicate", "induction")
    moved = {
        f"L{a['layer']}H{a['head']}": max(abs(b[name] - a[name]) for name in names)
        for a, b in zip(first, last, strict=True)
    }
    listed = re.findall(r"^(L\dH\d)  (.*?)  +\w+ ([+-]\d.\d\d)$", out[out.index("\nhead  label") :], re.MULTILINE)
    assert [name for name, *_ in listed] == sorted((n for n in moved if moved[n] >= 0.05), key=lambda n: -moved[n])
    assert [abs(float(change)) for *_, change in listed] == pytest.approx(
        sorted(moved.values())[: -len(listed) - 1 : -1], abs=0.005
    )
    assert {name[:2] for name, *_ in listed} == {"L3"}
    labels = {f"L3H{a['head']}": (a["label"] or "mixed", b["label"] or "mixed")
              for a, b in zip(first, last, strict=True) if a["layer"] == 3}  # fmt: skip
    assert {name: label for name, label, _ in listed} == {n: " → ".join(dict.fromkeys(labels[n])) for n, *_ in listed}


def test_heads_that_became_nan_come_first() -> None:
    def report(*entropies: float | None) -> Any:
        weights = [dict.fromkeys(WEIGHTS.values(), each) for each in entropies]
        heads = [{"kind": "self", "layer": 0, "head": at, "label": "sink"} for at in range(len(weights))]
        metrics = [{**each, "entropy": each["sink"]} for each in weights]
        return SimpleNamespace(heads=[SimpleNamespace(**h, metrics=m) for h, m in zip(heads, metrics, strict=True)])

    changed = changed_heads(report(0.1, 0.1, 0.1), report(0.1, 0.9, None))
    assert changed == [("L0H2", "sink → NaN", "previous +nan"), ("L0H1", "sink", "previous +0.80")]


@pytest.mark.parametrize("form", ["table", "csv"])
def test_diff_shows_the_same_as_heads(form: str, attn: Run, checkpoints: list[str]) -> None:
    heads, diff = (attn(command, "-m", *checkpoints, TEXT, "-F", form) for command in ("heads", "diff"))
    assert diff == heads
    assert (diff.code, diff.err) == (0, "")
    assert len(diff.out.splitlines()) > 40


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["run/b-100", "run/b-20/"], {20: "run/b-20/", 100: "run/b-100"}),
        (["run/b-1", "other/b-2"], {1: "run/b-1", 2: "other/b-2"}),
        (["epoch=1-step=20.pt", "epoch=0-step=9.pt"], {9: "epoch=0-step=9.pt", 20: "epoch=1-step=20.pt"}),
        (["final", "run-9", "run-10"], {1: "run-9", 2: "run-10", 3: "final"}),
        *((list(names), dict(enumerate(names, 1))) for names in (("b", "a"), ("a-1", "a-01"), ("a-9", "a"), "bb")),
    ],
)  # fmt: skip
def test_a_step_is_the_number_at_the_end_of_a_name(names: list[str], steps: dict[int, str]) -> None:
    assert [*steps_of(names).items()] == [*steps.items()]


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (["heads", "-m", "CKPT", "-m", "CKPT", TEXT, "--sort", "sink"], USAGE, "--sort does not apply to several"),
        (["heads", "-m", "CKPT", "-m", "CKPT"], USAGE, "give a sentence"),
        (["heads", "-m", "CKPT", "-m", "CKPT", TEXT, "-F", "json"], USAGE, "give -F csv"),
        (["heads", "-m", "CKPT", "-m", "LLAMA", TEXT], USAGE, "give checkpoints of one run"),
        (["heads", "-m", "CKPT", "-m", "no/such", TEXT], LOAD, "no/such"),
        (["diff", "-m", "CKPT", "-m", "CKPT", TEXT, "-F", "csv"], USAGE, "three checkpoints or more"),
        (["diff", "-m", "CKPT", "-m", "CKPT", "-m", "CKPT", TEXT, "--top", "2"], USAGE, "--top does not apply to"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    line: list[str], code: int, message: str, attn: Run, checkpoints: list[str], tiny_llama: str
) -> None:
    ran = attn(*(word.replace("CKPT", checkpoints[0]).replace("LLAMA", tiny_llama) for word in line))
    errors = [line for line in ran.err.splitlines() if "warning: " not in line]
    assert (ran.code, ran.out, len(errors)) == (code, "", 1)
    assert message in errors[0]
