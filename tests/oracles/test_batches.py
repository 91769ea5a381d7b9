"""Sentences of different lengths side by side: the numbers, and the order, of every sentence on its own."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from architectures import tiny_model
from conformance import calmed, opened, save, stacked
from rounding import of_weights

from attncli.engines.torch.engine import Checkpoint
from attncli.trace.trace import Trace

pytestmark = pytest.mark.usefixtures("by_transformers")

TEXTS = ["w23 w42 w17 w88 w23 w64 w31", "w9 w8 w7 w6", "w5 w6 w7 w8 w9 w10 w11 w12", "w99 w2 w99 w2 w3"]
# Unpadded, those of one length are: 7, 2, 7, 1, 11, 2, 7.
MIXED = [
    TEXTS[0], "w9 w8", "w31 w3 w31 w4 w5 w6 w2", "w99", "w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15", "w2 w9", "w7 " * 7,
]  # fmt: skip
TARGET = "w5 w6 w7 w8"
EXACT = 1e-5
TERMS = 6 * 48  # of the sums of six layers, one after the other


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """A tiny model of an architecture, every layer recorded."""

    @cache
    def get(name: str) -> Checkpoint:
        folder, model = tmp_path_factory.mktemp(name), tiny_model(name)
        if name == "mobilebert":  # its norms divide by nothing: scores would be of 1e25, and weights of rounding
            model = calmed(calmed(model))
        save(model, folder)
        return opened(folder, "all")

    return get


def check_same(together: Trace, alone: Trace) -> None:
    """Check that two traces show the same."""
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
        assert ours.proof is not None
        assert theirs.proof is not None
        assert ours.proof.max_abs_error <= 1e-4 + 2 * theirs.proof.max_abs_error


def sizes_and_traces(source: Checkpoint, texts: Sequence[str], *more: str | None) -> tuple[list[int], list[Trace]]:
    """Return how many sentences each batch had, and the traces."""
    sizes = []
    run = source._run

    def counted(sentences: Any) -> Any:
        sizes.append(len(sentences))
        return run(sentences)

    with patch.object(source, "_run", counted):
        return sizes, list(source.traces(texts, *more))


# ConvBERT and Nystromformer have a convolution beside their attention, MobileBERT puts three embeddings side by side:
# no mask would keep padding out of a sentence's last tokens.
MIXES_NEIGHBOURS = ["convbert", "mobilebert", "nystromformer"]


@pytest.mark.parametrize("name", ["gpt2", "bert", "gemma2", "jamba", "bloom", "t5", *MIXES_NEIGHBOURS])
def test_by_default_sentences_of_one_length_run_together_and_show_what_each_shows_alone(
    name: str, checkpoint: Callable[[str], Checkpoint]
) -> None:
    source = checkpoint(name)
    target = TARGET if source.is_encoder_decoder else None
    sizes, together = sizes_and_traces(source, MIXED, None, target)
    assert sizes == [1, 2, 3, 1]
    for trace, text in zip(together, MIXED, strict=True):
        check_same(trace, source.trace(text, None, target))
