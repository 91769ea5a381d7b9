"""What each pane shows: what is looked at of the answers that came, drawn by `render`, and again where it changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attncli.analysis.metric_names import MEANINGS
from attncli.engines.interactive import Query
from attncli.explore.computation import ComputedView, reason
from attncli.explore.keys import HELP, foot
from attncli.explore.view_state import Limits, ViewState
from attncli.masks.parser import Mistake
from attncli.render.block import Block, in_words
from attncli.render.explore.cell import cell_line, help_page, status_lines, why_box
from attncli.render.explore.head import CellCursor, LargeHead
from attncli.render.explore.heads import small_heads
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.layers import layer_map
from attncli.render.explore.pane import INSET, KEY, QUERY, PaneContent, faded, focus, framed, inside
from attncli.render.explore.picture import large_picture, small_pictures
from attncli.render.explore.tokens import BOTH, WeightedRow, token_strip
from attncli.render.fit import Bounds, crop, join_facts
from attncli.render.palette import BOLD, DIM, Palette
from attncli.render.picture import facts_of
from attncli.text import quoted, visible

Pane = Literal[
    "mark", "text", "tokens", "head", "heads", "map", "why", "cell", "label", "line", "status", "foot", "help"
]
MAPS: tuple[Pane, ...] = ("head", "heads", "map")
_FRAMED: tuple[Pane, ...] = (*MAPS, "why")
LEAST = (40, 12)  # columns and lines of a terminal

_NOTHING = Block([], 0)
_SMALL = f"The terminal is too small: attn explore takes {LEAST[0]} columns and {LEAST[1]} lines."


class RenderInput(NamedTuple):
    """What is to be drawn.

    Attributes:
        look: what is looked at.
        pane: the one that keys are for.
        caret: the character of the text in front of which one types; None where that is elsewhere.
        message: what the status says besides how far the model is.
        mistake: what is wrong with the mask that is typed.
        prompt: the line that is open below the maps; empty where none is.
        help_from: the first line of the help, where it is open.
        is_patient: whether a picture of something else may still pass for a while.
        is_too_small: whether the terminal has no room for more than saying so.
        has_frames: whether panes have frames with sides, and the tokens one too.
    """

    look: ViewState
    pane: Pane
    caret: int | None
    message: str
    mistake: Mistake | None
    prompt: str
    help_from: int | None
    is_patient: bool
    is_too_small: bool
    has_frames: bool = False


class PaneRenderer:
    """What is drawn, and of which answers.

    Args:
        palette: how cells look.
    """

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self.answer: ComputedView | None = None
        self._seen: ComputedView | None = None  # the last one with numbers in it
        self._drawn: dict[str, tuple[object, Any]] = {}  # what each pane was drawn of last, and what was drawn
        self._has_frames = False
        self._numbers: dict[Pane, Callable[[RenderInput, ViewState, LayerViewCache, Bounds], Block]] = {
            "head": self._head,
            "heads": self._heads,
            "map": self._map,
            "why": self._why,
            "cell": self._cell,
        }
        self._words: dict[Pane, Callable[[RenderInput, Bounds], Block]] = {
            "tokens": self._tokens,
            "status": self._status,
            "mark": lambda scene, room: self._line("› ", room, focus(self._palette) if scene.pane == "text" else DIM),
            "label": lambda scene, room: self._line(f"{scene.prompt}: ", room, BOLD),
            "foot": self._foot,
            "help": self._help,
        }

    def take(self, answer: ComputedView) -> None:
        """Take what the model has said so far; until there are numbers in it, those before it are drawn."""
        self.answer = answer
        if answer.shown is not None:
            self._seen = answer

    def seen(self, look: ViewState) -> ViewState:
        """Return what is seen of a look: if there are no numbers of it yet, what those before it are of."""
        if self._seen is None:
            return look
        view = self._seen.look
        if not self._seen.serves(look):
            look = replace(look, question=view.question, layer=view.layer, numbers=view.numbers, held=view.held)
        room, sight = self._seen.room(look.kind), self._seen.sight(look.kind)
        assert sight is not None
        kind = sight.layer.kind if len(room.kinds) > 1 else None
        return replace(look.within(room), layer=sight.layer.layer, kind=kind)

    def room(self, kind: str | None) -> Limits:
        """How far one can look, as far as it is known."""
        return Limits() if self.answer is None else self.answer.room(kind)

    # --- what an application has to know of it

    @property
    def map_lines(self) -> int:
        """How many lines the map takes, without the lower side of a frame."""
        return 3 + (len(self.answer.layers) if self.answer else 1)

    def token_lines(self, width: int, most: int) -> int:
        """Return how many lines the tokens take, `most` at the most."""
        sides = dict.fromkeys(self.answer.tokens or ()) if self.answer else ()
        return min(1 + sum(cell_len(token.label) + 1 for side in sides for token in side) // width, most)

    @property
    def heads_in_a_line(self) -> int:
        """How many of the small heads stand beside each other."""
        heads = self._last("heads")
        return len({heads.at(2, column) for column in range(heads.block.width)} - {None}) if heads else 1

    @property
    def help_lines(self) -> int:
        """How many lines the help has."""
        page = self._last("help")
        return len(page.lines) if page else 0

    @property
    def shown(self) -> tuple[range, range]:
        """Which rows and columns of the large head are shown: where its cells begin."""
        large = self._last("head")
        if isinstance(large, LargeHead):
            return large.window.rows, large.window.columns
        room = Limits() if self._seen is None else self._seen.room()
        return range(max(len(room.queries), 1)), range(max(len(room.keys), 1))

    @property
    def zooms(self) -> int:
        """How many times the cells of the large head can be halved."""
        large = self._last("head")
        return large.zooms if isinstance(large, LargeHead) else 0

    @property
    def shows_pictures(self) -> bool:
        """Whether the head is shown as what it looks at in pictures."""
        return isinstance(self._last("head"), PaneContent)

    def message(self, look: ViewState, message: str) -> str:
        """Return a message, or where there is none why the question that is looked at has no answer."""
        answer = self.answer
        return message or (answer.failure if answer is not None and answer.look.question == look.question else "")

    def at(self, look: ViewState, pane: Pane, line: int, column: int) -> ViewState | None:
        """Return the look at what stands at a place of a pane; None where nothing does."""
        room, drawn = self.room(look.kind), self._last(pane)
        if self._has_frames:
            line, column = line - (pane == "tokens"), column - INSET
        found = drawn.at(line, column) if drawn is not None and pane in ("tokens", *MAPS) else None
        if found is None:
            return None
        if pane == "head" and room.layout is not None:
            is_cell = look.query in room.layout.cells
            return look.on(room, **{"query" if is_cell else "key": found})
        if pane == "head":
            return look.on(room, query=found[0], key=found[1])
        if pane == "map":
            return look.on(room, layer=found[0], head=found[1])
        if pane == "heads":
            return look.on(room, head=found)
        return look.on(room, **{"key" if found.side == "key" else "query": found.position})

    def _last(self, pane: Pane) -> Any:
        """Return what was drawn of a pane last; None is nothing."""
        return self._drawn.get(pane, (None, None))[1]

    # --- the panes

    def drawn(self, pane: Pane, scene: RenderInput, room: Bounds) -> Block:
        """Return what a pane of some size shows."""
        self._has_frames = has_sides = scene.has_frames
        whole, is_framed = room, pane in _FRAMED or (pane == "tokens" and has_sides)
        if is_framed:
            room = inside(whole, has_sides)
        try:
            if pane in self._words:
                block = self._words[pane](scene, room)
            else:
                found = self._looked_at(scene.look)
                block = _NOTHING if found is None else self._numbers[pane](scene, *found, room)
        except Exception as error:  # one pane less, and the text that was typed is not lost
            block = self._wrapped(reason(error), room)
        is_late = self._seen is not None and not self._seen.serves(scene.look) and not scene.is_patient
        if is_late and pane in (*self._numbers, "tokens"):
            block = faded(block)
        has_focus = pane == scene.pane or (pane == "tokens" and scene.pane == "text")
        if not is_framed:
            return block
        return self._once(f"frame of {pane}", framed, block, whole, self._palette, has_focus, has_sides)

    def _once(self, pane: str, draw: Callable[..., Any], *inputs: object) -> Any:
        """Return what is drawn of something, as long as it is the same without drawing it again."""
        if self._drawn.get(pane, (None, None))[0] != (draw, *inputs):
            self._drawn[pane] = (draw, *inputs), draw(*inputs)
        return self._drawn[pane][1]

    def _looked_at(self, look: ViewState) -> tuple[ViewState, LayerViewCache] | None:
        """Return what is looked at of the numbers that are there; None where there are none."""
        sight = None if self._seen is None else self._seen.sight(look.kind)
        if self._seen is None or sight is None:
            return None
        layer = sight.layer
        look = replace(look.within(self._seen.room(look.kind)), layer=layer.layer)
        if look.head not in layer.heads:  # a rollout has one
            look = replace(look, head=layer.heads[0])
        return look, sight

    def _head(self, scene: RenderInput, look: ViewState, sight: LayerViewCache, room: Bounds) -> Block:
        cursor, label = CellCursor(look.head, look.query, look.key), self._labels(sight).get(look.head, "")
        if sight.layout is not None:
            return self._once("head", large_picture, sight, cursor, look.ramp, self._palette, room, label).block
        port = tuple(look.port)
        return self._once("head", LargeHead, sight, cursor, port, look.ramp, self._palette, room, label).block

    def _heads(self, scene: RenderInput, look: ViewState, sight: LayerViewCache, room: Bounds) -> Block:
        if sight.layout is not None:
            cursor = CellCursor(look.head, look.query, look.key)
            return self._once("heads", small_pictures, sight, cursor, look.ramp, self._palette, room).block
        labels = self._labels(sight)
        return self._once("heads", small_heads, sight, look.head, look.ramp, self._palette, room, labels).block

    def moved(self, look: ViewState, rows: int, columns: int) -> ViewState:
        """Return the look with the cursor so many cells further down and further right; see `ViewState.moved`."""
        queries, keys = self.shown if not self.shows_pictures else (range(1), range(1))
        return look.moved(self.room(look.kind), rows * queries.step, columns * keys.step)

    def settled(self, look: ViewState) -> ViewState:
        """Return the look with the key that a cell of a picture attends to most, where that is the query."""
        layout = self.room(look.kind).layout
        if layout is None or self._seen is None or not self._seen.serves(look) or look.query not in layout.cells:
            return look
        return self._seen.on_heaviest(look)

    def _labels(self, sight: LayerViewCache) -> dict[int, str]:
        """Return what the heads of a layer do, as far as it is known."""
        answer, layer = self._measured, sight.layer
        heads = answer.survey.heads if answer and answer.survey else ()
        mine = (head for head in heads if (head.layer, head.kind) == (layer.layer, layer.kind))
        return {head.head: head.labels[0].name for head in mine if head.labels}

    @property
    def _measured(self) -> ComputedView | None:
        """The last answer with metrics of heads."""
        return self.answer if self.answer and self.answer.survey else self._seen

    def _map(self, scene: RenderInput, look: ViewState, sight: LayerViewCache, room: Bounds) -> Block:
        assert self._seen is not None
        answer = self._measured or self._seen
        kind, chosen = sight.layer.kind, (look.layer, scene.look.head)
        numbers: dict[tuple[int, int], float | None]
        if look.metric is None:
            title, meaning = "divergence in bits from held", "Jensen-Shannon: 0 is no change, 1 the most"
            numbers = {(each.layer, each.head): each.jensen_shannon for each in answer.changes if each.kind == kind}
        else:
            title, meaning, heads = look.metric, MEANINGS[look.metric], answer.survey.heads if answer.survey else ()
            numbers = {(each.layer, each.head): each.metrics.get(look.metric) for each in heads if each.kind == kind}
        shape = kind, max(self._seen.room(look.kind).heads) + 1
        layers = {*answer.layers_of(kind), look.layer}
        return self._once("map", layer_map, title, numbers, layers, shape, chosen, self._palette, room, meaning).block

    def _why(self, scene: RenderInput, look: ViewState, sight: LayerViewCache, room: Bounds) -> Block:
        recorded = sight.trace.recorded
        layer = next(each for each in recorded.layers if (each.layer, each.kind) == (look.layer, sight.layer.kind))
        cursor = CellCursor(min(max(scene.look.head, 0), max(layer.heads)), look.query, look.key)
        return self._once("why", why_box, recorded, layer, cursor, self._palette, room)

    def _cell(self, scene: RenderInput, look: ViewState, sight: LayerViewCache, room: Bounds) -> Block:
        cursor = CellCursor(look.head, look.query, look.key)
        return self._once("cell", cell_line, sight, cursor, self._palette, room)

    def _tokens(self, scene: RenderInput, room: Bounds) -> Block:
        answer = self.answer
        if answer is None or answer.tokens is None:
            return _NOTHING
        limits, text = answer.room(scene.look.kind), answer.tokens[1]
        tokens = limits.queries, limits.keys
        look, typed = scene.look.within(limits), None
        if scene.caret is not None:  # the token whose letters were typed last
            ends = ((token.index, token.start) for token in text if token.segment == 0 and token.start is not None)
            typed = max((index for index, start in ends if start < scene.caret), default=None)
        # Of two sequences that are not one the text is the keys'.
        around = tuple(typed if side == text else None for side in tokens)
        found, row = self._looked_at(scene.look), None
        if found is not None and found[1].tokens == tokens:
            row = WeightedRow(found[1], found[0].head, found[0].ramp)
        if scene.has_frames:
            room = room._replace(lines=room.lines - 1)
        layout, places = row.sight.layout if row else None, (look.query, look.key, around)
        cells = frozenset(layout.cells if layout else ())
        strip = self._once("tokens", token_strip, tokens, *places, self._palette, room, row, cells).block
        if layout is not None and len(strip.lines) < room.lines:
            strip = strip._replace(lines=[*strip.lines, join_facts(facts_of(layout.grids), room.width, self._palette)])
        if not scene.has_frames:
            return strip
        facts = [f"{QUERY} query {KEY} key {BOTH} both", _colored_by(row, look.query) if row else ""]
        return strip._replace(lines=[join_facts(facts, room.width, self._palette, "sentence"), *strip.lines])

    # --- words

    def _status(self, scene: RenderInput, room: Bounds) -> Block:
        if scene.is_too_small:
            return self._wrapped(_SMALL, room)
        if scene.mistake is not None and scene.prompt:  # points at a character above it, where it has room for that
            column = len(scene.prompt) + 2 + scene.mistake.start
            lines = f"{' ' * column}^ {scene.mistake.reason}", f"{scene.mistake.reason} ^".rjust(column + 1)
            line = next((each for each in lines if cell_len(each) <= room.width), scene.mistake.reason)
            return self._line(self._palette.shortened(line, room.width), room, BOLD)
        answer, matters, facts = self.answer, self.message(scene.look, scene.message), []
        if not matters and (answer is None or not answer.is_whole or not answer.serves(scene.look)):
            facts.append("computing …")
        if scene.look.held is not None:
            facts.append(f"against {_differing(scene.look, scene.look.held)}")
        found = self._looked_at(scene.look)
        sight = None if found is None else found[1]
        return self._once("status", status_lines, sight, matters, tuple(facts), self._palette, room)

    def _foot(self, scene: RenderInput, room: Bounds) -> Block:
        if scene.help_from is not None:
            line = "Esc closes the help  ↑ ↓ turn it"
        elif scene.prompt:
            line = f"Enter {'finds the next one' if scene.prompt == 'find' else 'takes it'}  Esc closes it"
        else:
            line = foot(scene.pane == "text", room.width)
        return self._line(line, room, DIM)

    def _help(self, scene: RenderInput, room: Bounds) -> Block:
        page = self._once("help", help_page, HELP, self._palette, room.width)
        return crop(page.lines[scene.help_from or 0 :], room)

    def _line(self, text: str, room: Bounds, style: Style | None = None) -> Block:
        return crop([[Segment(visible(text), style)]], room)

    def _wrapped(self, text: str, room: Bounds) -> Block:
        return crop(([Segment(line)] for line in in_words(text, room.width)), room)


def _colored_by(row: WeightedRow, query: int) -> str:
    """Return what the colours of tokens stand for."""
    if row.words_of(query):
        assert row.sight.layout is not None
        return f"each word on the colour of its weight on {row.sight.layout.cells[query]}"
    return f"each key on the colour of its {'change' if row.sight.pair else 'weight'}"


def _differing(look: ViewState, held: Query) -> str:
    """Return what is held, by what of it is another one now; the text if nothing is."""
    now = look.question
    if held.text == now.text:
        if held.mask != now.mask:
            return f"mask {quoted(held.mask)}" if held.mask else "the model's own mask"
        for name, one, other in (("pair", held.pair, now.pair), ("target", held.target, now.target)):
            if one != other:
                return f"{name} {quoted(one)}" if one else f"no {name}"
    return quoted(held.text)
