"""Calls as they are printed: a table that fits every width, and what is wrong at which line of code."""

from pathlib import Path

import pytest
import torch
from live_calls import CAUSAL, T, mask_argument, sdpa
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


PLAIN = Palette()


def lines_of(calls: Calls, palette: Palette, width: int) -> list[str]:
    calls.finish()
    return plain(printed(calls_parts(calls, palette, width), palette, width)).splitlines()


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("palette", [TIERS[0], TIERS[2]], ids=str)
def test_each_place_has_one_line_that_keeps_its_number_at_every_width(width: int, palette: Palette) -> None:
    calls = Calls()
    for place in PLACES:
        calls.take(sdpa(mask_argument(CAUSAL), at=place))
    table = lines_of(calls, palette, width)[1:]
    assert len(table) == 1 + len(PLACES)
    assert all(cell_len(line) <= width for line in table)
    for place, line in zip(PLACES, table[1:], strict=True):
        assert f":{place.line} " in line
        assert line.endswith(" causal  ok")
    assert ("module" in table[0]) == (width > 40)
    assert ("heads" in table[0]) == (width > 80)


SOURCE = """\
def attend(q, k, mask):
    if mask is not None:
        mask = mask.tril(1)
    return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)
"""


def test_a_finding_stands_with_the_lines_of_code_the_wrong_cells_and_a_command(folder: Path) -> None:
    Path("model.py").write_text(SOURCE)
    mask = mask_argument(CAUSAL | torch.ones(T, T, dtype=torch.bool).tril(1))._replace(made_at="model.py:3")
    calls = Calls("causal")
    calls.take(sdpa(at=CallSite("other.py", 1, "attend", None), dropout=0.1, is_training=False))
    for layer in range(2):
        calls.take(sdpa(mask, at=CallSite("model.py", 4, "attend", f"layers.{layer}")))
    calls.finish()
    parts = calls_parts(calls, PLAIN, 80, lambda row, finding: [f"attn run --place {row.place}", finding.code])
    shown = printed(parts, PLAIN, 80).splitlines()
    start = shown.index("  --> model.py:4 in attend (layers.0-1)")
    message = " ".join(" ".join(shown[start - 2 : start]).split())
    assert message.startswith("error leak attends to the future in 7 cells")
    assert shown[start + 1 : start + 5] == [
        "  3 |     mask = mask.tril(1)  <-- mask made here",
        "  4 | return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)",
        "7 of 64 cells differ, in 7 of 8 rows",
        "  0 1 2 3 4 5 6 7",
    ]
    assert shown[start + 5].startswith("0 ░░AA")
    more = shown.index("more: attn run --place model.py:4")
    assert (more > start, shown[more + 1]) == (True, "      leak")
    assert shown[-1] == "3 errors"
