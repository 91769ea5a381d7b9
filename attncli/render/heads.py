"""The metrics of heads as a person reads them: a row a head, or layers × heads as a map of one metric."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.text import Text

from attncli.analysis.heads import HeadSummary, Survey
from attncli.analysis.metric_names import NAMES, Metric
from attncli.render.axes import Axis
from attncli.render.block import Block, beside, block, cell, flowing, stack
from attncli.render.heatmap import COMFORTABLE, ramp_line
from attncli.render.matrix import DIGITS, number_text
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.render.screen import LINES
from attncli.render.summaries import architecture_of, joined, numbers_of, title_of
from attncli.render.tables import Cell, Column, table, width_of
from attncli.text import counted, span

UNDEFINED = "–"
_NAMED = 3  # highest and lowest heads in words, below a map


def table_parts(
    survey: Survey, sort: Metric | None, palette: Palette, width: int | None, precision: int | None
) -> Iterator[RenderableType]:
    """Yield what ran, a row for every head, and what the numbers are over.

    Args:
        survey: the heads, in the order in which they are shown.
        sort: the metric that stands first; None keeps the order of `NAMES`.
        palette: how words look.
        width: cells in a line; None is as many as it takes.
        precision: digits after the point; None is as many, 4 to 2, as let the table stand in one piece.
    """
    yield _headline(survey, palette)
    names: list[Metric] = sorted(NAMES, key=lambda name: name != sort)
    digits = range(DIGITS, 1, -1) if precision is None else [precision]
    defined = {name for name in names if name == sort or _is_defined(survey, name)}
    drawn, shown = _fitting([_columns(survey, names, sort, palette, each) for each in digits], defined, width)
    yield drawn
    if notes := _notes(survey, names, shown, sort):
        yield Text(palette.fit("; ".join(notes)), DIM)


def _headline(survey: Survey, palette: Palette) -> Text:
    source, shown = survey.source, len(survey.heads)
    facts = architecture_of(source)
    facts += [counted(source.layers, "layer")] if source.layers > 1 else []
    facts += [f"{shown} of " * (shown < survey.measured) + counted(survey.measured, "head")]
    facts += [f"mask {' and '.join(survey.masks)}", *numbers_of(source)]
    facts += [f"{counted(survey.sentences, 'sentence')} of {span(*survey.tokens)} token{'s' * (survey.tokens[1] > 1)}"]
    return joined(title_of(source), facts, palette)


def _columns(
    survey: Survey, names: Sequence[Metric], sort: Metric | None, palette: Palette, digits: int
) -> list[Column]:
    """Return where each head is, and a column of numbers for each name."""
    kinds = {head.kind for head in survey.heads}
    longest = max(map(len, kinds)) if kinds != {"self"} else 0

    def place(layer: object, kind: str, head: object) -> str:
        """Return where a head is as one word, which stands at the left of every piece of a folded table."""
        return f"{layer:>5}  {kind:<{longest}}  {head:>4}" if longest else f"{layer:>5}  {head:>4}"

    places = [place(head.layer, head.kind, head.head) for head in survey.heads]
    columns = [Column(place("layer", "kind", "head"), places, BOLD)]
    for name in names:
        texts = [palette.fit(_written(head, name, survey.sentences > 1, digits)) for head in survey.heads]
        columns.append(Column(name, texts, BOLD if name == sort else None, title_style=BOLD if name == sort else DIM))
    return columns


# What tells heads apart comes first; the last ones are the first to go.
_BY_USE: tuple[Metric, ...] = (
    "entropy", "sink", "previous", "induction", "self", "next", "special", "duplicate", "distance", "max_weight",
    "effective_keys", "max_score",
)  # fmt: skip


def _fitting(tables: Sequence[list[Column]], defined: Collection[str], width: int | None) -> tuple[Block, list[str]]:
    """Return a table as wide as the output, and the names of the metrics that it shows.

    Metrics that no head has go first. What is still too wide is folded, as long as all pieces stand on one screen;
    of more lines than that nobody could say to which one a number belongs, so that columns go.

    Args:
        tables: the columns, with ever fewer digits; what they are sorted by comes first of the metrics.
        defined: the names of the metrics that stay as long as there is room.
        width: cells in a line; None is as many as it takes.
    """

    def drawn(columns: list[Column]) -> tuple[Block, list[str]]:
        return table(columns, width), [column.title for column in columns[1:]]

    def fits(columns: Sequence[Column]) -> bool:
        return width is None or width_of(columns) - 2 <= width

    known = [[columns[0], *(column for column in columns[1:] if column.title in defined)] for columns in tables]
    for columns in (*tables, *known):
        if fits(columns):
            return drawn(columns)
    folded = min((drawn(columns) for columns in known), key=lambda one: len(one[0].lines))
    if len(folded[0].lines) <= LINES:
        return folded
    by_name = {column.title: column for column in known[-1]}
    kept = known[-1][:2]
    for name in _BY_USE:
        if name in by_name and by_name[name] not in kept and fits([*kept, by_name[name]]):
            kept.append(by_name[name])
    names = {column.title for column in kept}
    shown = [[column for column in columns if column.title in names] for columns in known]
    return drawn(next(filter(fits, shown), shown[-1]))


def _is_defined(survey: Survey, name: Metric) -> bool:
    return any(head.metrics[name] is not None for head in survey.heads)


def _written(head: HeadSummary, name: Metric, has_several: bool, digits: int) -> str:
    mean, std = head.metrics[name], head.std[name]
    if mean is None:
        return UNDEFINED
    text = number_text(mean, digits)
    if not has_several:
        return text
    return f"{text} ±{UNDEFINED if std is None else number_text(std, digits)}"


def _notes(survey: Survey, names: Sequence[Metric], shown: Sequence[str], sort: Metric | None) -> list[str]:
    """Return what the numbers are over, where that is not plain, and what the table has no room for."""
    notes = []
    if sort is not None and not _is_defined(survey, sort):
        notes.append(
            f"no head is ranked: {sort} is not defined for {'this' if survey.sentences == 1 else 'any'} sentence"
        )
    left_out = [name for name in names if name not in shown]
    unknown = [name for name in left_out if not _is_defined(survey, name)]
    if unknown and survey.sentences == 1:
        notes.append(f"{', '.join(unknown)} not defined for this sentence")
    if more := [name for name in left_out if name not in unknown]:
        notes.append(f"no room for {', '.join(more)}; -F tsv has them, --sort brings one to the front")
    if survey.sentences == 1:
        is_undefined = any(head.metrics[name] is None for head in survey.heads for name in names if name in shown)
        return [*notes, *[f"{UNDEFINED} not defined for this sentence"] * is_undefined]
    notes.append(f"mean ± standard deviation over {survey.sentences:,} sentences")
    fewer: dict[str, list[str]] = {}
    for name in names:
        counts = [head.counts[name] for head in survey.heads]
        if min(counts) < survey.sentences:
            fewer.setdefault(span(min(counts), max(counts)), []).append(name)
    for count, found in fewer.items():
        where = "none of them" if count == "0" else f"the {count} in which it is defined"
        notes.append(f"{', '.join(found)} over {where}")
    return notes


# --- the map -----------------------------------------------------------------------------------------------


def grid_parts(
    survey: Survey, metric: Metric, palette: Palette, width: int | None, precision: int | None
) -> Iterator[RenderableType]:
    """Yield what ran, one map of layers × heads for each kind of attention, and the heads at both ends."""
    yield _headline(survey, palette)
    title = metric if survey.sentences == 1 else f"{metric}, mean over {survey.sentences:,} sentences"
    defined = replace(survey, heads=tuple(head for head in survey.heads if head.metrics[metric] is not None))
    values = np.array([head.metrics[metric] for head in defined.heads], float)
    finite = values[np.isfinite(values)]
    scale = Scale(float(finite.min()), float(finite.max())) if finite.size else Scale(0.0, 0.0)
    ramp = [ramp_line(scale, palette)] if finite.size else []
    marks = {
        f"{UNDEFINED} not defined": len(values) < len(survey.heads),
        "0 exactly zero": bool((values == 0).any()),
        "I infinite": bool(np.isinf(values).any()),
    }
    said = [[Segment(palette.fit(mark), DIM)] for mark, is_there in marks.items() if is_there]
    yield flowing([[Segment(title, BOLD)], *ramp, *said], width)
    for kind in dict.fromkeys(head.kind for head in survey.heads):
        heads = [head for head in survey.heads if head.kind == kind]
        name = kind if len(heads) < len(survey.heads) else ""
        map_ = _map(heads, metric, scale, palette, width or COMFORTABLE, 2 if precision is None else precision)
        yield stack([block([[Segment(name, BOLD)]]), map_]) if name else map_
    if defined.heads:
        yield _ends(defined, metric, palette, width, DIGITS if precision is None else precision)


def _map(heads: Sequence[HeadSummary], metric: Metric, scale: Scale, palette: Palette, room: int, digits: int) -> Block:
    """Return layers × heads of one kind of attention, in strips of as many heads as there is room for.

    In colour a cell is its number, where all of them fit.
    """
    found = {(head.layer, head.head): head.metrics[metric] for head in heads}
    layers, columns = sorted({layer for layer, _ in found}), sorted({head for _, head in found})
    values = np.array([[found.get((layer, head)) for head in columns] for layer in layers], float)
    texts = [[number_text(value, digits) for value in row] for row in values]
    names: list[Cell] = [("head", DIM), *((f"layer {layer}", None) for layer in layers)]
    margin = max(len(text) for text, _ in names) + 1
    longest = max(len(text) for row in texts for text in row) + 1
    widths = (longest, 2) if palette.has_color else (2,)
    width = next((width for width in widths if margin + width * len(columns) <= room), 1)
    cells = palette.cells(values, ~np.isnan(values), scale, min(width, 2))

    def drawn(row: int, column: int) -> Segment:
        """Return a cell: its number or its colour, the mark of an undefined one, or nothing where there is no head."""
        glyph, style = cells[row][column]
        text = texts[row][column] if width > 2 else glyph
        if np.isnan(values[row, column]):
            text = palette.fit(UNDEFINED) if (layers[row], columns[column]) in found else ""
        return cell(text, width, style)

    per_strip = max((room - margin) // width, 1)
    labels = Block([[cell(text, margin, style, "left")] for text, style in names], margin)
    strips = []
    for start in range(0, len(columns), per_strip):
        places = range(start, min(start + per_strip, len(columns)))
        shown = tuple(columns[place] for place in places)
        if width > 2:
            header = [cell(str(head), width, DIM) for head in shown]
        else:
            header = Axis(tuple(map(str, shown)), shown).ticks(width, palette)
        lines = [[drawn(row, place) for place in places] for row in range(len(layers))]
        strips.append(beside([labels, block([header, *lines])], 0))
    return stack(strips)


def _ends(survey: Survey, metric: Metric, palette: Palette, width: int | None, digits: int) -> Block:
    """Return the heads with the highest and the lowest values, in words."""
    parts = []
    has_kinds = len({head.kind for head in survey.heads}) > 1
    for title, reverse in (("highest", False), ("lowest", True)):
        parts.append([Segment(f"{title:<7}", BOLD)])
        for head in survey.ranked(metric, reverse=reverse, top=_NAMED).heads:
            where = f"{head.kind} " * has_kinds + f"layer {head.layer} head {head.head}"
            parts.append([Segment(palette.fit(f"{where}: {_written(head, metric, survey.sentences > 1, digits)}"))])
    middle = len(parts) // 2
    return stack([flowing(parts[:middle], width), flowing(parts[middle:], width)])
