"""Bugs of masks that people made in public: each a model as they write it, right, and wrong as the issue has it.

What is handed over as a mask, where it lies, which numbers it has and what is done with it.
"""

import math

import torch
import torch.nn.functional as F
import transformers
from step import evaluation, language_step, step
from torch import Tensor, nn

V, WIDTH, HEADS = 40, 32, 4
HEAD = WIDTH // HEADS


def batch(*lengths: int, left: bool = False) -> Tensor:
    """Numbers of words, [B, T]; padding is 0."""
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(1, V, real.shape) * (real.flip(1) if left else real)


def heads(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], HEADS, HEAD).transpose(1, 2)


def causal(queries: int, keys: int | None = None) -> Tensor:
    """Which keys queries see that are the last of them, [Q, K]; without `keys`, as many."""
    keys = keys or queries
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def small_llama(kind: type = transformers.LlamaModel, **options) -> nn.Module:
    """A model of transformers of two layers, whose heads share keys by two."""
    config = transformers.LlamaConfig(
        vocab_size=V, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=2, bos_token_id=1, eos_token_id=2, **options,
    )  # fmt: skip
    return kind(config)


class Encoder(nn.Module):
    """`nn.TransformerEncoder` around words, with the masks that it is given."""

    def __init__(self, layers: int = 2, padding_idx: int | None = 0, batch_first: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, WIDTH, padding_idx=padding_idx)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids: Tensor, mask: Tensor | None = None, pad: Tensor | None = None) -> Tensor:
        return self.encoder(self.embedding(ids), mask, pad)


class NanoGPT(nn.Module):
    """Two blocks of nanoGPT around a function of q, k, v and the numbers of the words."""

    def __init__(self, attend, layers: int = 2, padding_idx: int | None = None) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, WIDTH, padding_idx=padding_idx), nn.Embedding(32, WIDTH)
        self.h = nn.ModuleList(NanoBlock(attend) for _ in range(layers))
        self.lm_head = nn.Linear(WIDTH, V, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x, idx)
        return self.lm_head(x)


class NanoBlock(nn.Module):
    def __init__(self, attend) -> None:
        super().__init__()
        self.ln_1, self.c_attn, self.c_proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attend = attend

    def forward(self, x: Tensor, idx: Tensor) -> Tensor:
        q, k, v = (heads(each) for each in self.c_attn(self.ln_1(x)).split(WIDTH, dim=2))
        y = self.attend(q, k, v, idx)
        return x + self.c_proj(y.transpose(1, 2).contiguous().view(x.shape))


class MultiHeadedAttention(nn.Module):
    """The annotated transformer: four linear layers and a function of query, key, value and mask."""

    def __init__(self, attention) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.attention = attention

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = (
            lin(x).view(x.size(0), -1, HEADS, HEAD).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        )
        x = self.attention(query, key, value, mask)
        x = x.transpose(1, 2).contiguous().view(x.size(0), -1, HEADS * HEAD)
        return self.linears[-1](x)


class Annotated(nn.Module):
    """An encoder of the annotated transformer; the mask is made of the words."""

    def __init__(self, attention, make_mask, layers: int = 2, padding_idx: int | None = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, WIDTH, padding_idx=padding_idx)
        self.layers = nn.ModuleList(MultiHeadedAttention(attention) for _ in range(layers))
        self.norm, self.make_mask = nn.LayerNorm(WIDTH), make_mask

    def forward(self, src: Tensor) -> Tensor:
        x, mask = self.embed(src) * math.sqrt(WIDTH), self.make_mask(src)
        for layer in self.layers:
            y = self.norm(x)
            x = x + layer(y, y, y, mask)
        return x


def src_mask(src: Tensor) -> Tensor:
    return (src != 0).unsqueeze(-2).unsqueeze(1)


def tgt_mask(tgt: Tensor) -> Tensor:
    return src_mask(tgt) & torch.tril(torch.ones(tgt.size(-1), tgt.size(-1), dtype=torch.bool))


def laying(lay):
    """The attention of the annotated transformer, of which one line is another: how a mask is laid on the scores."""

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
        return torch.matmul(lay(scores, mask).softmax(dim=-1), value)

    return attend


def kept(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, -1e9)


attention = laying(kept)


def nano(mask_of, *lengths: int, padding_idx: int | None = None, train=step) -> list[Tensor]:
    """A step of nanoGPT, whose mask is made of the numbers of the words."""

    def attend(q, k, v, idx):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask_of(idx))

    return train(NanoGPT(attend, padding_idx=padding_idx), batch(*lengths or (10, 6, 3)))


# --- laid on the scores: right, and wrong ---
LAID = {
    "polarity_mfill": (kept, lambda scores, mask: scores.masked_fill(mask == 1, -1e9)),
    "fill_zero": (kept, lambda scores, mask: scores.masked_fill(mask == 0, 0.0)),
    "weak_fill": (kept, lambda scores, mask: scores.masked_fill(mask == 0, -5.0)),
    "times_mask": (kept, lambda scores, mask: scores * mask),
    "bool_added": (lambda scores, mask: scores + (1.0 - mask.float()) * -1e4, lambda scores, mask: scores + mask),
    "sign_flipped": tuple(lambda scores, mask, s=s: scores - (1.0 - mask.float()) * s for s in (1e9, -1e9)),
    "plus_inf": tuple(lambda scores, mask, s=s: scores + (1.0 - mask.float()) * s for s in (-1e4, 1e4)),
}
PROGRAMS = {
    name: lambda wrong, lays=lays: step(Annotated(laying(lays[wrong]), src_mask), batch(10, 6, 3))
    for name, lays in LAID.items()
}


def not_inplace(wrong):
    def lay(scores, mask):
        filled = scores.masked_fill(mask == 0, float("-inf"))
        return scores if wrong else filled

    return step(Annotated(laying(lay), tgt_mask), batch(8, 8))


def after_softmax(wrong):
    def attend(query, key, value, mask):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
        return scores.softmax(-1).masked_fill(mask == 0, 0.0) @ value

    return step(Annotated(attend if wrong else attention, tgt_mask), batch(10, 6, 3))


def nan_rows(wrong):
    """Padding on the left: its queries may attend to nothing, and -inf makes NaN of them."""
    attend = laying(lambda scores, mask: scores.masked_fill(mask == 0, float("-inf") if wrong else -1e9))
    return step(Annotated(attend, tgt_mask), batch(10, 6, 3, left=True))


# --- True and False, 0 and 1 ---
def polarity_kpm(wrong):
    """key_padding_mask is True for words, as tokenizers have it."""
    ids = batch(10, 6, 3)
    return step(Encoder(), ids, pad=ids != 0 if wrong else ids == 0)


def polarity_sdpa(wrong):
    """A classifier of texts whose mask is that of key_padding_mask, handed to SDPA."""
    return nano(lambda idx: ((idx == 0) if wrong else (idx != 0))[:, None, None, :], padding_idx=0)


def polarity_triu(wrong):
    future = torch.triu(torch.ones(8, 8), diagonal=1).bool()
    return nano(lambda idx: future if wrong else ~future, 8, 8, train=language_step)


def float_kpm(wrong):
    ids = batch(10, 6, 3)
    return step(Encoder(), ids, pad=(ids == 0).float() if wrong else ids == 0)


def triangle(diagonal):
    """The language model of PyTorch's tutorial, with another diagonal of the mask."""

    class TransformerModel(Encoder):
        def __init__(self) -> None:
            super().__init__(padding_idx=None)
            self.decoder = nn.Linear(WIDTH, V)

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return self.decoder(super().forward(ids, mask))

    return language_step(TransformerModel(), batch(8, 8), torch.full((8, 8), float("-inf")).triu(diagonal))


def diag0(wrong):
    return triangle(0 if wrong else 1)


def diag2_leak(wrong):
    return triangle(2 if wrong else 1)


# --- windows and prefixes ---
def windowed(allows, train=step):
    i, j = torch.arange(12)[:, None], torch.arange(12)
    return nano(lambda idx: allows(i, j), 12, 12, train=train)


def window_plus1(wrong):
    return windowed(lambda i, j: (j <= i) & (i - j < (5 if wrong else 4)))


def window_right(wrong):
    return windowed(lambda i, j: (i - j).abs() < 4 if wrong else (j <= i) & (i - j < 4), train=language_step)


def window_dropped(wrong):
    """The configuration has a sliding window that the attention does not know of."""
    return windowed(lambda i, j: (j <= i) & ((i - j < 4) | wrong))


def prefix_off(wrong):
    return windowed(lambda i, j: (j <= i) | (j < (5 if wrong else 4)))


def prefix_batch(wrong):
    """Every row of the batch has a prefix of its own, and gets that of row 0."""
    prefix = torch.tensor([6] if wrong else [4, 4])
    return nano(lambda idx: (causal(10) | (torch.arange(10) < prefix[:, None])[:, None])[:, None], 10, 10)


# --- where the mask lies ---
def pad_axis(wrong):
    """The padding is put along the queries: unsqueeze(3) in place of unsqueeze(2)."""
    make = (lambda src: (src != 0).unsqueeze(1).unsqueeze(3)) if wrong else src_mask
    return step(Annotated(attention, make), batch(10, 6, 3))


def pad_axis_sdpa(wrong):
    def mask_of(idx):
        pad = idx != 0
        return (pad[:, None, :, None] if wrong else pad[:, None, None, :]).expand(-1, 1, 10, 10) & causal(10)

    return nano(mask_of, padding_idx=0)


def batch_as_head(wrong):
    """As many rows as heads, and the mask of each row is laid on a head."""
    return nano(lambda idx: (idx != 0)[None, :, None, :] if wrong else (idx != 0)[:, None, None, :], 10, 7, 5, 3)


def repeat_heads(wrong):
    """`repeat` counts the batch first, nn.MultiheadAttention the heads."""
    ids = batch(10, 6, 3)
    mask = (ids == 0)[:, None, :].expand(-1, 10, -1)
    mask = mask.repeat(HEADS, 1, 1) if wrong else mask.repeat_interleave(HEADS, 0)
    return step(Encoder(padding_idx=None), ids, mask=mask)


def skip_nopad(wrong):
    """The first layer leaves its mask out where the first row has no padding."""

    class Model(NanoGPT):
        def forward(self, idx):
            first, second = self.h
            pad = (idx != 0)[:, None, None, :]
            has_padding = not (pad[0] if wrong else pad).all()
            for block, mask in ((first, pad if has_padding else None), (second, pad)):
                block.attend = lambda q, k, v, _, mask=mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.lm_head(second(first(self.wte(idx), idx), idx))

    return step(Model(None), batch(10, 6, 3))


def all_masked_wrong(wrong):
    """The mask of row 0 for all rows."""
    make = (lambda src: src_mask(src)[:1]) if wrong else src_mask
    return step(Annotated(attention, make), batch(6, 10, 3))


# --- which mask ---
def encoder_as_decoder(wrong):
    def attend(q, k, v, idx):
        return F.scaled_dot_product_attention(q, k, v, is_causal=not wrong)

    return language_step(NanoGPT(attend), batch(8, 8))


def causal_encoder(wrong):
    return step(Annotated(attention, tgt_mask if wrong else src_mask), batch(10, 6, 3))


def bert_nomask(wrong):
    """A tokenizer's padding, and an attention_mask of ones."""
    config = transformers.BertConfig(
        vocab_size=V, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=HEADS
    )
    ids = batch(10, 6, 3)
    mask = torch.ones_like(ids) if wrong else (ids != 0).long()
    return evaluation(transformers.BertModel(config), input_ids=ids, attention_mask=mask, return_dict=False)


def wrong_order(wrong):
    """Lengths are sorted, as pack_padded_sequence wants them, and the words are not."""
    ids = batch(6, 3, 10)
    lengths = (ids != 0).sum(1)
    lengths = lengths.sort(descending=True).values if wrong else lengths
    return step(Encoder(), ids, pad=torch.arange(10) >= lengths[:, None])


def pad_id(wrong):
    """The tokenizer pads with 0, and the mask is made of another id."""
    ids = batch(10, 6, 3)
    ids[0, 4] = 1
    return step(Encoder(), ids, pad=ids == (1 if wrong else 0))


def mask_and_causal(wrong):
    """A mask of documents beside is_causal: with weights not needed, the module takes the hint for the mask."""
    model = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    x, documents = torch.randn(2, 10, WIDTH), torch.tensor([0] * 6 + [1] * 4)
    apart = documents[:, None] != documents
    future = torch.ones(10, 10, dtype=torch.bool).triu(1)
    if wrong:
        return step(model, x, x, x, attn_mask=apart, is_causal=True, need_weights=False)
    return step(model, x, x, x, attn_mask=apart | future, need_weights=False)


# --- the numbers ---
def eps_1e9(wrong):
    """1e-9, for -1e9."""
    fill = 1e-9 if wrong else -1e9
    return nano(lambda idx: torch.zeros(idx.shape).masked_fill(idx == 0, fill)[:, None, None, :])


def double_min(wrong):
    """finfo.min of bfloat16 for the future and for padding, added."""
    least = torch.finfo(torch.bfloat16).min

    def attend(q, k, v, idx):
        q, k, v = (each.bfloat16() for each in (q, k, v))
        future = torch.full((idx.size(1),) * 2, least, dtype=torch.bfloat16).triu(1)
        pad = (idx == 0)[:, None, None, :].to(torch.bfloat16) * least
        scores = q @ k.transpose(-2, -1) / math.sqrt(HEAD)
        scores = scores + future + pad if wrong else scores + (future + pad).clamp(min=least)
        return (scores.softmax(-1) @ v).float()

    return step(NanoGPT(attend), batch(10, 6, 3))
