"""Programs that go on and on with the same tensors: what is followed of them, and what it costs, does not grow."""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
import types
from collections import deque
from collections.abc import Callable, Iterator
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
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import LogitsProcessorList
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
    every = [each for each in gc.get_objects() if type(each) is Origins]
    return [reached(origin) for origins in every for _, origin in origins.by_id.values()]


def storages() -> int:
    return len({each.untyped_storage()._cdata for each in gc.get_objects() if type(each) is torch.Tensor})


def advance(program: Iterator[torch.Tensor], steps: int) -> None:
    deque(islice(program, steps), maxlen=0)


def count_calls(counts: dict[int, int], of: int) -> None:
    def called(frame: Any, event: str, _: Any) -> None:
        counts[of] = counts.get(of, 0) + (event == "call")

    sys.setprofile(called)


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


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_a_late_step_takes_as_much_as_an_early_one(style: Endless) -> None:
    program, counts = style(), dict[int, int]()
    with watched():
        for begun in (FEW, MANY):
            advance(program, begun)
            count_calls(counts, begun)
            advance(program, FEW)
            sys.setprofile(None)
        held = held_of_each()
    assert counts[MANY] <= counts[FEW] * 1.1 + FEW
    assert max(held, default=0) <= MOST


def test_five_thousand_steps() -> None:
    """They take little memory beyond the program's, see `growing.main`; all of it is counted."""
    finished = forked("run", "-F", "json", growing.__file__, "keys_joined", "5000")
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert finished.stdout.strip() == total("keys_joined", 5_000)
    document = json.loads(finished.stderr.splitlines()[-1])
    assert sum(row["calls"] for row in document["places"]) == 5_000


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_model_of_transformers_generates_200_tokens(attention: str) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, eos_token_id=None, attn_implementation=attention,
    )  # fmt: skip

    def generated(each: Callable[[Any, Any], Any]) -> torch.Tensor:
        torch.manual_seed(0)
        model, ids = LlamaForCausalLM(config).eval(), torch.randint(1, 64, (1, 4))
        how = {"max_new_tokens": 200, "do_sample": True, "pad_token_id": 0}
        return model.generate(ids, logits_processor=LogitsProcessorList([each]), **how)

    counts: dict[int, int] = {}

    def counting(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if (token := ids.shape[1]) in (110, 180):
            count_calls(counts, token)
        elif token in (120, 190):
            sys.setprofile(None)
        return scores

    alone = generated(lambda _, scores: scores)
    with watched() as calls:
        assert torch.equal(generated(counting), alone)
    calls.finish()
    assert calls.calls == 2 * 200
    assert not [one for one in calls.findings if one.severity == "error"]
    assert counts[180] <= counts[110] * 1.1


def test_masks_that_are_new_at_every_step_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyzer, "_MOST_CACHED", 2**22)
    x, sizes = torch.randn(1, 1, 1024, 4), []
    causal = torch.ones(1024, 1024, dtype=torch.bool).tril()
    tracemalloc.start()
    try:
        with watched():
            for step in range(24):
                F.scaled_dot_product_attention(x, x, x, attn_mask=causal & (torch.arange(1024) < 1000 - step))
                sizes.append(tracemalloc.get_traced_memory()[0] / 2**20)
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
