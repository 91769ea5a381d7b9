"""`attn learn`: one query through the toy layer, a step a screen, or all steps as one text."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Literal

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import argument
from attncli.cli.terminal import PictureFile, Terminal
from attncli.errors import UsageError
from attncli.signals import OnInterrupt

if TYPE_CHECKING:
    from attncli.analysis.learn import Walk
    from attncli.render.learn import LessonStep

_STEPS = {  # how far a key goes; 0 is the end
    # The last three are right, down and page down; left, up and page up.
    **dict.fromkeys([b"\n", b"\r", b" ", b"n", b"\x1b[C", b"\x1b[B", b"\x1b[6~"], 1),
    **dict.fromkeys([b"b", b"p", b"\x7f", b"\x08", b"\x1b[D", b"\x1b[A", b"\x1b[5~"], -1),
    # The last three are Escape, Ctrl-D, and a terminal that is gone.
    **dict.fromkeys([b"q", b"Q", b"\x1b", b"\x04", b""], 0),
}


def learn(
    environment: Environment,
    output: options.PictureOutput,
    text: Annotated[
        list[str] | None, argument("A sentence of up to 8 words. Default: time flies like an arrow.", "TEXT")
    ] = None,
    lesson: Annotated[
        Literal["one", "multi", "causal", "cross"] | None,
        options.choice_option("Choose a lesson: heads, a causal mask, two texts. Default: one."),
    ] = None,
    query: Annotated[
        str | None,
        options.choice_option("Follow this word, or its index. Default: the middle one.", "TOKEN", "-q"),
    ] = None,
    seed: Annotated[
        int | None, options.choice_option("Set the seed of embeddings and weights. Default: 0.", "N", setting=0)
    ] = None,
) -> None:
    """Follow one query through a layer, step by step, in numbers that you can redo.

    You can redo every number from the numbers above it. In a terminal each step has a screen: Enter shows the next
    one, b the one before, q ends. A large terminal gets large numbers, for a projector.
    In a pipe or a file all steps are one text. Each lesson ends with an exercise.

    Examples:
    attn learn
    attn learn "the cat sat on the mat" --lesson causal
    """
    from attncli.analysis.learn import LESSONS, TEXT, walk

    if lesson is None and text is not None and len(text) == 1 and text[0] in LESSONS:
        raise UsageError(f"'{text[0]}' is a lesson, read as a text here; use attn learn --lesson {text[0]}")
    chosen = output.chosen()
    walked = walk(" ".join(text) if text else TEXT, LESSONS[lesson or "one"], query, seed or 0)
    if chosen == "table" and output.file is None and find_spec("termios") and not environment.lacks_screen():
        _in_screens(environment, walked, output)
        return
    with output.view(environment, chosen, "learn") as canvas:
        for step in _steps(walked, canvas):
            canvas.show(step.parts, step.name)


def _steps(walked: Walk, canvas: Terminal | PictureFile) -> list[LessonStep]:
    from attncli.render.bars import TableFormat
    from attncli.render.learn import PRECISION, Steps

    return Steps(walked, TableFormat(canvas.palette("viridis"), canvas.width, PRECISION), canvas.height).all()


def _in_screens(environment: Environment, walked: Walk, output: options.PictureOutput) -> None:
    """Show one step at a time, as large as the terminal is then, until the end or until the user leaves."""
    import termios  # which Windows lacks
    import tty

    place, count, descriptor = 0, 1, sys.stdin.fileno()
    restore = partial(termios.tcsetattr, descriptor, termios.TCSADRAIN, termios.tcgetattr(descriptor))
    with ExitStack() as stack:
        stack.enter_context(OnInterrupt(restore))
        stack.callback(restore)
        while place < count:
            tty.setcbreak(descriptor, termios.TCSADRAIN)
            with output.view(environment, "table", "learn") as canvas:
                assert isinstance(canvas, Terminal)
                steps = _steps(walked, canvas)
                count = len(steps)
                canvas.turn()
                canvas.show(steps[place].parts)
                prompt = f"\n{place + 1} of {count} · Enter: next, b: back, q: quit "
                canvas.stream.write(canvas.palette("viridis").fit(prompt))
            while (step := _STEPS.get(os.read(descriptor, 32))) is None:
                pass
            canvas.stream.write("\n")
            if step == 0:
                return
            place = max(place + step, 0)
