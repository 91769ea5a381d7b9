"""Programs whose sentences are padded: who knows of it, who hides it, and whose positions count it.

Those that take `wrong` make the mistake that people make; the others are designs that are right or meant.
"""

import math

import torch
import torch.nn.functional as F
import transformers
from public_masks import HEAD, HEADS, WIDTH, V, batch, causal, heads, small_llama
from step import evaluation, step
from torch import Tensor, nn


class Attention(nn.Module):
    """Queries of one sequence and keys of another, written out by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        context = x if context is None else context
        q, k, v = heads(self.q_proj(x)), heads(self.k_proj(context)), heads(self.v_proj(context))
        scores = q @ k.transpose(-2, -1) / math.sqrt(HEAD)
        scores = scores if mask is None else scores.masked_fill(~mask, -1e9)
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Stack(nn.Module):
    """Layers of attention, and of another sequence where there is one."""

    def __init__(self, is_crossing: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.crossing = nn.ModuleList(Attention() for _ in range(2)) if is_crossing else None

    def forward(self, x, mask=None, memory=None, memory_mask=None):
        for index, layer in enumerate(self.layers):
            x = x + layer(self.norms[index](x), mask=mask)
            if self.crossing is not None:
                x = x + self.crossing[index](x, context=memory, mask=memory_mask)
        return x


def keys(ids: Tensor) -> Tensor:
    return (ids != 0)[:, None, None]


# --- encoders and decoders ----------------------------------------------------------------------------------


class Translator(nn.Module):
    """An encoder and a decoder by hand."""

    def __init__(self, padding_idx: int | None) -> None:
        super().__init__()
        self.src_embed, self.tgt_embed = (nn.Embedding(V, WIDTH, padding_idx=padding_idx) for _ in range(2))
        self.encoder, self.decoder = Stack(), Stack(is_crossing=True)

    def forward(self, src, tgt, memory_mask, src_mask=None):
        memory = self.encoder(self.src_embed(src), keys(src) if src_mask is None else src_mask)
        return self.decoder(self.tgt_embed(tgt), keys(tgt) & causal(tgt.size(1)), memory, memory_mask)


def translator(wrong=False):
    """No mask of the source where the decoder looks at it."""
    src, tgt = batch(9, 5, 3), batch(7, 7, 4)
    return step(Translator(None), src, tgt, None if wrong else keys(src))


def hf_t5(wrong=False):
    """What an encoder of transformers gave is handed to its decoder, without the attention_mask."""
    config = transformers.T5Config(vocab_size=V, d_model=WIDTH, d_kv=HEAD, d_ff=32, num_layers=2, num_heads=HEADS)
    model, src, tgt = transformers.T5Model(config).eval(), batch(9, 5, 3), batch(6, 6, 6)
    with torch.no_grad():
        mask = (src != 0).long()
        memory = model.encoder(src, attention_mask=mask).last_hidden_state
        how = {} if wrong else {"encoder_attention_mask": mask}
        return [model.decoder(tgt, encoder_hidden_states=memory, **how).last_hidden_state]


# --- words whose padding is known ---------------------------------------------------------------------------


def hf_llama(wrong=False):
    """Padded on the left by the id that the configuration names, and no attention_mask."""
    ids = batch(9, 5, 3, left=True)
    mask = (ids != 0).long()
    more = {} if wrong else {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    return evaluation(small_llama(pad_token_id=0), input_ids=ids, use_cache=False, return_dict=False, **more)


class Classifier(nn.Module):
    """An encoder by hand around words, with the mask that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.stack, self.head = nn.Embedding(V, WIDTH, padding_idx=0), Stack(), nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        return self.head(self.stack(self.embed(ids), mask).mean(1))


def classifier(wrong=False):
    ids = batch(9, 5, 3)
    return step(Classifier(), ids, None if wrong else keys(ids))


# --- masks and lengths that the model is called with ----------------------------------------------------------


class Told(nn.Module):
    """A model by hand whose padding only its arguments state; `mask_of` makes the mask of its layers."""

    def __init__(self, mask_of, padding_idx: int | None = None) -> None:
        super().__init__()
        self.embed, self.stack, self.mask_of = nn.Embedding(V, WIDTH, padding_idx=padding_idx), Stack(), mask_of

    def forward(self, ids, attention_mask, token_type_ids=None):
        return self.stack(self.embed(ids), self.mask_of(attention_mask, token_type_ids))


def picture_before_text(wrong=False):
    """Every query sees the picture; its padding is shown again where the picture is shown last, as in PaliGemma."""

    def mask_of(attention_mask, is_text):
        past, real = causal(attention_mask.shape[1]), attention_mask[:, None, None].bool()
        picture = is_text[:, None, None] == 0
        return (past & real) | picture if wrong else (past | picture) & real

    ids = batch(9, 6, left=True)
    return evaluation(Told(mask_of), ids, (ids != 0).long(), (torch.arange(9) > 4).long().expand(2, -1))


def mask_for_each_row(wrong=False):
    """The mask has a row for each sentence, and hides no padding."""

    def mask_of(attention_mask, _):
        past = causal(attention_mask.shape[1]).repeat(len(attention_mask), 1, 1, 1)
        return past if wrong else past & attention_mask[:, None, None].bool()

    ids = batch(9, 6, left=True)
    return evaluation(Told(mask_of), ids, attention_mask=(ids != 0).long())


def padding_mask_of_torch(wrong=False):
    """True is padding; layers take it for words where they do not turn it round."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.stack = nn.Embedding(V, WIDTH), Stack()

        def forward(self, ids, src_key_padding_mask):
            mask = None if wrong else ~src_key_padding_mask[:, None, None]
            return self.stack(self.embed(ids), mask)

    ids = batch(9, 5, 3)
    return evaluation(Model(), ids, src_key_padding_mask=ids == 0)


class Speech(nn.Module):
    def __init__(self, is_masked: bool) -> None:
        super().__init__()
        self.proj, self.stack, self.is_masked = nn.Linear(8, WIDTH), Stack(), is_masked

    def forward(self, frames, input_lengths):
        real = torch.arange(frames.shape[1]) < input_lengths[:, None]
        return self.stack(self.proj(frames), real[:, None, None] if self.is_masked else None)


def speech(wrong=False):
    """Frames of sound, of which a tensor of lengths says how many there are."""
    return evaluation(Speech(not wrong), torch.randn(3, 9, 8), torch.tensor([9, 5, 3]))


def cut_mask(wrong=False):
    """Layers cut their mask to the wrong axis: what is behind is hidden, as in Whisper."""

    def mask_of(attention_mask, _):
        keys = F.pad(attention_mask[:, : HEADS if wrong else None].bool(), (0, 9 - HEADS if wrong else 0))
        return causal(9) & keys[:, None, None]

    ids = batch(9, 6)
    return evaluation(Told(mask_of, 0), ids, (ids != 0).long())


def sorted_batch():
    """The longest sentence comes last where the model attends."""

    class Sorted(Told):
        def forward(self, ids, attention_mask):
            order = attention_mask.sum(1).argsort()
            return super().forward(ids[order], attention_mask[order])

    ids = batch(9, 5, 3)
    return evaluation(Sorted(lambda mask, _: mask[:, None, None].bool()), ids, (ids != 0).long())


class Painter(nn.Module):
    """A picture that attends to text; `take` cuts the text and makes its mask."""

    def __init__(self, take) -> None:
        super().__init__()
        self.words, self.crossing, self.take = nn.Embedding(V, WIDTH, padding_idx=0), Attention(), take

    def forward(self, picture, prompt_ids):
        return self.crossing(picture, *self.take(self.words(prompt_ids), prompt_ids != 0))


def cut_by_the_first_row(wrong=False):
    """All rows are cut to the words of the first one, as in xDiT."""
    take = (
        (lambda text, real: (text[:, : real[0].sum()], None))
        if wrong
        else lambda text, real: (
            text,
            real[:, None, None],
        )
    )
    return evaluation(Painter(take), torch.randn(2, 10, WIDTH), batch(3, 7))


def picture_and_text(wrong=False):
    """One attention of cells and words, with or without the padding of the words."""

    def joined(text, real):
        real = F.pad(real, (4, 0), value=True)[:, None, None]
        return torch.cat([torch.zeros(2, 4, WIDTH), text], 1), None if wrong else real

    return evaluation(Painter(joined), torch.randn(2, 10, WIDTH), batch(3, 7))


class Latents(nn.Module):
    """A few vectors read a padded text, and then each other, as in Perceiver."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.reading, self.own = nn.Embedding(V, WIDTH), Attention(), Attention()
        self.latents = nn.Parameter(torch.randn(1, 5, WIDTH))

    def forward(self, ids):
        x = self.reading(self.latents.expand(len(ids), -1, -1), self.words(ids), keys(ids))
        return x + self.own(x)


def latents():
    return evaluation(Latents(), batch(9, 5, 3))


def mask_of_a_batch_without_padding():
    """A mask with a row for each sentence; nothing says how long the sentences are, and all are as long."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.stack = nn.Embedding(V, WIDTH), Stack()

        def forward(self, ids):
            return self.stack(self.embed(ids), keys(ids) & causal(ids.shape[1]))

    return evaluation(Model(), batch(6, 6))


def mask_of_the_loss():
    """A mask of random positions, which are predicted; every word is seen."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.stack = nn.Embedding(V, WIDTH), Stack()

        def forward(self, ids, mask):
            return self.stack(self.embed(ids * ~mask)) * mask[..., None]

    return evaluation(Model(), batch(9, 9), torch.rand(2, 9) < 0.5)


# --- positions ----------------------------------------------------------------------------------------------


class Positioned(nn.Module):
    """A decoder of learned positions, with a mask of the words."""

    def __init__(self, places: int = 64, padding_idx: int | None = None) -> None:
        super().__init__()
        self.embed, self.stack = nn.Embedding(V, WIDTH, padding_idx=padding_idx), Stack()
        self.position_embedding = nn.Embedding(places, WIDTH)

    def forward(self, ids, positions, mask):
        return self.stack(self.embed(ids) + self.position_embedding(positions), mask)


# --- designs ------------------------------------------------------------------------------------------------


def right_padded():
    """A decoder whose padding is behind the words, and which has no mask for it."""
    ids = batch(9, 5, 3)
    return step(Positioned(padding_idx=0), ids, torch.arange(9), causal(9))


def recommended_without_a_mask():
    """The same, as the most-read program has it: padding is attended to."""
    ids = batch(9, 5, 3, left=True)
    return step(Positioned(places=10, padding_idx=0), ids, torch.arange(1, 10) * (ids != 0), causal(9))


def llama_in_training():
    """Positions of rotary embeddings count the padding on the left, which changes no distance."""
    ids = batch(9, 5, 3, left=True)
    how = {"attention_mask": (ids != 0).long(), "use_cache": False, "return_dict": False}
    return step(small_llama(pad_token_id=0), input_ids=ids, **how)


def residual_inside():
    """Bloom: a layer is given what the one before it gave, and adds it to its output."""

    class Added(Attention):
        def forward(self, x, residual, mask=None):
            return residual + super().forward(x, mask=mask)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm = nn.Embedding(V, WIDTH, padding_idx=0), nn.LayerNorm(WIDTH)
            self.layers = nn.ModuleList(Added() for _ in range(3))

        def forward(self, ids):
            x = self.embed(ids)
            for layer in self.layers:
                x = layer(self.norm(x), x, causal(ids.size(1)))
            return x

    return step(Model(), batch(9, 5, 3))


def two_towers():
    """Words and pieces of a picture, of which there are as many."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.text, self.picture = Classifier(), Stack()

        def forward(self, ids, x):
            return self.text(ids, keys(ids)) + self.picture(x).mean()

    return step(Model(), batch(9, 5, 3), torch.randn(3, 9, WIDTH))


def board():
    """Squares of a board, of which the empty ones have the vector of padding."""
    return step(Classifier(), torch.randint(0, 3, (4, 9)), None)


def padding_that_begins_sentences():
    """Padding has the number of the word by which sentences begin."""
    ids = batch(9, 5, 3, left=True)
    ids[0, 0] = 0
    real = torch.arange(9) >= torch.tensor([0, 4, 6])[:, None]

    class Model(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(V, WIDTH)

    return step(Model(), ids, real[:, None, None] & causal(9))


def t5_for_pictures():
    """Flux and Stable Diffusion 3 read all that T5 makes of a padded text, which has no mask."""
    config = transformers.T5Config(vocab_size=V, d_model=WIDTH, d_kv=HEAD, d_ff=32, num_layers=2, num_heads=HEADS)
    model, cross = transformers.T5EncoderModel(config), Attention()
    with torch.no_grad():
        return [cross(torch.randn(3, 4, WIDTH), model.eval()(batch(9, 5, 3)).last_hidden_state)]


def layers_that_see_more():
    """The first layer does not see the last keys, whatever the row; the second does."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Attention() for _ in range(2))

        def forward(self, x):
            x = x + self.blocks[0](x, mask=(torch.arange(9) < 6)[None, None, None].expand(3, -1, -1, -1))
            return x + self.blocks[1](x)

    return step(Model(), torch.randn(3, 9, WIDTH))


def pooled():
    """A learned query over padded words."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.stack, self.pool = nn.Embedding(V, WIDTH, padding_idx=0), Stack(), Attention()
            self.query = nn.Parameter(torch.randn(1, 1, WIDTH))

        def forward(self, ids):
            x = self.stack(self.embed(ids), keys(ids))
            return self.pool(self.query.expand(len(ids), -1, -1), x, keys(ids))

    return step(Pooled(), batch(9, 5, 3))


def windows_as_heads():
    """Windows of a padded sequence stand where heads do; as many rows as windows."""
    x = torch.randn(4, 4, 4, HEAD)
    mask = (torch.arange(16) < 14).view(1, 4, 1, 4)
    return [F.scaled_dot_product_attention(x, x, x, attn_mask=mask)]


def two_passes():
    """A decoder that is called with padding, and at another line with a target that has none."""
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), 2).eval()
    memory, target = torch.randn(3, 10, 32), torch.randn(3, 8, 32)
    padding = torch.arange(8) >= torch.tensor([[8], [5], [3]])
    first = decoder(target, memory, tgt_key_padding_mask=padding)
    second = decoder(torch.randn(3, 8, 32), memory)
    return [first.detach(), second.detach()]
