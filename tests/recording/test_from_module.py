"""A live `torch.nn.MultiheadAttention`, head by head, against what the module itself returns."""

from typing import Any

import numpy as np
import pytest
import torch

import attncli
from attncli.errors import InputError

WIDTH, HEADS, QUERIES, KEYS = 12, 3, 5, 7


def made(**options: Any) -> torch.nn.MultiheadAttention:
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(WIDTH, HEADS, **options).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()  # torch makes the biases zero, which would hide a bias that is left out
    return module


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)), dtype=dtype)


def agrees(
    module: torch.nn.MultiheadAttention, *inputs: torch.Tensor, atol: float = 1e-5, **masks: torch.Tensor
) -> Any:
    """Check a trace against what the module returns for each head, and return its layer."""
    tensors = (*inputs, *[inputs[-1]] * (3 - len(inputs)))
    with torch.no_grad():
        output, weights = module(*tensors, **masks, need_weights=True, average_attn_weights=False)
    weights = weights.reshape(HEADS, *weights.shape[-2:]).numpy()
    trace = attncli.from_multihead_attention(module, *inputs, **masks)
    (layer,) = trace.layers
    assert layer.shapes["weights"] == list(weights.shape)
    assert (len(trace.query_tokens), len(trace.key_tokens)) == weights.shape[1:]
    for head in range(HEADS):
        np.testing.assert_allclose(layer.head(head).weights, weights[head], atol=atol)
    projected = layer.projected(range(layer.num_queries))
    np.testing.assert_allclose(projected, output.reshape(projected.shape).numpy(), atol=10 * atol)
    assert layer.proof is not None
    assert layer.proof.max_abs_error < 10 * atol
    return layer


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_self_attention(batch_first: bool, bias: bool) -> None:
    module = made(batch_first=batch_first, bias=bias)
    x = drawn(QUERIES, WIDTH)
    unbatched = agrees(module, x)
    batched = agrees(module, x.unsqueeze(0 if batch_first else 1))
    np.testing.assert_array_equal(unbatched.q, batched.q)
    assert unbatched.kind == batched.kind == "self"
    assert (unbatched.out_bias is None) is not bias
    assert "module's own output" in unbatched.proof.against
    assert unbatched.proof.max_abs_error > 0  # two routes round differently


@pytest.mark.parametrize("batch_first", [False, True])
def test_cross_attention_of_other_lengths(batch_first: bool) -> None:
    axis = 0 if batch_first else 1
    module = made(batch_first=batch_first)
    query, key, value = drawn(QUERIES, WIDTH), drawn(KEYS, WIDTH), drawn(KEYS, WIDTH) * 2
    layer = agrees(module, query, key, value)
    assert layer.kind == "cross"
    assert layer.shapes["scores"] == [HEADS, QUERIES, KEYS]
    agrees(module, *(tensor.unsqueeze(axis) for tensor in (query, key, value)))


def boolean(*shape: int) -> torch.Tensor:
    masked = drawn(*shape) > 0.7
    masked[..., 0] = False  # a row with no key left has no weights to compare
    return masked


@pytest.mark.parametrize("shape", [(QUERIES, KEYS), (HEADS, QUERIES, KEYS)], ids=["one", "one a head"])
def test_boolean_masks_say_what_is_hidden(shape: tuple[int, ...]) -> None:
    mask = boolean(*shape)
    assert mask.any()
    layer = agrees(made(), drawn(QUERIES, WIDTH), drawn(KEYS, WIDTH), attn_mask=mask)
    for head in range(HEADS):
        expected = ~(mask if mask.dim() == 2 else mask[head]).numpy()
        np.testing.assert_array_equal(layer.head(head).mask, expected)
    assert layer.bias is None


@pytest.mark.parametrize("shape", [(QUERIES, KEYS), (HEADS, QUERIES, KEYS)], ids=["one", "one a head"])
def test_float_masks_are_added_and_minus_infinity_hides(shape: tuple[int, ...]) -> None:
    mask = drawn(*shape).masked_fill(boolean(*shape), float("-inf"))
    layer = agrees(made(), drawn(QUERIES, WIDTH), drawn(KEYS, WIDTH), attn_mask=mask)
    for head in range(HEADS):
        expected = (mask if mask.dim() == 2 else mask[head]).numpy() > -np.inf
        np.testing.assert_array_equal(layer.head(head).mask, expected)
    assert np.isfinite(layer.head(0).scores).all()


def test_both_masks_together() -> None:
    module, x = made(), drawn(QUERIES, WIDTH)
    padding = torch.tensor([False] * 4 + [True])
    causal = ~torch.ones(QUERIES, QUERIES).tril().bool()
    layer = agrees(module, x, attn_mask=causal, key_padding_mask=padding)
    np.testing.assert_array_equal(layer.head(0).mask, np.tri(QUERIES, dtype=bool) & ~padding.numpy())
    added = drawn(QUERIES, QUERIES)
    layer = agrees(module, x, attn_mask=added, key_padding_mask=torch.zeros(QUERIES).masked_fill(padding, -torch.inf))
    assert not layer.head(0).mask[:, 4].any()


def test_a_module_in_training_is_left_as_it_is_and_its_dropout_left_out() -> None:
    module = made(dropout=0.5)
    expected = attncli.from_multihead_attention(module, drawn(QUERIES, WIDTH)).layer(0).head(0).weights
    module.train()
    layer = attncli.from_multihead_attention(module, drawn(QUERIES, WIDTH)).layer(0)
    assert module.training
    np.testing.assert_array_equal(layer.head(0).weights, expected)
    assert layer.proof is None
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_keys_that_are_no_token_are_refused(options: dict[str, bool]) -> None:
    with pytest.raises(InputError, match="bias_k, bias_v or add_zero_attn"):
        attncli.from_multihead_attention(made(**options), drawn(QUERIES, WIDTH))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_row_of_a_batch_with_masks_of_its_own(batch_first: bool, training: bool) -> None:
    module = made(batch_first=batch_first).train(training)
    query, key = drawn(2, QUERIES, WIDTH), drawn(2, KEYS, WIDTH)
    if not batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    masks = {
        "attn_mask": boolean(2 * HEADS, QUERIES, KEYS),
        "key_padding_mask": torch.arange(KEYS) > torch.tensor([[6], [3]]),
    }
    with torch.no_grad():
        _, expected = module(query, key, key, **masks, average_attn_weights=False)
    for row in range(2):
        layer = attncli.from_multihead_attention(module, query, key, **masks, row=row).layer(0)
        for head in range(HEADS):
            np.testing.assert_allclose(layer.head(head).weights, expected[row, head].numpy(), atol=1e-5)
        assert layer.proof is not None
        assert layer.proof.max_abs_error < 1e-4
    with pytest.raises(InputError, match="query holds 2 sequences; choose one with row=0 to row=1"):
        attncli.from_multihead_attention(module, query, key)


@pytest.mark.parametrize(
    ("query", "arguments", "message"),
    [
        (torch.ones(3, 5), {}, "refuses its arguments: was expecting embedding dimension of 12, but got 5"),
        (torch.ones(3, 12, dtype=torch.float64), {}, "must have the same dtype"),
        (torch.ones(12), {}, r"query has shape \[12\]; expected"),
        (None, {"attn_mask": torch.ones(3, 3, dtype=torch.int64)}, "only bool and floating types of attn_mask"),
        (None, {"attn_mask": torch.ones(3, 4, dtype=torch.bool)}, r"attn_mask is torch.Size\(\[3, 4\]\)"),
        (None, {"attn_mask": torch.zeros(HEADS - 1, 3, 3)}, "attn_mask"),
        (None, {"key_padding_mask": torch.ones(4, dtype=torch.bool)}, "key_padd"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(query: Any, arguments: dict[str, torch.Tensor], message: str) -> None:
    module = made(batch_first=True)
    tensors = drawn(3, module.embed_dim) if query is None else query
    with pytest.raises(InputError, match=message):
        attncli.from_multihead_attention(module, tensors, **arguments)
