"""Programs in a folder of tests, run while they are watched."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from attncli.analysis.calls.calls import Calls
from attncli.recording.watch import watching

Run = Callable[..., list[torch.Tensor]]


def programs_of(folder: Path, *modules: str) -> Iterator[dict[str, Run]]:
    own = {path.stem for path in folder.glob("*.py")}
    assert not own & set(sys.modules)
    sys.path.insert(0, str(folder))
    found = [vars(importlib.import_module(module)) for module in modules]
    yield {name: each for one in found for name, each in (one | one.get("PROGRAMS", {})).items()}
    sys.path.remove(str(folder))
    for name in own & set(sys.modules):
        del sys.modules[name]


def watched(run: Callable[[], Any], expect: str | None = None, place: str | None = None) -> Calls:
    """The calls of a program, held against an expression; without, it is the same to the bit as it is alone."""
    calls = Calls(expect, place=place)
    torch.manual_seed(0)
    with watching(calls.take, notes=calls.notes, hints=calls.here):
        results = [*run(), torch.get_rng_state()]
    calls.finish()
    if expect is None:
        torch.manual_seed(0)
        # What a program compiles runs eagerly while it is watched.
        with torch.compiler.set_stance("force_eager"):
            alone = [*run(), torch.get_rng_state()]
        assert [*map(bits, alone)] == [*map(bits, results)]
    return calls


def bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, *tensor.shape, tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def errors(run: Callable[[], Any], expect: str | None = None, place: str | None = None) -> list[str]:
    """The codes of the errors that are found in a program, in which there is attention and nothing that is not read."""
    calls = watched(run, expect, place)
    assert calls
    assert calls.notes == []
    return [one.code for one in calls.findings if one.severity == "error"]
