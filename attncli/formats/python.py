"""Results in Python: HTML for a notebook, data frames, figures."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args

from attncli.errors import UsageError
from attncli.trace.layer import HeadTrace, LayerTrace
from attncli.trace.trace import Trace
from attncli.trace.view import Ramp, View

if TYPE_CHECKING:
    from attncli.analysis.calls.calls import Calls
    from attncli.analysis.composition import Composition
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
    from attncli.render.bars import TableFormat
    from attncli.trace.tokenization import Choice, Tokenization

    match result:
        case Composition():
            from attncli.render.composition import CompositionPage

            return CompositionPage(result, None, TableFormat(palette, _ROOM)).parts()
        case Trace() | LayerTrace() | HeadTrace():
            from attncli.render.inspect import Layout

            if (part := _part(result)) is None:
                return None
            layout = Layout(*part, palette, _ROOM, _LINES)
            return chain(layout.renderables(), (note.partition(". --")[0] + _MORE for note in layout.notes()))
        case Ablation():
            from attncli.render.ablation import ablation_parts

            return ablation_parts(result, palette, _ROOM)
        case HeadReport():
            from attncli.render.heads import head_parts

            return head_parts(result, palette, _ROOM)
        case PairReport():
            from attncli.render.pairs import pair_parts

            return pair_parts(result, palette, _ROOM)
        case Difference():
            from attncli.render.diff import DiffView

            return DiffView(result, palette, _ROOM, top=TOP).renderables()
        case LabelledMask():
            from attncli.render.masks import MaskView

            return None if result.subject.is_ambiguous else MaskView(palette, _ROOM).shown(result.subject)
        case Tokenization():
            from attncli.render.tokens import tokens_parts

            return tokens_parts(result, Choice(), palette, _ROOM)
        case Report():
            from attncli.render.findings import report_parts

            return report_parts(result, palette, _ROOM)
        case Calls():
            from attncli.render.calls import calls_parts

            return calls_parts(result, palette, _ROOM)
        case ModelProof():
            from attncli.render.proofs import proof_parts

            return proof_parts(result, palette, _ROOM)
    return None


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


def frame_of(result: object, library: Literal["pandas", "polars"] | None) -> Any:
    """Return the rows of a result as a data frame; see `attncli.trace.display.Tabular`."""
    from attncli.analysis.ablation import Ablation
    from attncli.analysis.composition import Composition
    from attncli.analysis.heads import HeadReport
    from attncli.analysis.pairs import PairReport
    from attncli.formats.columns import Table, head_table, pair_table, table_of, term_table
    from attncli.formats.frames import frame_of_table, library_of

    chosen = library_of(library)
    if isinstance(result, HeadReport):
        return frame_of_table(head_table(result), chosen)
    if isinstance(result, PairReport):
        return frame_of_table(pair_table(result), chosen)
    if isinstance(result, Composition):
        return frame_of_table(term_table(result), chosen)
    types, blocks = table_of(0, result, None) if isinstance(result, Ablation) else table_of(0, *_part_of(result))
    return frame_of_table(Table({name: kind for name, kind in types.items() if name != "sentence"}, blocks), chosen)


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
    from attncli.formats.figures import figure_of, written
    from attncli.formats.figures.size import Size
    from attncli.render.palette import COLORMAPS

    ramps: tuple[str | None, ...] = (None, *get_args(Ramp))
    for name, chosen, allowed in (("ramp", ramp, ramps), ("colormap", colormap, tuple(COLORMAPS))):
        if chosen not in allowed:
            raise UsageError(f"{name} {chosen!r}: expected one of {', '.join(each for each in allowed if each)}")
    trace, own = _part_of(result)
    view = View(queries=queries or own.queries, keys=keys, hide_special=hide_special, ramp=ramp)
    figure: Any = figure_of(trace, view, colormap, None if size is None else Size.of(str(size)))

    def picture() -> tuple[bytes, dict[str, int]]:
        """Return a picture, and how large it is on a screen: it has more points, for screens that have them."""
        width, height = figure.get_size_inches()
        return written(figure, "png", ""), {"width": round(width * _INCH), "height": round(height * _INCH)}

    figure._repr_png_ = picture  # unlike pyplot's figures, this one needs it to be shown in a notebook
    return figure
