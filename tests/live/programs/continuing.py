"""Programs whose later calls go on behind a cache as the first ones began: with their window, bias, rotary positions.

Those that take `wrong` forget it there, as people do.
"""

import torch
import torch.nn.functional as F
from public_masks import HEAD, HEADS, WIDTH, V, batch, causal, heads
from torch import Tensor, nn


class Cached(nn.Module):
    """Attention with a cache to which keys are joined; `rotate` takes positions, `mask` queries, keys and the past."""

    def __init__(self, rotate=None, mask=None) -> None:
        super().__init__()
        self.qkv, self.out, self.kv = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), None
        self.rotate, self.mask = rotate, mask or causal

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        q, k, v = (heads(each) for each in self.qkv(x).chunk(3, -1))
        if self.rotate is not None:
            q, k = self.rotate(q, at, "queries"), self.rotate(k, at, "keys")
        if self.kv is not None:
            k, v = torch.cat([self.kv[0], k], 2), torch.cat([self.kv[1], v], 2)
        self.kv = k, v
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(q.shape[2], k.shape[2]))


class Decoder(nn.Module):
    """Two layers; `offset` gives the position of the first word behind so many."""

    def __init__(self, layer, offset=lambda past: past) -> None:
        super().__init__()
        self.embed, self.layers, self.offset = nn.Embedding(V, WIDTH), nn.ModuleList(layer() for _ in range(2)), offset

    def forward(self, ids: Tensor, past: int) -> Tensor:
        x, at = self.embed(ids), self.offset(past) + torch.arange(ids.shape[1])
        for layer in self.layers:
            x = x + layer(x, at)
        return x


@torch.no_grad()
def in_parts(model: nn.Module, *counts: int) -> list[Tensor]:
    ids, outputs, past = batch(sum(counts), sum(counts)), [], 0
    for count in counts:
        outputs.append(model.eval()(ids[:, past : past + count], past))
        past += count
    return outputs


# --- windows --------------------------------------------------------------------------------------------------


def near(width: int, queries: int, keys: int) -> Tensor:
    return causal(queries, keys) & causal(queries, keys).triu(keys - queries - width + 1)


def window_of_one_query(wrong=False):
    """A single query needs no mask, but for its window."""
    return in_parts(Decoder(lambda: Cached(mask=lambda q, k: None if wrong and q == 1 else near(4, q, k))), 8, 1, 1, 1)


def window_of_a_chunk(wrong=False):
    """Two words at a time are causal alone."""
    return in_parts(
        Decoder(lambda: Cached(mask=lambda q, k: causal(q, k) if wrong and q < k else near(3, q, k))), 7, 2, 2
    )


def window_on_another_line(wrong=False):
    """Generating has a line of its own."""

    class Branching(Cached):
        def attend(self, q, k, v):
            if q.shape[2] > 1:
                return F.scaled_dot_product_attention(q, k, v, attn_mask=near(4, q.shape[2], k.shape[2]))
            scores = q @ k.mT / HEAD**0.5
            if not wrong:
                scores = scores.masked_fill(~near(4, 1, k.shape[2]), float("-inf"))
            return scores.softmax(-1) @ v

    return in_parts(Decoder(Branching), 8, 1, 1)


# --- biases ---------------------------------------------------------------------------------------------------


class Biased(Cached):
    """A learned bias for each distance, as T5 has it; `first` gives the position of the first query."""

    def __init__(self, first=lambda queries, keys: keys - queries, is_added=lambda queries, keys: True) -> None:
        super().__init__()
        self.table, self.first, self.is_added = nn.Embedding(12, HEADS), first, is_added

    def attend(self, q, k, v):
        queries, keys = q.shape[2], k.shape[2]
        scores = q @ k.mT / HEAD**0.5
        if self.is_added(queries, keys):
            at = self.first(queries, keys) + torch.arange(queries)
            scores = scores + self.table((at[:, None] - torch.arange(keys)).abs().clamp(max=11)).permute(2, 0, 1)
        return scores.masked_fill(~causal(queries, keys), float("-inf")).softmax(-1) @ v


def bias_of_the_first_query(wrong=False):
    """Distances are counted from position 0 while generating."""
    return in_parts(Decoder(lambda: Biased(*[lambda q, k: 0] * wrong)), 8, 1, 1, 1)


def bias_dropped(wrong=False):
    """No bias is added once there is a cache."""
    return in_parts(Decoder(lambda: Biased(is_added=lambda q, k: q == k or not wrong)), 8, 1, 1)


def slopes_of_other_heads(wrong=False):
    """A bias that grows with the distance, whose slopes are turned round behind the cache."""

    class Sloped(Cached):
        def attend(self, q, k, v):
            queries, keys = q.shape[2], k.shape[2]
            slopes = 0.5 ** torch.arange(1, HEADS + 1)
            slopes = slopes.flip(0) if wrong and queries < keys else slopes
            distance = torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]
            bias = (slopes[:, None, None] * distance).masked_fill(~causal(queries, keys), float("-inf"))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    return in_parts(Decoder(Sloped), 6, 2, 1, 1)


def bias_by_the_key(wrong=False):
    """A bias of positions, as Bloom writes ALiBi: it differs by a number that the softmax does not see."""

    class Keyed(Cached):
        def attend(self, q, k, v):
            bias = 0.5 ** torch.arange(1, HEADS + 1)[:, None, None] * torch.arange(k.shape[2])
            bias = bias.expand(-1, q.shape[2], -1).masked_fill(~causal(q.shape[2], k.shape[2]), float("-inf"))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    return in_parts(Decoder(Keyed), 6, 2, 1, 1)


# --- rotary positions -----------------------------------------------------------------------------------------


def angles(at: Tensor) -> Tensor:
    return at[:, None] * 100.0 ** -(torch.arange(HEAD // 2) / (HEAD // 2))


def in_halves(x: Tensor, at: Tensor, _: str) -> Tensor:
    """As Llama of transformers turns."""
    (one, other), turn = x.chunk(2, -1), angles(at)
    return torch.cat([one * turn.cos() - other * turn.sin(), other * turn.cos() + one * turn.sin()], -1)


def in_pairs(x: Tensor, at: Tensor, _: str) -> Tensor:
    """As Llama of Meta turns, by complex numbers."""
    turn = torch.polar(torch.ones(len(at), HEAD // 2), angles(at))
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)


TABLE = angles(torch.arange(64))


def in_a_table(x: Tensor, at: Tensor, _: str) -> Tensor:
    """A part of each head, by a table of all positions, as GPT-NeoX turns."""
    turned, rest = x.split([HEAD // 2, HEAD // 2], -1)
    (one, other), turn = turned.chunk(2, -1), TABLE[at][:, : HEAD // 4]
    return torch.cat([one * turn.cos() - other * turn.sin(), other * turn.cos() + one * turn.sin(), rest], -1)


def counted_twice(wrong=False):
    """The offset of a chunk is added twice."""
    return in_parts(Decoder(lambda: Cached(in_halves), lambda past: past * (1 + wrong)), 4, 4, 4)


def begun_again(wrong=False):
    """Each chunk stands at 0."""
    return in_parts(Decoder(lambda: Cached(in_pairs), lambda past: 0 if wrong else past), 5, 3, 3)


def stands_still(wrong=False):
    """While generating, all words stand where the prompt ended."""
    return in_parts(Decoder(lambda: Cached(in_a_table), lambda past: min(past, 6) if wrong else past), 6, 1, 1, 1)


def keys_from_the_beginning(wrong=False):
    """Queries go on, and keys are turned as those of a prompt."""

    def rotate(x, at, of):
        return in_halves(x, at - int(at[0]) if wrong and of == "keys" else at, of)

    return in_parts(Decoder(lambda: Cached(rotate)), 6, 1, 1, 1)


@torch.no_grad()
def padded_row(wrong=False):
    """A sentence that is padded on the left goes on where the longest one does."""
    model = Decoder(lambda: Cached(lambda x, at, _: torch.cat([in_halves(x[r : r + 1], at[r], _) for r in range(2)])))
    padding, outputs = torch.tensor([[0], [3]]), []
    for begin, end in ((0, 7), (7, 8), (8, 9)):
        at = (torch.arange(begin, end) - padding * (begin == 0 or not wrong)).clamp(min=0)
        model.offset = lambda _, at=at: at - torch.arange(at.shape[1])
        outputs.append(model.eval()(batch(9, 9)[:, begin:end], begin))
    return outputs


def all_keys_again():
    """Keys are cached as they are, and turned anew in every step."""

    class Again(Cached):
        def attend(self, q, k, v):
            at = torch.arange(k.shape[2])
            return super().attend(in_halves(q, at[-q.shape[2] :], ""), in_halves(k, at, ""), v)

    return in_parts(Decoder(Again), 6, 1, 2, 1)


def stretched():
    """The frequencies become smaller as the text grows, as with dynamic scaling."""

    def rotate(x, at, of):
        return in_halves(x, at / max(1, (int(at[-1]) + 1) / 6), of)

    return in_parts(Decoder(lambda: Cached(rotate)), 6, 1, 1, 1)


def new_prompts():
    """Each prompt begins a cache of its own, and positions at 0."""
    model = Decoder(lambda: Cached(in_halves))
    outputs = in_parts(model, 4, 1, 1)
    for layer in model.layers:
        layer.kv = None
    return [*outputs, *in_parts(model, 4, 4, 1)]
