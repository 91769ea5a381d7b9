"""The shapes that functions state are executed: in the whole package, by one process that runs every command."""

import importlib
import shlex
import subprocess
import sys
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
    from jaxtyping import Float, Int
    from pathlib import Path as Head
    Hidden = Float[np.ndarray, "T E"]

def of_argument(q: Float[np.ndarray, "H Q D"], k: Float[np.ndarray, "H K D"], head: Head | None = None) -> None: ...
def of_result(q: Float[np.ndarray, "Q D"]) -> Float[np.ndarray, "D Q"]:
    return q
def of_alias(hidden: dict[int, Hidden]) -> None: ...
def inner(q: Float[np.ndarray, "Q D"]) -> None:
    def planted(k: Int[np.ndarray, "..."] | None) -> None: ...
    planted(q)
@dataclass(frozen=True)
class Recorded:
    weights: Float[np.ndarray, "H Q K"] | None
"""


def test_a_planted_wrong_shape_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jaxtyping, "jaxtyped", jaxtyping.jaxtyped)
    (tmp_path / "wrong_shapes.py").write_text(PLANTED)
    with shapes.executed("wrong_shapes"):
        planted: Any = importlib.import_module("wrong_shapes")
    q, k = np.ones((2, 3, 5), np.float32), np.ones((2, 7, 5), np.float32)
    planted.of_argument(q, k)
    planted.of_alias({0: q[0]})
    planted.Recorded(None)
    for wrong in (
        lambda: planted.of_argument(q, k[..., 1:]),
        lambda: planted.of_argument(q, k.astype(int)),
        lambda: planted.of_result(q[0]),
        lambda: planted.of_alias({0: q}),
        lambda: planted.inner(q[0]),
        lambda: planted.Recorded(q[0]),
    ):
        with pytest.raises(jaxtyping.TypeCheckError):
            wrong()


MODELS = ("-m llama", "-m minilm", "-m llama --engine transformers", "-m demo", "")
LINES = f"""
{chr(10).join(f"inspect TEXT --all --show shapes,q,scores,weights,output,metrics {model}" for model in MODELS)}
{chr(10).join(f"heads TEXT {model}" for model in MODELS)}
{chr(10).join(f"why TEXT -q 1 {model}" for model in MODELS)}
inspect time --pair fruit --mask window(3) --save trace.safetensors
inspect TEXT --target 'die zeit' -F json
inspect --file text.txt -m minilm -o folder/
inspect --from trace.safetensors -o page.html
inspect TEXT -m minilm --mean heads -F csv
inspect TEXT -m minilm -o figure.svg
inspect TEXT -m minilm --mean all
heads --file text.txt -m minilm -F csv
diff TEXT 'fruit flies' -m minilm
diff TEXT -m llama -m llama -F json
diff TEXT -m llama -m llama --first
learn TEXT
tokens TEXT -m minilm
check TEXT -m llama
mask show 'causal & (window(2) | prefix(1))' --size 6
mask check window(2) --expect causal --size 4
mask diff causal window(2) --size 4
mask convert causal --size 4 --to additive -o mask.npy
mask model -m llama TEXT time
run program.py
"""  # the last one is a program: what it starts is its own


def test_every_command_keeps_the_shapes_that_functions_state(tiny_llama: str, minilm: str, tmp_path: Path) -> None:
    (tmp_path / "llama").symlink_to(tiny_llama)
    (tmp_path / "minilm").symlink_to(minilm)
    (tmp_path / "text.txt").write_text("time flies like an arrow\nfruit flies\n")
    (tmp_path / "program.py").write_text(
        "import torch\nx = torch.ones(1, 2, 3, 4)\ntorch.nn.functional.scaled_dot_product_attention(x, x, x)\n"
    )
    lines = [shlex.split(line.replace("TEXT", "'time flies like an arrow'")) for line in LINES.strip().splitlines()]
    command = [sys.executable, shapes.__file__, *map("\t".join, lines)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    ended = dict(zip(map(" ".join, lines), ran.stdout.splitlines()[-len(lines) :], strict=True))
    assert set(ended.values()) <= {"0", "1"}, ended
