"""Hits of heads on pairs: maps of layers × heads, and the best heads next to chance."""

from __future__ import annotations

from rich.console import RenderableType
from rich.segment import Segment

from attncli.analysis.pairs import NUMBERS, PairReport
from attncli.render.block import COMFORTABLE, LINES, Block, Bounds, Column, block, in_words, lines_of, table
from attncli.render.heatmap import maps_and_list, ramp_line
from attncli.render.matrix import number_text
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.render.sections import run_line
from attncli.text import plural, span

_LISTED = 5  # heads of a list that no screen bounds
_NOTE = (
    "hits: share of the pairs whose heaviest key is right. weight: mean weight on the right keys. "
    "uniform: a head that weighs all allowed keys alike."
)
_UNLIKELY = 0.05  # heads with the hits of the best by chance, below which it is not worth a word


def pair_parts(
    report: PairReport,
    palette: Palette,
    width: int | None,
    height: int | None = None,
    precision: int | None = None,
    listed: int | None = None,
) -> list[RenderableType]:
    """Return how the heads do on pairs, in one screen; `listed` of the best heads, or as many as fit."""
    digits, columns = 2 if precision is None else precision, width or COMFORTABLE
    pairs = f"{report.pairs:,} of " * bool(report.left_out) + plural(report.pairs + len(report.left_out), "pair")
    texts = f"{pairs} in {plural(report.sentences, 'text')} of {span(*report.tokens)} tokens"
    headline = run_line(report, plural(len(report.heads), "head"), [texts])
    note = block([Segment(line, DIM)] for line in in_words(_NOTE + _by_chance(report), columns))
    legend = block([[Segment("share or weight  ", BOLD), *ramp_line(Scale.up_to(1.0, "sqrt"), palette, width)]])
    room = (height or LINES) - lines_of([headline], columns) - len(note.lines) - len(legend.lines) - 3
    beside = max(len({head.layer for head in report.heads}) - 2, _LISTED)  # as high as the maps
    most = listed or (len(report.heads) if height else beside)
    maps, scale = _maps(report), Scale.up_to(1.0, "sqrt")
    both = maps_and_list(
        maps, scale, palette, Bounds(room - 2, columns), digits, lambda count: _table(report, min(count, most), digits)
    )
    aloud: list[RenderableType] = [headline, _table(report, most, digits, palette), note]
    return aloud if palette.is_read_aloud else [headline, legend, both, note]


def _by_chance(report: PairReport) -> str:
    """Return how many heads chance alone makes as good as the best, where that may be one."""
    count = report.by_chance
    if count < _UNLIKELY:
        return ""
    shown = f"{count:.0f}" if count >= 10 else f"{count:.2g}"
    heads = plural(len(report.heads), "head")
    pairs = plural(report.pairs, "pair")
    return f" With {pairs}, {shown} of {heads} would have the hits of the best by chance; give more pairs."


def _maps(report: PairReport) -> dict[str, dict[tuple[int, int], float | None]]:
    kinds = tuple(dict.fromkeys(head.kind for head in report.heads))
    return {
        name + f" · {kind}" * (len(kinds) > 1): {
            (head.layer, head.head): float(getattr(head, name)) for head in report.heads if head.kind == kind
        }
        for name in NUMBERS[:2]
        for kind in kinds
    }


def _table(report: PairReport, rows: int, digits: int, palette: Palette | None = None) -> Block:
    best, several = report.heads[:rows], len({head.kind for head in report.heads}) > 1
    others = {"median": report.median, "uniform": (report.heads[0].hits_uniform, report.heads[0].weight_uniform)}
    left_out = [f"{len(report.heads) - len(best):,} more"] * (len(best) < len(report.heads))
    names = [f"{head.kind} " * several + f"L{head.layer}H{head.head}" for head in best]
    styles = [*[None] * len(best), *[DIM] * (len(left_out) + len(others))]
    columns = [Column("head", [*names, *left_out, *others], [style or BOLD for style in styles], "<")]
    for place, name in enumerate(NUMBERS[:2]):
        first, last = (
            [number_text(line[place], digits) for line in lines]
            for lines in ([(head.hits, head.weight) for head in best], others.values())
        )
        columns.append(Column(name, [*first, *[""] * len(left_out), *last], styles))
    return table(columns, None, palette)
