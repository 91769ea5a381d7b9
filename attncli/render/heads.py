"""The heads as a person reads them: what each one does on a grid, metrics as maps, or a row of numbers a head."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attncli.analysis.heads import HeadReport, HeadSummary
from attncli.analysis.labels import CHANCE_CELLS, LABELS, LEAST, LEAST_OF_PLACE, MIXED, WEIGHTS
from attncli.analysis.metric_names import MEANINGS, UNITS, Metric
from attncli.render.axes import Axis
from attncli.render.block import (
    COMFORTABLE,
    Block,
    Column,
    block,
    cell,
    flowing,
    grid,
    hstack,
    in_words,
    stack,
    table,
    trimmed,
    width_of,
)
from attncli.render.fit import LINES, lines_of
from attncli.render.head_map import UNDEFINED, HeadMap, TitledMap, scale_of, side_by_side
from attncli.render.legend import ramp_line
from attncli.render.matrix import DIGITS, number_text
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.render.sections import run_line
from attncli.text import plural, span

_CELLS = (14, 10, 6, 3, 2)  # characters of a head on the grid of labels, the largest that fits
_SHORT = {
    "previous": "prev", "duplicate": "dup", "induction": "ind", "separator": "sep", "localization": "place",
    "visual sink": "vsink",
}  # fmt: skip
# Where another label begins with the same letter.
_LETTERS = {"sink": "k", "separator": "e", "localization": "o", "mixed": "·"}
# Below the labels.
_MAPS: tuple[Metric, ...] = ("previous", "induction", "sink", "self", "duplicate", "entropy")
_PICTURE_MAPS: tuple[Metric, ...] = ("region", "image", "visual_sink", "sink", "self", "spatial_entropy")
_LABEL_UNITS = {"local": " positions", "broad": " keys"}
_STRONGEST, _NARROWEST = 19, 34  # cells of the names of heads, and of all of a table of labels
_GAP = 3
_MOST_LINES = 4  # of the heads of one label
# What tells heads apart comes first; the last ones are the first to go.
_BY_USE = (
    "entropy", "sink", "previous", "induction", "self", "next", "special", "separator", "duplicate",
    "image", "region", "visual_sink", "spatial_entropy", "distance", "max_weight", "effective_keys", "max_score",
)  # fmt: skip


def head_parts(
    report: HeadReport,
    metrics: Sequence[Metric],
    palette: Palette,
    width: int | None,
    height: int | None = None,
    precision: int | None = None,
) -> list[RenderableType]:
    """Return what the heads do, in one screen: their labels, or maps of layers × heads of some metrics."""
    room, columns = height or LINES, width or COMFORTABLE
    headline = _headline(report, palette)
    room -= lines_of([headline], columns)
    if metrics:
        meanings = block([Segment(f"{name}: {MEANINGS[name]}", DIM)] for name in metrics)
        legend = _legend(report, metrics, palette, width)
        maps = _maps(report, metrics, palette, columns, room - len(meanings.lines) - len(legend.lines) - 2, precision)
        return [headline, *[legend] * bool(legend.lines), stack(maps, gap=1), meanings]
    longest = _label_note(report, ("weight", "uniform", "gain"))
    room -= len(in_words(longest, columns)) + 1
    labels, titles = _labels(report, palette, columns, room)
    note = block([Segment(line, DIM)] for line in in_words(_label_note(report, titles), columns))
    parts: list[RenderableType] = [headline, labels, note]
    few = [name for name in (_PICTURE_MAPS if _has_pictures(report) else _MAPS) if _is_defined(report, name)]
    if len(report.heads) > 1 and few:
        legend = _legend(report, few, palette, width)
        room -= len(labels.lines) + len(legend.lines) + 2
        maps = _maps(report, few, palette, columns, room, precision)
        shown = [line for place, line in enumerate(maps) if len(stack(maps[: place + 1], gap=1).lines) <= room]
        parts += [legend, stack(shown, gap=1)] if shown else []
    return parts


def _headline(report: HeadReport, palette: Palette) -> Text:
    shown = len(report.heads)
    heads = f"{shown} of " * (shown < report.measured) + plural(report.measured, "head")
    what = "sequence" if report.is_test else "sentence"
    texts = f"{plural(report.sentences, what)} of {span(*report.tokens)} token{'s' * (report.tokens[1] > 1)}"
    return run_line(report, heads, [texts, *["random tokens twice"] * report.is_test], palette)


def _name(head: HeadSummary, report: HeadReport) -> str:
    """Return a head as `--head` takes it, behind its kind where there are several."""
    several = len({each.kind for each in report.heads}) > 1
    return f"{head.kind} " * several + f"L{head.layer}H{head.head}"


def _by_kind(report: HeadReport) -> dict[str, list[HeadSummary]]:
    found: dict[str, list[HeadSummary]] = {}
    for head in report.heads:
        found.setdefault(head.kind, []).append(head)
    return found


# --- labels ---


def _labels(report: HeadReport, palette: Palette, width: int, lines: int) -> tuple[Block, list[str]]:
    """Return the grid of labels beside or above the table that explains them, and the titles of the table's columns.

    It is the largest grid with which both fit. Beside it, the table may have as many lines.
    """
    smallest: tuple[Block, list[str]] | None = None
    for size in (*_CELLS, 1):
        if size == 1 and not palette.has_color:
            break
        drawn = _grid(report, size, palette)
        beside = width - drawn.width - _GAP
        for room, is_beside in ((width, False), (beside, True)):
            if drawn.width > width or room < _NARROWEST:
                continue
            explained, titles = _label_table(report, palette, room, len(drawn.lines) if is_beside else 0)
            both = hstack([drawn, explained], _GAP) if is_beside else stack([drawn, explained], gap=1)
            if len(both.lines) <= lines:
                return both, titles
            smallest = (both, titles) if smallest is None or len(both.lines) < len(smallest[0].lines) else smallest
    return smallest or _label_table(report, palette, width, 0)


def _grid(report: HeadReport, size: int, palette: Palette) -> Block:
    """Return layers × heads, each on the colour of its label; of size 1, two layers share a line."""
    grids = []
    kinds = _by_kind(report)
    for kind, heads in kinds.items():
        at = {(head.layer, head.head): head for head in heads}
        layers, columns = (sorted({place[axis] for place in at}) for axis in (0, 1))
        margin = max(len(f"L{layer}") for layer in layers) + 1
        if size > len("H10"):
            header = [cell(f"H{head}", size, DIM, "left") for head in columns]
        else:
            header = Axis(("",) * len(columns), tuple(columns)).ticks(size, palette)
        lines = [[Segment(" " * margin), *header]]
        for row in range(0, len(layers), 1 if size > 1 else 2):
            if size > 1:
                cells = [_labelled(at.get((layers[row], head)), size, palette) for head in columns]
            else:
                upper, lower = ([at.get((layer, head)) for head in columns] for layer in [*layers, -1][row : row + 2])
                cells = [_half(*pair, palette) for pair in zip(upper, lower, strict=True)]
            lines.append([cell(f"L{layers[row]}", margin, DIM, "left"), *cells])
        titled = [[Segment(kind, BOLD)]] if len(kinds) > 1 else []
        grids.append(block([*titled, *map(trimmed, lines)]))
    return stack(grids, gap=1)


def _labelled(head: HeadSummary | None, size: int, palette: Palette) -> Segment:
    """Return a head as its label, in as many letters as there is room for, and with the weight where that fits too."""
    if head is None:
        return Segment(" " * size)
    if not head.labels:
        return cell(" ·", size, DIM, "left")
    name, score, _, gain = head.labels[0]
    texts = (f"{name} {score:.2f}".replace("0.", "."),) * (name in WEIGHTS) + _shorter(name)
    text = next(text for text in texts if len(text) < size)
    return cell(f" {text}", size, palette.of_label(name, gain), "left")


def _label_of(head: HeadSummary) -> str:
    return head.labels[0].name if head.labels else MIXED


def _shorter(name: str) -> tuple[str, str, str]:
    return name, _SHORT.get(name, name), _LETTERS.get(name, name[0])


def _half(upper: HeadSummary | None, lower: HeadSummary | None, palette: Palette) -> Segment:
    labels = [head.labels[0] if head and head.labels else None for head in (upper, lower)]
    styles = [None if label is None else palette.of_label(label.name, label.gain) for label in labels]
    top, bottom = (None if style is None else style.bgcolor for style in styles)
    if top is None:
        return Segment(" ") if bottom is None else Segment("▄", Style(color=bottom))
    return Segment("▀", Style(color=top, bgcolor=bottom))


def _label_table(report: HeadReport, palette: Palette, room: int, lines: int) -> tuple[Block, list[str]]:
    """Return how many heads have each label and which, the strongest first, beside a uniform head; and its titles.

    Columns go as needed. The heads of each label take as many lines as all of the table may have.
    """
    groups = [(name, list(heads)) for name, heads in groupby(report.by_label().heads, _label_of)]
    first = [heads[0].labels[0] if heads[0].labels else None for _, heads in groups]
    weights, uniform, gains = (
        ["" if label is None else number_text(getattr(label, each), 2) for label in first]
        for each in ("score", "baseline", "gain")
    )
    weights = [f"{text}{_LABEL_UNITS.get(name, '')}" for text, (name, _) in zip(weights, groups, strict=True)]
    columns = [
        Column("", [f" {_shorter(name)[2]} " for name, _ in groups], [palette.of_label(name) for name, _ in groups]),
        Column("label", [name for name, _ in groups], BOLD, "<"),
        Column("heads", [str(len(heads)) for _, heads in groups]),
    ]
    more = [Column("weight", weights), Column("uniform", uniform, DIM), Column("gain", gains, DIM)]
    unlabelled = "nothing in particular" + ", or too short to tell" * bool(report.unsure)
    meanings = [LABELS.get(name, unlabelled) for name, _ in groups]
    more.append(Column("attends to", meanings, DIM, "<"))
    while more and width_of([*columns, *more]) + _STRONGEST > room:
        more.pop()
    left = room - width_of([*columns, *more])
    names = [[_name(head, report) for head in heads] for _, heads in groups]
    for most in range(min(max(lines, 1), _MOST_LINES), 0, -1):
        listed = [_wrapped(each, left, most, palette) for each in names]
        if sum(map(len, listed)) < lines:
            break
    columns += [Column("strongest", [each[0] for each in listed], None, "<"), *more]
    titles, *rows = zip(*(column.cells for column in columns), strict=True)
    drawn = [titles]
    for each, row in zip(listed, rows, strict=True):
        below = [[(name, None) if place == 3 else ("", None) for place in range(len(row))] for name in each[1:]]
        drawn += [row, *map(tuple, below)]
    shown = [column.title for column in columns]
    return grid(drawn, "".join(column.align for column in columns), room), shown


def _wrapped(names: Sequence[str], room: int, most: int, palette: Palette) -> list[str]:
    """Return names in lines, and an ellipsis where so many lines have no room for all of them."""
    lines: list[str] = []
    while names:
        shown = next(
            count for count in range(len(names), 0, -1) if count == 1 or len(" ".join(names[:count])) <= room - 2
        )
        is_last = len(lines) == most - 1
        lines.append(" ".join([*names[:shown], *["…"] * (is_last and shown < len(names))]))
        names = [] if is_last else names[shown:]
    return lines


def _label_note(report: HeadReport, titles: Sequence[str]) -> str:
    """Return what the numbers of a table with these columns mean, and what shows more."""
    meanings = {
        "weight": "weight: of the strongest head.",
        "uniform": "uniform: of uniform attention.",
        "gain": "gain: 0 = uniform, 1 = perfect.",
    }
    notes = [meaning for title, meaning in meanings.items() if title in titles]
    of_place = f", and localization {LEAST_OF_PLACE:g}" * _has_pictures(report)
    notes.append(f"A label needs a gain of {LEAST:g} over uniform attention{of_place}.")
    if report.unsure:
        notes.append(f"{_too_short(report)}.".capitalize())
    if report.sentences > 1:
        notes.append(f"Numbers are means over {_over(report)}.")
    if _has_pictures(report):
        notes.append("--pairs FILE tests which heads find the right place.")
    elif report.source.kind == "pretrained" and not report.is_test:
        notes.append("--induction tests for induction heads on repeated random tokens.")
    return " ".join([*notes, "--all lists every number."])


def _too_short(report: HeadReport) -> str:
    return (
        f"no label for {plural(report.unsure, 'head')}: on {CHANCE_CELLS} cells (query rows × keys) or fewer it may be "
        "chance; give a longer text, or several"
    )


# --- maps of metrics ---


def _maps(
    report: HeadReport, names: Sequence[Metric], palette: Palette, width: int, lines: int, precision: int | None
) -> list[Block]:
    """Return a map of layers × heads for each metric, side by side, in the largest cells with which all of them fit."""
    found = [
        (name, kind, HeadMap.of({(head.layer, head.head): head.metrics[name] for head in heads}))
        for name in names
        for kind, heads in _by_kind(report).items()
    ]
    several = len({kind for _, kind, _ in found}) > 1
    maps = [
        TitledMap(
            name + f" · {kind}" * several,
            _range(name, one),
            one,
            _scale(name, [each for own, _, each in found if own == name]),
        )
        for name, kind, one in found
    ]
    return side_by_side(maps, palette, width, lines, 2 if precision is None else precision)


def _scale(name: Metric, maps: Sequence[HeadMap]) -> Scale:
    """Return the colours of a metric: of a weight they end at 1, of anything else at the largest number."""
    return scale_of(maps) if name in UNITS else Scale.up_to(1.0, "sqrt")


def _range(name: Metric, one: HeadMap) -> str:
    finite = one.values[np.isfinite(one.values)]
    if not finite.size:
        return f"{UNDEFINED} not defined"
    return "–".join(number_text(end, 2) for end in (finite.min(), finite.max())) + f" {UNITS.get(name, '')}"


def _legend(report: HeadReport, names: Sequence[Metric], palette: Palette, width: int | None) -> Block:
    """Return what the colours of weights mean; the range of any other metric stands in its title."""
    parts = []
    if not set(names) <= set(UNITS):
        title = "mean weight" + f" over {_over(report)}" * (report.sentences > 1)
        parts = [[Segment(title, BOLD), Segment("  "), *ramp_line(Scale.up_to(1.0, "sqrt"), palette, width)]]
    values = [head.metrics[name] for head in report.heads for name in names]
    marks = {f"{UNDEFINED} not defined": None in values, "0 exactly zero": 0 in values, "I infinite": np.inf in values}
    parts += [[Segment(mark, DIM)] for mark, is_there in marks.items() if is_there]
    return flowing(parts, width)


def _over(report: HeadReport) -> str:
    return f"{report.sentences:,} {'sequences' if report.is_test else 'sentences'}"


# --- the table ---


def table_parts(
    report: HeadReport, sort: Metric | None, palette: Palette, width: int | None, precision: int | None = None
) -> list[RenderableType]:
    """Return what ran, a row for every head, and what the numbers are over.

    The metric that heads are ranked by stands first. Without a precision, numbers have as many digits, 4 to 2, as let
    all columns stand in one line.
    """
    names: list[Metric] = sorted(report.names, key=lambda name: name != sort)
    if sort is not None and sort not in names:
        names.insert(0, sort)
    columns = _fitting(report, names, sort, palette, width, precision)
    notes = _notes(report, names, [column.title for column in columns], sort)
    parts: list[RenderableType] = [_headline(report, palette), table(columns, width)]
    return [*parts, Text("; ".join(notes), DIM)] if notes else parts


def _fitting(
    report: HeadReport,
    names: Sequence[Metric],
    sort: Metric | None,
    palette: Palette,
    width: int | None,
    precision: int | None,
) -> list[Column]:
    """Return as many columns as fit the width, those first that tell most, with as many digits as they leave room for.

    Metrics that no head has are left out.
    """
    shown = [name for name in names if name == sort or _is_defined(report, name)]
    while True:
        for digits in range(DIGITS, 1, -1) if precision is None else [precision]:
            columns = _columns(report, shown, sort, palette, digits)
            if width is None or width_of(columns) - 2 <= width or len(shown) < 2:
                return columns
        shown.remove(max((name for name in shown if name != sort), key=_BY_USE.index))


def _columns(
    report: HeadReport, names: Sequence[Metric], sort: Metric | None, palette: Palette, digits: int
) -> list[Column]:
    """Return where each head is, what it does in a word, and a column of numbers for each name."""
    kinds = [head.kind for head in report.heads]
    columns = [Column("layer", [str(head.layer) for head in report.heads], BOLD)]
    columns += [Column("kind", kinds, None, "<")] * (set(kinds) != {"self"})
    columns += [Column("head", [str(head.head) for head in report.heads], BOLD)]
    first = [head.labels[0] if head.labels else None for head in report.heads]
    styles = [DIM if label is None else palette.of_label(label.name, label.gain) for label in first]
    columns.append(Column("label", [MIXED if label is None else label.name for label in first], styles, "<"))
    for name in names:
        texts = [_number(head, name, report.sentences > 1, digits) for head in report.heads]
        style = BOLD if name == sort else None
        columns.append(Column(name, texts, style, title_style=style or DIM))
    return columns


def _has_pictures(report: HeadReport) -> bool:
    return any("region" in head.metrics for head in report.heads[:1])


def _is_defined(report: HeadReport, name: Metric) -> bool:
    return any(head.metrics[name] is not None for head in report.heads)


def _number(head: HeadSummary, name: Metric, has_several: bool, digits: int) -> str:
    mean, std = head.metrics[name], head.std[name]
    if mean is None:
        return UNDEFINED
    spread = f" ±{UNDEFINED if std is None else number_text(std, digits)}" if has_several else ""
    return number_text(mean, digits) + spread


def _notes(report: HeadReport, names: Sequence[Metric], titles: Sequence[str], sort: Metric | None) -> list[str]:
    """Return what the numbers are over, where that is not plain, and what the table has no room for."""
    notes = []
    is_one = report.sentences == 1
    if sort is not None and not _is_defined(report, sort):
        notes.append(f"no head is ranked: {sort} is not defined for {'this' if is_one else 'any'} sentence")
    if report.unsure:
        notes.append(_too_short(report))
    left_out = [name for name in names if name not in titles]
    unknown = [name for name in left_out if not _is_defined(report, name)]
    if unknown and is_one:
        notes.append(f"{', '.join(unknown)} not defined for this sentence")
    if more := [name for name in left_out if name not in unknown]:
        notes.append(f"no room for {', '.join(more)}; -F tsv has them, --metrics chooses")
    if is_one:
        is_undefined = any(head.metrics[name] is None for head in report.heads for name in names if name in titles)
        return [*notes, *[f"{UNDEFINED} not defined for this sentence"] * is_undefined]
    notes.append(f"mean ± standard deviation over {_over(report)}, of those in which it is defined")
    return notes
