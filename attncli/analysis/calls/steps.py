"""The calls of one step of a program as they come, and the hints that inputs of modules give about their batches.

A step is the calls until a place comes again: one pass through a model, as far as its attention is concerned.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.analysis.calls.groups import ModuleCalls
from attncli.analysis.calls.masks import CallMask, MaskReading
from attncli.masks.findings import Finding
from attncli.recording.call import CallSite, CallSlices
from attncli.recording.input_hint import InputHint

if TYPE_CHECKING:
    from jaxtyping import Bool


_BYTES_OF_A_CALL = 2048
_MOST_PENDING = 64  # hints that are kept where no call comes
STATED = ("tokens", "unpadded", "mask")  # kinds of hints about which positions are padding, the surest first
_OF_ROWS = ("documents", "positions")  # may be given once for all rows of a batch
# Codes of findings about which cells a mask hides, or about its numbers.
MASK_CODES = (
    "leak", "missing", "pad", "document", "dead-row", "window", "shape", "varies", "mixed-fill",
    "double-fill", "overflow", "no-mask", "batch", "backend", "padding-side", "broadcast", "added-bool", "bias",
)  # fmt: skip


class RecordedCall(NamedTuple):
    """A call as it is remembered."""

    place: CallSite
    mask: CallMask | None  # what its masks hide together; None where that cannot be read
    masks: tuple[MaskReading, ...]
    findings: tuple[Finding, ...]  # of this call alone
    unread: str | None = None  # what of it cannot be read, in words
    unused: tuple[MaskReading, ...] = ()  # masks that the API does not apply
    is_block: bool = False  # whether it is a part of an attention that is computed in blocks

    def as_block(self) -> RecordedCall:
        """Return it as a part of a longer attention, without the findings of its own mask."""
        others = tuple(one for one in self.findings if one.code not in MASK_CODES)
        return self._replace(is_block=True, findings=others)

    @property
    def size(self) -> int:
        """Bytes of its masks."""
        return 0 if self.mask is None else self.mask.size

    def with_lines(self, finding: Finding) -> Finding:
        """Return a finding about masks with the lines of the program that made them, if all of these are known.

        It is about the mask that its message begins with, or else about all that hide keys.
        """
        if finding.code not in MASK_CODES:
            return finding
        masks = [one for one in (*self.masks, *self.unused) if finding.message.startswith(f"{one.name} ")]
        if not masks and self.mask is not None and not self.mask.is_causal:
            masks = [one for one in self.masks if not one.allowed.all()] or [*(self.masks or self.unused)]
        lines = tuple(dict.fromkeys(one.made_at or "" for one in masks))
        return finding if "" in lines else replace(finding, made_at=lines)


class CallContext(NamedTuple):
    """A call, the hints about its batch, and the calls of the module that made it."""

    call: RecordedCall
    hints: tuple[InputHint, ...]
    track: ModuleCalls

    def hints_of(self, kind: str) -> list[InputHint]:
        """Return the hints about as many positions as the call has keys."""
        if self.call.mask is None:
            return []
        batch, _, _, keys = self.call.mask.shape
        sizes = {1, batch} if kind in _OF_ROWS else {batch}
        return [one for one in self.hints if (one.kind, one.size) == (kind, keys) and len(one.values) in sizes]


ForwardPass = tuple[CallContext, ...]  # the calls of a step


def size_of(step: ForwardPass) -> int:
    """Return the bytes of a step's masks, and of its calls, about."""
    masks = [context.call.mask for context in step if context.call.mask is not None]
    planes = {id(one): one.nbytes for mask in masks for one in mask.planes}
    return sum(planes.values()) + _BYTES_OF_A_CALL * len(step)


class _PendingHint(NamedTuple):
    hint: InputHint
    calls: int  # of the thread before it
    order: int  # among its hints


@dataclass(eq=False)
class ThreadState:
    """The step of a thread that is not over."""

    calls: list[CallContext] = field(default_factory=list)
    slices: dict[ModuleCalls, CallSlices] = field(default_factory=dict)  # of the last call of each module
    calls_made: int = 0  # by the thread
    hints_made: int = 0
    pending: list[_PendingHint] = field(default_factory=list)  # about the calls to come
    forward: tuple[int, int] = (-1, 0)  # calls and hints when an outermost module began last
    # Which keys were tokens at the last call without a cache, and whether more than its mask shows it.
    prompts: dict[CallSite, tuple[Bool[np.ndarray, "B K"], bool]] = field(default_factory=dict)

    def add_call(self, track: ModuleCalls, call: RecordedCall) -> None:
        """Add a call."""
        prompt = None if call.mask is None else self._prompt(call.place, call.mask)
        hints = self._hints if prompt is None else (*self._hints, prompt)
        self.calls.append(CallContext(call, hints, track))
        self.calls_made += 1

    def take_slices(self, track: ModuleCalls, slices: CallSlices | None) -> bool:
        """Return whether a call is a block of an attention, and mark those before it that are other blocks of it."""
        if slices is None:
            return False
        is_block = False
        for other, earlier in self.slices.items():
            is_own, is_other = slices.blocks(earlier, track.place[:3] == other.place[:3])
            is_block |= is_own
            for index, each in enumerate(self.calls if is_other else ()):
                if each.track is other:
                    other.blocks += not each.call.is_block
                    self.calls[index] = each._replace(call=each.call.as_block())
        self.slices[track] = slices
        track.blocks += is_block
        return is_block

    def _prompt(self, place: CallSite, mask: CallMask) -> InputHint | None:
        """Return which keys of a call with a cache are tokens: those of the prompt, and all that came since."""
        place = place._replace(line=0)  # what has a mask and what has none may be two lines of a function
        batch, _, queries, keys = mask.shape
        if queries == keys:
            stated = [one for one in self._hints if one.kind in STATED and one.values.shape == (batch, keys)]
            self.prompts[place] = mask.rule.tokens, bool(stated or mask.rule.padded)
        tokens, is_sure = self.prompts.get(place, (None, False))
        if tokens is None or len(tokens) != batch or tokens.shape[1] > keys or queries == keys > 1:
            return None
        tokens = np.pad(tokens, ((0, 0), (0, keys - tokens.shape[1])), constant_values=True)
        return InputHint.of("prompt", tokens.astype(np.int8), is_sure)

    @property
    def _hints(self) -> tuple[InputHint, ...]:
        return tuple({one.hint.digest: one.hint for one in self.pending}.values())

    def add(self, hint: InputHint) -> None:
        """See `Hints`."""
        self.hints_made += 1
        self.pending = [*self.pending[-_MOST_PENDING:], _PendingHint(hint, self.calls_made, self.hints_made)]

    def begin_module(self, is_outermost: bool) -> tuple[int, int]:
        """See `Hints`."""
        begun = self.calls_made, self.hints_made
        self.forward = begun if is_outermost else self.forward
        return begun

    def end_module(self, begun: tuple[int, int]) -> int:
        """See `Hints`."""
        calls, hints = begun
        if self.calls_made > calls and self.hints_made > hints:
            self.pending = [one for one in self.pending if one.order <= hints]
        return self.calls_made - calls

    def encoded_tokens(self) -> Bool[np.ndarray, "B K"] | None:
        """See `Hints`."""
        last = self.calls[-1] if self.calls else None
        mask = None if last is None or any(one.kind == "encoded" for one in last.hints) else last.call.mask
        return mask.rule.tokens if mask is not None and mask.rule.padded and mask.shape[2] == mask.shape[3] else None

    def add_to_last_call(self, hint: InputHint) -> None:
        """See `Hints`."""
        if self.calls:
            self.calls[-1] = self.calls[-1]._replace(hints=(*self.calls[-1].hints, hint))

    def positions(self, queries: int) -> InputHint | None:
        """Return the last hint about the positions of this number of queries."""
        hints = (one.hint for one in reversed(self.pending) if one.hint.kind == "positions")
        return next((hint for hint in hints if hint.size in (0, queries)), None)

    def tokens(self, batch: int, keys: int) -> InputHint | None:
        """Return the hint about the padding of the call to come; None without exactly one."""
        fits = [one for one in self._hints if (one.kind, one.size, len(one.values)) == ("tokens", keys, batch)]
        return fits[0] if len(fits) == 1 else None

    def end(self) -> ForwardPass:
        """Return the step, and begin another."""
        step = tuple(self.calls)
        begun = self.calls_made - len(self.calls)
        # Hints for this step are over, but the padding of a forward whose layers are several steps of one place.
        calls, hints = self.forward
        self.pending = [
            one
            for one in self.pending
            if one.calls > begun or (one.calls == calls and one.order > hints and one.hint.kind in STATED)
        ]
        self.calls = []
        return step
