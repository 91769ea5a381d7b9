"""What a view warns about: rows without a key, by layer, kind and head."""

from dataclasses import replace

import numpy as np
import pytest
from traces import layer_of, tokens_of, trace_of

from attncli.analysis.warnings import warnings_of
from attncli.trace.layer import LayerTrace
from attncli.trace.view import View

LENGTH, HEADS = 9, 8


def blind(cells: list[tuple[int, int]], layer: int = 0, kind: str = "self") -> LayerTrace:
    allowed = np.ones((HEADS, LENGTH, LENGTH), bool)
    for head, row in cells:
        allowed[head, row] = False
    vectors = np.ones((HEADS, LENGTH, 2), np.float32)
    return layer_of(vectors, vectors, mask=allowed, layer=layer, kind=kind)


def warned(*layers: LayerTrace, view: View | None = None) -> list[str]:
    tokens = tokens_of(*(f"w{index}" for index in range(LENGTH)))
    return list(warnings_of(trace_of(*layers, queries=tokens, keys=tokens), view or View()))


def everywhere(*rows: int) -> list[tuple[int, int]]:
    return [(head, row) for head in range(HEADS) for row in rows]


@pytest.mark.parametrize(("cells", "named"), [
    (everywhere(1), "1 'w1'"),
    (everywhere(*range(7)), "0 'w0', 1 'w1', 2 'w2', 3 'w3', 4 'w4' and 2 more"),
    ([(3, 1), (5, 2)], "1 'w1', 2 'w2' in some heads"),
    ([(head, head) for head in range(HEADS)], "0 'w0', 1 'w1', 2 'w2', 3 'w3', 4 'w4' and 3 more in some heads"),
])  # fmt: skip
def test_rows_without_a_key_are_named(cells: list[tuple[int, int]], named: str) -> None:
    expected = f"layer 0: the mask leaves no key to query {named}; the softmax of such a row is NaN"
    assert warned(blind(cells)) == [expected]


def test_only_rows_and_heads_that_are_shown_are_warned_about() -> None:
    layer = blind([(3, 1), (5, 2)])
    assert warned(layer, view=View(queries=("w0", "w8"))) == []
    assert "query 2 'w2' in some heads;" in warned(layer, view=View(queries=("w8", "w2")))[0]
    assert warned(replace(layer, heads=(0, 1))) == []
    assert warned(blind([])) == []


def test_layers_of_one_kind_with_the_same_rows_share_a_sentence() -> None:
    ends = [named.split(": ")[0] for named in warned(*(blind(everywhere(1), layer) for layer in range(12)))]
    assert ends == ["layers 0-11"]
    mixed = [blind(everywhere(1 + (layer == 2)), layer) for layer in (0, 1, 2, 4)]
    assert [named.split(": ")[0] for named in warned(*mixed)] == ["layers 0-1,4", "layer 2"]
    kinds = [blind(everywhere(1), layer, kind) for layer in (0, 1) for kind in ("decoder", "cross")]
    assert [named.split(": ")[0] for named in warned(*kinds)] == ["layers 0-1 (decoder)", "layers 0-1 (cross)"]
