"""Bugs of 2025 and 2026 that people reported of public projects: each a small model, right, and wrong as they had it.

What is known of padding, positions, windows and caches, and does not arrive at the attention; and outputs that are read
at the wrong place.
"""

import torch
import torch.nn.functional as F
import transformers
from public_masks import HEAD, HEADS, WIDTH, V, batch, causal, heads
from step import evaluation, language_step
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

LEAST = torch.finfo(torch.float32).min
SIZES = {
    "vocab_size": V, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
}  # fmt: skip


class Layer(nn.Module):
    """Projections around `attend(layer, q, k, v, …)`, which is given what the model is called with."""

    def __init__(self, attend) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attend, self.past = attend, None

    def forward(self, x: Tensor, *context) -> Tensor:
        q, k, v = (heads(each) for each in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.out(self.attend(self, q, k, v, *context).transpose(1, 2).flatten(2))

    def cached(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.past is not None:
            k, v = torch.cat([self.past[0], k], 2), torch.cat([self.past[1], v], 2)
        self.past = k, v
        return k, v


class Words(nn.Module):
    """A language model or an encoder of words."""

    def __init__(self, attend, padding_idx: int | None = None, places: bool = True) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(V, WIDTH, padding_idx), nn.Embedding(40, WIDTH) if places else None
        self.layers, self.head = nn.ModuleList(Layer(attend) for _ in range(2)), nn.Linear(WIDTH, V)

    def forward(self, ids: Tensor, attention_mask=None, position_ids=None) -> Tensor:
        x = self.embed(ids)
        if self.place is not None:
            x = x + self.place(torch.arange(ids.shape[1])[None] if position_ids is None else position_ids)
        for layer in self.layers:
            x = layer(x, attention_mask, position_ids)
        return self.head(x)


class Frames(nn.Module):
    """An encoder of frames or patches, [B, T, 8]."""

    def __init__(self, attend) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 5)
        self.layers = nn.ModuleList(Layer(attend) for _ in range(2))

    def forward(self, frames: Tensor, *context) -> Tensor:
        x = self.embed(frames)
        for layer in self.layers:
            x = layer(x, *context)
        return self.head(x)


def is_word(mask: Tensor) -> Tensor:
    return mask.bool()[:, None, None, :]


def masked(layer, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *_) -> Tensor:
    return sdpa(q, k, v, attn_mask=mask)


def written(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, fill: float = LEAST) -> Tensor:
    return (q @ k.mT / HEAD**0.5).masked_fill(~allowed, fill).softmax(-1) @ v


def places_of(mask: Tensor) -> Tensor:
    return (mask.cumsum(-1) - 1).clamp(min=0)


def rope(x: Tensor, positions: Tensor) -> Tensor:
    angle = positions[:, None, :, None] * 100.0 ** -(torch.arange(HEAD // 2) / (HEAD // 2))
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


@torch.no_grad()
def decoded(model: nn.Module, *lengths: int) -> list[Tensor]:
    """Words come in parts of these lengths, to a model with a cache."""
    parts = torch.randint(1, V, (1, sum(lengths))).split(lengths, 1)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    return [
        model(part, None, start + torch.arange(part.shape[1])[None]) for part, start in zip(parts, starts, strict=False)
    ]


@torch.no_grad()
def generated(model: nn.Module, follow=lambda places, mask: places) -> list[Tensor]:
    """Words of two rows, of which one is padded on the left, and three that follow."""
    ids, outputs = batch(7, 4, left=True), []
    mask = (ids != 0).long()
    for _ in range(4):
        places = places_of(mask)[:, -ids.shape[1] :]
        outputs.append(model(ids, mask, places if ids.shape[1] > 1 else follow(places, mask)))
        ids, mask = outputs[-1][:, -1:].argmax(-1), F.pad(mask, (0, 1), value=1)
    return outputs


# --- padding that is known ------------------------------------------------------------------------------------


def llada_pad(wrong):
    def attend(layer, q, k, v, mask, _):
        return sdpa(q, k, v, attn_mask=None if wrong else is_word(mask))

    ids = batch(8, 5)
    return evaluation(Words(attend), ids, (ids != 0).long())


def qwenimage_joint(wrong):
    """Text and picture are keys of one attention; the mask of the text is not handed on."""

    class Pipeline(nn.Module):
        def __init__(self):
            super().__init__()
            self.text, self.transformer = nn.Embedding(V, 8, padding_idx=0), Frames(masked)

        def forward(self, latents, prompt_ids):
            joint, keys = torch.cat([self.text(prompt_ids), latents], 1), F.pad(prompt_ids != 0, (0, 9), value=True)
            return self.transformer(joint, None if wrong else is_word(keys))[:, prompt_ids.shape[1] :]

    return evaluation(Pipeline(), torch.randn(2, 9, 8), batch(6, 2))


def indicbert_bidir(wrong):
    """A decoder of transformers is made bidirectional by a mask of zeros."""

    class Bidirectional(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.LlamaModel(transformers.LlamaConfig(**SIZES))

        def forward(self, input_ids, attention_mask):
            mask = torch.zeros(len(input_ids), 1, *[input_ids.shape[1]] * 2)
            mask = mask if wrong else mask.masked_fill(~is_word(attention_mask), LEAST)
            return self.model(input_ids=input_ids, attention_mask=mask, use_cache=False).last_hidden_state

    ids = batch(8, 4, 6)
    return evaluation(Bidirectional(), ids, (ids != 0).long())


def labelattn_inverted(wrong):
    """Labels attend to words by a mask that is True for padding."""

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.labels = nn.Embedding(V, WIDTH, padding_idx=0), nn.Embedding(5, WIDTH)
            self.q, self.k, self.v, self.head = *(nn.Linear(WIDTH, WIDTH) for _ in range(3)), nn.Linear(WIDTH, 1)

        def forward(self, ids):
            x, labels = self.embedding(ids), self.labels.weight.expand(len(ids), -1, -1)
            mask = (ids == 0 if wrong else ids != 0)[:, None, None, :]
            y = sdpa(heads(self.q(labels)), heads(self.k(x)), heads(self.v(x)), attn_mask=mask)
            return self.head(y.transpose(1, 2).flatten(2)).squeeze(-1)

    return evaluation(Classifier(), F.pad(batch(6, 9, 4, 7), (0, 1)))


def kempner_frames(wrong):
    """A clip is filled up with empty frames of two words each; the output is a mean."""

    class Video(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Frames(masked)

        def forward(self, frames, frame_mask):
            words = frame_mask.repeat_interleave(2, 1)
            y = self.encoder(frames.flatten(1, 2), None if wrong else is_word(words))
            return (y * words[..., None]).sum(1) / words.sum(1, keepdim=True)

    frame_mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])
    return evaluation(Video(), torch.randn(3, 5, 2, 8) * frame_mask[:, :, None, None], frame_mask)


def omni_pad(wrong):
    """Patches are filled up to a multiple of the processes, each of which attends with its own head."""

    def attend(layer, q, k, v):
        mask = None if wrong else torch.arange(16)[None, None, None] < 13
        parts = zip(*(each.chunk(HEADS, 1) for each in (q, k, v)), strict=True)
        return torch.cat([sdpa(*part, attn_mask=mask) for part in parts], 1)

    class Parallel(Frames):
        def forward(self, image):
            return super().forward(F.pad(image, (0, 0, 0, 3)))[:, :13]

    return evaluation(Parallel(attend), torch.randn(2, 13, 8))


def espnet_lengths(wrong):
    """The mask is cut as the frames are, from the end of the batch; a short row has a frame too many."""

    class Speech(Frames):
        def __init__(self):
            super().__init__(masked)
            self.conv = nn.Sequential(nn.Conv1d(8, 8, 3, 2), nn.ReLU(), nn.Conv1d(8, 8, 3, 2))

        def forward(self, frames, lengths):
            x = self.conv(frames.transpose(1, 2)).transpose(1, 2)
            mask = torch.arange(frames.shape[1]) < lengths[:, None]
            fewer = torch.arange(x.shape[1]) < ((lengths[:, None] - 1) // 2 - 1) // 2
            return super().forward(x, is_word(mask[:, :-2:2][:, :-2:2] if wrong else fewer))

    return speech(Speech())


def torchaudio_conv(wrong):
    """A convolution beside the attention mixes padded frames into the last real ones."""

    class Conformer(Frames):
        def __init__(self):
            super().__init__(masked)
            self.conv = nn.Conv1d(8, 8, 5, padding=2, groups=8)

        def forward(self, frames, lengths):
            mask = torch.arange(frames.shape[1]) < lengths[:, None]
            x = frames + 1 if wrong else (frames + 1) * mask[..., None]
            return super().forward(self.conv(x.transpose(1, 2)).transpose(1, 2), is_word(mask))

    return speech(Conformer())


def speech(model):
    lengths = torch.tensor([43, 28, 20])
    return evaluation(model, torch.randn(3, 43, 8) * (torch.arange(43) < lengths[:, None])[..., None], lengths)


# --- outputs that are read at the wrong place -----------------------------------------------------------------


def biogpt_last(wrong):
    """A classifier reads position `number of words - 1` of a row that is padded on the left."""

    def attend(layer, q, k, v, mask, _):
        return sdpa(q, k, v, attn_mask=causal(8) & is_word(mask) | torch.eye(8, dtype=torch.bool))

    class Classifier(Words):
        def forward(self, ids, attention_mask):
            logits = super().forward(ids, attention_mask, places_of(attention_mask))
            last = attention_mask.sum(1) - 1 if wrong else torch.full((len(ids),), ids.shape[1] - 1)
            return logits[torch.arange(len(ids)), last]

    ids = batch(8, 3, 5, left=True)
    return evaluation(Classifier(attend, padding_idx=0), ids, (ids != 0).long())


def lightrag_mean(wrong):
    """The mean of all hidden states, those of padding too."""

    class Embedder(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.BertModel(transformers.BertConfig(**SIZES), add_pooling_layer=False)

        def forward(self, input_ids, attention_mask):
            hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            weights = attention_mask[..., None]
            return hidden.mean(1) if wrong else (hidden * weights).sum(1) / weights.sum(1)

    ids = batch(8, 4)
    return evaluation(Embedder(), ids, (ids != 0).long())


def megatron_mtp(wrong):
    """The inputs of the head of the word after the next are rolled across packed documents."""
    ends, documents = torch.tensor([5, 9, 12]), torch.tensor([0] * 5 + [1] * 4 + [2] * 3)
    mask = causal(12) & (documents[:, None] == documents)

    class TwoHeads(Words):
        def __init__(self):
            super().__init__(masked)
            self.join, self.mtp = nn.Linear(2 * WIDTH, WIDTH), Layer(masked)

        def forward(self, ids):
            x = self.embed(ids)
            for layer in self.layers:
                x = layer(x, mask)
            ahead = ids.roll(-1, 1)
            ahead[:, -1 if wrong else ends - 1] = 0
            return self.head(x), self.head(self.mtp(self.join(torch.cat([x, self.embed(ahead)], -1)), mask))

    return evaluation(TwoHeads(), torch.randint(1, V, (1, 12)))


# --- windows, chunks, documents and pictures ------------------------------------------------------------------


def lalamo_rows(wrong):
    """Behind a cache, a window is counted from the first query."""

    def attend(layer, q, k, v, *_):
        k, v = layer.cached(k, v)
        n, keys = q.shape[2], k.shape[2]
        return written(q, k, v, causal(n, keys).triu((0 if wrong else keys - n) - 3), -torch.inf)

    return decoded(Words(attend), 9, 3, 3)


def cosyvoice_chunk(wrong):
    """The mask of chunks zeroes outputs; the softmax knows nothing of it."""

    def attend(layer, q, k, v):
        chunks = torch.arange(14) // 4
        mask = chunks <= chunks[:, None]
        return sdpa(q, k, v, attn_mask=None if wrong else mask).masked_fill(~mask.any(-1, keepdim=True), 0.0)

    return evaluation(Frames(attend), torch.randn(2, 14, 8))


def cosmos_layers(wrong):
    """Keys of a ModuleDict are compared with numbers, and no layer is one of full attention."""

    class Vision(Frames):
        def __init__(self):
            super().__init__(masked)
            self.blocks = nn.ModuleDict({str(i): layer for i, layer in enumerate(self.layers)})

        def forward(self, patches):
            windows, x = torch.arange(16) // 4, self.embed(patches)
            for i, block in self.blocks.items():
                is_full = i in [1] if wrong else int(i) in [1]
                x = block(x, (windows[:, None] == windows) | is_full)
            return self.head(x)

    return evaluation(Vision(), torch.randn(1, 16, 8))


def gemma3_images(wrong):
    """Words of pictures see each other, those of a later picture too."""

    def attend(layer, q, k, v, types, _):
        same = (types[:, :, None] > 0) if wrong else (types[:, :, None] == types[:, None])
        return written(q, k, v, causal(12) | (same & (types[:, None] > 0))[:, None])

    return evaluation(Words(attend), batch(12), torch.tensor([[0, 1, 1, 1, 0, 0, 0, 2, 2, 2, 0, 0]]))


def paddle_chunk(wrong):
    """Chunks are counted from the first column, padding or not, and padding is seen."""

    def attend(layer, q, k, v, mask, _):
        left = 0 if wrong else (mask == 0).sum(1, keepdim=True)
        chunks = ((torch.arange(11) - left).clamp(min=-1) // 4).expand(3, 11)
        return written(q, k, v, (causal(11) & (chunks[:, :, None] == chunks[:, None]))[:, None])

    ids = batch(11, 5, 8, left=True)
    mask = (ids != 0).long()
    return evaluation(Words(attend, padding_idx=0), ids, mask, places_of(mask))


def nanovlm_packed(wrong):
    """Packed documents have positions of their own, and see each other."""

    def attend(layer, q, k, v, documents, positions):
        q, k = rope(q, positions), rope(k, positions)
        apart = (documents[:, :, None] == documents[:, None])[:, None]
        return sdpa(q, k, v, is_causal=True) if wrong else sdpa(q, k, v, attn_mask=apart & causal(12))

    documents = torch.tensor([[0] * 5 + [1] * 3 + [2] * 4])
    positions = torch.cat([torch.arange(n) for n in (5, 3, 4)])[None]
    return language_step(Words(attend, places=False), batch(12), documents, positions)


def deepseek_indexer(wrong):
    """Queries choose among compressed keys of words that come after them."""

    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
            self.compress = nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x, *_):
            entries, t = self.compress(x.reshape(len(x), 4, -1)), torch.arange(16)[:, None]
            scores = x @ entries.mT
            complete = (torch.arange(4) < (t + 1) // 4) | wrong
            scores = scores.masked_fill(~complete, -torch.inf)
            chosen = torch.zeros(scores.shape, dtype=torch.bool).scatter(2, scores.topk(2).indices, True) & complete
            mask = torch.cat([chosen, causal(16).triu(-3).expand(len(x), -1, -1)], -1)[:, None]
            k, v = (heads(each) for each in self.kv(torch.cat([entries, x], 1)).chunk(2, -1))
            return x + sdpa(heads(self.q(x)), k, v, attn_mask=mask).transpose(1, 2).flatten(2)

    model = Words(None)
    model.layers = nn.ModuleList(Sparse() for _ in range(2))
    return language_step(model, batch(16, 16))


# --- caches, positions and drafts -----------------------------------------------------------------------------


def mobius_static(wrong):
    """A static cache is seen up to the slot that is written, padding on the left too."""

    def attend(layer, q, k, v, mask, _):
        n, seen = q.shape[2], mask.shape[1]
        if layer.past is None:
            layer.past = torch.zeros(2, 2, HEADS, 16, HEAD)
        slots = torch.arange(seen - n, seen)
        layer.past[0][:, :, slots], layer.past[1][:, :, slots] = k, v
        allowed = torch.arange(16) <= slots[:, None]
        if not wrong:
            allowed = allowed & is_word(F.pad(mask, (0, 16 - seen))) | (torch.arange(16) == slots[:, None])
        return sdpa(q, *layer.past, attn_mask=allowed)

    return generated(Words(attend))


def c2c_mask(wrong):
    """While decoding, the mask is cut to the columns of the call."""

    def attend(layer, q, k, v, mask, _):
        k, v = layer.cached(k, v)
        n, keys = q.shape[2], k.shape[2]
        mask = mask[:, :n] if wrong else mask
        scores = (q @ k.mT / HEAD**0.5).masked_fill(~causal(n, keys), -1e9)
        if mask.shape[1] == keys:
            scores = scores.masked_fill(~is_word(mask), -1e9)
        return scores.softmax(-1) @ v

    return generated(Words(attend))


def unsloth_pos(wrong):
    """While decoding, the rows have one position, padded or not."""

    def attend(layer, q, k, v, mask, positions):
        k, v = layer.cached(rope(k, positions), v)
        n, keys = q.shape[2], k.shape[2]
        own = torch.eye(n, keys, dtype=torch.bool) & (n == keys)
        return sdpa(rope(q, positions), k, v, attn_mask=causal(n, keys) & is_word(mask) | own)

    def follow(places, mask):
        return torch.full_like(places, mask.shape[1] - 1) if wrong else places

    return generated(Words(attend, padding_idx=0, places=False), follow)


def omlx_rope(wrong):
    """Drafted words all have the position of the first."""

    def attend(layer, q, k, v, _, positions):
        if wrong and layer.past is not None:
            positions = positions[:, :1].expand_as(positions)
        k, v = layer.cached(rope(k, positions), v)
        return sdpa(rope(q, positions), k, v, attn_mask=causal(q.shape[2], k.shape[2]))

    return decoded(Words(attend, places=False), 7, 3, 3)


def velox_offset(wrong):
    """After an eviction, positions go on from the number of keys that were kept."""

    def attend(layer, q, k, v, _, positions):
        count = 0 if layer.past is None else layer.past[0].shape[2]
        positions = count + torch.arange(q.shape[2])[None] if wrong else positions
        k, v = layer.cached(rope(k, positions), v)
        if k.shape[2] > 8:
            k, v = (torch.cat([each[:, :, :2], each[:, :, -6:]], 2) for each in (k, v))
            layer.past = k, v
        return sdpa(rope(q, positions), k, v, is_causal=q.shape[2] > 1)

    return decoded(Words(attend, places=False), 7, 1, 1, 1, 1)


def trtllm_t5(wrong):
    """Once there is a cache, the bias of relative positions is dropped."""
    table = torch.randn(HEADS, 32)

    def attend(layer, q, k, v, *_):
        is_first = layer.past is None
        k, v = layer.cached(k, v)
        n, keys = q.shape[2], k.shape[2]
        distance = (torch.arange(keys - n, keys)[:, None] - torch.arange(keys)).clamp(min=0)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
        scores = scores if wrong and not is_first else scores + table[:, distance]
        return torch.einsum("bhqk,bhkd->bhqd", scores.masked_fill(~causal(n, keys), -torch.inf).softmax(-1), v)

    return decoded(Words(attend, places=False), 8, 1, 1, 1)


def parscale_prefix(wrong):
    """Learned keys come first, and their mask is 0."""
    prefix = torch.randn(2, HEADS, 3, HEAD)

    def attend(layer, q, k, v, mask, _):
        k, v = (torch.cat([own.expand(2, -1, -1, -1), each], 2) for own, each in zip(prefix, (k, v), strict=True))
        return sdpa(q, k, v, attn_mask=causal(9, 12) & is_word(F.pad(mask, (3, 0), value=0 if wrong else 1)))

    ids = batch(9, 9)
    return language_step(Words(attend), ids, torch.ones_like(ids))


def fastdeploy_tree(wrong):
    """Below the diagonal the tree of drafts is not looked at, and a draft sees its sibling."""

    def attend(layer, q, k, v, tree, _):
        k, v = layer.cached(k, v)
        mask = causal(q.shape[2], k.shape[2])
        if tree is not None and not wrong:
            mask[:, 6:] &= tree
        return sdpa(q, k, v, attn_mask=mask)

    tree = torch.eye(5, dtype=torch.bool)
    for node, parent in enumerate([0, 0, 0, 1, 2]):
        tree[node] |= tree[parent]
    model, ids = Words(attend), torch.randint(0, V, (1, 11))
    with torch.no_grad():
        return [model(ids[:, :6]), model(ids[:, 6:], tree, torch.tensor([[6, 7, 7, 8, 8]]))]


def sgl_ring_text(wrong):
    """The keys of the text are in each block of a ring."""

    def attend(layer, q, k, v):
        parts, text = [], 5 if wrong else 0
        for block in (slice(0, 9), [*range(text), *range(9, 13)]):
            scores = q @ k[:, :, block].mT / HEAD**0.5
            parts.append((scores.softmax(-1) @ v[:, :, block], scores.logsumexp(-1, keepdim=True)))
        outputs, sums = (torch.stack(each) for each in zip(*parts, strict=True))
        return (outputs * sums.softmax(0)).sum(0)

    return evaluation(Frames(attend), torch.randn(1, 13, 8))


def glm_scale(wrong):
    """Absorbed MLA is scaled by the width of its latents, and not of the keys that they stand for."""
    up = torch.randn(HEADS, HEAD, 24) / 3

    class Absorbed(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.down, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 24), nn.Linear(HEADS * 24, WIDTH)

        def forward(self, x, *_):
            q, latents = heads(self.q(x)) @ up, self.down(x)[:, None]
            y = sdpa(q, latents, latents, is_causal=True, scale=(24 if wrong else HEAD) ** -0.5)
            return x + self.out(y.transpose(1, 2).flatten(2))

    model = Words(None)
    model.layers = nn.ModuleList(Absorbed() for _ in range(2))
    return evaluation(model, batch(9, 9))
