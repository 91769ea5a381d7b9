"""Findings of one layer's attention to one sentence: its mask, the rows of its weights, its proof."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.attention import FORBIDDEN_BELOW, noise_floor
from attncli.engines.torch.expected_masks import ExpectedMask
from attncli.engines.torch.load import set_backend
from attncli.engines.torch.recorder import record
from attncli.files import to_numpy
from attncli.masks.audit import audit, audit_fills, forbidden_by
from attncli.masks.comparison import compare
from attncli.masks.conventions import read_as
from attncli.masks.expressions import one_plane
from attncli.masks.files import StoredMask
from attncli.masks.findings import MOST_CELLS, Finding
from attncli.masks.mask_grid import MaskGrid, grid_of_expression, grid_rows
from attncli.text import as_ranges, plural
from attncli.trace.layer import LayerTrace

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from attncli.analysis.check.invariances import ModelRunner
    from attncli.encoding.encode import EncodedInput
    from attncli.engines.torch.recorder import Sublayer
    from attncli.recording.call import AttentionCall

_WEIGHED = {"leak", "window"}  # cells that should have no weight
_MOST_DRAWN = 2**16  # cells of a mask whose wrong cells are drawn
_A_CHOICE = 2  # keys; of so few a row may well be even
_ALIKE, _ALIKE_VALUES = 1e-6, 1e-4

# What to do about a finding, by its code.
ADVICE = {
    "leak": "the mask must forbid every key after the query, in this layer and in every attention implementation",
    "pad": "the attention mask of the batch must reach this layer",
    "window": "compare with `attn mask model`: a window of w keys in transformers includes the query itself",
    "missing": "compare the mask with `attn mask model`",
    "no-mask": "build the mask before the layers and pass it to each of them",
    "row-sum": "look for a dropout that is on, a softmax over another axis, or a mask applied after it",
    "proof": "the layer changes its weights or values in a way that its configuration does not state",
    "dead-row": "look for a mask that leaves no key, lost weights, or a scale of zero",
    "double-fill": "combine masks as booleans, and make numbers of them once",
}


@dataclass(frozen=True)
class CapturedLayer:
    """Attention of one layer to one sentence of a padded batch."""

    trace: LayerTrace  # over all rows and columns of the batch
    implied: ExpectedMask
    queries: slice  # the rows that are tokens of the sentence, and no padding
    keys: slice  # the columns that are
    call: AttentionCall  # of the batch
    row: int  # of the batch

    @property
    def mask(self) -> Any:
        """Values `[1 or H, Q, K]` of the mask that hides keys; None where there are several, or these are not known."""
        masks = [
            one for one in self.call.masks if one.convention != "additive" or (one.values <= FORBIDDEN_BELOW).any()
        ]
        values = masks[0].values if len(masks) == 1 else None
        if values is None or not values.is_floating_point():
            return None
        return to_numpy(values[self.row if len(values) > 1 else 0])


def captured(
    runner: ModelRunner, sentences: Sequence[EncodedInput], side: str
) -> Iterator[dict[Sublayer, CapturedLayer]]:
    """Run sentences in one batch, padded on a side, and yield the layers of each."""
    model, checkpoint = runner.model, runner.checkpoint
    takes_mask = "attention_mask" in checkpoint.parameters
    request = replace(checkpoint.request, keeps_calls=True)
    for batched in [sentences] if takes_mask else [[sentence] for sentence in sentences]:
        batch = checkpoint.batched(batched, side)
        set_backend(model, "eager")
        rows = batch._replace(spans=[batch.whole] * len(batch.spans))
        recorded = record(model, model, rows, request, checkpoint.kinds)
        for row, (layers, span) in enumerate(zip(recorded.layers, batch.spans, strict=True)):
            yield {
                place: CapturedLayer(layer, runner.implied[place], *span.of(place[1]), recorded.calls[place], row)
                for place, layer in layers.items()
            }


def layer_findings(layer: CapturedLayer, dtype: str) -> Iterator[Finding]:
    """Yield what is wrong with a layer of a model of a dtype; cells are counted from the sentence's first token."""
    expected = layer.implied.expression
    batch_mask, mask = _subject(layer, slice(None)), _subject(layer, layer.keys)
    grid = grid_rows(mask, np.arange(mask.shape[-2]))
    needs_none = expected.allowed(grid).all() and layer.keys == slice(0, layer.trace.num_keys)
    if not layer.call.masks and not needs_none:
        yield Finding("no-mask", "error", f"no mask reached the layer; expected {expected}")
    yield from (finding for finding in layer.call.findings if finding.severity == "error")
    is_drawn = layer.implied.is_exact and mask.cells.size <= _MOST_DRAWN
    compared = compare(mask, grid_of_expression(expected, mask.size)) if is_drawn else None
    for finding in [*audit(mask, expected, mask.size), *audit_fills(batch_mask, dtype)]:
        if not layer.implied.is_exact and finding.code in ("missing", "varies"):
            continue  # a layer that chooses among its keys, or one of which nothing is known
        cells = forbidden_by(expected, grid)
        weighed = _weighed(finding, layer, mask.allowed & cells[finding.code]) if finding.code in _WEIGHED else finding
        weighed = replace(weighed, comparison=compared if finding.cells and finding.code != "varies" else None)
        # A window that is too narrow misses keys; what is wrong with it is the window.
        yield replace(weighed, code="window") if finding.code == "missing" and layer.implied.window else weighed
    yield from _foreign(layer, batch_mask)
    yield from _rows(layer, mask, dtype)
    yield from _uniform(layer, mask)
    if not layer.trace.is_proven(dtype):
        proof = layer.trace.proof
        assert proof is not None
        message = f"weights·V differs from {proof.against} by {proof.max_abs_error:.2g}, more than {dtype} rounds"
        yield Finding("proof", "error", message)


def _subject(layer: CapturedLayer, columns: slice) -> MaskGrid:
    """Return the mask of the sentence's rows over some columns, with its values where these are known."""
    trace = layer.trace
    rows = np.arange(trace.num_queries)[layer.queries]
    if (values := layer.mask) is None:
        return MaskGrid("mask", one_plane(trace.mask_cells[:, rows, columns]), 0)
    shape = len(values), trace.num_queries, trace.num_keys
    values = np.broadcast_to(values[..., : trace.num_keys], shape)[:, rows, columns]
    reading = read_as(values, "attend" if values.dtype == bool else "additive")
    return MaskGrid("mask", reading.allowed, 0, None, StoredMask(values, None), reading)


def _foreign(layer: CapturedLayer, batch_mask: MaskGrid) -> Iterator[Finding]:
    """Yield the cells outside the sentence that it may attend to, which are padding."""
    cells = batch_mask.allowed.copy()
    cells[..., layer.keys] = False
    if not (count := int(cells.any(axis=0).sum())):
        return
    places = np.argwhere(cells.any(axis=0))[:MOST_CELLS] - (0, layer.keys.start)
    message = f"attends to padding in {plural(count, 'cell')}"
    finding = Finding("pad", "error", message, count, tuple((int(row), int(key)) for row, key in places))
    if cells.size <= _MOST_DRAWN:
        sentence = batch_mask._replace(cells=batch_mask.allowed & ~cells, name="the sentence")
        finding = replace(finding, comparison=replace(compare(batch_mask, sentence), first_key=-layer.keys.start))
    yield _weighed(finding, layer, cells)


def _weighed(finding: Finding, layer: CapturedLayer, cells: Bool[np.ndarray, "#H Q K"]) -> Finding:
    """Return a finding about cells with the weight that they get in the head that gives them most."""
    columns = slice(None) if cells.shape[-1] == layer.trace.num_keys else layer.keys

    def most(head: int) -> float:
        where = cells[head % len(cells)]
        rows = np.flatnonzero(where.any(axis=-1))
        weights = _weights(layer, head, rows, columns)
        return float(np.nansum(np.where(where[rows], weights, 0), axis=-1).max(initial=-1))

    weight, worst = max((most(head), head) for head in range(layer.trace.num_heads))
    message = f"{finding.message}, with up to {weight:.2g} of a row's weight in head {worst}"
    return replace(finding, message=message, head=worst)


def _weights(layer: CapturedLayer, head: int, rows: Int[np.ndarray, " N"], columns: slice) -> Float[np.ndarray, "N K"]:
    """Return the weights of some rows of the sentence."""
    return layer.trace.head(head, (rows + layer.queries.start).tolist()).weights[:, columns]


def _uniform(layer: CapturedLayer, mask: MaskGrid) -> Iterator[Finding]:
    """Yield the heads that weigh all keys alike in every row that has a choice."""
    heads = []
    for head in range(layer.trace.num_heads):
        allowed = mask.allowed[head % len(mask.allowed)]
        rows = np.flatnonzero(allowed.sum(axis=1) > _A_CHOICE)
        weights = _weights(layer, head, rows, layer.keys)
        most, least = (np.where(allowed[rows], weights, end) for end in (-np.inf, np.inf))
        most, least = most.max(axis=1), least.min(axis=1)
        if rows.size and (most - least <= _ALIKE * most).all() and not _is_one_token(layer, head):
            heads.append(head)
    if heads:
        message = f"{plural(len(heads), 'head')} weigh all keys alike in every row: {as_ranges(heads)}"
        yield Finding("dead-row", "error", message, len(heads), head=heads[0])


def _is_one_token(layer: CapturedLayer, head: int) -> bool:
    """Return whether all values are alike, as for one token repeated: there is nothing to choose."""
    if layer.trace.v is None:
        return False
    values = layer.trace.v[head * layer.trace.num_groups // layer.trace.num_heads, layer.keys]
    return bool(values.any() and np.ptp(values, axis=0).max() <= _ALIKE_VALUES * np.abs(values).max())


def _rows(layer: CapturedLayer, subject: MaskGrid, dtype: str) -> Iterator[Finding]:
    """Yield what is wrong with the weights that the model itself computed, in rows that have a key."""
    heads = range(layer.trace.num_heads)
    sums = np.stack([layer.trace.head(head).weights.sum(axis=-1)[layer.queries] for head in heads])
    has_key: Bool[np.ndarray, "H Q"] = np.broadcast_to(subject.allowed.any(axis=2), sums.shape)
    is_dead = (np.isnan(sums) | (sums == 0)) & has_key
    # Sinks take a share of each row and show none.
    apart = np.maximum(sums - 1, 0) if layer.trace.sinks is not None else np.abs(sums - 1)
    is_off = (apart > noise_floor(dtype)) & has_key & ~is_dead
    kind = "NaN" if np.isnan(sums[is_dead]).any() else "zero"
    furthest = sums[is_off][np.abs(sums[is_off] - 1).argmax()] if is_off.any() else 1
    for code, words, where in (
        ("dead-row", f"rows of weights are {kind} although the mask allows keys", is_dead),
        ("row-sum", f"rows of weights do not sum to 1 but to {furthest:.4g}, and there is no sink", is_off),
    ):
        if count := int(np.count_nonzero(where)):
            worst, rows = (np.flatnonzero(where.any(axis=axis)).tolist() for axis in (1, 0))
            message = f"{count} {words}, in {plural(len(worst), 'head')}"
            yield Finding(code, "error", message, count, rows=tuple(rows[:MOST_CELLS]), head=worst[0])
