"""Programs that call `nn.MultiheadAttention`, its function, or a module of `nn.Transformer` around it."""

import warnings

import torch
import torch.nn.functional as F
from step import HEADS, LENGTHS, REAL, WIDTH, evaluation, main, sentences, step
from torch import Tensor, nn

T = max(LENGTHS)
FUTURE = torch.ones(T, T, dtype=torch.bool).triu(1)  # True = masked, as nn.MultiheadAttention reads it


class Pooler(nn.Module):
    """A module of a program around the one of torch."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)

    def forward(self, x: Tensor, **options: object) -> Tensor:
        return self.attn(x, x, x, **options)[0]  # <- the call that the masks below are wrong in


# --- right -------------------------------------------------------------------------------------------------


def in_training():
    return step(Pooler(dropout=0.1), sentences(batch=2), attn_mask=FUTURE)


def in_evaluation():
    return evaluation(Pooler(dropout=0.1), sentences(), key_padding_mask=~REAL, need_weights=False)


def weights_of_each_head():
    model = nn.MultiheadAttention(WIDTH, HEADS)
    x = sentences(batch=2).transpose(0, 1)
    output, weights = model(x, x, x, attn_mask=FUTURE, average_attn_weights=False)
    output.sum().backward()
    return [output.detach(), weights.detach(), model.in_proj_weight.grad]


def causal_hint():
    mask = nn.Transformer.generate_square_subsequent_mask(T)
    return step(Pooler(), sentences(batch=2), attn_mask=mask, is_causal=True, need_weights=False)


def memory():
    """Other words than the queries, of another width."""
    model = nn.MultiheadAttention(WIDTH, HEADS, kdim=24, vdim=24, batch_first=True)
    words = torch.randn(len(LENGTHS), T, 24)
    return step(model, torch.randn(len(LENGTHS), 4, WIDTH), words, words, key_padding_mask=~REAL)


def no_batch():
    return step(Pooler(), torch.randn(T, WIDTH), attn_mask=FUTURE)


def masks_of_each_head():
    mask = FUTURE.expand(2 * HEADS, T, T)
    return step(Pooler(), sentences(batch=2), attn_mask=mask)


def function():
    model = nn.MultiheadAttention(WIDTH, HEADS)
    x = sentences(batch=2).transpose(0, 1)
    output, _ = F.multi_head_attention_forward(
        x, x, x, WIDTH, HEADS, model.in_proj_weight, model.in_proj_bias, None, None, False, 0.0,
        model.out_proj.weight, model.out_proj.bias, attn_mask=FUTURE, need_weights=False,
    )  # fmt: skip
    output.sum().backward()
    return [output.detach(), model.in_proj_weight.grad]


def encoder_layer():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True)
    return step(layer, sentences(batch=2), src_mask=FUTURE)


def encoder_in_evaluation():
    """The fast path of torch."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return evaluation(encoder, sentences(), src_key_padding_mask=~REAL)


def nested_encoder():
    """The fast path of torch, which drops the padding."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype, says torch
        return evaluation(nn.TransformerEncoder(layer, 2), sentences(), src_key_padding_mask=~REAL)


def decoder_layer():
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 64, batch_first=True)
    target, memory = torch.randn(len(LENGTHS), 5, WIDTH), sentences()
    return step(layer, target, memory, tgt_mask=FUTURE[:5, :5], memory_key_padding_mask=~REAL)


def transformer():
    model = nn.Transformer(WIDTH, HEADS, 2, 2, 64, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    return step(model, sentences(batch=2), torch.randn(2, 5, WIDTH), tgt_mask=mask, tgt_is_causal=True)


# --- wrong -------------------------------------------------------------------------------------------------


def mask_of_sdpa():
    """The mask of `scaled_dot_product_attention`, in which True allows."""
    return step(Pooler(), sentences(batch=2), attn_mask=~FUTURE)


def real_words_as_padding():
    """True for the words, as tokenizers give it: here True forbids."""
    return step(Pooler(), sentences(), key_padding_mask=REAL)


def numbers_as_padding():
    """1.0 for padding, which is added to the scores."""
    return step(Pooler(), sentences(), key_padding_mask=(~REAL).float())


def hint_beside_another_mask():
    """`is_causal` is believed, and the window of the mask is dropped without a word."""
    band = FUTURE | torch.ones(T, T, dtype=torch.bool).tril(-3)
    return step(Pooler(), sentences(batch=2), attn_mask=band, is_causal=True, need_weights=False)


def masks_of_each_head_repeated_wrongly():
    """FuxiCTR #130: `repeat` counts the batch first, and the module the heads."""
    mask = ~REAL[:, None, :].expand(-1, T, -1)
    return step(Pooler(), sentences(), attn_mask=mask.repeat(HEADS, 1, 1))


class Around(nn.Module):
    """A module of a program around a layer of torch."""

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


if __name__ == "__main__":
    torch.manual_seed(0)
    main(globals())
