"""Ways of running the same text that should give the same numbers, and whether they do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors import NotExposedError
from attncli.findings import Finding, Invariance
from attncli.noise import noise_floor
from attncli.tokens import visible

if TYPE_CHECKING:
    from attncli.sources.pretrained.probe import Probe
    from attncli.sources.pretrained.reading import Sentence
    from attncli.sources.pretrained.states import States

    Pairs = Iterable[tuple[States, States]]

# What to do about a change, by its code.
_ADVICE = {
    "batch": "what stands beside a sentence changes it: the attention mask does not reach every layer",
    "padding-side": "position ids have to follow from the attention mask, cumsum − 1, as generate() derives them",
    "cache": "the mask of a later step begins at the wrong key: query i stands at position past + i",
    "backend": "one implementation leaves out a mask or a bias",
    "dtype": "the checkpoint's own type rounds this much",
    "packing": "documents of one sequence reach each other; give a mask of the documents",
}


def invariances(
    probe: Probe, sentences: Sequence[Sentence], reopened: Callable[..., Probe] | None
) -> Iterator[Invariance]:
    """Run sentences in every way and yield how far each is from the sentence alone.

    Args:
        probe: a loaded checkpoint.
        sentences: of different lengths.
        reopened: loads the checkpoint once more in another `dtype`; None leaves that out.
    """

    @cache
    def alone() -> list[States]:
        return [probe.alone(sentence) for sentence in sentences]

    def against(other: Callable[[], Iterable[States]]) -> Callable[[], Pairs]:
        return lambda: zip(alone(), other(), strict=True)

    def eager() -> Iterator[States]:
        if len(probe.backends) == 1:
            raise NotExposedError(f"it has {probe.backends[0]} attention alone")
        return (probe.alone(sentence, backend=1) for sentence in sentences)

    def in_steps() -> Iterator[States]:
        return (probe.with_cache(sentence) for sentence in sentences)

    def packed(has_mask: bool) -> Callable[[], Pairs]:
        return against(lambda: probe.packed(sentences, has_mask))

    def together(side: str) -> Callable[[], Pairs]:
        return against(lambda: probe.together(sentences, side))

    dtype = probe.dtype
    yield compared("batch", "alone, padded right", together("right"), dtype)
    yield compared("padding-side", "alone, padded left", together("left"), dtype)
    yield compared("cache", "whole, in steps", against(in_steps), dtype)
    yield compared("backend", ", ".join(probe.backends), against(eager), dtype)
    by_positions = compared("packing", "alone, packed by positions", packed(False), dtype)
    by_mask = compared("packing", "alone, packed by a mask", packed(True), dtype)
    # Either will do: a model that goes by the positions builds the masks of all its layers from them.
    yield by_positions if by_positions.first is None or by_mask.change is None else by_mask
    if reopened is not None:
        yield _other_dtype(probe, against, lambda name: map(reopened(dtype=name).alone, sentences))


def _other_dtype(
    probe: Probe,
    against: Callable[[Callable[[], Iterable[States]]], Callable[[], Pairs]],
    alone_in: Callable[[str], Iterable[States]],
) -> Invariance:
    """Compare with the type that the checkpoint was saved in, or with float32 where that one runs."""
    other = probe.stored_dtype if probe.stored_dtype != probe.dtype else "float32"
    if other == probe.dtype:
        return Invariance("dtype", other, reason=f"it is {other}")
    return compared(
        "dtype",
        f"{probe.dtype}, {other}",
        against(lambda: alone_in(other)),
        probe.dtype if other == "float32" else other,
    )


def compared(name: str, ways: str, pairs: Callable[[], Pairs], dtype: str) -> Invariance:
    """Return how far two ways of running the same sentences are apart, in this type of number."""
    floor = noise_floor(dtype)
    try:
        found = [change for one, other in pairs() for change in _changes(one, other)]
    except NotExposedError as error:
        return Invariance(name, ways, floor=floor, reason=str(error))
    if not found:
        return Invariance(name, ways, floor=floor, reason="there is nothing to compare")
    change, layer = max(found, key=lambda each: (np.isnan(each[0]), each[0]))
    beyond = [place for size, place in found if not size <= floor]
    first = min(beyond, key=lambda place: (place[1] == "decoder", place[0]), default=None)
    return Invariance(name, ways, change, layer, first, floor)


def findings_of(
    probe: Probe, compared: Iterable[Invariance], is_packed: bool, known: Collection[tuple[int | None, str | None]]
) -> Iterator[Finding]:
    """Yield a finding for every comparison whose change is more than rounding.

    Args:
        probe: the checkpoint.
        compared: what was compared.
        is_packed: whether the sentences are meant to be documents of one sequence.
        known: the layers that have findings already, with their kinds.
    """
    for each in compared:
        if each.first is None:
            continue
        layer, kind = each.first
        advice = _ADVICE[each.name]
        is_note = each.name == "dtype" or (each.name == "packing" and not is_packed)
        if each.name == "padding-side" and layer < 0 and "position_ids" not in probe.checkpoint.parameters:
            is_note = True
            advice = "its positions are absolute and it takes no position ids; pad on the right"
        elif each.first in known:
            advice = "see what else is found in this layer"
        elif layer in probe.checkpoint.other_layers:
            advice = (
                f"layer {layer} has {visible(probe.checkpoint.other_layers[layer])}, which reads what stands before"
            )
        where = f"{'the ' + kind if kind != 'self' else 'the'} embeddings" if layer < 0 else f"{kind} layer {layer}"
        message = f"{each.ways}: hidden states change by {each.change:.2g} of their length, from {where} on"
        place = None if layer < 0 else layer
        yield Finding(each.name, "note" if is_note else "error", message, layer=place, kind=kind, advice=advice)


def _changes(one: States, other: States) -> Iterator[tuple[float, tuple[int, str]]]:
    """Yield the largest change of a token in each layer, relative to the length of its hidden state."""
    for place in one.keys() & other.keys():
        length = np.linalg.norm(one[place], axis=-1)
        change = np.linalg.norm(one[place] - other[place], axis=-1)
        yield float((change / np.maximum(length, np.finfo(np.float32).tiny)).max()), place
