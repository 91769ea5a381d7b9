"""Forward passes of an unmodified checkpoint, recorded as `attn run` records a program: its calls become layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch

from attncli.checkpoints.hub import first_sentence, is_exhausted
from attncli.engines.torch.attention_modules import Sublayer as Sublayer
from attncli.engines.torch.attention_modules import find_attention_modules
from attncli.errors import AttnError, InputError, NotExposedError, UsageError
from attncli.masks.expressions import Expression, RuleMask
from attncli.recording.call import AttentionCall
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


@contextmanager
def translate_model_errors(texts: str, failure: str, kind: type[NotExposedError] = NotExposedError) -> Iterator[None]:
    """Make one sentence of an error of a model's code: InputError without memory, else the given kind."""
    try:
        with torch.inference_mode():
            yield
    except AttnError:
        raise
    except Exception as error:  # a model's own code may raise anything
        if is_exhausted(error):
            raise InputError(f"{texts} do not fit into memory; shorten the text") from None
        raise kind(f"{failure} ({first_sentence(error)})") from None


def record(model: Any, part: Any, batch: PaddedBatch, request: RecordRequest, kinds: Sequence[str]) -> Recorder:
    """Run a model, which is not changed, on a batch and return its recorded layers.

    The module that runs is `part`: the model, its encoder, or the model that it is the text part of; and `kinds` are
    its kinds of attention.

    Raises:
        NotExposedError: an attention layer could not be read, or does not follow `--mask`.
        InputError: the batch does not fit into memory.
    """
    architecture = model.config.model_type
    if architecture in ("big_bird", "bigbird_pegasus"):
        _attend_to_all(model, batch.whole.text.stop)
    inputs = batch.inputs if request.mask is None else _with_mask(part, architecture, batch, request.mask, kinds)
    recorder, notes = Recorder(model, part, batch, request, kinds), Notes()
    read = "the pictures" if part is not model and not model.config.is_encoder_decoder else "the text alone"
    failure = f"the model did not run on {read}" if request.mask is None else "the model does not take --mask; drop it"
    texts = f"{len(batch.spans)} × {batch.whole.text.stop} tokens"
    with (
        translate_model_errors(texts, f"{architecture}: {failure}"),
        watching(recorder.record, notes=notes),
        recorder.stopping(),
        suppress(StopForward),
    ):
        part(**{name: tensor.to(model.device) for name, tensor in inputs.items()})
    if notes.fault is not None:
        raise notes.fault
    recorder.finish(architecture)
    return recorder


def _attend_to_all(model: Any, tokens: int) -> None:
    """Give a BigBird full attention, for good, where it would switch to it; refuse texts that it reads in blocks."""
    config = model.config
    most = (5 + 2 * config.num_random_blocks) * config.block_size
    if config.attention_type == "block_sparse" and tokens > most:
        raise NotExposedError(
            f"{config.model_type} attends to blocks, by several softmaxes, where a text has more than {most} tokens"
        )
    (model if hasattr(model, "set_attention_type") else model.encoder).set_attention_type("original_full")


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
    """Layers of one forward pass for each sentence, and their calls if the request keeps them; see `record`."""

    def __init__(self, model: Any, part: Any, batch: PaddedBatch, request: RecordRequest, kinds: Sequence[str]) -> None:
        self._part, self._batch, self._request, self._kinds = part, batch, request, kinds
        self._own = {id(module) for module in model.modules()}
        self._modules = modules = find_attention_modules(model)
        self._order: dict[str, list[int]] = {kind: [] for kind in kinds}  # the layers that ran
        self.layers: list[dict[Sublayer, LayerTrace]] = [{} for _ in batch.spans]
        self.calls: dict[Sublayer, AttentionCall] = {}
        self._run: tuple[Any, int | None] | None = None  # the module that ran last, and which of its runs it was
        self._sublayer: Sublayer | None = None
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
        last = max(self._requested, key=lambda layer: (layer[1] != "encoder", layer[0], layer[1] == "cross"))
        with ExitStack() as hooks:
            for module in self._part.modules() if self._modules.is_named else ():
                entry = self._modules.by_id.get(id(module))
                if entry and entry.is_outermost and (entry.index, entry.kind) == last:
                    hooks.callback(module.register_forward_hook(_stop).remove)
            yield

    def record(self, call: AttentionCall) -> None:
        """Record a call of a chosen layer; `finish` raises its error, as a watch only makes a note of it."""
        module = self._module(call.place.module or "")
        sublayer = self._modules.sublayer(module, {kind: len(order) for kind, order in self._order.items()})
        if id(module) not in self._own or sublayer is None:
            return
        run = module, None if call.slices is None else call.slices.forward
        is_again = run == self._run
        if not is_again:
            self._run, self._sublayer = run, sublayer
            self._order.setdefault(sublayer[1], []).append(sublayer[0])
        if self._sublayer is None or self._sublayer not in self._requested:
            return
        try:
            if is_again:
                several = f"layer {self._sublayer[0]} makes its weights of several softmaxes"
                raise NotExposedError(f"{several}; attn reads one")
            self._add(call, self._sublayer, getattr(module, "num_key_value_groups", 1))
        except AttnError as error:
            self._failure = self._failure or error

    def _module(self, name: str) -> Any:
        """Return the innermost attention module of those that a name leads through, or else the one of that name."""
        path = name
        while path and id(self._part.get_submodule(path)) not in self._modules.by_id:
            path = path.rpartition(".")[0]
        return self._part.get_submodule(path or name)

    def _add(self, call: AttentionCall, sublayer: Sublayer, groups: int) -> None:
        index, kind = sublayer
        rows, columns = (side.stop for side in self._batch.whole.of(kind))
        _, count, queries, keys = call.shape
        if (queries, keys) != (rows, columns):
            raise NotExposedError(
                f"layer {index} has {queries} queries and {keys} keys where {rows} and {columns} were expected; "
                "positions without a token are not supported there"
            )
        if call.unsupported is not None:
            raise NotExposedError(f"layer {index}: attn cannot read {call.unsupported}")
        call = replace(_with_shared_keys(call, groups), output_of="the output of the model's own attention")
        if self._request.keeps_calls:
            self.calls[sublayer] = call
        if call.scale is not None:  # scores before the mask are derived, as of a fused kernel
            call = replace(call, scores=None)
        heads, mask = self._request.heads.resolve(count, f"layer {index}"), self._request.mask
        for number, layers in enumerate(self.layers):
            layer = replace(to_layer(call, number), layer=index, kind=kind, heads=heads)
            layers[sublayer] = layer if mask is None else _following(layer, mask)

    def finish(self, architecture: str) -> None:
        """Raise NotExposedError unless every layer ran once, and in order, as far as the pass went."""
        if self._failure is not None:
            raise self._failure
        for kind, order in self._order.items():
            expected = list(self._modules.layers.get(kind, ()))
            # Where names show the layers, the pass may have ended early.
            is_right = order == (expected[: len(order)] if self._modules.is_named else expected)
            if not is_right or any(self._requested - layers.keys() for layers in self.layers):
                counts = f"{len(expected)} {'' if kind == 'self' else kind + ' '}attention layers"
                unnamed = "" if self._modules.by_id else "; no module has Attention in the name of its class"
                raise NotExposedError(
                    f"{architecture}: its configuration has {counts} and {len(order)} could be watched{unnamed}"
                )

    def traces(self) -> list[tuple[LayerTrace, ...]]:
        """Return the recorded layers of each sentence, in the order of the request."""
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
    expected = replace(layer, mask=RuleMask(mask, layer.num_queries, layer.num_keys, layer.num_heads))
    if (expected.mask_cells != layer.mask_cells).any():
        raise NotExposedError(f"layer {layer.layer} does not follow --mask; drop it")
    return expected
