"""The pass of a thread through a model: the calls of a step as they come, and what inputs of modules say of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.analysis.calls.masks import CallMask
from attncli.analysis.calls.objective import answered
from attncli.analysis.calls.steps import CallContext, Taken
from attncli.analysis.calls.tracks import Track
from attncli.recording.call import CallSite
from attncli.recording.input_hint import InputHint
from attncli.recording.lineage import Lineage

if TYPE_CHECKING:
    from jaxtyping import Bool

    from attncli.recording.losses import Loss


_BYTES_OF_A_CALL = 2048
_MOST_PENDING = 64  # that are kept where no call comes


class _Pending(NamedTuple):
    """What was said of the calls to come.

    Attributes:
        calls: how many calls had been made then.
        order: how much had been said before.
        told: what was said.
    """

    calls: int
    order: int
    told: InputHint


@dataclass(eq=False)
class Pass:
    """What a thread is in the middle of: the step of which calls are still to come.

    Attributes:
        tracks: of its calls.
        calls: with what was said of their batches.
        lineages: what the calls were computed from.
        taken: how many calls the thread has made.
        pending: what was said of the calls to come.
        said: how much was said.
        prompts: which keys of the last call of a function without a cache were tokens, by its own mask.
        prompt: what was said of the last call with a cache.
    """

    tracks: list[Track] = field(default_factory=list)
    calls: list[CallContext] = field(default_factory=list)
    lineages: list[Lineage | None] = field(default_factory=list)
    taken: int = 0
    pending: list[_Pending] = field(default_factory=list)
    said: int = 0
    prompts: dict[CallSite, Bool[np.ndarray, "B K"]] = field(default_factory=dict)
    prompt: InputHint | None = None

    def add(self, track: Track, taken: Taken, lineage: Lineage | None) -> None:
        """Take in a call."""
        self.tracks.append(track)
        self.lineages.append(lineage)
        prompt = None if taken.mask is None else self._prompt(taken.place, taken.mask)
        self.calls.append(CallContext(taken, self._told if prompt is None else (*self._told, prompt)))
        self.taken += 1

    def _prompt(self, place: CallSite, mask: CallMask) -> InputHint | None:
        """Return which keys of a call with a cache are tokens: those of the prompt, and all that came since."""
        place = place._replace(line=0)  # what has a mask and what has none may be two lines of a function
        batch, _, queries, keys = mask.shape
        if queries == keys:
            self.prompts[place] = mask.rule.tokens
        tokens = self.prompts.get(place)
        if tokens is None or len(tokens) != batch or tokens.shape[1] > keys or queries == keys > 1:
            return None
        tokens = np.pad(tokens, ((0, 0), (0, keys - tokens.shape[1])), constant_values=True)
        digest = hash(("prompt", tokens.shape, tokens.tobytes()))
        if self.prompt is None or self.prompt.digest != digest:  # layers share it, as it may be kept
            self.prompt = InputHint("prompt", tokens.astype(np.int8), keys, digest)
        return self.prompt

    @property
    def _told(self) -> tuple[InputHint, ...]:
        return tuple({one.told.digest: one.told for one in self.pending}.values())

    def tell(self, told: InputHint) -> None:
        """Take in what was said of the calls to come."""
        self.said += 1
        self.pending = [*self.pending[-_MOST_PENDING:], _Pending(self.taken, self.said, told)]

    def begins(self) -> tuple[int, int]:
        """Return how many calls were made, and how much was said, when a module begins."""
        return self.taken, self.said

    def ends(self, begun: tuple[int, int]) -> int:
        """Return how many calls a module made; what was said inside of it ends with it, if it made some."""
        calls, said = begun
        if self.taken > calls and self.said > said:
            self.pending = [one for one in self.pending if one.order <= said]
        return self.taken - calls

    def positions(self, queries: int) -> InputHint | None:
        """Return what was said last of where so many queries stand."""
        said = (one.told for one in reversed(self.pending) if one.told.kind == "positions")
        return next((told for told in said if told.size in (0, queries)), None)

    def encoded(self) -> Bool[np.ndarray, "B K"] | None:
        """Return which keys of the last call are tokens, if it is of one sequence whose padding is known."""
        return self.calls[-1].encoded() if self.calls else None

    def attends_to(self, told: InputHint) -> None:
        """Take in of what the keys of the last call were made."""
        if self.calls:
            self.calls[-1] = self.calls[-1].with_told(told)

    def tokens(self, batch: int, keys: int) -> InputHint | None:
        """Return what was said of which keys of the call to come are padding; None where nothing was, or several."""
        fits = [one for one in self._told if (one.kind, one.size, len(one.values)) == ("tokens", keys, batch)]
        return fits[0] if len(fits) == 1 else None

    def learn(self, loss: Loss) -> None:
        """Take in a loss, which may ask for what its calls show."""
        masks = (beside.call.mask for beside in self.calls)
        for index, told in answered([*zip(masks, self.lineages, strict=True)], loss):
            self.calls[index] = self.calls[index].with_told(told)

    def end(self) -> Step:
        """Return the step, and begin another."""
        step = Step(tuple(self.tracks), tuple(self.calls))
        begun = self.taken - len(self.calls)
        self.pending = [one for one in self.pending if one.calls > begun]  # what was said for this step is over
        self.tracks, self.calls, self.lineages = [], [], []
        return step


class Step(NamedTuple):
    """The calls of a step, and the modules that made them."""

    tracks: tuple[Track, ...]
    calls: tuple[CallContext, ...]

    @property
    def key(self) -> tuple[tuple[int, ...], ...]:
        """What tells it from other steps, as long as it is kept: calls that are equal are one object."""
        pairs = zip(self.tracks, self.calls, strict=True)
        return tuple((id(track), id(call), *(one.digest for one in told)) for track, (call, told) in pairs)

    @property
    def size(self) -> int:
        """How many bytes its masks take, and what else is known of its calls, about."""
        masks = [beside.call.mask for beside in self.calls if beside.call.mask is not None]
        given = {id(one): one.nbytes for mask in masks for one in mask.given}
        return sum(given.values()) + _BYTES_OF_A_CALL * len(self.calls)
