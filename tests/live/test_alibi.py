"""ALiBi held against `alibi(n)`, in the styles in which people write it."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import BloomConfig, BloomForCausalLM, MptConfig, MptForCausalLM, PreTrainedModel
from watched_programs import watched

from attncli.analysis.calls.calls import Calls
from attncli.analysis.calls.expectations import UnexpectedError

B, H, T, D = 3, 4, 10, 8
REAL = torch.arange(T) < torch.tensor([10, 6, 3])[:, None]
BACK = torch.arange(T)[:, None] - torch.arange(T)  # i - j
FUTURE = BACK < 0
SLOPES = torch.tensor([2 ** (-8 * (head + 1) / H) for head in range(H)]).view(H, 1, 1)


def added(bias: Tensor, hidden: Tensor = FUTURE) -> Callable[[], list[Tensor]]:
    """Attention by hand to whose scores a bias is added before it is masked."""

    def run() -> list[Tensor]:
        q, k, v = torch.randn(3, B, H, T, D)
        scores = (q @ k.transpose(-2, -1) * D**-0.5 + bias).masked_fill(hidden, float("-inf"))
        return [scores.softmax(-1).nan_to_num() @ v]

    return run


def fused(bias: Tensor, hidden: Tensor = FUTURE) -> Callable[[], list[Tensor]]:
    """The same by sdpa, with the mask in the bias."""

    def run() -> list[Tensor]:
        q, k, v = torch.randn(3, B, H, T, D)
        return [F.scaled_dot_product_attention(q, k, v, bias.masked_fill(hidden, float("-inf")))]

    return run


# As Bloom counts its positions on the left: the padding does not count, and its keys have no bias.
LEFT = REAL.flip(1)
COUNTED = ((LEFT.cumsum(-1) - 1) * LEFT)[:, None, None, :]
RIGHT = {
    "by hand": (added(-SLOPES * BACK), "causal"),
    "padded on the left": (added(SLOPES * COUNTED, FUTURE | ~LEFT[:, None, None, :]), "causal & pad"),
    "by sdpa": (fused(-SLOPES * BACK), "causal"),
    "of an encoder": (fused(-SLOPES * BACK.abs(), FUTURE & False), "full"),
    "in a window": (fused(-SLOPES * BACK, FUTURE | (BACK >= 4)), "window(4)"),
}
WRONG = {
    "rises": (added(SLOPES * BACK), "its slopes are -0.25, -0.0625, "),
    "of other slopes": (added(-4 * SLOPES * BACK), "its slopes are 1, 0.25, "),
    "forgotten": (added(torch.zeros(T, T)), r"alibi\(4\) is not added to the scores"),
    "of something else": (added(BACK.sin() * SLOPES), "it is not −slope·distance in each head"),
}
MODELS: dict[str, Callable[[int], PreTrainedModel]] = {
    "bloom": lambda heads: BloomForCausalLM(
        BloomConfig(vocab_size=50, hidden_size=8 * heads, n_layer=2, n_head=heads, pad_token_id=0)
    ),
    "mpt": lambda heads: MptForCausalLM(
        MptConfig(d_model=8 * heads, n_heads=heads, n_layers=2, vocab_size=50, pad_token_id=0)
    ),
}


def wrong(calls: Calls, expect: str) -> str:
    try:
        calls.check(expect)
    except UnexpectedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("run", "mask"), RIGHT.values(), ids=RIGHT)
def test_alibi_is_named_and_not_accused(run: Callable[[], list[Tensor]], mask: str) -> None:
    calls = watched(run)
    assert [row.mask.endswith(" + alibi(4)") for row in calls] == [True]
    assert not [one for one in calls.findings if one.severity == "error"]
    assert wrong(calls, f"{mask} & alibi(4)") == ""
    assert wrong(calls, mask) == ""  # a bias need not be expected
    assert "alibi(8) has 8 heads, and the call has 4" in wrong(calls, f"{mask} & alibi(8)")


@pytest.mark.parametrize(("run", "message"), WRONG.values(), ids=WRONG)
def test_another_bias_is_an_error(run: Callable[[], list[Tensor]], message: str) -> None:
    calls = watched(run)
    assert wrong(calls, "causal") == ""
    assert [one.code for one in calls.findings if one.severity == "error"] == ["bias"] * (run is WRONG["rises"][0])
    with pytest.raises(UnexpectedError, match=rf"bias: .*{message}"):
        calls.check("causal & alibi(4)")


@pytest.mark.parametrize(("name", "heads", "dtype"), [("bloom", 6, torch.bfloat16), ("mpt", 4, torch.float32)])
def test_models_with_alibi_are_not_accused(name: str, heads: int, dtype: torch.dtype) -> None:
    model = MODELS[name](heads).to(dtype).eval()
    ids = torch.randint(1, 50, (B, T))
    for real in (REAL, LEFT):
        calls = watched(lambda: [model(ids, attention_mask=real.long()).logits])  # noqa: B023  # it is called here
        calls.check(f"causal & pad & alibi({heads})")
        calls.check(f"causal & pad & alibi({heads})", lengths=real)
    options = {"attention_mask": LEFT.long(), "max_new_tokens": 4, "do_sample": False}
    watched(lambda: [model.generate(ids, **options)]).check(f"causal & pad & alibi({heads})")


def test_a_bias_of_one_key_is_not_called_alibi() -> None:
    q, k, v, bias = torch.randn(2, 4, 1, 8), torch.randn(2, 4, 1, 8), torch.randn(2, 4, 1, 8), torch.randn(1, 4, 1, 1)
    calls = watched(lambda: [F.scaled_dot_product_attention(q, k, v, bias)])
    assert [row.mask for row in calls] == ["full + bias"]
    calls.check("causal & alibi(4)")
