"""The calls of a running program, taken one by one while it waits, as rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from attncli.analysis.calls.caches import Before
from attncli.analysis.calls.expectations import Expectations, Expected, matches
from attncli.analysis.calls.expected import UnexpectedError, Wrong, wrong_against
from attncli.analysis.calls.looking import Latest, Looking
from attncli.analysis.calls.passes import Pass, Step
from attncli.analysis.calls.rows import Row, merged
from attncli.analysis.calls.steps import Taken, findings_of_step
from attncli.analysis.calls.table import LOOKED_FOR, plain_table
from attncli.analysis.calls.tracks import NOTHING_EXPECTED, Track
from attncli.errors import UsageError
from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall, CallSite
from attncli.recording.detach import kept
from attncli.recording.notes import Notes
from attncli.recording.ranks import rank
from attncli.text import plural, visible
from attncli.trace.display import Displayed

if TYPE_CHECKING:
    pass

_MOST_BYTES = 2**26  # of masks that are kept to be checked afterwards
_FULL = f"{_MOST_BYTES >> 20} MiB of masks are kept for check, and later ones are not held against anything"
_MOST_STEPS = 64  # whose findings are known when they come again


def _without_notes_of_errors(findings: tuple[Finding, ...], is_expected: bool) -> tuple[Finding, ...]:
    """Return findings without the notes that padding or later keys are seen, where that is an error, or expected."""
    said = {one.code for one in findings if one.severity == "error"} & {"leak", "pad"}
    said |= {"leak"} if is_expected else set()
    return tuple(one for one in findings if one.severity == "error" or one.code not in said)


class Calls(Displayed, Sequence[Row]):
    """Every attention that was seen, in rows of equal calls; a notebook shows it as `attn run` does.

    Args:
        expect: what each call is held against: an expression, several with patterns of their places, or the expressions
            by the patterns; see `Expectations`.
        place: a pattern, as of file names, of the places that are looked at: of their line, function or module.
        is_kept: whether q, k and v of the first call of each place are kept, for traces, and masks for `check`.

    Attributes:
        seconds: how long the program was watched.
        notes: what the rows do not say, a sentence each.
        left_out: how many calls were seen that `place` leaves out.
        rank: which process of a distributed program was watched, and of how many; None of one that is alone.
    """

    def __init__(
        self,
        expect: Expected | None = None,
        place: str | None = None,
        is_kept: bool = True,
    ) -> None:
        self.seconds = 0.0
        self.notes = Notes()
        self.left_out = 0
        self.rank: tuple[int, int] | None = None
        self._begun: float | None = None
        self._expected = None if expect is None else Expectations.parse(expect)
        self._pattern, self._is_kept = place, is_kept
        self._looking = Looking()
        self._tracks: dict[tuple[object, ...], Track] = {}
        self._before: dict[CallSite, Before] = {}  # the last call there
        self._open: dict[int, Pass] = {}  # of each thread
        self._known: Latest[tuple[Step, list[tuple[Finding, ...]]]] = Latest(_MOST_STEPS, lambda known: known[0].size)
        self._to_check: list[Step] = []
        self._bytes = 0

    # --- taking ---------------------------------------------------------------------------------------------

    @np.errstate(all="ignore")  # numbers are odd where a program's are
    def take(self, call: AttentionCall) -> None:
        """Take in a call, while the program waits; it is not kept."""
        if not self._is_wanted(call.place):
            self.left_out += 1
            return
        key = call.api, call.place, call.dtype, call.shape[1], call.shape[2] == 1
        track = self._tracks.get(key)
        if track is None:
            expected = self._text_expected(call.place)
            track = self._tracks[key] = Track(call.api, call.place, call.dtype, call.shape, expected)
            track.first = self._kept(call)
            self.rank = self.rank or rank()  # before the program leaves its group
        here = self.here()
        if track in here.tracks:
            self._end(here)
        taken = self._look(call, here)
        track.count(call, taken)
        here.add(track, taken, call.lineage)

    def _look(self, call: AttentionCall, here: Pass) -> Taken:
        """Look at a call; what goes wrong in us is said, and the program goes on."""
        try:
            taken, self._before[call.place] = self._looking.look(call, here, self._before.get(call.place))
        except RecursionError:
            raise
        except Exception as fault:
            self.notes.failed(fault, f"{call.place} could not be looked at")
            return Taken(call.place, None, (), call.findings, "a bug in attn")
        return taken

    def _kept(self, call: AttentionCall) -> AttentionCall | None:
        """Return a copy of a call for traces, if they are wanted and it can be had."""
        try:
            return kept(call) if self._is_kept else None
        except Exception as fault:
            self.notes.failed(fault, f"{call.place} could not be kept")
            return None

    def notice(self, place: CallSite, finding: Finding) -> None:
        """Take in what shows to be wrong with the attention of a place after it was taken."""
        for track in self._tracks.values():
            if track.place == place:
                track.notice((finding,))

    def here(self) -> Pass:
        """Return the step of the thread that runs, which takes what is said of its calls; see `CallListener`."""
        thread = get_ident()
        here = self._open.get(thread)
        if here is None:
            here = self._open[thread] = Pass()
        return here

    def start(self) -> None:
        """Say that the program begins."""
        self._begun = perf_counter()

    def finish(self) -> None:
        """Say that no call is to come."""
        self.rank = self.rank or rank()
        if self._begun is not None:
            self.seconds, self._begun = perf_counter() - self._begun, None
        self.settle()

    def settle(self) -> None:
        """Say that a step is over: what comes is another one."""
        for each in list(self._open.values()):  # other threads may begin meanwhile
            if each.calls:
                self._end(each)

    def _text_expected(self, place: CallSite) -> str | None:
        if self._expected is None:
            return None
        expected = self._expected.at(place)
        return NOTHING_EXPECTED if expected is None else expected.text

    def _is_wanted(self, place: CallSite) -> bool:
        return self._pattern is None or matches(place, self._pattern)

    def _end(self, thread: Pass) -> None:
        """Look at the calls of a step together."""
        step = thread.end()
        try:
            _, found = self._known.get(step.key, lambda: (step, self._found(step)))
            for track, findings in zip(step.tracks, found, strict=True):
                track.notice(findings)
        except Exception as fault:
            self.notes.failed(fault, "the masks of a step could not be held against each other")

    def _found(self, step: Step) -> list[tuple[Finding, ...]]:
        if self._is_kept:
            self._keep(step)
        found = [[beside.call.findings for beside in step.calls], findings_of_step(step.calls)]
        are_expected = [False] * len(step.calls)
        if self._expected is not None:
            against = [tuple(one.finding for one in wrong) for wrong in wrong_against(step.calls, self._expected)]
            found.append(against)
            held = [self._expected.at(beside.call.place) is not None for beside in step.calls]
            are_expected = [is_held and not wrong for is_held, wrong in zip(held, against, strict=True)]
        together = [
            tuple(map(beside.call.with_makers, sum(of_one, ())))
            for beside, *of_one in zip(step.calls, *found, strict=True)
        ]
        return [_without_notes_of_errors(*each) for each in zip(together, are_expected, strict=True)]

    def _keep(self, step: Step) -> None:
        """Keep the masks of a step for `check`."""
        if self._bytes + step.size > _MOST_BYTES:
            self.notes.add(_FULL)
            return
        self._bytes += step.size
        self._to_check.append(step)

    # --- reading --------------------------------------------------------------------------------------------

    @property
    def rows(self) -> tuple[Row, ...]:
        """A row for each place, of the modules whose calls are alike."""
        return merged(self._tracks.values())

    @property
    def tracks(self) -> tuple[Track, ...]:
        """The calls of every module at every place."""
        return tuple(self._tracks.values())

    @property
    def calls(self) -> int:
        """How many calls were looked at."""
        return sum(track.calls for track in self._tracks.values())

    @property
    def places(self) -> int:
        """How many places there are: lines of a program."""
        return len({track.place[:3] for track in self._tracks.values()})

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, everywhere."""
        return tuple(finding for row in self.rows for finding in row.findings)

    @property
    def unused(self) -> list[str]:
        """The patterns of what is expected that were for no attention, a sentence each."""
        return [] if self._expected is None or not self.calls else self._unused(self._expected)

    def check(self, expect: str | Mapping[str, str], lengths: Any = None, place: str | None = None) -> None:
        """Hold every call against an expression, or those of each place against its own.

        Args:
            expect: what the masks should be: `causal & pad`, or such expressions by patterns of their places:
                `{"encoder.*": "pad", "decoder.*": "causal & pad"}`, where the last pattern that matches decides.
            lengths: how many tokens each batch row has, for `pad`, or an attention mask `[B, K]` with 1 or True for a
                token; None is what the masks themselves say, the first of a step that hides keys at an end of a batch
                row.
            place: a pattern, as of file names, of the places that are held against one expression: of their file,
                `file:line`, function or module.

        Raises:
            UnexpectedError: an AssertionError that says where a mask is another one, or that there was no call.
            UsageError: `expect` is no expression, has no `pad` for the lengths, or names its places beside `place`.
            InputError: `lengths` are none.
        """
        self.settle()
        if place is not None:
            if not isinstance(expect, str):
                raise UsageError("place is for one expression; patterns beside several say their places")
            expect = {place: expect}
        expected = Expectations.parse(expect)
        if lengths is not None:
            expected = expected.with_lengths(lengths)
        wrong: list[Wrong] = []
        held: list[CallSite] = []
        for step in self._to_check:
            held += [beside.call.place for beside in step.calls]
            for found in wrong_against(step.calls, expected):
                wrong += found
        not_held = self._not_held(expected, held)
        if wrong or not_held:
            raise UnexpectedError(str(expected), wrong, not_held)
        if self.notes.fault is not None:
            warnings.warn(f"not all that ran was looked at, for a bug in attn: {self.notes.fault!r}", stacklevel=2)
        if _FULL in self.notes:
            warnings.warn(_FULL, stacklevel=2)

    def _not_held(self, expected: Expectations, held: Sequence[CallSite]) -> list[str]:
        """Return what was not held against anything though it is expected to be, a sentence each."""
        if not self.calls:
            return [f"no attention ran; looked for {LOOKED_FOR}"]
        unused = self._unused(expected)
        if not unused and (expected.idle(held) or not any(map(expected.at, held))):
            return ["the masks of its calls were not kept"]
        return unused

    def _unused(self, expected: Expectations) -> list[str]:
        said = []
        for one in expected.idle(track.place for track in self.tracks):
            if any(matches(track.place, one.pattern) for track in self.tracks):
                said.append(f"{visible(str(one))} is not used: a later pattern matches the same places")
            else:
                ran = f"{plural(self.calls, 'call')} ran elsewhere"
                said.append(f"no attention ran at {visible(one.pattern)}; {ran}")
        return said

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...

    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        """Return a row, or some."""
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.rows)

    def __str__(self) -> str:
        """Return the table."""
        return plain_table(self.headline, self.rows)

    def __repr__(self) -> str:
        """Return what was seen, in a line."""
        return f"<{type(self).__name__}: {self.headline}>"

    @property
    def headline(self) -> str:
        """What was seen, in numbers."""
        which = "" if self.rank is None else "rank {} of {}: ".format(*self.rank)
        return f"{which}{plural(self.places, 'place')}, {plural(self.calls, 'call')}, {self.seconds:.1f} s"
