"""The rows of a table of calls: places whose calls are alike, the modules of a model among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attncli.analysis.calls.tracks import NOTHING_EXPECTED, Noticed, StepRange, Track, mask_said
from attncli.errors import NotExposedError
from attncli.masks.findings import Finding
from attncli.recording.call import Api, CallSite
from attncli.text import as_ranges, plural, visible

if TYPE_CHECKING:
    from attncli.trace.trace import Trace


@dataclass(frozen=True, repr=False)
class Row:
    """Equal attention of one place, of one module or of several.

    Attributes:
        tracks: the calls of each module.
    """

    tracks: tuple[Track, ...]

    def __repr__(self) -> str:
        """Return the row in a line."""
        found = ", ".join(dict.fromkeys(one.code for one in self.findings)) or self.unfound
        name = named([track.place for track in self.tracks])
        said = f"{name}, {plural(self.calls, 'call')}, {self.api}, {self.mask}"
        return visible(f"<{type(self).__name__}: {said}: {found}>")

    @property
    def place(self) -> CallSite:
        """Where it is; the module is the first one."""
        return self.tracks[0].place

    @property
    def module(self) -> str | None:
        """The names of the modules, joined where they differ by numbers: `layers.0-11.attn`."""
        return joined([track.place.module for track in self.tracks])

    @property
    def api(self) -> Api:
        """What computed it."""
        return self.tracks[0].api

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return sum(track.calls for track in self.tracks)

    @property
    def dtype(self) -> str:
        """Type of the queries."""
        return self.tracks[0].dtype

    @property
    def sizes(self) -> tuple[StepRange, StepRange, StepRange, StepRange]:
        """Batch rows, heads, queries and keys: the least and the most."""
        return self.tracks[0].sizes

    @property
    def mask(self) -> str:
        """The rule that the masks follow, or how they vary."""
        rules = sum((track.rules for track in self.tracks), Counter[str]())
        return mask_said(rules, self.tracks[0].masks)

    @property
    def noticed(self) -> tuple[Noticed, ...]:
        """What is wrong, and in how many calls."""
        found: dict[tuple[str, str], Noticed] = {}
        for track in self.tracks:
            for one in track.all_noticed:
                key = one.finding.code, one.finding.severity
                found.setdefault(key, Noticed(one.finding)).calls += one.calls
        return tuple(found.values())

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, errors first; the first of each kind."""
        return tuple(one.finding for one in self.noticed)

    @property
    def unfound(self) -> str:
        """What is said where nothing is wrong."""
        if self.tracks[0].expected == NOTHING_EXPECTED:
            return NOTHING_EXPECTED
        return "ok" if all(track.is_judged for track in self.tracks) else "not checked"

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The first call as Traces, one for each batch row, with a layer for each module.

        Raises:
            NotExposedError: nothing was kept, or the call shows too little of itself.
        """
        from attncli.recording.to_trace import traces

        kept = [track.first for track in self.tracks if track.first is not None]
        by_module = [traces(call) for call in kept]
        if not all(by_module) or not kept:
            raise NotExposedError(f"{self.place} shows neither its queries, keys and values nor its weights")
        return tuple(_with_layers(layers, self.module) for layers in zip(*by_module, strict=True))

    @property
    def trace(self) -> Trace:
        """The Trace of the first batch row; see `traces`."""
        return self.traces[0]


def _with_layers(traces: Sequence[Trace], module: str | None) -> Trace:
    """Return one Trace of several that have the same positions, numbering their layers."""
    layers = tuple(replace(layer, layer=index) for index, trace in enumerate(traces) for layer in trace.layers)
    source = replace(traces[0].source, model=module or None, layers=len(layers))
    return replace(traces[0], source=source, layers=layers)


def merged(tracks: Iterable[Track]) -> tuple[Row, ...]:
    """Return rows of tracks that are alike in all but the name of their module, in the order in which they came."""
    rows: dict[tuple[object, ...], list[Track]] = {}
    for track in tracks:
        codes = tuple((one.finding.code, one.finding.severity) for one in track.all_noticed)
        kind = track.api, track.place[:3], track.dtype, track.shape, track.sizes, track.mask, codes, track.expected
        rows.setdefault(kind, []).append(track)
    return tuple(Row(tuple(alike)) for alike in rows.values())


def named(places: Sequence[CallSite]) -> str:
    """Return a line and its function, and the modules in which it ran."""
    modules = joined([place.module for place in places])
    return f"{places[0]} {places[0].function}{f' ({modules})' if modules else ''}"


def joined(names: Sequence[str | None]) -> str | None:
    """Return the names of modules as one: the numbers in which they differ as ranges."""
    known = list(dict.fromkeys(name for name in names if name is not None))
    if len(known) < 2:
        return known[0] if known else None
    parts = [name.split(".") for name in known]
    if len({len(each) for each in parts}) == 1:
        columns = [list(dict.fromkeys(column)) for column in zip(*parts, strict=True)]
        varying = [column for column in columns if len(column) > 1]
        if len(varying) == 1 and len(varying[0]) == len(known) and all(part.isdecimal() for part in varying[0]):
            ranges = as_ranges(int(part) for part in varying[0])
            return ".".join(ranges if column is varying[0] else column[0] for column in columns)
    return f"{known[0]} and {plural(len(known) - 1, 'more').removesuffix('s')}"
