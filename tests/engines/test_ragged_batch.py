"""Sentences that the native engine computes together: what is packed, and that each is answered as if it were alone."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import attncli
from attncli.engines.numpy import forward
from attncli.engines.source import CorpusItem, trace_stream
from attncli.errors import Failure
from attncli.trace.layer import LayerTrace
from attncli.trace.trace import Trace

WORDS = "the cat sat on a mat and the dog ran to it , then they all slept . ".split(" ")
LENGTHS = (3, 1, 7, 3, 12, 3, 1, 5, 7, 2)
TEXTS = [" ".join(WORDS[start : start + length]) for start, length in enumerate(LENGTHS)]


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Pack 24 tokens at most, and give the lengths of the sentences of each pack that is computed."""
    monkeypatch.setattr(forward.Model, "batch_tokens", 24)
    computed: list[list[int]] = []
    layers = forward.Model.record

    def noting(self: forward.Model, sentences: Sequence[forward.TokenIds], *rest: Any) -> list[list[LayerTrace]]:
        computed.append([len(each.ids) for each in sentences])
        return layers(self, sentences, *rest)

    monkeypatch.setattr(forward.Model, "record", noting)
    return computed


def answers(texts: Sequence[str | Failure], **options: Any) -> list[Trace | Failure]:
    source = attncli.open_source(model="demo", layer="all", engine="native", **options)
    sentences = [CorpusItem(number, text) for number, text in enumerate(texts, start=256)]  # of one window
    return [answer for _, answer in trace_stream(source, sentences, None, None)]


def same(found: Trace | Failure, text: str, **options: Any) -> bool:
    reference = attncli.inspect(text, model="demo", layer="all", engine="native", **options)
    assert (found.text, found.key_tokens) == (reference.text, reference.key_tokens)
    for layer, other in zip(found.layers, reference.layers, strict=True):
        assert (layer.heads, str(layer.mask), layer.scale) == (other.heads, str(other.mask), other.scale)
        for name in "qkv":
            one, two = np.asarray(getattr(layer, name)), np.asarray(getattr(other, name))
            np.testing.assert_allclose(one, two, atol=1e-5 * max(1.0, float(np.abs(two).max())))
    return True


def test_sentences_follow_each_other_into_packs_and_are_as_they_are_alone(packed: list[list[int]]) -> None:
    found = answers(TEXTS)
    lengths = [len(trace.key_tokens) for trace in found if isinstance(trace, Trace)]
    assert [length for pack in packed for length in pack] == lengths
    for pack, following in pairwise(packed):
        assert sum(pack) <= 24 < sum(pack) + following[0]
    assert all(map(same, found, TEXTS))


def test_a_bad_sentence_ends_a_pack_and_nothing_is_computed_twice(packed: list[list[int]]) -> None:
    texts = ["the cat", "  ", "the dog", " ".join(WORDS * 50), "a mat", "it ran"]
    found = answers(texts)
    failures = [answer.reason if isinstance(answer, Failure) else None for answer in found]
    assert [bool(why) for why in failures] == [False, True, False, True, False, False]
    assert "is empty" in str(failures[1])
    assert "tokens" in str(failures[3])
    assert [len(pack) for pack in packed] == [1, 1, 2]
    assert same(found[4], "a mat")
