"""The table of calls: it fits every width, and never cuts the line that it is about."""

import pytest
from live_calls import CAUSAL, B, T, given, sdpa
from rich.cells import cell_len
from running import plain, printed
from views import TIERS

from attncli.analysis.calls.calls import Calls
from attncli.render.calls import calls_parts
from attncli.render.palette import Palette
from attncli.sources.live.call import Place

DEEP = "experiments/a_long_name_of_a_project/models/variants/multi_head_attention.py"
LONG = "MultiHeadSelfAttentionWithRelativePositionsAndRotations.forward"
PLACES = [
    Place("model.py", 7, "Block.forward", "layers.0.attn"),
    Place(DEEP, 1234, "Block.forward", "encoder.model.language_model.transformer.layers.11.self_attention"),
    Place("model.py", 9, LONG, None),
    Place(DEEP, 5678, LONG, "時間は矢のように飛ぶ"),
]


@pytest.mark.parametrize("palette", TIERS)
@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_a_place_keeps_its_line_at_every_width(width: int, palette: Palette) -> None:
    calls = Calls()
    for place in PLACES:
        calls.take(sdpa(given(CAUSAL), at=place))
        calls.take(sdpa(is_causal=True, size=(B, 1, T), at=place))
    calls.finish()
    table, *_ = calls_parts(calls, palette, width)
    lines = plain(printed([table], palette, width)).splitlines()
    assert all(cell_len(line) <= width for line in lines)
    for place in PLACES:
        assert any(f":{place.line}  " in line for line in lines)
    if width > 40:
        assert sum("causal, aligned top-left" in line for line in lines) == len(PLACES)
