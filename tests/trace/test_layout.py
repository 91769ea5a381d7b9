"""Positions with a layout: grids of a user, a dump and a saved trace, and the positions of a pixel and a cell."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from traces import layer_of, trace_of

from attncli.errors import AttnError, InputMismatchError, UsageError
from attncli.trace.layout import ImageGrid, Picture, parse_grids
from attncli.trace.store import load
from attncli.trace.trace import Trace
from attncli.trace.view import View

PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def pictured(*grids: ImageGrid, positions: int = 14) -> Trace:
    random = np.random.default_rng(0)
    layer = layer_of(random.normal(size=(2, positions, 4)), random.normal(size=(2, positions, 4)))
    return trace_of(layer, pictures=(Picture("x.png", 600, 400, PIXELS),), grids=grids)


def test_a_trace_keeps_its_pictures_and_grids(tmp_path: Path) -> None:
    grids = (
        ImageGrid(1, 2, 3, box=(0.0, 50.0, 600.0, 350.5), order=(0, 1, 2, 4, 5, 6), patches=2, note="merged"),
        ImageGrid(9, 2, 2, side="key", is_overview=True),
    )
    pictured(*grids).save(tmp_path / "t.safetensors")
    trace = load(tmp_path / "t.safetensors")
    assert trace.grids == grids
    ((name, width, height, pixels),) = trace.pictures
    assert (name, width, height) == ("x.png", 600, 400)
    np.testing.assert_array_equal(pixels, PIXELS)
    assert trace.grids[0].positions.tolist() == [[1, 2, 3], [5, 6, 7]]


def test_a_pixel_and_a_cell_are_positions() -> None:
    newlines = ImageGrid(1, 2, 3, order=(0, 1, 2, 4, 5, 6))
    trace = pictured(newlines, ImageGrid(9, 2, 2, box=(0, 0, 600, 400), is_overview=True))
    assert trace.layout("query").positions_of("@0,0") == [1, 9]
    assert trace.layout("key").positions_of("@599,399") == [7, 12]
    assert trace.layout("key").positions_of("@0:399,200") == [6, 12]
    assert trace.layout("key").positions_of("@r1c0") == [5]
    assert trace.layout("key").positions_of("dog") is None
    assert trace.find(3, "key") == [3]
    assert View(queries=("@r1c0",), keys=("@0,0",)).columns(trace) == [1, 9]
    unseen = trace_of(trace.layers[0], grids=(newlines,)).layout("key")
    assert unseen.positions_of("@r1c0") == [5]
    with pytest.raises(InputMismatchError, match="the pixels of picture 0 are unknown; give --image, or @r3c5"):
        unseen.positions_of("@0,0")
    for outside in ("@600,0", "@0,400", "@r2c0", "@r0c3", "@1:r0c0", "@1:0,0"):
        with pytest.raises(InputMismatchError, match=r"out of range|no key is a cell"):
            trace.layout("key").positions_of(outside)


def test_a_box_has_the_cells_that_have_pixels_in_it() -> None:
    """Cells are 150 pixels wide and 200 high: the ends of a box are exclusive, and its sides are not alike."""
    layout = pictured(ImageGrid(1, 2, 4)).layout("key")
    expected = {
        (150, 0, 300, 200): [2], (149, 0, 301, 200): [1, 2, 3], (450, 200, 600, 400): [8],
        (310, 190, 320, 210): [3, 7], (0, 200, 600, 201): [5, 6, 7, 8],
    }  # fmt: skip
    assert {box: layout.positions_in(box) for box in expected} == expected
    with pytest.raises(InputMismatchError, match="no key is a cell there; picture 0 has 600 × 400"):
        layout.positions_in((600, 0, 700, 100))


def test_a_users_grid_has_to_fit() -> None:
    assert parse_grids("2x3", 1, 2, 13, 13) == (ImageGrid(1, 2, 3, 0), ImageGrid(7, 2, 3, 1))
    assert [grid.side for grid in parse_grids("16x16", 0, 1, 256, 77)] == ["query"]
    assert [grid.side for grid in parse_grids("16x16", 0, 1, 1, 300)] == ["key"]
    with pytest.raises(InputMismatchError, match="needs 1 and 12 positions, and the trace has 12"):
        parse_grids("2x3", 1, 2, 12, 12)
    for odd in ("2", "0x3", "2x-3", "axb"):
        with pytest.raises(UsageError, match="expected rows and columns"):
            parse_grids(odd, 0, 1, 99, 99)


def test_a_dump_names_its_grid(tmp_path: Path) -> None:
    arrays = {name: np.ones((2, 10, 4), np.float32) for name in "qk"}
    save_file(arrays, tmp_path / "d.safetensors", metadata={"grid": "3x3", "prefix": "1"})
    assert load(tmp_path / "d.safetensors").grids == (ImageGrid(1, 3, 3),)
    # With the name of the file, as all that is wrong with one.
    for grid, prefix, reason in (
        ("3x3", "two", "d.safetensors: its metadata has prefix 'two'; expected a number of positions"),
        ("3x3", "-1", "prefix '-1'"),
        ("three", "0", "grid 'three': expected rows and columns, such as 14x14"),
        ("3x4", "1", "grid 3x4 needs 1 and 12 positions, and the trace has 10; give another grid or prefix"),
        ("9999x9999", "0", "needs 99980001 positions"),
    ):
        save_file(arrays, tmp_path / "d.safetensors", metadata={"grid": grid, "prefix": prefix})
        with pytest.raises(AttnError, match=reason):
            load(tmp_path / "d.safetensors")


@pytest.mark.parametrize("damage", [
    {"start": "1"}, {"rows": 0}, {"columns": 9}, {"order": [0, 0, 1, 2, 3, 4]}, {"order": [0]}, {"box": [0, 0, 1]},
    {"box": [0, 0, 1e-6, 1e-6]}, {"box": [-1e308, 0, 1e308, 9]}, {"box": [0, 0, 9, 9], "image": 1},
    {"box": [5, 0, 5, 9]},  {"side": "left"}, {"patches": 0}, {"rows": True}, {"image": -1},
])  # fmt: skip
def test_a_damaged_grid_is_refused(damage: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    pictured(ImageGrid(1, 2, 3)).save(path)
    tensors, header = opened(path)
    header["grids"][0] |= damage
    save_file(tensors, path, metadata={"attncli": json.dumps(header)})
    with pytest.raises(AttnError):
        load(path)


def opened(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with safe_open(path, "np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()["attncli"])
