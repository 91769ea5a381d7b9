"""Heads as a person reads them: the label of each one on a grid, or a row of numbers a head."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attncli.analysis import Metric
from attncli.analysis.heads import HeadReport, HeadSummary
from attncli.analysis.metrics import CHANCE_CELLS, LABELS, LEAST, LEAST_OF_PLACE, WEIGHTS
from attncli.render.block import (
    COMFORTABLE,
    LINES,
    Block,
    Column,
    block,
    in_words,
    lines_of,
    padded,
    ranking,
    stack,
    table,
    trimmed,
    width_of,
)
from attncli.render.matrix import Axis, number_text
from attncli.render.palette import BOLD, DIM, HINT, Palette
from attncli.render.sections import run_line
from attncli.text import plural, span

# Characters and lines of a head on the grid, the largest first; in lines of half a row two layers share one.
_CELLS = ((18, 3), (18, 2), (15, 3), (15, 1), (14, 1), (10, 2), (10, 1), (6, 3), (6, 2), (6, 1), (3, 1), (2, 1))
_HALF = (1, 0)
_SHORT = {
    "previous": "prev", "duplicate": "dup", "induction": "ind", "separator": "sep", "localization": "place",
    "visual sink": "vsink",
}  # fmt: skip
# Where another label begins with the same letter.
_LETTERS = {"sink": "k", "separator": "e", "localization": "o", "mixed": "·"}
_LABEL_UNITS = {"local": " positions", "broad": " keys"}
_STRONGEST = 19  # cells of the names of heads
_LEAST_ROWS = 4  # of the numbers below the labels
UNDEFINED = "–"
# Metrics that tell heads apart come first; the last ones are the first to go.
_BY_USE = (
    "entropy", "sink", "previous", "induction", "self", "next", "special", "separator", "duplicate",
    "image", "region", "visual_sink", "spatial_entropy", "distance", "max_weight", "effective_keys", "max_score",
)  # fmt: skip


def head_parts(
    report: HeadReport, palette: Palette, width: int | None, height: int | None = None, precision: int | None = None
) -> list[RenderableType]:
    """Return the labels of heads in one screen, and below them as many rows of numbers as there is room for."""
    room, columns = height or LINES, width or COMFORTABLE
    note = _label_note(report, columns)
    parts: list[RenderableType] = [_headline(report), note]
    explained = _label_table(report, palette, columns)
    if palette.is_read_aloud:
        return [parts[0], explained, note]
    left = room + 1 - lines_of(parts, columns) - len(explained.lines) - 1
    sizes = [*(size for size in _CELLS if height is not None or size[1] == 1), *[_HALF] * palette.has_color]
    grids = (_grid(report, *size, palette) for size in sizes)
    drawn = next((one for one in grids if one.width <= columns and len(one.lines) < left), None)
    if drawn is None:
        return [parts[0], explained, note]
    parts[1:1] = [drawn, explained]
    rows = left - len(drawn.lines) - 4  # blank lines, titles, and the number of those that are left out
    if height is not None and rows >= min(_LEAST_ROWS, len(report.heads)):
        shown = report.by_label().heads[: rows + (len(report.heads) <= rows + 1)]
        numbers = _columns(replace(report, heads=shown), None, palette, columns, precision)
        parts.insert(3, ranking(numbers, len(report.heads) - len(shown), width))
    return parts


def _headline(report: HeadReport) -> Text:
    shown = len(report.heads)
    heads = f"{shown} of " * (shown < report.measured) + plural(report.measured, "head")
    what = "sequence" if report.is_test else "sentence"
    texts = f"{plural(report.sentences, what)} of {span(*report.tokens)} token{'s' * (report.tokens[1] > 1)}"
    return run_line(report, heads, [texts, *["random tokens twice"] * report.is_test])


# --- labels ---


def _grid(report: HeadReport, size: int, high: int, palette: Palette) -> Block:
    """Return layers × heads, each on the colour of its label, in cells of `size` characters and `high` lines."""
    kinds, grids = dict.fromkeys(head.kind for head in report.heads), []
    for kind in kinds:
        at = {(head.layer, head.head): head for head in report.heads if head.kind == kind}
        layers, columns = (sorted({place[axis] for place in at}) for axis in (0, 1))
        margin = max(len(f"L{layer}") for layer in layers) + 1
        header = [padded(f"H{head}", size, DIM, "<") for head in columns]
        if size <= len("H10"):
            header = Axis(("",) * len(columns), tuple(columns)).ticks(size)
        lines = [[Segment(kind, BOLD)]] * (len(kinds) > 1) + [[Segment(" " * margin), *header]]
        rows = [[at.get((layer, head)) for head in columns] for layer in layers]
        blank = Segment(" " * margin)
        for place in range(0, len(layers), 1 if high else 2):
            name, own = padded(f"L{layers[place]}", margin, DIM, "<"), rows[place]
            if not high:
                pairs = zip(own, (rows[place + 1 :] or [[None] * len(own)])[0], strict=True)
                lines.append([name, *(_half(*pair, palette) for pair in pairs)])
            for line in range(high):
                is_middle = line == (high - 1) // 2
                texts = [_text(head, size) * is_middle for head in own]
                styles = [_style(head, palette) or DIM for head in own]
                cells = [padded(text, size, style, "<") for text, style in zip(texts, styles, strict=True)]
                lines.append([name if is_middle else blank, *cells])
        grids.append(block(map(trimmed, lines)))
    return stack(grids, gap=1)


def _text(head: HeadSummary | None, size: int) -> str:
    """Return the label of a head in as many letters as there is room for, and with the weight where that fits too."""
    if head is None:
        return ""
    name = head.label
    weight = [f"{name} {number_text(label.score, 2)}" for label in head.labels[:1] if name in WEIGHTS]
    return " " + next(text for text in (*weight, name, _SHORT.get(name, name), _letter(name)) if len(text) < size)


def _letter(name: str) -> str:
    return _LETTERS.get(name, name[0])


def _style(head: HeadSummary | None, palette: Palette) -> Style | None:
    """Return the colour of a head's label, the paler the less it gains; None without a label or without colours."""
    return palette.of_label(head.labels[0].name, head.labels[0].gain) if head and head.labels else None


def _half(upper: HeadSummary | None, lower: HeadSummary | None, palette: Palette) -> Segment:
    top, bottom = (
        None if style is None else style.bgcolor for style in (_style(upper, palette), _style(lower, palette))
    )
    if top is None:
        return Segment(" ") if bottom is None else Segment("▄", Style(color=bottom))
    return Segment("▀", Style(color=top, bgcolor=bottom))


def _label_table(report: HeadReport, palette: Palette, room: int) -> Block:
    several, unsure = len({head.kind for head in report.heads}) > 1, ", or too short to tell" * bool(report.unsure)
    groups = {name: list(heads) for name, heads in groupby(report.by_label().heads, attrgetter("label"))}
    numbers = []
    for name, heads in groups.items():
        texts = [number_text(number, 2) for label in heads[0].labels[:1] for number in label[1:]] or [""] * 3
        numbers.append((texts[0] + _LABEL_UNITS.get(name, ""), *texts[1:]))
    weights, uniform, gains = zip(*numbers, strict=True)
    letters = Column("", [f" {_letter(name)} " for name in groups], [palette.of_label(name) for name in groups])
    columns = [
        *[letters] * (not palette.is_read_aloud),
        Column("label", [*groups], BOLD, "<"),
        Column("heads", [str(len(heads)) for heads in groups.values()]),
    ]
    more = [
        Column("weight", weights), Column("uniform", uniform, DIM), Column("gain", gains, DIM),
        Column("attends to", [LABELS.get(name, f"nothing in particular{unsure}") for name in groups], DIM, "<"),
    ]  # fmt: skip
    while more and width_of([*columns, *more]) + _STRONGEST > room:
        more.pop()
    left = room - width_of([*columns, *more]) - 2
    names = [
        " ".join(f"{head.kind} " * several + f"L{head.layer}H{head.head}" for head in one) for one in groups.values()
    ]
    strongest = [text if len(text) <= left else text[: left - 1].rpartition(" ")[0] + " …" for text in names]
    return table([*columns, Column("strongest", strongest, None, "<"), *more], room, palette)


def _label_note(report: HeadReport, width: int) -> Text:
    of_place = f", and localization {LEAST_OF_PLACE:g}" * _has_pictures(report)
    notes = [
        "Weights are of the strongest head.",
        f"A label needs a gain of {LEAST:g}{of_place} (0 = uniform attention, 1 = perfect).",
    ]
    if report.unsure:
        notes.append(f"{_too_short(report)}.".capitalize())
    if report.sentences > 1:
        notes.append(f"Numbers are means over {_over(report)}.")
    hint = " --all lists every number."
    if _has_pictures(report):
        hint = " --pairs FILE tests which heads find the right place." + hint
    elif report.source.kind == "pretrained" and not report.is_test:
        hint = " --induction tests for induction heads." + hint
    note = Text("\n".join(in_words(" ".join(notes) + hint, width)), DIM)
    note.stylize(HINT, len(note) - len(hint))
    return note


def _too_short(report: HeadReport) -> str:
    return (
        f"no label for {plural(report.unsure, 'head')}: {CHANCE_CELLS} cells (query rows × keys) or fewer may agree by "
        "chance; give a longer text, or several"
    )


def _over(report: HeadReport) -> str:
    return f"{report.sentences:,} {'sequences' if report.is_test else 'sentences'}"


def _has_pictures(report: HeadReport) -> bool:
    return any("region" in head.metrics for head in report.heads[:1])


# --- the table ---


def table_parts(
    report: HeadReport, sort: Metric | None, palette: Palette, width: int | None, precision: int | None = None
) -> list[RenderableType]:
    """Return what ran, a row for every head, and what the numbers are over."""
    columns = _columns(report, sort, palette, None if palette.is_read_aloud else width, precision)
    notes = [_too_short(report)] * bool(report.unsure)
    defined = [name for name in report.names if any(head.metrics[name] is not None for head in report.heads)]
    if more := [name for name in defined if name not in [column.title for column in columns]]:
        notes.append(f"no room for {', '.join(more)}: choose with --metrics, or write all with -F tsv")
    if report.sentences > 1:
        notes.append(f"mean ± standard deviation over {_over(report)}, of those in which it is defined")
    elif any(UNDEFINED in column.texts for column in columns):
        notes.append(f"{UNDEFINED} not defined for this sentence")
    parts: list[RenderableType] = [_headline(report), table(columns, width, palette)]
    return [*parts, Text("; ".join(notes), DIM)] if notes else parts


def _columns(
    report: HeadReport, sort: Metric | None, palette: Palette, width: int | None, precision: int | None
) -> list[Column]:
    """Return the place and the label of each head, and as many metrics as fit, the one that ranks heads first."""
    heads, kinds, digits = report.heads, [head.kind for head in report.heads], 2 if precision is None else precision
    columns = [Column("layer", [str(head.layer) for head in heads], BOLD)]
    columns += [Column("kind", kinds, None, "<")] * (set(kinds) != {"self"})
    columns += [Column("head", [str(head.head) for head in heads], BOLD)]
    styles = [_style(head, palette) or DIM for head in heads]
    columns.append(Column("label", [head.label for head in heads], styles, "<"))
    metrics = {}
    names: list[Metric] = [*([sort] if sort else []), *(name for name in report.names if name != sort)]
    for name in names:
        texts = [_number(head, name, report.sentences > 1, digits) for head in heads]
        if name == sort or set(texts) != {UNDEFINED}:
            metrics[name] = Column(
                name, texts, BOLD if name == sort else None, title_style=BOLD if name == sort else DIM
            )
    while width is not None and len(metrics) > 1 and width_of([*columns, *metrics.values()]) - 2 > width:
        del metrics[max(metrics.keys() - {sort}, key=_BY_USE.index)]
    return [*columns, *metrics.values()]


def _number(head: HeadSummary, name: Metric, has_several: bool, digits: int) -> str:
    mean, std = head.metrics[name], head.std[name]
    if mean is None:
        return UNDEFINED
    spread = f" ±{UNDEFINED if std is None else number_text(std, digits)}" if has_several else ""
    return number_text(mean, digits) + spread
