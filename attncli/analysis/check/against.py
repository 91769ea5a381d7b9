"""`attn check --against`: a port of a checkpoint, held against the checkpoint on one text, and on padding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.analysis.agreement.compare import Agreement, Cause, Parting, compare
from attncli.analysis.agreement.question import Cell
from attncli.analysis.check.graphs import ARRAYS, RunComparison, built_in_text, check_has_text, compared_runs, window_of
from attncli.analysis.runs import ENCODER_ALONE, computed_side, side_of, traced_side
from attncli.analysis.steps import LEVELS, Array, difference
from attncli.attention import noise_floor
from attncli.checkpoints.options import LoadOptions
from attncli.checkpoints.snapshot import resolve
from attncli.engines import open_source
from attncli.engines.engine import NativeSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.engines.source import OpenModel


def against(model: str, checkpoint: str, text: str | None = None, *, special: bool = True, **options: Any) -> Agreement:
    """Compare a port with its checkpoint: stage by stage on one text, and its masks where the text is padded.

    Args:
        model: the port, such as an ONNX file.
        checkpoint: a checkpoint's folder or hub name.
        text: the text that both read; None is a built-in one, longer than the checkpoint's window.
        special: whether the tokenizers add their special tokens.
        options: fields of `attncli.checkpoints.options.LoadOptions`.

    Raises:
        AttnError: one of them cannot be opened or does not read the text; see `open_source`.
    """
    ours, theirs = (open_source(name, layer="all", special=special, **options) for name in (checkpoint, model))
    check_has_text(text, options)
    width = window_of(resolve(checkpoint, LoadOptions(**options)).config)
    text = text or built_in_text(width, ours, theirs)
    agreement = compare(*(side_of(source, source.name, text, None) for source in (ours, theirs)))
    if width >= (tokens := len(theirs.tokens(text)[0])):
        agreement.notes.append(
            f"the window of {width} keys reaches over the text of {tokens} tokens; give a longer one"
        )
    if theirs.is_graph:
        compared = [*compared_runs(theirs, text, theirs.trace(text))]
        agreement.notes += _missing(compared)
        agreement.partings += [*_on_padding(compared, agreement), *_in_steps(compared)]
        _compare_outputs(agreement, ours, theirs, text)
    return agreement


def _missing(compared: Sequence[RunComparison]) -> list[str]:
    """Return a note on each way to run the graph that was not compared; that it reads no cache is no fault."""
    runs = [one.invariance for one in compared if one.invariance.reason is not None]
    what = {"cache": "a cache"}
    notes = (
        f"{what.get(run.name, 'padding')} was not checked: {run.reason}"
        for run in runs
        if run.has_failed or run.name not in what
    )
    return [*dict.fromkeys(notes)]


def _on_padding(compared: Sequence[RunComparison], agreement: Agreement) -> Iterator[Parting]:
    """Yield the layers that attend to padding; a layer without the checkpoint's mask does as well."""
    without = {layer for parting in agreement.partings if parting.stage == "mask" for layer in parting.layers}
    attended = [(one.side, layer, weight) for one in compared for layer, weight in one.on_padding.items()]
    attended = [(side, layer, weight) for side, layer, weight in attended if layer not in without]
    if attended:
        sides, layers, weights = zip(*attended, strict=True)
        cause = Cause(
            "padding mask", f"missing on the {' and the '.join(dict.fromkeys(sides))}", "attention_mask", None
        )
        cell = Cell(float(np.max(weights)), None, agrees=False)
        yield Parting("padding", sorted({*layers}), cell, cause)


def _in_steps(compared: Sequence[RunComparison]) -> Iterator[Parting]:
    for one in compared:
        if one.invariance.name == "cache" and one.invariance.change is not None and one.layers:
            cause = Cause(ARRAYS[one.array], "differ first", "", None)
            yield Parting("cache", list(one.layers), Cell(one.invariance.change, None, agrees=False), cause)


def _compare_outputs(agreement: Agreement, ours: OpenModel, theirs: OpenModel, text: str) -> None:
    """Compare the decoder, or the last output of the graph, which shows what is behind the last attention."""
    if theirs.is_encoder_decoder:
        if agreement.agrees:  # else all that reads the encoder differs
            agreement.partings += _of_decoder(ours, theirs, text)
            agreement.notes = [note for note in agreement.notes if note != ENCODER_ALONE]
        return
    if agreement.agrees:
        last, output = max(agreement.rows), theirs.own_output(text)[0]
        expected = next((array for array in _last_outputs(ours, text) if array.shape == output.shape), None)
        if expected is None:
            agreement.notes.append(f"attn does not compare what is behind the attention of layer {last}")
            return
        apart, is_quantized = difference(output, expected), agreement.dtype in LEVELS
        # Few bits change single tokens much, through all layers; one that is wrong changes every token.
        largest = float(np.median(apart) if is_quantized else apart.max())
        if largest > (1.0 if is_quantized else noise_floor(agreement.dtype)):
            agreement.partings.append(Parting("last output", [last], Cell(largest, None, agrees=False)))


def _of_decoder(ours: OpenModel, theirs: OpenModel, text: str) -> list[Parting]:
    """Return where the decoder parts: at the first layer of either kind, as each kind reads the other's output."""
    traces = [(source.trace(text, None, text), source.name) for source in (ours, theirs)]
    parts: list[list[Parting]] = []
    for kind in ("decoder", "cross"):
        part = compare(*(traced_side(trace, name, [kind]) for trace, name in traces))
        parts.append([replace(parting, kind=kind) for parting in part.partings])
    return min(filter(None, parts), key=lambda partings: partings[0].layers[0], default=[])


def _last_outputs(source: OpenModel, text: str) -> Iterator[Array]:
    """Yield the last hidden states of a checkpoint and its logits, as far as the native engine computes them."""
    if isinstance(source, NativeSource):
        forward = source.forward(text)
        *_, layer = computed_side(forward, source.name).layers()
        x, model = layer.arrays["next"], forward.model
        if model.spec.unembedding is None:
            yield x
        else:
            yield (x := model.normalize(model.unembedding.norm, x))
            yield model.unembed(x)
