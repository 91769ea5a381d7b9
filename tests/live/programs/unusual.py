"""Right programs in unusual designs, as people publish them."""

import math

import blocks
import torch
import torch.nn.functional as F
from designs import FUTURE, SDPA, T, run
from public_masks import HEAD, HEADS, WIDTH, batch, causal, heads
from step import evaluation, step
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

LENGTHS = (8, 5)
MHA = nn.MultiheadAttention
PROGRAMS = {  # blocks of an attention, in a model of words
    name: lambda attend=attend: run(lambda q, k, v, _: attend(q, k, v), blocks.T, blocks.T, layers=2)
    for name, attend in {
        "query_slices": blocks.query_slices, "ring": blocks.ring, "documents_in_turn": blocks.documents,
    }.items()
}  # fmt: skip


def joined(y: Tensor) -> Tensor:
    return y.transpose(1, 2).flatten(2)


def fused(q: Tensor, k: Tensor, v: Tensor, *_) -> Tensor:
    return SDPA(q, k, v, is_causal=True)


def ids(rows: int = 2, length: int = T) -> Tensor:
    return torch.randint(1, 50, (rows, length))


class Attend(nn.Module):
    """Projections around a function of queries, keys and values, and of what else the layer is given."""

    def __init__(self, attend=lambda q, k, v, mask=None: SDPA(q, k, v, attn_mask=mask)) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attend = attend

    def forward(self, x: Tensor, *rest, source: Tensor | None = None) -> Tensor:
        k, v = self.kv(x if source is None else source).chunk(2, -1)
        return x + self.out(joined(self.attend(heads(self.q(x)), heads(k), heads(v), *rest)))


class Words(nn.Module):
    """Words, their places and layers that a function calls."""

    def __init__(self, forward, *layers: nn.Module, padding_idx: int | None = None) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, WIDTH, padding_idx=padding_idx), nn.Embedding(64, WIDTH)
        self.layers, self.head, self.call = nn.ModuleList(layers), nn.Linear(WIDTH, 50), forward

    def embed(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        return self.words(ids) + self.places(torch.arange(ids.shape[1]) if positions is None else positions)

    def forward(self, *inputs, **options):
        return self.call(self, *inputs, **options)


def in_turn(model: Words, ids: Tensor, *rest) -> Tensor:
    x = model.embed(ids)
    for layer in model.layers:
        x = layer(x, *rest)
    return model.head(x)


def trained(attend, forward=in_turn, layers: int = 2, **inputs: Tensor) -> list[Tensor]:
    return step(Words(forward, *(Attend(attend) for _ in range(layers))), ids(), **inputs)


# --- latent attention ---
class Latent(nn.Module):
    """Absorbed weights: a key is a latent vector of all heads, which is the value too."""

    def __init__(self, is_heads_first: bool, latent: int = 12) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, latent), nn.Linear(WIDTH, WIDTH)
        self.k_up, self.v_up = (nn.Parameter(torch.randn(HEADS, HEAD, latent) / 4) for _ in range(2))
        self.is_heads_first, self.cache = is_heads_first, None

    def forward(self, x: Tensor) -> Tensor:
        q, kv = self.q(x).unflatten(2, (HEADS, HEAD)), self.kv(x)
        if not self.training:
            kv = self.cache = kv if self.cache is None else torch.cat([self.cache, kv], 1)
        hidden = ~causal(x.shape[1], kv.shape[1])
        if self.is_heads_first:
            weights = q.transpose(1, 2) @ self.k_up @ kv[:, None].transpose(2, 3) * HEAD**-0.5
            weights = weights.masked_fill(hidden, -math.inf).softmax(-1)
            return x + self.out(joined(weights @ kv[:, None] @ self.v_up.transpose(1, 2)))
        scores = torch.einsum("bshc,btc->bsht", torch.einsum("bshd,hdc->bshc", q, self.k_up), kv) * HEAD**-0.5
        if x.shape[1] > 1:
            scores = scores + torch.zeros(hidden.shape).masked_fill(hidden, -math.inf).unsqueeze(1)
        out = torch.einsum("bsht,btc->bshc", scores.softmax(-1), kv)
        return x + self.out(torch.einsum("bshc,hdc->bshd", out, self.v_up).flatten(2))


def mla_heads_first():
    return step(Words(in_turn, Latent(True), Latent(True)), ids())


def mla_queries_first():
    return step(Words(in_turn, Latent(False), Latent(False)), ids())


def mla_decoding():
    model = Words(in_turn, Latent(False))
    return [each for count in (6, 1, 1, 1) for each in evaluation(model, ids(2, count))]


def mla_wide_keys():
    """Keys have parts that all heads share, and are wider than values, which zeros make as wide."""

    def attend(q, k, v, idx):
        q, k = torch.cat([q, q[..., :2]], -1), torch.cat([k, k[:, :1, :, :2].expand(-1, HEADS, -1, -1)], -1)
        return SDPA(q, k, F.pad(v, (0, 2)), is_causal=True)[..., :HEAD]

    return run(attend, layers=2)


# --- several tokens ahead ---
def mtp():
    """Each further module reads the embedding of the token that the one before it predicts."""

    def forward(model, ids):
        trunk, *extra = model.layers
        x = trunk(model.embed(ids))
        found = [model.head(x)]
        for depth, layer in enumerate(extra, 1):
            x = layer(x[:, :-1] + model.words(ids[:, depth:]))
            found.append(model.head(x))
        return found

    words, model = ids(2, 14), Words(forward, *(Attend(fused) for _ in range(3)))
    losses = [
        F.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, depth:].flatten())
        for depth, logits in enumerate(model(words), 1)
    ]
    sum(losses).backward()
    return [loss.detach() for loss in losses]


def eagle():
    """A draft reads the features of a token beside the embedding of the next one."""
    embedded, target, draft = nn.Embedding(50, WIDTH)(ids(2, 12)), Attend(fused), Attend(fused)
    features = target(embedded).detach()
    predicted = draft(features[:, :-1] + embedded[:, 1:])
    F.smooth_l1_loss(predicted, features[:, 1:]).backward()
    return [predicted.detach()]


# --- caches ---
class Cached(Words):
    """A decoder that keeps keys and values of each layer."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__(None, *(Attend(self.attend) for _ in range(layers)))
        self.cache: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, q, k, v, layer, mask):
        if layer in self.cache:
            k, v = (torch.cat(pair, 2) for pair in zip(self.cache[layer], (k, v), strict=True))
        self.cache[layer] = k, v
        return SDPA(q, k, v, attn_mask=causal(q.shape[2], k.shape[2]) if mask is None else mask)

    def forward(self, ids, positions=None, mask=None, attention_mask=None):
        past, t = self.cache[0][0].shape[2] if self.cache else 0, ids.shape[1]
        if attention_mask is not None:
            positions = (attention_mask.cumsum(1) - 1).clamp(min=0)[:, past:]
            seen = causal(t, past + t) & attention_mask[:, None].bool()
            mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[:, None]
        x = self.embed(ids, past + torch.arange(t) if positions is None else positions)
        for number, layer in enumerate(self.layers):
            x = layer(x, number, mask)
        return self.head(x)


@torch.no_grad()
def medusa_tree():
    """A tree of candidates is verified in one forward behind the cached prompt."""
    model, past = Cached(), 6
    model(ids(1, past))
    mask, depths = torch.ones(5, past + 5, dtype=torch.bool), []
    mask[:, past:] = False
    for node, parent in enumerate((-1, 0, 0, 1, 2)):
        mask[node, past + node] = True
        mask[node, past:] |= mask[parent, past:] & (parent >= 0)
        depths.append(past + (depths[parent] - past + 1 if parent >= 0 else 0))
    return [model(ids(1, 5), torch.tensor(depths), mask)]


@torch.no_grad()
def speculative():
    """The target reads four words of a draft at once; both caches forget what is refused."""
    target, draft, words = Cached(), Cached(1), ids(1, 6)
    found = [target(words), draft(words)]
    for count in (8, 11):
        for _ in range(4):
            found.append(draft(found[-1][:, -1:].argmax(-1)))
        found.append(target(ids(1, 4)))
        for model in (target, draft):
            model.cache = {n: (k[:, :, :count], v[:, :, :count]) for n, (k, v) in model.cache.items()}
    return found


@torch.no_grad()
def chunked_prefill():
    model = Cached()
    return [model(chunk) for chunk in ids(2, 13).split(5, 1)] + [model(ids(2, 1))]


@torch.no_grad()
def beams():
    """The cache follows the beams that go on."""
    model, found = Cached(), []
    logits = model(ids().repeat_interleave(3, 0))
    for _ in range(4):
        best = logits[:, -1].log_softmax(-1).unflatten(0, (2, 3)).flatten(1).topk(3).indices
        rows = (best // 50 + torch.tensor([[0], [3]])).flatten()
        model.cache = {n: (k[rows], v[rows]) for n, (k, v) in model.cache.items()}
        logits = model((best % 50).view(-1, 1))
        found.append(logits)
    return found


@torch.no_grad()
def left_padded_generation():
    """Positions count words alone, and the mask grows."""
    model, attention_mask, found = Cached(), torch.ones(2, 7, dtype=torch.long), []
    attention_mask[1, :3] = 0
    words = ids(2, 7) * attention_mask
    for _ in range(4):
        found.append(model(words, attention_mask=attention_mask))
        words, attention_mask = found[-1][:, -1:].argmax(-1), F.pad(attention_mask, (0, 1), value=1)
    return found


@torch.no_grad()
def static_cache():
    """Keys of later slots are zeros, which the mask hides."""
    slots = [torch.zeros(2, 2, HEADS, 16, HEAD) for _ in range(2)]

    def attend(q, k, v, number, at):
        slots[number][0].index_copy_(2, at, k)
        slots[number][1].index_copy_(2, at, v)
        return SDPA(q, *slots[number], attn_mask=torch.arange(16) <= at[:, None])

    def forward(model, ids, at):
        x = model.embed(ids, at)
        for number, layer in enumerate(model.layers):
            x = layer(x, number, at)
        return model.head(x)

    model = Words(forward, Attend(attend), Attend(attend))
    return [model(ids(2, len(at)), at) for at in (torch.arange(6), torch.tensor([6]), torch.tensor([7]))]


def transformer_xl():
    """Relative positions by a shift of the scores, and hidden states of the segment before as memory."""
    r = torch.randn(16, WIDTH)

    def attend(q, k, v):
        t, n = q.shape[2], k.shape[2]
        content, position = q @ k.transpose(2, 3), q @ heads(r[None, :n]).transpose(2, 3)
        position = F.pad(position, (1, 0)).view(len(q), HEADS, n + 1, t)[:, :, 1:].reshape(content.shape)
        return ((content + position) * HEAD**-0.5).masked_fill(~causal(t, n), -1e30).softmax(-1) @ v

    def forward(model, ids, memories):
        x, kept = model.words(ids), []
        for layer, memory in zip(model.layers, memories, strict=True):
            whole = torch.cat([memory, x], 1)
            kept.append(whole[:, -8:].detach())
            x = layer(x, source=whole)
        return model.head(x), kept

    model, memories, found = Words(forward, Attend(attend), Attend(attend)), [torch.zeros(2, 0, WIDTH)] * 2, []
    for segment in ids(2, 18).split(6, 1):
        logits, memories = model(segment, memories)
        found.append(logits.detach())
    return found


# --- blocks ---
def online_softmax():
    """No weights of a whole row are ever made; a layer of the usual kind is beside it."""

    def blockwise(q, k, v):
        peak, total, found = torch.full((*q.shape[:3], 1), -math.inf), 0, 0
        for begin in range(0, T, 4):
            scores = q @ k[:, :, begin : begin + 4].transpose(2, 3) * HEAD**-0.5
            scores = scores.masked_fill(FUTURE[:, begin : begin + 4], -math.inf)
            top = torch.maximum(peak, scores.amax(-1, keepdim=True))
            weights, decay = torch.exp(scores - top), torch.exp(peak - top)
            total = total * decay + weights.sum(-1, keepdim=True)
            found = found * decay + weights @ v[:, :, begin : begin + 4]
            peak = top
        return found / total

    return step(Words(in_turn, Attend(blockwise), Attend(fused)), ids())


def compressed_blocks():
    """Queries read the means of pairs of words that have ended, and a window."""

    def attend(q, k, v):
        keys, values = (F.pad(each.unflatten(2, (-1, 2)).mean(3), (0, 0, 1, 0)) for each in (k, v))
        ended = torch.arange(0, T + 1, 2) <= torch.arange(1, T + 1)[:, None]
        return SDPA(q, keys, values, attn_mask=ended) + SDPA(q, k, v, attn_mask=~FUTURE & ~causal(T).tril(-3))

    return trained(attend)


# --- one axis for several ---
def rows_and_heads():
    """A mask for each row and head in one axis, of rows that are repeated."""

    def forward(model, ids):
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1) | (ids == 0)[:, None]
        mask, x = torch.zeros(hidden.shape).masked_fill(hidden, -1e9).repeat_interleave(HEADS, 0), model.embed(ids)
        for layer in model.layers:
            x = x + layer(x, x, x, attn_mask=mask, need_weights=False)[0]
        return model.head(x)

    layers = (MHA(WIDTH, HEADS, batch_first=True) for _ in range(2))
    return step(Words(forward, *layers, padding_idx=0), batch(*LENGTHS))


def bloom():
    """ALiBi of keys that are counted without padding on the left, added by baddbmm to rows and heads in one axis."""

    def attend(q, k, v, alibi, mask):
        q, k, v = (each.flatten(0, 1) for each in (q, k, v))
        scores = alibi.baddbmm(q, k.transpose(1, 2), beta=1.0, alpha=HEAD**-0.5).unflatten(0, (-1, HEADS))
        weights = scores.masked_fill(mask, torch.finfo(scores.dtype).min).softmax(-1)
        return torch.bmm(weights.flatten(0, 1), v).unflatten(0, (-1, HEADS))

    def forward(model, input_ids, attention_mask):
        counted = ((attention_mask.cumsum(-1) - 1) * attention_mask)[:, None]
        slopes = 2.0 ** -torch.arange(2.0, 2 * HEADS + 1, 2)
        alibi, x = (slopes[:, None] * counted).flatten(0, 1)[:, None], model.words(input_ids)
        for layer in model.layers:
            x = layer(x, alibi, FUTURE | (attention_mask == 0)[:, None, None])
        return model.head(x)

    return trained(attend, forward, attention_mask=(torch.arange(T) >= torch.tensor([0, 3])[:, None]).long())


def multi_query():
    """One key head, in an einsum without an axis for it."""

    def attend(q, k, v, idx):
        sim = torch.einsum("bhid,bjd->bhij", q * HEAD**-0.5, k[:, 0]).masked_fill(FUTURE, -torch.finfo(q.dtype).max)
        return torch.einsum("bhij,bjd->bhid", (sim - sim.amax(-1, keepdim=True).detach()).softmax(-1), v[:, 0])

    return run(attend, layers=2)


def axial():
    """Along the rows of a picture, then along its columns."""

    class Axial(Attend):
        def forward(self, x):
            y = x.transpose(1, 2)
            return super().forward(y.flatten(0, 1)).view(y.shape)

    return step(nn.Sequential(Axial(), Axial()), torch.randn(2, 6, 5, WIDTH))


# --- masks ---
def t5_bias():
    """No scale, and biases that the first layer makes and the others add again."""
    table = nn.Embedding(T, HEADS)

    def attend(q, k, v, bias):
        return (torch.matmul(q, k.transpose(2, 3)) + bias).float().softmax(-1).type_as(q) @ v

    def forward(model, input_ids, attention_mask):
        seen = causal(T)[None, None] & attention_mask[:, None, None].bool()
        distance = (torch.arange(T)[:, None] - torch.arange(T)).clamp(min=0)
        bias = table(distance).permute(2, 0, 1) + (1.0 - seen.float()) * torch.finfo(torch.float32).min
        return in_turn(model, input_ids, bias)

    return trained(attend, forward, attention_mask=(torch.arange(T) < torch.tensor(LENGTHS)[:, None]).long())


def flex_documents():
    """One mask for all rows and heads."""
    document = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    mask = create_block_mask(lambda b, h, q, k: (document[q] == document[k]) & (q >= k), None, None, T, T, "cpu")
    return evaluation(Words(in_turn, Attend(lambda q, k, v: flex_attention(q, k, v, block_mask=mask))), ids())


def prefix_lm():
    """Words of the type 0 see each other."""

    def forward(model, input_ids, token_type_ids):
        seen = causal(T) | (token_type_ids == 0)[:, None]
        return in_turn(model, input_ids, torch.where(seen, 0.0, torch.finfo(torch.float32).min)[:, None])

    types = (torch.arange(T) >= torch.tensor([3, 5])[:, None]).long()
    return step(Words(forward, Attend(), Attend()), ids(), token_type_ids=types)


def prefix_tuning():
    """Learned keys and values of each layer stand before those of the words."""
    learned = nn.Parameter(torch.randn(2, 1, HEADS, 4, HEAD))

    def attend(q, k, v):
        k, v = (torch.cat([each.expand(len(q), -1, -1, -1), own], 2) for each, own in zip(learned, (k, v), strict=True))
        return SDPA(q, k, v, attn_mask=causal(T, T + 4))

    return trained(attend)


def key_of_zeros():
    """A learned key and one of zeros behind the words, which all see."""

    def forward(model, ids):
        x = model.embed(ids)
        return model.head(x + model.layers[0](x, x, x, attn_mask=FUTURE, need_weights=False)[0])

    return step(Words(forward, MHA(WIDTH, HEADS, add_bias_kv=True, add_zero_attn=True, batch_first=True)), ids())


def streaming_chunks():
    """Chunks of frames see one chunk before them; weights of hidden frames are set to 0 again."""
    chunk = torch.arange(T) // 2
    seen = (chunk <= chunk[:, None]) & (chunk >= chunk[:, None] - 1)
    real = torch.arange(T) < torch.tensor(LENGTHS)[:, None]

    def attend(q, k, v):
        hidden = (seen & real[:, None])[:, None].eq(0)
        scores = (q @ k.transpose(2, 3) / math.sqrt(HEAD)).masked_fill(hidden, -math.inf)
        return scores.softmax(-1).masked_fill(hidden, 0.0) @ v

    return evaluation(nn.Sequential(nn.Linear(5, WIDTH), Attend(attend)), torch.randn(2, T, 5))


def gated_media():
    """Words attend to the last picture before them; those before any picture to none, and their weights become 0."""
    places = torch.tensor([[0, 1, 0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0, 1, 0]]).cumsum(1)

    def attend(q, k, v):
        mask = places[:, None, :, None] == torch.arange(1, 3).repeat_interleave(3)
        sim = (q * HEAD**-0.5 @ k.transpose(2, 3)).masked_fill(~mask, -torch.finfo(q.dtype).max)
        return sim.softmax(-1).masked_fill((places == 0)[:, None, :, None], 0.0) @ v

    def forward(model, ids, media):
        cross, own = model.layers
        return model.head(own(cross(model.embed(ids), source=media)))

    return step(Words(forward, Attend(attend), Attend(fused)), ids(), torch.randn(2, 6, WIDTH))


def block_diffusion():
    """Noised words see their block and clean blocks before it."""
    at = torch.arange(2 * T)
    block, clean = at % T // 2, at >= T
    query, is_clean = block[:, None], clean[:, None]
    seen = (query == block) & (is_clean == clean) | (query > block) & clean | (query >= block) & clean & is_clean
    return step(Words(in_turn, Attend(), Attend()), ids(2, 2 * T), seen)


# --- several sequences ---
def perceiver():
    """Latents read a padded sequence, then themselves."""
    latents = nn.Parameter(torch.randn(1, 4, WIDTH))

    def forward(model, ids):
        cross, own = model.layers
        x = cross(latents.expand(len(ids), -1, -1), (ids != 0)[:, None, None], source=model.embed(ids))
        return model.head(own(x))

    return step(Words(forward, Attend(), Attend(), padding_idx=0), batch(*LENGTHS))


def induced_points():
    """Points read a set, the set reads them, and heads are moved into the batch by chunks."""
    points = nn.Parameter(torch.randn(1, 3, WIDTH))

    def attend(q, k, v, tokens=None):
        q, k, v = (torch.cat([*each.unbind(1)]) for each in (q, k, v))
        scores = q.bmm(k.transpose(1, 2)) * HEAD**-0.5
        if tokens is not None:
            scores = scores.masked_fill(~tokens.repeat(HEADS, 1)[:, None], -math.inf)
        return torch.stack(scores.softmax(2).bmm(v).chunk(HEADS), 1)

    def forward(model, ids):
        read, write = model.layers
        x, tokens = model.words(ids), ids != 0
        return model.head(write(x, source=read(points.expand(len(ids), -1, -1), tokens, source=x)))

    return step(Words(forward, Attend(attend), Attend(attend), padding_idx=0), batch(*LENGTHS))


def translation():
    """Targets begin with the id of padding."""

    def forward(model, ids, labels):
        encoder, own, cross = model.layers
        tokens = (ids != 0)[:, None, None]
        x = encoder(model.embed(ids), tokens)
        return model.head(cross(own(model.embed(F.pad(labels[:, :-1], (1, 0)))), tokens, source=x))

    return step(Words(forward, Attend(), Attend(fused), Attend(), padding_idx=0), batch(*LENGTHS), ids(2, 6))


def torch_transformer():
    """Padding of both sides, and batches in the second axis."""

    def forward(model, source, target):
        x, y = (model.words(each) + model.places(torch.arange(len(each)))[:, None] for each in (source, target))
        is_pad, mask = (source == 0).T, nn.Transformer.generate_square_subsequent_mask(len(target))
        own = (target == 0).T.float().masked_fill((target == 0).T, -math.inf)
        return model.layers[0](x, y, None, mask, None, is_pad, own, is_pad, None, True)

    source, target = batch(*LENGTHS).T, batch(6, 4).T
    return step(Words(forward, nn.Transformer(WIDTH, HEADS, 1, 1, 32, 0.0), padding_idx=0), source, target)


def joint_text_image():
    """Padded text and a picture in one sequence."""

    def forward(model, image, text):
        x = torch.cat([model.words(text), image], 1)
        keys = F.pad(text != 0, (0, image.shape[1]), value=True)[:, None, None]
        for layer in model.layers:
            x = layer(x, keys)
        return x[:, text.shape[1] :]

    return step(Words(forward, Attend(), Attend(), padding_idx=0), torch.randn(2, 9, WIDTH), batch(*LENGTHS))


def video():
    """Attention in frames, over time and to padded text, with axes moved into the batch."""

    def forward(model, x, text, mask):
        spatial, temporal, cross = model.layers
        b, f, n, _ = x.shape
        x = spatial(x.flatten(0, 1)).unflatten(0, (b, f))
        x = temporal(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (b, n)).transpose(1, 2)
        text, mask = text.repeat_interleave(f, 0), mask.repeat_interleave(f, 0)
        return cross(x.flatten(0, 1), ((1 - mask) * -10000.0)[:, None, None], source=text)

    mask = (torch.arange(7) < torch.tensor([7, 4])[:, None]).float()
    model = Words(forward, *(Attend() for _ in range(3)))
    return step(model, torch.randn(2, 3, 5, WIDTH), torch.randn(2, 7, WIDTH), mask)


def masked_autoencoder():
    """Most patches are dropped; the decoder has a token of its own in their places."""
    encoder, decoder = Attend(), Attend()
    patches, order = torch.randn(2, 12, WIDTH), torch.rand(2, 12).argsort(1)[..., None].expand(-1, -1, WIDTH)
    x = encoder(patches.gather(1, order[:, :3]))
    x = torch.cat([x, torch.zeros(2, 9, WIDTH)], 1).gather(1, order.argsort(1))
    return step(decoder, x)


# --- among other layers ---
def linear_hybrid():
    """Linear attention as running sums, and retention with a decay, around softmax attention."""

    def sums(q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
        return torch.einsum("bhtd,bhtde->bhte", q, state) / (q * k.cumsum(2)).sum(-1, keepdim=True)

    def retention(q, k, v):
        distance = torch.arange(T)[:, None] - torch.arange(T)
        return (q @ k.transpose(2, 3) / WIDTH * torch.where(distance >= 0, 0.9 ** distance.clamp(min=0), 0.0)) @ v

    return step(Words(in_turn, Attend(sums), Attend(fused), Attend(retention)), ids())


def state_space_hybrid():
    """A causal convolution and a selective recurrence, and grouped attention."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.gates = nn.Conv1d(WIDTH, WIDTH, 4, groups=WIDTH, padding=3), nn.Linear(WIDTH, 2 * WIDTH)

        def forward(self, x):
            y = F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
            h, found = torch.zeros_like(x[:, 0]), []
            for each in y.unbind(1):
                keep, out = self.gates(each).sigmoid().chunk(2, -1)
                h = keep * h + (1 - keep) * each
                found.append(h * out)
            return x + torch.stack(found, 1)

    grouped = Attend(lambda q, k, v: SDPA(q, k[:, :2], v[:, :2], is_causal=True, enable_gqa=True))
    return step(Words(in_turn, Recurrent(), grouped, Recurrent()), ids())


def mixture_of_depths():
    """A threshold for each token alone decides which ones pass through a block."""

    def forward(model, ids):
        first, second = model.layers
        x, rows = first(model.embed(ids)), []
        for row in x:
            chosen = (row[:, 0] > 0).nonzero()[:, 0]
            rows.append(row.index_copy(0, chosen, second(row[chosen][None])[0]) if len(chosen) else row)
        return model.head(torch.stack(rows))

    return step(Words(forward, Attend(fused), Attend(fused)), ids(2, 12))


def checkpointed():
    """Blocks run again in the backward, one of them reentrant."""

    def forward(model, ids):
        x = model.embed(ids)
        for number, layer in enumerate(model.layers):
            x = checkpoint(layer, x, torch.zeros(T, T).masked_fill(FUTURE, -math.inf), use_reentrant=number == 1)
        return model.head(x)

    return trained(Attend().attend, forward, layers=3)


def shared_keys():
    """A later layer reads the keys and values of an earlier one."""
    shared: list[tuple[Tensor, Tensor]] = []

    def attend(q, k, v, is_own):
        if is_own:
            shared[:] = [(k, v)]
        return SDPA(q, *shared[0], is_causal=True)

    def forward(model, ids):
        first, second = model.layers
        return model.head(second(first(model.embed(ids), True), False))

    return trained(attend, forward)


def last_word():
    """Padding on the right needs no mask in a causal model, of which the last word is read."""

    def forward(model, ids):
        logits = in_turn(model, ids)
        return logits[torch.arange(len(ids)), (ids != 0).sum(1) - 1], logits

    return step(Words(forward, Attend(fused), Attend(fused), padding_idx=0), batch(*LENGTHS))


def fast_path():
    """nn.TransformerEncoder of padded rows in evaluation, as nested tensors."""

    def forward(model, ids):
        x = model.layers[0](model.embed(ids), src_key_padding_mask=ids == 0)
        return x * (ids != 0)[..., None]

    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, 0.1, batch_first=True)
    return evaluation(Words(forward, nn.TransformerEncoder(layer, 2), padding_idx=0), batch(*LENGTHS))
