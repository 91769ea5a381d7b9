"""The calls of a program in groups: those of one module at one place, and rows of a table for those that are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from attncli.analysis.calls.masks import UNKNOWN
from attncli.errors import NotExposedError
from attncli.masks.findings import Finding, note
from attncli.recording.call import Api, AttentionCall, CallSite
from attncli.text import as_ranges, plural, visible

if TYPE_CHECKING:
    from attncli.analysis.calls.masks import CallMask
    from attncli.trace.trace import Trace

NOT_CHECKED = "not checked"  # the verdict, and the code of the finding that gives the reason
NOTHING_EXPECTED = "no expectation"  # of a place, where there are expectations for others
_NOT_READ = "not read: "
_MOST_RULES = 8  # of a place, told apart


class StepRange(NamedTuple):
    """The least and the most of a number that varies over calls."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}..{self.most}"


@dataclass
class FindingCount:
    """A finding, and in how many calls it was found."""

    finding: Finding
    calls: int = 0

    def worded(self, calls: int) -> Finding:
        """Return the finding with how many of the calls have it, where that is not all."""
        often = f" (in {self.calls} of {calls} calls)" if self.calls < calls else ""
        return replace(self.finding, message=self.finding.message + often)


@dataclass(eq=False)
class ModuleCalls:
    """The calls of one module at one place that are of one kind."""

    api: Api
    place: CallSite
    dtype: str  # of the queries
    shape: tuple[int, int, int, int]  # of the first of them, `(B, H, Q, K)`
    expected: str | None = None  # as it was written, or `NOTHING_EXPECTED`; None where nothing is anywhere
    calls: int = 0
    blocks: int = 0  # calls that are parts of a longer attention
    sizes: tuple[StepRange, ...] = ()  # of batch rows, heads, queries and keys
    rules: Counter[str] = field(default_factory=Counter)  # how many calls followed each
    open_rules: set[str] = field(default_factory=set)  # of these, those by which queries see later keys
    masks: set[str] = field(default_factory=set)  # in words; two at most, as more are not shown
    counts: dict[tuple[str, str], FindingCount] = field(default_factory=dict)  # by code and severity
    first: AttentionCall | None = None  # copies of the first call, where they are kept
    padded_row: int = 0  # the first batch row of the first call that has padding

    def count(self, call: AttentionCall, mask: CallMask | None, unread: str | None) -> None:
        """Count a call."""
        if not self.calls and mask is not None and mask.rule.padded:
            self.padded_row = mask.rule.padded[0]
        before = self.sizes or (StepRange(size, size) for size in call.shape)
        pairs = zip(before, call.shape, strict=True)
        self.sizes = tuple(StepRange(min(each.least, size), max(each.most, size)) for each, size in pairs)
        self.calls += 1
        rule = f"{_NOT_READ}{unread}" if mask is None else mask.name
        if rule not in self.rules and len(self.rules) >= _MOST_RULES:
            rule = UNKNOWN
        if mask is not None and rule not in self.rules and mask.words_see_later:
            self.open_rules.add(rule)
        self.rules[rule] += 1
        if len(self.masks) < 2:
            self.masks.add(rule if mask is None else str(mask))

    def add(self, findings: tuple[Finding, ...]) -> None:
        """Count the findings of a call."""
        for key in dict.fromkeys((one.code, one.severity) for one in findings):
            first = next(one for one in findings if (one.code, one.severity) == key)
            self.counts.setdefault(key, FindingCount(first)).calls += 1

    @property
    def mask(self) -> str:
        """The rule of the masks, or how it varies."""
        return _mask_text(self.rules, self.masks)

    @property
    def is_judged(self) -> bool:
        """Whether each mask was compared with an expectation, or else follows a rule that hides later keys.

        Whether queries may see later keys is what only the program's author knows: they may in an encoder.
        """
        is_read = not any(rule.startswith(_NOT_READ) for rule in self.rules)
        is_known = not self.open_rules and not any(UNKNOWN in rule for rule in self.rules)
        return is_read and not self.blocks and (self.expected is not None or is_known)

    @property
    def all_findings(self) -> tuple[FindingCount, ...]:
        """The findings, the worst first."""
        return tuple(sorted(self.counts.values(), key=lambda one: one.finding.severity != "error"))


def _mask_text(rules: Counter[str], masks: Set[str]) -> str:
    """Return the rule that masks follow, or how it varies."""
    if len(rules) > 1:
        return "varies: " + ", ".join(f"{rule} in {count}" for rule, count in rules.most_common())
    return next(iter(masks if len(masks) == 1 else rules))


@dataclass(frozen=True, repr=False)
class CallGroup:
    """Equal attention of one place, of one module or of several: a row of the table."""

    tracks: tuple[ModuleCalls, ...]  # the calls of each module
    place: CallSite  # the module is the first one
    module: str | None  # the names of the modules, joined where they differ by numbers: `layers.0-11.attn`
    api: Api
    calls: int
    dtype: str  # of the queries
    sizes: tuple[StepRange, ...]  # batch rows, heads, queries and keys: the least and the most
    mask: str  # the rule that the masks follow, or how they vary
    counts: tuple[FindingCount, ...]  # the findings, errors first, and in how many calls each kind is

    @classmethod
    def of(cls, tracks: tuple[ModuleCalls, ...]) -> CallGroup:
        """Return the row of tracks that are alike."""
        first = tracks[0]
        rules = sum((track.rules for track in tracks), Counter[str]())
        counts: dict[tuple[str, str], FindingCount] = {}
        for one in (one for track in tracks for one in track.all_findings):
            key = one.finding.code, one.finding.severity
            counts.setdefault(key, FindingCount(one.finding)).calls += one.calls
        return cls(
            tracks, first.place, joined_modules([track.place.module for track in tracks]), first.api,
            sum(track.calls for track in tracks), first.dtype, first.sizes, _mask_text(rules, first.masks),
            tuple(counts.values()),
        )  # fmt: skip

    def __repr__(self) -> str:
        found = ", ".join(dict.fromkeys(one.code for one in self.findings)) or self.verdict
        name = joined_places([track.place for track in self.tracks])
        text = f"{name}, {plural(self.calls, 'call')}, {self.api}, {self.mask}"
        return visible(f"<{type(self).__name__}: {text}: {found}>")

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, errors first; the first of each kind."""
        return tuple(one.finding for one in self.counts)

    @property
    def verdict(self) -> str:
        """The result where nothing is wrong: `ok`, or why nothing was checked."""
        if self.tracks[0].expected == NOTHING_EXPECTED:
            return NOTHING_EXPECTED
        is_left_out = any(one.code == NOT_CHECKED for one in self.findings)
        return "ok" if all(track.is_judged for track in self.tracks) and not is_left_out else NOT_CHECKED

    @property
    def unchecked(self) -> Finding | None:
        """Why the mask of some of its calls was not checked, as a note; None where it was, or a finding is about it."""
        if self.verdict != NOT_CHECKED or any(one.code == NOT_CHECKED for one in self.findings):
            return None
        rules = {rule for track in self.tracks for rule in track.rules}
        *_, queries, keys = self.tracks[0].shape
        message, advice = self.mask, "give --expect EXPR to check it"
        if any(rule.startswith(_NOT_READ) for rule in rules):
            return note(NOT_CHECKED, f"the mask is {self.mask}")
        if blocks := sum(track.blocks for track in self.tracks):
            message = "a block of a longer attention"
            message += "" if blocks == self.calls else f" ({blocks} of {self.calls} calls)"
            advice = "give --prove EXPR to check the whole"
        elif not any(UNKNOWN in rule for rule in rules):
            if any(one.severity == "error" for one in self.findings):
                return None  # which comes first
            name = self.mask.partition(" (")[0].partition(", ")[0]
            message = f"{name} mask" if len(rules) == 1 else "several masks"
            if queries == keys:
                message += ": queries see later keys, which is wrong in a decoder"
                is_padded = any("pad" in rule for rule in rules)
                decoder, encoder = ('"causal & pad"', "pad") if is_padded else ("causal", "full")
                is_full = {rule.partition(",")[0] for rule in rules} <= {"full", "pad"}
                other = f"--expect {encoder} for an encoder" if is_full else "or the mask that you expect"
                advice = f"give --expect {decoder} for a decoder, {other}"
        return note(NOT_CHECKED, message, advice=advice)

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The first call as Traces, one for each batch row, with a layer for each module.

        Raises:
            NotExposedError: nothing was kept, or the call shows too little of itself.
        """
        from attncli.recording.to_trace import traces

        by_module = [traces(track.first) for track in self.tracks if track.first is not None]
        if not all(by_module) or not by_module:
            raise NotExposedError(f"{self.place} exposes neither queries, keys and values nor weights")
        rows = []
        for row in zip(*by_module, strict=True):  # of the batch, the trace of each module
            layers = tuple(replace(layer, layer=index) for index, each in enumerate(row) for layer in each.layers)
            source = row[0].source._replace(model=self.module or None, layers=len(layers))
            rows.append(replace(row[0], source=source, layers=layers))
        return tuple(rows)

    @property
    def trace(self) -> Trace:
        """The Trace of the first batch row; see `traces`."""
        return self.traces[0]


def call_groups(tracks: Iterable[ModuleCalls]) -> tuple[CallGroup, ...]:
    """Return groups of tracks that are alike in all but the name of their module, in the order in which they came."""
    groups: dict[tuple[object, ...], list[ModuleCalls]] = {}
    for track in tracks:
        codes = tuple((one.finding.code, one.finding.severity) for one in track.all_findings)
        kind = track.api, track.place[:3], track.dtype, track.shape, track.sizes, track.mask, codes, track.expected
        groups.setdefault(kind, []).append(track)
    return tuple(CallGroup.of(tuple(alike)) for alike in groups.values())


def joined_places(places: Sequence[CallSite]) -> str:
    """Return a line and its function, and the modules in which it ran."""
    modules = joined_modules([place.module for place in places])
    return f"{places[0]} {places[0].function}{f' ({modules})' if modules else ''}"


def joined_modules(names: Sequence[str | None]) -> str | None:
    """Return the names of modules as one: the numbers in which they differ as ranges."""
    different = list(dict.fromkeys(name for name in names if name is not None))
    if len(different) < 2:
        return different[0] if different else None
    parts = [name.split(".") for name in different]
    if len({len(each) for each in parts}) == 1:
        columns = [list(dict.fromkeys(column)) for column in zip(*parts, strict=True)]
        varying = [column for column in columns if len(column) > 1]
        if len(varying) == 1 and len(varying[0]) == len(different) and all(part.isdecimal() for part in varying[0]):
            ranges = as_ranges(int(part) for part in varying[0])
            return ".".join(ranges if column is varying[0] else column[0] for column in columns)
    return f"{different[0]} and {plural(len(different) - 1, 'more').removesuffix('s')}"
