"""Notes of a watch, a sentence each; also about faults of ours, which end no program."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class Notes(list[str]):
    """Sentences, each of them once.

    Attributes:
        fault: our first fault, without the objects that it happened to; None where there is none.
    """

    fault: Exception | None = None

    def __init__(self) -> None:
        super().__init__()
        self._lost: set[str] = set()  # lines

    def add(self, text: str) -> None:
        """Add a note, once."""
        if text not in self:
            self.append(text)

    @contextmanager
    def of_faults(self, what: str = "one attention could not be read") -> Iterator[None]:
        """Go on after a fault of ours, which is a note."""
        try:
            yield
        except Exception as fault:
            self.failed(fault, what)

    def failed(self, fault: Exception, what: str = "one attention could not be read") -> None:
        """Add a note about a fault of ours, the first time.

        Raises:
            Exception: `fault`, where the program's own handler of a signal raised it while we were at work.
        """
        handlers = (signal.getsignal(number) for number in signal.valid_signals())
        codes = {getattr(each, "__code__", None) for each in handlers} - {None}
        if any(frame.f_code in codes for frame, _ in traceback.walk_tb(fault.__traceback__)):
            raise fault
        if self.fault is None:
            self.append(f"{what}: {described(fault)}")
            fault.__cause__ = fault.__context__ = None  # their tracebacks keep the program's tensors alive
            self.fault = fault.with_traceback(None)

    def add_lost(self, place: str, shape: tuple[int, ...]) -> None:
        """Note a softmax of queries and keys whose weights were not followed to values, the first one at each line."""
        if place not in self._lost:
            self._lost.add(place)
            lost = f"a softmax of {list(shape)} at {place} is not shown"
            self.append(f"{lost}, as attn could not follow it from scores to values")


def described(fault: Exception) -> str:
    """Return a fault of ours as a sentence; with ATTN_DEBUG the traceback goes to standard error."""
    if os.environ.get("ATTN_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(fault, file=sys.__stderr__)
    text = " ".join(f"{type(fault).__name__}: {fault}".split())[:200]
    if isinstance(fault, MemoryError) or "OutOfMemory" in text:
        return f"out of memory ({text})"
    return f"this is a bug in attn, please report it: {text}; ATTN_DEBUG=1 shows the traceback"
