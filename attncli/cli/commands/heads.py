"""`attn heads`: which head does what, over one sentence or many."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attncli.analysis.metric_names import DETECTORS, NAMES, Metric
from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import Options
from attncli.errors import ExitCode, UsageError
from attncli.text import did_you_mean, names_in, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.analysis.heads import Survey, SurveyStates
    from attncli.cli.datasets import Writing
    from attncli.cli.environment import PictureFile, Terminal
    from attncli.cli.sentences import Answers
    from attncli.render.palette import Palette

_OF_TEST: tuple[Metric, ...] = ("induction", "previous", "duplicate", *DETECTORS)  # what a table of it has
_FEWEST_LINES = 8  # of the table of a group, where several share a screen
_MERGED = "which reads what was measured already; drop one of them"

Query = Annotated[
    list[str] | None,
    options.choice_option(
        "--query",
        "-q",
        metavar="TOKEN",
        help="Count this query row alone: a token or its index. May be repeated. Default: all.",
    ),
]


@dataclass(frozen=True, repr=False, eq=False)
class Wanted(Options):
    """What is shown of the heads, and in which order."""

    induction: Annotated[
        bool,
        options.input_option(
            "--induction", help="Run on random tokens of the model, each sequence twice: the test for induction heads."
        ),
    ] = False
    merge: Annotated[
        bool,
        options.input_option(
            "--merge",
            help="Merge what attn heads -o FILE.parquet and -o FOLDER/ wrote; give these files and folders as TEXT.",
        ),
    ] = False
    by: Annotated[
        str | None,
        options.input_option(
            metavar="NAME", help="Group the sentences by a field or column of the file, and measure each group."
        ),
    ] = None
    label: Annotated[
        bool,
        options.view_option(
            "--label", help="Say in a word what each head does: previous, induction, …; attn help metrics."
        ),
    ] = False
    metrics: Annotated[
        str | None,
        options.view_option(metavar="METRICS", help="With commas: the columns. Default: all; with --label, none."),
    ] = None
    sort: Annotated[
        str | None,
        options.view_option(
            metavar="METRIC",
            help="The heads of the highest value first; of the lowest with a - before it: -entropy. Default: by layer "
            "and head, or by label.",
        ),
    ] = None
    top: Annotated[
        int | None,
        options.view_option(
            min=1, metavar="N", help="With --sort: this many heads alone; with --label, of each label. Default: all."
        ),
    ] = None
    grid: Annotated[Metric | None, options.view_option(help="Layers × heads as a heat map of this metric.")] = None
    spread: Annotated[
        Literal["std", "ci95", "quantiles"] | None,
        options.view_option(
            help="What a table has of several sentences: the mean with its standard deviation or its 95 % confidence "
            "interval, or the median with the 5 % and the 95 % quantile. Default: std."
        ),
    ] = None

    def check(self, request: options.Stream) -> None:
        """Raise UsageError, before anything is loaded, for options that do not go together."""
        for name in ("sort", "label", "metrics"):
            if self.grid is not None and getattr(self, name):
                raise UsageError(
                    f"--{name} does not apply to --grid, which has every head in its place; drop one of them"
                )
        if self.top is not None and self.order is None and not self.label:
            raise UsageError("--top does not apply without --sort METRIC or --label, which say by what")
        if self.grid is not None and self.spread is not None:
            raise UsageError("--spread does not apply to --grid, which shows means; drop one of them")
        for metric in (self.order, self.grid, *(self.chosen or ())):
            if metric in DETECTORS and not (self.induction or self.merge):
                raise UsageError(f"{metric} is measured on random tokens that come twice; give --induction")
        if self.merge:
            given = [
                *(name for name, _ in request.said() if name not in ("text", "each")),
                *["by"] * (self.by is not None),
            ]
            given += ["induction"] * self.induction
            if given:
                raise UsageError(f"--{given[0].rstrip('_').replace('_', '-')} does not apply to --merge, {_MERGED}")
        if request.computed.sentences.keep is not None and not self.induction:
            raise UsageError("--keep does not apply to numbers over all sentences; --by NAME makes groups of them")
        if self.by is not None and (request.from_ is not None or request.computed.sentences.file in (None, "-")):
            raise UsageError("--by applies to --file, which may be .jsonl, .csv, .tsv or .parquet")
        if self.induction:
            given = [name for name, _ in request.computed.sentences.said() if name != "no_special"]
            if given := [*given, *["from"] * (request.from_ is not None)]:
                option = "TEXT" if given[0] == "text" else f"--{given[0]}"
                raise UsageError(f"{option} does not apply to --induction, which draws its tokens; drop one of them")

    @property
    def chosen(self) -> list[Metric] | None:
        """The metrics that `--metrics` names; None is all of them."""
        if self.metrics is None:
            return None
        known = {name: name for name in (*NAMES, *DETECTORS)}
        names_in("--metrics", self.metrics, known)
        return [known[name.strip()] for name in self.metrics.split(",")]  # type: ignore[index]

    @property
    def order(self) -> Metric | None:
        """The metric by which heads are ranked; None where they stand by label, or by layer and head."""
        is_found_by = self.induction and not self.label and self.grid is None
        if self.sort is None:
            return "induction" if is_found_by else None
        known: dict[str, Metric] = {name: name for name in (*NAMES, *DETECTORS)}
        name = self.sort.removeprefix("-")
        if name not in known:
            expected = ", ".join(known)
            raise UsageError(f"--sort '{visible(self.sort)}': expected one of {expected}{did_you_mean(name, known)}")
        return known[name]

    def of(self, found: Survey, is_drawn: bool) -> Survey:
        """Return a survey with the heads and the metrics that are wanted, in order."""
        if self.order is not None:
            found = found.ranked(self.order, reverse=(self.sort or "").startswith("-"), top=self.top)
        elif self.label:
            found = found.by_label(self.top)
        if self.chosen is not None:
            return found.only(self.chosen)
        if is_drawn and self.label:
            return found.only(())
        return found.only(_OF_TEST) if is_drawn and self.induction else found


def heads(
    context: typer.Context,
    environment: Environment,
    request: options.Stream,
    wanted: Wanted,
    output: options.Rows,
    layer: options.EveryLayer = None,
    query: Query = None,
    precision: options.Precision = None,
    colormap: options.Colormap = None,
) -> None:
    """Say what every head of every layer does, in numbers: one row a head.

    Over several sentences they are means, with standard deviations. `attn help metrics` says what they measure.

    Examples:
    attn heads -m demo --induction
    attn heads -m demo "one two three four five one two three four five" --label
    attn heads -m gpt2 --file sentences.txt -F tsv
    attn heads -m gpt2 --file reviews.parquet --by label
    attn heads -m gpt2 "time flies like an arrow" --grid sink
    """
    from attncli.analysis.heads import SurveyStates
    from attncli.cli.following import merged
    from attncli.formats import DRAWN
    from attncli.formats.documents import write_head_rows, write_heads

    wanted.check(request)
    chosen, rows = output.chosen(takes_folder=True), tuple(query or ())
    if chosen == "parquet":
        from attncli.formats.parquet import check_parquet

        check_parquet(output.file)
    if output.folder is not None:
        if _write_parts(context, environment, request, wanted, rows, output.folder):
            raise typer.Exit(ExitCode.INPUT)
        return
    if wanted.merge:
        states, failures = _of_files(request), 0
        wanted = replace(wanted, induction=any(survey.is_test for survey in states.surveys()))
    else:
        results = _measured(context, environment, request, wanted, rows)
        states, failures = merged(results) or SurveyStates(wanted.by, {}), results.failures
    found = [wanted.of(survey, chosen in DRAWN) for survey in states.surveys()]
    if chosen in DRAWN:
        with output.canvas(environment, chosen, "heads") as canvas:
            _draw(found, wanted, canvas, canvas.palette(colormap or "viridis"), precision)
    elif chosen == "parquet":
        from attncli.formats.states import write_states

        assert output.file is not None
        write_states(states, output.file)
    elif chosen == "json":
        environment.write([write_heads(found, precision)], output.file)
    else:
        environment.write([write_head_rows(found, "\t" if chosen == "tsv" else ",", precision)], output.file)
    if failures:
        raise typer.Exit(ExitCode.INPUT)


def _measured(
    context: typer.Context,
    environment: Environment,
    request: options.Stream,
    wanted: Wanted,
    queries: tuple[str, ...],
    dataset: Writing | None = None,
) -> Answers[Any]:
    """Return what batches of the sentences say of the heads; nothing but the bad ones where a dataset has it."""
    from attncli.cli.following import followed_together
    from attncli.cli.request import Task, is_alone, jobs_of, made_of
    from attncli.cli.sentences import last_number
    from attncli.corpus.surveying import Surveying
    from attncli.encoding.induction_probe import repeated_sequences
    from attncli.engines.source import CorpusItem
    from attncli.trace.view import View

    if request.on is not None:
        from attncli.cli.cluster import check_on

        check_on(
            request, request.on, "--induction, which draws its tokens; drop one of them" if wanted.induction else None
        )
    if wanted.by is not None:
        request = replace(request, computed=replace(request.computed, sentences=_keeping(request, wanted.by)))
    texts = request.computed.sentences
    drawn = repeated_sequences(request.model) if wanted.induction else None
    twice = None if drawn is None else [CorpusItem(number, text) for number, text in enumerate(drawn, start=1)]
    answers = made_of(
        environment,
        request,
        Task(Surveying(View(queries=queries), wanted.induction, wanted.by), "all", values=False),
        texts=twice,
        jobs=jobs_of(context, request.jobs),
        on=request.on,
        dataset=dataset,
    )
    return followed_together(
        context,
        environment,
        answers,
        last_number(texts) if twice is None else len(twice),
        is_alone=is_alone(texts, request.from_),
        stops=request.fail_fast or wanted.induction,
    )


def _write_parts(
    context: typer.Context,
    environment: Environment,
    request: options.Stream,
    wanted: Wanted,
    queries: tuple[str, ...],
    folder: str,
) -> int:
    """Write what parts of the sentences say of the heads into a folder; return how many of them are bad."""
    from attncli.cli.datasets import made_by, writing
    from attncli.corpus.parts import Merged

    if wanted.merge:
        raise UsageError(f"--merge puts all into one file; give --output heads.parquet in place of {visible(folder)}")
    made = made_by("heads", request, query=",".join(queries) or None, by=wanted.by, induction=wanted.induction)
    with writing(environment, folder, Merged, made, request.computed.sentences.files) as dataset:
        answers = _measured(context, environment, request, wanted, queries, dataset)
        for _ in answers:
            pass
    return answers.failures


def _keeping(request: options.Stream, by: str) -> options.Sentences:
    """Return the sentences with what they are grouped by."""
    texts, corpus = request.computed.sentences, request.computed.sentences.corpus
    assert corpus is not None
    if by == "file" and len(corpus.files) > 1:
        return texts
    if not by or "," in by:
        raise UsageError(f"--by '{visible(by)}': expected one name of a field or a column, such as label")
    if unnamed := next((file for file in corpus.files if not corpus.has_names(file)), None):
        raise UsageError(
            f"--by does not apply to {visible(unnamed.name)}, which is text; it names a field of .jsonl, or a column "
            "of .csv, .tsv or .parquet"
        )
    return replace(texts, keep=by)


def _of_files(request: options.Stream) -> SurveyStates:
    """Return what the files and folders of the command line hold."""
    from attncli.corpus.dataset import opened_parts
    from attncli.formats.states import merged_files

    names = request.computed.sentences.text or []
    if not names:
        raise UsageError("--merge: give files that attn heads -o FILE.parquet has written, or folders of their parts")
    files = (opened_parts(name) if os.path.isdir(name) or "://" in name else [(name, name)] for name in names)
    return merged_files(chain.from_iterable(files))


def _draw(
    found: Sequence[Survey],
    wanted: Wanted,
    canvas: Terminal | PictureFile,
    palette: Palette,
    precision: int | None,
) -> None:
    from attncli.render.heads import HeadTable, grid_parts, table_parts

    parts: list[RenderableType] = []
    for survey in found:
        if wanted.grid is not None:
            parts += grid_parts(survey, wanted.grid, palette, canvas.width, precision)
            continue
        lines = canvas.height if wanted.top is None else None
        share = None if lines is None else max(lines // len(found) - 1, _FEWEST_LINES)
        shown = HeadTable(wanted.order, wanted.label, precision, share, wanted.spread or "std")
        parts += table_parts(survey, shown, palette, canvas.table_width)
    canvas.show(parts, found[0].source.title)
