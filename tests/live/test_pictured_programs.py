"""Programs that look at pictures, watched as their users run them: what is drawn is what they computed."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pictured_models import picture
from whole_program import forked

PROGRAMS = Path(__file__).parent / "programs"

Run = Callable[..., Any]


class Looking(NamedTuple):
    """A model that a program runs, and how its saved attention is opened."""

    program: str
    name: str  # of its weights, as the program computes them itself
    file: str  # how its saved trace begins
    grid: str
    prefix: int = 0  # positions before the cells
    row: int = 0  # of the batch
    pictures: int = 1
    side: str = "both"
    queries: tuple[str | int, ...] = ("@r2c1",)  # each a place or an index

    @property
    def size(self) -> tuple[int, int]:
        rows, columns = map(int, self.grid.split("x"))
        return rows, columns


LOOKING = [
    Looking("denoisers", "dit", "01", "4x4", row=1),
    Looking("denoisers", "pixart", "02", "4x6", queries=("@r3c4", "@40,30")),
    Looking("denoisers", "pixart_text", "03", "4x6", side="query", queries=("@r3c4", "@40,30")),
    Looking("denoisers", "sd3", "04", "4x6", queries=(24, "@r3c4")),
    Looking("policy", "policy", "01", "3x4", 1, pictures=2, side="key", queries=(0, 5)),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Run a program once while it is watched, and return the folder of its traces and of the weights it computed."""
    folders: dict[str, Path] = {}

    def run(program: str) -> Path:
        if program not in folders:
            folder = folders[program] = tmp_path_factory.mktemp(program)
            ran = forked("run", "--save", folder, PROGRAMS / f"{program}.py", folder / "own.npz")
            assert ran.returncode == 0, ran.stderr
        return folders[program]

    return run


def check_drawn(attn: Run, one: Looking, folder: Path) -> None:
    """Check the numbers of a view over pictures, and where it is darkest, against the program's own weights."""
    weights = np.load(folder / "own.npz")[one.name][:, one.row]  # of each layer, head, query and key
    traces = sorted(folder.glob(f"{one.file}-*.safetensors"))
    rows, columns = one.size
    images = [folder / f"{number}.png" for number in range(one.pictures)]
    for number, image in enumerate(images):
        picture(8 * columns, 8 * rows, seed=number).save(image)
    words = ["inspect", "--from", traces[one.row], "--grid", one.grid, "--prefix", str(one.prefix)]
    words += [word for image in images for word in ("--image", image)]
    for query in one.queries:
        cell = re.fullmatch(r"@r(\d+)c(\d+)|@(\d+),(\d+)", str(query))
        at = query if cell is None else None
        if cell is not None:
            row, column, x, y = (each and int(each) for each in cell.groups())
            row, column = (row, column) if x is None else (y // 8, x // 8)
            at = one.prefix + row * columns + column
        ran = attn(*words, "--query", str(query), "-F", "json", "--show", "weights")
        assert ran.code == 0, ran.err
        document = json.loads(ran.out)
        assert {grid["side"] for grid in document["grids"]} == {one.side}
        assert [grid["start"] for grid in document["grids"]] == [
            one.prefix + number * rows * columns for number in range(one.pictures)
        ]
        found = np.array([[head["weights"][0] for head in layer["heads"]] for layer in document["layers"]])
        np.testing.assert_allclose(found, weights[:, :, at], rtol=0, atol=1e-6)
        last = ("--layer", str(len(weights) - 1), "--head", "1")
        if one.side != "query":
            cells = weights[-1, 1, at, one.prefix :][: rows * columns].reshape(rows, columns)
            shown = attn(*words, "--query", str(query), *last).out
            assert re.search(rf"^H1 \S+ \S+ {cells.sum():.0%}", shown, re.MULTILINE)
            check_heaviest(shown, cells)
    if one.side != "key":
        shown = attn(*words, "--key", "3", *last).out
        assert re.search(r"^3.* is attended to by", shown, re.MULTILINE)
        check_heaviest(shown, weights[-1, 1, one.prefix :, 3][: rows * columns].reshape(rows, columns))


def check_heaviest(shown: str, cells: np.ndarray) -> None:
    """Check which cell of the first head is named, and that it is drawn darkest."""
    row, column = np.unravel_index(cells.argmax(), cells.shape)
    assert f"H1 r{row}c{column} " in shown
    shades = re.findall(rf"^\d[ ▸▾]([ ░▒▓█]{{{2 * cells.shape[1]}}})", shown, re.MULTILINE)
    assert shades[row][2 * column :].startswith("██")


@pytest.mark.filterwarnings("ignore")  # of diffusers, about itself
@pytest.mark.parametrize("one", LOOKING, ids=[one.name for one in LOOKING])
def test_what_is_drawn_of_a_program_is_what_it_computed(one: Looking, attn: Run, saved: Callable[[str], Path]) -> None:
    check_drawn(attn, one, saved(one.program))
