"""Queries and keys in each other's place, as the names of the layers say that they come from."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import attncli

B, H, T, D = 2, 4, 6, 8
NAMES = [
    "to_q to_k",
    "q_proj k_proj",
    "query key",
    "W_q W_k",
    "wq wk",
    "queries keys",
    "linear_q linear_k",
    "q_lin k_lin",
]


class Attention(nn.Module):
    """Projections with some names around a function of what they give."""

    def __init__(self, names: str, attend: Callable[..., Tensor], is_shared: bool = False) -> None:
        super().__init__()
        self.names = names.split()
        for name in self.names:
            self.add_module(name, nn.Linear(H * D, H * D))
        if is_shared:
            self.add_module(self.names[1], self.get_submodule(self.names[0]))
        self.v, self.attend = nn.Linear(H * D, H * D), attend

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        q, k = (self.get_submodule(name) for name in self.names)
        parts = (q(x), k(x if other is None else other), self.v(x if other is None else other))
        return self.attend(*(each.view(B, T, H, D).transpose(1, 2) for each in parts))


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / D**0.5).softmax(-1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhid,bhjd->bhij", q, k).mul(D**-0.5).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def by_bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))
    return (torch.bmm(q, k.mT) / D**0.5).softmax(-1).bmm(v)


def found(model: nn.Module, *inputs: Tensor) -> list[tuple[str, str]]:
    with attncli.watch() as calls:
        model(*inputs)
    assert calls
    return [(one.code, one.severity) for one in calls.findings]


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("attend", [by_hand, by_einsum, F.scaled_dot_product_attention])
def test_keys_that_stand_where_queries_do(names: str, attend: Callable[..., Tensor]) -> None:
    x = torch.randn(B, T, H * D)
    assert found(Attention(names, attend), x) == []
    wrong = Attention(names, lambda q, k, v: attend(k, q, v))
    assert found(wrong, x) == [("swapped", "error")]
    with torch.inference_mode():
        assert found(wrong, x) == [("swapped", "error")]


@pytest.mark.parametrize(
    "names",
    ["one other", "query context", "q_proj v_proj", "key value", "qk kq", "keyframes queries", "k1 q1"],
)
def test_names_that_say_nothing(names: str) -> None:
    model = Attention(names, lambda q, k, v: by_hand(k, q, v))
    assert found(model, torch.randn(B, T, H * D)) == []


def test_what_is_between_the_layer_and_the_scores_says_nothing() -> None:
    model = Attention("to_q to_k", lambda q, k, v: by_hand(k * 2, q.sin(), v))
    assert found(model, torch.randn(B, T, H * D)) == []


def test_shared_layers_and_another_sequence_are_right() -> None:
    x, other = torch.randn(2, B, T, H * D)
    assert found(Attention("to_q to_k", by_hand, is_shared=True), x) == []
    assert found(Attention("to_q to_k", by_bmm), x, other) == []


def test_nothing_that_a_layer_gave_is_kept_alive() -> None:
    import weakref

    layer = nn.Linear(4, 4)
    with attncli.watch():
        output = layer(torch.randn(2, 3, 4))
        gone = weakref.ref(output), weakref.ref(layer)
        del output, layer
        assert [each() for each in gone] == [None, None]
