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


def programs_of(folder: Path, module: str) -> Iterator[dict[str, Run]]:
    """The functions of a module by their names; what it imported is forgotten afterwards."""
    own = {path.stem for path in folder.glob("*.py")}
    assert not own & set(sys.modules)
    sys.path.insert(0, str(folder))
    yield vars(importlib.import_module(module))
    sys.path.remove(str(folder))
    for name in own & set(sys.modules):
        del sys.modules[name]


def watched(run: Callable[[], Any], expect: str | None = None) -> tuple[Calls, list[torch.Tensor]]:
    """The calls of a program, held against an expression, what it computed, and what is drawn after it."""
    calls = Calls(expect)
    torch.manual_seed(0)
    with watching(calls.take, listener=calls):
        tensors = run()
    calls.finish()
    assert calls
    assert calls.notes == []
    return calls, [*tensors, torch.get_rng_state()]


def errors(run: Callable[[], Any], expect: str | None = None) -> list[tuple[str, str]]:
    """The codes and messages of the errors that are found in a program."""
    return [(one.code, one.message) for one in watched(run, expect)[0].findings if one.severity == "error"]
