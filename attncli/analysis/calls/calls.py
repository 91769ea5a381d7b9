"""The calls of a running program, taken one by one while it waits, as rows."""

from __future__ import annotations

import linecache
import os
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import get_ident
from time import perf_counter
from typing import Any, Generic, TypeVar, overload

import numpy as np

from attncli.analysis.calls.caches import CacheReader, EarlierCall, continued, turns_of, without_empty_slots
from attncli.analysis.calls.expectations import Expectations, Expected, UnexpectedError, matches, mismatches
from attncli.analysis.calls.findings import findings_of, findings_of_step
from attncli.analysis.calls.groups import NOT_CHECKED, NOTHING_EXPECTED, CallGroup, ModuleCalls, call_groups
from attncli.analysis.calls.masks import CallMask, MaskReading, mask_of, read_mask
from attncli.analysis.calls.steps import ForwardPass, RecordedCall, ThreadState, size_of
from attncli.errors import UsageError
from attncli.masks.findings import Finding
from attncli.recording.call import LOOKED_FOR, AttentionCall, CallSite, MaskArgument
from attncli.recording.detach import TensorCache, detached, mask_values
from attncli.recording.notes import Notes
from attncli.recording.run_script import rank_of_process
from attncli.text import plural, visible
from attncli.trace.display import Displayed, presentation

Value = TypeVar("Value")
_MOST_BYTES, _MOST_CACHED = 2**26, 2**25  # of masks that are kept for `check`, and for calls that come again
_FULL = f"attn keeps {_MOST_BYTES >> 20} MiB of masks for check. Later masks are not checked"
_MOST_DRAWN = 3  # lines of the program whose wrong cells are drawn
_MOST_STEPS = 64  # whose findings are known when they come again
_JudgedStep = tuple[ForwardPass, list[tuple[Finding, ...]]]


class BoundedCache(Generic[Value]):
    """Keeps values up to a number and a size, so that a program whose masks are new at every step fills no memory."""

    def __init__(self, most: int, size: Callable[[Value], int]) -> None:
        self._values: dict[Hashable, Value] = {}
        self._most, self._size, self._bytes = most, size, 0

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key, or make it."""
        if key not in self._values:
            if len(self._values) >= self._most or self._bytes > _MOST_CACHED:
                self._values.clear()
                self._bytes = 0
            self._values[key] = make()
            self._bytes += self._size(self._values[key])
        return self._values[key]


class CallAnalyzer:
    """Analyses calls while the program waits; it keeps none of the program's tensors alive."""

    def __init__(self) -> None:
        self._readings: TensorCache[MaskReading] = TensorCache()
        self._masks: BoundedCache[CallMask] = BoundedCache(64, lambda mask: mask.size)
        self._calls: BoundedCache[RecordedCall] = BoundedCache(128, lambda call: call.size)

    def record(self, call: AttentionCall, here: ThreadState, earlier: EarlierCall) -> tuple[RecordedCall, EarlierCall]:
        """Return a call with its findings, and what the next one at its place needs."""
        if call.device == "meta" and call.unsupported is None:
            call = replace(call, unsupported="tensors without numbers (meta)")
        if call.unsupported is not None and not call.is_mask_read:
            unread = RecordedCall(call.place, None, (), call.findings, call.unsupported)
            key: Hashable = call.place, call.unsupported, call.findings
            return self._calls.get(key, lambda: unread), EarlierCall(call.shape[3])
        masks, unused = (
            tuple(self._read(one, call.dtype) for one in some) for some in (call.masks, call.ignored_masks)
        )
        state, after = CacheReader(call, masks, here.positions(call.shape[2]), earlier).state()
        shape = call.shape if state.written is None else (*call.shape[:3], state.written)
        of_keys, of_queries = (here.tokens(shape[0], size) for size in (shape[3], shape[2]))
        digests = of_keys and of_keys.digest, of_queries and of_queries.digest
        mask_key = tuple((one.name, one.convention, one.digest, one.made_at) for one in (*masks, *unused))
        cut = tuple(without_empty_slots(one, state) for one in masks)

        def make_mask() -> CallMask:
            tokens = None if of_keys is None else of_keys.values.astype(bool)
            return mask_of(cut, call.is_causal, shape, tokens, state.written is not None)

        mask = self._masks.get((call.is_causal, shape, mask_key, state.rows, digests[0]), make_mask)
        before = earlier.traits if state.is_grown else None
        pairs = [(argument, one) for argument, one in zip(call.masks, masks, strict=True) if one.has_bias]
        bias: Any = sum(mask_values(argument)[..., : state.written] for argument, _ in pairs) if pairs else None
        traits, broken = continued(mask, bias, turns_of(call), before)

        def make() -> RecordedCall:
            words = None if of_queries is None else of_queries.values.astype(bool)
            found = (*state.findings, *broken, *findings_of(call, mask, cut, unused, state.is_grown, words))
            return RecordedCall(call.place, mask, cut, found, unused=unused)

        facts = call.api, call.place, call.shape, call.dtype, call.is_causal, call.dropout, call.is_training
        key = *facts, str(call.scale_factors), call.findings, len(unused), mask_key, state, digests, broken
        return self._calls.get(key, make), after._replace(traits=traits)

    def _read(self, argument: MaskArgument, dtype: str) -> MaskReading:
        reading = self._readings.get(argument, dtype, lambda: read_mask(argument, dtype))
        return reading._replace(made_at=argument.made_at)


class Calls(Displayed, Sequence[CallGroup]):
    """Every attention of a program, in rows of equal calls; a notebook shows it as `attn run` does.

    Args:
        expect: the expected masks: an expression, several with patterns of their places, or the expressions by the
            patterns; see `Expectations`.
        place: a pattern, as of file names, of the places that are watched: of their line, function or module.
        is_kept: whether q, k and v of the first call of each place are kept, for traces, and masks for `check`.

    Attributes:
        seconds: how long the program was watched.
        notes: sentences about what the rows do not show.
        left_out: how many calls were seen that `place` leaves out.
        folder: that the program's files are named from.
        rank: the number of this process in a distributed program, and how many there are; None of one that is alone.
    """

    def __init__(self, expect: Expected | None = None, place: str | None = None, is_kept: bool = True) -> None:
        self.seconds = 0.0
        self.notes = Notes()
        self.left_out, self.folder = 0, os.getcwd()
        self.rank: tuple[int, int] | None = None
        self._begun: float | None = None
        self._expected = None if expect is None else Expectations.parse(expect)
        self._pattern, self._is_kept, self._is_paused = place, is_kept, False
        self._analyzer = CallAnalyzer()
        self._tracks: dict[tuple[object, ...], ModuleCalls] = {}
        self._earlier: dict[CallSite, EarlierCall] = {}
        self._threads: dict[int, ThreadState] = {}
        self._steps: BoundedCache[_JudgedStep] = BoundedCache(_MOST_STEPS, lambda entry: size_of(entry[0]))
        self._to_check: list[ForwardPass] = []
        self._drawn: set[tuple[object, ...]] = set()
        self._bytes = 0

    # --- taking ---------------------------------------------------------------------------------------------

    @np.errstate(all="ignore")  # numbers are odd where a program's are
    def take(self, call: AttentionCall) -> None:
        """Add a call, while the program waits; its tensors are not kept."""
        if self._is_paused:
            return
        if self._pattern is not None and not matches(call.place, self._pattern):
            self.left_out += 1
            return
        key = call.api, call.place, call.dtype, call.shape[1], call.shape[2] == 1
        if key not in self._tracks:
            self._tracks[key] = self._new_track(call)
        track, here = self._tracks[key], self.here()
        is_block = here.take_slices(track, call.slices)
        if any(each.track is track for each in here.calls):
            self._end(here)
        recorded = self._record(call, here)
        recorded = recorded.as_block() if is_block else recorded
        track.count(call, recorded.mask, recorded.unread)
        here.add_call(track, recorded)

    def _new_track(self, call: AttentionCall) -> ModuleCalls:
        here = None if self._expected is None else self._expected.at(call.place)
        nothing = None if self._expected is None else NOTHING_EXPECTED
        track = ModuleCalls(call.api, call.place, call.dtype, call.shape, nothing if here is None else here.text)
        try:
            track.first = detached(call) if self._is_kept else None
        except Exception as fault:
            self.notes.failed(fault, f"{call.place} could not be kept")
        self.rank = self.rank or rank_of_process()  # before the program leaves its group
        return track

    def _record(self, call: AttentionCall, here: ThreadState) -> RecordedCall:
        """Analyse a call; a fault of ours is a note, and ends no program."""
        try:
            anywhere = call.place._replace(line=0)  # what has a mask and what has none may be two lines of a function
            earlier = self._earlier.get(call.place) or self._earlier.get(anywhere) or EarlierCall(0)
            recorded, after = self._analyzer.record(call, here, earlier)
            self._earlier[call.place] = self._earlier[anywhere] = after
            return recorded
        except Exception as fault:
            self.notes.failed(fault, f"{call.place} could not be read")
            return RecordedCall(call.place, None, (), call.findings, "a bug in attn")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the calls that run inside."""
        here = self.here()
        self._is_paused, pending = True, here.pending
        try:
            yield
        finally:
            self._is_paused, here.pending = False, pending

    def here(self) -> ThreadState:
        """Return the state of the thread that runs, which takes the hints about its calls."""
        return self._threads.setdefault(get_ident(), ThreadState())

    def start(self) -> None:
        """Begin to measure the time."""
        self._begun = perf_counter()

    def finish(self) -> None:
        """End the last steps."""
        self.rank = self.rank or rank_of_process()
        if self._begun is not None:
            self.seconds, self._begun = perf_counter() - self._begun, None
        self.settle()

    def settle(self) -> None:
        """End the steps that are not over."""
        for each in list(self._threads.values()):  # other threads may begin meanwhile
            if each.calls:
                self._end(each)

    def _end(self, thread: ThreadState) -> None:
        step = thread.end()
        # Calls that are equal are one object, as long as they are kept.
        key = tuple((id(track), id(call), *(one.digest for one in hints)) for call, hints, track in step)
        try:
            _, found = self._steps.get(key, lambda: (step, self._judged(step)))
            for context, findings in zip(step, found, strict=True):
                context.track.add(findings)
        except Exception as fault:
            self.notes.failed(fault, "the masks of a step could not be compared")

    def _judged(self, step: ForwardPass) -> list[tuple[Finding, ...]]:
        """Return the findings of each call, and keep the step for `check`.

        Wrong cells are kept with findings of the first places alone, as they take memory.
        """
        size = size_of(step) if self._is_kept else 0
        if self._bytes + size > _MOST_BYTES:
            self.notes.add(_FULL)
        elif self._is_kept:
            self._bytes += size
            self._to_check.append(step)
        judged = []
        for each, own in zip(step, judge(step, self._expected), strict=True):
            place = each.call.place[:3]
            if len(self._drawn) < _MOST_DRAWN and any(one.comparison is not None for one in own):
                self._drawn.add(place)
            judged.append(own if place in self._drawn else tuple(replace(one, comparison=None) for one in own))
        return judged

    def source(self, line: str) -> str:
        """Return a line of the program, `train.py:40`, as it is written; nothing where it cannot be read."""
        file, _, number = line.rpartition(":")
        return linecache.getline(os.path.join(self.folder, file), int(number)).rstrip()

    # --- reading --------------------------------------------------------------------------------------------

    @property
    def rows(self) -> tuple[CallGroup, ...]:
        """A row for each place, of the modules whose calls are alike."""
        return call_groups(self._tracks.values())

    @property
    def tracks(self) -> tuple[ModuleCalls, ...]:
        """The calls of every module at every place."""
        return tuple(self._tracks.values())

    @property
    def calls(self) -> int:
        """Number of calls."""
        return sum(track.calls for track in self._tracks.values())

    @property
    def places(self) -> int:
        """Number of places: lines of a program."""
        return len({track.place[:3] for track in self._tracks.values()})

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all rows."""
        return tuple(finding for row in self.rows for finding in row.findings)

    @property
    def unused(self) -> list[str]:
        """The patterns of expectations that were for no attention, a sentence each."""
        return [] if self._expected is None or not self.calls else self._unused(self._expected)

    def check(self, expect: str | Mapping[str, str], lengths: Any = None, place: str | None = None) -> None:
        """Hold every call against an expression, or those of each place against its own.

        Args:
            expect: the expected masks: `causal & pad`, or such expressions by patterns of their places:
                `{"encoder.*": "pad", "decoder.*": "causal & pad"}`, where the last pattern that matches decides.
            lengths: how many tokens each batch row has, for `pad`, or an attention mask `[B, K]` with 1 or True for a
                token; None takes them from the masks themselves, the first of a step that hides keys at an end of a
                batch row.
            place: a pattern, as of file names, of the places that are held against one expression: of their file,
                `file:line`, function or module.

        Raises:
            UnexpectedError: an AssertionError that names where a mask is another one, or that there was no call.
            UsageError: `expect` is no expression, has no `pad` for the lengths, or names its places as `place` does.
            InputError: `lengths` are none.
        """
        self.settle()
        if place is not None:
            if not isinstance(expect, str):
                raise UsageError("place applies to one expression; a mapping of several names their places")
            expect = {place: expect}
        expected = Expectations.parse(expect)
        if lengths is not None:
            expected = expected.with_lengths(lengths)
        found = [one for step in self._to_check for own in mismatches(step, expected) for one in own]
        wrong = [one for one in found if one.finding.severity == "error"]
        unchecked = self._unchecked(expected)
        if wrong or unchecked:
            raise UnexpectedError(str(expected), wrong, unchecked)
        notes = [f"{message}; give `lengths`" for message in dict.fromkeys(one.finding.message for one in found)]
        if self.notes.fault is not None:
            notes.append(f"some attention was not checked, by a bug in attn: {self.notes.fault!r}")
        for note in [*notes, *[_FULL] * (_FULL in self.notes)]:
            warnings.warn(note, stacklevel=2)

    def _unchecked(self, expected: Expectations) -> list[str]:
        """Return what was expected and could not be checked, a sentence each."""
        if not self.calls:
            return [f"no attention ran. attn looks for {LOOKED_FOR}"]
        kept = [context.call for step in self._to_check for context in step]
        if kept and all(call.is_block for call in kept):
            return ["its calls are blocks of a longer attention; attncli.prove checks the whole"]
        places = [call.place for call in kept]
        unused = self._unused(expected)
        if not unused and (expected.idle(places) or not any(map(expected.at, places))):
            return ["the masks of its calls were not kept"]
        return unused

    def _unused(self, expected: Expectations) -> list[str]:
        places, sentences = [track.place for track in self.tracks], []
        for one in expected.idle(places):
            if any(matches(place, one.pattern) for place in places):
                sentences.append(f"{visible(str(one))} is not used: a later pattern matches the same places")
            else:
                ran = f"{plural(self.calls, 'call')} ran elsewhere"
                sentences.append(f"no attention ran at {visible(one.pattern)}. {ran}")
        return sentences

    @overload
    def __getitem__(self, index: int) -> CallGroup: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[CallGroup, ...]: ...

    def __getitem__(self, index: int | slice) -> CallGroup | tuple[CallGroup, ...]:
        return self.rows[index]

    def __iter__(self) -> Iterator[CallGroup]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return presentation().text_of(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline}>"

    @property
    def headline(self) -> str:
        """The numbers of places, calls and seconds."""
        which = "" if self.rank is None else "rank {} of {}: ".format(*self.rank)
        return f"{which}{plural(self.places, 'place')}, {plural(self.calls, 'call')}, {self.seconds:.1f} s"


def judge(step: ForwardPass, expected: Expectations | None) -> Iterator[tuple[Finding, ...]]:
    """Yield the findings of each call of a step: of it alone, by the other calls, and by the expectations."""
    wrong = mismatches(step, expected) if expected is not None else ([] for _ in step)
    for (call, *_), of_step, own in zip(step, findings_of_step(step), wrong, strict=True):
        of_mask = (replace(one.finding, comparison=one.comparison) for one in own)
        findings = [call.with_lines(one) for one in (*call.findings, *of_step, *of_mask)]
        # A note that padding or later keys are seen is nothing new where that is an error, or expected.
        settled = {one.code for one in findings if one.severity == "error"} & {"leak", "pad", "missing"}
        if expected is not None and expected.at(call.place) is not None:
            settled |= {"leak"} if not own else set()
            settled |= {NOT_CHECKED} if not any(one.finding.code == NOT_CHECKED for one in own) else set()
        yield tuple(one for one in findings if one.severity == "error" or one.code not in settled)
