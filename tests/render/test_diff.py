"""The view of a comparison: what stands where."""

from typing import Any

import numpy as np
from running import printed

import attncli
from attncli.analysis.diff import Difference
from attncli.render.diff import DiffView
from attncli.render.heatmap import Heatmap
from attncli.render.palette import Palette


def drawn(difference: Difference, palette: Palette = Palette(), width: int | None = None, **view: Any) -> str:  # noqa: B008
    return printed(DiffView(difference, palette, width, **view).renderables(), palette, width)


def test_the_view_of_a_small_comparison_is_exactly_this() -> None:
    first, second = (
        attncli.inspect(text, d_model=2, num_heads=1, init="zeros", mask="none") for text in ("a b", "b c d")
    )
    difference = attncli.diff(first, second)
    assert drawn(difference, width=80) == (
        "toy layer · 1 head · mask full · zeros weights, seed 0 (numpy) · 16 parameters\n"
        "random embeddings: patterns mean nothing; -m demo is a trained model\n"
        "No head of 1 changed by more than 0.05 bits. L0H0 changed most: 0.021 bits\n"
        "Jensen-Shannon divergence, query row 1/0 b. 0 = same weights, 0.05 = a tenth\n"
        "moved to a new key, 0.31 = half, 1 = no key in common. Weight on tokens only one\n"
        "sentence has counts as one extra cell.\n"
        "tokens A  0 a  1 b\n"
        "tokens B       0 b  1 c  2 d\n"
        "shared         =\n"
        "head   bits\n"
        "L0H0  0.021\n"
        "cells  query  key    weight A  weight B  B − A\n"
        "L0H0   1/0 b  1/0 b      0.50      0.33  -0.17\n"
        "L0H0 · the most changed head, 0.021 bits\n"
        "weights  0  ░░░ 0.062 ░▒▒▒ 0.25 ▒▓▓▓ 0.56 ▓███ 1\n"
        "B − A    -0.167 -█-▓-▒-░  +░+▒+▓+█ +0.167   - more in A   + more in B\n"
        "    A                        B                                 B − A\n"
        "        a        b               b        c        d               b\n"
        "    ▓▓▓▓▓▓▓▓ ▓▓▓▓▓▓▓▓        ▒▓▒▓▒▓▒▓ ▒▓▒▓▒▓▒▓ ▒▓▒▓▒▓▒▓        -█-█-█-█\n"
        "1 b    0.50     0.50     0 b    0.33     0.33     0.33     1 b   -0.17\n"
        "    ▓▓▓▓▓▓▓▓ ▓▓▓▓▓▓▓▓        ▒▓▒▓▒▓▒▓ ▒▓▒▓▒▓▒▓ ▒▓▒▓▒▓▒▓        -█-█-█-█\n"
    )


# --- the scale around zero ---


def test_a_pooled_cell_is_the_one_farthest_from_zero() -> None:
    random = np.random.default_rng(0)
    values = random.uniform(-1, 1, (5, 7))
    allowed = random.uniform(size=(5, 7)) > 0.4
    pooled = Heatmap("", values, allowed).pooled(2, 3, is_signed=True)
    for row in range(3):
        for column in range(3):
            block = np.s_[2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
            found = values[block][allowed[block]].tolist()
            assert bool(pooled.allowed[row, column]) == bool(found)
            if found:
                assert pooled.values[row, column] == max(found, key=abs)
