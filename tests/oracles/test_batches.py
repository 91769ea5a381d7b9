"""Sentences of different lengths side by side: the numbers, and the order, of every sentence on its own."""

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from architectures import tiny_model
from conformance import calmed, opened, save, stacked
from rounding import of_weights

from attncli.trace.trace import Trace

pytestmark = pytest.mark.usefixtures("by_transformers")

# Unpadded, those of one length are: 7, 2, 7, 1, 11, 2, 7.
MIXED = [
    "w23 w42 w17 w88 w23 w64 w31", "w9 w8", "w31 w3 w31 w4 w5 w6 w2", "w99",
    "w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15", "w2 w9", "w7 " * 7,
]  # fmt: skip
TARGET = "w5 w6 w7 w8"
EXACT = 1e-5
TERMS = 6 * 48  # of the sums of six layers, one after the other


def check_same(together: Trace, alone: Trace) -> None:
    assert together.key_tokens == alone.key_tokens
    assert together.query_tokens == alone.query_tokens
    assert (together.text, together.pair, together.target) == (alone.text, alone.pair, alone.target)
    assert [(one.layer, one.kind) for one in together.layers] == [(one.layer, one.kind) for one in alone.layers]
    for ours, theirs in zip(together.layers, alone.layers, strict=True):
        assert str(ours.mask) == str(theirs.mask)
        assert ours.scale == pytest.approx(theirs.scale)
        for shown, array in zip(*((one.q, one.k, one.v) for one in (ours, theirs)), strict=True):
            largest = max(1.0, float(np.abs(array).max()))  # random models have queries and keys that are far from 1
            np.testing.assert_allclose(shown, array, rtol=0, atol=EXACT * largest, err_msg=str(ours.label))
        exact = max(EXACT, of_weights(theirs, TERMS))
        np.testing.assert_allclose(stacked(ours), stacked(theirs), rtol=0, atol=exact, err_msg=str(ours.label))
        assert ours.proof.max_abs_error <= 1e-4 + 2 * theirs.proof.max_abs_error


# ConvBERT and Nystromformer have a convolution beside their attention, MobileBERT puts three embeddings side by side:
# no mask would keep padding out of a sentence's last tokens.
MIXES_NEIGHBOURS = ["convbert", "mobilebert", "nystromformer"]


@pytest.mark.parametrize("name", ["gpt2", "bert", "gemma2", "jamba", "bloom", "t5", *MIXES_NEIGHBOURS])
def test_sentences_of_one_length_run_together_and_show_what_each_shows_alone(name: str, tmp_path: Path) -> None:
    # The norms of MobileBERT divide by nothing: scores would be of 1e25, and weights of rounding.
    save(calmed(calmed(tiny_model(name))) if name == "mobilebert" else tiny_model(name), tmp_path)
    source = opened(tmp_path, "all")
    target = TARGET if source.is_encoder_decoder else None
    with patch.object(source, "_run", wraps=source._run) as ran:
        together = list(source.traces(MIXED, None, target))
    assert [len(call.args[0]) for call in ran.call_args_list] == [1, 2, 3, 1]
    for trace, text in zip(together, MIXED, strict=True):
        check_same(trace, source.trace(text, None, target))
