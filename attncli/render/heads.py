"""The metrics of heads as a person reads them: a row a head, or layers × heads as a map of one metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.text import Text

from attncli.analysis.heads import HeadReport, HeadSummary
from attncli.analysis.labels import LEAST, MIXED
from attncli.analysis.metric_names import Metric
from attncli.render.block import COMFORTABLE, Block, Column, block, flowing, stack, table, width_of
from attncli.render.fit import LINES, fit_rows
from attncli.render.head_map import UNDEFINED, HeadMap, scale_of
from attncli.render.legend import ramp_line
from attncli.render.matrix import DIGITS, number_text
from attncli.render.palette import BOLD, DIM, Palette
from attncli.render.sections import architecture_of, cautioned, joined, numbers_of
from attncli.text import plural, span

_NAMED = 3  # highest and lowest heads in words, below a map
# What tells heads apart comes first; the last ones are the first to go.
_BY_USE = (
    "label", "score", "baseline", "gain", "also", "induction_head", "previous_token_head", "duplicate_token_head",
    "entropy", "sink", "previous", "induction", "self", "next", "special", "separator", "duplicate", "distance",
    "max_weight", "effective_keys", "max_score",
)  # fmt: skip


class HeadTable(NamedTuple):
    """What a table has of the heads.

    Attributes:
        sort: the metric that stands first; None keeps the order of the survey's names.
        has_labels: whether it says what the heads do, in words.
        precision: digits after the point; None is as many, 4 to 2, as let the table stand in one piece.
        lines: of the screen that it is to fit, with all around it; None shows every head.
    """

    sort: Metric | None = None
    has_labels: bool = False
    precision: int | None = None
    lines: int | None = None

    @property
    def by_label(self) -> bool:
        """Whether the heads of one label stand beside each other."""
        return self.has_labels and self.sort is None


def table_parts(survey: HeadReport, shown: HeadTable, palette: Palette, width: int | None) -> list[RenderableType]:
    """Return what ran, a row for every head, and what the numbers are over."""

    def lines_of(parts: Sequence[RenderableType]) -> int:
        """Return how many lines of a screen parts take, with a blank line between them."""
        lines = len(parts) - 1
        for part in parts:
            if isinstance(part, Block):
                lines += len(part.lines)
            else:
                texts = str(part).split("\n")
                lines += len(texts) if width is None else sum(max(len(wrap(text, width)), 1) for text in texts)
        return lines

    lines, every = shown.lines, len(survey.heads)
    whole = _parts(survey, shown, palette, width, LINES if lines is None else lines)
    if lines is None or lines_of(whole) <= lines:
        return whole

    def some(rows: int) -> list[RenderableType]:
        first = replace(survey, heads=survey.heads[:rows])
        if rows < every and shown.by_label:  # some of each label
            cuts = (survey.by_label(top) for top in range(rows, 0, -1))
            first = next((cut for cut in cuts if len(cut.heads) <= rows), survey.by_label(1))
        return _parts(first, shown, palette, width, 0, rows < every)

    return fit_rows(some, every, lines, lines_of)


def _parts(
    survey: HeadReport, shown: HeadTable, palette: Palette, width: int | None, most: int, is_cut: bool = False
) -> list[RenderableType]:
    """Return the parts of a table, which may be folded as long as it has so many lines at the most."""
    names: list[Metric] = sorted(survey.names, key=lambda name: name != shown.sort)
    if shown.sort is not None and shown.sort not in names:
        names.insert(0, shown.sort)
    columns = _fitting(survey, names, shown, palette, width, most)
    titles = [column.title for column in columns[1:]]
    notes = _notes(survey, names, titles, shown)
    if is_cut:
        some = f"{len(survey.heads)} of {plural(survey.measured, 'head')}"
        which = f"{some}, the strongest of each label" if shown.by_label else f"the first {some}"
        notes.insert(0, f"one screen: {which}; --all shows the rest")
    parts: list[RenderableType] = [_headline(survey, palette), table(columns, width)]
    return [*parts, Text(palette.fit("; ".join(notes)), DIM)] if notes else parts


def _headline(survey: HeadReport, palette: Palette) -> Text:
    source, shown = survey.source, len(survey.heads)
    facts = [*architecture_of(source)]
    facts += [plural(source.layers, "layer")] if source.layers > 1 else []
    facts += [f"{shown} of " * (shown < survey.measured) + plural(survey.measured, "head")]
    facts += [f"mask {' and '.join(survey.masks)}", *numbers_of(source)]
    what = "sequence" if survey.is_test else "sentence"
    facts += [f"{plural(survey.sentences, what)} of {span(*survey.tokens)} token{'s' * (survey.tokens[1] > 1)}"]
    facts += ["random tokens twice"] * survey.is_test
    return cautioned(joined(source.title, facts, palette), [source], palette)


def _fitting(
    survey: HeadReport, names: Sequence[Metric], shown: HeadTable, palette: Palette, width: int | None, lines: int
) -> list[Column]:
    """Return the columns of a table as wide as the output, with as many digits as that lets them have.

    Metrics that no head has go first. What is still too wide is folded, as long as all pieces stand on one screen;
    of more lines than that nobody could say to which one a number belongs, so that columns go.
    """

    def fits(columns: Sequence[Column]) -> bool:
        return width is None or width_of(columns) - 2 <= width

    def of(tables: Sequence[list[Column]], titles: set[str]) -> list[list[Column]]:
        return [[column for column in columns if column.title in titles] for columns in tables]

    digits = range(DIGITS, 1, -1) if shown.precision is None else [shown.precision]
    tables = [_columns(survey, names, shown, palette, each) for each in digits]
    empty = {name for name in names if name != shown.sort and not _is_defined(survey, name)}
    defined = of(tables, {column.title for column in tables[0]} - empty)
    for columns in (*tables, *defined):
        if fits(columns):
            return columns
    folded = min(defined, key=lambda columns: len(table(columns, width).lines))
    if len(table(folded, width).lines) <= lines:
        return folded
    by_name = {column.title: column for column in defined[-1]}
    chosen = defined[-1][:2]
    for name in _BY_USE:
        if name in by_name and by_name[name] not in chosen and fits([*chosen, by_name[name]]):
            chosen.append(by_name[name])
    narrow = of(defined, {column.title for column in chosen})
    return next(filter(fits, narrow), narrow[-1])


def _columns(
    survey: HeadReport, names: Sequence[Metric], shown: HeadTable, palette: Palette, digits: int
) -> list[Column]:
    """Return where each head is, what it does in words if that is shown, and a column of numbers for each name."""
    kinds = {head.kind for head in survey.heads}
    longest = max(map(len, kinds)) if kinds != {"self"} else 0

    def place(layer: object, kind: str, head: object) -> str:
        """Return where a head is as one word, which stands at the left of every piece of a folded table."""
        return f"{layer:>5}  {kind:<{longest}}  {head:>4}" if longest else f"{layer:>5}  {head:>4}"

    places = [place(head.layer, head.kind, head.head) for head in survey.heads]
    columns = [Column(place("layer", "kind", "head"), places, BOLD)]
    columns += _label_columns(survey, digits) if shown.has_labels else []
    for name in names:
        texts = [palette.fit(_number(head, name, survey.sentences > 1, digits)) for head in survey.heads]
        style = BOLD if name == shown.sort else None
        columns.append(Column(name, texts, style, title_style=style or DIM))
    return columns


def _label_columns(survey: HeadReport, digits: int) -> Iterator[Column]:
    """Yield the strongest label of each head, the numbers that it follows from, and the other labels."""
    first = [head.labels[0] if head.labels else None for head in survey.heads]
    styles = [DIM if label is None else BOLD for label in first]
    yield Column("label", [MIXED if label is None else label.name for label in first], styles, "<")
    for title, style in (("score", None), ("baseline", DIM), ("gain", None)):
        numbers = ["" if label is None else number_text(getattr(label, title), digits) for label in first]
        yield Column(title, numbers, style)
    others = [
        ", ".join(f"{label.name} {number_text(label.score, digits)}" for label in head.labels[1:])
        for head in survey.heads
    ]
    if any(others):
        yield Column("also", others, DIM, "<")


def _is_defined(survey: HeadReport, name: Metric) -> bool:
    return any(head.metrics[name] is not None for head in survey.heads)


def _number(head: HeadSummary, name: Metric, has_several: bool, digits: int) -> str:
    mean, std = head.metrics[name], head.std[name]
    if mean is None:
        return UNDEFINED
    spread = f" ±{UNDEFINED if std is None else number_text(std, digits)}" if has_several else ""
    return number_text(mean, digits) + spread


def _notes(survey: HeadReport, names: Sequence[Metric], titles: Sequence[str], shown: HeadTable) -> list[str]:
    """Return what the numbers are over, where that is not plain, and what the table has no room for."""
    notes = _label_notes(survey) if shown.has_labels else []
    is_one = survey.sentences == 1
    if shown.sort is not None and not _is_defined(survey, shown.sort):
        notes.append(f"no head is ranked: {shown.sort} is not defined for {'this' if is_one else 'any'} sentence")
    left_out = [name for name in names if name not in titles]
    unknown = [name for name in left_out if not _is_defined(survey, name)]
    if unknown and is_one:
        notes.append(f"{', '.join(unknown)} not defined for this sentence")
    if more := [name for name in left_out if name not in unknown]:
        notes.append(f"no room for {', '.join(more)}; -F tsv has them, --metrics chooses")
    if is_one:
        is_undefined = any(head.metrics[name] is None for head in survey.heads for name in names if name in titles)
        return [*notes, *[f"{UNDEFINED} not defined for this sentence"] * is_undefined]
    if names:
        notes.append(f"mean ± standard deviation over {_over(survey)}")
    fewer: dict[str, list[str]] = {}
    for name in names:
        counts = [head.counts[name] for head in survey.heads]
        if min(counts) < survey.sentences:
            fewer.setdefault(span(min(counts), max(counts)), []).append(name)
    for count, found in fewer.items():
        where = "none of them" if count == "0" else f"the {count} in which it is defined"
        notes.append(f"{', '.join(found)} over {where}")
    return notes


def _over(survey: HeadReport) -> str:
    return f"{survey.sentences:,} {'sequences' if survey.is_test else 'sentences'}"


def _label_notes(survey: HeadReport) -> list[str]:
    """Return how a label is given, and what its numbers are where they are no weights."""
    notes = [
        "gain: share of the way from the baseline, a head that weighs all allowed keys alike, to the best head; "
        f"labels from {LEAST:g}"
    ]
    names = {label.name for head in survey.heads for label in head.labels}
    units = [unit for name, unit in (("local", "local in positions"), ("broad", "broad in keys")) if name in names]
    notes += [f"scores: {', '.join(units)}, else weights"] if units else []
    is_trained = survey.source.kind == "pretrained"
    if names & {"same token", "induction"} and not survey.is_test:
        test = "; --induction tests them" if is_trained else ""
        notes.append(f"same token and induction rest on the few tokens that come twice{test}")
    elif is_trained and not survey.is_test:
        notes.append("--induction looks for induction heads, on random tokens that come twice")
    return notes


# --- the map -----------------------------------------------------------------------------------------------


def grid_parts(
    survey: HeadReport, metric: Metric, palette: Palette, width: int | None, precision: int | None
) -> Iterator[RenderableType]:
    """Yield what ran, one map of layers × heads for each kind of attention, and the heads at both ends."""
    yield _headline(survey, palette)
    numbers: dict[str, dict[tuple[int, int], float | None]] = {}
    for head in survey.heads:
        numbers.setdefault(head.kind, {})[head.layer, head.head] = head.metrics[metric]
    maps = {kind: HeadMap.of(own) for kind, own in numbers.items()}
    scale = scale_of(maps.values())
    values = np.concatenate([one.values[one.shown] for one in maps.values()])
    title = metric if survey.sentences == 1 else f"{metric}, mean over {_over(survey)}"
    marks = {
        f"{UNDEFINED} not defined": len(values) < len(survey.heads),
        "0 exactly zero": bool((values == 0).any()),
        "I infinite": bool(np.isinf(values).any()),
    }
    notes = [[Segment(palette.fit(mark), DIM)] for mark, is_there in marks.items() if is_there]
    yield flowing(
        [[Segment(title, BOLD)], *[ramp_line(scale, palette)] * bool(np.isfinite(values).any()), *notes], width
    )
    digits, room = 2 if precision is None else precision, width or COMFORTABLE
    for kind, map_ in maps.items():
        # In strips of as many heads as there is room for; in colour a cell is its number, where all of them fit.
        names = ["head", *(f"layer {layer}" for layer in map_.layers)]
        margin, every = max(map(len, names)) + 1, len(map_.heads)
        widths = (map_.widest(digits), 2) if palette.has_color else (2,)
        cell = next((each for each in widths if margin + each * every <= room), 1)
        step, rows = max((room - margin) // cell, 1), range(len(map_.layers))
        strips = (range(start, min(start + step, every)) for start in range(0, every, step))
        drawn = [map_.drawn(rows, strip, cell, names, scale, palette, digits) for strip in strips]
        yield stack([*[block([[Segment(kind, BOLD)]])] * (len(maps) > 1), *drawn])
    if values.size:
        defined = replace(survey, heads=tuple(head for head in survey.heads if head.metrics[metric] is not None))
        lines = []
        for title, reverse in (("highest", False), ("lowest", True)):
            parts = [[Segment(f"{title:<7}", BOLD)]]
            for head in defined.ranked(metric, reverse=reverse, top=_NAMED).heads:
                where = f"{head.kind} " * (len(maps) > 1) + f"layer {head.layer} head {head.head}"
                number = _number(head, metric, survey.sentences > 1, DIGITS if precision is None else precision)
                parts.append([Segment(palette.fit(f"{where}: {number}"))])
            lines.append(flowing(parts, width))
        yield stack(lines)
