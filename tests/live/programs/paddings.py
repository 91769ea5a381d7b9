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


class Model(nn.Module):
    """Words and layers around a function of the model and its inputs, and other parts by their names."""

    def __init__(self, forward, padding_idx: int | None = 0, **parts: nn.Module) -> None:
        super().__init__()
        self.embed, self.stack, self.call = nn.Embedding(V, WIDTH, padding_idx=padding_idx), Stack(), forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *inputs, **options):
        return self.call(self, *inputs, **options)


def keys(ids: Tensor) -> Tensor:
    return (ids != 0)[:, None, None]


def classified(model: Model, ids: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of an encoder with the mask that it is given."""
    return model.stack(model.embed(ids), mask).mean(1)


def small_t5(kind: type) -> nn.Module:
    config = transformers.T5Config(vocab_size=V, d_model=WIDTH, d_kv=HEAD, d_ff=32, num_layers=2, num_heads=HEADS)
    return kind(config).eval()


# --- words whose padding is known ---------------------------------------------------------------------------


def translator(wrong=False):
    """No mask of the source where the decoder looks at it."""

    def forward(model, src, tgt):
        memory = model.stack(model.embed(src), keys(src))
        mask = keys(tgt) & causal(tgt.size(1))
        return model.decoder(model.tgt_embed(tgt), mask, memory, None if wrong else keys(src))

    model = Model(forward, None, tgt_embed=nn.Embedding(V, WIDTH), decoder=Stack(is_crossing=True))
    return step(model, batch(9, 5, 3), batch(7, 7, 4))


def hf_t5(wrong=False):
    """What an encoder of transformers gave is handed to its decoder, without the attention_mask."""
    model, src, tgt = small_t5(transformers.T5Model), batch(9, 5, 3), batch(6, 6, 6)
    with torch.no_grad():
        mask = (src != 0).long()
        memory = model.encoder(src, attention_mask=mask).last_hidden_state
        how = {} if wrong else {"encoder_attention_mask": mask}
        return [model.decoder(tgt, encoder_hidden_states=memory, **how).last_hidden_state]


def hf_llama(wrong=False):
    """Padded on the left by the id that the configuration names, and no attention_mask."""
    ids = batch(9, 5, 3, left=True)
    mask = (ids != 0).long()
    more = {} if wrong else {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    return evaluation(small_llama(pad_token_id=0), input_ids=ids, use_cache=False, return_dict=False, **more)


def classifier(wrong=False):
    ids = batch(9, 5, 3)
    return step(Model(classified), ids, None if wrong else keys(ids))


# --- masks and lengths that the model is called with ----------------------------------------------------------


def stated(mask_of, ids: Tensor, padding_idx: int | None = None, **more: Tensor) -> list[Tensor]:
    """A model whose padding an argument states; `mask_of` makes the mask of its layers."""

    def forward(model, ids, attention_mask, **more):
        return model.stack(model.embed(ids), mask_of(attention_mask, **more))

    return evaluation(Model(forward, padding_idx), ids, attention_mask=(ids != 0).long(), **more)


def picture_before_text(wrong=False):
    """Every query sees the picture; its padding is shown again where the picture is shown last, as in PaliGemma."""

    def mask_of(attention_mask, token_type_ids):
        past, real = causal(9), attention_mask[:, None, None].bool()
        picture = token_type_ids[:, None, None] == 0
        return (past & real) | picture if wrong else (past | picture) & real

    return stated(mask_of, batch(9, 6, left=True), token_type_ids=(torch.arange(9) > 4).long().expand(2, -1))


def mask_for_each_row(wrong=False):
    """The mask has a row for each sentence, and hides no padding."""

    def mask_of(attention_mask):
        past = causal(9).repeat(2, 1, 1, 1)
        return past if wrong else past & attention_mask[:, None, None].bool()

    return stated(mask_of, batch(9, 6, left=True))


def padding_mask_of_torch(wrong=False):
    """True is padding; layers take it for words where they do not turn it round."""

    def forward(model, ids, src_key_padding_mask):
        return model.stack(model.embed(ids), None if wrong else ~src_key_padding_mask[:, None, None])

    ids = batch(9, 5, 3)
    return evaluation(Model(forward, None), ids, src_key_padding_mask=ids == 0)


def speech(wrong=False):
    """Frames of sound, of which a tensor of lengths says how many there are."""

    def forward(model, frames, input_lengths):
        real = torch.arange(9) < input_lengths[:, None]
        return model.stack(model.proj(frames), None if wrong else real[:, None, None])

    model = Model(forward, proj=nn.Linear(8, WIDTH))
    return evaluation(model, torch.randn(3, 9, 8), input_lengths=torch.tensor([9, 5, 3]))


def painted(take) -> list[Tensor]:
    """A picture that attends to text; `take` cuts the text and makes its mask."""

    def forward(model, picture, prompt_ids):
        return model.crossing(picture, *take(model.embed(prompt_ids), prompt_ids != 0))

    return evaluation(Model(forward, crossing=Attention()), torch.randn(2, 10, WIDTH), batch(3, 7))


def cut_by_the_first_row(wrong=False):
    """All rows are cut to the words of the first one, as in xDiT."""
    return painted(lambda text, real: (text[:, : real[0].sum()], None) if wrong else (text, real[:, None, None]))


def picture_and_text(wrong=False):
    """One attention of cells and words, with or without the padding of the words."""

    def joined(text, real):
        real = F.pad(real, (4, 0), value=True)[:, None, None]
        return torch.cat([torch.zeros(2, 4, WIDTH), text], 1), None if wrong else real

    return painted(joined)


def latents():
    """A few vectors read a padded text, and then each other, as in Perceiver."""

    def forward(model, ids):
        x = model.reading(model.first.weight.expand(len(ids), -1, -1), model.embed(ids), keys(ids))
        return x + model.own(x)

    parts = {"first": nn.Embedding(5, WIDTH), "reading": Attention(), "own": Attention()}
    return evaluation(Model(forward, None, **parts), batch(9, 5, 3))


def mask_of_a_batch_without_padding():
    """A mask with a row for each sentence; nothing says how long the sentences are, and all are as long."""
    return evaluation(Model(lambda model, ids: model.stack(model.embed(ids), keys(ids) & causal(6)), None), batch(6, 6))


def mask_of_the_loss():
    """A mask of random positions, which are predicted; every word is seen."""

    def forward(model, ids, mask):
        return model.stack(model.embed(ids * ~mask)) * mask[..., None]

    return evaluation(Model(forward, None), batch(9, 9), mask=torch.rand(2, 9) < 0.5)


# --- designs ------------------------------------------------------------------------------------------------


def positioned(ids: Tensor, positions: Tensor, places: int = 64) -> list[Tensor]:
    """A decoder of learned positions, with a mask of the future alone."""

    def forward(model, ids, positions):
        return model.stack(model.embed(ids) + model.position_embedding(positions), causal(9))

    return step(Model(forward, position_embedding=nn.Embedding(places, WIDTH)), ids, positions)


def right_padded():
    """A decoder whose padding is behind the words, and which has no mask for it."""
    return positioned(batch(9, 5, 3), torch.arange(9))


def recommended_without_a_mask():
    """The same, as the most-read program has it: padding is attended to."""
    ids = batch(9, 5, 3, left=True)
    return positioned(ids, torch.arange(1, 10) * (ids != 0), places=10)


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

    def forward(model, ids):
        x = model.embed(ids)
        for layer in model.layers:
            x = layer(model.norm(x), x, causal(9))
        return x

    layers = nn.ModuleList(Added() for _ in range(3))
    return step(Model(forward, layers=layers, norm=nn.LayerNorm(WIDTH)), batch(9, 5, 3))


def two_towers():
    """Words and pieces of a picture, of which there are as many."""

    def forward(model, ids, x):
        return classified(model, ids, keys(ids)) + model.picture(x).mean()

    return step(Model(forward, picture=Stack()), batch(9, 5, 3), torch.randn(3, 9, WIDTH))


def board():
    """Squares of a board, of which the empty ones have the vector of padding."""
    return step(Model(classified), torch.randint(0, 3, (4, 9)), None)


def padding_that_begins_sentences():
    """Padding has the number of the word by which sentences begin."""
    ids = batch(9, 5, 3, left=True)
    ids[0, 0] = 0
    real = torch.arange(9) >= torch.tensor([0, 4, 6])[:, None]
    return step(Model(classified, None), ids, real[:, None, None] & causal(9))


def t5_for_pictures():
    """Flux and Stable Diffusion 3 read all that T5 makes of a padded text, which has no mask."""
    with torch.no_grad():
        text = small_t5(transformers.T5EncoderModel)(batch(9, 5, 3)).last_hidden_state
        return [Attention()(torch.randn(3, 4, WIDTH), text)]


def layers_that_see_more():
    """The first layer does not see the last keys, whatever the row; the second does."""

    def forward(model, x):
        x = x + model.first(x, mask=(torch.arange(9) < 6)[None, None, None].expand(3, -1, -1, -1))
        return x + model.second(x)

    return step(Model(forward, first=Attention(), second=Attention()), torch.randn(3, 9, WIDTH))


def pooled():
    """A learned query over padded words."""

    def forward(model, ids):
        query = model.query.weight.expand(len(ids), -1, -1)
        return model.pool(query, model.stack(model.embed(ids), keys(ids)), keys(ids))

    return step(Model(forward, query=nn.Embedding(1, WIDTH), pool=Attention()), batch(9, 5, 3))


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
