"""Training of small models: five recipes that go well, and runs that go wrong; each returns what it trained."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WORDS, WIDTH, HEADS, LENGTH, BATCH = 64, 32, 4, 64, 8


class FusedAttention(nn.Module):
    """nanoGPT's attention."""

    def __init__(self, width: int = WIDTH, dropout: float = 0.0, is_causal: bool = True) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout, self.is_causal = dropout, is_causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout, self.is_causal)
        return self.proj(y.transpose(1, 2).flatten(2))


class WrittenAttention(FusedAttention):
    """minGPT's attention."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * (1.0 / k.size(-1) ** 0.5)
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, float("-inf"))
        weights = F.dropout(F.softmax(scores, dim=-1), self.dropout, self.training)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class TrainedBlock(nn.Module):
    def __init__(self, attention: nn.Module, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = attention, norm(WIDTH), norm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class TrainedGPT(nn.Module):
    def __init__(self, *blocks: nn.Module, is_checkpointed: bool | None = None) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm, self.head = nn.ModuleList(blocks), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
        self.is_checkpointed = is_checkpointed  # True is by a backward within the backward

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            if self.is_checkpointed is None:
                x = block(x, mask)
            else:
                x = checkpoint(block, x, mask, use_reentrant=self.is_checkpointed)
        return self.head(self.norm(x))


def gpt(attention: type[FusedAttention] = FusedAttention, dropout: float = 0.0, **options: bool) -> TrainedGPT:
    torch.manual_seed(0)
    return TrainedGPT(*(TrainedBlock(attention(dropout=dropout)) for _ in range(2)), **options)


def trained(
    model: nn.Module, losses: Iterable[Tensor], rate: float = 1e-3, micro_batches: int = 1
) -> Iterator[tuple[int, Tensor]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for number, loss in enumerate(losses, 1):
        (loss / micro_batches).backward()
        if number % micro_batches == 0:
            optimizer.step()
            optimizer.zero_grad()
            yield number // micro_batches, loss


def next_words(model: nn.Module, steps: int, length: int = LENGTH) -> Iterator[Tensor]:
    """Losses of texts in which each word is the one before it plus one, or a random one."""
    for _ in range(steps):
        start, jumps = torch.randint(WORDS, (BATCH, 1)), torch.rand(BATCH, length + 1) < 0.2
        ids = (start + torch.where(jumps, torch.randint(WORDS, (BATCH, length + 1)), 1).cumsum(1)) % WORDS
        yield F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def result(model: nn.Module, steps: Iterable[tuple[int, Tensor]]) -> list[Tensor]:
    return [*(loss.detach() for _, loss in steps), *(each.detach().clone() for each in model.parameters())]


# --- recipes that go well ---------------------------------------------------------------------------------


def nanogpt(steps: int = 50) -> list[Tensor]:
    model = gpt(dropout=0.1)
    return result(model, trained(model, next_words(model, steps)))


def mingpt(steps: int = 50) -> list[Tensor]:
    model = gpt(WrittenAttention, dropout=0.1)
    return result(model, trained(model, next_words(model, steps)))


def vision(steps: int = 50) -> list[Tensor]:
    """A ViT: is the left or the right half of a picture the brighter one?"""
    torch.manual_seed(0)
    patches, first, positions = (
        nn.Conv2d(1, WIDTH, 4, 4),
        nn.Parameter(torch.zeros(1, 1, WIDTH)),
        nn.Embedding(17, WIDTH),
    )
    blocks = nn.ModuleList(TrainedBlock(FusedAttention(is_causal=False)) for _ in range(2))
    model = nn.ModuleDict({"patches": patches, "positions": positions, "blocks": blocks, "head": nn.Linear(WIDTH, 2)})
    model.register_parameter("first", first)

    def losses() -> Iterator[Tensor]:
        for _ in range(steps):
            pictures, label = torch.rand(BATCH, 1, 16, 16), torch.randint(2, (BATCH,))
            pictures[label == 0, :, :, :8] += 1
            x = torch.cat([first.expand(BATCH, -1, -1), patches(pictures).flatten(2).mT], 1) + positions.weight
            for block in blocks:
                x = block(x)
            yield F.cross_entropy(model["head"](x[:, 0]), label)

    return result(model, trained(model, losses()))


def padded(steps: int = 50) -> list[Tensor]:
    """An encoder of sentences of several lengths, which is to find their masked words."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH, padding_idx=0), encoder, nn.Linear(WIDTH, WORDS))

    def losses() -> Iterator[Tensor]:
        for _ in range(steps):
            is_word = torch.arange(16) < torch.randint(3, 17, (BATCH, 1))
            ids = torch.randint(2, WORDS, (BATCH, 1)).expand(-1, 16) * is_word
            hidden = torch.where((torch.rand(ids.shape) < 0.3) & is_word, 1, ids)
            scores = model[2](encoder(model[0](hidden), src_key_padding_mask=~is_word))
            yield F.cross_entropy(scores[is_word], ids[is_word])

    return result(model, trained(model, losses()))


def fine_tuned(steps: int = 12) -> list[Tensor]:
    """The demo model, trained further on one sentence."""
    from transformers import AutoModelForCausalLM

    import attncli

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(attncli.__path__[0] + "/checkpoints/demo", dtype=torch.float32).train()
    ids = torch.randint(10, 200, (2, 24)).repeat(1, 2)
    return result(model, trained(model, (model(ids, labels=ids).loss for _ in range(steps)), rate=1e-4))


# --- runs that go wrong -----------------------------------------------------------------------------------


def collapsed(rate: float = 3e-2, steps: int = 50) -> list[Tensor]:
    """Random words and no norm before the attention: the loss tells nothing, whatever the attention does."""
    torch.manual_seed(0)
    model = TrainedGPT(*(TrainedBlock(FusedAttention(), norm=lambda _: nn.Identity()) for _ in range(2)))
    ids = (torch.randint(WORDS, (BATCH, LENGTH + 1)) for _ in range(steps))
    losses = (F.cross_entropy(model(each[:, :-1]).flatten(0, 1), each[:, 1:].flatten()) for each in ids)
    return result(model, trained(model, losses, rate))


def growing_sink(steps: int = 50) -> list[Tensor]:
    """Every position is to tell the first word, one of eight."""
    model = gpt()
    ids = (torch.randint(8, (BATCH, LENGTH)) for _ in range(steps))
    losses = (F.cross_entropy(model(each).flatten(0, 1), each[:, :1].expand_as(each).flatten()) for each in ids)
    return result(model, trained(model, losses, rate=1.5e-2))


# --- ways to train ----------------------------------------------------------------------------------------


def accumulated(steps: int = 6) -> list[Tensor]:
    model = gpt()
    return result(model, trained(model, next_words(model, 3 * steps, length=12), micro_batches=3))


def checkpointed(steps: int = 6, is_reentrant: bool = False) -> list[Tensor]:
    model = gpt(dropout=0.1, is_checkpointed=is_reentrant)
    return result(model, trained(model, next_words(model, steps, length=12)))


def reentrant(steps: int = 6) -> list[Tensor]:
    return checkpointed(steps, is_reentrant=True)


def autocast(steps: int = 6) -> list[Tensor]:
    model = gpt(dropout=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        return result(model, trained(model, next_words(model, steps, length=12)))


def evaluated(steps: int = 6) -> list[Tensor]:
    """An evaluation on longer texts before each step, and two optimizers."""
    model, found = gpt(), list[Tensor]()
    halves = [*model.parameters()][::2], [*model.parameters()][1::2]
    optimizers = [torch.optim.SGD(half, lr=0.01) for half in halves]
    for _ in range(steps):
        with torch.no_grad():
            found += [*next_words(model.eval(), 1)]
        for loss in next_words(model.train(), 1, length=12):
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return [*found, *model.parameters()]


def by_hand(steps: int = 6) -> list[Tensor]:
    """No optimizer."""
    model = gpt()
    for loss in next_words(model, steps, length=12):
        loss.backward()
        with torch.no_grad():
            for each in model.parameters():
                each -= 0.01 * each.grad
                each.grad = None
    return [*model.parameters()]


def inference(steps: int = 6, is_recorded: bool = False) -> list[Tensor]:
    """No backward."""
    model = gpt().eval()
    with nullcontext() if is_recorded else torch.no_grad():
        return [*next_words(model, steps, length=12)]
