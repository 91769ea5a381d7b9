"""The shapes that functions state are executed: in the whole package, by one process that runs every command."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import shapes

PLANTED = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Bool, Float, Int
    from nowhere import Head
    Hidden = Float[np.ndarray, "T E"]

def of_argument(q: Float[np.ndarray, "H Q D"], k: Float[np.ndarray, "H K D"], head: Head | None = None) -> None: ...
def of_result(q: Float[np.ndarray, "Q D"]) -> Float[np.ndarray, "D Q"]:
    return q
def of_values(q: Float[np.ndarray, "D"]) -> Float[np.ndarray, "D"]:
    return q[q > 0]
def of_alias(hidden: dict[int, Hidden]) -> None: ...
def inner(q: Float[np.ndarray, "Q D"]) -> None:
    def planted(k: Int[np.ndarray, "..."] | None) -> None: ...
    planted(q)
class Planted:
    @property
    def mask(self) -> Bool[np.ndarray, "Q K"]:
        return np.ones((2, 3))
@dataclass(frozen=True)
class Recorded:
    weights: Float[np.ndarray, "H Q K"] | None
def unstated(q: np.ndarray) -> np.ndarray:
    return q
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that states shapes, imported as those of the package are."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jaxtyping, "jaxtyped", jaxtyping.jaxtyped)
    (tmp_path / "wrong_shapes.py").write_text(PLANTED)
    with shapes.executed("wrong_shapes"):
        return importlib.import_module("wrong_shapes")


def test_a_planted_wrong_shape_is_found(planted: Any) -> None:
    q, k = np.ones((2, 3, 5), np.float32), np.ones((2, 7, 5), np.float32)
    planted.of_argument(q, k)
    planted.of_values(q[0, 0])
    planted.of_alias({0: q[0]})
    planted.Recorded(None)
    planted.unstated(q)
    for wrong in (
        lambda: planted.of_argument(q, k[..., 1:]),
        lambda: planted.of_argument(q, k.astype(int)),
        lambda: planted.of_result(q[0]),
        lambda: planted.of_values(-q[0, 0]),
        lambda: planted.of_alias({0: q}),
        lambda: planted.inner(q[0]),
        lambda: planted.Planted().mask,
        lambda: planted.Recorded(q[0]),
    ):
        with pytest.raises(jaxtyping.TypeCheckError):
            wrong()


def test_every_command_keeps_the_shapes_that_functions_state(
    attn: Callable[..., Any], tiny_llama: str, minilm: str, tmp_path: Path
) -> None:
    text = "time flies like an arrow"
    (tmp_path / "text.txt").write_text(f"{text}\nfruit flies\n")
    (tmp_path / "program.py").write_text(
        "import torch\nx = torch.ones(1, 2, 3, 4)\ntorch.nn.functional.scaled_dot_product_attention(x, x, x)\n"
    )
    models = ("-m", tiny_llama), ("-m", minilm), ("-m", tiny_llama, "--engine", "transformers"), ("-m", "demo"), ()
    lines = [
        *(["inspect", text, "--all", "--show", "shapes,q,scores,weights,output,metrics", *model] for model in models),
        *(["heads", text, *model] for model in models),
        *(["why", text, "-q", "1", *model] for model in models),
    ]
    lines += [
        ["inspect", "time", "--pair", "fruit flies", "--mask", "window(3)", "--save", "trace.safetensors"],
        ["inspect", text, "--target", "die zeit", "-F", "json"],
        ["inspect", "--file", "text.txt", "-m", minilm, "-o", "folder/"],
        ["inspect", "--from", "trace.safetensors", "-o", "page.html"],
        ["inspect", text, "-m", minilm, "--mean", "heads", "-F", "csv"],
        ["inspect", text, "-m", minilm, "-o", "figure.svg"],
        ["inspect", text, "-m", minilm, "--mean", "all"],
        ["heads", "--file", "text.txt", "-m", minilm, "-F", "csv"],
        ["diff", text, "fruit flies like a banana", "-m", minilm],
        ["diff", text, "-m", tiny_llama, "-m", tiny_llama, "-F", "json"],
        ["learn", text],
        ["tokens", text, "-m", minilm],
        ["check", text, "-m", tiny_llama],
        ["mask", "show", "causal & (window(2) | prefix(1))", "--size", "6"],
        ["mask", "check", "window(2)", "--expect", "causal", "--size", "4"],
        ["mask", "diff", "causal", "window(2)", "--size", "4"],
        ["mask", "convert", "causal", "--size", "4", "--to", "additive", "-o", "mask.npy"],
        ["mask", "model", "-m", tiny_llama, text, "time"],
        ["run", "program.py"],  # the last one: what a program starts is its own
    ]
    ran = subprocess.run(
        [sys.executable, shapes.__file__, *("\t".join(line) for line in lines)],
        cwd=tmp_path, env=os.environ, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    ended = dict(zip(map(" ".join, lines), ran.stdout.splitlines()[-len(lines) :], strict=True))
    assert set(ended.values()) <= {"0", "1"}, ended


@pytest.mark.parametrize("name", sorted(shapes.UNCHECKED))
def test_what_is_left_unchecked_is_still_there(name: str) -> None:
    import pkgutil

    assert pkgutil.resolve_name(name)
