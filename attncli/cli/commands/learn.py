"""`attn learn`: one query through the toy layer, all steps as one text."""

from __future__ import annotations

from typing import Literal

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import argument
from attncli.errors import UsageError


def learn(
    environment: Environment,
    output: options.PictureOutput,
    text: list[str] | None = argument("A sentence of up to 8 words. Default: time flies like an arrow.", "TEXT"),
    lesson: Literal["one", "multi", "causal", "cross", "positions"] | None = options.choice_option(
        "Choose a lesson. Default: one."
    ),
    query: str | None = options.choice_option(
        "Follow this word, or its index. Default: the middle one.", "TOKEN", "-q"
    ),
    seed: int | None = options.choice_option("Set the seed of embeddings and weights. Default: 0.", "N", env=True),
) -> None:
    """Follow one query through a layer, step by step, in numbers that you can redo.

    You can redo every number from the numbers above it. --all shows the steps in a pager.

    Examples:
    attn learn
    attn learn "the cat sat on the mat" --lesson causal
    """
    from attncli.analysis.learn import LESSONS, TEXT, walk
    from attncli.render.bars import TableFormat
    from attncli.render.learn import PRECISION, Steps

    if lesson is None and text is not None and len(text) == 1 and text[0] in LESSONS:
        raise UsageError(f"'{text[0]}' is read as a text here; for the lesson, use attn learn --lesson {text[0]}")
    walked = walk(" ".join(text) if text else TEXT, LESSONS[lesson or "one"], query, seed or 0)
    with output.view(environment, output.chosen(), "learn") as canvas:
        sheet = TableFormat(canvas.palette("viridis"), canvas.width, PRECISION)
        for name, parts in Steps(walked, sheet).all():
            canvas.show(parts, name)
