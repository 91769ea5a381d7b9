"""Ways of running the same text that should give the same numbers, and whether they do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.check.report import Invariance
from attncli.analysis.check.states import RunFailedError
from attncli.attention import HALF, noise_floor
from attncli.errors import NotExposedError
from attncli.masks.findings import Finding
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.analysis.check.model_runner import ModelRunner
    from attncli.analysis.check.states import States
    from attncli.encoding.encode import EncodedInput

# What to do about a change, by its code.
_ADVICE = {
    "batch": "what stands beside a sentence changes it: the attention mask does not reach every layer",
    "padding-side": "position ids have to follow from the attention mask, cumsum − 1, as generate() derives them",
    "cache": "the mask of a later step begins at the wrong key: query i stands at position past + i",
    "backend": "one implementation leaves out a mask or a bias",
    "dtype": "the checkpoint's own type rounds this much",
    "packing": "documents of one sequence reach each other; give a mask of the documents",
}

_MARGIN = 4  # where one rounding moves a choice, as of experts, another may move it elsewhere


@dataclass
class _RunModes:
    """Sentences run alone, to be compared with themselves run in other ways.

    Attributes:
        runner: a loaded checkpoint.
        sentences: of different lengths.
        floor: the largest change that is rounding.
    """

    runner: ModelRunner
    sentences: Sequence[EncodedInput]
    floor: float

    @cached_property
    def alone(self) -> list[States]:
        """The hidden states of each sentence run alone."""
        return [self.runner.alone(sentence) for sentence in self.sentences]

    def compare(self, name: str, ways: str, other: Callable[[], Iterable[States]]) -> Invariance:
        """Run the sentences in another way, and compare their hidden states with those of each alone."""
        result = Invariance(name, ways, floor=self.floor)
        alone: list[States] = []
        try:
            alone = self.alone
            changes = _largest(zip(alone, other(), strict=True))
        except RunFailedError as error:
            # What does not run alone either is said once, of the implementations.
            reason, has_failed = (str(error), True) if alone else (f"alone {error}", name == "backend")
            return replace(result, reason=reason, has_failed=has_failed)
        except NotExposedError as error:
            return replace(result, reason=str(error))
        if not changes:
            return replace(result, reason="there is nothing to compare")
        place, change = max(changes.items(), key=lambda each: (np.isnan(each[1]), each[1]))
        first = next((place for place, size in changes.items() if not size <= self.floor), None)
        return replace(result, change=change, layer=place, first=first, changes=changes)


def invariances(
    runner: ModelRunner, sentences: Sequence[EncodedInput], reopened: Callable[[str], ModelRunner] | None
) -> Iterator[Invariance]:
    """Run sentences in every way, and yield how far their hidden states are from those of each sentence alone.

    Args:
        runner: a loaded checkpoint.
        sentences: of different lengths.
        reopened: loads the checkpoint once more in another `dtype`; None leaves that out.
    """
    ways = _RunModes(runner, sentences, noise_floor(runner.dtype))
    dtype = None if reopened is None else _other_dtype(ways, reopened)
    if runner.dtype in HALF and dtype is not None and dtype.change is not None:
        # What a type of few digits does to this model is known now; nothing finer can be told apart.
        ways.floor = max(ways.floor, _MARGIN * dtype.change)
    right = ways.compare("batch", "alone, padded right", lambda: runner.together(sentences, "right"))
    left = ways.compare("padding-side", "alone, padded left", lambda: runner.together(sentences, "left"))
    yield right
    yield left
    in_steps = ways.compare("cache", "whole, in steps", lambda: map(runner.with_cache, sentences))
    yield in_steps
    # Where padding alone makes no difference.
    if in_steps.change is not None and (right if runner.is_beside_encoder else left).first is None:
        yield ways.compare("cache", "whole, padded in steps", lambda: runner.with_cache_together(sentences))
    yield ways.compare("backend", ", ".join(runner.backends), lambda: _in_eager(runner, sentences))
    by_positions = ways.compare("packing", "alone, packed by positions", lambda: runner.packed(sentences, False))
    by_mask = ways.compare("packing", "alone, packed by a mask", lambda: runner.packed(sentences, True))
    # Either will do: a model that goes by the positions builds the masks of all its layers from them.
    yield by_positions if by_positions.first is None or by_mask.change is None else by_mask
    if dtype is not None:
        yield dtype


def _in_eager(runner: ModelRunner, sentences: Sequence[EncodedInput]) -> Iterator[States]:
    if len(runner.backends) == 1:
        raise NotExposedError(f"it has {runner.backends[0]} attention alone")
    for sentence in sentences:
        yield runner.alone(sentence, backend=1)


def _other_dtype(ways: _RunModes, reopened: Callable[[str], ModelRunner]) -> Invariance:
    """Compare with the type that the checkpoint was saved in, or with float32 where that one runs."""
    own = ways.runner.dtype
    other = ways.runner.stored_dtype if ways.runner.stored_dtype != own else "float32"
    if other == own:
        return Invariance("dtype", other, reason=f"it is {other}")
    coarser = _RunModes(ways.runner, ways.sentences, noise_floor(own if other == "float32" else other))
    return coarser.compare("dtype", f"{own}, {other}", lambda: map(reopened(other).alone, ways.sentences))


def _largest(pairs: Iterable[tuple[States, States]]) -> dict[tuple[int, str], float]:
    """Return the largest change of a token in each layer, relative to the length of its hidden state."""
    found: dict[tuple[int, str], float] = {}
    for one, other in pairs:
        for place in one.keys() & other.keys():
            length = np.linalg.norm(one[place], axis=-1)
            change = np.linalg.norm(one[place] - other[place], axis=-1)
            most = float((change / np.maximum(length, np.finfo(np.float32).tiny)).max())
            found[place] = float(np.maximum(found.get(place, 0.0), most))  # NaN stays
    return dict(sorted(found.items(), key=lambda each: (each[0][1] == "decoder", each[0][0])))


def findings_of(
    runner: ModelRunner,
    compared: Iterable[Invariance],
    is_packed: bool,
    reported: Collection[tuple[int | None, str | None]],
) -> Iterator[Finding]:
    """Yield a finding for every comparison whose change is more than rounding.

    Args:
        runner: the checkpoint.
        compared: what was compared.
        is_packed: whether the sentences are meant to be documents of one sequence.
        reported: the layers that have findings already, with their kinds.
    """
    for each in compared:
        is_note = each.name == "dtype" or (each.name == "packing" and not is_packed)
        if each.has_failed:
            yield Finding(each.name, "note" if is_note else "error", f"{each.ways}: {each.reason}")
        if each.first is None:
            continue
        layer, kind = each.first
        advice = _ADVICE[each.name]
        if each.name == "padding-side" and layer < 0 and "position_ids" not in runner.checkpoint.parameters:
            is_note = True
            advice = "its positions are absolute and it takes no position ids; pad on the right"
        elif each.first in reported:
            advice = "see what else is found in this layer"
        elif each.change is not None and np.isnan(each.change):
            advice = "the model itself gives NaN"
        elif layer in runner.checkpoint.other_layers:
            other = visible(runner.checkpoint.other_layers[layer])
            advice = f"layer {layer} has {other}, which reads what stands before"
        where = f"{'the ' + kind if kind != 'self' else 'the'} embeddings" if layer < 0 else f"{kind} layer {layer}"
        message = f"{each.ways}: hidden states change by {each.change:.2g} of their length, from {where} on"
        place = None if layer < 0 else layer
        yield Finding(each.name, "note" if is_note else "error", message, layer=place, kind=kind, advice=advice)
