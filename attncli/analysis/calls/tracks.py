"""The calls of one module at one place, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from typing import NamedTuple

from attncli.analysis.calls.masks import UNKNOWN
from attncli.analysis.calls.steps import Taken
from attncli.masks.findings import Finding
from attncli.recording.call import Api, AttentionCall, CallSite

NOT_READ = "not read: "
_MOST_RULES = 8  # of a place, told apart
NOTHING_EXPECTED = "no expectation"  # of a place, where there are expectations for others


class StepRange(NamedTuple):
    """The least and the most of a number that varies over calls."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}..{self.most}"


def _unpadded(rule: str) -> str:
    """Return a rule without its padding."""
    if rule == "pad" or rule.startswith("pad,"):
        return "full"
    return rule.replace(" & pad", "").removesuffix(", padding queries see nothing")


def mask_said(rules: Counter[str], masks: Set[str]) -> str:
    """Return what the masks of calls are: the rule, or how it varies.

    Args:
        rules: how many of the calls followed which rule.
        masks: what the masks were, in words.
    """
    if len(rules) == 1:
        return next(iter(masks)) if len(masks) == 1 else next(iter(rules))
    plain = {_unpadded(rule) for rule in rules}
    if len(plain) == 1:
        padded = sum(count for rule, count in rules.items() if _unpadded(rule) != rule)
        varies = f"varies: pad in {padded} of {rules.total()} calls"
        return varies if plain == {"full"} else f"{plain.pop()}, {varies}"
    return "varies: " + ", ".join(f"{rule} in {count}" for rule, count in rules.most_common())


@dataclass
class Noticed:
    """A finding, and in how many calls it was found."""

    finding: Finding
    calls: int = 0


@dataclass(eq=False)
class Track:
    """The calls of one module at one place that are of one kind.

    Attributes:
        api: what computed them.
        place: where.
        dtype: of the queries.
        shape: of the first of them, `(B, H, Q, K)`.
        expected: what they are held against, as it was written, or `NOTHING_EXPECTED`; None where nothing is anywhere.
        calls: how many there were.
        sizes: batch, heads, queries and keys, the least and the most of each.
        rules: how many calls followed which rule.
        masks: what the masks were, in words; two at most, as more than one is not shown.
        noticed: what was found, by its code and severity.
        first: copies of the first call, where they are kept.
    """

    api: Api
    place: CallSite
    dtype: str
    shape: tuple[int, int, int, int]
    expected: str | None = None
    calls: int = 0
    sizes: tuple[StepRange, StepRange, StepRange, StepRange] = (StepRange(0, 0),) * 4
    rules: Counter[str] = field(default_factory=Counter)
    masks: set[str] = field(default_factory=set)
    noticed: dict[tuple[str, str], Noticed] = field(default_factory=dict)
    first: AttentionCall | None = None

    def count(self, call: AttentionCall, taken: Taken) -> None:
        """Take in a call."""
        spans = [StepRange(size, size) for size in call.shape]
        if self.calls:
            pairs = zip(self.sizes, call.shape, strict=True)
            spans = [StepRange(min(span.least, size), max(span.most, size)) for span, size in pairs]
        self.sizes = (spans[0], spans[1], spans[2], spans[3])
        self.calls += 1
        rule = f"{NOT_READ}{taken.unread}" if taken.mask is None else taken.mask.name
        known = rule in self.rules or len(self.rules) < _MOST_RULES
        self.rules[rule if known else UNKNOWN] += 1
        if len(self.masks) < 2:
            self.masks.add(rule if taken.mask is None else str(taken.mask))

    def notice(self, findings: tuple[Finding, ...]) -> None:
        """Take in what was found in a call."""
        for finding in findings:
            key = finding.code, finding.severity
            self.noticed.setdefault(key, Noticed(finding))
        for key in {(finding.code, finding.severity) for finding in findings}:
            self.noticed[key].calls += 1

    @property
    def mask(self) -> str:
        """What the masks are: the rule, or how it varies."""
        return mask_said(self.rules, self.masks)

    @property
    def is_judged(self) -> bool:
        """Whether each mask is what is expected, or else follows a rule that one knows by its name."""
        is_read = not any(rule.startswith(NOT_READ) for rule in self.rules)
        return is_read and (self.expected is not None or not any(UNKNOWN in rule for rule in self.rules))

    @property
    def all_noticed(self) -> tuple[Noticed, ...]:
        """What was found; the worst first."""
        return tuple(sorted(self.noticed.values(), key=lambda one: one.finding.severity != "error"))
