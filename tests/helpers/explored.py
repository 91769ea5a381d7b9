"""The explorer in this process, on a terminal in memory: what it draws after some keys."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from emulated import Emulated
from rich.segment import Segment
from textual import events
from textual.drivers.headless_driver import HeadlessDriver
from textual.pilot import Pilot

from attncli.engines.interactive import Query, open_interactive
from attncli.explore.app import Explorer
from attncli.explore.panes import BlockWidget, LineInput
from attncli.explore.view_state import ViewState
from attncli.render.block import trimmed
from attncli.render.palette import Palette

MATERIALS = Path(__file__).parents[2] / "docs" / "cookbook" / "files"
_KEYS = {"Esc": "escape", "Tab": "tab", "Enter": "enter", "↑": "up", "↓": "down", "←": "left", "→": "right"}
_KEYS |= {"PgDn": "pagedown", "Home": "home", "End": "end", "Backspace": "backspace", "Delete": "delete"}


class KeyWalk:
    """An explorer that runs, and the terminal that it draws on."""

    def __init__(self, app: Explorer, screen: Emulated) -> None:
        self.screen = screen
        self._app = app

    async def press(self, *keys: str) -> None:
        """Press keys as people call them, or type texts, and wait for the picture each time."""
        for key in keys:
            await send(self._app, *([key] if key in _KEYS else key))
            await self.drawn()

    async def drawn(self) -> None:
        """Wait for the picture of what was typed last."""
        await fact(self._is_answered)
        await send(self._app)
        await fact(lambda: is_laid_out(self._app))
        frames = self.screen.frames
        self._app.screen.refresh()
        await fact(lambda: self.screen.frames > frames)

    def _is_answered(self) -> bool:
        answer = self._app._renderer.answer
        return answer is not None and answer.is_whole and answer.serves(self._app.look)


async def send(app: Explorer, *keys: str) -> None:
    """Press keys, and wait until they have been dealt with: one goes to the line, and up to the application.

    Textual's own pilot waits for an idle processor besides.
    """
    for key in keys:
        is_character = len(key) == 1 and key not in _KEYS
        name = (key if key.isalnum() else _named(key)) if is_character else _KEYS.get(key, key)
        app.post_message(events.Key(name, key if is_character else None))
    for _ in range(3):
        for pump in (app, app.focused, app.screen, app):
            if pump is not None:
                done = asyncio.Event()
                pump.call_later(done.set)
                await asyncio.wait_for(done.wait(), 60)


def is_laid_out(app: Explorer) -> bool:
    """Return whether every pane has the size that it is to have, and is drawn for it."""
    panes = [pane for pane in app.query(BlockWidget) if pane.display and pane.size.area]
    is_due = app._is_due or app.screen._layout_required
    return not is_due and all(pane.drawn_for == pane.size for pane in panes)


def _named(character: str) -> str:
    """Return what Textual calls the key of a character that is no letter."""
    name = unicodedata.name(character).lower().replace("-", "_").replace(" ", "_")
    return {"solidus": "slash", "hyphen_minus": "minus", "plus_sign": "plus"}.get(name, name)


async def fact(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.002)


def explored(
    command: str, columns: int, lines: int, walk: Callable[[KeyWalk], Any], environment: Mapping[str, str]
) -> None:
    """Run the explorer as a command line says, and walk through it."""
    arguments = iter(shlex.split(command)[2:])
    model, text, tier, images = "demo", "", "truecolor", list[str]()
    for argument in arguments:
        if argument == "-m":
            model = next(arguments)
        elif argument == "--image":
            images.append(str(MATERIALS / next(arguments)))
        elif argument == "--color":
            tier = {"never": "blocks"}[next(arguments)]
        else:
            text = argument
    screen = Emulated(columns, lines)

    class Driver(HeadlessDriver):
        is_headless = False

        def write(self, data: str) -> None:
            screen.feed(data)

    async def within() -> None:
        app = Explorer(
            open_interactive(model=model, image=images),
            ViewState(Query(text)),
            Palette(tier),
            lambda look, path: "",
            seeks_label=True,
        )
        app.driver_class = Driver

        async def walked(_: Pilot[None]) -> None:
            one = KeyWalk(app, screen)
            try:
                await one.drawn()
                await walk(one)
            finally:
                app.exit()

        await app.run_async(size=(columns, lines), auto_pilot=walked)

    # Textual asks the environment how many colours its terminal has.
    others = {
        name: value for name, value in environment.items() if name not in {"NO_COLOR", "COLORTERM", "FORCE_COLOR"}
    }
    with patch.dict(os.environ, others | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}, clear=True):
        asyncio.run(within())


def screen_of(
    command: str, columns: int, lines: int, keys: str, environment: Mapping[str, str]
) -> list[Sequence[Segment]]:
    """Return what the explorer shows after some keys; a text to type stands in quotes."""
    seen: list[Sequence[Segment]] = []

    async def walk(one: KeyWalk) -> None:
        await one.press(*pressed(keys))
        seen.extend(map(trimmed, one.screen.lines()))

    explored(command, columns, lines, walk, environment)
    return seen


def pressed(keys: str) -> Iterator[str]:
    """Yield the keys and texts of a line such as `Esc l "text" Enter`."""
    for text, key in re.findall(r'"([^"]*)"|(\S+)', keys):
        yield text or key


class Driven:
    """An explorer that runs, and what is seen of it."""

    def __init__(self, app: Explorer, pilot: Pilot[None], model: Any) -> None:
        self.app, self.pilot, self.model = app, pilot, model

    @property
    def look(self) -> ViewState:
        return self.app.look

    async def press(self, *keys: str) -> None:
        await send(self.app, *keys)
        await self.settled()

    async def paste(self, text: str) -> None:
        self.app.post_message(events.Paste(text))
        await self.settled()

    async def settled(self) -> None:
        """Wait until every key has been dealt with, and drawn."""
        await send(self.app)
        await fact(lambda: is_laid_out(self.app))
        assert not any("this is a bug" in self.seen(name) for name in ("tokens", "head", "heads", "map", "why", "cell"))

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for a fact."""
        await fact(is_so)
        await self.settled()

    async def answered(self) -> None:
        """Wait until all is known of what is looked at."""
        await self.settled()
        await self.until(lambda: (answer := self.app._renderer.answer) and answer.is_whole and answer.serves(self.look))

    def is_there(self, name: str) -> bool:
        return self.app.query_one(f"#{name}").size.area > 0

    def seen(self, name: str) -> str:
        pane = self.app.query_one(f"#{name}", BlockWidget)
        return "\n".join(pane.render_line(y).text.rstrip() for y in range(pane.size.height)).rstrip("\n")

    def styles(self, name: str) -> Iterator[Any]:
        pane = self.app.query_one(f"#{name}", BlockWidget)
        return (segment.style for y in range(pane.size.height) for segment in pane.render_line(y))

    @property
    def typed(self) -> str:
        return self.app.query_one("#text", LineInput).value


@asynccontextmanager
async def driven(
    model: Callable[[], Any] = open_interactive,
    size: tuple[int, int] = (80, 24),
    text: str = "time flies like an arrow",
    save: Callable[..., str] = lambda look, path: f"saved {path}",
    tier: str = "blocks",
    seeks_label: bool = False,
) -> AsyncIterator[Driven]:
    """Run an explorer, and wait for its first picture."""
    source = model()
    app = Explorer(source, ViewState(Query(text)), Palette(tier), save, seeks_label)
    async with app.run_test(size=size) as pilot:
        one = Driven(app, pilot, source)
        await one.answered()
        yield one
