"""Forward passes of an unmodified checkpoint, recorded as `attn run` records a program: its calls become layers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn.modules import module as torch_module

from attncli.attention import FORBIDDEN_BELOW
from attncli.engines.torch.architectures import architecture_of
from attncli.engines.torch.attention_backend import translate_model_errors
from attncli.engines.torch.attention_modules import find_attention_modules
from attncli.errors import NotExposedError, UsageError
from attncli.masks.expressions import Expression, RuleMask
from attncli.recording.call import AttentionCall, MaskArgument
from attncli.recording.notes import Notes
from attncli.recording.to_trace import to_layer
from attncli.recording.watch import watching
from attncli.trace.layer import LayerTrace
from attncli.trace.selection import Indices

if TYPE_CHECKING:
    from attncli.engines.torch.attention_modules import AttentionModules

Sublayer = tuple[int, str]  # a layer's index and its kind of attention


@dataclass(frozen=True)
class RecordRequest:
    """Choice of the layers, kinds and heads of a checkpoint to record."""

    layers: tuple[int, ...]  # indices of the layers to record
    kind: str | None  # the only kind of attention to record; None is every kind
    heads: Indices  # the chosen heads
    mask: Expression | None  # replaces the model's own, in every layer
    keeps_calls: bool = False  # whether the calls are kept too


@dataclass(frozen=True)
class Span:
    """Positions of one sentence in a padded batch."""

    text: slice  # of the encoder's text, or of the only one
    target: slice  # of the decoder's

    def of(self, kind: str) -> tuple[slice, slice]:
        """Return the rows and the columns of one kind of attention."""
        rows = self.target if kind in ("decoder", "cross") else self.text
        return rows, self.text if kind == "cross" else rows


class PaddedBatch(NamedTuple):
    """Sentences padded to one length."""

    inputs: dict[str, Any]  # inputs of the model, `[B, longest]` each, by the names of its forward pass
    spans: list[Span]  # the positions of each sentence
    whole: Span  # all of the batch, padding included


class StopForward(Exception):  # noqa: N818
    """Raised to end a forward pass after its last chosen layer; not an error."""


def record(model: Any, part: Any, batch: PaddedBatch, request: RecordRequest, kinds: Sequence[str]) -> Recorder:
    """Run a model on a batch and return its recorded layers.

    Args:
        model: from `load_model`; it is not changed.
        part: the module that runs: the model, its encoder, or the model that it is the text part of.
        batch: the sentences.
        request: the layers to record.
        kinds: the kinds of attention that run.

    Raises:
        NotExposedError: an attention layer could not be read, or does not follow `--mask`.
        InputError: the batch does not fit into memory.
    """
    architecture, modules = model.config.model_type, set(model.modules())
    scope = None if part in modules else {id(module) for module in modules}
    architecture_of(model.config).prepare(model, batch.whole.text.stop)
    inputs = batch.inputs if request.mask is None else _with_mask(part, architecture, batch, request.mask, kinds)
    recorder, notes = Recorder(request, find_attention_modules(model), kinds, batch, scope), Notes()
    read = "the pictures" if part is not model and not model.config.is_encoder_decoder else "the text alone"
    failure = f"the model did not run on {read}" if request.mask is None else "the model does not take --mask; drop it"
    texts = f"{len(batch.spans)} × {batch.whole.text.stop} tokens"
    running = translate_model_errors(texts, f"{architecture}: {failure}"), watching(recorder.take, notes=notes)
    with running[0], running[1], recorder.following(), suppress(StopForward):
        part(**{name: tensor.to(model.device) for name, tensor in inputs.items()})
    if notes.fault is not None:
        raise notes.fault
    recorder.check(architecture)
    return recorder


def _with_mask(
    part: Any, architecture: str, batch: PaddedBatch, mask: Expression, kinds: Sequence[str]
) -> dict[str, Any]:
    """Return the inputs of a batch with a mask of all cells, `[1, H, Q, K]`, which most models add as it is."""
    if "attention_mask" not in signature(part.forward).parameters or len(kinds) > 1:
        raise NotExposedError(f"{architecture}: the model does not take --mask; drop it")
    tokens, heads = batch.whole.text.stop, getattr(part.config, "num_attention_heads", 1)
    allowed = RuleMask(mask, tokens, tokens, heads).rows(list(range(heads)), np.arange(tokens))
    added = torch.where(torch.from_numpy(np.array(allowed)), 0.0, torch.finfo(part.dtype).min).to(part.dtype)
    return batch.inputs | {"attention_mask": added[None]}


@dataclass
class _ModuleRun:
    """A module whose forward runs, with its attention calls so far."""

    module: Any
    sublayer: Sublayer | None = None
    calls: list[AttentionCall] = field(default_factory=list)


@dataclass
class Recorder:
    """The layers of one forward pass."""

    request: RecordRequest  # what to record
    modules: AttentionModules
    kinds: Sequence[str]  # the kinds of attention that run
    batch: PaddedBatch  # the sentences that run
    scope: Collection[int] | None = None  # the modules that are watched, by their `id`; None is all
    order: dict[str, list[int]] = field(init=False)  # the layers of each kind that ran, in that order
    layers: list[dict[Sublayer, LayerTrace]] = field(init=False)  # of each sentence
    calls: dict[Sublayer, AttentionCall] = field(default_factory=dict)  # calls of the layers, if they are kept
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
        """Sublayers to record, in the order in which the model runs them."""
        kinds = [kind for kind in self.kinds if self.request.kind in (None, kind)]
        layers = self.modules.layers
        sublayers = [(index, kind) for kind in kinds for index in layers[kind] if index in self.request.layers]
        # The encoder comes first; a decoder's layer attends to itself, then to the encoder.
        return sorted(sublayers, key=lambda sublayer: (sublayer[1] != "encoder", sublayer[0]))

    # --- while the model runs ---

    @contextmanager
    def following(self) -> Iterator[None]:
        """Track the running modules; end the pass after the last one that is needed."""
        hooks = (
            torch_module.register_module_forward_pre_hook(lambda module, _: self._running.append(_ModuleRun(module))),
            torch_module.register_module_forward_hook(self._leave),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def take(self, call: AttentionCall) -> None:
        """Keep a call of a chosen layer until its module ends."""
        inner = (run for run in reversed(self._running) if id(run.module) in self.modules.by_id)
        run = next(inner, self._running[-1] if self._running else None)
        if (
            run is None
            or not self.modules.has(run.module)
            or (self.scope is not None and id(run.module) not in self.scope)
        ):
            return
        if run.sublayer is None:
            kind = self.modules.kind(run.module)
            order = self.order.setdefault(kind, [])
            order.append(self.modules.layer(run.module, len(order)))
            run.sublayer = order[-1], kind
        if run.sublayer in self.requested:
            # A copy: Nystromformer adds to it in place.
            output = None if call.output is None else call.output.clone()
            run.calls.append(replace(call, output=output, output_of="the output of the model's own attention"))

    def _leave(self, module: Any, *_: Any) -> None:
        run = self._running.pop()
        if run.sublayer is None:
            return
        if run.calls:
            self._record(run, run.sublayer)
        if self.modules.is_named and run.sublayer == self.requested[-1]:  # else the next call shows its layer
            raise StopForward

    def _record(self, run: _ModuleRun, sublayer: Sublayer) -> None:
        """Record one layer of every sentence."""
        rows, columns = (side.stop for side in self.batch.whole.of(sublayer[1]))
        call = windows_of(run.calls, rows) or joined(sublayer, run.calls)
        _, count, queries, keys = call.shape
        if (queries, keys) != (rows, columns):
            raise NotExposedError(
                f"layer {sublayer[0]} has {queries} queries and {keys} keys where {rows} and {columns} were "
                "expected; positions without a token are not supported there"
            )
        call = _with_shared_keys(call, getattr(run.module, "num_key_value_groups", 1))
        if self.request.keeps_calls:
            self.calls[sublayer] = call
        if call.scale is not None:  # scores before the mask are derived, as of a fused kernel
            call = replace(call, scores=None)
        heads = self.request.heads.resolve(count, f"layer {sublayer[0]}")
        for number, layers in enumerate(self.layers):
            layer = replace(to_layer(call, number), layer=sublayer[0], kind=sublayer[1], heads=heads)
            layers[sublayer] = layer if self.request.mask is None else _following(layer, self.request.mask)

    def check(self, architecture: str) -> None:
        """Raise NotExposedError unless every layer ran once, and in order, as far as the pass went."""
        for kind, order in self.order.items():
            expected = list(self.modules.layers.get(kind, ()))
            # Where names show the layers, the pass may have ended early.
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


def _with_shared_keys(call: AttentionCall, groups: int) -> AttentionCall:
    """Return a call with its keys and values once for the `groups` heads that share them, as before `repeat_kv`."""
    k, v = call.k, call.v
    if groups == 1 or k is None or v is None or k.shape[1] != call.shape[1] or call.shape[1] % groups:
        return call
    shared = {"k": k[:, ::groups], "v": v[:, ::groups]}
    is_shared = all(torch.equal(shared[name].repeat_interleave(groups, 1), getattr(call, name)) for name in shared)
    return replace(call, **shared) if is_shared else call  # type: ignore[arg-type]


def _following(layer: LayerTrace, mask: Expression) -> LayerTrace:
    """Return a layer with the mask of `--mask`; NotExposedError where the model did not apply it."""
    expected, every = RuleMask(mask, layer.num_queries, layer.num_keys, layer.num_heads), list(range(layer.num_heads))
    rows = np.arange(layer.num_queries)
    if (expected.rows(every, rows) != layer.mask.rows(every, rows)).any():
        raise NotExposedError(f"layer {layer.layer} does not follow --mask; drop it")
    return replace(layer, mask=expected)


def windows_of(calls: Sequence[AttentionCall], count: int) -> AttentionCall | None:
    """Merge the calls of one module for consecutive windows into one over `count` positions.

    No position attends to another window. None if the calls are not such windows.
    """
    first, sizes = calls[0], [call.shape[2] for call in calls]
    parts: dict[str, list[Any]] = {name: [getattr(call, name) for call in calls] for name in ("q", "k", "v", "output")}
    is_whole = all(tensor is not None for group in parts.values() for tensor in group)
    if len(calls) == 1 or sum(sizes) != count or not is_whole or any(call.masks for call in calls):
        return None
    if sizes != [call.shape[3] for call in calls]:
        return None
    window = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    allowed = (window[:, None] == window)[None, None]
    tensors: dict[str, Any] = {name: torch.cat(group, dim=2) for name, group in parts.items()}
    masks = (MaskArgument("windows", allowed, "attend"),)
    return replace(first, shape=(*first.shape[:2], count, count), masks=masks, scores=None, weights=None, **tensors)


def joined(sublayer: Sublayer, calls: Sequence[AttentionCall]) -> AttentionCall:
    """Merge the calls of one module; those with the same scores have their values concatenated.

    DiffLlama weighs two values with one map, and so does LiLT, the text's and the layout's.

    Raises:
        NotExposedError: they have different scores, or one cannot be read.
    """
    # The widest queries first: LiLT's text, before its layout.
    calls = sorted(calls, key=lambda call: -1 if call.q is None else call.q.shape[-1], reverse=True)
    first, *rest = calls
    if not all(_has_same_scores(first, other) for other in rest):
        raise NotExposedError(f"layer {sublayer[0]} makes its weights of {len(calls)} softmaxes; attn reads one")
    if first.unsupported is not None:
        first = _by_scores(first, sublayer)
    if not rest:
        return first
    outputs = [call.output for call in calls if call.output is not None]
    return replace(
        first,
        v=torch.cat([call.v for call in calls if call.v is not None], dim=-1),
        output=torch.cat(outputs, dim=-1) if len(outputs) == len(calls) else None,
    )


def _by_scores(call: AttentionCall, sublayer: Sublayer) -> AttentionCall:
    """Return a call that has only scores and weights; its mask is read from the scores.

    Raises:
        NotExposedError: the values were not multiplied with these weights.
    """
    scores, weights, v, output = call.scores, call.weights, call.v, call.output
    if scores is None or weights is None or v is None or output is None:
        raise NotExposedError(f"layer {sublayer[0]}: attn cannot read {call.unsupported}")
    values = v.repeat_interleave(call.shape[1] // v.shape[1], dim=1).float()
    least = 1e-2 * max(float(values.abs().nan_to_num().max()), 1.0)
    if not torch.allclose(weights.float() @ values, output.float(), rtol=0, atol=least, equal_nan=True):
        raise NotExposedError(f"layer {sublayer[0]}: attn cannot read {call.unsupported}")
    # The smallest fill of a model is -1e4, and no score comes near. NaN is no mask.
    masks = (MaskArgument("scores", scores <= FORBIDDEN_BELOW / 2, "masked"),)
    return replace(call, masks=masks, scale=None, softcap=None, unsupported=None)


def _has_same_scores(one: AttentionCall, other: AttentionCall) -> bool:
    if one.scores is None or other.scores is None:
        sides = [(call.q, call.k, *(mask.values for mask in call.masks)) for call in (one, other)]
        return one.scale == other.scale and len({len(side) for side in sides}) == 1 and all(map(torch.equal, *sides))
    same = one.scores.shape == other.scores.shape
    return same and torch.allclose(one.scores, other.scores, rtol=0, atol=0, equal_nan=True)
