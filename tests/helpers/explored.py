"""The explorer in this process: keys that are pressed, and what it draws then."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

from rich.segment import Segment
from textual import events
from textual.pilot import Pilot
from textual.widgets._footer import FooterKey

from attncli.engines.interactive import Query, open_interactive
from attncli.explore.app import Explorer
from attncli.explore.panes import LineInput, Pane
from attncli.explore.view_state import ViewState
from attncli.render.block import trimmed
from attncli.render.palette import Palette

_KEYS = {"Esc": "escape", "Tab": "tab", "Enter": "enter", "↑": "up", "↓": "down", "←": "left", "→": "right"}
_KEYS |= {"PgDn": "pagedown", "Home": "home", "End": "end", "Backspace": "backspace", "Delete": "delete"}


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


def _named(character: str) -> str:
    name = unicodedata.name(character).lower().replace("-", "_").replace(" ", "_")
    return {"solidus": "slash", "hyphen_minus": "minus", "plus_sign": "plus"}.get(name, name)


async def fact(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.002)


class Driven:
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

    def _is_laid_out(self) -> bool:
        screen = self.app.screen
        shown = [key.action for key in self.app.query(FooterKey)]  # which follows the focus a little later
        keys = [*dict.fromkeys(binding.action for _, binding, _, _ in screen.active_bindings.values() if binding.show)]
        is_cut = any(str(label.render()) == "…" for label in self.app.query("KeyFooter Label"))
        is_footer = 0 < len(shown) < len(keys) and shown == keys[: len(shown)] if is_cut else shown == keys
        panes = [pane for pane in self.app.query(Pane) if self.is_there(pane.id or "") and pane._drawn_of]
        is_drawn = all(pane._drawn_of[2] == (pane.size.height, pane.size.width) for pane in panes)
        return is_drawn and not self.app._is_due and not screen._layout_required and is_footer

    async def settled(self) -> None:
        await send(self.app)
        await fact(self._is_laid_out)
        seen = [self.seen(name) for name in self.app._panes]
        assert not any("this is a bug" in one for one in seen), seen

    async def until(self, is_so: Callable[[], bool]) -> None:
        await fact(is_so)
        await self.settled()

    async def answered(self) -> None:
        await self.settled()
        await self.until(lambda: (result := self.app.result) and result.is_whole and result.serves(self.look))

    def is_there(self, name: str) -> bool:
        return self.app.query_one(f"#{name}") in self.app.screen._compositor.visible_widgets

    def title(self, name: str) -> str:
        return "".join(segment.text for segment in self.app.query_one(f"#{name}", Pane).content.title)

    def seen(self, name: str) -> str:
        pane = self.app.query_one(f"#{name}", Pane)
        return "\n".join(pane.render_line(y).text.rstrip() for y in range(pane.size.height)).rstrip("\n")

    def styles(self, name: str) -> Iterator[Any]:
        pane = self.app.query_one(f"#{name}", Pane)
        return (segment.style for y in range(pane.size.height) for segment in pane.render_line(y))

    @property
    def foot(self) -> str:
        return " ".join(f"{key.key_display} {key.description}" for key in self.app.query(FooterKey))

    def screen(self) -> list[Sequence[Segment]]:
        strips = self.app.screen._compositor.render_strips()
        return [[Segment(letter, style) for text, style, _ in strip for letter in text] for strip in strips]

    @property
    def typed(self) -> str:
        return self.app.query_one("#text", LineInput).value


@asynccontextmanager
async def driven(
    model: Callable[[], Any] = open_interactive,
    size: tuple[int, int] = (80, 24),
    text: str = "time flies like an arrow",
    tier: str = "blocks",
    seeks_label: bool = False,
) -> AsyncIterator[Driven]:
    source = model()
    app = Explorer(source, ViewState(Query(text)), Palette(tier), seeks_label)
    async with app.run_test(size=size) as pilot:
        one = Driven(app, pilot, source)
        await one.answered()
        yield one


@asynccontextmanager
async def driven_by(command: str, columns: int, lines: int, environment: Mapping[str, str]) -> AsyncIterator[Driven]:
    arguments = iter(shlex.split(command)[2:])
    model, text, tier = "demo", "", "truecolor"
    for argument in arguments:
        if argument == "-m":
            model = next(arguments)
        elif argument == "--color":
            tier = {"never": "blocks"}[next(arguments)]
        else:
            text = argument
    # Textual asks the environment how many colours its terminal has.
    others = {name: value for name, value in environment.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
    with patch.dict(os.environ, others | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}, clear=True):
        opened = driven(lambda: open_interactive(model=model), (columns, lines), text, tier, True)
        async with opened as one:
            yield one


def screen_of(
    command: str, columns: int, lines: int, keys: str, environment: Mapping[str, str]
) -> list[Sequence[Segment]]:
    """Return what the explorer shows after some keys, such as `Esc l "text" Enter`; a text to type is in quotes."""

    async def within() -> list[Sequence[Segment]]:
        async with driven_by(command, columns, lines, environment) as one:
            for text, key in re.findall(r'"([^"]*)"|(\S+)', keys):
                for each in [key] if key in _KEYS else text or key:
                    await one.press(each)
                    await one.answered()
            return [trimmed(line) for line in one.screen()]

    return asyncio.run(within())
