"""What is wrong with one layer's attention to one sentence: its mask, the rows of its weights, its proof."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.findings import MOST_CELLS, Finding
from attncli.masks.algebra import And, Atom, Expression
from attncli.masks.audit import audit, forbidden_by
from attncli.masks.conventions import Reading, read_added
from attncli.masks.files import Loaded
from attncli.masks.fills import audit_fills
from attncli.masks.subject import Subject, single_rows
from attncli.noise import noise_floor

if TYPE_CHECKING:
    from jaxtyping import Bool

    from attncli.sources.pretrained.probe import SeenLayer

_WEIGHED = {"leak", "pad", "document", "window"}  # cells that should have no weight

# What to do about a finding, by its code.
ADVICE = {
    "leak": "the mask must forbid every key after the query, in this layer and in every attention implementation",
    "pad": "the attention mask of the batch must reach this layer",
    "document": "give a mask of the documents; an attention mask of ones beside restarting positions turns them off",
    "window": "compare the window with `attn mask model`; transformers' window of w keys includes the query's own",
    "missing": "the mask forbids too much; compare with `attn mask model`",
    "no-mask": "build the mask before the layers and hand it to each of them",
    "row-sum": "look for a dropout that is on, a softmax over another axis, or a mask applied after it",
    "proof": "the layer does something to its weights or values that is not attention as configured",
    "double-fill": "combine masks as booleans, and make numbers of them once",
}


def layer_findings(layer: SeenLayer, dtype: str) -> Iterator[Finding]:
    """Yield what is wrong with a layer; cells are counted from the sentence's first token, padding after its last.

    Args:
        layer: one layer's attention to one sentence.
        dtype: what the model computes in.
    """
    expected = _expected(layer)
    subject = _subject(layer, dtype)
    yield from _received(layer, subject, expected)
    for finding in [*audit(subject, expected, subject.size), *audit_fills(subject, dtype)]:
        if finding.code == "missing" and not layer.implied.is_exact:
            continue  # a layer that chooses among its keys
        weighed = _weighed(finding, layer, subject, expected) if finding.code in _WEIGHED else finding
        # A window that is too narrow misses keys; what is wrong with it is the window.
        yield replace(weighed, code="window") if finding.code == "missing" and layer.implied.window else weighed
    yield from _rows(layer, subject, dtype)
    proof = layer.trace.proof
    if proof is not None and not proof.max_abs_error <= noise_floor(dtype):
        message = (
            f"weights·V differs from {proof.against} by {proof.max_abs_error:.2g}, the rounding of {dtype} explains "
            f"{noise_floor(dtype):g}"
        )
        yield Finding("proof", "error", message)


def _expected(layer: SeenLayer) -> Expression:
    """Return the mask that the layer should have here: as the configuration implies, padding and documents apart."""
    sides = [layer.implied.expression]
    if padding := layer.trace.num_keys - (layer.keys.stop - layer.keys.start):
        sides.append(Atom("pad", (), (("right", padding),)))
    if layer.documents:
        sides.append(Atom("docs", layer.documents))
    return sides[0] if len(sides) == 1 else And(tuple(sides))


def _subject(layer: SeenLayer, dtype: str) -> Subject:
    """Return the mask of the rows that are no padding, with the values that said so where these are known."""
    trace = layer.trace
    rows = np.arange(trace.num_queries)[layer.queries]
    if layer.mask is None:
        allowed = trace.mask.rows(list(range(trace.num_heads)), rows)
        alike = _sentence_first(allowed[:1] if (allowed == allowed[:1]).all() else allowed, layer)
        return Subject("mask", alike, _planes(alike), 0)
    planes = len(layer.mask)
    values = layer.mask[..., : trace.num_keys]
    values = _sentence_first(np.broadcast_to(values, (planes, trace.num_queries, trace.num_keys))[:, rows], layer)
    reading = Reading("attend", "booleans", values) if values.dtype == bool else read_added(values)
    return Subject("mask", reading.allowed, _planes(values), 0, None, Loaded(values, dtype), reading)


def _sentence_first(columns: np.ndarray[Any, Any], layer: SeenLayer) -> np.ndarray[Any, Any]:
    """Return `[…, K]` with padding before the sentence moved behind it: a chunk begins where the sentence does."""
    return np.roll(columns, -layer.keys.start, axis=-1)


def _planes(values: np.ndarray[tuple[int, int, int], np.dtype[np.generic]]) -> tuple[str, ...]:
    return ("",) if len(values) == 1 else tuple(f"head {head}" for head in range(len(values)))


def _received(layer: SeenLayer, subject: Subject, expected: Expression) -> Iterator[Finding]:
    """Yield what is wrong with what was handed to the layer: nothing, or numbers that forbid nothing."""
    grid = single_rows(expected, subject.size, np.arange(len(subject.allowed[0])))
    if not layer.has_mask and not expected.allowed(grid).all():
        yield Finding("no-mask", "error", f"no mask reached the layer; it should be {layer.implied.expression}")
    if subject.loaded is not None and subject.loaded.values.dtype != bool:
        values = subject.loaded.values
        if (values == 1).any() and ((values == 0) | (values == 1)).all():
            message = "the mask of 0 and 1 is added to the scores as it is, which forbids nothing"
            yield Finding("ambiguous", "error", message, int((values == 1).sum()))


def _weighed(finding: Finding, layer: SeenLayer, subject: Subject, expected: Expression) -> Finding:
    """Return a finding about cells with the weight that they get in the head that gives them most."""
    grid = single_rows(expected, subject.size, np.arange(len(subject.allowed[0])))
    forbidden = forbidden_by(expected, grid)[finding.code]
    most, worst = -1.0, 0
    for head in range(layer.trace.num_heads):
        cells = subject.allowed[head if len(subject.allowed) > 1 else 0] & forbidden
        rows = np.flatnonzero(cells.any(axis=-1))
        if rows.size:
            weights = layer.trace.head(head, (rows + layer.queries.start).tolist()).weights
            weights = _sentence_first(weights, layer)
            given = float(np.nansum(np.where(cells[rows], weights, 0), axis=-1).max())
            most, worst = max((most, worst), (given, head))
    message = f"{finding.message}; up to {most:.2g} of a row's weight, in head {worst}"
    return replace(finding, message=message, head=worst)


def _rows(layer: SeenLayer, subject: Subject, dtype: str) -> Iterator[Finding]:
    """Yield what is wrong with the weights that the model itself computed, in rows that have a key."""
    sums = layer.sums[:, layer.queries]
    has_key: Bool[np.ndarray, "H Q"] = np.broadcast_to(subject.allowed.any(axis=2), sums.shape)
    is_dead = (np.isnan(sums) | (sums == 0)) & has_key
    # Sinks take a share of each row and show none.
    apart = np.maximum(sums - 1, 0) if layer.trace.sinks is not None else np.abs(sums - 1)
    is_off = (apart > noise_floor(dtype)) & has_key & ~is_dead
    if is_dead.any():
        kind = "NaN" if np.isnan(sums[is_dead]).any() else "zero"
        yield _of_rows("dead-row", f"rows of weights are {kind} though the mask leaves them keys", is_dead)
    if is_off.any():
        furthest = sums[is_off][np.abs(sums[is_off] - 1).argmax()]
        yield _of_rows(
            "row-sum", f"rows of weights do not sum to 1 but to {furthest:.4g}, and there is no sink", is_off
        )


def _of_rows(code: str, said: str, where: Bool[np.ndarray, "H Q"]) -> Finding:
    rows = np.flatnonzero(where.any(axis=0))
    heads = np.flatnonzero(where.any(axis=1))
    count = int(np.count_nonzero(where))
    message = f"{count} {said}, in {len(heads)} head{'s' * (len(heads) > 1)}"
    return Finding(code, "error", message, count, rows=tuple(rows[:MOST_CELLS].tolist()), head=int(heads[0]))
