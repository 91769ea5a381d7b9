"""A model of transformers that generates 300 tokens: what is seen, and that late tokens cost what early ones do."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList

from attncli.analysis.calls.calls import Calls
from attncli.recording.watch import watching

PROMPT, TOKENS, LAYERS = 4, 300, 2
EARLY, LATE, SPAN = 150, 270, 20  # tokens; by the first, all that is kept of a few steps is full


class Counting(LogitsProcessor):
    """Counts what some tokens in the middle cost: called functions of Python, and what is held then."""

    def __init__(self) -> None:
        self.calls, self.held = {EARLY: 0, LATE: 0}, {EARLY: 0, LATE: 0}

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        token = input_ids.shape[1] - PROMPT
        if token in self.calls:
            gc.collect()
            self.held[token] = sum(is_held(each) for each in gc.get_objects())
            sys.setprofile(lambda frame, event, _: self._called(token, event))
        elif token - SPAN in self.calls:
            sys.setprofile(None)
        return scores

    def _called(self, token: int, event: str) -> None:
        self.calls[token] += event == "call"


def is_held(one: object) -> bool:
    """Whether something is a tensor, or of a class of ours."""
    return type(one) is torch.Tensor or str(type(one)).startswith("<class 'attncli.")


def generated(attention: str, **options: Any) -> tuple[torch.Tensor, Counting]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, eos_token_id=None, attn_implementation=attention,
    )  # fmt: skip
    counting = Counting()
    ids = LlamaForCausalLM(config).eval().generate(
        torch.randint(1, 64, (1, PROMPT)), max_new_tokens=TOKENS, do_sample=True, pad_token_id=0,
        logits_processor=LogitsProcessorList([counting]), **options,
    )  # fmt: skip
    return ids, counting


@pytest.mark.parametrize(
    ("attention", "options"),
    [("sdpa", {}), ("eager", {}), ("sdpa", {"cache_implementation": "static", "disable_compile": True})],
    ids=["sdpa", "eager", "static"],
)
def test_300_tokens(attention: str, options: dict[str, Any]) -> None:
    alone, _ = generated(attention, **options)
    calls = Calls(is_kept=False)
    with watching(calls.take, hints=calls.here):
        ids, counting = generated(attention, **options)
    calls.finish()
    assert torch.equal(ids, alone)
    assert calls.calls == LAYERS * TOKENS
    assert not [one for one in calls.findings if one.severity == "error"]
    assert counting.calls[LATE] <= counting.calls[EARLY] * 1.1
    assert counting.held[LATE] <= counting.held[EARLY] + 10
