"""The sentence on the colours of its weights: which colour each token has, which head comes first, and what fits."""

from collections.abc import Sequence

import numpy as np
import pytest
from rich.cells import cell_len
from rich.segment import Segment
from traces import layer_of, tokens_of

import attncli
from attncli.analysis.labels import SAY_LITTLE, labels_of_heads
from attncli.render.palette import DIM, Palette, Scale
from attncli.render.sentence import QUERY, SentenceLine, head_lines, sentence

COLOR, NUMBERS, SCALE = Palette("truecolor"), Palette("blocks"), Scale.up_to(1.0, "sqrt")
TEXT = "the animal did not cross the street because it was too tired"


def texts(lines: Sequence[Sequence[Segment]]) -> list[str]:
    return ["".join(segment.text for segment in line) for line in lines]


def line(weights: list[float], masked: int = 0) -> SentenceLine:
    allowed = np.arange(len(weights)) < len(weights) - masked
    return SentenceLine("L3 H2", np.array(weights, np.float32), allowed, "induction")


def test_each_token_stands_on_the_colour_of_its_weight() -> None:
    tokens = tokens_of("time", "fl", "##ies", "like", "an")
    weights = [0.09, 0.5, 0.41, np.nan, 0.3]
    drawn = sentence(tokens, [line(weights, masked=1)], COLOR, SCALE, 80, {1: QUERY}).lines
    assert texts(drawn) == ["L3 H2  induction   time▸flies like an"]
    ramp = [style for _, style in COLOR.ramp(1)]
    styles = {part.text: part.style for part in drawn[0]}
    steps = [int(weight**0.5 * 256) for weight in weights[:3]]
    assert [styles[text] for text in ("time", "fl", "ies")] == [ramp[step] for step in steps]
    assert styles["like"] == COLOR.swatch("X")
    assert styles["an"] == DIM


def test_without_colours_the_weights_stand_below_the_tokens() -> None:
    heads = [line([0.09, 0.913, 0.0, np.nan, 0.3], masked=1), line([1, 0.001, 0.2, 0.1, 0], masked=1)]
    drawn = sentence(tokens_of("time", "flies", "a", "b", "arrow"), heads, NUMBERS, SCALE, 80, {1: QUERY}).lines
    assert texts(drawn) == [
        "                   time▸flies a   b   arrow",
        "L3 H2  induction    .09   .91   0   X     ·",
        "L3 H2  induction    1.0   .00 .20 .10     ·",
    ]


@pytest.mark.parametrize("palette", [COLOR, NUMBERS, Palette("ascii", "ascii")], ids=lambda palette: palette.tier)
@pytest.mark.parametrize("width", [20, 40, 200])
def test_a_long_sentence_wraps_or_keeps_its_heaviest_tokens(palette: Palette, width: int) -> None:
    trace = attncli.inspect(" ".join(f"w{place}" for place in range(100)))
    heads = head_lines(trace.layers, 99)[:1]
    whole = sentence(trace.key_tokens, heads, palette, SCALE, width)
    assert whole.width <= width
    assert all(f"w{place}" in "".join(texts(whole.lines)) for place in range(100))
    some = sentence(trace.key_tokens, heads, palette, SCALE, width, {99: QUERY}, most=2)
    assert len(some.lines) <= (2 if palette.has_color else 4)
    assert max(map(cell_len, texts(some.lines))) <= width
    assert f"w{heads[0].weights.argmax()}" in "".join(texts(some.lines))


def test_heads_that_say_most_come_first(minilm: str) -> None:
    trace = attncli.inspect(TEXT, model=minilm, layer="all")
    found = head_lines(trace.layers, 9, labels_of_heads(trace))
    assert len(found) == 72
    assert (found[0].name, found[0].label) == ("L0 H2", "previous")
    labels = [one.label for one in found]
    quiet = [label in SAY_LITTLE for label in labels]
    assert quiet == sorted(quiet)  # they come last
    without = [bool(label) for label, is_quiet in zip(labels, quiet, strict=True) if not is_quiet]
    assert without == sorted(without, reverse=True)  # and those without a label in the middle


def test_among_heads_without_a_label_the_least_uniform_comes_first() -> None:
    vectors = np.zeros((3, 4, 2), np.float32)
    weights = np.full((3, 4, 4), 0.25, np.float32)
    weights[1, 3], weights[2, 3] = [0.1, 0.7, 0.1, 0.1], [0, 0, 1, 0]
    layer = layer_of(vectors, vectors, recorded_weights=weights, recorded_scores=weights)
    assert [one.name for one in head_lines([layer], 3)] == ["L0 H2", "L0 H1", "L0 H0"]
