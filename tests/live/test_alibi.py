"""ALiBi held against `alibi(n)`, in the styles in which people write it."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    MptConfig,
    MptForCausalLM,
    PreTrainedModel,
)
from watched_programs import watched

import attncli
from attncli.analysis.calls.calls import Calls
from attncli.analysis.calls.expected import UnexpectedError

RIGHT = {
    "by_hand": "causal", "left_padded": "causal & pad", "by_baddbmm": "causal", "by_sdpa": "causal",
    "in_bfloat16": "causal", "by_module": "causal & pad", "by_flex": "causal", "encoder": "full",
    "windowed": "window(4)", "generated": "causal",
}  # fmt: skip
WRONG = {
    "rises": "its slopes are -0.25, -0.0625, ",
    "of_other_slopes": "its slopes are 1, 0.25, ",
    "forgotten": r"alibi\(4\) is not added to the scores",
    "of_something_else": "it is not −slope·distance in each head",
    "one_sided_encoder": "it is not −slope·distance in each head",
}
MODELS: dict[str, Callable[[int], PreTrainedModel]] = {
    "bloom": lambda heads: BloomForCausalLM(
        BloomConfig(vocab_size=50, hidden_size=8 * heads, n_layer=2, n_head=heads, pad_token_id=0)
    ),
    "mpt": lambda heads: MptForCausalLM(
        MptConfig(d_model=8 * heads, n_heads=heads, n_layers=2, vocab_size=50, pad_token_id=0)
    ),
}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Give a function that returns a program."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "programs")
    module = importlib.import_module("alibi")
    yield lambda name: getattr(module, name)
    for name in ("alibi", "step"):
        sys.modules.pop(name, None)


def wrong(calls: Calls, expect: str) -> str:
    try:
        calls.check(expect)
    except UnexpectedError as error:
        return str(error)
    return ""


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("name", "mask"), RIGHT.items())
def test_alibi_is_named_and_not_accused(name: str, mask: str, program: Callable[[str], Any]) -> None:
    calls = watched(program(name))
    assert [row.mask.endswith(" + alibi(4)") for row in calls] == [True] * len(calls)
    assert not [one for one in calls.findings if one.severity == "error"]
    assert wrong(calls, f"{mask} & alibi(4)") == ""
    assert wrong(calls, mask) == ""  # a bias is not asked for
    assert "alibi(8) is a bias of 8 heads, and there are 4 here" in wrong(calls, f"{mask} & alibi(8)")


@pytest.mark.parametrize(("name", "said"), WRONG.items())
def test_another_bias_is_an_error(name: str, said: str, program: Callable[[str], Any]) -> None:
    calls = watched(program(name))
    mask = "full" if name == "one_sided_encoder" else "causal"
    assert wrong(calls, mask) == ""
    assert [one.code for one in calls.findings if one.severity == "error"] == ["bias"] * (name == "rises")
    with pytest.raises(UnexpectedError, match=rf"bias: .*{said}"):
        calls.check(f"{mask} & alibi(4)")


@pytest.mark.parametrize(("heads", "dtype"), [(4, torch.float32), (6, torch.bfloat16)])
@pytest.mark.parametrize("name", MODELS)
def test_models_with_alibi_are_not_accused(name: str, heads: int, dtype: torch.dtype) -> None:
    model = MODELS[name](heads).to(dtype).eval()
    ids = torch.randint(1, 50, (3, 10))
    right = torch.arange(10) < torch.tensor([10, 6, 3])[:, None]
    for real in (right, right.flip(1)):
        calls = watched(lambda: [model(ids, attention_mask=real.long()).logits])  # noqa: B023  # it is called here
        calls.check(f"causal & pad & alibi({heads})")
        calls.check(f"causal & pad & alibi({heads})", lengths=real)
    options = {"attention_mask": right.flip(1).long(), "max_new_tokens": 4, "do_sample": False}
    watched(lambda: [model.generate(ids, **options)]).check(f"causal & pad & alibi({heads})")


def test_a_bias_of_one_key_is_not_called_alibi() -> None:
    def run() -> None:
        q, k, v = torch.randn(3, 2, 4, 1, 8)
        torch.nn.functional.scaled_dot_product_attention(q, k, v, torch.randn(1, 4, 1, 1))

    with attncli.watch() as calls:
        run()
    assert [row.mask for row in calls] == ["full + bias"]
    calls.check("causal & alibi(4)")
