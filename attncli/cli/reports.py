"""Reports on heads as views, rows and documents: of one model, or of the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from attncli.cli.environment import Environment
from attncli.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.analysis.heads import HeadReport
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
    document_of: Callable[[Any, int | None], str] | None = None,
) -> None:
    """Draw a report, or write its rows or its document."""
    from attncli.formats import DRAWN

    if form in DRAWN:
        with output.view(environment, form, command) as canvas:
            canvas.show(draw(canvas), report.source.title)
    elif form == "parquet":
        from attncli.formats.parquet import check_parquet, write_table

        write_table(table_of(report), check_parquet(output.file))
    elif document_of is not None and form == "json":
        environment.write([document_of(report, precision)], output.file)
    else:
        from attncli.formats.rows import table_rows

        environment.write(table_rows(table_of(report), form, precision), output.file)


def show_checkpoints(
    environment: Environment,
    output: options.OutputOptions,
    command: str,
    models: Sequence[str | None],
    measure: Callable[[str | None], tuple[HeadReport, Sequence[float | None]]],
    precision: int | None,
    colormap: str | None,
    top: int | None = None,
) -> None:
    """Measure checkpoints, one open at a time, and show their heads as strips of colour, or as rows."""
    from attncli.analysis.drift import CheckpointHistory, steps_of
    from attncli.formats.columns import checkpoint_table

    form = output.chosen()
    if form == "json":
        raise UsageError("checkpoints of a run are rows; give -F csv")
    steps, is_numbered = steps_of([name or "toy" for name in models])
    if not is_numbered:
        environment.note(f"steps are places in the list {', '.join(steps.values())}: not all names end in their step")
    history = CheckpointHistory()
    for step, name in steps.items():
        history.add(step, name, *measure(None if name == "toy" else name))

    def draw(canvas: Terminal | PictureFile) -> Iterable[RenderableType]:
        from attncli.render.drift import checkpoint_parts

        height = canvas.height and canvas.height - environment.noted_lines
        return checkpoint_parts(history, canvas.palette(colormap or "viridis"), canvas.width, height, top)

    show_report(environment, output, command, form, precision, history, draw, checkpoint_table)
