"""Programs that call `nn.MultiheadAttention`, its function, or a module of `nn.Transformer` around it."""

import warnings

import torch
from step import HEADS, LENGTHS, REAL, WIDTH, evaluation, sentences, step
from torch import Tensor, nn

T = max(LENGTHS)
FUTURE = torch.ones(T, T, dtype=torch.bool).triu(1)  # True = masked, as nn.MultiheadAttention reads it


class Pooler(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)

    def forward(self, x: Tensor, **options: object) -> Tensor:
        return self.attn(x, x, x, **options)[0]  # <- the call that the masks below are wrong in


def in_evaluation():
    return evaluation(Pooler(dropout=0.1), sentences(), key_padding_mask=~REAL, need_weights=False)


def causal_hint():
    mask = nn.Transformer.generate_square_subsequent_mask(T)
    return step(Pooler(), sentences(batch=2), attn_mask=mask, is_causal=True, need_weights=False)


def encoder_in_evaluation():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return evaluation(encoder, sentences(), src_key_padding_mask=~REAL)


def nested_encoder():
    """The fast path of torch, which drops the padding."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype, says torch
        return evaluation(nn.TransformerEncoder(layer, 2), sentences(), src_key_padding_mask=~REAL)


def transformer():
    model = nn.Transformer(WIDTH, HEADS, 2, 2, 64, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    return step(model, sentences(batch=2), torch.randn(2, 5, WIDTH), tgt_mask=mask, tgt_is_causal=True)


def hint_beside_another_mask():
    """`is_causal` is believed, and the window of the mask is dropped without a word."""
    band = FUTURE | torch.ones(T, T, dtype=torch.bool).tril(-3)
    return step(Pooler(), sentences(batch=2), attn_mask=band, is_causal=True, need_weights=False)


class Around(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.layer(*inputs)  # <- no mask is handed on


def decoder_without_a_mask():
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 64, batch_first=True)
    return step(Around(layer), torch.randn(2, 5, WIDTH), sentences(batch=2))


def fast_path_without_padding():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True)
    return evaluation(Around(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)), sentences())
