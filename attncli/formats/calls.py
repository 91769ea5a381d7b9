"""The JSON document of the calls of a running program, schema `attncli.calls/1`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attncli.analysis.calls.groups import NOTHING_EXPECTED, FindingCount, ModuleCalls
from attncli.formats.answers import dumped

if TYPE_CHECKING:
    from attncli.analysis.calls.calls import Calls


def write_calls(calls: Calls) -> str:
    """Return the document: an entry for each module at each place."""
    places = [_entry(track) for track in calls.tracks]
    number, ranks = calls.rank or (None, None)
    document = {"schema": "attncli.calls/1", "places": places, "seconds": calls.seconds, "notes": calls.notes}
    return dumped(document | {"rank": number, "ranks": ranks}) + "\n"


def _entry(track: ModuleCalls) -> dict[str, Any]:
    batch, heads, queries, keys = track.shape
    names = ("batch", "heads", "queries", "keys")
    return {
        "place": str(track.place),
        "function": track.place.function,
        "module": track.place.module,
        "api": track.api,
        "calls": track.calls,
        "batch": batch,
        "heads": heads,
        "queries": queries,
        "keys": keys,
        "sizes": {name: list(span) for name, span in zip(names, track.sizes, strict=True)},
        "dtype": track.dtype,
        "mask": track.mask,
        "expected": None if track.expected == NOTHING_EXPECTED else track.expected,
        "findings": [_finding(one) for one in track.all_findings],
    }


def _finding(one: FindingCount) -> dict[str, Any]:
    return one.finding.as_dict() | {"made_at": one.finding.made_at, "calls": one.calls}
