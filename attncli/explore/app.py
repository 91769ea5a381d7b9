"""The explorer as an application of Textual: each key makes another view, which is computed in a thread and drawn."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from contextlib import suppress
from dataclasses import replace
from threading import Lock, Thread
from time import sleep
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from textual import events, work
from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical
from textual.driver import Driver
from textual.widgets import HelpPanel, Input, Label
from textual.worker import get_current_worker
from threadpoolctl import threadpool_limits

from attncli.explore.command import What
from attncli.explore.computation import ComputedView, IncrementalComputation, reason
from attncli.explore.keys import KEYS
from attncli.explore.panes import KeyFooter, LineInput, Pane
from attncli.explore.view_state import Limits, ViewState
from attncli.masks.parser import mistake_in
from attncli.render.explore.head import large_head
from attncli.render.explore.heads import layer_map, small_heads
from attncli.render.explore.pane import CellCursor
from attncli.render.explore.words import cell_line, status_line, tokens, why_box
from attncli.signals import end

if TYPE_CHECKING:
    from attncli.engines.interactive import InteractiveSource
    from attncli.render.explore.layer_view import LayerViewCache
    from attncli.render.palette import Palette

_LEAVING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_PATIENCE = 0.1  # seconds until an outdated map becomes grey, which would flicker otherwise
_UNTIL_ENDED = 2  # seconds for an orderly end
LEAST = (60, 20)  # columns and lines of a terminal


def run(model: InteractiveSource, look: ViewState, palette: Palette) -> tuple[ViewState, What, bool]:
    """Run the explorer until it is left; return the last view, its pane, and whether the model still computes.

    Args:
        model: the model.
        look: the first view.
        palette: the colours of the terminal.

    Raises:
        RuntimeError: it failed, which Textual has printed on stderr.
    """
    explorer = Explorer(model, look, palette, seeks_label=True)
    if hasattr(select, "poll"):  # which Windows has not
        Thread(target=_end_with_terminal, name="terminal", daemon=True).start()
    handlers = {number: signal.getsignal(number) for number in _LEAVING}
    loop = asyncio.new_event_loop()  # `asyncio.run` would wait for the thread of the model
    try:
        loop.run_until_complete(explorer.run_until_signalled())
    finally:
        loop.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if explorer.return_code:
        raise RuntimeError("the explorer failed")
    return *explorer.seen, explorer.is_computing()


def _end_with_terminal() -> None:
    """End as by a SIGTERM when the terminal is gone; Textual would wait for ever to write to it."""
    waiting = select.poll()
    waiting.register(0, 0)  # a hang-up is always reported
    if any(event & select.POLLHUP for _, event in waiting.poll()):
        os.kill(os.getpid(), signal.SIGTERM)
        sleep(_UNTIL_ENDED)
        end(signal.SIGHUP)


class Prompt(NamedTuple):
    """The line that is open below the maps, and the view when it was opened."""

    name: str
    before: ViewState


class _TolerantDriver:
    """A driver that skips bytes that are not UTF-8, as of a letter that was pasted in part."""

    def run_input_thread(self) -> None:
        while True:
            try:
                return super().run_input_thread()  # type: ignore[misc]  # of the driver that it is mixed into
            except UnicodeDecodeError:
                continue


class Explorer(App[None]):
    """The application of `attn explore`."""

    CSS = """
    Screen { overflow: hidden; background: ansi_default; color: ansi_default; }
    Pane { width: 1fr; height: 1fr; }
    #top, #prompt, #cell, #status { height: 1; }
    #mark, #label { width: auto; }
    #tokens, #maps Pane { border: round ansi_bright_black; border-title-color: ansi_default; padding: 0 1; }
    #maps Pane:focus { border: round ansi_cyan; }
    #head { width: 4fr; }
    #side { width: 3fr; }
    #map { max-height: 50%; }
    #tooSmall { width: 1fr; height: auto; }
    #why, #tooSmall, Screen.why #map, Screen.why #heads { display: none; }
    Screen.why #why { display: block; }
    Screen.why #side { width: 4fr; }
    Screen.small > * { display: none; }
    Screen.small > #tooSmall { display: block; }
    HelpPanel { width: 50%; }
    LineInput, LineInput:focus {
        border: none; padding: 0; width: 1fr; background: ansi_default; color: ansi_default;
        background-tint: ansi_default 0%;
    }
    LineInput > .input--cursor, LineInput > .input--selection {
        background: ansi_default; color: ansi_default; text-style: reverse;
    }
    Footer, FooterKey, FooterKey .footer-key--description { background: ansi_default; color: ansi_default; }
    FooterKey .footer-key--key { background: ansi_default; color: ansi_cyan; }
    """
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = "#text"
    BINDINGS: ClassVar = [*KEYS]

    def __init__(self, model: InteractiveSource, look: ViewState, palette: Palette, seeks_label: bool = False) -> None:
        super().__init__(ansi_color=True)
        self.look = look
        self.result: ComputedView | None = None  # the last one
        self._shown: ComputedView | None = None  # the last one with numbers
        self._palette = palette
        self._seeks_label = seeks_label  # whether it goes to the head with the strongest label
        self._computation = IncrementalComputation(model)
        self._model = Lock()
        self._map: What = "head"  # the last pane of maps that had the focus
        self._has_why = False
        self._prompt: Prompt | None = None
        self._message = ""
        self._is_patient = False
        self._is_due = False

    # --- start and end ---

    async def run_until_signalled(self) -> None:
        """Run until the user leaves or a signal arrives."""
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):  # Windows
            for number in _LEAVING:
                loop.add_signal_handler(number, self.exit)
        await self.run_async()

    def get_driver_class(self) -> type[Driver]:
        """Return the driver of this terminal."""
        return type("Driver", (_TolerantDriver, super().get_driver_class()), {})

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
        self._text, self._line = LineInput("text", self.look.question.text), LineInput("line")
        self._label = Label("", id="label", markup=False)
        self._panes = {name: Pane(name, name in ("head", "map", "heads")) for name in (
            "tokens", "head", "map", "heads", "why", "cell", "status",
        )}  # fmt: skip
        panes = self._panes
        yield Horizontal(Label("› ", id="mark"), self._text, id="top")
        yield panes["tokens"]
        yield Horizontal(panes["head"], Vertical(panes["map"], panes["heads"], panes["why"], id="side"), id="maps")
        yield panes["cell"]
        self._below = Horizontal(self._label, self._line, id="prompt")
        self._below.display = False
        yield self._below
        yield panes["status"]
        yield KeyFooter(compact=True, show_command_palette=False)
        yield Label(
            f"The terminal is too small: attn explore needs {LEAST[0]} columns and {LEAST[1]} lines.", id="tooSmall"
        )

    def on_mount(self) -> None:
        """Compute the first view."""
        # The threads of BLAS wait for each other without sleeping, and drawing needs a core too: with them a short text
        # may take thirty times as long. For a long one the engine has threads of its own.
        self._one_thread = threadpool_limits(1, user_api="blas")
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))  # after the shell
        self._compute()
        self._redraw()

    def on_unmount(self) -> None:
        """Give BLAS its threads back."""
        self._one_thread.restore_original_limits()

    def on_resize(self, event: events.Resize) -> None:
        """Draw for the new size."""
        self.screen.set_class(event.size.width < LEAST[0] or event.size.height < LEAST[1], "small")
        self._redraw()

    def is_computing(self) -> bool:
        """Return whether the model still computes, and does not end within a moment."""
        return not self._model.acquire(timeout=_PATIENCE)

    # --- computation ---

    def _compute(self) -> None:
        self._results(self.look)
        self._is_patient = True
        self.set_timer(_PATIENCE, self._grow_impatient)

    def _grow_impatient(self) -> None:
        self._is_patient = False
        self._redraw()

    @work(thread=True, exclusive=True)
    def _results(self, look: ViewState) -> None:
        """Compute a view, stage by stage; the computation before ends after its stage."""
        worker = get_current_worker()
        with self._model:
            results = self._computation.results(look)
            while not worker.is_cancelled and (result := next(results, None)):
                with suppress(RuntimeError):  # the application is over
                    self.call_from_thread(self._update, result)

    def _update(self, result: ComputedView) -> None:
        """Show a result, with the cursor on the tokens that it was on."""
        before = self.limits
        self.result = result
        if result.sights:
            self._shown = result
        if result.look.question == self.look.question:
            self.look = self.look.carried(before, self.limits)
            if self._seeks_label and result.is_whole and result.serves(self.look):
                self._go_to_label(result)
        self._redraw()

    def _go_to_label(self, result: ComputedView) -> None:
        """Go to the head with the strongest label, and there to the heaviest key of the last query."""
        layer, kind, head = result.most_telling or (self.look.layer, self.look.kind, self.look.head)
        look = replace(self.look, layer=layer, kind=kind, head=head)
        self._seeks_label = look.needs != self.look.needs
        self.look = look if self._seeks_label else result.at_heaviest(look)
        if self._seeks_label:
            self._compute()

    # --- views ---

    @property
    def limits(self) -> Limits:
        """Layers, heads and tokens that can be shown, as far as they are known."""
        return Limits() if self.result is None else self.result.limits(self.look.kind)

    def go(self, look: ViewState | None) -> None:
        """Show another view, if there is one."""
        if look is None or look == self.look:
            return
        is_other = look.needs != self.look.needs
        self._seeks_label &= (look.layer, look.head) == (self.look.layer, self.look.head)
        self.look = look
        if self._prompt is None:
            self._message = ""
        if is_other:
            self._compute()
        self._redraw()

    @property
    def seen(self) -> tuple[ViewState, What]:
        """The view on the screen, of the numbers that are there, and the pane that has the focus."""
        look, shown = self.look, self._shown
        what: What = "why" if self._has_why else self._map
        if shown is None:
            return look, what
        if not shown.serves(look):
            look = replace(look, question=shown.look.question, layer=shown.look.layer, numbers=shown.look.numbers)
        limits, sight = shown.limits(look.kind), shown.sight(look.kind)
        assert sight is not None
        kind = sight.layer.kind if len(limits.kinds) > 1 else None
        look = replace(look.within(limits), layer=sight.layer.layer, kind=kind)
        return look, what

    # --- drawing ---

    def _redraw(self) -> None:
        """Draw once the events that have arrived are handled."""
        if not self._is_due:
            self._is_due = True
            self.call_later(self._draw)

    def on_pane_resized(self) -> None:
        """Draw for the new size of a pane."""
        self._redraw()

    def _draw(self) -> None:
        self._is_due = False
        if not self._text.is_attached:  # the application is over
            return
        shown, result = self._shown, self.result
        sight = None if shown is None else shown.sight(self.look.kind)
        if shown is not None and sight is not None:
            self._draw_maps(shown, sight)
        is_current = result is not None and result.is_whole and result.serves(self.look)
        failure = result.failure if result is not None and result.look.question == self.look.question else ""
        messages = (self._message or failure or ("" if is_current else "computing …"),)
        self._panes["status"].draw(status_line, sight, messages)

    def _draw_maps(self, shown: ComputedView, sight: LayerViewCache) -> None:
        panes, palette, layer = self._panes, self._palette, sight.layer
        is_late = not shown.serves(self.look) and not self._is_patient
        look = replace(self.look.within(shown.limits(self.look.kind)), layer=layer.layer)
        chosen = look.layer, look.head
        if look.head not in layer.heads:  # a rollout has one
            look = replace(look, head=layer.heads[0])
        cursor = CellCursor(look.head, look.query, look.key)
        measured = self.result if self.result and self.result.survey else shown
        labels = measured.labels(sight)
        panes["head"].draw(large_head, sight, cursor, look.ramp, palette, labels.get(look.head, ""), is_late=is_late)
        panes["heads"].draw(small_heads, sight, look.head, look.ramp, palette, labels, is_late=is_late)
        panes["tokens"].draw(tokens, sight, cursor, look.ramp, palette, is_late=is_late)
        panes["tokens"].styles.height = len(panes["tokens"].content.block.lines) + 2  # of its border
        panes["cell"].draw(cell_line, sight, cursor, palette, is_late=is_late)
        panes["why"].draw(why_box, sight, cursor._replace(head=chosen[1]), palette, is_late=is_late)
        heads = measured.survey.heads if measured.survey else ()
        numbers = {(each.layer, each.head): each.metrics.get(look.metric) for each in heads if each.kind == layer.kind}
        layers = sorted({*measured.layers_of(layer.kind), look.layer})
        count = max(shown.limits(look.kind).heads) + 1
        panes["map"].styles.height = len(layers) + 4  # with its border, its ticks and its legend
        panes["map"].draw(layer_map, look.metric, numbers, layers, count, chosen, palette, is_late=is_late)

    def _say(self, text: str = "") -> None:
        self._message = text
        self._redraw()

    # --- lines to type in ---

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show the view of what is typed."""
        value = event.value
        if event.input is self._text:
            self.go(self.look.asking(value))
        elif self._prompt is None:
            return
        elif self._prompt.name == "find":
            found = self._prompt.before.finding(self.limits, value) if value else self._prompt.before
            self.go(found)
            self._say("" if found else f"no token has {value}")
        elif self._prompt.name == "mask":
            mistake = mistake_in(value) if value.strip() else None
            if mistake is None:
                self.go(self.look.with_text("mask", value.strip()))
            self._say("" if mistake is None else mistake.reason)
        else:
            self.go(self.look.with_text(self._prompt.name, value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Leave the text, find the next token, or take what is typed."""
        name = None if self._prompt is None else self._prompt.name
        if name == "find":
            self.go(self.look.finding(self.limits, event.value))
        elif name != "mask" or not event.value.strip() or mistake_in(event.value) is None:  # a mistake is not taken
            self._to_maps()

    def action_open(self, name: str) -> None:
        """Open the line below the maps."""
        self._prompt = Prompt(name, self.look)
        value = {"find": ""} | self.look.question._asdict()
        with self.prevent(Input.Changed):
            self._line.value = value[name] or ""
        self._line.cursor_position = len(self._line.value)
        self._label.update(f"{name}: ")
        self._below.display, self._panes["cell"].display = True, False
        self.set_focus(self._line)
        self._say()

    def _to_maps(self) -> None:
        self._close_prompt()
        self.set_focus(self._panes[self._map])

    def _close_prompt(self) -> None:
        if self._prompt is not None:
            self._prompt = None
            self._below.display, self._panes["cell"].display = False, True
            self._say()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Close the line below the maps when another pane has the focus."""
        widget = event.widget
        if widget is not self.focused:  # any more: keys that came since have moved it
            return
        if widget is not self._line:
            self._close_prompt()
        if isinstance(widget, Pane):
            self._map = widget.id  # type: ignore[assignment]  # those that can have the focus

    def action_type(self) -> None:
        """Go to the text."""
        self.set_focus(self._text)

    def action_escape(self) -> None:
        """Close what is open, or leave the text."""
        if self.screen.query(HelpPanel):
            self.action_hide_help_panel()
        elif self._prompt is not None:
            self.go(replace(self.look, question=self._prompt.before.question))
            self._to_maps()
        elif self.focused is self._text:
            self._to_maps()
        elif self._has_why:
            self.action_why()

    # --- keys ---

    def action_move(self, rows: int, columns: int) -> None:
        """Move the cursor; in the small maps and in the map of layers go to another head or layer."""
        pane = self.focused.id if isinstance(self.focused, Pane) else self._map
        steps = self._panes[pane or "head"].content.steps
        if pane == "map":
            self.go(self.look.next_layer(self.limits, rows) if rows else self.look.next_head(self.limits, columns))
        elif pane == "heads":
            self.go(self.look.next_head(self.limits, columns + rows * steps[0]))
        else:
            self.go(self.look.moved(self.limits, rows * steps[0], columns * steps[1]))

    def action_end(self, side: int) -> None:
        """Go to the first or the last query, head or layer."""
        self.action_move(side * 1_000_000, 0)

    def action_layer(self, by: int) -> None:
        """Go to another layer."""
        self.go(self.look.next_layer(self.limits, by))

    def action_head(self, by: int) -> None:
        """Go to another head."""
        self.go(self.look.next_head(self.limits, by))

    def action_kind(self) -> None:
        """Show the next kind of attention."""
        self.go(self.look.next_kind(self.limits))

    def action_numbers(self, numbers: Any) -> None:
        """Show norms or the rollout, or the weights again."""
        self.go(self.look.counting(numbers))

    def action_metric(self, by: int) -> None:
        """Show another metric of layers × heads."""
        self.go(self.look.next_metric(by))

    def action_ramp(self) -> None:
        """Show another scale of colours."""
        self.go(self.look.next_ramp())

    def action_why(self) -> None:
        """Show why the query attends to the key, or close it."""
        self._has_why = not self._has_why
        self.screen.set_class(self._has_why, "why")
        if self._has_why:
            self.set_focus(self._panes["head"])
        self._redraw()

    def action_help(self) -> None:
        """Show the keys of the pane with the focus, or close them."""
        if self.screen.query(HelpPanel):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()

    def action_cut(self) -> None:
        """Show the next token without the head, or without the cell of the cursor."""
        self._say("computing the next token without it …")
        self._cut(self.look.within(self.limits), self._map == "head")

    @work(thread=True, exclusive=True, group="cut")
    def _cut(self, look: ViewState, is_cell: bool) -> None:
        try:
            with self._model:
                text = self._computation.cut(look, is_cell)
        except Exception as error:
            text = reason(error)
        if look == self.look.within(self.limits):
            with suppress(RuntimeError):  # the application is over
                self.call_from_thread(self._say, text)
