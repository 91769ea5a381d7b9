"""A program that looks at pictures, watched as its users run it: what is drawn is what it computed."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pictured_models import picture
from whole_program import forked

PROGRAM = Path(__file__).parent / "programs" / "policy.py"
ROWS, COLUMNS = 3, 4


class Looking(NamedTuple):
    name: str  # of its weights, as the program computes them itself
    file: str  # how its saved trace begins
    prefix: int  # positions before the cells
    row: int  # of the batch
    pictures: int
    queries: dict[str, int]  # how each is written, and its position


LOOKING = [
    Looking("encoder", "01", 0, 1, 1, {"0": 0, "@r2c1": 9, "@11,19": 9}),
    Looking("decoder", "02", 1, 0, 2, {"0": 0, "5": 5}),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    ran = forked("run", "--save", folder, PROGRAM, folder / "own.npz")
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.mark.parametrize("one", LOOKING, ids=[one.name for one in LOOKING])
def test_what_is_drawn_of_a_program_is_what_it_computed(one: Looking, attn: Callable[..., Any], saved: Path) -> None:
    weights = np.load(saved / "own.npz")[one.name][:, one.row]  # of each layer, head, query and key
    trace = sorted(saved.glob(f"{one.file}-*.safetensors"))[one.row]
    words = ["inspect", "--from", trace, "--grid", f"{ROWS}x{COLUMNS}", "--prefix", str(one.prefix)]
    for number in range(one.pictures):
        picture(8 * COLUMNS, 8 * ROWS, seed=number).save(saved / f"{number}.png")
        words += ["--image", saved / f"{number}.png"]
    for query, at in one.queries.items():
        ran = attn(*words, "--query", query, "-F", "json", "--show", "weights")
        assert ran.code == 0, ran.err
        document = json.loads(ran.out)
        assert {grid["side"] for grid in document["grids"]} == {"both" if one.name == "encoder" else "key"}
        starts = [one.prefix + number * ROWS * COLUMNS for number in range(one.pictures)]
        assert [grid["start"] for grid in document["grids"]] == starts
        found = np.array([[head["weights"][0] for head in layer["heads"]] for layer in document["layers"]])
        np.testing.assert_allclose(found, weights[:, :, at], rtol=0, atol=1e-6)
        cells = weights[-1, 1, at, one.prefix :][: ROWS * COLUMNS].reshape(ROWS, COLUMNS)
        shown = attn(*words, "--query", query, "--head", "1").out
        assert re.search(rf"^ *H1 \S+ \S+ {cells.sum():.0%}", shown, re.MULTILINE)
        check_heaviest(shown, cells)


def check_heaviest(shown: str, cells: np.ndarray) -> None:
    row, column = np.unravel_index(cells.argmax(), cells.shape)
    assert f"H1 r{row}c{column} " in shown
    shades = re.findall(rf"^\d[ ▸▾]([ ░▒▓█]{{{2 * cells.shape[1]}}})", shown, re.MULTILINE)
    assert shades[row][2 * column :].startswith("██")
