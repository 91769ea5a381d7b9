"""Both sides of a comparison: a checkpoint that attn computes, a trace, or a capture of another engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.analysis.agreement.stages import Array, Rope, Steps
from attncli.engines.engine import NativeSource
from attncli.engines.numpy.forward import Layer, Model, RaggedBatch, TokenIds
from attncli.errors import NotExposedError
from attncli.files import opened_tensors
from attncli.masks.expressions import Mask, RuleMask
from attncli.trace.capture import is_capture, load_capture
from attncli.trace.store import load

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from attncli.engines.numpy.residual_stream import NativeForward
    from attncli.engines.source import Source
    from attncli.trace.capture import Capture
    from attncli.trace.tokens import Tokens
    from attncli.trace.trace import Trace

    Hidden = Float[np.ndarray, "T E"]
    Heads = Float[np.ndarray, "H T D"]

_TRACED = ("scale", "softcap", "bias", "sinks", "mask")  # what a trace is known to compute with
_KINDS = ("self", "encoder")  # of attention to the tokens of the text
MOST_TOKENS = 2048  # scores of all heads of a layer are compared whole
Parameters = Mapping[str, Any]  # fields of `Steps` that a side is known to compute with


@dataclass(frozen=True)
class Side:
    """One run of a sentence.

    Attributes:
        name: name for people.
        dtype: type of its computation.
        weight_bits: bits of its weights that hold digits.
        token_ids: the ids that it read; None where they are not known.
        positions: the positions that it gave them; None likewise.
        tokens: the tokens, where they have names.
    """

    name: str
    dtype: str
    weight_bits: int = 24
    token_ids: tuple[int, ...] | None = None
    positions: Int[np.ndarray, " T"] | None = None
    tokens: Tokens | None = None

    def layers(self) -> Iterator[tuple[int, dict[str, Array], Parameters]]:
        """Yield the index of each layer, the arrays that the run made in it, and what it is known to compute with."""
        raise NotImplementedError

    def steps(self, layer: int, x: Hidden | None) -> Steps | None:
        """Return the steps of a layer for hidden states; None where this side knows none of that layer."""
        return None

    @property
    def has_weights(self) -> bool:
        """Whether its layers can be computed from hidden states."""
        return False

    @property
    def indices(self) -> Sequence[int]:
        """The layers that can be computed."""
        return ()

    def embed(self, positions: Int[np.ndarray, " T"] | None = None) -> Hidden | None:
        """Return the hidden states that enter the first layer; None where this side has no weights."""
        return None

    def reading(self, ids: Sequence[int]) -> Side | None:
        """Return this side with other token ids; None where it cannot compute them."""
        return None

    def holding(self) -> AbstractContextManager[Any]:
        """Hold the weights of a layer, which are read again and again, until they are released."""
        return nullcontext()


@dataclass(frozen=True)
class ComputedSide(Side):
    """A checkpoint of the native engine, computed layer by layer: no two layers' arrays are in memory."""

    forward: NativeForward | None = None

    @classmethod
    def of(cls, name: str, forward: NativeForward, tokens: Tokens) -> ComputedSide:
        """Return the side of a native forward pass."""
        ids, layer = tuple(forward.sentence.ids), Layer(forward.model, 0, None)
        how = forward.model.spec.projections
        bits = forward.model.weights.bits(layer.name(how.joint or how.query) + ".weight")
        return cls(name, "float32", bits, ids, np.arange(len(ids)), tokens, forward)

    @property
    def has_weights(self) -> bool:
        """See `Side.has_weights`."""
        return True

    @property
    def indices(self) -> Sequence[int]:
        """See `Side.indices`."""
        return range(len(self._model.spec.layers))

    @property
    def _model(self) -> Model:
        assert self.forward is not None
        return self.forward.model

    @cached_property
    def _batch(self) -> RaggedBatch:
        assert self.forward is not None
        return RaggedBatch([self.forward.sentence])

    def layers(self) -> Iterator[tuple[int, dict[str, Array], Parameters]]:
        """See `Side.layers`."""
        x = self.embed()
        for index in range(len(self._model.spec.layers)):
            steps = self.steps(index, x)
            with self.holding():
                arrays = steps.run({})
                yield index, arrays, vars(steps)
            x = arrays["next"]

    def steps(self, layer: int, x: Hidden | None) -> Steps:
        """See `Side.steps`."""
        model, own = self._model, Layer(self._model, layer, self.forward and self.forward.mask)
        heads, how = model.spec.heads, model.spec.layers[layer]
        count, nothing = len(self.token_ids or ()), np.zeros((1, model.spec.width), np.float32)  # 0·W + b is a bias

        def by_head(*arrays: Float[np.ndarray, "T H D"]) -> tuple[Heads, ...]:
            return tuple(np.ascontiguousarray(array.transpose(1, 0, 2)) for array in arrays)

        def project(x: Hidden) -> Any:
            return by_head(*own.project(own.enter(x)))

        def norm_heads(q: Heads, k: Heads) -> Any:
            return by_head(*own.norm_heads(q.transpose(1, 0, 2), k.transpose(1, 0, 2)))

        def project_output(heads: Heads) -> Hidden:
            return own.project_output(np.ascontiguousarray(heads.transpose(1, 0, 2)))

        return Steps(
            positions=np.arange(count) if self.positions is None else self.positions,
            scale=how.scale,
            mask=_cells(RuleMask(own.mask or how.mask, count, count, heads.count), heads.count, count),
            key_heads=np.arange(heads.count) // (heads.count // heads.kv_heads),
            x=x,
            project=project,
            norm_heads=norm_heads if model.spec.projections.query_norm else None,
            rope=None if how.rope is None else Rope(how.rope),
            softcap=model.spec.softcap,
            project_output=project_output,
            finish=lambda x, attention: own.after_attention(x, attention.copy()),
            biases=lambda: by_head(*own.project(nothing)),
        )

    def embed(self, positions: Int[np.ndarray, " T"] | None = None) -> Hidden:
        """See `Side.embed`."""
        model, how = self._model, self._model.spec.embedding
        parts = model.embedded(self._batch)
        if positions is not None and how.positions is not None:
            first = 0 if how.padding_id is None else how.padding_id + 1
            rows = [int(position) + first for position in positions]
            if not 0 <= min(rows) <= max(rows) < how.positions.rows:
                return np.full_like(parts["position"], np.nan)
            name = how.positions.name + ".weight"
            parts["position"] = model.weights.rows(name, rows, how.positions.rows, model.spec.width)
        x = reduce(np.add, parts.values())
        return x if how.norm is None else model.normalize(how.norm, x)

    def reading(self, ids: Sequence[int]) -> ComputedSide:
        """See `Side.reading`."""
        assert self.forward is not None
        forward = replace(self.forward, sentence=TokenIds([*map(int, ids)]))
        return replace(self, forward=forward, token_ids=tuple(map(int, ids)), positions=np.arange(len(ids)))

    @contextmanager
    def holding(self) -> Iterator[None]:
        """See `Side.holding`."""
        with self._model.weights.held():
            yield
        self._model.weights.release()


@dataclass(frozen=True)
class TracedSide(Side):
    """A trace: queries and keys as the dot product takes them, and everything behind."""

    trace: Trace | None = None
    ropes: Mapping[int, Rope] | None = None  # the rotation of each layer, where a configuration names it

    @classmethod
    def of(cls, trace: Trace, name: str, ropes: Mapping[int, Rope] | None = None) -> TracedSide:
        """Return the side of a trace of self-attention."""
        return cls(name, trace.source.dtype, 24, tuple(trace.key_tokens.ids), None, trace.key_tokens, trace, ropes)

    def layers(self) -> Iterator[tuple[int, dict[str, Array], Parameters]]:
        """See `Side.layers`."""
        assert self.trace is not None
        for layer in self.trace.layers:
            if layer.kind in _KINDS:
                steps = replace(self, ropes=None).steps(layer.layer, None)
                assert steps is not None
                weights = replace(layer, heads=tuple(range(layer.num_heads))).weights
                arrays = steps.run({"weights": weights}) | {"q": layer.q, "k": layer.k, "weights": weights}
                del arrays["q_normed"], arrays["k_normed"]
                yield layer.layer, arrays, {name: getattr(steps, name) for name in _TRACED}

    def steps(self, layer: int, x: Hidden | None) -> Steps | None:
        """See `Side.steps`."""
        assert self.trace is not None
        own = next((one for one in self.trace.layers if (one.layer, one.kind in _KINDS) == (layer, True)), None)
        if own is None:
            return None
        if own.q is None or own.k is None or own.v is None or own.scale is None:
            missing = ", ".join(sorted(own.missing & {"q", "k", "v"})) or "scale"
            raise NotExposedError(f"layer {layer} of {self.name} has no {missing}; attn diff --first compares them")
        heads, queries, keys = own.cells
        rope, positions = (self.ropes or {}).get(layer), np.arange(keys)
        q, k = (array if rope is None else rope.rotate(array, -positions) for array in (own.q, own.k))
        return Steps(
            positions=positions[keys - queries :],
            scale=own.scale,
            mask=_cells(own.mask, heads, queries),
            key_heads=np.arange(heads) // (heads // own.num_groups),
            recorded={"q_normed": q, "k_normed": k, "v": own.v},
            rope=rope,
            softcap=own.softcap,
            bias=own.bias,
            sinks=own.sinks,
        )


@dataclass(frozen=True)
class CapturedSide(Side):
    """A capture: the arrays that an engine wrote."""

    capture: Capture | None = None

    @classmethod
    def of(cls, capture: Capture, name: str) -> CapturedSide:
        """Return the side of a capture."""
        ids = None if capture.token_ids is None else tuple(map(int, capture.token_ids))
        return cls(name, capture.dtype, 24, ids, capture.positions, None, capture)

    def layers(self) -> Iterator[tuple[int, dict[str, Array], Parameters]]:
        """See `Side.layers`."""
        assert self.capture is not None
        layers = self.capture.layers
        for index in sorted(layers):
            layer, after = layers[index], layers.get(index + 1)
            names = ("q_normed", "k_normed") if self.capture.rotated == "before" else ("q", "k")
            named = {"input": layer.input, names[0]: layer.q, names[1]: layer.k, "v": layer.v}
            named |= {"attention": layer.output, "next": after and after.input}
            known = {"scale": layer.scale, "mask": _planes(layer.mask)}
            yield (
                index,
                {name: array for name, array in named.items() if array is not None},
                {name: value for name, value in known.items() if value is not None},
            )

    def steps(self, layer: int, x: Hidden | None) -> Steps | None:
        """See `Side.steps`."""
        own = None if self.capture is None else self.capture.layers.get(layer)
        if own is None or own.q is None or own.k is None or own.v is None:
            return None
        count, (heads, queries, width) = own.k.shape[1], own.q.shape
        return Steps(
            positions=np.arange(count)[count - queries :],
            scale=width**-0.5 if own.scale is None else own.scale,
            mask=_planes(own.mask),
            key_heads=np.arange(heads) // (heads // len(own.k)),
            recorded={"q_normed": own.q, "k_normed": own.k, "v": own.v},
        )


def _cells(mask: Mask, heads: int, queries: int) -> Bool[np.ndarray, "#H T K"]:
    return mask.rows(list(range(heads)), np.arange(queries))


def _planes(mask: Bool[np.ndarray, "*H T K"] | None) -> Bool[np.ndarray, "#H T K"] | None:
    return mask if mask is None or mask.ndim == 3 else mask[None]


def side_of(source: Source, name: str, text: str, pair: str | None) -> Side:
    """Return the side of a model that reads a text: computed layer by layer where the native engine does, else traced.
    """
    if isinstance(source, NativeSource):
        tokens, forward = source.forward(text, pair)
        return ComputedSide.of(name, forward, tokens)
    return TracedSide.of(source.trace(text, pair), name)


def saved_side(path: str) -> Side:
    """Return the side of a saved trace, or of a capture."""
    with opened_tensors(path) as tensors:
        is_captured = is_capture(tensors)
    return CapturedSide.of(load_capture(path), path) if is_captured else TracedSide.of(load(path), path)
