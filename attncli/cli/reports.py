"""Reports on heads as views, rows and documents: of one model, or of the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attncli.cli.environment import Environment

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.analysis.drift import CheckpointHistory
    from attncli.cli import options
    from attncli.cli.environment import PictureFile, Terminal
    from attncli.formats.columns import Table

    Draw = Callable[[Terminal | PictureFile], Iterable[RenderableType]]


def show_report(
    environment: Environment,
    output: options.OutputOptions,
    command: str,
    form: str,
    precision: int | None,
    report: Any,
    draw: Draw,
    table_of: Callable[[Any], Table],
    document_of: Callable[[Any, int | None], str],
) -> None:
    """Draw a report, or write its rows or its document."""
    from attncli.formats import DRAWN

    if form in DRAWN:
        with output.view(environment, form, command) as canvas:
            canvas.show(draw(canvas), report.source.title)
    elif form == "parquet":
        from attncli.formats.parquet import check_parquet, write_table

        write_table(table_of(report), check_parquet(output.file))
    elif form == "json":
        environment.write([document_of(report, precision)], output.file)
    else:
        from attncli.formats.rows import table_rows

        environment.write(table_rows(table_of(report), form, precision), output.file)


def numbered_checkpoints(environment: Environment, models: Sequence[str | None]) -> Iterator[tuple[int, str | None]]:
    """Yield checkpoints with their steps; a note tells where the names have none."""
    from attncli.analysis.drift import steps_of

    steps, is_numbered = steps_of([name or "toy" for name in models])
    if not is_numbered:
        environment.note("steps are places in the list, from 1: the names do not end in the numbers of steps")
    yield from ((step, None if name == "toy" else name) for step, name in steps.items())


def show_checkpoints(
    environment: Environment,
    output: options.OutputOptions,
    command: str,
    history: CheckpointHistory,
    precision: int | None,
    colormap: str | None,
    top: int | None = None,
) -> None:
    """Show heads over checkpoints: as strips of colour, rows or a document."""
    from attncli.formats.columns import checkpoint_table
    from attncli.formats.documents import write_checkpoints

    def draw(canvas: Terminal | PictureFile) -> Iterable[RenderableType]:
        from attncli.render.drift import checkpoint_parts

        height = canvas.height and canvas.height - environment.noted_lines
        return checkpoint_parts(history, canvas.palette(colormap or "viridis"), canvas.width, height, top)

    form = output.chosen()
    show_report(environment, output, command, form, precision, history, draw, checkpoint_table, write_checkpoints)
