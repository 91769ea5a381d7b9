"""What each pane shows: what is looked at of the answers that came, drawn by `render`, and again where it changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attncli.engines.interactive import Query
from attncli.explore.computation import reason
from attncli.explore.computed import ComputedView
from attncli.explore.keys import foot, help_rows
from attncli.explore.layout import LEAST, MAPS, Pane, PaneRect
from attncli.explore.view_state import Limits, ViewState
from attncli.masks.parser import Mistake
from attncli.render.block import Block, in_words
from attncli.render.explore.head import CellCursor, large_head
from attncli.render.explore.heads import small_heads
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.layers import layer_map
from attncli.render.explore.pane import faded
from attncli.render.explore.status import status
from attncli.render.explore.tokens import token_strip
from attncli.render.explore.why import why_box
from attncli.render.fit import Bounds, crop
from attncli.render.palette import BOLD, DIM, Palette
from attncli.text import quoted, visible
from attncli.trace.tokens import Tokens

_REVERSE = Style(reverse=True)
_NOTHING = Block([], 0)
_SMALL = f"The terminal is too small: attn explore takes {LEAST[0]} columns and {LEAST[1]} lines."


class StatusMessage(NamedTuple):
    """What the status says besides how far the model is.

    Attributes:
        text: a sentence.
        mistake: what is wrong with the mask that is typed.
    """

    text: str = ""
    mistake: Mistake | None = None


class RenderInput(NamedTuple):
    """What is to be drawn.

    Attributes:
        look: what is looked at.
        places: where the panes stand.
        pane: the one that keys are for.
        caret: the character of the text in front of which one types; None where that is elsewhere.
        said: what the status says.
        prompt: the line that is open below the maps; empty where none is.
        help_from: the first line of the help, where it is open.
        is_patient: whether a picture of something else may still pass for a while.
    """

    look: ViewState
    places: dict[Pane, PaneRect]
    pane: Pane
    caret: int | None
    status: StatusMessage
    prompt: str
    help_from: int | None
    is_patient: bool


class PaneRenderer:
    """What is drawn, and of which answers.

    Attributes:
        answer: the last one that came.

    Args:
        palette: how cells look.
    """

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self.answer: ComputedView | None = None
        self._seen: ComputedView | None = None  # the last one with numbers in it
        self._drawn: dict[Pane, tuple[object, Any]] = {}  # what each pane was drawn of last, and what was drawn
        self._numbers: dict[Pane, Callable[[RenderInput, ViewState, LayerViewCache, Bounds], Block]] = {
            "head": self._head,
            "heads": self._heads,
            "map": self._map,
            "why": self._why,
        }
        self._words: dict[Pane, Callable[[RenderInput, Bounds], Block]] = {
            "tokens": self._tokens,
            "cell": self._cell,
            "status": self._status,
            "mark": self._mark,
            "label": self._label,
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
        """How many lines the map takes."""
        return 3 + (len(self.answer.layers) if self.answer else 1)

    @property
    def heads_in_a_line(self) -> int:
        """How many of the small heads stand beside each other."""
        heads = self._last("heads")
        return len({heads.at(1, column) for column in range(heads.block.width)} - {None}) if heads else 1

    @property
    def shown(self) -> tuple[range, range]:
        """Which rows and columns of the large head are shown: where its cells begin."""
        large = self._last("head")
        return (large.window.rows, large.window.columns) if large else (range(1), range(1))

    @property
    def zooms(self) -> int:
        """How many times the cells of the large head can be halved."""
        large = self._last("head")
        return large.zooms if large else 0

    @property
    def help_lines(self) -> int:
        """How many lines the help takes."""
        return len(help_rows())

    def at(self, look: ViewState, pane: Pane, line: int, column: int) -> ViewState | None:
        """Return the look at what stands at a place of a pane; None where nothing does."""
        room, drawn = self.room(look.kind), self._last(pane)
        if drawn is None or pane not in ("tokens", *MAPS):
            return None
        found = (drawn.drawn if pane == "head" else drawn).at(line, column)
        if found is None:
            return None
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

    def drawn(self, scene: RenderInput) -> Iterator[tuple[Pane, Block]]:
        """Yield each pane that has a place, and its block."""
        is_late = self._seen is not None and not self._seen.serves(scene.look) and not scene.is_patient
        for pane, place in scene.places.items():
            if pane in ("text", "line"):
                continue
            room = Bounds(place.height, place.width)
            try:
                if pane in self._words:
                    block = self._words[pane](scene, room)
                else:
                    found = self._looked_at(scene.look)
                    block = _NOTHING if found is None else self._numbers[pane](scene, *found, room)
            except Exception as error:  # one pane less, and the text that was typed is not lost
                block = crop(([Segment(line)] for line in in_words(self._palette.fit(reason(error)), room.width)), room)
            if is_late and pane in (*MAPS, "why", "cell", "tokens"):
                block = faded(block)
            yield pane, _chosen(block) if pane == scene.pane else block

    def _once(self, pane: Pane, draw: Callable[..., Any], *inputs: object) -> Any:
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
        cursor = CellCursor(look.head, look.query, look.key)
        port = (look.port.query, look.port.key, look.port.zoom)
        how = look.ramp, self._palette, room
        return self._once("head", large_head, sight, cursor, port, *how).drawn.block

    def _heads(self, scene: RenderInput, look: ViewState, sight: LayerViewCache, room: Bounds) -> Block:
        how = look.ramp, self._palette, room
        return self._once("heads", small_heads, sight, look.head, *how).block

    def _map(self, scene: RenderInput, look: ViewState, sight: LayerViewCache, room: Bounds) -> Block:
        assert self._seen is not None
        answer = self.answer if self.answer and self.answer.survey else self._seen
        kind, chosen = sight.layer.kind, (look.layer, scene.look.head)
        numbers: dict[tuple[int, int], float | None]
        if look.metric is None:
            title = "divergence from held"
            numbers = {(each.layer, each.head): each.jensen_shannon for each in answer.changes if each.kind == kind}
        else:
            title, heads = look.metric, answer.survey.heads if answer.survey else ()
            numbers = {(each.layer, each.head): each.metrics[look.metric] for each in heads if each.kind == kind}
        shape = kind, max(self._seen.room(look.kind).heads) + 1
        layers = {*answer.layers_of(kind), look.layer}
        return self._once("map", layer_map, title, numbers, layers, shape, chosen, self._palette, room).block

    def _why(self, scene: RenderInput, look: ViewState, sight: LayerViewCache, room: Bounds) -> Block:
        recorded = sight.trace.recorded
        layer = next(each for each in recorded.layers if (each.layer, each.kind) == (look.layer, sight.layer.kind))
        cursor = CellCursor(min(max(scene.look.head, 0), max(layer.heads)), look.query, look.key)
        return self._once("why", why_box, recorded, layer, cursor, self._palette, room)

    def _tokens(self, scene: RenderInput, room: Bounds) -> Block:
        answer = self.answer
        if answer is None or answer.tokens is None:
            return _NOTHING
        kind = scene.look.kind
        tokens = answer.room(kind).queries, answer.room(kind).keys
        look = scene.look.within(answer.room(kind))
        typed = None if scene.caret is None else _before(scene.caret, answer.tokens[1])
        # Of two sequences that are not one the text is the keys'.
        around = (typed if tokens[0] == answer.tokens[1] else None, typed if tokens[1] == answer.tokens[1] else None)
        return self._once("tokens", token_strip, tokens, look.query, look.key, around, self._palette, room).block

    # --- words

    def _cell(self, scene: RenderInput, room: Bounds) -> Block:
        block = self._status_lines(scene, room)
        return block._replace(lines=block.lines[:-1])  # none where there are no numbers yet

    def _status(self, scene: RenderInput, room: Bounds) -> Block:
        if "text" not in scene.places:
            return crop(([Segment(line)] for line in in_words(self._palette.fit(_SMALL), room.width)), room)
        status_message = scene.status
        if status_message.mistake is not None and "line" in scene.places:
            return self._pointed(
                scene.places["line"].x + status_message.mistake.start, status_message.mistake.reason, room
            )
        block = self._status_lines(scene, room)
        return block._replace(lines=block.lines[-1:])

    def _status_lines(self, scene: RenderInput, room: Bounds) -> Block:
        """Return the line of the cell, and that of what else is to be told."""
        answer, matters, facts = self.answer, scene.status.text, []
        if answer is not None and answer.failure and answer.look.question == scene.look.question:
            matters = matters or answer.failure
        elif answer is None or not answer.is_whole or not answer.serves(scene.look):
            facts.append("computing …")
        if scene.look.held is not None:
            facts.append(f"against {_differing(scene.look, scene.look.held)}")
        found = self._looked_at(scene.look)
        look, sight = (scene.look, None) if found is None else found
        cursor = CellCursor(look.head, look.query, look.key)
        # The line of the cell may be the one that is typed in.
        how = self._palette, Bounds(2 if "cell" in scene.places else 1, room.width)
        return self._once("cell", status, sight, cursor, matters, tuple(facts), *how)

    def _pointed(self, column: int, reason: str, room: Bounds) -> Block:
        """Return a line that points at a character above it, where it has room for that, and says what is wrong."""
        after, before = f"{' ' * column}^ {reason}", f"{reason} ^".rjust(column + 1)
        line = next((each for each in (after, before) if cell_len(each) <= room.width), reason)
        return self._line(self._palette.shortened(line, room.width), room, BOLD)

    def _mark(self, scene: RenderInput, room: Bounds) -> Block:
        return self._line("› ", room, BOLD if scene.pane == "text" else DIM)

    def _label(self, scene: RenderInput, room: Bounds) -> Block:
        return self._line(f"{scene.prompt}: ", room, BOLD)

    def _foot(self, scene: RenderInput, room: Bounds) -> Block:
        if scene.help_from is not None:
            line = "Esc closes the help  ↑ ↓ turn it"
        elif scene.prompt:
            line = f"Enter {'finds the next one' if scene.prompt == 'find' else 'takes it'}  Esc closes it"
        else:
            line = foot(scene.pane == "text", room.width)
        return self._line(line, room, DIM)

    def _help(self, scene: RenderInput, room: Bounds) -> Block:
        rows = help_rows()
        width = max(cell_len(keys) for keys, _ in rows) + 2
        lines = [
            [Segment(self._palette.fit(f"{keys:<{width}}"), BOLD), Segment(self._palette.fit(does))]
            for keys, does in rows
        ]
        return crop(lines[scene.help_from or 0 :], room)

    def _line(self, text: str, room: Bounds, style: Style | None = None) -> Block:
        text = self._palette.fit(visible(text))
        return crop([[Segment(text, style)]], room)


def _differing(look: ViewState, held: Query) -> str:
    """Return what is held, by what of it is another one now; the text if nothing is."""
    now = look.question
    if look.of(held) == look.of(now):
        if held.mask != now.mask:
            return f"mask {quoted(held.mask)}" if held.mask else "the model's own mask"
        for name, one, other in (("pair", held.pair, now.pair), ("target", held.target, now.target)):
            if one != other:
                return f"{name} {quoted(one)}" if one else f"no {name}"
    return quoted(look.of(held))


def _before(caret: int, tokens: Tokens) -> int | None:
    """Return the position of the token of the text whose letters were typed last."""
    ends = ((token.index, token.start) for token in tokens if token.segment == 0 and token.start is not None)
    return max((index for index, start in ends if start < caret), default=None)


def _chosen(block: Block) -> Block:
    """Return the block of the pane that keys are for: its title is reversed, which needs no colour."""
    if not block.lines or not block.lines[0]:
        return block
    (text, style, _), *rest = block.lines[0]
    return block._replace(
        lines=[[Segment(text, _REVERSE if style is None else style + _REVERSE), *rest], *block.lines[1:]]
    )
