"""The explorer, driven by keys, pastes and other sizes, on the toy layer and the demo."""

import asyncio
from dataclasses import replace
from threading import Event

import pytest
from explored import driven, fact
from textual import events
from textual.widgets import HelpPanel

from attncli.engines.interactive import Query, open_interactive
from attncli.errors import InputError
from attncli.explore.keys import KEYS
from attncli.explore.panes import LineInput, Pane
from attncli.explore.view_state import ViewState

TEXT = "time flies like an arrow"


class Gated:
    """The toy layer, which waits before each answer while its gate is shut, and fails at some texts."""

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


@in_app(model=demo, seeks_label=True)
async def test_it_opens_on_the_head_with_the_strongest_label_and_follows_the_last_word(one):
    assert (one.look.layer, one.look.head) == (2, 3)
    assert one.title("head").startswith("head 3 · previous · weights")
    assert "▸3 previous" in one.seen("heads")
    assert one.seen("cell").startswith(f"▸ query {len(one.app.limits.queries) - 1} ")
    assert one.look.key == one.look.query - 1
    await one.press(*" and now")
    await one.answered()
    assert (one.look.layer, one.look.head) == (2, 3)
    assert one.app.limits.queries[one.look.query].text == "now"


# --- typing ---


@in_app()
async def test_what_is_typed_deleted_and_pasted_is_computed(one):
    await one.press(*" now/?q")
    assert one.look.question.text == f"{TEXT} now/?q"
    await one.press(*["backspace"] * 3)
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
    assert "largest of" in one.title("head")
    assert "rank" in one.seen("cell")


@in_app()
async def test_the_mask_is_edited_and_a_mistake_is_named(one):
    before = one.seen("head")
    await one.press("escape", "m", *"window(2) & cuasal")
    assert one.seen("status").startswith("unknown mask 'cuasal'; did you mean 'causal'?")
    await one.press("enter")  # a mistake is not taken
    assert one.is_there("line")
    await one.press("ctrl+u", *"window(1)", "enter")
    await one.answered()
    assert one.look.question.mask == "window(1)"
    assert one.seen("head") != before
    await one.press("m", "ctrl+u", *"full", "escape")
    assert one.look.question.mask == "window(1)"
    for way in ("escape", "tab"):  # a mistake goes with its line
        await one.press("escape", "m", "ctrl+u", *"cuasal", way, "escape")
        assert "cuasal" not in one.seen("status")
        assert not one.is_there("line")
    await one.press("escape", "m", "ctrl+u", "enter")
    await one.answered()
    assert (one.look.question.mask, one.seen("head")) == (None, before)


@in_app()
async def test_keys_that_arrive_at_once_go_where_they_are_meant(one):
    for key, character in [("escape", None), ("slash", "/"), *((letter, letter) for letter in "like"), ("enter", None)]:
        one.app.post_message(events.Key(key, character))
    await one.until(lambda: one.look.query == 2)
    assert one.typed == TEXT


# --- keys ---


def _is(**fields):
    return lambda one: {name: getattr(one.look, name) for name in fields} == fields


def _has_focus(name: str):
    return lambda one: one.app.focused is not None and one.app.focused.id == name


# The effect of each action: on which view, after which keys.
EFFECTS = {
    "cut": ({}, ("escape",), lambda one: "without" in one.app._message or "computing" in one.app._message),
    "app.focus_next": ({}, (), _has_focus("head")),
    "app.focus_previous": ({}, ("escape",), _has_focus("text")),
    "escape": ({}, (), _has_focus("head")),
    "type": ({}, ("escape",), _has_focus("text")),
    "move(0, -1)": ({"key": 2}, ("escape",), _is(key=1, query=0)),
    "move(0, 1)": ({}, ("escape",), _is(key=1, query=0)),
    "move(-1, 0)": ({"query": 2}, ("escape",), _is(query=1, key=0)),
    "move(1, 0)": ({}, ("escape",), _is(query=1, key=0)),
    "end(-1)": ({"query": 2}, ("escape",), _is(query=0)),
    "end(1)": ({}, ("escape",), lambda one: one.look.query == len(one.app.limits.queries) - 1 > 3),
    "layer(-1)": ({"layer": 1}, ("escape",), _is(layer=0)),
    "layer(1)": ({}, ("escape",), _is(layer=1)),
    "head(-1)": ({"head": 2}, ("escape",), _is(head=1)),
    "head(1)": ({}, ("escape",), _is(head=1)),
    "kind": ({}, ("escape",), _is(kind="self")),
    **{f"open('{name}')": ({}, ("escape",), _has_focus("line")) for name in ("find", "mask", "pair", "target")},
    "why": ({}, ("escape",), lambda one: "the sum over" in one.seen("why")),
    "numbers('norms')": ({}, ("escape",), _is(numbers="norms")),
    "numbers('rollout')": ({"layer": 1}, ("escape",), _is(numbers="rollout", layer=1)),
    "metric(1)": ({}, ("escape",), _is(metric="effective_keys")),
    "metric(-1)": ({"metric": "effective_keys"}, ("escape",), _is(metric="entropy")),
    "ramp": ({}, ("escape",), lambda one: one.look.ramp not in (None, "log")),
    "help": ({}, ("escape",), lambda one: bool(one.app.screen.query(HelpPanel))),
    "suspend_process": ({}, (), lambda one: one.suspended),
}


@in_app(model=demo, size=(100, 30))
async def test_every_key_of_the_table_does_what_it_says(one):
    one.suspended = False
    one.app.action_suspend_process = lambda: setattr(one, "suspended", True)
    for key in KEYS:
        if key.action == "quit":  # the next test's
            continue
        changes, before, holds = EFFECTS[key.action]
        for name in key.key.split(","):
            one.app.go(replace(ViewState(Query(TEXT)), **changes))
            one.app._map = "head"
            one.app.action_type()
            await one.answered()
            await one.press(*before)
            await one.press(name)
            await one.answered()
            assert holds(one), (name, key.action, one.look, one.app.focused)
            await one.press("escape", "escape", "escape")
    assert {key.action for key in KEYS} == {*EFFECTS, "quit"}


@in_app(model=demo, size=(120, 30))
async def test_the_footer_shows_the_keys_of_the_focus(one):
    assert "F1 help" in one.foot
    assert "why" not in one.foot
    await one.press("escape")
    await one.until(lambda: "? help" in one.foot)
    assert "w why" in one.foot


@in_app(model=demo, size=(60, 24))
async def test_a_narrow_footer_ends_in_an_ellipsis(one):
    await one.press("escape")
    await one.until(lambda: "? help" in one.foot)
    await one.until(lambda: "".join(cell.text for cell in one.screen()[-1]).rstrip().endswith(" …"))
    assert "norms" not in one.foot


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_leaving(key):
    async def within() -> None:
        async with driven() as one:
            await one.press("escape", "l") if key == "q" else None
            one.app.post_message(events.Key(key, None))
            await fact(lambda: not one.app.is_running)
            assert one.look.key == (key == "q")

    asyncio.run(within())


# --- failures ---


@in_app()
async def test_a_pane_that_fails_says_so_and_typing_goes_on(one):
    def broken(*_: object) -> None:
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attncli.explore.app.small_heads", broken)
        await one.press("escape", ".", "i", "x")
        assert one.seen("heads").startswith("out of memory")
        assert one.typed == f"{TEXT}x"
        assert one.title("head").startswith("head 1")


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
    await one.until(lambda: list(one.styles("head")) != bright)  # grey
    assert one.typed == f"{TEXT} more"
    assert one.seen("head") == head
    assert "computing" in one.seen("status")
    await one.press(*" and more", "escape", "l")
    assert one.typed == f"{TEXT} more and more"
    one.model.gate.set()
    await one.answered()
    assert "more" in one.seen("head")


@in_app(model=Gated)
async def test_of_a_slow_model_the_newest_text_is_computed_and_leaving_does_not_wait(one):
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


# --- sizes ---


@in_app(model=demo)
async def test_at_every_size_panes_do_not_overlap_and_fit(one):
    for width, height in [(60, 20), (200, 60), (39, 12), (80, 11), (1, 1), (80, 24)]:
        await one.pilot.resize_terminal(width, height)
        await one.until(lambda width=width, height=height: one.app.size == (width, height))
        if width < 60 or height < 20:
            await one.until(lambda: not one.is_there("head"))
            continue
        for key in ("", "escape", "w", "w", "tab", "tab", "m", "i"):
            await one.press(*[key] * bool(key))
            widgets = [*one.app.query(Pane), *one.app.query(LineInput)]
            regions = [widget.region for widget in widgets if one.is_there(widget.id)]
            cells = [(x, y) for region in regions for x in region.column_range for y in region.line_range]
            assert len(cells) == len(set(cells))
            assert max(x for x, _ in cells) == width - 1
            assert max(y for _, y in cells) == height - 2  # above the footer
            assert one.typed == TEXT
            assert all(len(pane._strips) <= pane.size.height for pane in one.app.query(Pane) if pane.size.area)
