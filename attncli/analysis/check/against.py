"""`attn check --against`: a port of a checkpoint, held against the checkpoint on one text, and on padding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attncli.analysis.agreement.compare import Agreement, Parting, compare
from attncli.analysis.agreement.question import Cell
from attncli.analysis.check.graphs import built_in_text, check_has_text, compared_runs, findings_of, window_of
from attncli.analysis.runs import ENCODER_ALONE, computed_side, side_of, traced_side
from attncli.analysis.steps import LEVELS, Array, difference
from attncli.attention import noise_floor
from attncli.checkpoints.onnx_files import graphs_of
from attncli.checkpoints.options import LoadOptions
from attncli.checkpoints.snapshot import Snapshot, resolve
from attncli.checkpoints.tensors.open_store import open_store
from attncli.engines import open_source
from attncli.engines.numpy import NativeCheckpoint
from attncli.errors import UsageError
from attncli.files import to_float32
from attncli.masks.findings import Finding
from attncli.text import visible

_MOST_NAMES = 4  # of matrices

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    snapshot, graph = (resolve(name, LoadOptions(**options)) for name in (checkpoint, model))
    _check_differ(snapshot, graph)
    ours, theirs = (open_source(name, layer="all", special=special, **options) for name in (checkpoint, model))
    check_has_text(text, options)
    width = window_of(snapshot.config)
    text = text or built_in_text(width, ours, theirs)
    agreement = compare(*(side_of(source, source.name, text, None) for source in (ours, theirs)))
    if theirs.is_graph:  # whose last output is compared below
        agreement.not_compared.clear()
    if width >= (tokens := len(theirs.tokens(text)[0])):
        agreement.not_compared.append(f"The text of {tokens} tokens does not show the window of {width} keys.")
    if theirs.is_graph:
        compared = [*compared_runs(theirs, text, theirs.trace(text))]
        weights = agreement.dtype if agreement.dtype in LEVELS else None
        agreement.findings = [one for one in findings_of(compared, weights) if one.severity == "error"]
        skipped = [one.invariance.reason for one in compared if one.invariance.is_skipped]
        agreement.not_compared += [
            f"Not compared with padding or in steps: {reason}." for reason in dict.fromkeys(skipped)
        ]
        if theirs.is_encoder_decoder:
            _compare_decoder(agreement, ours, theirs, text)
        elif weights is None:
            _compare_outputs(agreement, ours, theirs, text)
        if weights is not None and not (snapshot.onnx or snapshot.gguf):
            _compare_weights(agreement, snapshot, graph)
    return agreement


def _check_differ(checkpoint: Snapshot, model: Snapshot) -> None:
    """Raise UsageError for two names of one model, which would be compared with itself."""
    both = [(one.folder.resolve(), one.onnx, one.gguf, one.adapter) for one in (checkpoint, model)]
    if both[0] == both[1]:
        exported = graphs_of(model.folder) if model.folder.is_dir() else ()
        advice = f"-m {visible(str(exported[-1]))}" if exported and not model.onnx else "the exported model with -m"
        raise UsageError(f"-m and --against open the same weights, those of {visible(model.name)}; give {advice}")


def _compare_outputs(agreement: Agreement, ours: OpenModel, theirs: OpenModel, text: str) -> None:
    """Compare the last output of the graph, which shows what is behind the last attention."""
    if agreement.agrees:
        last, output = max(agreement.rows), theirs.own_output(text)[0]
        expected = next((array for array in _last_outputs(ours, text) if array.shape == output.shape), None)
        if expected is None:
            agreement.not_compared.append(f"attn does not compare what follows the attention of layer {last}.")
        elif (largest := float(difference(output, expected).max())) > noise_floor(agreement.dtype):
            agreement.partings.append(Parting("last output", [last], Cell(largest, None, agrees=False)))


def _compare_weights(agreement: Agreement, checkpoint: Snapshot, graph: Snapshot) -> None:
    """Look for each quantized matrix among those of the checkpoint: rounding changes a number by half of its step."""
    from attncli.checkpoints.onnx_weights import quantized_matrices

    matrices = [one for path in graph.onnx for one in quantized_matrices(path)]
    left, seen = matrices, set[tuple[int, ...]]()
    store = open_store(checkpoint)
    for name in store.names:
        shape = store.stored(name).shape
        if any(one.values.shape in (shape, shape[::-1]) for one in matrices):
            seen |= {shape, shape[::-1]}
            values = to_float32(store.read(name))
            left = [one for one in left if not any(map(one.is_rounding_of, (values, values.T)))]
            store.release()
    names, count = [one.node for one in left if one.values.shape in seen], len(matrices)
    if names:
        which = ", ".join(map(visible, names[:_MOST_NAMES]))
        which += f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES)
        message = f"{len(names)} of {count} quantized matrices are no rounding of one of A: {which}"
        agreement.findings.append(Finding("weights", "error", message))
    agreement.not_compared.append(f"{count - len(left)} of {count} quantized matrices are those of A, rounded.")


def _compare_decoder(agreement: Agreement, ours: OpenModel, theirs: OpenModel, text: str) -> None:
    """Compare the decoder up to the first layer that parts, of either kind, as each kind reads the other's output."""
    agreement.notes = [note for note in agreement.notes if note != ENCODER_ALONE]
    if not agreement.agrees:  # all that reads the encoder differs
        return
    traces = [(source.trace(text, None, text), source.name) for source in (ours, theirs)]
    parts: list[list[Parting]] = []
    for kind in ("decoder", "cross"):
        part = compare(*(traced_side(trace, name, [kind]) for trace, name in traces))
        parts += [[replace(parting, kind=kind) for parting in part.partings]] if part.partings else []
    for partings in sorted(parts, key=lambda one: one[0].layers[0])[:1]:
        agreement.partings += partings
    agreement.not_compared.append("The decoder was compared too, and neither its output nor its cache.")


def _last_outputs(source: OpenModel, text: str) -> Iterator[Array]:
    """Yield the last hidden states of a checkpoint and its logits, as far as the native engine computes them."""
    if isinstance(source, NativeCheckpoint):
        forward = source.forward(text)
        *_, layer = computed_side(forward, source.name).layers()
        x, model = layer.arrays["next"], forward.model
        if model.spec.unembedding is None:
            yield x
        else:
            yield (x := model.normalize(model.unembedding.norm, x))
            yield model.unembed(x)
