"""Watching a program changes no bit of it, and sees it in every thread and under every wrapper of torch."""

import importlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.overrides import TorchFunctionMode

from attncli import watch
from attncli.recording.call import AttentionCall
from attncli.recording.notes import Notes
from attncli.recording.watch import _Thread, watching

WIDTH = 16


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        dropped = 0.1 if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropped).transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Attention(), Attention()])
        self.own = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)
        self.apart = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True, kdim=WIDTH, vdim=WIDTH // 2)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        for block in [*self.blocks, self.blocks[0]]:
            x = x + block(x)
        x = x + self.own(x, x, x)[0]
        x = x + self.apart(x, x, x[..., : WIDTH // 2])[0]
        return self.layer(x)


CALLS = 6  # of one forward


def made() -> tuple[Model, Tensor]:
    torch.manual_seed(5)
    return Model(), torch.randn(2, 7, WIDTH)


def evaluated() -> list[Tensor]:
    model, x = made()
    return [model.eval()(x)]


def of_torch_func() -> list[Tensor]:
    model, x = made()
    model.eval()
    parameters = dict(model.named_parameters())
    run = lambda x: torch.func.functional_call(model, parameters, (x[None],)).square().mean()  # noqa: E731
    return [torch.func.grad(run)(x[0]), torch.func.vmap(torch.func.grad(run))(x)]


def with_hooks_of_its_own() -> list[Tensor]:
    model, x = made()
    model.own.register_forward_pre_hook(lambda _, args: (args[0] * 2, *args[1:]))
    model.layer.register_full_backward_hook(lambda _, inputs, outputs: (inputs[0] * 3,))
    x.requires_grad_()
    output = model(x)
    output.sum().backward()
    return [output, x.grad]


class Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def under_a_mode_of_its_own() -> list[Tensor]:
    model, x = made()
    with torch.no_grad(), Counting() as mode:
        output = model.eval()(x)
    return [output, torch.tensor(list("\n".join(mode.names).encode()))]


class Own(Tensor):
    """A tensor of the program's own."""


def of_its_own_tensors() -> list[Tensor]:
    model, x = made()
    output = model.eval()(x.as_subclass(Own))
    assert type(output) is Own
    return [output.as_subclass(Tensor)]


PROGRAMS = [evaluated, of_torch_func, with_hooks_of_its_own, under_a_mode_of_its_own, of_its_own_tensors]


@pytest.mark.parametrize("run", PROGRAMS, ids=lambda run: run.__name__)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_program_computes_what_it_computes_alone(run: Callable[[], list[Tensor]]) -> None:
    torch.manual_seed(1)
    alone = [*run(), torch.get_rng_state()]
    calls: list[AttentionCall] = []

    def take(call: AttentionCall) -> None:
        calls.append(call)
        if call.project is not None:
            call.project()  # even where all is looked at

    torch.manual_seed(1)
    with watching(take):
        watched = [*run(), torch.get_rng_state()]
    assert len(calls) == (CALLS if run is not of_torch_func else 0)  # which is not read
    assert len(watched) == len(alone)
    for one, other in zip(watched, alone, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_a_thread_that_was_there_before_is_seen_inside_of_modules() -> None:
    model, x = made()
    calls: list[AttentionCall] = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        with watching(calls.append):
            pool.submit(model, x).result()
        pool.submit(model, x).result()
        assert pool.submit(torch._C._len_torch_function_stack).result() == 0
    assert len(calls) == CALLS


def test_a_module_that_is_left_by_an_error_is_left() -> None:
    model, x = made()

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    calls: list[AttentionCall] = []
    with watching(calls.append):
        handle = model.own.register_forward_pre_hook(fail)
        with suppress(KeyboardInterrupt):
            model(x)
        handle.remove()
        calls.clear()
        model(x)
    assert len(calls) == CALLS
    assert calls[0].place.module == "blocks.0"


@pytest.mark.parametrize("where", ["enter_module", "leave_module", "_quietly", "place"])
def test_a_fault_anywhere_is_one_note(where: str, monkeypatch: pytest.MonkeyPatch, faults: list[Exception]) -> None:
    def fail(*_: Any) -> None:
        raise AttributeError("of ours")

    model, x = made()
    alone = model.eval()(x)
    monkeypatch.setattr(_Thread, where, fail)
    notes = Notes()
    with watching(lambda _: None, notes=notes):
        assert torch.equal(model(x), alone)
    assert len(notes) == 1
    assert torch._C._len_torch_function_stack() == 0
    faults.clear()


def test_an_error_of_the_program_goes_through() -> None:
    importlib.import_module("torch._dynamo")  # as compiled regions do
    with pytest.raises(KeyError), watch():
        raise KeyError


def test_nothing_is_left_behind() -> None:
    profile = threading.getprofile()
    with watch():
        evaluated()
    assert torch._C._len_torch_function_stack() == 0
    assert threading.getprofile() is profile
    assert not torch.nn.modules.module._has_any_global_hook()


def test_a_forked_child_is_not_watched() -> None:
    calls: list[AttentionCall] = []
    with watching(calls.append):
        child = os.fork()
        if not child:
            is_free = torch._C._len_torch_function_stack() == 0 and not torch.nn.modules.module._global_forward_hooks
            os._exit(0 if is_free else 1)
        _, status = os.waitpid(child, 0)
        F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 3, 4))
    assert status == 0
    assert len(calls) == 1


def over(batch: int, heads: int, queries: int, keys: int, width: int) -> dict[str, Callable[[], object]]:
    q, k = torch.randn(batch, heads, queries, width), torch.randn(batch, heads, keys, width)
    x, y = torch.randn(batch, queries, 8), torch.randn(batch, keys, 8)
    module, layer = nn.MultiheadAttention(8, 2, batch_first=True), nn.TransformerEncoderLayer(8, 2, batch_first=True)
    mask = torch.ones(queries, keys, dtype=torch.bool).tril()

    def by_hand() -> Tensor:
        scores = (q @ k.mT / max(width, 1) ** 0.5).masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) @ k

    return {
        "sdpa": lambda: F.scaled_dot_product_attention(q, k, k, mask, scale=1.0),
        "mha": lambda: module(x, y, y, torch.zeros(batch, keys, dtype=torch.bool), need_weights=False),
        "layer": lambda: layer.eval()(x), "by hand": by_hand,
        "flex": lambda: flex_attention(q, k, k, score_mod=lambda score, b, h, i, j: score + 1),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("empty", range(5))
@pytest.mark.parametrize("name", over(1, 1, 1, 1, 1))
def test_attention_over_nothing_is_none(name: str, empty: int) -> None:
    sizes = [2, 2, 3, 3, 4]
    sizes[empty] = 0
    run = over(*sizes)[name]

    def outcome() -> str:
        torch.manual_seed(0)
        try:
            return str(run())
        except Exception as error:
            return repr(error)

    alone = outcome()
    with watch() as calls:
        assert outcome() == alone
        F.scaled_dot_product_attention(*torch.randn(3, 1, 1, 2, 4))
    assert calls.calls >= 1
    assert calls.notes.fault is None
    assert str(calls)
