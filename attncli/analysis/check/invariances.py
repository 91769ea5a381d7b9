"""Ways of running the same text that should give the same numbers, compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.check.model_runner import ModelRunner, RunFailedError, SentenceRun
from attncli.analysis.check.report import Invariance
from attncli.attention import HALF, noise_floor
from attncli.errors import NotExposedError
from attncli.masks.findings import Finding
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.encoding.encode import EncodedInput

_ADVICE = {  # by the code of a change
    "batch": "what stands beside a sentence changes it: the attention mask does not reach every layer",
    "padding-side": "position ids have to follow from the attention mask, cumsum − 1, as generate() derives them",
    "cache": "the mask of a later step begins at the wrong key: query i stands at position past + i",
    "backend": "one implementation leaves out a mask or a bias",
    "packing": "documents of one sequence reach each other; give a mask of the documents",
}


def invariances(runner: ModelRunner, sentences: Sequence[EncodedInput]) -> Iterator[Invariance]:
    """Run sentences of different lengths in every way, and yield how far they are from each sentence alone."""
    floor = noise_floor(runner.dtype)

    @cache
    def alone() -> list[SentenceRun]:
        return [runner.alone(sentence) for sentence in sentences]

    def compare(name: str, ways: str, other: Callable[[], Iterable[SentenceRun]]) -> Invariance:
        result = Invariance(name, ways, floor=floor)
        runs_alone, sizes = False, dict[tuple[int, str], float]()
        try:
            runs_alone = bool(alone())
            for sublayer, size in chain.from_iterable(map(runner.changes, alone(), other())):
                sizes[sublayer] = float(np.maximum(sizes.get(sublayer, 0.0), size))  # NaN stays
        except RunFailedError as error:
            # What does not run alone either is said once, of the implementations.
            reason, has_failed = (str(error), True) if runs_alone else (f"alone {error}", name == "backend")
            return replace(result, reason=reason, has_failed=has_failed)
        except NotExposedError as error:
            return replace(result, reason=str(error))
        if not sizes:
            return replace(result, reason="there is nothing to compare")
        sizes = dict(sorted(sizes.items(), key=lambda item: (item[0][1] == "decoder", item[0][0])))
        sublayer, change = max(sizes.items(), key=lambda item: (np.isnan(item[1]), item[1]))
        first = next((place for place, size in sizes.items() if not size <= floor), None)
        return replace(result, change=change, layer=sublayer, first=first, changes=sizes)

    right = compare("batch", "alone, padded right", lambda: runner.together(sentences, "right"))
    left = compare("padding-side", "alone, padded left", lambda: runner.together(sentences, "left"))
    in_steps = compare("cache", "whole, in steps", lambda: map(runner.with_cache, sentences))
    # Where padding alone makes no difference, a padded batch is generated too.
    if in_steps.change is not None and (right if runner.is_beside_encoder else left).first is None:
        padded = compare("cache", "whole, padded in steps", lambda: runner.with_cache_together(sentences))
        in_steps = padded if padded.has_failed or not (padded.change or 0) <= in_steps.change else in_steps
    yield from (right, left, in_steps)
    yield compare("backend", ", ".join(runner.backends), lambda: map(runner.alone_in_eager, sentences))
    yield compare("packing", "alone, packed by positions", lambda: runner.packed(sentences))


def findings_of(
    runner: ModelRunner, compared: Iterable[Invariance], reported: Collection[tuple[int | None, str | None]]
) -> Iterator[Finding]:
    """Yield a finding for every comparison whose change is more than rounding.

    Args:
        runner: the checkpoint.
        compared: the comparisons.
        reported: the layers that have findings already, with their kinds.
    """
    other_layers = runner.checkpoint.other_layers
    for invariance in compared:
        is_note = invariance.name == "packing"  # no program says that they are packed
        if invariance.has_failed:
            yield Finding(invariance.name, "note" if is_note else "error", f"{invariance.ways}: {invariance.reason}")
        if invariance.first is None:
            continue
        layer, kind = invariance.first
        advice = _ADVICE[invariance.name]
        if invariance.name == "padding-side" and layer < 0 and "position_ids" not in runner.checkpoint.parameters:
            is_note = True
            advice = "its positions are absolute and it takes no position ids; pad on the right"
        elif invariance.first in reported:
            advice = "see what else is found in this layer"
        elif invariance.change is not None and np.isnan(invariance.change):
            advice = "the model itself gives NaN"
        elif runner.dtype in HALF:  # where one rounding moves a choice, as of experts, there is no floor
            is_note = True
            advice = f"rounding of {runner.dtype} may change as much; --dtype float32 tells"
        elif layer in other_layers:
            advice = f"layer {layer} has {visible(other_layers[layer])}, which reads what stands before"
        where = f"{'the ' + kind if kind != 'self' else 'the'} embeddings" if layer < 0 else f"{kind} layer {layer}"
        message = f"{invariance.ways}: hidden states change by {invariance.change:.2g} of their length, from {where} on"
        index = None if layer < 0 else layer
        yield Finding(invariance.name, "note" if is_note else "error", message, layer=index, kind=kind, advice=advice)
