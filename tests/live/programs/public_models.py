"""Bugs that people made in public beside masks (axes, scales, heads, padding, packing, caches), and mended."""

import math

import public_masks
import torch
import torch.nn.functional as F
import transformers
from public_masks import HEAD, HEADS, WIDTH, Encoder, MultiHeadedAttention, NanoGPT, V, batch, causal, heads, nano
from step import evaluation, language_step, step
from torch import Tensor, nn


class Layer(nn.Module):
    """Three projections around a function of what they make, [B, T, WIDTH] each, as many write a first attention."""

    def __init__(self, attend) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        return self.to_out(self.attend(self.to_q(x), self.to_k(x), self.to_v(x)))


def layer(attend, size: int = 8, rows: int = 2) -> list[Tensor]:
    return step(Layer(attend), torch.randn(rows, size, WIDTH))


def scaled(factor) -> list[Tensor]:
    """MinGPT's attention, whose scores are multiplied with another number."""

    def attend(q, k, v, idx):
        scores = q @ k.transpose(-2, -1)
        scores = scores if factor is None else scores * factor
        return F.softmax(scores.masked_fill(~causal(8), float("-inf")), dim=-1) @ v

    return step(NanoGPT(attend), batch(8, 8))


PROGRAMS = {  # by the factor, right and wrong
    name: lambda wrong, factor=factor: scaled(factor if wrong else 1 / math.sqrt(HEAD))
    for name, factor in {"no_scale": None, "scale_dmodel": WIDTH**-0.5, "scale_mult": math.sqrt(HEAD)}.items()
}


# --- axes ---
def axis_einsum(wrong):
    """labml: scores are [i, j, b, h], and the softmax is over dim=1, the keys, or another."""

    def attend(q, k, v):
        q, k, v = (each.view(*each.shape[:2], HEADS, HEAD).transpose(0, 1) for each in (q, k, v))
        scores = torch.einsum("ibhd,jbhd->ijbh", q, k) / math.sqrt(HEAD)
        scores = scores.masked_fill(~causal(len(q))[:, :, None, None], float("-inf"))
        weights = torch.nan_to_num(scores.softmax(dim=0 if wrong else 1))
        return torch.einsum("ijbh,jbhd->bihd", weights, v).reshape(q.shape[1], -1, WIDTH)

    return layer(attend)


def axis_dim1(wrong):
    def attend(q, k, v):
        q, k, v = heads(q), heads(k), heads(v)
        scores = q @ k.transpose(-2, -1) / HEAD**0.5
        weights = F.softmax(scores, dim=1 if wrong else -1)
        return (weights @ v).transpose(1, 2).flatten(2)

    return layer(attend)


def batch_first(wrong):
    """nn.TransformerEncoderLayer takes [T, B, D] where it is not told otherwise; it gets [B, T, D]."""
    ids = batch(6, 10, 3)
    return step(Encoder(batch_first=not wrong), ids, pad=None if wrong else ids == 0)


def qk_swapped(wrong):
    def attend(q, k, v):
        q, k, v = heads(q), heads(k), heads(v)
        scores = (k @ q.transpose(-2, -1) if wrong else q @ k.transpose(-2, -1)) / math.sqrt(HEAD)
        weights = scores.masked_fill(~causal(q.size(2)), float("-inf")).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)

    return layer(attend)


def heads_view(wrong):
    """FuxiCTR: heads are split by a view alone, and each of them is a part of the positions."""

    def attend(q, k, v):
        rows, size, _ = q.shape
        if wrong:
            q, k, v = (each.view(rows, HEADS, size, HEAD) for each in (q, k, v))
        else:
            q, k, v = heads(q), heads(k), heads(v)
        y = (q @ k.transpose(-2, -1) / math.sqrt(HEAD)).softmax(-1) @ v
        return y.view(rows, size, WIDTH) if wrong else y.transpose(1, 2).reshape(rows, size, WIDTH)

    return layer(attend)


def out_view(wrong):
    """The heads are put together by a reshape alone."""

    def attend(q, k, v):
        rows, size, _ = q.shape
        y = F.scaled_dot_product_attention(heads(q), heads(k), heads(v))
        return (y if wrong else y.transpose(1, 2)).reshape(rows, size, WIDTH)

    return layer(attend)


def gqa_repeat(wrong):
    """Two heads of keys for four of queries: they are tiled, and should be repeated one by one."""

    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wq, self.wk, self.wv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * HEAD), nn.Linear(WIDTH, 2 * HEAD)

        def forward(self, x):
            q = heads(self.wq(x))
            k, v = (each(x).view(*x.shape[:2], 2, HEAD).transpose(1, 2) for each in (self.wk, self.wv))
            k, v = (each.repeat(1, 2, 1, 1) if wrong else each.repeat_interleave(2, dim=1) for each in (k, v))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    return step(Grouped(), torch.randn(2, 8, WIDTH))


# --- scales and dropout ---
def double_scale(wrong):
    def attend(q, k, v, idx):
        q = q / math.sqrt(HEAD) if wrong else q
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return step(NanoGPT(attend), batch(8, 8))


def dropout_eval(wrong):
    def attend(q, k, v, idx):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if wrong else 0.0, is_causal=True)

    return evaluation(NanoGPT(attend), batch(8, 8))


# --- padding of two sides ---
class Translator(nn.Module):
    def __init__(self, padding_idx: int | None = 0) -> None:
        super().__init__()
        self.src_tok_emb = nn.Embedding(V, WIDTH, padding_idx=padding_idx)
        self.tgt_tok_emb = nn.Embedding(V, WIDTH, padding_idx=padding_idx)
        self.transformer = nn.Transformer(WIDTH, HEADS, 1, 1, 32, dropout=0.0, batch_first=True)

    def forward(self, src: Tensor, tgt: Tensor, src_pad: Tensor, memory_pad: Tensor | None) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        padding = {"src_key_padding_mask": src_pad, "memory_key_padding_mask": memory_pad}
        return self.transformer(self.src_tok_emb(src), self.tgt_tok_emb(tgt), tgt_mask=mask, **padding)


def cross_nomask(wrong):
    src, tgt = batch(10, 6, 3), batch(7, 7, 7)
    return step(Translator(), src, tgt, src == 0, None if wrong else src == 0)


def cross_tgt(wrong):
    """The decoder looks at the source through the padding of the target, which is as long."""
    src, tgt = batch(9, 5, 3), batch(4, 9, 7)
    return step(Translator(), src, tgt, src == 0, tgt == 0 if wrong else src == 0)


def enc_tgt_pad(wrong):
    src, tgt = batch(9, 5, 3), batch(4, 9, 7)
    return step(Translator(padding_idx=None), src, tgt, tgt == 0 if wrong else src == 0, src == 0)


# --- packing ---
class Packed(NanoGPT):
    """Documents side by side in a row; positions begin again at each."""

    def forward(self, ids: Tensor, documents: Tensor, position_ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(position_ids)
        for block in self.h:
            x = block(x, documents)
        return self.lm_head(x)


def apart(documents: Tensor) -> Tensor:
    return documents[:, :, None] == documents[:, None, :]


def counted(documents: Tensor) -> Tensor:
    """Positions that begin again at every document."""
    return (apart(documents) & causal(documents.size(1))).sum(-1) - 1


def packed(mask_of, documents: Tensor, again: bool = True, train=step) -> list[Tensor]:
    def attend(q, k, v, own):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask_of(own)[:, None])

    positions = counted(documents) if again else torch.arange(10).expand(len(documents), -1)
    return train(Packed(attend), batch(10, 10), documents, positions)


SAME = torch.tensor([[0] * 6 + [1] * 4] * 2)


def packed_causal(wrong):
    return packed(lambda own: causal(10)[None] if wrong else apart(own) & causal(10), SAME)


def packed_mask_to(wrong):
    return packed(lambda own: apart(own) if wrong else apart(own) & causal(10), SAME, train=language_step)


def packed_row0(wrong):
    """Row 1 has its documents elsewhere; in the right program all rows are alike, so that one rule holds for all."""
    documents = torch.tensor([[0] * 6 + [1] * 4, [0] * 3 + [1] * 7]) if wrong else SAME
    return packed(lambda own: apart(own[:1] if wrong else own) & causal(10), documents)


def packed_nopos(wrong):
    return packed(lambda own: apart(own) & causal(10), SAME, again=not wrong)


def llama(**options):
    with torch.no_grad():
        return [
            public_masks.small_llama(attn_implementation="sdpa").eval()(use_cache=False, **options).last_hidden_state
        ]


def hf_packed_2d(wrong):
    """A mask of two axes lets the documents of a packed row see each other, whatever its positions are."""
    ids, positions = torch.randint(1, V, (1, 10)), counted(SAME[:1])
    mask = torch.ones(1, 10) if wrong else (apart(SAME[:1]) & causal(10))[:, None]
    return llama(input_ids=ids, position_ids=positions, attention_mask=mask)


def hf_nomask(wrong):
    """Padded on the left, and no attention_mask."""
    ids = batch(10, 6, 3, left=True)
    real = ids != 0
    positions = (real.cumsum(1) - 1).clamp(min=0)
    return llama(input_ids=ids) if wrong else llama(input_ids=ids, position_ids=positions, attention_mask=real.long())


def hf_nopos(wrong):
    """Padded on the left, with a mask, and positions that count the padding."""
    ids = batch(10, 6, 3, left=True)
    sizes = {"vocab_size": V, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 32}
    config = transformers.GPT2Config(**sizes, attn_implementation="sdpa", bos_token_id=1, eos_token_id=2)
    mask = (ids != 0).long()
    positions = {} if wrong else {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    with torch.no_grad():
        model = transformers.GPT2Model(config).eval()
        return [model(ids, attention_mask=mask, use_cache=False, **positions).last_hidden_state]


# --- positions and caches ---
class Decoder(nn.Module):
    """Layers with a cache that their keys are joined to, `mask_of` queries and keys, and positions as given."""

    def __init__(self, mask_of, times: int = 1, padding_idx: int | None = None) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, WIDTH, padding_idx=padding_idx), nn.Embedding(32, WIDTH)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.mask_of, self.times = mask_of, times

    def forward(self, idx: Tensor, positions: Tensor, cache: list) -> Tensor:
        x = self.wte(idx) + self.wpe(positions)
        for index, qkv in enumerate(self.qkv):
            q, k, v = (heads(each) for each in qkv(x).chunk(3, dim=-1))
            for _ in range(self.times if len(cache) > index else 1):
                past = cache[index] if len(cache) > index else (k[:, :, :0], v[:, :, :0])
                cache[index : index + 1] = [tuple(torch.cat(both, 2) for both in zip(past, (k, v), strict=True))]
            keys, values = cache[index]
            y = F.scaled_dot_product_attention(q, keys, values, **self.mask_of(q.size(2), keys.size(2)))
            x = x + y.transpose(1, 2).flatten(2)
        return x


@torch.no_grad()
def generated(model: nn.Module, ids: Tensor, position_of, new: tuple[int, ...] = (6, 1, 1, 1)) -> list[Tensor]:
    cache: list = []
    outputs, begin = [], 0
    for count in new:
        part = ids[:, begin : begin + count]
        outputs.append(model.eval()(part, position_of(begin, count), cache))
        begin += count
    return outputs


def after(begin: int, count: int) -> Tensor:
    return torch.arange(begin, begin + count)


def lower_right(queries: int, keys: int) -> dict:
    return {"attn_mask": causal(queries, keys)}


def left_nopos(wrong):
    """Unsloth: a batch that is padded on the left is generated with positions that count from the padding on."""
    ids = batch(10, 6, 3, left=True)
    positions = torch.arange(10).expand(3, -1) if wrong else ((ids != 0).cumsum(1) - 1).clamp(min=0)

    def attend(q, k, v, idx):
        mask = (idx != 0)[:, None, None, :] & causal(10) | torch.eye(10, dtype=torch.bool)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return evaluation(Packed(attend), ids, ids, positions)


def pos_stuck(wrong):
    """The positions of new tokens begin at 0 again."""
    position_of = (lambda begin, count: torch.arange(count)) if wrong else after
    return generated(Decoder(lower_right), batch(9, 9), position_of)


def cache_slice(wrong):
    """The buffer with the triangle is cut at its first rows, whose queries are not these."""
    mask = causal(32)

    def mask_of(queries, keys):
        return {"attn_mask": mask[:queries, :keys] if wrong else mask[keys - queries : keys, :keys]}

    return generated(Decoder(mask_of), batch(9, 9), after, (4, 3, 2))


def cache_iscausal(wrong):
    return generated(Decoder(lambda queries, keys: {"is_causal": wrong or queries == keys}), batch(9, 9), after)


def cache_twice(wrong):
    return generated(Decoder(lower_right, times=2 if wrong else 1), batch(9, 9), after)


def cache_static(wrong):
    """A static cache of 16 slots, of which those that are not filled are seen."""

    class Static(Decoder):
        def forward(self, idx, positions, cache):
            if not cache:
                cache += [torch.zeros(2, 2, HEADS, 16, HEAD) for _ in self.qkv]
            x = self.wte(idx) + self.wpe(positions)
            for qkv, (keys, values) in zip(self.qkv, cache, strict=True):
                q, k, v = (heads(each) for each in qkv(x).chunk(3, dim=-1))
                keys[:, :, positions], values[:, :, positions] = k, v
                mask = torch.arange(16) <= positions[:, None]
                y = F.scaled_dot_product_attention(q, keys, values, attn_mask=None if wrong else mask)
                x = x + y.transpose(1, 2).flatten(2)
            return x

    return generated(Static(None), batch(9, 9), after)


def softprompt(wrong):
    """Vectors are put before the words, and the mask of the words is padded on the wrong side."""
    ids = batch(10, 6, 3)

    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt, self.embed = nn.Parameter(torch.randn(3, WIDTH)), nn.Embedding(V, WIDTH, padding_idx=0)
            self.attn = MultiHeadedAttention(F.scaled_dot_product_attention)

        def forward(self, ids):
            x = torch.cat([self.prompt.expand(len(ids), -1, -1), self.embed(ids)], dim=1)
            words = (ids != 0)[:, None, None, :]
            return self.attn(x, x, x, F.pad(words, (0, 3) if wrong else (3, 0), value=True))

    return step(Prompted(), ids)


# --- biases and pictures ---
def alibi_sign(wrong):
    slopes = 2.0 ** (-8 * torch.arange(1, HEADS + 1) / HEADS)
    distance = (torch.arange(8) - torch.arange(8)[:, None]) * (-1 if wrong else 1)
    bias = (slopes[:, None, None] * distance).masked_fill(~causal(8), float("-inf"))
    return nano(lambda idx: bias, 8, 8)


class ShiftedWindows(nn.Module):
    """Swin: windows of 4×4 of a picture of 8×8, which is rolled by 2, so that windows hold what was far apart."""

    def __init__(self, is_masked: bool, is_in_order: bool) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.is_masked, self.is_in_order = is_masked, is_in_order

    def windows(self, x: Tensor) -> Tensor:
        rows, _, _, width = x.shape
        return x.view(rows, 2, 4, 2, 4, width).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, width)

    def mask(self) -> Tensor:
        regions = torch.zeros(1, 8, 8, 1)
        parts = slice(0, -4), slice(-4, -2), slice(-2, None)
        for i, (rows, columns) in enumerate((one, other) for one in parts for other in parts):
            regions[:, rows, columns] = i
        regions = self.windows(regions).squeeze(-1)
        return (regions[:, None, :] - regions[:, :, None]).ne(0).float() * -100.0

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x)
        x = self.windows(torch.roll(x, (-2, -2), (1, 2)))
        q, k, v = self.qkv(x).view(-1, 16, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
        attn = q * HEAD**-0.5 @ k.transpose(-2, -1)
        if self.is_masked and self.is_in_order:
            attn = (attn.view(rows, 4, HEADS, 16, 16) + self.mask()[None, :, None]).view(-1, HEADS, 16, 16)
        elif self.is_masked:
            attn = attn + self.mask().repeat_interleave(rows, 0)[:, None]
        return self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, WIDTH))


def swin_nomask(wrong):
    return step(ShiftedWindows(not wrong, True), torch.randn(3, 8, 8, WIDTH))


def swin_order(wrong):
    """The rows of a batch of windows are the windows of a picture in turn, and the mask counts them otherwise."""
    return step(ShiftedWindows(True, not wrong), torch.randn(3, 8, 8, WIDTH))
