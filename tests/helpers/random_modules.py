"""Random small modules that claim a mask, right and wrong by construction, and by brute force whether they keep it."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

WIDTH, HEADS, WORDS = 16, 2, 31
MOVED, ROUNDED = 1e-4, 2e-6  # of the largest number: an output that moves, and one that rounding moves
TRIES = 4  # changes of each position
EYE = torch.eye(32, dtype=torch.bool)


def cells(claim: str, length: int) -> Tensor:
    i, j = torch.arange(length)[:, None], torch.arange(length)
    numbers = [int(number) for number in re.findall(r"\d+", claim)]
    seen = (j <= i) | ("causal" not in claim and "window" not in claim)
    if "window" in claim:
        return seen & (i - j < numbers[0])
    if "band" in claim:
        return (j >= i - numbers[0]) & (j <= i + numbers[1])
    if "prefix" in claim:
        return seen | (j < numbers[0])
    if numbers:
        sizes = numbers if "docs" in claim else [numbers[0]] * length
        document = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))[:length]
        return seen & (document[:, None] == document)
    return seen


# --- attention ---
def bias(allowed: Tensor, fill: float = -math.inf) -> Tensor:
    return torch.zeros(allowed.shape).masked_fill(~allowed, fill)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5


def divided(weights: Tensor, v: Tensor) -> Tensor:
    return weights @ v / weights.sum(-1, keepdim=True)


SDPA = F.scaled_dot_product_attention
SEEN: dict[str, Callable[..., Tensor]] = {
    "sdpa": lambda q, k, v, allowed: SDPA(q, k, v, attn_mask=allowed),
    "sdpa with a bias": lambda q, k, v, allowed: SDPA(q, k, v, attn_mask=bias(allowed)),
    "softmax": lambda q, k, v, allowed: scores(q, k).masked_fill(~allowed, -math.inf).softmax(-1) @ v,
    "added": lambda q, k, v, allowed: F.softmax(scores(q, k) + bias(allowed, torch.finfo(q.dtype).min), -1) @ v,
    "mha": SDPA,  # of nn.MultiheadAttention
}
UNSEEN: dict[str, Callable[..., Tensor]] = {
    "exp": lambda q, k, v, allowed: divided(scores(q, k).exp() * allowed, v),
    "sigmoid": lambda q, k, v, allowed: (scores(q, k).sigmoid() * allowed) @ v / 8,
    "linear": lambda q, k, v, allowed: divided((F.elu(q) + 1) @ (F.elu(k) + 1).transpose(2, 3) * allowed, v),
}


class DrawnAttention(nn.Module):
    def __init__(self, kind: str):
        super().__init__()
        self.kind, self.norm, self.qkv = kind, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        if kind == "mha":
            self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        h = self.norm(x)
        if self.kind == "mha":
            hidden = ~allowed.expand(len(x), HEADS, -1, -1).flatten(0, 1)
            return x + self.attention(h, h, h, attn_mask=hidden, need_weights=False)[0]
        q, k, v = self.qkv(h).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return x + (SEEN | UNSEEN)[self.kind](q, k, v, allowed).transpose(1, 2).flatten(2)


def with_hole(allowed: Tensor, at: random.Random, rows: bool = False, heads: bool = False) -> Tensor:
    hidden = (~allowed).any(0).any(0).nonzero().tolist()
    allowed = allowed.expand(-1, HEADS, -1, -1).clone()
    if hidden:
        row = at.randrange(len(allowed)) if rows else slice(None)
        allowed[(row, at.randrange(HEADS) if heads else slice(None), *at.choice(hidden))] = True
    return allowed


MASKS: dict[str, Callable[[Tensor, random.Random], Tensor]] = {
    "next key": lambda allowed, at: allowed | allowed.roll(1, -1).tril(1),
    "one key more": lambda allowed, at: allowed | allowed.roll(-1, -1).tril(),
    "all keys": lambda allowed, at: torch.ones_like(allowed),
    "inverted": lambda allowed, at: ~allowed,
    "hole": with_hole,
    "hole in a row": lambda allowed, at: with_hole(allowed, at, rows=True),
    "hole in a head": lambda allowed, at: with_hole(allowed, at, heads=True),
    "one key less": lambda allowed, at: allowed & allowed.roll(1, -1),  # right
}
PADS: dict[str, Callable[[Tensor], Tensor]] = {
    "padding shown": torch.ones_like,
    "padding inverted": torch.logical_not,
    "padding of the first row": lambda tokens: tokens[:1].expand(len(tokens), -1),
    "padding one short": lambda tokens: tokens | tokens.roll(1, 1),
}


# --- other parts: a module, and a function of it, of vectors and of ids ---
def channels_first(f: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor, Tensor], Tensor]:
    return lambda m, x, *_: f(m, x.transpose(1, 2)).transpose(1, 2)


def shift(x: Tensor) -> Tensor:
    return F.pad(x[:, :-1], (0, 0) * (x.dim() - 2) + (1, 0))


def routed(m: nn.Module, x: Tensor, choice: Callable[[Tensor], Tensor]) -> Tensor:
    gates, experts = m(x).split([4, 4 * WIDTH], 2)
    gates = gates.softmax(2)
    return (experts.unflatten(2, (4, WIDTH)) * (gates * choice(gates))[..., None]).sum(2)


def with_room(gates: Tensor) -> Tensor:
    chosen = F.one_hot(gates.argmax(2).flatten(), 4)
    return (chosen * (chosen.cumsum(0) <= max(1, len(chosen) // 6))).view(gates.shape)


def put(x: Tensor, target: Any, source: Any) -> Tensor:
    found = torch.zeros_like(x)
    found[target] = x[source]
    return found


Part = tuple[Callable[[], nn.Module], Callable[[Any, Tensor, Tensor], Tensor]]
line, table, gru = (lambda: nn.Linear(WIDTH, WIDTH)), (lambda: nn.Embedding(97, WIDTH)), (lambda: nn.GRU(WIDTH, WIDTH))
experts, conv = (lambda: nn.Linear(WIDTH, 4 + 4 * WIDTH)), (lambda: nn.Conv1d(WIDTH, WIDTH, 3))
everywhere = slice(None)
POINTWISE: dict[str, Part] = {
    "layer norm": (lambda: nn.LayerNorm(WIDTH), lambda m, x, ids: m(x)),
    "rms norm": (nn.Identity, lambda m, x, ids: x * x.square().mean(2, keepdim=True).rsqrt()),
    "top 2 of 4 experts": (experts, lambda m, x, *_: routed(m, x, lambda g: g >= g.topk(2).values[..., -1:])),
    "own id": (table, lambda m, x, ids: m(ids)),
}
BACKWARD: dict[str, Part] = {
    "convolution of the past": (conv, channels_first(lambda m, x: m(F.pad(x, (2, 0))))),
    "max pool of the past": (nn.Identity, channels_first(lambda m, x: F.max_pool1d(F.pad(x, (2, 0), value=-9), 3, 1))),
    "token shift": (line, lambda m, x, ids: m(shift(x))),
    "cumsum": (line, lambda m, x, ids: m(x).cumsum(1) / 8),
    "max until now": (line, lambda m, x, ids: m(x).cummax(1).values),
    "gru": (gru, lambda m, x, ids: m(x.transpose(0, 1))[0].transpose(0, 1)),
    "bigram": (table, lambda m, x, ids: m((ids * 37 + shift(ids)) % 97)),
    "ids until now": (table, lambda m, x, ids: m((ids > WORDS // 2).cumsum(1))),
}
FORWARD: dict[str, Part] = {
    "convolution": (conv, channels_first(lambda m, x: m(F.pad(x, (1, 1))))),
    "norm over time": (nn.Identity, channels_first(lambda m, x: F.layer_norm(x, x.shape[2:]))),
    "mean": (line, lambda m, x, ids: m(x.mean(1, keepdim=True)).expand_as(x)),
    "scan from the end": (line, lambda m, x, ids: m(x).flip(1).cumsum(1).flip(1) / 8),
    "flip": (line, lambda m, x, ids: m(x.flip(1))),
    "roll": (line, lambda m, x, ids: m(x.roll(1, 1))),
    "gru from the end": (gru, lambda m, x, ids: m(x.transpose(0, 1).flip(0))[0].flip(0).transpose(0, 1)),
    "experts choose": (experts, lambda m, x, *_: routed(m, x, lambda g: g >= g.topk(2, 1).values[:, -1:])),
    "attention pool": (line, lambda m, x, *_: (m(x)[..., :1].softmax(1) * x).sum(1, keepdim=True).expand_as(x)),
    "fourier": (nn.Identity, lambda m, x, ids: torch.fft.fft(x, dim=1).real / x.shape[1]),
    "next id": (table, lambda m, x, ids: m(ids.roll(-1, 1))),
    "next id by one_hot": (nn.Identity, lambda m, x, ids: F.one_hot(ids.roll(-1, 1), 31).float()[..., :WIDTH]),
    "bigram that wraps": (table, lambda m, x, ids: m((ids * 37 + ids.roll(1, 1)) % 97)),
    "count of ids": (table, lambda m, x, ids: m((ids > WORDS // 2).sum(1, keepdim=True)).expand_as(x)),
    "first reads second": (line, lambda m, x, *_: m(put(x, (everywhere, 0), (everywhere, 1)))),
    "one reads another": (line, lambda m, x, *_: m(put(x, (everywhere, 1), (everywhere, -2)))),
    "one id reads another": (table, lambda m, x, ids: put(m(ids), (everywhere, 0), (everywhere, -1))),
}
BETWEEN_ROWS: dict[str, Part] = {
    "batch norm": (lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False), channels_first(lambda m, x: m(x))),
    "room": (experts, lambda m, x, ids: routed(m, x, with_room)),
    "mean of rows": (line, lambda m, x, ids: m(x).mean(0, keepdim=True).expand_as(x)),
    "last row in the first": (line, lambda m, x, ids: m(put(x, 0, -1))),
    "cell of another row": (line, lambda m, x, ids: m(put(x, (0, x.shape[1] // 2), (-1, 1)))),
    "ids of another row": (table, lambda m, x, ids: m(ids.roll(1, 0))),
}
PARTS = POINTWISE | BACKWARD | FORWARD | BETWEEN_ROWS
OF_IDS = {name for name in PARTS if re.search(r"\bids?\b|bigram", name)}


# --- modules ---
class RandomModule(nn.Module):
    """A module as a seed composes it: its claim, its inputs by name and its tokens, which are no padding."""

    def __init__(self, seed: int):
        super().__init__()
        self.rng = rng = random.Random(seed)
        torch.manual_seed(seed)
        self.length, self.rows = rng.choice([5, 6, 7, 8, 9, 10, 12, 16]), rng.choice([1, 2, 2, 3])
        self.claim = self._claim()
        self.is_padded, self.is_transitive = "pad" in self.claim, not re.search("window|band", self.claim)
        self.rows = max(self.rows, 1 + self.is_padded)
        self.input_kind = "ids" if self.is_padded else rng.choice(["ids", "ids", "vectors", "features"])
        self.output = rng.choice(["tensor", "tensor", "tuple", "dict with a loss", "flat"])
        lengths = torch.tensor([self.length, *(rng.randint(2, self.length - 1) for _ in range(self.rows - 1))])
        self.tokens = (torch.arange(self.length) < lengths[:, None]) | (not self.is_padded)
        self.tokens = self.tokens.flip(1) if rng.random() < 0.3 else self.tokens
        self.padding_idx = 0 if self.is_padded and rng.random() < 0.5 else None
        layers = rng.randint(1, 3 if self.is_transitive else 2)
        self.kinds = [rng.choice([*SEEN, *(UNSEEN if self.is_transitive else ())]) for _ in range(layers)]
        if rng.random() < 0.2:  # attention that is not seen, or none
            self.kinds = [rng.choice([*UNSEEN])] * (rng.random() < 0.7)
        self.mask = self.pad = ""
        self.mask_layer = rng.choice([None, rng.randrange(layers)])
        self.plan = self._parts()
        self.word = nn.Embedding(WORDS, WIDTH, padding_idx=self.padding_idx)
        self.places, self.layers = nn.Embedding(32, WIDTH), nn.ModuleList(map(DrawnAttention, self.kinds))
        self.parts = nn.ModuleList(PARTS[name][0]() for name, _ in self.plan)
        self.head = nn.Linear(WIDTH, WORDS)
        self.eval()
        ids = torch.randint(1, WORDS, (self.rows, self.length)) * self.tokens
        self.inputs = {"ids": torch.randn(*ids.shape, WIDTH) if self.input_kind == "vectors" else ids}
        if self.input_kind == "features":
            self.inputs["features"] = torch.randn(*ids.shape, WIDTH)
        if self.is_padded and self.padding_idx is None:
            self.inputs["attention_mask"] = self.tokens.long()

    def _claim(self) -> str:
        rng, cut = self.rng, self.length // 2
        kinds = ["window({})", "band({},1)", "causal | prefix({})", "docs({},{})", "causal & docs({},{})", "chunk({})"]
        claim = rng.choice(["causal"] * 6 + ["causal & pad", "pad", "full"] + kinds)
        first = rng.randint(2, 3 if "window" in claim or "band" in claim else cut)
        return claim.format(first, self.length - first)

    def _parts(self) -> list[tuple[str, int]]:
        rng = self.rng
        right, wrong = {*POINTWISE}, {*FORWARD} | ({*BETWEEN_ROWS} if self.rows > 1 else set())
        if self.claim in ("causal", "full") or "prefix" in self.claim:
            right |= {*BACKWARD}
        if self.input_kind == "vectors" or self.padding_idx is not None:
            right, wrong = right - OF_IDS, wrong - OF_IDS
        if self.is_padded:
            wrong -= {"count of ids"}
        chosen = rng.choices(sorted(right), k=rng.choice([0, 1, 1, 2]))
        fate = rng.random()
        if fate < 0.35:
            chosen.append(rng.choice(sorted(wrong)))
        elif fate < 0.65 and self.kinds:
            if self.is_padded and rng.random() < 0.6:
                self.pad = rng.choice([*PADS])
            else:
                self.mask = rng.choice([*MASKS, "hole", "hole in a row"])
        return [(name, rng.randint(0, len(self.kinds))) for name in chosen]

    def __str__(self) -> str:
        parts = ", ".join([*self.kinds, self.mask, self.pad, *(f"{name} after {layer}" for name, layer in self.plan)])
        return f"{self.claim} [{self.rows}, {self.length}]: {parts}, {self.input_kind}, {self.output}"

    def allowed(self, layer: int, tokens: Tensor) -> Tensor:
        """Return the mask of a layer, `[B, 1 or H, T, T]`; each query sees its own key at least."""
        found, length = cells(self.claim, tokens.shape[1])[None, None], tokens.shape[1]
        if self.mask and self.mask_layer in (None, layer):
            rows = found.expand(len(tokens), -1, -1, -1) if "row" in self.mask else found
            found = MASKS[self.mask](rows, random.Random(self.length))
        if self.is_padded:
            found = found & (PADS[self.pad](tokens) if self.pad else tokens)[:, None, None]
        return found | EYE[:length, :length]

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, features: Tensor | None = None) -> Any:
        tokens = torch.ones(ids.shape[:2], dtype=torch.bool)
        if self.is_padded:
            tokens = ids != 0 if attention_mask is None else attention_mask.bool()
        x = ids if ids.is_floating_point() else self.word(ids)
        x = x + self.places((tokens.long().cumsum(1) - 1).clamp(min=0))
        x = x if features is None else x + features
        for layer in range(len(self.kinds) + 1):
            x = self.layers[layer - 1](x, self.allowed(layer - 1, tokens)) if layer else x
            for (name, after), part in zip(self.plan, self.parts, strict=True):
                x = x + PARTS[name][1](part, x, ids) if after == layer else x
        logits = self.head(x)
        return {"tensor": logits, "tuple": (x, logits), "flat": logits.flatten(0, 1),
                "dict with a loss": {"loss": logits.square().mean(), "logits": logits}}[self.output]  # fmt: skip


def seeds_of_all(first: int) -> list[int]:
    """Return the first seeds, and of those after them each whose module has a mask, a padding or a part that is new."""
    seeds, missing = list[int](), {*MASKS, *PADS, *PARTS}
    for seed in itertools.count():
        module = RandomModule(seed)
        new = missing & {module.mask, module.pad, *(name for name, _ in module.plan)}
        if seed < first or new:
            seeds.append(seed)
        elif not missing:
            break
        missing -= new
    return seeds


# --- brute force ---
def truth(module: RandomModule) -> bool | None:
    """Return whether no position moves an output that the claim forbids; None where it moves seldom or barely."""
    tokens, most = module.tokens, 0.0
    with torch.no_grad():
        before = outputs(module, module.inputs)
        for row, at in torch.ones_like(tokens).nonzero().tolist():
            forbidden = tokens.clone()
            forbidden[row] &= ~reach(module, tokens[row])[:, at]
            far = [_distance(before, outputs(module, inputs)) * forbidden for inputs in _changes(module, row, at)]
            if (2 * sum(one > MOVED for one in far) >= TRIES).any():
                return False
            most = max(most, *(float(one.max()) for one in far))
        for row, own in enumerate(tokens):  # by itself, without its padding
            alone = outputs(module, {name: value[row : row + 1, own] for name, value in module.inputs.items()})
            if module.is_padded and _distance([one[row : row + 1, own] for one in before], alone).max() > 1e-2:
                return False
    return None if most > ROUNDED else True


def outputs(module: RandomModule, inputs: dict[str, Tensor]) -> list[Tensor]:
    found = module(**inputs)
    found = found.values() if isinstance(found, dict) else found if isinstance(found, tuple) else [found]
    return [one.reshape(*inputs["ids"].shape[:2], -1) for one in found if one.dim()]


def reach(module: RandomModule, tokens: Tensor) -> Tensor:
    direct = cells(module.claim, module.length) & tokens | EYE[: module.length, : module.length]
    found = direct.float()
    for _ in range(module.length if module.is_transitive else max(1, len(module.kinds)) - 1):
        found = (direct.float() @ found > 0).float()
    return found > 0


def _changes(module: RandomModule, row: int, at: int) -> Iterator[dict[str, Tensor]]:
    ids, vectors = random.Random(row * 100 + at), module.word.weight
    before = vectors[0].clone()
    for _ in range(TRIES):
        changed = module.inputs["ids"].clone()
        if changed.is_floating_point():
            changed[row, at] += 3 * torch.randn(WIDTH)
        elif module.padding_idx is None or module.tokens[row, at]:
            changed[row, at] = ids.choice([one for one in range(1, WORDS) if one != changed[row, at]])
        else:
            vectors[0] = before + 4 * torch.randn(WIDTH)
        yield module.inputs | {"ids": changed}
    vectors[0] = before


def _distance(before: list[Tensor], after: list[Tensor]) -> Tensor:
    far = [(a - b).abs().nan_to_num(nan=math.inf).amax(2) / a.abs().max() for a, b in zip(before, after, strict=True)]
    return torch.stack(far).amax(0)
