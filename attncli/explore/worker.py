"""The thread in which the model computes, so that typing never waits for it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Thread
from typing import TYPE_CHECKING

from attncli.explore.answer import Answer
from attncli.explore.answering import Answering

if TYPE_CHECKING:
    from attncli.engines.interactive import InteractiveSource
    from attncli.explore.look import Look


_MOMENT = 0.1  # seconds


class Worker:
    """Answers the newest look, in a thread of its own; an older one is dropped as soon as a newer one waits.

    The thread is a daemon: whoever leaves waits for no model.

    Args:
        asked: the model.
        on_answer: is given each answer, in the thread. While it runs nothing is computed.
    """

    def __init__(self, asked: InteractiveSource, on_answer: Callable[[Answer], None]) -> None:
        self._answering = Answering(asked)
        self._on_answer = on_answer
        self._changed = Condition()
        self._wanted: Look | None = None
        self._is_closed = False
        self._thread = Thread(target=self._run, name="attn explore", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def ask(self, look: Look) -> None:
        """Have a look answered in place of those before it."""
        with self._changed:
            self._wanted = look
            self._changed.notify()

    def close(self) -> None:
        """Give no further answer; what is being computed ends by itself, or with the program."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def has_ended(self) -> bool:
        """Wait for the end, once it is closed, as long as one that computes nothing takes; return whether it came."""
        self._thread.join(_MOMENT)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (look := self._next()) is not None:
            for answer in self._answering.answers(look):
                if self._is_closed:
                    return
                self._on_answer(answer)
                if self._wanted is not None:
                    break

    def _next(self) -> Look | None:
        """Wait for a look and return it; None is that nobody will ask any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._wanted is not None)
            look, self._wanted = self._wanted, None
            return None if self._is_closed else look
