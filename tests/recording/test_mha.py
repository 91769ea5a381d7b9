"""What is read of nn.MultiheadAttention and of the layers around it gives their outputs again, by plain operations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from live_calls import weighed
from torch import Tensor, nn

from attncli.recording.call import AttentionCall
from attncli.recording.watch import watching

BATCH, QUERIES, KEYS, WIDTH, HEADS = 3, 6, 6, 16, 4
X = torch.randn(BATCH, QUERIES, WIDTH, generator=torch.Generator().manual_seed(0))
PADDING = torch.arange(KEYS) >= torch.tensor([6, 4, 5])[:, None]
LATER = torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(1)
BIAS = torch.randn(BATCH * HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(1))
MASKS: dict[str, dict[str, Any]] = {
    "none": {}, "padding": {"key_padding_mask": PADDING}, "later": {"attn_mask": LATER},
    "both": {"attn_mask": LATER, "key_padding_mask": PADDING}, "bias": {"attn_mask": BIAS},
    "bias and padding": {"attn_mask": BIAS, "key_padding_mask": PADDING.float().mul(-1e9)},
    "hint": {"attn_mask": LATER, "is_causal": True},
}  # fmt: skip


def seen(run: Callable[[], Any]) -> tuple[list[AttentionCall], list[Tensor], Any]:
    calls, attended = [], []

    def take(call: AttentionCall) -> None:
        calls.append(call)
        attended.append(weighed(call).transpose(1, 2).flatten(2))

    with watching(take):
        output = run()
    return calls, attended, output


def attention(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(2)
    return nn.MultiheadAttention(WIDTH, HEADS, **options)


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize(
    ("is_batch_first", "is_training", "has_grad", "needs_weights"),
    [(True, True, True, True), (True, False, False, False), (False, False, False, True), (True, False, True, False)],
)
def test_a_module_is_read_whole(
    masks: str, is_batch_first: bool, is_training: bool, has_grad: bool, needs_weights: bool
) -> None:
    module = attention(batch_first=is_batch_first).train(is_training)
    x = X if is_batch_first else X.transpose(0, 1)
    with torch.set_grad_enabled(has_grad):
        (call,), (attended,), (output, _) = seen(lambda: module(x, x, x, need_weights=needs_weights, **MASKS[masks]))
    expected = output if is_batch_first else output.transpose(0, 1)
    torch.testing.assert_close(module.out_proj(attended), expected)
    assert call.shape == (BATCH, HEADS, QUERIES, KEYS)
    assert call.is_training is is_training
    assert torch.equal(call.output, expected)


def test_keys_that_are_no_tokens_are_named_and_not_read() -> None:
    module = attention(batch_first=True, add_bias_kv=True, add_zero_attn=True)
    calls: list[AttentionCall] = []
    with watching(calls.append):
        module(X, X, X)
    assert [(call.unsupported, call.project) for call in calls] == [("bias_k, bias_v, add_zero_attn", None)]


def test_a_hint_without_a_mask_hides_nothing_in_the_fast_path() -> None:
    module = attention(batch_first=True).eval()
    with torch.no_grad():
        (call,), (attended,), (output, _) = seen(lambda: module(X, X, X, is_causal=True))
    torch.testing.assert_close(module.out_proj(attended), output)
    assert [finding.code for finding in call.findings] == ["no-mask"]


def encoder(**options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options.get("norm_first", False))


def by_hand(encoder: nn.TransformerEncoder, attended: list[Tensor]) -> Tensor:
    x = X
    for layer, each in zip(encoder.layers, attended, strict=True):
        forward = lambda y, layer=layer: layer.linear2(layer.linear1(y).relu())  # noqa: E731
        if layer.norm_first:
            x = x + layer.self_attn.out_proj(each)
            x = x + forward(layer.norm2(x))
        else:
            x = layer.norm1(x + layer.self_attn.out_proj(each))
            x = layer.norm2(x + forward(x))
    return x


@pytest.mark.parametrize(("is_norm_first", "has_grad"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize(
    "masks",
    [{}, {"src_key_padding_mask": PADDING}, {"mask": LATER, "src_key_padding_mask": PADDING}],
    ids=["none", "padding", "both"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_every_path_of_an_encoder_is_read_whole(is_norm_first: bool, has_grad: bool, masks: dict[str, Tensor]) -> None:
    layers = encoder(norm_first=is_norm_first).eval()
    with torch.set_grad_enabled(has_grad):
        calls, attended, output = seen(lambda: layers(X, **masks))
        expected = by_hand(layers, attended)
    real = ~PADDING if "src_key_padding_mask" in masks else torch.ones_like(PADDING)
    torch.testing.assert_close(output[real], expected[real])
    assert [call.place.module for call in calls] == ["layers.0.self_attn", "layers.1.self_attn"]


def test_a_bias_in_the_fast_path_of_a_layer_is_named_and_not_read() -> None:
    layers = encoder().eval()
    calls: list[AttentionCall] = []
    with torch.no_grad(), watching(calls.append):
        layers(X, mask=torch.full((QUERIES, KEYS), 0.5))
    assert {call.unsupported for call in calls} == {"the numbers of src_mask in the fast path"}
