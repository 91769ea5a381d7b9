"""The explorer over pictures: arrows go from cell to cell, and what is drawn is what the trace has."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import Driven, driven
from safetensors.numpy import save_file

from attncli.engines.interactive import Query, open_interactive
from attncli.explore.view_state import ViewState
from attncli.render.block import Bounds
from attncli.render.explore.head import large_picture
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import CellCursor
from attncli.render.palette import Palette

SHAPES = Path(__file__).parents[2] / "docs" / "cookbook" / "files" / "shapes.png"
GRID = np.arange(1, 13).reshape(3, 4)  # behind a token that is no cell


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dump") / "t.safetensors"
    q, k = np.random.default_rng(0).normal(size=(2, 2, 13, 8)).astype(np.float32) * 2
    save_file({"q": q, "k": k}, path)
    return path


def opened(dump: Path) -> Any:
    return open_interactive(saved=dump, grid="3x4", prefix=1)


def sight_of(dump: Path) -> LayerViewCache:
    trace = opened(dump).trace(Query(""))
    return LayerViewCache(trace, trace.layers[0])


def test_arrows_go_from_cell_to_cell_and_out_above_and_below(dump: Path) -> None:
    async def within() -> None:
        async with driven(model=lambda: opened(dump), text="") as one:
            assert one.look.query == 0  # not the last cell: the one that is none
            await one.press("escape", "down")
            assert one.look.query == GRID[0, 0]
            for key, place in (
                ("right", (0, 1)),
                ("right", (0, 2)),
                ("down", (1, 2)),
                ("left", (1, 1)),
                ("up", (0, 1)),
            ):
                await one.press(key)
                assert one.look.query == GRID[place]
                assert one.look.key == heaviest(one)
            assert "▸ query 2 r0c1" in one.seen("cell") or "▸ query 2 " in one.seen("cell")
            await one.press("up")
            assert one.look.query == 0
            await one.press("/", *"@r2c3")
            await one.until(lambda: one.look.query == GRID[2, 3])
            await one.press("enter", "escape", "right", "down")
            assert one.look.query == GRID[2, 3]  # nothing is beside it, nor below
            await one.press("home")
            assert one.look.query == 0

    def heaviest(one: Driven) -> int:
        row = one.app.result.sights[0].layer.head(one.look.head).weights[one.look.query]
        return int(row[GRID.ravel()].argmax()) + 1

    asyncio.run(within())


@pytest.mark.parametrize("tier", ["truecolor", "256", "blocks"])
@pytest.mark.parametrize("room", [Bounds(9, 24), Bounds(16, 45), Bounds(40, 110), Bounds(3, 10)])
def test_pictures_fit_and_know_what_lies_where(dump: Path, tier: str, room: Bounds) -> None:
    sight, palette = sight_of(dump), Palette(tier)
    for head, query in ((0, 0), (1, 7)):
        weights = sight.layer.head(head, [query]).weights[0]
        drawn = large_picture(sight, CellCursor(head, query, 5), None, palette, "", room)
        assert drawn.block.width <= room.width
        assert len(drawn.block.lines) <= room.lines
        assert sum(len(segment.text) for segment in drawn.title) <= room.width
        places = {drawn.at(*place) for place in np.ndindex(room.lines, room.width)} - {None}
        assert places <= set(GRID.ravel().tolist())
        heaviest = int(weights[GRID.ravel()].argmax()) + 1
        if room.lines >= 16:
            assert places == set(GRID.ravel().tolist())
            row, column = np.argwhere(heaviest == GRID)[0]
            title = "".join(segment.text for segment in drawn.title)
            assert f"r{row}c{column} {weights[heaviest]:.2f}" in title


def test_a_question_is_typed_and_the_picture_follows() -> None:
    pytest.importorskip("PIL")

    def seeing() -> Any:
        return open_interactive(model="demo-vision", image=[str(SHAPES)])

    async def within() -> None:
        async with driven(model=seeing, text="where is the red circle", size=(120, 40)) as one:
            one.app.go(one.app.result.at_heaviest(ViewState(one.look.question, layer=1, head=2)))
            await one.answered()
            assert "r1c3" in one.title("head")
            assert "<image>" not in one.seen("tokens")
            before = one.seen("head")
            await one.press("end", *["backspace"] * len("red circle"), *"yellow triangle")
            await one.answered()
            assert one.seen("head") != before
            assert "r3c0" in one.title("head")
            await one.press("escape", "x")
            await one.until(lambda: "without L1H2: next token" in one.seen("status"))
            await one.press("/", *"@r3c0")
            await one.until(lambda: one.app.limits.layout.cells.get(one.look.query) == "r3c0")
            await one.press("escape")
            await one.until(lambda: "r3c0" in one.seen("cell"))

    asyncio.run(within())
