"""A terminal in memory: what a program that moves the cursor has drawn, by the escape sequences that it wrote."""

from __future__ import annotations

import os
import pty
import re
import select
import termios
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from signal import SIGKILL

from rich.ansi import AnsiDecoder
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

_PARTS = re.compile(
    r"\x1b\[(?P<parameters>[0-?]*)(?P<between>[ -/]*)(?P<final>[@-~])"
    r"|(?P<string>\x1b[\]P_^X].*?(?:\x07|\x1b\\))"
    r"|(?P<other>\x1b[ -/]*[0-OQ-WYZ\\`-~])"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f])"
    r"|(?P<text>[^\x00-\x1f]+)",
    re.DOTALL,
)


_PAUSE = 0.002  # seconds without a byte between two frames


class Emulated:
    """What stands on a screen of some size, each cell a character and its style.

    Attributes:
        modes: the private modes that are on, such as `?1049`, the alternate screen.
        asked: the modes that the program asked about, and was not told of yet.
        frames: how often it has written.
    """

    def __init__(self, columns: int, lines: int) -> None:
        self.modes = {"?7", "?25"}  # lines wrap, and the cursor is seen
        self.requests: list[str] = []
        self.frames = 0
        self._blank = [(" ", Style.null())] * columns
        self._cells = [[*self._blank] for _ in range(lines)]
        self._line = self._column = 0
        self._other = (self._cells, 0, 0)
        self._style = Style.null()
        self._rest = ""

    def feed(self, written: str) -> None:
        """Take what a program wrote; a sequence that is not whole waits for its rest."""
        self.frames += 1
        written, place = self._rest + written, 0
        while place < len(written):
            part = _PARTS.match(written, place)
            if part is None:
                break
            place = part.end()
            if (text := part["text"]) is not None:
                self._draw(text)
            elif (final := part["final"]) is not None:
                self._obey(final, part["parameters"], part["between"])
            elif part["control"] == "\n":
                self._line += 1
            elif part["control"] == "\r":
                self._column = 0
        self._rest = written[place:]

    def _draw(self, text: str) -> None:
        if not 0 <= self._line < len(self._cells):
            return
        line = self._cells[self._line]
        for character in text:
            width = cell_len(character)
            if width == 0 and self._column:  # it belongs to the one before
                before, style = line[self._column - 1]
                line[self._column - 1] = (before + character, style)
            line[self._column : self._column + width] = [(character, self._style), ("", self._style)][:width]
            self._column += width
        del line[len(self._blank) :]

    def _obey(self, final: str, parameters: str, between: str) -> None:
        numbers = [int(number) if number.isdigit() else 0 for number in parameters.split(";")]
        first = numbers[0]
        if final == "m" and parameters[:1] not in {">", "?"}:
            self._style = _styled(self._style, parameters)
        elif final in "Hf":
            self._line, self._column = (max(number - 1, 0) for number in (first, (*numbers, 0, 0)[1]))
        elif final == "J" and first in (2, 3):
            self._cells = [[*self._blank] for _ in self._cells]
        elif final == "K":
            start, stop = ((self._column, None), (None, self._column + 1), (None, None))[first]
            self._cells[self._line][start:stop] = self._blank[start:stop]
        elif final == "A":
            self._line = max(self._line - max(first, 1), 0)
        elif final in "hl" and parameters.startswith("?"):
            for mode in parameters.removeprefix("?").split(";"):
                (self.modes.add if final == "h" else self.modes.discard)(f"?{mode}")
                if mode == "1049":
                    self._turn(final == "h")
        elif final == "p" and between == "$":
            self.requests.append(parameters)

    def _turn(self, is_alternate: bool) -> None:
        """Show the alternate screen, which is empty, or the other one, as it was."""
        if is_alternate:
            self._other = (self._cells, self._line, self._column)
            self._cells = [[*self._blank] for _ in self._cells]
        else:
            self._cells, self._line, self._column = self._other

    def __str__(self) -> str:
        """The text that stands there, a line a line."""
        return "\n".join("".join(character for character, _ in line).rstrip() for line in self._cells)

    def lines(self) -> list[Sequence[Segment]]:
        """Return what stands there, a segment a cell."""
        return [[Segment(character, style) for character, style in line if character] for line in self._cells]


@lru_cache(10_000)
def _styled(style: Style, parameters: str) -> Style:
    decoder = AnsiDecoder()
    decoder.style = style
    decoder.decode_line(f"\x1b[{parameters}m")
    return decoder.style


class Running:
    """A program that runs in such a terminal.

    Attributes:
        screen: what it has drawn.
        process: its number.
    """

    def __init__(self, process: int, terminal: int, screen: Emulated) -> None:
        self.process, self.screen = process, screen
        self._terminal = terminal
        self._decoded = getincrementaldecoder("utf-8")("replace").decode
        self._code: int | None = None

    def type(self, keys: str) -> None:
        """Write what a terminal sends for some keys."""
        os.write(self._terminal, keys.encode())

    def until(self, holds: Callable[[str], object], seconds: float = 60) -> float:
        """Read until something holds of the text of a whole frame; return when its last byte came.

        What comes together is read before any of it is drawn: a program waits for nobody who reads slowly.
        """
        end = time.perf_counter() + seconds
        while together := list(self._burst(end)):
            held = None
            for came, read in together:
                self._take(read)
                if held is None and "?2026" not in self.screen.modes and holds(str(self.screen)):
                    held = came
            if held is not None:
                return held
        raise AssertionError(f"it does not show that in {seconds} s:\n{self.screen}")

    def _burst(self, end: float) -> Iterator[tuple[float, bytes]]:
        """Wait until something comes, or until a time; yield it, and when it came, until there is a pause."""
        wait = max(end - time.perf_counter(), 0)
        while select.select([self._terminal], [], [], wait)[0]:
            read = os.read(self._terminal, 65536)
            yield time.perf_counter(), read
            wait = _PAUSE

    def rest(self, seconds: float) -> None:
        """Read what comes for some time."""
        end = time.perf_counter() + seconds
        while select.select([self._terminal], [], [], max(end - time.perf_counter(), 0))[0]:
            self._take(os.read(self._terminal, 65536))

    def _take(self, read: bytes) -> None:
        self.screen.feed(self._decoded(read))
        while self.screen.requests:
            if self.screen.requests.pop() == "?2026":  # a terminal of today draws whole frames
                self.type("\x1b[?2026;2$y")

    def ended(self) -> int:
        """Read what it still writes; return its exit code."""
        try:
            while read := os.read(self._terminal, 65536):
                self._take(read)
        except OSError:  # the other end is closed
            pass
        return self.close()

    def close(self) -> int:
        """Wait for its end; return its exit code."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
            os.close(self._terminal)
        return self._code

    def kill(self) -> None:
        """End it, if it runs."""
        if self._code is None:
            os.kill(self.process, SIGKILL)
            self.close()


@contextmanager
def running(command: Sequence[str], columns: int, lines: int, environment: Mapping[str, str]) -> Iterator[Running]:
    """Run a program in a terminal of some size, and end it when the block ends."""
    process, terminal = pty.fork()
    if process == 0:
        termios.tcsetwinsize(0, (lines, columns))
        os.execvpe(command[0], command, environment)
    program = Running(process, terminal, Emulated(columns, lines))
    try:
        yield program
    finally:
        program.kill()
