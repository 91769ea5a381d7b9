"""`attncli.watch`: what ran, as every other function of the library takes it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from running import Ran
from torch import Tensor, nn

import attncli
from attncli.analysis.calls.calls import Calls
from attncli.analysis.cell import AttentionCell
from attncli.errors import LoadError

BATCH, SIZE, HEADS, WIDTH = 2, 6, 2, 8


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Model(nn.Module):
    """Two layers, and an attention over everything."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Attention(), Attention())
        self.pool = nn.MultiheadAttention(HEADS * WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        pooled: Tensor = self.pool(x, x, x)[0]
        return pooled


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture
def x(model: Model) -> Tensor:
    return torch.randn(BATCH, SIZE, HEADS * WIDTH)


@pytest.fixture
def calls(model: Model, x: Tensor) -> Calls:
    with attncli.watch() as calls:
        model(x)
    return calls


def test_rows_stay_when_the_block_has_ended(calls: Calls) -> None:
    assert [(row.module, row.api, row.calls, row.mask, row.findings) for row in calls] == [
        ("layers.0-1", "sdpa", 2, "causal", ()),
        ("pool", "mha", 1, "full", ()),
    ]
    assert len(calls) == 2
    assert calls[-1] == calls[1]
    assert calls[:1] == (calls[0],)
    calls.check("causal", place="layers.*")
    with pytest.raises(AssertionError, match="attends to the future in 15 cells"):
        calls.check("causal")


def test_a_trace_is_one_for_every_other_function(calls: Calls, attn: Callable[..., Ran], tmp_path: Path) -> None:
    first, second = calls[0].traces
    weights = first.layer(1).head(1).weights
    cells = [one for one in attncli.why(first, query=3, key=2) if isinstance(one, AttentionCell)]
    assert len(cells) == 2 * HEADS
    assert cells[-1].weight == pytest.approx(weights[3, 2], abs=1e-6)
    summary = next(one for one in attncli.heads(first).heads if (one.layer, one.head) == (1, 1))
    assert summary.metrics["max_weight"] == pytest.approx(weights.max(axis=1).mean(), abs=1e-6)
    changed = attncli.diff(first, second)
    assert len(changed.heads) == 2 * HEADS
    path = tmp_path / "first.safetensors"
    first.save(path)
    shown = attn("inspect", "--from", path, "--layer", "1")
    assert shown.code == 0, shown.err
    assert shown.out.startswith("layers.0-1 · layer 1, 2 heads · mask causal · float32 on cpu")


def test_of_one_module(model: Model, x: Tensor) -> None:
    with attncli.watch(model.layers[1]) as calls:
        model(x)
    (row,) = calls
    assert (row.module, row.calls) == ("layers.1", 1)


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(LoadError, match="needs torch, which is not installed: "), attncli.watch():
        pass
