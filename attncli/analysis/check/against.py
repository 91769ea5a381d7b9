"""`attn check --against`: an exported model and its checkpoint, compared on one text, and on padding."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from attncli.analysis.agreement.compare import Agreement, Parting, compare
from attncli.analysis.agreement.question import LEAST, TIMES, Cell
from attncli.analysis.check.graphs import built_in_text, check_has_text, compared_runs, findings_of, window_of
from attncli.analysis.runs import ENCODER_ALONE, computed_side, side_of, traced_side
from attncli.analysis.steps import LEVELS, difference
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.engines.onnx.engine import OnnxModel
    from attncli.engines.source import OpenModel

_MOST_NAMES = 4  # of matrices
_PIXELS, _MOST_PIXELS = 224, 1024  # of a picture's side


def against(model: str, checkpoint: str, text: str | None = None, *, special: bool = True, **options: Any) -> Agreement:
    """Compare an exported model with its checkpoint: stage by stage on one text, and its masks with padding.

    Args:
        model: the ONNX file, or its folder.
        checkpoint: a checkpoint's folder or hub name.
        text: the text that both read; None is a built-in one, longer than the checkpoint's window. Of a vision
            transformer it is the file of a picture; None is one of random numbers.
        special: whether the tokenizers add their special tokens.
        options: fields of `attncli.checkpoints.options.LoadOptions`.

    Raises:
        AttnError: one of them cannot be opened or does not read the text; see `open_source`.
    """
    check_has_text(text, options)
    snapshot, graph = (resolve(name, LoadOptions(**options)) for name in (checkpoint, model))
    if not graph.onnx:
        exported = graphs_of(graph.folder) if graph.folder.is_dir() else ()
        give = f"give -m {visible(str(exported[-1]))}" if exported else "compare checkpoints by attn diff --first"
        raise UsageError(f"{visible(model)} is no ONNX model, which --against compares with a checkpoint; {give}")
    if (size := snapshot.config.get("image_size")) is None:
        sources = [open_source(name, layer="all", special=special, **options) for name in (checkpoint, model)]
        return _compared(snapshot, graph, sources, text or built_in_text(snapshot.config))
    sources = [open_source(name, layer="all", tower="vision", **options) for name in (checkpoint, model)]
    with NamedTemporaryFile(suffix=".ppm") as picture:
        side = max(2, min(size, _MOST_PIXELS)) if type(size) is int else _PIXELS
        picture.write(b"P6 %d %d 255\n" % (side, side) + np.random.default_rng(0).bytes(3 * side * side))
        picture.flush()
        return _compared(snapshot, graph, sources, text or picture.name)


def _compared(snapshot: Snapshot, graph: Snapshot, sources: Sequence[OpenModel], text: str) -> Agreement:
    """Return the comparison of a checkpoint and a graph on one text, or on the picture that it names."""
    ours, theirs = sources[0], cast("OnnxModel", sources[1])
    agreement = compare(*(side_of(source, source.name, text, None) for source in sources))
    if (width := window_of(snapshot.config)) >= (tokens := len(theirs.tokens(text)[0])):
        agreement.not_compared.append(f"The text of {tokens} tokens does not show the window of {width} keys.")
    weights = agreement.dtype if agreement.dtype in LEVELS else None
    if not theirs.reads_pictures:
        compared = [*compared_runs(theirs, text, theirs.trace(text))]
        agreement.findings = [one for one in findings_of(compared, weights) if one.severity == "error"]
        reasons = dict.fromkeys(one.invariance.reason for one in compared if one.invariance.is_skipped)
        agreement.not_compared += [f"Not compared with padding or in steps: {reason}." for reason in reasons]
    if theirs.is_encoder_decoder:
        _compare_decoder(agreement, sources, text)
    elif weights is None:
        _compare_outputs(agreement, ours, theirs, text)
    if weights is not None and not (snapshot.onnx or snapshot.gguf):
        _compare_weights(agreement, snapshot, graph)
    return agreement


def _compare_outputs(agreement: Agreement, ours: OpenModel, theirs: OnnxModel, text: str) -> None:
    """Compare the last output, which shows what follows the attention, if the native engine computes it."""
    if not agreement.agrees:
        return
    last, expected, output = max(agreement.rows), None, None
    if isinstance(ours, NativeCheckpoint):
        side = computed_side(ours.forward(text), ours.name)
        *_, layer = side.layers()
        expected = side.logits(layer.arrays["next"]) if side.logits else layer.arrays["next"]
        output = theirs.own_output(text)[0][-len(expected) :]
    if expected is None or output is None or expected.shape != output.shape:
        return
    agreement.has_output = True
    rounding = max((cell.rounding or 0.0 for cell in agreement.rows[last].values()), default=0.0)
    if (largest := float(difference(output, expected).max())) > max(LEAST, TIMES * rounding):
        agreement.partings.append(Parting("last output", [last], Cell(largest, None, agrees=False)))


def _compare_weights(agreement: Agreement, checkpoint: Snapshot, graph: Snapshot) -> None:
    """Look for each quantized matrix among those of the checkpoint: rounding changes a number by half of its step."""
    from attncli.checkpoints.onnx_weights import quantized_matrices

    matrices = [one for path in graph.onnx for one in quantized_matrices(path)]
    left, unmatched = matrices, Counter[tuple[int, ...]]()  # shapes of matrices of the checkpoint
    store = open_store(checkpoint)
    for name in store.names:
        shape = store.stored(name).shape
        if any(one.values.shape in (shape, shape[::-1]) for one in matrices):
            values, before = to_float32(store.read(name)), len(left)
            left = [one for one in left if not any(map(one.is_rounding_of, (values, values.T)))]
            unmatched.update({shape, shape[::-1]} if len(left) == before else ())
            store.release()
    names, count = [one.node for one in left if unmatched[one.values.shape]], len(matrices)
    if names:
        which = ", ".join(map(visible, names[:_MOST_NAMES])) + " …" * (len(names) > _MOST_NAMES)
        message = f"{len(names)} of {count} quantized matrices are no rounding of one of A: {which}"
        agreement.findings.append(Finding("weights", "error", message))
    agreement.not_compared.append(f"{count - len(left)} of {count} quantized matrices are those of A, rounded.")
    if others := len(left) - len(names):
        agreement.not_compared.append(f"{others} {'is' if others == 1 else 'are'} packed, or in A of no such shape.")


def _compare_decoder(agreement: Agreement, sources: Sequence[OpenModel], text: str) -> None:
    """Compare the decoder up to the first layer that parts, of either kind, as each kind reads the other's output."""
    agreement.notes = [note for note in agreement.notes if note != ENCODER_ALONE]
    if not agreement.agrees:  # all that reads the encoder differs
        return
    traces = [(source.trace(text, None, text), source.name) for source in sources]
    parts: list[list[Parting]] = []
    for kind in ("decoder", "cross"):
        part = compare(*(traced_side(trace, name, [kind]) for trace, name in traces))
        parts += [[replace(parting, kind=kind) for parting in part.partings]] if part.partings else []
    for partings in sorted(parts, key=lambda one: one[0].layers[0])[:1]:
        agreement.partings += partings
    agreement.not_compared.append("The decoder was compared too, and not its cache.")
