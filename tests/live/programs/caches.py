"""Programs that generate with a cache of every kind: joined, static, in chunks, rolling, of rows of their own lengths.

Those that take `wrong` make the mistake that people make with it.
"""

import torch
import torch.nn.functional as F
import transformers
from public_masks import HEAD, HEADS, WIDTH, V, batch, causal, heads, small_llama
from torch import Tensor, nn

SLOTS = 16


def _llama():
    kind = transformers.LlamaForCausalLM
    return small_llama(kind, pad_token_id=0, attn_implementation="sdpa").eval()


# --- transformers -------------------------------------------------------------------------------------------


@torch.no_grad()
def _steps(model, ids: Tensor, counts: tuple[int, ...]) -> list[Tensor]:
    """What a model gives of parts of a text, one after another, with a static cache."""
    cache, outputs, begin = transformers.StaticCache(config=model.config, max_cache_len=SLOTS), [], 0
    for count in counts:
        positions = torch.arange(begin, begin + count)[None]
        out = model(input_ids=ids[:, begin : begin + count], past_key_values=cache, position_ids=positions)
        outputs.append(out.logits)
        begin += count
    return outputs


def hf_static_chunks():
    return _steps(_llama(), batch(12, 12), (4, 4, 3, 1))


def hf_generate_static():
    ids = batch(6, 4, left=True)
    return [
        _llama().generate(
            ids, attention_mask=(ids != 0).long(), max_new_tokens=5, do_sample=False, cache_implementation="static",
            disable_compile=True,
        )
    ]  # fmt: skip


def _generated(model, ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
    """What a model says next, with a cache that grows and with a static one."""
    how = {"attention_mask": attention_mask, "max_new_tokens": 6, "do_sample": False, "disable_compile": True}
    return [model.generate(ids, cache_implementation=one, **how) for one in (None, "static")]


def hf_sliding():
    """A window of four keys, whose cache holds no more."""
    config = transformers.MistralConfig(
        vocab_size=V, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=2, sliding_window=4, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = transformers.MistralForCausalLM(config).eval()
    ids = batch(6, 6)
    return _generated(model, ids, torch.ones_like(ids))


def hf_translating():
    """T5, whose decoder attends to the words of its encoder through a cache of theirs."""
    config = transformers.T5Config(
        vocab_size=V, d_model=WIDTH, d_kv=HEAD, d_ff=32, num_layers=2, num_heads=HEADS, decoder_start_token_id=0
    )
    ids = batch(8, 5, 3)
    model = transformers.T5ForConditionalGeneration(config).eval()
    return _generated(model, ids, (ids != 0).long())


# --- by hand ------------------------------------------------------------------------------------------------


class Static(nn.Module):
    """Layers with a static cache of `SLOTS` slots; `mask_of` the positions of the queries, and the number of slots."""

    def __init__(self, mask_of, is_fused: bool = True, rows: int = 2) -> None:
        super().__init__()
        self.wte = nn.Embedding(V, WIDTH)
        self.layers = nn.ModuleList(StaticAttention(mask_of, is_fused, rows) for _ in range(2))

    def forward(self, idx: Tensor, input_pos: Tensor) -> Tensor:
        x = self.wte(idx)
        for layer in self.layers:
            x = x + layer(x, input_pos)
        return x


class StaticAttention(nn.Module):
    def __init__(self, mask_of, is_fused: bool, rows: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("k_cache", torch.zeros(rows, HEADS, SLOTS, HEAD))
        self.register_buffer("v_cache", torch.zeros(rows, HEADS, SLOTS, HEAD))
        self.mask_of, self.is_fused = mask_of, is_fused

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        q, k, v = (heads(each) for each in self.qkv(x).chunk(3, dim=-1))
        if pos.dim() == 1:
            self.k_cache[:, :, pos], self.v_cache[:, :, pos] = k, v
        else:  # each row at its own place
            rows = torch.arange(len(pos))[:, None]
            self.k_cache[rows, :, pos], self.v_cache[rows, :, pos] = k.transpose(1, 2), v.transpose(1, 2)
        keys, values, mask = self.k_cache, self.v_cache, self.mask_of(pos)
        if self.is_fused:
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        else:
            scores = q @ keys.transpose(-2, -1) / HEAD**0.5
            scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
            y = scores.softmax(-1) @ values
        return y.transpose(1, 2).flatten(2)


@torch.no_grad()
def _parts(model: nn.Module, ids: Tensor, counts: tuple[int, ...]) -> list[Tensor]:
    outputs, begin = [], 0
    for count in counts:
        outputs.append(model.eval()(ids[:, begin : begin + count], torch.arange(begin, begin + count)))
        begin += count
    return outputs


def _up_to(pos: Tensor) -> Tensor:
    return torch.arange(SLOTS) <= pos[..., None]


def slots(wrong=False):
    """Slots are hidden up to the last query and no further, or all of them are seen."""
    return _parts(Static((lambda pos: None) if wrong else _up_to), batch(9, 9), (6, 1, 1, 1))


def slots_by_a_hint():
    """The prompt is causal by is_causal, and the tokens behind it by their mask."""

    class Hinted(Static):
        def forward(self, idx, input_pos):
            x = self.wte(idx)
            for layer in self.layers:
                q, k, v = (heads(each) for each in layer.qkv(x).chunk(3, dim=-1))
                layer.k_cache[:, :, input_pos], layer.v_cache[:, :, input_pos] = k, v
                is_prompt = len(input_pos) > 1
                y = F.scaled_dot_product_attention(
                    q, layer.k_cache, layer.v_cache, None if is_prompt else _up_to(input_pos), is_causal=is_prompt
                )
                x = x + y.transpose(1, 2).flatten(2)
            return x

    return _parts(Hinted(None), batch(9, 9), (6, 1, 1, 1))


@torch.no_grad()
def rows_of_their_own_lengths():
    """Texts of other lengths, each of which goes on at its own slot."""
    model = Static(lambda pos: _up_to(pos)[:, None], rows=3).eval()
    lengths = torch.tensor([6, 4, 2])
    prompt = batch(6, 4, 2)
    first = model(prompt, torch.arange(6).expand(3, -1))
    return [first, *(model(batch(1, 1, 1), (lengths + step)[:, None]) for step in range(3))]


@torch.no_grad()
def rolling():
    """A buffer of four slots, in which the oldest key is written over; the prompt is read before it is there."""

    class Rolling(Static):
        def forward(self, idx, input_pos):
            x = self.wte(idx)
            for layer in self.layers:
                q, k, v = (heads(each) for each in layer.qkv(x).chunk(3, dim=-1))
                slot = input_pos % 4
                layer.k_cache[:, :, slot], layer.v_cache[:, :, slot] = k, v
                keys, values = layer.k_cache[:, :, :4], layer.v_cache[:, :, :4]
                seen = torch.arange(4) <= input_pos[:, None]
                y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
                x = x + y.transpose(1, 2).flatten(2)
            return x

    return _parts(Rolling(None), batch(9, 9), (1,) * 9)


class Translating(nn.Module):
    """A decoder whose cross-attention has a cache of the words of the source, which is padded."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder, self.q, self.kv = Static(_up_to, rows=3), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, idx, input_pos, memory, source):
        x = self.decoder(idx, input_pos)
        q = heads(self.q(x))
        k, v = (heads(each) for each in self.kv(memory).chunk(2, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=(source != 0)[:, None, None])
        return x + y.transpose(1, 2).flatten(2)


@torch.no_grad()
def source_of_fixed_length():
    """All sources are shorter than their buffer of ten positions."""
    model, source = Translating().eval(), F.pad(batch(7, 5, 3), (0, 3))
    memory, ids = torch.randn(3, 10, WIDTH), batch(9, 9, 9)
    outputs, begin = [], 0
    for count in (5, 1, 1, 1, 1):
        positions = torch.arange(begin, begin + count)
        outputs.append(model(ids[:, begin : begin + count], positions, memory, source))
        begin += count
    return outputs


class Prompted(nn.Module):
    """Words, and a causal attention with a cache, with a mask where a sentence of the prompt is padded."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(V, WIDTH, padding_idx=0), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, ids, cache, real):
        q, k, v = (heads(each) for each in self.qkv(self.words(ids)).chunk(3, dim=-1))
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        if real is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=cache is None), k, v
        mask = causal(q.shape[2], k.shape[2]) & real[:, None]
        return F.scaled_dot_product_attention(q, k, v, mask[:, None]), k, v


@torch.no_grad()
def _prompted(prompt: Tensor, is_padded: bool, is_masked: bool = True) -> list[Tensor]:
    """What is generated behind prompts, with a mask where they are padded."""
    model, real = Prompted().eval(), prompt != 0
    output, *cache = model(prompt, None, real if is_padded else None)
    for _ in range(4):
        ids = batch(1, 1, 1)
        real = torch.cat([real, ids > 0], 1)
        output, *cache = model(ids, cache, real if is_padded and is_masked else None)
    return [output]


def prompts_of_one_length():
    return _prompted(batch(8, 8, 8), False)


def padded_prompts(is_masked=True):
    return _prompted(batch(8, 5, 6, left=True), True, is_masked)
