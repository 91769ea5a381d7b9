"""Losses, what embeddings were given, and what the scores were computed from."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from attncli.analysis.calls.passes import Pass
from attncli.recording.lineage import History, Lineage, lineage, operation
from attncli.recording.losses import Loss
from attncli.recording.watch import watching

B, T, V, WIDTH = 2, 9, 20, 8


def seen(run: Callable[[], Any]) -> list[list[np.ndarray[Any, Any]]]:
    """The targets of every loss, of each sequence that it asks the next tokens of."""
    taken = Taking()
    with watching(lambda _: None, listener=taken):
        run()
    return taken.found


class Taking(Pass):
    """Takes losses, of no calls."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[np.ndarray[Any, Any]]] = []

    def here(self) -> "Taking":
        return self

    def notice(self, *_: object) -> None:
        raise AssertionError

    def learn(self, loss: Loss) -> None:
        self.found.append([targets for targets, _ in loss.next_tokens()])


def rows() -> tuple[nn.Embedding, Tensor]:
    return nn.Embedding(V, WIDTH), torch.randint(2, V, (B, T))


def scores(x: Tensor) -> Tensor:
    return F.linear(x, torch.randn(V, WIDTH, requires_grad=True))


WAYS: dict[str, Callable[[nn.Embedding, Tensor], Any]] = {
    "rows": lambda table, ids: F.cross_entropy(scores(table(ids))[:, :-1].flatten(0, 1), ids[:, 1:].flatten()),
    "classes second": lambda table, ids: F.cross_entropy(scores(table(ids)).mT[..., :-1], ids[:, 1:]),
    "nll": lambda table, ids: F.nll_loss(scores(table(ids))[:, :-1].flatten(0, 1).log_softmax(1), ids[:, 1:].flatten()),
    "time first": lambda table, ids: F.cross_entropy(scores(table(ids.T))[:-1].flatten(0, 1), ids.T[1:].flatten()),
    "time first in the model": lambda table, ids: F.cross_entropy(
        scores(table(ids.T)).transpose(0, 1)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
    ),
    "padded labels": lambda table, ids: F.cross_entropy(
        scores(table(ids)).flatten(0, 1), F.pad(ids, (0, 1), value=-100)[:, 1:].flatten()
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_targets_that_are_the_next_tokens(way: str) -> None:
    table, ids = rows()
    ((targets,),) = seen(lambda: WAYS[way](table, ids))
    assert np.array_equal(targets, ids[:, 1:].numpy())


def test_what_is_ignored_or_weighs_nothing_is_not_asked_for() -> None:
    table, ids = rows()
    ids[0, 3], ids[1, 5] = 0, 1
    weight = torch.ones(V)
    weight[1] = 0
    ((targets,),) = seen(
        lambda: F.cross_entropy(scores(table(ids)).mT[..., :-1], ids[:, 1:], weight=weight, ignore_index=0)
    )
    assert np.array_equal(targets, np.where(ids[:, 1:] > 1, ids[:, 1:], -1))


OTHER_TARGETS: dict[str, Callable[[Tensor], Tensor]] = {
    "the same position": lambda ids: ids,
    "the one after the next": lambda ids: torch.cat([ids[:, 2:], ids[:, :2]], 1),
    "one is another": lambda ids: ids.roll(-1, 1) + (torch.arange(B * T).view(B, T) == 4),
    "too few": lambda ids: ids.roll(-1, 1).where(torch.arange(T) < 3, -100),
}


@pytest.mark.parametrize("other", OTHER_TARGETS)
def test_other_targets_are_not_the_next_tokens(other: str) -> None:
    table, _ = rows()
    ids = torch.stack([torch.randperm(V - 3)[:T] + 2 for _ in range(B)])
    assert seen(lambda: F.cross_entropy(scores(table(ids)).mT, OTHER_TARGETS[other](ids))) == [[]]


@pytest.mark.parametrize(
    "ids", [torch.full((B, T), 3), torch.arange(T).expand(B, T), torch.arange(B * T).view(B, T) % 2]
)
def test_what_is_no_text_is_none(ids: Tensor) -> None:
    table = nn.Embedding(V, WIDTH)
    assert seen(lambda: F.cross_entropy(scores(table(ids)).mT[..., :-1], ids[:, 1:])) == [[]]


def test_numbers_that_were_changed_since_are_not_compared() -> None:
    table, ids = rows()

    def run() -> None:
        found, targets = scores(table(ids)), ids[:, 1:].clone()
        ids.add_(0)
        F.cross_entropy(found.mT[..., :-1], targets)

    assert seen(run) == [[]]


def test_a_loss_without_gradients_or_of_probabilities_is_none() -> None:
    table, ids = rows()
    with torch.no_grad():
        assert seen(lambda: F.cross_entropy(scores(table(ids)).mT[..., :-1], ids[:, 1:])) == []
    probabilities = torch.rand(B, V, T - 1).softmax(1)
    assert seen(lambda: F.cross_entropy(scores(table(ids)).mT[..., :-1], probabilities)) == []


def test_nothing_of_the_program_is_kept_alive() -> None:
    table = nn.Embedding(V, WIDTH)
    with watching(lambda _: None, listener=Taking()):
        ids = torch.randint(2, V, (B, T))
        x = table(ids)
        F.cross_entropy(scores(x).mT[..., :-1], ids[:, 1:]).backward()
        dead = [weakref.ref(ids), weakref.ref(x)]
        del ids, x
        gc.collect()
        assert [each() for each in dead] == [None, None]


def lineages(*calls: tuple[Tensor, Tensor, Tensor]) -> list[Lineage]:
    found = [lineage(*each) for each in calls]
    return [each for each in found if each is not None]


def test_self_attention_has_queries_and_keys_of_the_same_positions() -> None:
    table, ids = rows()
    x = table(ids)
    q, k = x * 2, x * 3
    y = F.scaled_dot_product_attention(q, k, x)
    (own,) = lineages((q, k, y))
    since = operation(x)
    assert since is not None
    assert History(y + 1, since, B, T, [own]).has_self_attention(own)
    assert History(y[:, :-1].flatten(0, 1), since, B, T, [own]).has_self_attention(own)
    assert not History(x + 1, since, B, T, [own]).has_self_attention(own)
    mean = y.mean(1, keepdim=True)
    assert not History(mean.expand(-1, T, -1) + x, since, B, T, [own]).has_self_attention(own)


def test_what_is_looked_at_is_no_part_of_the_positions_that_look() -> None:
    table, ids = rows()
    x = table(ids)
    since = operation(x)
    assert since is not None
    inner_q, inner_k = x * 6, x * 7
    inner = F.scaled_dot_product_attention(inner_q, inner_k, x)
    (encoder,) = lineages((inner_q, inner_k, inner))
    q, k = x * 8, inner * 9
    y = F.scaled_dot_product_attention(q, k, inner)
    (cross,) = lineages((q, k, y))
    history = History(y + x, since, B, T, [encoder, cross])
    assert not history.has_self_attention(encoder)
    assert not history.has_self_attention(cross)
