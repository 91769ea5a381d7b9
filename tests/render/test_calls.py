"""The table of calls: it fits every width, and never cuts the line that it is about."""

import pytest
from live_calls import CAUSAL, B, H, T, mask_argument, sdpa
from rich.cells import cell_len
from running import plain, printed
from views import TIERS

from attncli.analysis.calls.calls import Calls
from attncli.recording.call import CallSite
from attncli.render.calls import calls_parts
from attncli.render.palette import Palette

DEEP = "experiments/a_long_name_of_a_project/models/variants/multi_head_attention.py"
LONG = "MultiHeadSelfAttentionWithRelativePositionsAndRotations.forward"
PLACES = [
    CallSite("model.py", 7, "Block.forward", "layers.0.attn"),
    CallSite(DEEP, 1234, "Block.forward", "encoder.model.language_model.transformer.layers.11.self_attention"),
    CallSite("model.py", 9, LONG, None),
    CallSite(DEEP, 5678, LONG, "時間は矢のように飛ぶ"),
]


PLAIN, COLORED = Palette("ascii", "ascii"), Palette("truecolor")


@pytest.mark.parametrize(("palette", "width"), [(TIERS[0], 200), (TIERS[2], 80), (TIERS[3], 40)], ids=str)
def test_a_place_keeps_its_line_at_every_width(width: int, palette: Palette) -> None:
    calls = Calls()
    for place in PLACES:
        calls.take(sdpa(mask_argument(CAUSAL), at=place))
        calls.take(sdpa(is_causal=True, size=(B, 1, T), at=place))
    calls.finish()
    (table,) = calls_parts(calls, palette, width)
    lines = plain(printed([table], palette, width)).splitlines()
    assert all(cell_len(line) <= width for line in lines)
    for place in PLACES:
        assert any(f":{place.line} " in f"{line} " for line in lines)
    text = " ".join(" ".join(lines).split())
    assert text.count(palette.label("causal, aligned top-left")) == len(PLACES)
    assert text.count("shape: is_causal aligns") == len(PLACES)


def test_where_a_line_is_too_short_for_a_place_each_has_a_block_with_its_findings() -> None:
    calls = Calls()
    for place in PLACES[:2]:
        calls.take(sdpa(mask_argument(CAUSAL), at=place))
    calls.take(sdpa(is_causal=True, size=(B, 1, T), at=PLACES[0]))
    calls.finish()
    (table,) = calls_parts(calls, PLAIN, 110)
    lines = [line.partition(" 1 query")[0].strip() for line in printed([table], PLAIN, 110).splitlines()]
    assert lines[1:9] == [
        "model.py:7 Block.forward (layers.0.attn)",
        f"1 call . sdpa . {H} heads . 8x8 . float32 . causal . ok",
        f"{DEEP}:1234 Block.forward",
        f"({PLACES[1].module})",
        f"1 call . sdpa . {H} heads . 8x8 . float32 . causal . ok",
        "model.py:7 Block.forward (layers.0.attn)",
        f"1 call . sdpa . {H} heads . 1x8 . float32 . causal, aligned top-left",
        "error: shape: is_causal aligns",
    ]


def test_twelve_layers_are_a_line_or_a_block() -> None:
    calls = Calls()
    for layer in range(12):
        calls.take(sdpa(mask_argument(CAUSAL), at=CallSite("gpt2.py", 6, "<module>", f"h.{layer}.attn")))
    calls.finish()

    def lines(width: int) -> list[str]:
        (table,) = calls_parts(calls, PLAIN, width)
        return [" ".join(line.split()) for line in printed([table], PLAIN, width).splitlines()[1:]]

    titles = "place module calls kind heads queriesxkeys mask findings"
    assert lines(120) == [titles, f"gpt2.py:6 <module> h.0-11.attn 12 sdpa {H} 8x8 causal ok"]
    assert lines(80) == [
        "gpt2.py:6 <module> (h.0-11.attn)",
        f"12 calls . sdpa . {H} heads . 8x8 . float32 . causal . ok",
    ]


def test_errors_and_notes_have_colours_where_there_are_some() -> None:
    calls = Calls()
    calls.take(sdpa(is_causal=True, size=(B, 1, T), at=PLACES[0]))
    calls.finish()
    for width in (60, 200):
        (table,) = calls_parts(calls, COLORED, width)
        assert "\x1b[31m" in printed([table], COLORED, width)
        (table,) = calls_parts(calls, PLAIN, width)
        assert "\x1b" not in printed([table], PLAIN, width)
