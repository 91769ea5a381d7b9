"""What is read of a call of scaled_dot_product_attention gives its output again, by plain operations."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from live_calls import weighed
from torch.nn.attention.bias import causal_lower_right

from attncli import watch
from attncli.recording.call import AttentionCall
from attncli.recording.watch import watching


def seen(*tensors: torch.Tensor, **options: object) -> tuple[AttentionCall, torch.Tensor]:
    calls: list[AttentionCall] = []
    with watching(calls.append):
        output = F.scaled_dot_product_attention(*tensors, **options)
    (call,) = calls
    return call, output


def heads(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES = {
    "plain": ((2, 4, 5, 8), {}), "causal": ((2, 4, 5, 8), {"is_causal": True}),
    "scale": ((2, 4, 5, 8), {"scale": 0.3}),
    "padding": ((2, 4, 5, 8), {"attn_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()[:, None, None]}),
    "bias": ((2, 4, 5, 8), {"attn_mask": heads(4, 5, 5)}), "keys alone": ((2, 4, 5, 8), {"attn_mask": heads(1, 5)}),
    "no heads": ((3, 5, 8), {"attn_mask": heads(3, 1, 5)}), "no batch": ((5, 8), {"attn_mask": heads(5, 5)}),
    "two batch axes": ((2, 3, 4, 5, 8), {"attn_mask": heads(2, 1, 1, 1, 5)}),
    "two batch axes, one mask": ((2, 3, 4, 5, 8), {"attn_mask": heads(5, 5)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_call_is_read_whole(name: str) -> None:
    shape, options = CASES[name]
    x = heads(*shape)
    call, output = seen(x, 2 * x, 3 * x, **options)
    torch.testing.assert_close(weighed(call).reshape(output.shape), output)
    assert call.api == "sdpa"
    assert torch.equal(call.output.reshape(output.shape), output)


def test_fewer_key_heads_and_more_keys() -> None:
    q, k = heads(2, 4, 5, 8), heads(2, 2, 7, 8)
    mask = torch.ones(5, 7, dtype=torch.bool).tril(2)
    call, output = seen(q, k, 2 * k, attn_mask=mask, enable_gqa=True)
    assert call.shape == (2, 4, 5, 7)
    assert call.k.shape == (2, 2, 7, 8)
    torch.testing.assert_close(weighed(call), output)


def test_a_mask_of_a_class_of_its_own_is_named_and_not_read() -> None:
    x = heads(2, 4, 5, 8)
    call, _ = seen(x, x, x, attn_mask=causal_lower_right(5, 5))
    assert (call.masks, call.unsupported) == ((), "a mask that is a CausalBias")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_nested_tensors_attend_to_their_own_tokens() -> None:
    x = torch.nested.nested_tensor([heads(3, 8), heads(5, 8)], layout=torch.jagged)
    q = x.unflatten(-1, [2, 4]).transpose(1, 2)
    call, output = seen(q, q, q)
    assert call.shape == (2, 2, 5, 5)
    for row, expected in zip(weighed(call), output.unbind(), strict=True):
        torch.testing.assert_close(row[:, : expected.shape[-2]], expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_what_runs_under_vmap_is_said_and_not_read() -> None:
    x, mask = heads(3, 2, 4, 5, 8), heads(3, 5, 5)
    attend = torch.vmap(lambda x, mask: F.scaled_dot_product_attention(x, x, x, attn_mask=mask))
    with watch() as calls:
        output = attend(x, mask)
    assert torch.equal(output, attend(x, mask))
    assert not calls
    assert calls.notes == ["attn does not read attention inside torch.func and torch.vmap"]
