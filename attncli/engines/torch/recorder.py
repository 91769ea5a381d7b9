"""Forward passes of an unmodified checkpoint, recorded as `attn run` records a program: its calls become layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch

from attncli.attention import FORBIDDEN_BELOW
from attncli.engines.torch.attention_backend import translate_model_errors
from attncli.engines.torch.attention_modules import Sublayer as Sublayer
from attncli.engines.torch.attention_modules import find_attention_modules
from attncli.engines.torch.configuration import architecture_of
from attncli.errors import AttnError, NotExposedError, UsageError
from attncli.masks.expressions import Expression, RuleMask
from attncli.recording.call import AttentionCall, MaskArgument
from attncli.recording.notes import Notes
from attncli.recording.to_trace import to_layer
from attncli.recording.watch import watching
from attncli.trace.layer import LayerTrace
from attncli.trace.selection import Indices


@dataclass(frozen=True)
class RecordRequest:
    """Choice of the layers, kinds and heads of a checkpoint to record."""

    layers: tuple[int, ...]
    kind: str | None  # the only kind of attention; None is every kind
    heads: Indices
    mask: Expression | None  # replaces the model's own, in every layer
    keeps_calls: bool = False


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
    """Run a model, which is not changed, on a batch and return its recorded layers.

    The module that runs is `part`: the model, its encoder, or the model that it is the text part of; and `kinds` are
    its kinds of attention.

    Raises:
        NotExposedError: an attention layer could not be read, or does not follow `--mask`.
        InputError: the batch does not fit into memory.
    """
    architecture = model.config.model_type
    architecture_of(model.config).prepare(model, batch.whole.text.stop)
    inputs = batch.inputs if request.mask is None else _with_mask(part, architecture, batch, request.mask, kinds)
    recorder, notes = Recorder(model, part, batch, request, kinds), Notes()
    read = "the pictures" if part is not model and not model.config.is_encoder_decoder else "the text alone"
    failure = f"the model did not run on {read}" if request.mask is None else "the model does not take --mask; drop it"
    texts = f"{len(batch.spans)} × {batch.whole.text.stop} tokens"
    with (
        translate_model_errors(texts, f"{architecture}: {failure}"),
        watching(recorder.take, notes=notes),
        recorder.stopping(),
        suppress(StopForward),
    ):
        part(**{name: tensor.to(model.device) for name, tensor in inputs.items()})
    if notes.fault is not None:
        raise notes.fault
    recorder.finish(architecture)
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


class Recorder:
    """The layers of one forward pass; see `record` for the arguments.

    Attributes:
        layers: of each sentence.
        calls: of the layers, if the request keeps them.
    """

    def __init__(self, model: Any, part: Any, batch: PaddedBatch, request: RecordRequest, kinds: Sequence[str]) -> None:
        self._part, self._batch, self._request, self._kinds = part, batch, request, kinds
        self._own = {id(module) for module in model.modules()}
        self._modules = modules = find_attention_modules(model)
        self._order: dict[str, list[int]] = {kind: [] for kind in kinds}  # the layers that ran
        self.layers: list[dict[Sublayer, LayerTrace]] = [{} for _ in batch.spans]
        self.calls: dict[Sublayer, AttentionCall] = {}
        self._run: tuple[Any, int | None] | None = None  # the module that ran last, and which of its runs it was
        self._sublayer: Sublayer | None = None
        self._pending: list[AttentionCall] = []  # its calls
        self._failure: AttnError | None = None
        kinds = [kind for kind in kinds if request.kind in (None, kind)]
        self._requested = {(index, kind) for kind in kinds for index in modules.layers[kind] if index in request.layers}
        if not self._requested:
            there = " and ".join(f"{len(modules.layers[kind])} {kind}" for kind in self._kinds)
            raise UsageError(f"--layer {', '.join(map(str, request.layers))}: there are {there} layers here")

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """End the forward pass after the last module that is requested, where names show it."""
        # The encoder comes first; a decoder's layer attends to itself, then to the encoder.
        last = max(
            self._requested, key=lambda sublayer: (sublayer[1] != "encoder", sublayer[0], sublayer[1] == "cross")
        )
        with ExitStack() as hooks:
            for module in self._part.modules():
                if self._modules.is_named and self._modules.is_outermost(module, last):
                    hooks.callback(module.register_forward_hook(_stop).remove)
            yield

    def take(self, call: AttentionCall) -> None:
        """Keep a call of a chosen layer until the next one of another module."""
        module = self._module(call.place.module or "")
        sublayer = self._modules.sublayer(module, {kind: len(order) for kind, order in self._order.items()})
        if id(module) not in self._own or sublayer is None:
            return
        run = module, None if call.slices is None else call.slices.forward
        if run != self._run:
            try:
                self._record()
            except AttnError as error:  # raised by `finish`: a watch makes a note of it
                self._failure = self._failure or error
            self._run, self._sublayer = run, sublayer
            self._order.setdefault(sublayer[1], []).append(sublayer[0])
        if self._sublayer in self._requested:
            # A copy: Nystromformer adds to it in place.
            output = None if call.output is None else call.output.clone()
            self._pending.append(replace(call, output=output, output_of="the output of the model's own attention"))

    def _module(self, name: str) -> Any:
        """Return the innermost attention module of those that a name leads through, or else the one of that name."""
        path = name
        while path and id(self._part.get_submodule(path)) not in self._modules.by_id:
            path = path.rpartition(".")[0]
        return self._part.get_submodule(path or name)

    def _record(self) -> None:
        calls, self._pending = self._pending, []
        if not calls:
            return
        assert self._sublayer is not None
        assert self._run is not None
        (index, kind), (module, _) = self._sublayer, self._run
        rows, columns = (side.stop for side in self._batch.whole.of(kind))
        call = _windows_of(calls, rows) or _joined(self._sublayer, calls)
        _, count, queries, keys = call.shape
        if (queries, keys) != (rows, columns):
            raise NotExposedError(
                f"layer {index} has {queries} queries and {keys} keys where {rows} and {columns} were expected; "
                "positions without a token are not supported there"
            )
        call = _with_shared_keys(call, getattr(module, "num_key_value_groups", 1))
        if self._request.keeps_calls:
            self.calls[self._sublayer] = call
        if call.scale is not None:  # scores before the mask are derived, as of a fused kernel
            call = replace(call, scores=None)
        heads = self._request.heads.resolve(count, f"layer {index}")
        for number, layers in enumerate(self.layers):
            layer = replace(to_layer(call, number), layer=index, kind=kind, heads=heads)
            mask = self._request.mask
            layers[self._sublayer] = layer if mask is None else _following(layer, mask)

    def finish(self, architecture: str) -> None:
        """Raise NotExposedError unless every layer ran once, and in order, as far as the pass went."""
        if self._failure is not None:
            raise self._failure
        self._record()
        for kind, order in self._order.items():
            expected = list(self._modules.layers.get(kind, ()))
            # Where names show the layers, the pass may have ended early.
            is_right = order == (expected[: len(order)] if self._modules.is_named else expected)
            if not is_right or any(self._requested - layers.keys() for layers in self.layers):
                counts = f"{len(expected)} {kind if kind != 'self' else ''} attention layers".replace("  ", " ")
                unnamed = "" if self._modules.by_id else "; no module has Attention in the name of its class"
                raise NotExposedError(
                    f"{architecture}: its configuration has {counts} and {len(order)} could be watched{unnamed}"
                )

    def traces(self) -> list[tuple[LayerTrace, ...]]:
        """Return the recorded layers of each sentence, in the order asked."""
        order = [(index, kind) for index in self._request.layers for kind in self._kinds]
        return [tuple(layers[sublayer] for sublayer in order if sublayer in layers) for layers in self.layers]


def _stop(*_: Any) -> None:
    raise StopForward


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


def _windows_of(calls: Sequence[AttentionCall], count: int) -> AttentionCall | None:
    """Merge the calls of one module for consecutive windows, between which no position attends, into one.

    None if the calls are not such windows of `count` positions.
    """
    sizes = [call.shape[2] for call in calls]
    parts: dict[str, list[Any]] = {name: [getattr(call, name) for call in calls] for name in ("q", "k", "v", "output")}
    are_windows = len(calls) > 1 and sum(sizes) == count and sizes == [call.shape[3] for call in calls]
    if (
        not are_windows
        or any(call.masks for call in calls)
        or any(tensor is None for group in parts.values() for tensor in group)
    ):
        return None
    window = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    masks = (MaskArgument("windows", (window[:, None] == window)[None, None], "attend"),)
    tensors: dict[str, Any] = {name: torch.cat(group, dim=2) for name, group in parts.items()}
    shape = (*calls[0].shape[:2], count, count)
    return replace(calls[0], shape=shape, masks=masks, scores=None, weights=None, **tensors)


def _joined(sublayer: Sublayer, calls: Sequence[AttentionCall]) -> AttentionCall:
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


def _has_same_scores(call: AttentionCall, other: AttentionCall) -> bool:
    if call.scores is None or other.scores is None:
        sides = [(side.q, side.k, *(mask.values for mask in side.masks)) for side in (call, other)]
        return call.scale == other.scale and len({len(side) for side in sides}) == 1 and all(map(torch.equal, *sides))
    same = call.scores.shape == other.scores.shape
    return same and torch.allclose(call.scores, other.scores, rtol=0, atol=0, equal_nan=True)
