"""The explorer as an application of Textual: a key makes another look, looks are asked for, what is there is drawn."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock, Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.cells import cell_len
from textual import events, work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.driver import Driver
from textual.worker import get_current_worker
from threadpoolctl import threadpool_limits

from attncli.explore.command import ViewSnapshot, What
from attncli.explore.computation import IncrementalComputation, reason
from attncli.explore.keys import KEYS
from attncli.explore.panes import BlockWidget, LineInput
from attncli.explore.renderer import LEAST, MAPS, Pane, PaneRenderer, RenderInput
from attncli.masks.parser import Mistake, mistake_in
from attncli.render.fit import Bounds
from attncli.signals import end

if TYPE_CHECKING:
    from attncli.engines.interactive import InteractiveSource
    from attncli.explore.computation import ComputedView
    from attncli.explore.view_state import Limits, ViewState
    from attncli.render.palette import Palette

Save = Callable[[ViewSnapshot, Path], str]  # writes what is seen, and says in a sentence what it wrote
_ALWAYS = {name for key in KEYS if not key.is_typed for name in key.names}
_OF_HELP = ("in_maps", "move", "end", "layer", "help", "escape", "leave", "suspend_process")
_LEAVING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_PATIENCE = 0.1  # seconds until a picture that is not true any more is drawn dim: what comes sooner would flicker
_CHANGES: dict[str, Callable[[ViewState, Limits, int], ViewState]] = {
    "head": lambda look, room, by: look.next_head(room, by),
    "kind": lambda look, room, by: look.next_kind(room),
    "hold": lambda look, room, by: look.holding(),
    "norms": lambda look, room, by: look.counting("norms"),
    "rollout": lambda look, room, by: look.counting("rollout"),
    "metric": lambda look, room, by: look.next_metric(by, room.layout is not None),
    "ramp": lambda look, room, by: look.next_ramp(),
}
_UNTIL_ENDED = 2  # seconds for ending as a person who leaves does
_HIGH, _WIDE = 20, 72  # lines from which tokens have two, and columns from which something stands beside the large head
_FRAMES = (100, 28)  # columns and lines from which panes have frames with sides
_WITH_BOTH = 13  # lines of the maps from which the map of layers stands above the small heads
_WITH_WHY, _WHY_LINES = 52, 14  # lines from which a part of the why stands below them, and its own


def run(model: InteractiveSource, look: ViewState, palette: Palette, save: Save) -> tuple[ViewSnapshot, bool]:
    """Let a person look around until they leave; return what they saw last, and whether the model still computes.

    Args:
        model: the model.
        look: what they see first.
        palette: how cells look on their terminal.
        save: writes what is seen; what it raises on purpose is told.

    Raises:
        RuntimeError: it failed, which Textual has said on stderr.
    """
    explorer = Explorer(model, look, palette, save, seeks_label=True)
    if hasattr(select, "poll"):  # which Windows has not
        Thread(target=_end_with_terminal, name="terminal", daemon=True).start()
    settled = {number: signal.getsignal(number) for number in _LEAVING}
    loop = asyncio.new_event_loop()  # `asyncio.run` would wait for the thread of the model
    try:
        loop.run_until_complete(explorer.run_until_signalled())
    finally:
        loop.close()
        for number, handler in settled.items():
            signal.signal(number, handler)
    if explorer.return_code:
        raise RuntimeError("the explorer failed")
    return explorer.seen, explorer.is_computing()


def _end_with_terminal() -> None:
    """End as by a SIGTERM when the terminal is gone, however that ended; Textual would wait for ever to write to it."""
    waiting = select.poll()
    waiting.register(0, 0)  # that the other end is closed is always reported
    if any(event & select.POLLHUP for _, event in waiting.poll()):
        os.kill(os.getpid(), signal.SIGTERM)
        sleep(_UNTIL_ENDED)
        end(signal.SIGHUP)


class Prompt(NamedTuple):
    """A line that is open below the maps: what is typed in it, and what was looked at when it was opened."""

    name: str
    before: ViewState


class _TolerantDriver:
    """A driver that outlives bytes that are no text, such as half a letter that was pasted; they are lost."""

    def run_input_thread(self) -> None:
        """Read what is typed until the end."""
        while True:
            try:
                return super().run_input_thread()  # type: ignore[misc]  # of the driver that it is mixed into
            except UnicodeDecodeError:
                continue


class Explorer(App[None]):
    """What `attn explore` shows."""

    CSS = """
    Screen { overflow: hidden; background: ansi_default; color: ansi_default; }
    #top, #below, #status, #foot { height: 1; }
    #mark { width: 2; }
    BlockWidget, #maps { width: 1fr; height: 1fr; }
    #head { width: 4fr; }
    #side { width: 3fr; padding-left: 2; }
    #map { max-height: 50%; }
    Screen.why #head, Screen.why #side { width: 1fr; }
    Screen.alone #side { width: 1fr; padding-left: 0; }
    Screen.alone #map { max-height: 100%; }
    LineInput {
        border: none; padding: 0; width: 1fr; background: ansi_default; color: ansi_default;
        background-tint: ansi_default 0%;
    }
    LineInput > .input--cursor { background: ansi_default; color: ansi_default; text-style: reverse; }
    LineInput > .input--selection { background: ansi_default; color: ansi_default; text-style: reverse; }
    """
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = "#text"
    # All of them before anything that has the focus; `on_event` says why.
    BINDINGS: ClassVar = [
        Binding(
            ",".join(key.names), f"in_maps({key.action!r})" if key.is_typed else key.action, key.does, priority=True
        )
        for key in KEYS
    ]

    def __init__(
        self, model: InteractiveSource, look: ViewState, palette: Palette, save: Save, seeks_label: bool = False
    ) -> None:
        super().__init__(ansi_color=True)
        self.look = look
        self._seeks_label = seeks_label  # whether it still goes to the head with the strongest label by itself
        self._save = save
        self._computation = IncrementalComputation(model)
        self._model = Lock()  # of whoever computes
        self._renderer = PaneRenderer(palette)
        self._pane: Pane = "text"
        self._map: Pane = "head"  # the last pane of these that was chosen
        self._prompt: Prompt | None = None
        self._message = ""  # what the status says besides how far the model is
        self._mistake: Mistake | None = None  # in the mask that is typed
        self._saving = ""  # the name of a file that is being written
        self._has_why = False
        self._help_from: int | None = None  # the first line of the help that is shown
        self._is_due = False
        self._patient_until = 0.0

    # --- the life of it

    async def run_until_signalled(self) -> None:
        """Run until the person leaves or a signal asks to end."""
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):  # Windows
            for number in _LEAVING:
                loop.add_signal_handler(number, self.exit)
        await self.run_async()

    def get_driver_class(self) -> type[Driver]:
        """Return the driver of this terminal."""
        return type("Driver", (_TolerantDriver, super().get_driver_class()), {})

    def compose(self) -> ComposeResult:
        """Yield the panes."""
        self._text, self._line = LineInput("text", self.look.question.text), LineInput("line")
        names: tuple[Pane, ...] = ("mark", "tokens", *MAPS, "why", "cell", "label", "status", "foot", "help")
        self._panes = panes = {name: BlockWidget(name) for name in names}
        side = Vertical(panes["map"], panes["heads"], panes["why"], id="side")
        top = Horizontal(panes["mark"], self._text, id="top")
        maps = Horizontal(panes["head"], side, id="maps")
        below = Horizontal(panes["cell"], panes["label"], self._line, id="below")
        # Each with what it is shown for.
        self._boxes = {top: "text", maps: "head map heads why", side: "map heads why", below: "cell line"}
        yield from (top, panes["tokens"], maps, below)
        yield from (panes["help"], panes["status"], panes["foot"])

    def on_mount(self) -> None:
        """Ask for the first look."""
        # The threads of BLAS wait for each other without sleeping, and drawing needs a core too: with them a short text
        # may take thirty times as long. For a long one the engine has threads of its own.
        self._one_thread = threadpool_limits(1, user_api="blas")
        # Who comes back from the shell finds an empty screen.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self._ask()
        self._draw()

    def on_unmount(self) -> None:
        """Let BLAS have its threads again."""
        self._one_thread.restore_original_limits()

    def on_resize(self) -> None:
        """Draw for the new size, which the application has when this event is over."""
        self._redraw()

    @work(thread=True, exclusive=True)
    def _compute(self, look: ViewState) -> None:
        """Compute what is looked at, stage by stage; what was computed before ends after the stage that it is in."""
        worker = get_current_worker()
        with self._model:
            results = self._computation.results(look)
            while not worker.is_cancelled and (result := next(results, None)):
                with suppress(RuntimeError):  # the application is over
                    self.call_from_thread(self._take, result)

    def _take(self, result: ComputedView) -> None:
        """Take what is computed so far, and keep the cursor on the tokens that it stands on."""
        before = self.room
        self._renderer.take(result)
        if result.look.question == self.look.question:
            self.look = self.look.carried(before, self.room)
            if self._seeks_label and result.is_whole and result.serves(self.look):
                self._go_to_label(result)
        self._redraw()

    def _go_to_label(self, result: ComputedView) -> None:
        """Go to the head with the strongest label, and there to what the last query attends to most."""
        found = result.most_telling or (self.look.layer, self.look.kind, self.look.head)
        layer, kind, head = found
        look = replace(self.look, layer=layer, kind=kind, head=head)
        if look.needs == self.look.needs:
            self._seeks_label = False
            look = result.at_heaviest(look)
        self.look = look
        if self._seeks_label:
            self._ask()

    def is_computing(self) -> bool:
        """Return whether the model still computes, and does not end within a moment."""
        return not self._model.acquire(timeout=_PATIENCE)

    # --- looking

    def go(self, look: ViewState | None) -> None:
        """Look at something else; None is that there is nothing there."""
        if look is None or look == self.look:
            return
        if look.query != self.look.query:
            look = self._renderer.settled(look)
        is_asked = look.needs != self.look.needs
        self._seeks_label &= (look.layer, look.head) == (self.look.layer, self.look.head)
        self.look = look
        if self._prompt is None:
            self._message, self._mistake = "", None
        if is_asked:
            self._ask()
        self._redraw()

    @property
    def seen(self) -> ViewSnapshot:
        """What the person sees, or saw before something went wrong."""
        of_pane: dict[Pane, What] = {"heads": "heads", "map": "map"}
        what = "why" if self._has_why else of_pane.get(self._pane, "head")
        return ViewSnapshot(self._renderer.seen(self.look), what, self._renderer.shows_pictures)

    def _ask(self) -> None:
        self._compute(self.look)
        self._patient_until = monotonic() + _PATIENCE
        self.set_timer(_PATIENCE, self._redraw)

    @property
    def room(self) -> Limits:
        """How far one can look, as far as it is known."""
        return self._renderer.room(self.look.kind)

    # --- drawing

    def _redraw(self) -> None:
        """Draw once what has come so far is dealt with, however much that is."""
        if not self._is_due:
            self._is_due = True
            self.call_later(self._draw)

    def on_block_widget_resized(self) -> None:
        """Draw what has another room now."""
        self._redraw()

    def _draw(self) -> None:
        self._is_due = False
        if not self._text.is_attached:  # the application is over
            return
        self._arrange()
        scene = RenderInput(
            self.look,
            self._pane,
            self._text.cursor_position if self._pane == "text" else None,
            self._message,
            self._mistake,
            "" if self._prompt is None else self._prompt.name,
            self._help_from,
            monotonic() < self._patient_until,
            self._is_too_small,
            self._has_frames,
        )
        for name, pane in self._panes.items():
            if pane.display and pane.size.area:
                pane.show(self._renderer.drawn(name, scene, Bounds(pane.size.height, pane.size.width)))

    @property
    def _is_too_small(self) -> bool:
        return self.size.width < LEAST[0] or self.size.height < LEAST[1]

    @property
    def _has_frames(self) -> bool:
        return self.size.width >= _FRAMES[0] and self.size.height >= _FRAMES[1]

    def _arrange(self) -> None:
        """Say which panes there are, and how large those are whose size is not always the same."""
        (width, height), panes = self.size, self._panes
        is_open, is_high, is_wide = self._prompt is not None, height >= _HIGH, width >= _WIDE
        message = self._renderer.message(self.look, self._message)
        is_long = cell_len(message) > width and not is_open  # and takes the line of the cell
        shown: set[str] = set()
        if self._is_too_small:
            shown = {"status"}
        elif self._help_from is not None:
            shown = {"help", "foot"}
        else:
            has_both = is_wide and not self._has_why and height - 4 - (2 if is_high else 1) >= _WITH_BOTH
            maps = (
                {"map", "heads"} | ({"why"} if height >= _WITH_WHY else set())
                if has_both
                else {"why"}
                if self._has_why
                else {self._map} - {"head"}
            )
            if is_wide:
                maps = {"head"} | (maps or {"map"})
            shown = {"mark", "text", "tokens", "status", "foot", *(maps or {"head"})}
            shown |= {"label", "line"} if is_open else set() if is_long else {"cell"}
        for widget in (*panes.values(), self._text, self._line):
            widget.display = widget.id in shown
        if "text" in shown and self.focused is None and (is_open or self._pane == "text"):
            self.set_focus(self._line if is_open else self._text)  # which it had before the terminal was too small
        for box, parts in self._boxes.items():
            box.display = not shown.isdisjoint(parts.split())
        self.screen.set_class(self._has_why, "why")
        self.screen.set_class("head" not in shown, "alone")
        panes["map"].styles.height = self._renderer.map_lines + self._has_frames if {"map", "heads"} <= shown else "1fr"
        panes["map"].styles.max_height = "50%" if {"map", "heads"} <= shown else "100%"
        panes["why"].styles.height = _WHY_LINES if {"why", "heads"} <= shown else "1fr"
        frame, most = 2 * self._has_frames, 2 if is_high else 1
        panes["tokens"].styles.height = frame + (self._renderer.token_lines(width - 2 * frame, most) if frame else most)
        panes["status"].styles.height = height if self._is_too_small else 1 + is_long
        panes["label"].styles.width = len(self._prompt.name) + 2 if self._prompt is not None else 0

    # --- what is typed

    async def on_event(self, event: events.Event) -> None:
        """Deal with a key before the next one: several come in one go over a slow line, and a widget has a queue."""
        if not isinstance(event, events.Key | events.Paste):
            await super().on_event(event)
            return
        self.app_focus = True  # as whoever types has it; a terminal may say so later
        try:
            line = self.focused
            is_typed = isinstance(event, events.Paste) or event.key not in _ALWAYS
            if is_typed and isinstance(line, LineInput) and await line.takes(event):
                self._typed(line.value)
            else:
                await super().on_event(event)
        except Exception as error:  # a key that does nothing, and the text that was typed is not lost
            self._say(reason(error))

    def _typed(self, value: str) -> None:
        """Look at what is typed, in the text or in the line below the maps."""
        if self._prompt is None:
            self.go(self.look.asking(value))
        elif self._prompt.name == "find":
            before = self._prompt.before
            found = before.finding(self.room, value) if value else before
            self.go(found)
            self._say("" if found else f"no token has {value}")
        elif self._prompt.name == "mask":
            mistake = mistake_in(value) if value.strip() else None
            if mistake is None:
                self.go(self.look.masked(value))
            self._say("" if mistake is None else mistake.reason, mistake)
        elif self._prompt.name != "save":
            self.go(self.look.with_text(self._prompt.name, value))

    def action_enter(self) -> None:
        """Take what is typed: leave the text, find the next token, keep the mask, or save; in the maps type."""
        line = self.focused
        if not isinstance(line, LineInput):
            self._enter("text")
        elif self._prompt is None:
            self._enter(self._map)
        elif self._prompt.name == "find":
            self.go(self.look.finding(self.room, line.value))
        elif self._prompt.name == "save":
            self._save_as(line.value.strip())
        elif self._mistake is None:
            self._enter(self._map)

    def _save_as(self, name: str) -> None:
        if self._saving:
            self._say(f"still saving {self._saving} …")
        elif name:
            self._enter(self._map)
            self._saving = name
            self._say(f"saving {name} …")
            # As a daemon: whoever leaves waits for no file, and the command that writes it ends by itself.
            Thread(target=self._saved, args=(self.seen, Path(name)), name="saving", daemon=True).start()

    def _saved(self, seen: ViewSnapshot, path: Path) -> None:
        """Save, in a thread of its own: it may take as long as computing what is looked at."""
        try:
            text = self._save(seen, path)
        except Exception as error:
            text = reason(error)
        self._saving = ""
        with suppress(RuntimeError):  # the application is over
            self.call_later(self._say, text)

    def action_cut(self) -> None:
        """Show what the next token becomes without the head, or without the cell that the cursor is on."""
        self._say("computing the next token without it …")
        self._cut(self.look.within(self.room), self._pane == "head" and not self._renderer.shows_pictures)

    @work(thread=True, exclusive=True, group="cut")
    def _cut(self, look: ViewState, is_cell: bool) -> None:
        try:
            with self._model:
                text = self._computation.cut(look, is_cell)
        except Exception as error:
            text = reason(error)
        if look == self.look.within(self.room):
            with suppress(RuntimeError):  # the application is over
                self.call_from_thread(self._say, text)

    def action_open(self, name: str) -> None:
        """Open the line below the maps."""
        self._prompt = Prompt(name, self.look)
        line, values = self._line, {"find": "", "save": "attention.svg"} | self.look.question._asdict()
        line.display = True  # which is what may have the focus
        line.value = values[name] or ""
        line.cursor_position = len(line.value)
        self.set_focus(line)
        self._say()

    def _say(self, text: str = "", mistake: Mistake | None = None) -> None:
        self._message, self._mistake = text, mistake
        self._line.point(range(0) if mistake is None else range(mistake.start, mistake.end))
        self._redraw()

    # --- panes

    def _enter(self, pane: Pane) -> None:
        """Make a pane the one that keys are for; a line that is open is closed, with what was said of it."""
        if self._prompt is not None:
            self._prompt = None
            self._say()
        self._pane = pane
        if pane in MAPS:
            self._map = pane
        self.set_focus(self._text if pane == "text" else None)
        self._redraw()

    def action_turn(self, by: int) -> None:
        """Go to the pane so many places after this one."""
        panes = ("text", *MAPS)
        self._enter(panes[(panes.index(self._pane) + by) % len(panes)])

    def action_type(self) -> None:
        """Go to the text."""
        self._enter("text")

    def action_escape(self) -> None:
        """Close what is open, the help or a line, or leave the text."""
        if self._help_from is not None:
            self.action_help()
        elif self._prompt is not None:
            self.go(replace(self.look, question=self._prompt.before.question))
            self._enter(self._map)
        elif self._pane == "text":
            self._enter(self._map)
        elif self._has_why:
            self.action_why()

    # --- keys

    def action_move(self, rows: int, columns: int) -> None:
        """Move the cursor, or in the small maps and the map go to another head or layer."""
        if self._help_from is not None:
            self._turn_help(rows)
        elif self._pane == "map":
            self.go(self.look.next_layer(self.room, rows) if rows else self.look.next_head(self.room, columns))
        elif self._pane == "heads":
            self.go(self.look.next_head(self.room, columns + rows * self._renderer.heads_in_a_line))
        else:
            self.go(self._renderer.moved(self.look, rows, columns))

    def action_end(self, side: int) -> None:
        """Go to the first or the last query, head or layer."""
        self.action_move(side * 1_000_000, 0)

    def action_layer(self, by: int) -> None:
        """Go to the layer so many places after this one; of the help, a page."""
        if self._help_from is not None:
            self._turn_help(by * (self.size.height - 2))
        else:
            self.go(self.look.next_layer(self.room, by))

    def action_look(self, change: str, by: int = 1) -> None:
        """Look at another head, kind of attention or metric, or in another way."""
        self.go(_CHANGES[change](self.look, self.room, by))

    def action_zoom(self, by: int) -> None:
        """Show less of a long text, or more of it."""
        self.go(self.look.zoomed(self._renderer.shown, self._renderer.zooms, by))

    def action_why(self) -> None:
        """Say why the query attends to the key, or say no more of it."""
        self._has_why = not self._has_why
        self._redraw()

    def action_leave(self) -> None:
        """Leave."""
        self.exit()

    def action_help(self) -> None:
        """Show the keys, or show them no more."""
        is_open = self._help_from is not None
        self._enter(self._pane)
        self._help_from = None if is_open else 0
        if not is_open:
            self.set_focus(None)

    def _turn_help(self, by: int) -> None:
        most = max(self._renderer.help_lines - self.size.height + 1, 0)
        self._help_from = min(max((self._help_from or 0) + by, 0), most)
        self._redraw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether a key does what it does: letters are those of a line while one is typed in."""
        if action == "in_maps":
            return not isinstance(self.focused, LineInput)
        # While the help is shown, that is turned or closed.
        return self._help_from is None or action in _OF_HELP

    async def action_in_maps(self, action: str) -> None:
        """Do what a letter means where nothing is typed; what leaves the program leaves the help first."""
        await self.run_action("help" if self._help_from is not None and action == "leave" else action)

    # --- the mouse

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """A click into the text goes there; keys that came since may have left it again."""
        if event.widget.id == "text" and event.widget is self.focused and self._pane != "text":
            self._enter("text")

    def on_block_widget_clicked(self, message: BlockWidget.Clicked) -> None:
        """Go to what was clicked."""
        pane = next((pane for pane in ("tokens", *MAPS) if pane == message.pane.id), None)
        if pane is None:
            return
        if pane in MAPS and self._prompt is None:
            self._enter(pane)
        self.go(self._renderer.at(self.look, pane, message.y, message.x))

    def on_block_widget_turned(self, message: BlockWidget.Turned) -> None:
        """Move through a long text, or the layers; with Ctrl zoom."""
        if message.is_zoom:
            self.action_zoom(-message.by)
        elif self._help_from is not None:
            self._turn_help(message.by * 3)
        elif message.pane.id == "map":
            self.go(self.look.next_layer(self.room, message.by))
        elif message.pane.id == "heads":
            self.go(self.look.next_head(self.room, message.by))
        else:
            rows, columns = (0, message.by) if message.is_sideways else (message.by, 0)
            self.go(self.look.scrolled(self.room, self._renderer.shown, rows, columns))
