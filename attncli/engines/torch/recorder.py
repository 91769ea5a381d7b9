"""One forward pass of a checkpoint: its attention calls, named by layer and kind, become the layers of Traces."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.modules import module as torch_module

from attncli.engines.torch.softmax_tracer import fitted_scale
from attncli.errors import NotExposedError, UsageError
from attncli.masks.expressions import Expression, RuleMask
from attncli.recording.call import AttentionCall, MaskArgument
from attncli.recording.to_trace import to_layer
from attncli.trace.layer import LayerTrace
from attncli.trace.selection import Indices

if TYPE_CHECKING:
    from attncli.engines.torch.attention_modules import AttentionModules

Sublayer = tuple[int, str]  # a layer's index and its kind of attention


@dataclass(frozen=True)
class RecordRequest:
    """What a user asked of a checkpoint."""

    layers: tuple[int, ...]  # indices of the layers to record
    kind: str | None  # the only kind of attention to record; None is every kind
    heads: Indices  # the heads that were asked for
    mask: Expression | None  # a mask in place of the model's own, in every layer
    audits: bool = False  # whether to keep the calls too, with the sums of their weights


@dataclass(frozen=True)
class Span:
    """Where one sentence of a batch stands in the padded tensors."""

    text: slice  # of the encoder's text, or of the only one
    target: slice  # of the decoder's

    def of(self, kind: str) -> tuple[slice, slice]:
        """Return the rows and the columns of one kind of attention."""
        rows = self.target if kind in ("decoder", "cross") else self.text
        return rows, self.text if kind == "cross" else rows


class PaddedBatch(NamedTuple):
    """Sentences side by side."""

    inputs: dict[str, Any]  # what the model reads, `[B, longest]` each, by the names of its forward pass
    spans: list[Span]  # where each sentence stands
    whole: Span  # all of it, padding included


class UnknownPositionsError(NotExposedError):
    """A layer has queries or keys that are no tokens."""


class StopForward(Exception):  # noqa: N818
    """The last layer that was asked for has been recorded: no error, but the only way out of a forward pass."""


@dataclass
class _ModuleRun:
    """A module whose forward runs, and the attention that it computed so far."""

    module: Any
    sublayer: Sublayer | None = None
    calls: list[AttentionCall] = field(default_factory=list)


@dataclass
class Recorder:
    """One forward pass."""

    request: RecordRequest  # what to record
    modules: AttentionModules  # which attention module is which layer
    kinds: Sequence[str]  # the kinds of attention that run
    batch: PaddedBatch  # what it runs on
    scope: Collection[int] | None = None  # the modules that are looked at, by their `id`; None is all
    order: dict[str, list[int]] = field(init=False)  # the layers of each kind that ran, in that order
    layers: list[dict[Sublayer, LayerTrace]] = field(init=False)  # what was recorded, of each sentence
    # what the layers were recorded of, if that is asked for
    calls: dict[Sublayer, AttentionCall] = field(default_factory=dict)
    # the attention modules that returned, by their `id`, in that order
    returned: list[tuple[int, Sublayer]] = field(default_factory=list)
    # what those gave that were recorded, `[B, Q, E]`
    outputs: dict[Sublayer, torch.Tensor] = field(default_factory=dict)
    _running: list[_ModuleRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with nothing recorded."""
        self.layers = [{} for _ in self.batch.spans]
        self.order = {kind: [] for kind in self.kinds}
        if not self.requested:
            there = " and ".join(f"{len(self.modules.layers[kind])} {kind}" for kind in self.kinds)
            raise UsageError(f"--layer {', '.join(map(str, self.request.layers))}: there are {there} layers here")

    @cached_property
    def requested(self) -> list[Sublayer]:
        """The attention to record, in the order in which the model runs it."""
        kinds = [kind for kind in self.kinds if self.request.kind in (None, kind)]
        layers = self.modules.layers
        own = [(index, kind) for kind in kinds for index in layers[kind] if index in self.request.layers]
        # The encoder comes first; a decoder's layer looks at itself, then at the encoder.
        return sorted(own, key=lambda sublayer: (sublayer[1] != "encoder", sublayer[0]))

    # --- while the model runs ---

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow which module runs; end the pass after the last one that is needed."""
        hooks = (
            torch_module.register_module_forward_pre_hook(lambda module, _: self._running.append(_ModuleRun(module))),
            torch_module.register_module_forward_hook(self._leave),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def wants(self, module: Any = None) -> bool:
        """Return whether attention that a module computes now is to be recorded; None is the innermost that may."""
        run = self._run_of(module)
        if run is None or (module is None and not self.modules.has(run.module)):
            return False
        if self.scope is not None and id(run.module) not in self.scope:
            return False
        if run.sublayer is None:
            kind = self.modules.kind(run.module)
            order = self.order.setdefault(kind, [])
            order.append(self.modules.layer(run.module, len(order)))
            run.sublayer = order[-1], kind
        return run.sublayer in self.requested

    def emit(self, module: Any, call: AttentionCall) -> None:
        """Take what a module computed whose attention is wanted; None is the innermost."""
        run = self._run_of(module)
        assert run is not None
        run.calls.append(call)

    def _run_of(self, module: Any) -> _ModuleRun | None:
        inner = reversed(self._running)
        if module is None:
            return next((run for run in inner if id(run.module) in self.modules.by_id), None)
        return next((run for run in inner if run.module is module), self._running[-1])

    def _leave(self, module: Any, _: Any, output: Any) -> None:
        run = self._running.pop()
        if run.sublayer is None:
            return
        self.returned.append((id(module), run.sublayer))
        if run.calls:
            self.outputs[run.sublayer] = output[0] if isinstance(output, list | tuple) else output
            rows, _ = self.batch.whole.of(run.sublayer[1])
            self._record(windows_of(run.calls, rows.stop) or joined(run.sublayer, run.calls), run.sublayer)
        if self.is_last(run.sublayer):
            raise StopForward

    def is_last(self, sublayer: Sublayer) -> bool:
        """Whether nothing that comes after this layer is needed, not even to know which layer this one is."""
        return self.modules.is_named and sublayer == self.requested[-1]

    # --- what was recorded ---

    def _record(self, call: AttentionCall, sublayer: Sublayer) -> None:
        """Keep one layer of every sentence."""
        rows, columns = (side.stop for side in self.batch.whole.of(sublayer[1]))
        _, count, queries, keys = call.shape
        if (queries, keys) != (rows, columns):
            raise UnknownPositionsError(
                f"layer {sublayer[0]} has {queries} queries and {keys} keys where {rows} and {columns} were "
                "expected; positions without a token are not supported there"
            )
        heads = self.request.heads.resolve(count, f"layer {sublayer[0]}")
        if self.request.audits:
            self.calls[sublayer] = call
        for number, layers in enumerate(self.layers):
            layer = to_layer(_of_sentence(call, number, *self.batch.spans[number].of(sublayer[1])), 0)
            mask = layer.mask
            if self.request.mask is not None:
                mask = RuleMask(self.request.mask, layer.num_queries, layer.num_keys, layer.num_heads)
            more: dict[str, Any] = {"scale": fitted_scale(layer)} if layer.scale is None else {}
            layers[sublayer] = replace(layer, layer=sublayer[0], kind=sublayer[1], heads=heads, mask=mask, **more)

    def check(self, architecture: str) -> None:
        """Raise NotExposedError unless every layer ran once, and in order, as far as the pass went."""
        for kind, order in self.order.items():
            expected = list(self.modules.layers.get(kind, ()))
            # Where names tell the layers, the pass may have ended early.
            is_right = order == (expected[: len(order)] if self.modules.is_named else expected)
            if not is_right or any(sublayer not in layers for layers in self.layers for sublayer in self.requested):
                counts = f"{len(expected)} {kind if kind != 'self' else ''} attention layers".replace("  ", " ")
                unnamed = "" if self.modules.by_id else "; no module has Attention in the name of its class"
                raise NotExposedError(
                    f"{architecture}: its configuration has {counts} and {len(order)} could be watched{unnamed}"
                )

    def traces(self) -> list[tuple[LayerTrace, ...]]:
        """Return the recorded layers of each sentence, in the order asked."""
        order = [(index, kind) for index in self.request.layers for kind in self.kinds]
        return [tuple(layers[sublayer] for sublayer in order if sublayer in layers) for layers in self.layers]


def windows_of(calls: Sequence[AttentionCall], count: int) -> AttentionCall | None:
    """Return the calls of one module for windows that follow each other as one over so many positions.

    No position sees another window. None is what are no such calls.
    """
    first, sizes = calls[0], [call.shape[2] for call in calls]
    parts: dict[str, list[Any]] = {name: [getattr(call, name) for call in calls] for name in ("q", "k", "v", "output")}
    is_whole = all(each is not None for own in parts.values() for each in own)
    if len(calls) == 1 or sum(sizes) != count or not is_whole or any(call.masks for call in calls):
        return None
    if sizes != [call.shape[3] for call in calls]:
        return None
    window = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    allowed = (window[:, None] == window)[None, None]
    tensors: dict[str, Any] = {name: torch.cat(own, dim=2) for name, own in parts.items()}
    masks = (MaskArgument("windows", allowed, "attend"),)
    return replace(first, shape=(*first.shape[:2], count, count), masks=masks, weight_sums=None, **tensors)


def joined(sublayer: Sublayer, calls: Sequence[AttentionCall]) -> AttentionCall:
    """Return the calls of one module as one; those with the same scores have their values side by side.

    DiffLlama weighs two values with one map, and so does LiLT, the text's and the layout's.

    Raises:
        NotExposedError: they have different scores, or one cannot be read.
    """
    # The widest queries first: LiLT's text, before its layout.
    calls = sorted(calls, key=lambda call: -1 if call.q is None else call.q.shape[-1], reverse=True)
    first, *others = calls
    if not all(_has_same_scores(first, other) for other in others):
        raise NotExposedError(f"layer {sublayer[0]} makes its weights of {len(calls)} softmaxes; attn reads one")
    if first.unsupported is not None:
        raise NotExposedError(f"layer {sublayer[0]} {first.unsupported}")
    if not others:
        return first
    outputs = [call.output for call in calls if call.output is not None]
    return replace(
        first,
        v=torch.cat([call.v for call in calls if call.v is not None], dim=-1),
        output=torch.cat(outputs, dim=-1) if len(outputs) == len(calls) else None,
    )


def _has_same_scores(one: AttentionCall, other: AttentionCall) -> bool:
    if one.scores is None or other.scores is None:
        same = one.q is other.q and one.k is other.k and one.scale == other.scale
        return same and [id(mask.values) for mask in one.masks] == [id(mask.values) for mask in other.masks]
    same = one.scores.shape == other.scores.shape
    return same and torch.allclose(one.scores, other.scores, rtol=0, atol=0, equal_nan=True)


def _of_sentence(call: AttentionCall, number: int, rows: slice, columns: slice) -> AttentionCall:
    """Return one sentence's part of the attention of a padded batch."""
    sides = {"Q": rows, "K": columns}

    def part(tensor: torch.Tensor, axes: str) -> torch.Tensor:
        """Return a batch row, and of the axes behind the heads those positions; an axis of one stands for all."""
        own = tensor[number : number + 1] if len(tensor) > 1 else tensor
        index = [sides[name] if own.shape[axis] > 1 else slice(None) for axis, name in enumerate(axes, start=2)]
        return own[:, :, *index]

    queries, keys = (len(range(size)[side]) for size, side in zip(call.shape[2:], (rows, columns), strict=True))
    tensors: dict[str, Any] = {
        name: part(tensor, axes) for name, axes in _AXES.items() if (tensor := getattr(call, name)) is not None
    }
    masks = tuple(mask._replace(values=part(mask.values, "QK")) for mask in call.masks)
    return replace(call, shape=(1, call.shape[1], queries, keys), masks=masks, **tensors)


# The axes of a call's tensors behind the batch and the heads, as far as they are positions.
_AXES = {
    "q": "Q", "k": "K", "v": "K", "scores": "QK", "weights": "QK", "weight_sums": "Q", "sinks": "Q", "output": "Q",
}  # fmt: skip
