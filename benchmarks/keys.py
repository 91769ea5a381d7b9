"""How long the explorer takes from a key to the new picture: `python benchmarks/keys.py [--keep FOLDER]`.

`attn explore` runs as a process in a terminal of 120×40, which is read by an emulator. Words are typed at the end of a
text, letter by letter, at most one in 100 ms, as a quick typist does. The time of a letter ends with the last byte of
the frame in which the map of the head has the new token; a letter that changes no token counts for nothing.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from cases import ATTN, PYTHON, ROWS, SCRIPTS, Material
from emulated import running
from texts import WORDS, text
from tokenizers import Tokenizer

COLUMNS, LINES = 120, 40
KEYS = 200
PAGE_DOWN = "\x1b[6~"  # to the next layer
PAUSE = 0.1  # seconds from one key to the next, at least


@dataclass(frozen=True)
class Session:
    """Words that are typed, and how soon they are to be answered.

    Attributes:
        name: what is measured.
        command: the program, which shows the text without its last word first.
        text: that text.
        words: the last words.
        line: what the line is that a text alone brings to the screen, as a pattern.
        begins: what is typed before.
        target: milliseconds, of the median.
    """

    name: str
    command: list[str]
    text: str
    words: Iterator[str]
    line: Callable[[str], str]
    begins: str = ""
    target: float | None = None


def sessions(material: Material) -> Iterator[Session]:
    yield Session(
        "an empty application of Textual",
        [PYTHON, str(SCRIPTS / "peers" / "echo.py")],
        "",
        iter(WORDS[100:]),
        lambda text: f"typed {text}".rstrip(),
    )
    for layer, target in ((0, 100.0), (5, 100.0)):
        yield explorer("MiniLM", material.minilm(), layer, WORDS[:11], iter(WORDS[100:]), target)
    folder = material.checkpoint("gpt2")
    for length in (12, 201):  # of 201 tokens the last one has a label, as every eighth
        for layer in (0, 11):
            before = text(length - 1, ROWS["gpt2"]).split()
            yield explorer("GPT-2", folder, layer, before, (f"w{number}" for number in count(40_000)))


def explorer(
    name: str, folder: str, layer: int, before: list[str], words: Iterator[str], target: float | None = None
) -> Session:
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    command = [ATTN, "explore", "-m", folder, " ".join(before)]
    title = f"{name}, layer {layer}, {len(before) + 1} words"
    return Session(title, command, " ".join(before), words, partial(row, tokenizer), PAGE_DOWN * layer, target)


def row(tokenizer: Tokenizer, text: str) -> str:
    """Return the label of the last token's row, the special ones aside."""
    found = tokenizer.encode(text)
    place = max(place for place, is_special in enumerate(found.special_tokens_mask) if not is_special)
    return rf"[▸ ]*{place} {re.escape(found.tokens[place])}"


def measured(session: Session, environment: dict[str, str]) -> list[float]:
    """Return the milliseconds of each letter."""
    taken: list[float] = []
    with running(session.command, COLUMNS, LINES, environment) as program:
        program.until(at_the_start_of_a_line("typed|[▸ ]+0 .*"))
        program.type(session.begins + " " * bool(session.text))
        for word in session.words:
            program.rest(4 * PAUSE)
            shown = session.line(session.text)
            for typed in range(1, len(word) + 1):
                line = session.line(f"{session.text} {word[:typed]}".lstrip())
                begun = time.perf_counter()
                program.type(word[typed - 1])
                if line != shown:
                    taken.append(1000 * (program.until(at_the_start_of_a_line(line)) - begun))
                if len(taken) == KEYS:
                    return taken
                shown = line
                program.rest(begun + PAUSE - time.perf_counter())
            program.type("\x7f" * len(word))
    return taken


def at_the_start_of_a_line(pattern: str) -> Callable[[str], object]:
    return re.compile(rf"^(?:│ )?{pattern}( |$)", re.MULTILINE).search  # in a frame or not


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the checkpoints are, or go")
    keep = parser.parse_args().keep
    print(f"| {KEYS} keys | median | of 95 in 100 | longest | target of the median |\n" + "|---" * 5 + "|")
    over = 0
    with tempfile.TemporaryDirectory() as folder:
        material = Material(Path(folder), Path(folder) if keep is None else keep.resolve())
        environment = material.environment | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        for name in ("NO_COLOR", "TEXTUAL_FPS"):
            environment.pop(name, None)
        for session in sessions(material):
            taken = measured(session, environment)
            median, most = statistics.median(taken), statistics.quantiles(taken, n=20)[-1]
            target = "" if session.target is None else f"≤ {session.target:.0f} ms"
            if session.target is not None and median > session.target:
                target, over = f"{target} **over**", over + 1
            cells = [session.name, *(f"{value:.1f} ms" for value in (median, most, max(taken))), target]
            print("| " + " | ".join(cells) + " |", flush=True)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
