"""Losses that ask for the next token, and others: a training step each, in the styles in which people write them.

Language models are right, and wrong where a query sees the token that it is asked for. In others queries see later keys
on purpose.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

V, WIDTH, HEADS, B, T = 40, 16, 4, 3, 12
HEAD = WIDTH // HEADS


def words(*shape: int) -> Tensor:
    return torch.randint(3, V, shape or (B, T))


def causal(size: int) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool).tril()


def heads(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], HEADS, HEAD).transpose(1, 2)


def trained(model: nn.Module, loss: Tensor) -> list[Tensor]:
    """A loss, and its gradients."""
    loss.backward()
    return [loss.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]


def asked(model: nn.Module, logits: Tensor, targets: Tensor) -> list[Tensor]:
    return trained(model, F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1)))


class Attention(nn.Module):
    """Projections around a function of queries, keys and values."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.attend = attend

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        y = self.attend(heads(self.q(x)), heads(self.k(memory)), heads(self.v(memory)))
        return self.o(y.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, attend: Callable[..., Tensor], cross: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.ln, self.attn, self.mlp = nn.LayerNorm(WIDTH), Attention(attend), nn.Linear(WIDTH, WIDTH)
        self.cross = Attention(cross) if cross else None

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.ln(x))
        if self.cross:
            x = x + self.cross(x, memory)
        return x + F.gelu(self.mlp(x))


class Model(nn.Module):
    """Embeddings, blocks, and a head."""

    def __init__(self, *attends: Callable[..., Tensor], cross: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block(attend, cross) for attend in attends)
        self.head = nn.Linear(WIDTH, V, bias=False)

    def hidden(self, x: Tensor, memory: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        x = x + self.wpe(torch.arange(x.size(1)) if positions is None else positions)
        for block in self.blocks:
            x = block(x, memory)
        return x

    def forward(self, ids: Tensor, memory: Tensor | None = None) -> Tensor:
        return self.head(self.hidden(self.wte(ids), memory))


class Whole(nn.Module):
    """Several models that are one."""

    def __init__(self, forward: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(self, *inputs)


def sdpa(mask: Tensor | None) -> Callable[..., Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def by_hand(mask: Tensor) -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(HEAD)
        return F.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ v

    return attend


FULL = sdpa(None)


# --- language models ----------------------------------------------------------------------------------------


def nanogpt(wrong):
    """The loss is computed in the model; x and y are cut out of one text."""

    class GPT(Model):
        def forward(self, idx, targets):
            logits = super().forward(idx)
            return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)

    data, starts = words(200), (3, 50, 120)
    x = torch.stack([data[i : i + T] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + T] for i in starts])
    is_causal = not wrong
    model = GPT(*[lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)] * 2)
    _, loss = model(x, y)
    return trained(model, loss)


def mingpt(wrong):
    """Attention written out; the row is one longer than what the model sees."""
    text = words(B, T + 1)
    model = Model(*[by_hand(torch.ones(T, T).bool() if wrong else causal(T))] * 2)
    logits = model(text[:, :-1])
    return asked(model, logits, text[:, 1:])


def llama(wrong):
    """transformers shifts the labels by itself; those of padding are -100."""
    config = transformers.LlamaConfig(
        vocab_size=V, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=2, attn_implementation="sdpa", bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    ids, real = words(), torch.ones(B, T, dtype=torch.long)
    real[1, 9:] = 0
    labels = ids.masked_fill(real == 0, -100)
    own = real.bool()[:, None, None].expand(B, 1, T, T) if wrong else real
    model = transformers.LlamaForCausalLM(config).train()
    return trained(model, model(input_ids=ids, attention_mask=own, labels=labels).loss)


def one_layer(wrong):
    """One layer of three lost its mask."""
    right = sdpa(causal(T))
    model, ids = Model(right, FULL if wrong else right, right), words()
    return asked(model, model(ids)[:, :-1], ids[:, 1:])


def prefix(wrong, reduction="mean"):
    """A prefix is seen in both directions, and not asked for; wrong, it is one longer than what is left out."""
    seen = causal(T) | (torch.arange(T) < (6 if wrong else 5))
    model, ids = Model(*[sdpa(seen)] * 2), words()
    targets = ids[:, 1:].masked_fill(torch.arange(1, T) < 5, -100)
    return trained(model, F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), targets.flatten(), reduction=reduction))


def translator(wrong):
    """A task of copying: the source is as long as the target, and the same words; only the target's mask is at fault.

    `# <-` stands where the target attends to itself.
    """

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=None if wrong else causal(T))  # <-

    def forward(self, source, target):
        return self.decoder(target, self.encoder.hidden(self.encoder.wte(source)))

    model = Whole(forward, encoder=Model(FULL, FULL), decoder=Model(attend, attend, cross=FULL))
    text = words()
    target = torch.cat([torch.ones(B, 1, dtype=torch.long), text[:, :-1]], 1)
    return asked(model, model(text, target), text)


def one_table(wrong):
    """Source and target are the same rows, and the encoder's and the decoder's words are looked up in one table."""

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=None if wrong else causal(T))  # <-

    def forward(self, ids):
        return self.decoder(ids, self.encoder.hidden(self.decoder.wte(ids)))

    model, text = Whole(forward, encoder=Model(FULL), decoder=Model(attend, cross=FULL)), words(B, T + 1)
    return asked(model, model(text[:, :-1]), text[:, 1:])


# --- others -------------------------------------------------------------------------------------------------


def masked_words():
    """BERT: targets stand where they are asked for, most of them are ignored, and some are not hidden."""
    config = transformers.BertConfig(
        vocab_size=V, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=HEADS
    )
    ids, is_masked = words(), torch.rand(B, T) < 0.4
    model = transformers.BertForMaskedLM(config)
    labels = ids.masked_fill(~is_masked, -100)
    return trained(model, model(input_ids=ids.masked_fill(is_masked, 2), labels=labels).loss)


def both_directions():
    """ELMo: one stack looks back and predicts the next word, the other looks forward and predicts the one before."""

    def forward(self, ids):
        vectors = self.back.wte(ids)
        return [each.head(each.hidden(vectors)) for each in (self.back, self.ahead)]

    model, ids = Whole(forward, back=Model(sdpa(causal(T))), ahead=Model(sdpa(causal(T).T))), words()
    following, preceding = model(ids)
    loss = F.cross_entropy(following[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return trained(model, loss + F.cross_entropy(preceding[:, 1:].flatten(0, 1), ids[:, :-1].flatten()))


def one_word():
    """A text of one word, which is also the next."""
    model, ids = Model(FULL), torch.full((B, T), 7)
    return asked(model, model(ids), ids)


def counting():
    """What stands in the table are positions."""
    model = Model(FULL)
    ids = torch.arange(T).expand(B, T)
    return asked(model, model(ids)[:, :-1], ids[:, 1:])


def weighted_prefix():
    """A prefix is left out of the loss by weights of 0."""
    seen = causal(T) | (torch.arange(T) < 5)
    model, ids = Model(*[sdpa(seen)] * 2), words()
    losses = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return trained(model, (losses.view(B, -1) * (torch.arange(T - 1) >= 4)).mean())


def padding_sees_all():
    """Padding on the left, whose queries see everything, as transformers fills rows that see nothing."""
    ids = words()
    ids[1, :4] = ids[2, :6] = 0
    mask = causal(T) & (ids != 0)[:, None, None]
    mask = mask | ~mask.any(-1, keepdim=True)
    model, positions = Model(*[sdpa(mask)] * 2), ((ids != 0).cumsum(1) - 1).clamp(min=0)
    return asked(model, model.head(model.hidden(model.wte(ids), None, positions))[:, :-1], ids[:, 1:])


def picture_in_text():
    """A picture's places hold one id, and see each other; the loss leaves nothing out."""
    ids = words()
    ids[:, 2:7] = 1
    is_picture = (ids == 1)[:, None, None]
    mask = causal(T) | (is_picture & is_picture.mT)
    model = Model(*[sdpa(mask)] * 2)
    return asked(model, model(ids)[:, :-1], ids[:, 1:])
