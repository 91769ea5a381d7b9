"""The explorer, driven as a person drives it: keys, pastes, clicks and other sizes, on the toy layer."""

import asyncio
from dataclasses import replace
from threading import Event

import pytest
from explored import Driven, driven, fact
from textual import events

from attncli.engines.interactive import Query, open_interactive
from attncli.errors import InputError
from attncli.explore.keys import KEYS
from attncli.explore.panes import BlockWidget, LineInput
from attncli.explore.view_state import Viewport, ViewState

TEXT = "time flies like an arrow"


class Gated:
    """The toy layer, which waits before each answer for as long as its gate is shut, and fails at some texts."""

    def __init__(self) -> None:
        self.model = open_interactive()
        self.layers = self.model.layers
        self.trace = self.model.trace
        self.gate = Event()
        self.gate.set()
        self.texts = []

    def tokens(self, question):
        self.texts.append(question.text)
        self.gate.wait()
        if "fail" in question.text:
            raise InputError("this text cannot be read")
        return self.model.tokens(question)


def in_app(**how):
    """Give a test an explorer of its own, which runs."""

    def decorated(test):
        def run() -> None:
            async def within() -> None:
                async with driven(**how) as one:
                    await test(one)

            asyncio.run(within())

        run.__name__ = test.__name__
        return run

    return decorated


def demo():
    return open_interactive(model="demo")


# --- the first picture ---


@in_app(model=demo, seeks_label=True)
async def test_it_opens_on_the_head_with_the_strongest_label_and_follows_the_last_word(one):
    assert (one.look.layer, one.look.head) == (2, 3)
    assert one.seen("head").startswith("head 3 · previous · weights · layer 2 ──")
    assert "▸head 3 previous" in one.seen("heads")
    assert one.seen("cell").startswith(f"▸ query {len(one.app.room.queries) - 1} ")
    assert one.look.key == one.look.query - 1
    await one.press(*" and now")
    await one.answered()
    assert (one.look.layer, one.look.head) == (2, 3)
    assert one.app.room.queries[one.look.query].text == "now"


# --- typing ---


@in_app()
async def test_what_is_typed_deleted_and_pasted_is_asked_for(one):
    assert "time flies like an arrow" in one.seen("tokens").replace("◆", " ")
    await one.press(*" now")
    assert one.look.question.text == f"{TEXT} now"
    await one.answered()
    assert "now" in one.seen("tokens")
    assert "now" in one.seen("head")
    await one.press(*["backspace"] * 4, "home", "delete", *"T")
    assert one.typed == one.look.question.text == "Time flies like an arrow"
    await one.press("end")
    await one.paste("\nand\t2\x1b[31m\r\nmore" + "\x00\u202e")
    assert one.typed == one.look.question.text == "Time flies like an arrow and 2[31m more"
    await one.press("ctrl+u")
    await one.paste("word " * 400)
    assert one.look.question.text == "word " * 400
    await one.answered()
    assert "rank" in one.seen("cell")
    await one.press("ctrl+u")
    assert one.typed == ""


@in_app()
async def test_the_mask_is_edited_and_a_mistake_is_pointed_at(one):
    before = one.seen("head")
    await one.press("escape", "m", *"window(2) & cuasal")
    assert one.seen("status").strip().startswith("^ unknown mask 'cuasal'; did you mean 'causal'?")
    column = one.seen("status").index("^") - one.app.query_one("#line").region.x
    assert "window(2) & cuasal"[column:] == "cuasal"
    line = one.app.query_one("#line", LineInput).render_line(0)
    assert "".join(segment.text for segment in line if segment.style and segment.style.underline) == "cuasal"
    assert one.seen("foot") == "Enter takes it  Esc closes it"
    await one.press("enter")  # a mistake is not taken
    assert one.seen("label") == "mask:"
    await one.press("ctrl+u", *"window(1)", "enter")
    await one.answered()
    assert one.look.question.mask == "window(1)"
    assert one.seen("head") != before
    await one.press("m", "ctrl+u", *"full", "escape")
    assert one.look.question.mask == "window(1)"
    for way in ("escape", "tab", "f1"):  # a mistake goes with its line
        await one.press("escape", "m", "ctrl+u", *"cuasal", way, "escape")
        assert "mask 'cuasal'" not in one.seen("status")
    await one.press("escape", "m", "ctrl+u", "enter")
    await one.answered()
    assert (one.look.question.mask, one.seen("head")) == (None, before)


# --- keys ---


def _is(**fields):
    return lambda one: {name: getattr(one.look, name) for name in fields} == fields


def _types(one: Driven) -> bool:
    return one.app.focused is not None and one.app.focused.id == "text"


def _walks(one: Driven) -> bool:
    return one.app.focused is None


def _has_label(name: str):
    return lambda one: one.seen("label") == f"{name}:"


LONG = "time flies like an arrow and " * 8
_ZOOMED = {"port": Viewport(zoom=2), "question": Query(LONG)}
# What each action of the table changes: from which look, after which keys, and what holds then.
DOES = {
    "cut": ({}, ("escape",), lambda one: "without" in one.app._message or "computing" in one.app._message),
    "turn(1)": ({}, (), _walks),
    "turn(-1)": ({}, ("escape",), _types),
    "escape": ({}, (), _walks),
    "type": ({}, ("escape",), _types),
    "enter": ({}, ("escape",), _types),
    "move(0, -1)": ({"key": 2}, ("escape",), _is(key=1, query=0)),
    "move(0, 1)": ({}, ("escape",), _is(key=1, query=0)),
    "move(-1, 0)": ({"query": 2}, ("escape",), _is(query=1, key=0)),
    "move(1, 0)": ({}, ("escape",), _is(query=1, key=0)),
    "end(-1)": ({"query": 2}, ("escape",), _is(query=0)),
    "end(1)": ({}, ("escape",), lambda one: one.look.query == len(one.app.room.queries) - 1 > 3),
    "layer(-1)": ({"layer": 1}, ("escape",), _is(layer=0)),
    "layer(1)": ({}, ("escape",), _is(layer=1)),
    "look('head', -1)": ({"head": 2}, ("escape",), _is(head=1)),
    "look('head', 1)": ({}, ("escape",), _is(head=1)),
    "look('kind')": ({}, ("escape",), _is(kind="self")),
    **{f"open('{name}')": ({}, ("escape",), _has_label(name)) for name in ("find", "mask", "pair", "target", "save")},
    "look('hold')": ({}, ("escape",), lambda one: one.look.held == Query(TEXT)),
    "why": ({}, ("escape",), lambda one: "the sum over" in one.seen("why")),
    "look('norms')": ({}, ("escape",), _is(numbers="norms")),
    "look('rollout')": ({"layer": 1}, ("escape",), _is(numbers="rollout", layer=1)),
    "look('metric', 1)": ({}, ("escape",), _is(metric="effective_keys")),
    "look('metric', -1)": ({"metric": "effective_keys"}, ("escape",), _is(metric="entropy")),
    "look('ramp')": ({}, ("escape",), lambda one: one.look.ramp not in (None, "log")),
    "zoom(1)": ({"question": Query(LONG)}, ("escape",), lambda one: one.look.port.zoom == 1),
    "zoom(-1)": (_ZOOMED, ("escape",), lambda one: one.look.port.zoom < 2),
    "zoom(-99)": (_ZOOMED, ("escape",), lambda one: one.look.port.zoom == 0),
    "help": ({}, ("escape",), lambda one: "Shift-Tab" in one.seen("help") and "type" not in one.seen("foot")),
    "suspend_process": ({}, (), lambda one: one.suspended),
}


@in_app(model=demo, size=(100, 30))
async def test_every_key_of_the_table_does_what_it_says(one):
    one.suspended = False
    one.app.action_suspend_process = lambda: setattr(one, "suspended", True)
    for key in KEYS:
        if key.action == "leave":  # the next test's
            continue
        changes, before, holds = DOES[key.action]
        for name in key.names:
            one.app.go(replace(ViewState(Query(TEXT)), **changes))
            one.app.action_type()
            await one.answered()
            await one.press(*before)
            await one.press(name)
            await one.answered()
            assert holds(one), (name, key.action, one.look)
            await one.press("escape", "escape")
            if key.action in ("why", "help"):
                await one.press("escape")
                assert one.is_there("heads")
    assert {key.action for key in KEYS} == {*DOES, "leave"}


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_leaving(key):
    async def within() -> None:
        async with driven() as one:
            await one.press("escape", "l") if key == "q" else None
            one.app.post_message(events.Key(key, None))
            await fact(lambda: not one.app.is_running)
            assert one.look.key == (key == "q")

    asyncio.run(within())


# --- saving, and what goes wrong ---


@in_app()
async def test_a_key_or_a_pane_that_fails_says_so_and_typing_goes_on(one):
    one.app.action_why = lambda: 1 / 0
    await one.press("escape", "w")
    assert "this is a bug in attn, please report it: ZeroDivisionError" in one.seen("status")

    def broken(*_: object) -> None:
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attncli.explore.renderer.small_heads", broken)
        await one.press(".", "i", "x")
        assert one.seen("heads").startswith("out of memory")
        assert one.typed == f"{TEXT}x"
        assert "head 1" in one.seen("head")


@in_app(model=Gated)
async def test_a_model_that_fails_or_blocks_says_so_and_typing_goes_on(one):
    await one.press(*" fail")
    await one.until(lambda: "this text cannot be read" in one.seen("status"))
    await one.press(*["backspace"] * 5)
    await one.answered()
    assert "cannot be read" not in one.seen("status")
    bright, head = list(one.styles("head")), one.seen("head")
    one.model.gate.clear()
    await one.press(*" more")
    await one.until(lambda: list(one.styles("head")) != bright)  # dim
    assert one.typed == f"{TEXT} more"
    assert one.seen("head") == head
    assert "computing" in one.seen("status")
    assert all(style.dim for style in one.styles("head") if style)
    await one.press(*" and more", "escape", "l")
    assert one.typed == f"{TEXT} more and more"
    one.model.gate.set()
    await one.answered()
    assert "more" in one.seen("head")
    assert not all(style.dim for style in one.styles("head") if style)


@in_app(model=Gated)
async def test_of_a_slow_model_the_newest_text_is_asked_for_and_who_leaves_does_not_wait(one):
    gate, texts = one.model.gate, one.model.texts
    gate.clear()
    await one.press("1")
    await one.until(lambda: texts[-1] == f"{TEXT}1")
    await one.press("2", "3")
    gate.set()
    await one.answered()
    assert texts == [TEXT, f"{TEXT}1", f"{TEXT}123"]
    gate.clear()
    await one.press("4")
    await one.until(lambda: texts[-1] == f"{TEXT}1234")
    one.app.exit()
    await fact(lambda: not one.app.is_running)
    assert one.app.is_computing()
    gate.set()


# --- sizes, colours and the mouse ---


@in_app(model=demo)
async def test_at_every_size_panes_fill_the_terminal_and_do_not_overlap(one):
    for width, height in [(40, 12), (72, 12), (200, 60), (39, 12), (80, 11), (1, 1), (80, 24)]:
        await one.pilot.resize_terminal(width, height)
        await one.until(lambda width=width, height=height: one.app.size == (width, height))
        is_large = width >= 40 and height >= 12
        for key in ("", "escape", "w", "w", "tab", "tab", "m", "i") if is_large else ("",):
            await one.press(*[key] * bool(key))
            widgets = [*one.app.query(BlockWidget), *one.app.query(LineInput)]
            regions = [widget.region for widget in widgets if widget.size.area]
            cells = [(x, y) for region in regions for x in region.column_range for y in region.line_range]
            assert len(cells) == len(set(cells))
            assert (max(x for x, _ in cells), max(y for _, y in cells)) == (width - 1, height - 1)
            if not is_large:
                assert one.seen("status").startswith("The terminal"[:width])
                continue
            assert one.typed == TEXT
            assert one.seen("foot")
            assert any(one.is_there(name) for name in ("head", "heads", "map", "why"))
            assert all(len(pane._strips) <= pane.size.height for pane in one.app.query(BlockWidget) if pane.size.area)


@in_app(size=(120, 40))
async def test_the_mouse(one):
    async def click(name: str, *place: int) -> None:
        await one.pilot.click(f"#{name}", offset=place)
        await one.settled()

    head = one.seen("head").splitlines()
    line = next(number for number, text in enumerate(head) if "1 flies" in text)
    numbers = [column for column, letter in enumerate(head[line]) if letter == "."]
    await click("head", numbers[1], line)
    assert (one.look.query, one.look.key) == (1, 1)
    await click("heads", 2, 2)
    assert one.app.focused is None
    await click("tokens", one.seen("tokens").splitlines()[1].index("arrow"), 1)
    assert one.look.query == 4
    await click("heads", one.seen("heads").splitlines()[1].index("head 1"), 1)
    assert one.look.head == 1
    await click("text", 1, 0)
    await one.press("X")
    assert one.typed == "tXime flies like an arrow"
