"""Results in Python: HTML for a notebook, data frames, figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from attncli.errors import UsageError, require
from attncli.trace.layer import HeadTrace, LayerTrace
from attncli.trace.trace import Trace
from attncli.trace.view import Ramp, View

if TYPE_CHECKING:
    from attncli.analysis.calls.calls import Calls
    from attncli.analysis.composition import Composition
    from attncli.formats.columns import Table
    from attncli.render.palette import Palette

_ROOM = 100  # characters in a line of a notebook; wider content scrolls
_WIDE = 1000  # of text, whose lines are as long as they are
_LINES = 60  # of a view of a trace: more of it than a screen has, and less than a notebook would be lost in
_MORE = ". .layer(0).head(1) shows one head, .to_dataframe() has all numbers"  # in the place of the command's options
_INCH = 100  # pixels of a figure, as matplotlib's own have in a notebook


def html_of(result: object) -> str | None:
    """Return a result as a notebook shows it, or None where there is nothing but its line."""
    from attncli.formats.pictures import draw, notebook_html
    from attncli.render.palette import Palette

    parts = _drawn(result, Palette("truecolor"))
    return None if parts is None else notebook_html(draw(parts, "", _ROOM))


def text_of(result: Calls) -> str:
    """Return calls as `attn run` prints them into a file."""
    from attncli.formats.pictures import draw
    from attncli.render.calls import calls_parts
    from attncli.render.palette import Palette

    lines = draw(calls_parts(result, Palette(), None), "", _WIDE).block.lines
    return "\n".join("".join(segment.text for segment in line) for line in lines)


def _drawn(result: object, palette: Palette) -> Iterable[Any] | None:
    """Return a result as its command draws it."""
    from attncli.analysis.ablation import Ablation
    from attncli.analysis.calls.calls import Calls
    from attncli.analysis.check.report import Report
    from attncli.analysis.composition import Composition
    from attncli.analysis.diff import TOP, Difference
    from attncli.analysis.heads import HeadReport
    from attncli.analysis.mask import LabelledMask
    from attncli.analysis.pairs import PairReport
    from attncli.analysis.prove.proof import ModelProof
    from attncli.render import ablation, calls, diff, findings, heads, masks, pairs, tokens, why
    from attncli.render.bars import TableFormat
    from attncli.render.inspect import Layout
    from attncli.trace.tokenization import Tokenization

    match result:
        case Trace() | LayerTrace() | HeadTrace() if (part := _part(result)) is not None:
            layout = Layout(*part, palette, _ROOM, _LINES)
            return chain(layout.renderables(), (note.partition(". --")[0] + _MORE for note in layout.notes()))
        case Composition():
            return why.CompositionPage(result, None, TableFormat(palette, _ROOM)).parts()
        case Difference():
            return diff.DiffView(result, palette, _ROOM, top=TOP).renderables()
        case LabelledMask():
            return None if result.subject.is_ambiguous else masks.MaskView(palette, _ROOM).shown(result.subject)
        case ModelProof():
            return findings.proof_parts(result, _ROOM)
    views: dict[type, Callable[[Any, Palette, int], Iterable[Any]]] = {
        Ablation: ablation.ablation_parts,
        HeadReport: heads.head_parts,
        Tokenization: tokens.tokens_parts,
        PairReport: pairs.pair_parts,
        Report: findings.report_parts,
        Calls: calls.calls_parts,
    }
    view = views.get(type(result))
    return None if view is None else view(result, palette, _ROOM)


def _part(result: object) -> tuple[Trace, View] | None:
    """Return the trace and view of a trace, a layer or a head; None where a layer was not taken from a trace."""
    if isinstance(result, Trace):
        return result, View()
    layer = result.layer if isinstance(result, HeadTrace) else result
    if not isinstance(layer, LayerTrace) or not isinstance(layer.parent, Trace):
        return None
    if not isinstance(result, HeadTrace):
        return layer.parent.only(layer, layer.heads), View()
    rows = tuple(result.queries.tolist())
    is_whole = rows == tuple(range(layer.num_queries))
    return layer.parent.only(layer, (result.head,)), View(queries=() if is_whole else rows)


def _part_of(result: object) -> tuple[Trace, View]:
    part = _part(result)
    if part is None:
        raise UsageError("this layer has no tokens; take it from its trace: trace.layer(0).head(1)")
    return part


def frame_of(result: object) -> Any:
    """Return the rows of a result as a data frame; see `attncli.trace.display.Tabular`."""
    from attncli.analysis.ablation import Ablation
    from attncli.analysis.composition import Composition
    from attncli.analysis.heads import HeadReport
    from attncli.analysis.pairs import PairReport
    from attncli.formats.columns import head_table, pair_table, row_count, table_of, term_table

    require("a data frame", "pandas")
    import pandas

    tables: dict[type, Callable[[Any], Table]] = {
        HeadReport: head_table, PairReport: pair_table, Composition: term_table,
        Ablation: lambda ablation: table_of(0, ablation, None),
    }  # fmt: skip
    table = tables.get(type(result), lambda part: table_of(0, *_part_of(part)))(result)
    types, blocks, columns = table.types, list(table.blocks), {}
    for name, kind in types.items():
        if name == "sentence" or all(block[name] is None for block in blocks):  # scores of derived layers
            continue
        values = np.concatenate([
            column if isinstance(column, np.ndarray) else np.full(row_count(block), column, object)
            for block in blocks
            for column in (block[name],)
        ])  # fmt: skip
        lacks_some = values.dtype == object and None in values.tolist()
        columns[name] = values if kind == "string" else values.astype("float64" if lacks_some else kind.rstrip("_"))
    return pandas.DataFrame(columns)


def composed(head: HeadTrace, query: str | int, key: str | int | None) -> Composition:
    """Return the score of one cell of a head, split by its writers; see `HeadTrace.composition`."""
    from attncli.analysis.composition import composition
    from attncli.analysis.why import explain

    trace, _ = _part_of(head)
    return composition(explain(trace, query, key))


def plotted(
    result: object,
    *,
    queries: tuple[str | int, ...],
    keys: tuple[str, ...],
    hide_special: bool,
    ramp: Ramp | None,
    colormap: str,
    size: str | None,
) -> Any:
    """Return the maps of a result as a figure; see `attncli.trace.display.Drawable`."""
    from attncli.formats.figures import figure_of, parse_size, written
    from attncli.render.palette import COLORMAPS

    ramps: tuple[str | None, ...] = (None, *get_args(Ramp))
    for name, chosen, allowed in (("ramp", ramp, ramps), ("colormap", colormap, tuple(COLORMAPS))):
        if chosen not in allowed:
            raise UsageError(f"{name} {chosen!r}: expected one of {', '.join(each for each in allowed if each)}")
    trace, part = _part_of(result)
    view = View(queries=queries or part.queries, keys=keys, hide_special=hide_special, ramp=ramp)
    figure: Any = figure_of(trace, view, colormap, None if size is None else parse_size(str(size)))

    def picture() -> tuple[bytes, dict[str, int]]:
        """Return a picture, and how large it is on a screen: it has more points, for screens that have them."""
        width, height = figure.get_size_inches()
        return written(figure, "png", ""), {"width": round(width * _INCH), "height": round(height * _INCH)}

    figure._repr_png_ = picture  # unlike pyplot's figures, this one needs it to be shown in a notebook
    return figure
