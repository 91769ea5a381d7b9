"""Programs that go on and on with the same tensors: what is followed of them, and what it costs, does not grow."""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
import types
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any
from weakref import WeakSet

import growing
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from growing import STYLES, Endless, total
from torch import nn
from whole_program import forked

from attncli.analysis.calls import calls as analyzer
from attncli.analysis.calls.calls import Calls
from attncli.recording.readers.origins import Origins
from attncli.recording.watch import watching

FEW, MANY = 60, 240  # steps; 64 products and 16 numbers are followed at most
MOST = 200  # objects that are held of one tensor


@contextmanager
def watched() -> Iterator[Calls]:
    calls = Calls(is_kept=False)
    with watching(calls.take, notes=calls.notes, hints=calls.here):
        yield calls


def reached(*roots: object) -> int:
    """How many objects are held by some, but for what is in tensors and what belongs to the interpreter."""
    found: dict[int, Any] = {}
    todo = [*roots]
    while todo:
        one = todo.pop()
        outside = type, types.ModuleType, types.FunctionType, torch.Tensor, WeakSet
        if id(one) not in found and not isinstance(one, outside):
            found[id(one)] = one
            todo += gc.get_referents(one)
    return len(found)


def held_of_each() -> list[int]:
    """How many objects are held of each tensor that is followed now."""
    every = [each for each in gc.get_objects() if type(each) is Origins]
    return [reached(origin) for origins in every for _, origin in origins.by_id.values()]


def storages() -> int:
    return len({each.untyped_storage()._cdata for each in gc.get_objects() if type(each) is torch.Tensor})


def advance(program: Iterator[torch.Tensor], steps: int) -> None:
    deque(islice(program, steps), maxlen=0)


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_tensors_of_the_program_end_as_without(style: Endless) -> None:
    """A few of the latest are held; of a program that goes on four times as long, no more of them."""
    beyond = []
    for is_watched in (False, True):
        gc.collect()
        before = storages()
        program = style()
        alive = []
        with watched() if is_watched else nullcontext():
            for steps in (FEW * 2, MANY * 2):
                advance(program, steps)
                alive.append(storages() - before)
        beyond.append(alive)
    alone, watched_too = beyond
    assert watched_too[1] - alone[1] <= watched_too[0] - alone[0] + 16


def calls_in(program: Iterator[torch.Tensor], steps: int) -> int:
    """How many functions of Python are called in some steps."""
    count = 0

    def called(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        advance(program, steps)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_a_late_step_takes_as_much_as_an_early_one(style: Endless) -> None:
    program = style()
    with watched():
        advance(program, FEW)
        early = calls_in(program, FEW)
        advance(program, MANY)
        late = calls_in(program, FEW)
        held = held_of_each()
    assert late <= early * 1.1 + FEW
    assert max(held, default=0) <= MOST


@pytest.mark.parametrize("name", ["keys_joined", "by_einsum"])
def test_five_thousand_steps(name: str) -> None:
    """They take little memory beyond the program's, see `growing.main`; all of it is counted."""
    finished = forked("run", "-F", "json", growing.__file__, name, "5000")
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert finished.stdout.strip() == total(name, 5_000)
    document = json.loads(finished.stderr.splitlines()[-1])
    assert sum(row["calls"] for row in document["places"]) == 5_000


# What is kept of masks and modules.


def test_masks_that_are_new_at_every_step_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyzer, "_MOST_CACHED", 2**22)
    x, size = torch.randn(1, 1, 1024, 4), 2**20
    causal = torch.ones(1024, 1024, dtype=torch.bool).tril()
    tracemalloc.start()
    try:
        with watched():
            sizes = []
            for step in range(24):
                F.scaled_dot_product_attention(x, x, x, attn_mask=causal & (torch.arange(1024) < 1000 - step))
                sizes.append(tracemalloc.get_traced_memory()[0] / size)
    finally:
        tracemalloc.stop()
    assert sizes[-1] < sizes[7] + 2  # MiB, of one each


def test_modules_that_a_module_makes_end_as_without() -> None:
    alive: list[int] = []

    class Maker(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = WeakSet[nn.Module]()
            for _ in range(50):
                layer = nn.Linear(4, 4)
                made.add(layer)
                x = layer(x)
            del layer
            gc.collect()
            alive.append(len(made))
            return x

    with watched():
        Maker()(torch.randn(2, 4))
    assert alive[0] <= 1  # the first is known for as long as the other runs
