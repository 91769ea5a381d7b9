"""The pass of a thread through a model: the calls of a step as they come, and what inputs of modules say of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from attncli.analysis.calls.steps import Beside, Taken
from attncli.analysis.calls.tracks import Track
from attncli.sources.live.inputs import Told


@dataclass(eq=False)
class Pass:
    """What a thread is in the middle of: the step of which calls are still to come.

    Attributes:
        tracks: of its calls.
        calls: with what was said of their batches.
        taken: how many calls the thread has made.
        pending: what was said of the calls to come, and how many there had been then.
    """

    tracks: list[Track] = field(default_factory=list)
    calls: list[Beside] = field(default_factory=list)
    taken: int = 0
    pending: list[tuple[int, Told]] = field(default_factory=list)

    def add(self, track: Track, taken: Taken) -> None:
        """Take in a call."""
        self.tracks.append(track)
        self.calls.append(Beside(taken, tuple(told for _, told in self.pending)))
        self.taken += 1

    def tell(self, told: Told, since: int) -> None:
        """Take in what was said of the calls since the thread had made so many, or else of those to come."""
        inside = min(self.taken - since, len(self.calls))
        if not inside and not any(one.digest == told.digest for _, one in self.pending):
            self.pending.append((self.taken, told))
        for index in range(len(self.calls) - inside, len(self.calls)):
            beside = self.calls[index]
            if told.digest not in [one.digest for one in beside.told]:
                self.calls[index] = beside._replace(told=(*beside.told, told))

    def tokens(self, batch: int, keys: int) -> Told | None:
        """Return what was said of which keys of the call to come are padding; None where nothing was, or several."""
        fits = [one for _, one in self.pending if (one.kind, one.size, len(one.values)) == ("tokens", keys, batch)]
        return fits[0] if len(fits) == 1 else None

    def end(self) -> Step:
        """Return the step, and begin another."""
        step = Step(tuple(self.tracks), tuple(self.calls))
        begun = self.taken - len(self.calls)
        self.pending = [one for one in self.pending if one[0] > begun]  # what was said for this step is over
        self.tracks, self.calls = [], []
        return step


class Step(NamedTuple):
    """The calls of a step, and the modules that made them."""

    tracks: tuple[Track, ...]
    calls: tuple[Beside, ...]

    @property
    def key(self) -> tuple[tuple[int, ...], ...]:
        """What tells it from other steps, as long as it is kept: calls that are equal are one object."""
        pairs = zip(self.tracks, self.calls, strict=True)
        return tuple((id(track), id(call), *(one.digest for one in told)) for track, (call, told) in pairs)

    @property
    def size(self) -> int:
        """How many bytes its masks take."""
        masks = [beside.call.mask for beside in self.calls if beside.call.mask is not None]
        return sum({id(one): one.nbytes for mask in masks for one in mask.given}.values())
