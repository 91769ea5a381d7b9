"""What is computed on a device comes to the CPU at once; here the CPU is the device, which it can be told to be."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from architectures import tiny_model
from attncli.engines.torch.to_cpu import fetched
from conformance import opened, save
from torch.utils._python_dispatch import TorchDispatchMode

from attncli.engines.torch import memory, to_cpu, unmodified_check
from attncli.files import to_numpy
from attncli.recording import to_trace

pytestmark = pytest.mark.usefixtures("by_transformers")

TEXTS = ["w23 w42 w17 w88", "w9 w8 w7 w6", "w31 w3", "w5 w6 w7 w8"]  # three of one length


class Copies(TorchDispatchMode):
    """Counts the copies from one tensor into another, and keeps what they were made of."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.copy_.default:
            self.seen.append(args[1])
        return result


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[torch.dtype]]]:
    """Let the CPU be somewhere else from now on, from which nothing is read but what was fetched.

    What is given lists the fetches, each with the types of the tensors that crossed.
    """

    def leave() -> list[list[torch.dtype]]:
        come: dict[int, torch.Tensor] = {}  # by where it lies
        fetches: list[list[torch.dtype]] = []

        def is_away(tensor: torch.Tensor | None) -> bool:
            return tensor is not None and tensor.untyped_storage().data_ptr() not in come

        def bring(tensors: Any) -> Iterator[Any]:
            found = list(fetched(tensors))
            crossed = {one.untyped_storage().data_ptr(): one for one in found if one is not None}
            come.update(crossed)
            if crossed:
                fetches.append(sorted((one.dtype for one in crossed.values()), key=str))
            return iter(found)

        def read(tensor: torch.Tensor) -> Any:
            assert not is_away(tensor), "read from the device by itself"
            return to_numpy(tensor)

        monkeypatch.setattr(to_cpu, "_is_away", is_away)
        for module in (to_cpu, unmodified_check):
            monkeypatch.setattr(module, "fetched", bring)
        for module in (to_trace, unmodified_check):
            monkeypatch.setattr(module, "to_numpy", read)
        return fetches

    return leave


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_cpu, "_is_away", lambda tensor: tensor is not None)


@pytest.mark.usefixtures("away")
def test_tensors_of_each_type_come_in_one_transfer_and_each_tensor_once() -> None:
    chance = torch.Generator().manual_seed(0)
    floats = [torch.rand(shape, generator=chance) for shape in ((2, 3, 5), (7,), (), (0, 4))]
    turned = floats[0].transpose(0, 2)[1:, ::2]
    spread = torch.rand(1, 1, 4, generator=chance).expand(3, 2, 4)
    halves = [torch.rand(6, generator=chance).to(torch.bfloat16), torch.rand(2, 2, generator=chance).bfloat16()]
    given = [floats[0], None, halves[0], turned, spread > 0.5, *floats, spread, *halves, None]
    with Copies() as copies:
        found = list(fetched(iter(given)))
    sizes = {seen.dtype: seen.numel() for seen in copies.seen}
    assert len(copies.seen) == len(sizes) == 3
    assert sizes == {
        torch.float32: sum(map(torch.numel, floats)) + turned.numel() + spread.numel(),
        torch.bfloat16: 10,
        torch.bool: spread.numel(),
    }
    assert len(found) == len(given)
    for theirs, ours in zip(given, found, strict=True):
        assert (theirs is None) == (ours is None)
        if theirs is not None:
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)
            assert ours.untyped_storage().data_ptr() != theirs.untyped_storage().data_ptr()
    assert found[0] is found[5]


def test_what_is_on_the_cpu_is_given_back_and_not_copied() -> None:
    given = [torch.ones(3), None, torch.ones(2, 2, dtype=torch.float16)]
    with Copies() as copies:
        found = list(fetched(given))
    assert all(ours is theirs for ours, theirs in zip(found, given, strict=True))
    assert copies.seen == []


def arrays(trace: Any) -> Iterator[tuple[str, Any]]:
    for layer in trace.layers:
        for name in ("q", "k", "v", "bias", "sinks", "scores", "weights", "scale", "fill", "heads", "proof"):
            yield f"{layer.label} {name}", getattr(layer, name)
        yield f"{layer.label} mask", str(layer.mask)


# Those that call the attention function (rotary positions, a bias, sinks, values side by side), which run once more to
# be compared; and those that are watched.
@pytest.mark.parametrize(
    ("name", "dtype", "crossing"),
    [
        ("llama", torch.float32, [[torch.bool, torch.float32], [torch.float32]]),
        ("llama", torch.bfloat16, [[torch.bfloat16, torch.bool], [torch.bfloat16]]),
        ("t5", torch.float32, [[torch.bool, torch.float32], [torch.float32]]),
        ("gpt_oss", torch.float32, [[torch.bool, torch.float32], [torch.float32]]),
        ("diffllama", torch.float32, [[torch.bool, torch.float32], [torch.float32]]),
        ("bloom", torch.float32, [[torch.bool, torch.float32]]),
        ("longformer", torch.float32, [[torch.bool, torch.float32]]),
    ],
)
def test_a_batch_on_a_device_is_fetched_at_once_and_shows_what_it_shows_on_the_cpu(
    name: str,
    dtype: torch.dtype,
    crossing: list[list[torch.dtype]],
    tmp_path: Path,
    far: Callable[[], list[list[torch.dtype]]],
) -> None:
    save(tiny_model(name), tmp_path)
    source = opened(tmp_path, "all", dtype=str(dtype).removeprefix("torch."))
    target = "w5 w6 w7" if source.is_encoder_decoder else None
    expected = list(source.traces(TEXTS, None, target))
    fetches = far()
    found = list(source.traces(TEXTS, None, target))
    assert fetches == crossing * len({len(text.split()) for text in TEXTS})
    for ours, theirs in zip(found, expected, strict=True):
        for (what, one), (_, other) in zip(arrays(ours), arrays(theirs), strict=True):
            np.testing.assert_equal(one, other, err_msg=what)


def test_less_fits_where_what_is_captured_waits_to_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_available", lambda _: 1e9)
    model = tiny_model("llama")
    near, far = (
        memory.room_for(
            SimpleNamespace(config=model.config, dtype=torch.float32, device=torch.device(name)), 50, 6, False
        )
        for name in ("cpu", "cuda")
    )
    assert near > far > near / 3
