"""Which cells of a map a reader can tell apart: the default ramp tells the most, and a plain head is plain to see."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import get_args

import numpy as np
import pytest

import attncli
from attncli.render.palette import DEFAULT_RAMP, Palette, Scale
from attncli.trace.view import Ramp

ROOT = Path(__file__).parents[2]
# Twenty-five words; with [CLS] and [SEP] 27 tokens.
WORDS = (
    "alice was beginning to get very tired of sitting by her sister on the bank and of having nothing to do that whole "
    "long day"
)


@pytest.fixture(scope="module")
def colors() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("colors")


def test_the_default_ramp_tells_the_most_cells_apart_and_as_many_as_is_published(
    colors: ModuleType, minilm: str
) -> None:
    page = (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+), (\w+) \| ([\d.]+)%", page, re.MULTILINE)
    published = {(model, ramp): float(share) for model, ramp, share in rows}
    for model in ("MiniLM", "demo"):
        of_model = {ramp: published[model, ramp] for ramp in get_args(Ramp)}
        assert max(of_model, key=lambda ramp: of_model[ramp]) == DEFAULT_RAMP
    texts = colors.SENTENCES.read_text(encoding="utf-8").splitlines()
    (found,) = colors.shares(minilm, texts, DEFAULT_RAMP, ("truecolor",))
    assert 100 * found.distinct / found.pairs == pytest.approx(published["MiniLM", DEFAULT_RAMP], abs=0.1)


def test_a_head_that_looks_at_the_token_before_is_a_bright_line(colors: ModuleType, minilm: str) -> None:
    """Head 2 of MiniLM's layer 0: every cell of the line is as far from those beside it as half of the ramp."""
    trace = attncli.inspect(WORDS, model=minilm, layer="0")
    weights = trace.layer(0).head(2).weights
    assert len(weights) == 27
    for tier in ("truecolor", "256", "blocks"):
        ramp = Palette(tier).ramp(2)
        steps = (Scale.up_to(float(weights.max())).placed(weights) * len(ramp)).astype(int).clip(0, len(ramp) - 1)
        for query in range(1, 27):
            neighbours = [key for key in (query - 2, query) if key >= 0]
            assert all(steps[query, query - 1] - steps[query, key] >= len(ramp) / 2 for key in neighbours)
        off = ~np.eye(27, k=-1, dtype=bool)
        off[0] = False  # the first token has none before it
        assert (steps[off] < len(ramp) / 4).mean() > 0.99
