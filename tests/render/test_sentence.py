"""The sentence on the colours of its weights: which colour each token has, which head comes first, and what fits."""

from collections.abc import Sequence

import numpy as np
import pytest
from rich.cells import cell_len
from rich.segment import Segment
from traces import tokens_of

import attncli
from attncli.analysis.metrics import labels_of_heads
from attncli.render.palette import DIM, Palette, Scale
from attncli.render.sentence import QUERY, SentenceLine, distant_keys, head_lines, sentence

COLOR, SCALE = Palette("truecolor"), Scale.up_to(1.0, "sqrt")
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


@pytest.mark.parametrize("width", [20, 40, 200])
def test_a_long_sentence_wraps_or_keeps_its_heaviest_tokens(width: int) -> None:
    trace = attncli.inspect(" ".join(f"w{place}" for place in range(100)))
    heads = head_lines(trace.layers, 99, range(100))[:1]
    whole = sentence(trace.key_tokens, heads, COLOR, SCALE, width)
    assert whole.width <= width
    assert all(f"w{place}" in "".join(texts(whole.lines)) for place in range(100))
    some = sentence(trace.key_tokens, heads, COLOR, SCALE, width, {99: QUERY}, most=2)
    assert len(some.lines) <= 2
    assert max(map(cell_len, texts(some.lines))) <= width
    assert f"w{heads[0].weights.argmax()}" in "".join(texts(some.lines))


def test_heads_come_first_that_attend_to_one_distant_token(minilm: str) -> None:
    trace = attncli.inspect(TEXT, model=minilm, layer="all")
    tokens = [token.text for token in trace.key_tokens]
    it, animal = tokens.index("it"), tokens.index("animal")
    distant = [place for place, text in enumerate(tokens) if text not in ("[CLS]", "[SEP]") and abs(place - it) > 1]
    weights = {f"L{layer.layer}H{head}": layer.head(head).weights[it] for layer in trace.layers for head in layer.heads}
    for keys, among in ((distant_keys(trace.key_tokens, it), distant), ([animal], [animal])):
        best = {name: max(float(row[key]) for key in among) for name, row in weights.items()}
        found = head_lines(trace.layers, it, keys, labels_of_heads(trace))
        assert [line.name for line in found] == sorted(best, key=lambda name: -best[name])
        assert "L3H1" in [line.name for line in found[:3]]  # which is a sink elsewhere, and attends to `animal` here
