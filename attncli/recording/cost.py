"""What following costs beside the program: where it takes longer than the program itself, it is to end."""

from __future__ import annotations

from collections.abc import Callable

SECONDS = 30.0  # that following may take before it is compared with the program


class Cost:
    """The time that following takes in a thread, held against what all else took meanwhile.

    Args:
        clock: gives seconds. It is read for every function that may be followed: one of the processor's time would
            cost as much as the function.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._begun = clock()
        self._own = 0.0

    def leave_out(self, begun: float) -> None:
        """Count for nobody what was done since a time: looking at a call, which all kinds of attention have alike."""
        seconds = self.clock() - begun
        self._begun += seconds
        self._own -= seconds

    def is_too_much(self, begun: float) -> bool:
        """Take in that something was followed since a time, and return whether following takes longer than all else."""
        now = self.clock()
        self._own += now - begun
        if self._own < SECONDS:
            return False
        if self._own > now - self._begun - self._own:
            return True
        self._begun, self._own = now, 0.0
        return False
