"""What one forward pass of a checkpoint is asked for, and what it has given so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from attncli.engines.torch.architectures import architecture_of
from attncli.engines.torch.attention_modules import Places
from attncli.engines.torch.to_cpu import fetched, is_here
from attncli.errors import NotExposedError, UsageError
from attncli.masks.expressions import Expression
from attncli.trace.layer import LayerTrace, Proof, stages_of
from attncli.trace.selection import Indices

Sublayer = tuple[int, str]  # a layer's index and its kind of attention
Captured = Mapping[str, Any]  # the tensors, or None, what one layer's attention is made of, by name


@dataclass(frozen=True)
class Request:
    """What a user asked of a checkpoint.

    Attributes:
        layers: indices of the layers to record.
        kind: the only kind of attention to record; None is every kind.
        heads: the heads that were asked for.
        mask: a mask in place of the model's own, in every layer.
        audits: whether to keep what each layer's attention function was handed, and what it made of it.
        is_blank: whether the model has no weights, so that its masks alone are worth recording.
    """

    layers: tuple[int, ...]
    kind: str | None
    heads: Indices
    mask: Expression | None
    audits: bool = False
    is_blank: bool = False


@dataclass(frozen=True)
class Span:
    """Where one sentence of a batch stands in the padded tensors."""

    text: slice  # of the encoder's text, or of the only one
    target: slice  # of the decoder's
    past: int = 0  # keys before the first query, in a cache

    def of(self, kind: str) -> tuple[slice, slice]:
        """Return the rows and the columns of one kind of attention."""
        rows = self.target if kind in ("decoder", "cross") else self.text
        return rows, self.text if kind == "cross" else slice(rows.start, rows.stop + self.past)


class Batch(NamedTuple):
    """Sentences side by side.

    Attributes:
        inputs: what the model reads, `[B, longest]` each, by the names of its forward pass.
        spans: where each sentence stands.
        whole: all of it, padding included.
    """

    inputs: dict[str, Any]
    spans: list[Span]
    whole: Span


@dataclass(frozen=True)
class Arrival:
    """What one layer's attention function was handed, and what the model's own code made of it.

    Attributes:
        mask: the tensor, `[B, 1 or H, Q or 1, K]`; None if no mask came.
        sums: of the weights of every row, `[B, H, Q]`.
        dtype: of the queries.
    """

    mask: Any
    sums: Any
    dtype: Any


class Finished(Exception):  # noqa: N818
    """The last layer that was asked for has been recorded: no error, but the only way out of a forward pass."""


@dataclass
class Recorder:
    """One forward pass.

    Attributes:
        request: what to record.
        places: which attention module is which layer.
        kinds: the kinds of attention that run.
        batch: what it runs on.
        config: the model's configuration.
        layers: what was recorded, of each sentence.
        seen: the layers of each kind that have called, in that order.
        arrivals: what each layer was handed, if that is asked for.
        calling: the modules, by their `id`, that are in the middle of their attention.
        waiting: what lies on the device still, with what will record it.
    """

    request: Request
    places: Places
    kinds: Sequence[str]
    batch: Batch
    config: Any
    arrivals: dict[Sublayer, Arrival] = field(default_factory=dict)
    calling: dict[int, Sublayer] = field(default_factory=dict)
    waiting: list[tuple[Captured, Callable[[Captured], None]]] = field(default_factory=list)
    layers: list[dict[Sublayer, LayerTrace]] = field(init=False)
    seen: dict[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nothing seen."""
        self.layers = [{} for _ in self.batch.spans]
        self.seen = {kind: [] for kind in self.kinds}
        if not self.wanted:
            there = " and ".join(f"{len(self.places.layers[kind])} {kind}" for kind in self.kinds)
            raise UsageError(f"--layer {', '.join(map(str, self.request.layers))}: there are {there} layers here")

    @cached_property
    def wanted(self) -> list[Sublayer]:
        """The attention to record, in the order in which the model runs it."""
        kinds = [kind for kind in self.kinds if self.request.kind in (None, kind)]
        found = [(index, kind) for kind in kinds for index in self.places.layers[kind] if index in self.request.layers]
        # The encoder comes first; a decoder's layer looks at itself, then at the encoder.
        return sorted(found, key=lambda place: (place[1] != "encoder", place[0]))

    def arrive(self, module: Any) -> Sublayer:
        """Note that an attention module runs now, and return which layer of which kind it is."""
        kind = self.places.kind(module)
        seen = self.seen.setdefault(kind, [])
        seen.append(self.places.layer(module, len(seen)))
        self.calling[id(module)] = seen[-1], kind
        return seen[-1], kind

    def own_keys(self, place: Sublayer) -> int | None:
        """Return how many keys a layer has where they are not the tokens of the padded batch."""
        tokens = self.batch.whole.of(place[1])[1].stop
        positions = architecture_of(self.config).key_positions(self.config, place[0], tokens)
        return None if positions is None else len(positions)

    def cells(self, number: int, place: Sublayer) -> tuple[slice, slice]:
        """Return which rows and columns of a layer are one sentence's; keys of its own are all of them."""
        rows, columns = self.batch.spans[number].of(place[1])
        keys = self.own_keys(place)
        return rows, columns if keys is None else slice(keys)

    def size(self, place: Sublayer) -> tuple[int, int]:
        """Return how many queries and keys a layer should have."""
        rows, columns = (side.stop for side in self.batch.whole.of(place[1]))
        keys = self.own_keys(place)
        return rows, columns if keys is None else keys

    def heads_of(self, place: Sublayer, heads: int, queries: int, keys: int) -> tuple[int, ...]:
        """Return the heads asked for of a layer with these sizes.

        Raises:
            NotExposedError: it has not one query and one key for every position that is known of: for the tokens of the
                padded batch, where nothing else is.
            UsageError: it has no such head.
        """
        rows, columns = self.size(place)
        # A cache of a sliding window has dropped what no query will see.
        is_cut = self.batch.whole.past > 0 and keys < columns
        if queries != rows or (keys != columns and not is_cut):
            raise NotExposedError(
                f"layer {place[0]} has {queries} queries and {keys} keys where {rows} and {columns} were expected; "
                "positions that are no tokens are not supported in it"
            )
        return self.request.heads.resolve(heads, f"layer {place[0]}")

    def capture(self, tensors: Captured, record: Callable[[Captured], None]) -> None:
        """Record a layer: from the CPU now, before the model goes on; from a device with the others, by `fetch`."""
        if all(is_here(each) for each in tensors.values() if each is not None):
            record(tensors)
        else:
            self.waiting.append((tensors, record))

    def fetch(self) -> None:
        """Bring what was captured on a device to the CPU, in one go, and record it."""
        arrived = iter(fetched(each for tensors, _ in self.waiting for each in tensors.values()))
        for tensors, record in self.waiting:
            record(dict(zip(tensors, arrived, strict=False)))
        self.waiting.clear()

    def record(self, number: int, layer: LayerTrace, output: np.ndarray[Any, Any] | None, against: str) -> None:
        """Keep one sentence's layer, proven by an attention output; of a model without weights its mask alone.

        Args:
            number: of the sentence.
            layer: what was recorded.
            output: what weights·V should be, `[Q, H, Dv]`; None if that is not known.
            against: what that output is.
        """
        if self.request.is_blank:
            layer = _with_mask_alone(layer)
        elif output is not None:
            layer = replace(layer, proof=_proven(layer, output, against))
        self.layers[number][layer.layer, layer.kind] = layer

    def is_last(self, place: Sublayer) -> bool:
        """Whether nothing that comes after this layer is needed, not even to know which layer this one is."""
        return self.places.is_named and place == self.wanted[-1]

    def check(self, architecture: str) -> None:
        """Raise NotExposedError unless every layer ran once, and in order, as far as the pass went."""
        for kind, seen in self.seen.items():
            expected = list(self.places.layers.get(kind, ()))
            # Where names tell the layers, the pass may have ended early.
            is_right = seen == (expected[: len(seen)] if self.places.is_named else expected)
            if not is_right or any(place not in layers for layers in self.layers for place in self.wanted):
                counts = f"{len(expected)} {kind if kind != 'self' else ''} attention layers".replace("  ", " ")
                unnamed = "" if self.places.modules else "; no module has Attention in the name of its class"
                raise NotExposedError(
                    f"{architecture}: its configuration has {counts} and {len(seen)} could be watched{unnamed}"
                )

    def traces(self) -> list[tuple[LayerTrace, ...]]:
        """Return the recorded layers of each sentence, in the order asked."""
        order = [(index, kind) for index in self.request.layers for kind in self.kinds]
        return [tuple(layers[place] for place in order if place in layers) for layers in self.layers]


def _with_mask_alone(layer: LayerTrace) -> LayerTrace:
    """Return a layer whose numbers, which mean nothing in a model without weights, are zeros that take no memory."""
    zeros: dict[str, Any] = {
        name: np.broadcast_to(np.float32(0), array.shape)
        for name in ("q", "k", "v", "bias", "scores", "weights")
        if (array := getattr(layer, name)) is not None
    }
    return replace(layer, **zeros)


def _proven(layer: LayerTrace, output: np.ndarray[Any, Any], against: str) -> Proof:
    """Compare recomputed weights·V with an attention output, `[Q, H, Dv]`."""
    error = 0.0
    for block in stages_of(layer, layer.heads, np.arange(layer.num_queries)):
        own = output[block.queries][:, list(block.heads)].swapaxes(0, 1)  # [H, Q, Dv]
        error = float(np.maximum(error, np.abs(block.output - own).max()))
    return Proof(error, against, magnitude=max(float(np.abs(layer.v).max()), 1.0) if layer.v is not None else 1.0)
