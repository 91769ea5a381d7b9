"""Programs that generate with other caches than joined keys: static, in chunks, rolling, rows at slots of their own."""

import torch
import torch.nn.functional as F
import transformers
from public_masks import HEAD, HEADS, WIDTH, V, batch, heads, small_llama
from torch import Tensor, nn

SLOTS = 16


def _llama():
    return small_llama(transformers.LlamaForCausalLM, pad_token_id=0, attn_implementation="sdpa").eval()


@torch.no_grad()
def hf_static_chunks():
    """What a model gives of parts of a text, one after another, with a static cache."""
    model, ids, outputs = _llama(), batch(12, 12), []
    cache = transformers.StaticCache(config=model.config, max_cache_len=SLOTS)
    for part, at in zip(ids.split((4, 4, 3, 1), 1), torch.arange(12)[None].split((4, 4, 3, 1), 1), strict=True):
        outputs.append(model(input_ids=part, past_key_values=cache, position_ids=at).logits)
    return outputs


def _generated(model, ids: Tensor, caches=(None, "static")) -> list[Tensor]:
    """What a model says next, with a cache that grows and with a static one."""
    how = {"attention_mask": (ids != 0).long(), "max_new_tokens": 6, "do_sample": False, "disable_compile": True}
    return [model.generate(ids, cache_implementation=one, **how) for one in caches]


def hf_generate_static():
    return _generated(_llama(), batch(6, 4, left=True), ["static"])


def hf_sliding():
    """A window of four keys, whose cache holds no more."""
    config = transformers.MistralConfig(
        vocab_size=V, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=2, sliding_window=4, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return _generated(transformers.MistralForCausalLM(config).eval(), batch(6, 6))


def hf_translating():
    """T5, whose decoder attends to the words of its encoder through a cache of theirs."""
    config = transformers.T5Config(
        vocab_size=V, d_model=WIDTH, d_kv=HEAD, d_ff=32, num_layers=2, num_heads=HEADS, decoder_start_token_id=0
    )
    return _generated(transformers.T5ForConditionalGeneration(config).eval(), batch(8, 5, 3))


class StaticAttention(nn.Module):
    """A layer whose keys have so many slots, which are written over from the first on when they are full."""

    def __init__(self, slots: int, rows: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("k_cache", torch.zeros(rows, slots, HEADS, HEAD))
        self.register_buffer("v_cache", torch.zeros(rows, slots, HEADS, HEAD))

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        q, k, v = (heads(each) for each in self.qkv(x).chunk(3, dim=-1))
        rows, slots = torch.arange(len(pos))[:, None], self.k_cache.shape[1]
        self.k_cache[rows, pos % slots], self.v_cache[rows, pos % slots] = k.transpose(1, 2), v.transpose(1, 2)
        seen = torch.arange(slots) <= pos[:, None, :, None]
        keys, values = self.k_cache.transpose(1, 2), self.v_cache.transpose(1, 2)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen).transpose(1, 2).flatten(2)


class Static(nn.Module):
    def __init__(self, rows: int, slots: int = SLOTS) -> None:
        super().__init__()
        self.wte, self.layers = nn.Embedding(V, WIDTH), nn.ModuleList(StaticAttention(slots, rows) for _ in range(2))

    def forward(self, idx: Tensor, input_pos: Tensor) -> Tensor:
        x = self.wte(idx)
        for layer in self.layers:
            x = x + layer(x, input_pos)
        return x


@torch.no_grad()
def rows_of_their_own_lengths():
    """Texts of other lengths, each of which goes on at its own slot."""
    model, lengths = Static(3).eval(), torch.tensor([6, 4, 2])
    first = model(batch(6, 4, 2), torch.arange(6).expand(3, -1))
    return [first, *(model(batch(1, 1, 1), (lengths + step)[:, None]) for step in range(3))]


@torch.no_grad()
def rolling():
    """A buffer of four slots, in which the oldest key is written over."""
    model = Static(2, 4).eval()
    return [model(batch(1, 1), torch.full((2, 1), step)) for step in range(9)]


class Translating(nn.Module):
    """A decoder whose cross-attention has a cache of the words of the source, which is padded."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder, self.q, self.kv = Static(3), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, idx, input_pos, memory, source):
        x = self.decoder(idx, input_pos)
        k, v = (heads(each) for each in self.kv(memory).chunk(2, dim=-1))
        y = F.scaled_dot_product_attention(heads(self.q(x)), k, v, attn_mask=(source != 0)[:, None, None])
        return x + y.transpose(1, 2).flatten(2)


@torch.no_grad()
def source_of_fixed_length():
    """All sources are shorter than their buffer of ten positions."""
    model, source, outputs = Translating().eval(), F.pad(batch(7, 5, 3), (0, 3)), []
    memory, positions = torch.randn(3, 10, WIDTH), torch.arange(9).expand(3, -1)
    for ids, at in zip(batch(9, 9, 9).split((5, 1, 1, 1, 1), 1), positions.split((5, 1, 1, 1, 1), 1), strict=True):
        outputs.append(model(ids, at, memory, source))
    return outputs
