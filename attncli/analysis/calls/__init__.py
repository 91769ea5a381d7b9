"""Every attention of a running program: equal calls in one row, what their masks are, and what is wrong with them.

    with attncli.watch() as calls:
        model(tokens)
    print(calls)                          # the table
    calls.check("causal & pad")           # raises an AssertionError that says what differs
    calls[0].trace.layer(0).head(1).weights

The rows are small plain results; of q, k and v the first call of each place is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attncli.analysis.calls.calls import Calls
from attncli.errors import require


@contextmanager
def watch(module: Any = None) -> Iterator[Calls]:
    """Watch every attention that runs inside, which changes none of the program's numbers.

    `print(calls)` is the table of what ran: a row for each place in the code, with its mask and what is wrong with it.
    `calls[0].trace` is the first call of a row, as every function here takes it. The rows are complete when the block
    ends, and stay.

    Args:
        module: an `nn.Module` whose attention alone is watched; None is all.

    Raises:
        LoadError: torch is not installed.
    """
    require("attncli.watch", "torch")
    calls = Calls()
    calls.start()
    try:
        with watching_all(calls, module):
            yield calls
    finally:
        calls.finish()


@contextmanager
def watching_all(calls: Calls, module: Any = None) -> Iterator[None]:
    """Have calls take what runs inside, and what the inputs of modules say of it; see `watch`."""
    from attncli.recording.watch import watching

    with watching(calls.take, module, calls.notes, calls.here) as watch:
        calls.folder = watch.start
        yield
