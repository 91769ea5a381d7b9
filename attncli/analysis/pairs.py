"""Which head finds what: pairs of a query and its right keys, and how often each head weighs a right key most."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.statistics import binomial_tail
from attncli.analysis.summary import RunStats, RunSummary, SentenceFacts
from attncli.attention import row_blocks
from attncli.encoding.pictures import PicturedText
from attncli.engines.source import CorpusItem
from attncli.errors import InputError, InputMismatchError, UsageError
from attncli.files import MOST_TEXT, read_file
from attncli.text import did_you_mean, plural, visible
from attncli.trace.display import Displayed, Tabular
from attncli.trace.layer import LayerTrace, stages_of
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from attncli.trace.layout import SideLayout

NUMBERS = ("hits", "weight", "hits_uniform", "weight_uniform")  # of a head, in the order of files
_FIELDS = ("text", "target", "image", "query", "keys", "among", "pairs")
_EXAMPLE = '{"text": "the cat sat", "query": "sat", "keys": ["cat"]}'

Place = str | int | tuple[int, ...]
"""Where a token stands.

What it is called, its index, its characters in the text from one up to another, or a box in the first picture, whose
left, top, right and bottom are pixels.
"""

PairSource = str | Path | Iterable[Mapping[str, Any]]
"""Pairs: a file of JSON Lines, or what its lines hold; paths of pictures begin where the file is, or here."""


class RightKeys(NamedTuple):
    """A query, and where it should look."""

    query: Place
    keys: Sequence[Place]  # any of them is right
    among: Sequence[Place] | None  # the keys that compete with these; None are all


class PairedText(NamedTuple):
    """A text with pairs in it."""

    number: int  # its line
    text: str  # which holds the keys, and the queries unless there is a target
    target: str | None
    pairs: tuple[RightKeys, ...]


# --- the file ---------------------------------------------------------------------------------------------------------


def read_pairs(source: PairSource) -> list[PairedText]:
    """Return the texts and their pairs.

    Raises:
        InputError: a line is no such text, the file cannot be read, or there is no pair.
    """
    if not isinstance(source, str | Path):
        records = enumerate(source, start=1)
        return [_paired_text(number, record, f"text {number}") for number, record in records]
    import orjson

    name, folder = visible(str(source)), os.path.dirname(source)
    try:
        lines = read_file(source, MOST_TEXT).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}") from None
    texts = []
    for number, line in enumerate(lines, start=1):
        place = f"{name}, line {number}"
        if not line.strip():
            continue
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{place} is not JSON: {visible(str(error))}; expected {_EXAMPLE}") from None
        texts.append(_paired_text(number, record, place, folder))
    if not texts:
        raise InputError(f"{name} holds no pair; expected lines such as {_EXAMPLE}")
    return texts


def _paired_text(number: int, record: Any, place: str, folder: str = "") -> PairedText:
    def refused(why: str) -> InputError:
        return InputError(f"{place}: {why}; expected {_EXAMPLE}")

    if not isinstance(record, Mapping):
        raise refused("it is not a JSON object")
    for field in record:
        if field not in _FIELDS:
            raise refused(f"there is no field '{visible(str(field))}'{did_you_mean(str(field), _FIELDS)}")
    text, target = record.get("text"), record.get("target")
    if not isinstance(text, str) or not text:
        raise refused("'text' is missing or no text")
    if target is not None and not isinstance(target, str):
        raise refused("'target' is no text")
    pairs = record.get("pairs", [record])
    if not isinstance(pairs, list | tuple) or not pairs:
        raise refused("'pairs' is not a list of pairs")
    if "pairs" in record and record.keys() & {"query", "keys", "among"}:
        raise refused("its pairs stand in 'pairs' and beside it")
    found = []
    for pair in pairs:
        if not isinstance(pair, Mapping) or (pair is not record and pair.keys() - {"query", "keys", "among"}):
            raise refused("a pair is more or less than query, keys and among")
        query, keys, among = _place(pair.get("query")), _places(pair.get("keys")), _places(pair.get("among"))
        if query is None:
            raise refused("'query' is not a token, an index or [start, end]")
        if not keys:
            raise refused("'keys' is not a list of tokens, indices or [start, end]")
        if among is None and pair.get("among") is not None:
            raise refused("'among' is not a list of tokens, indices or [start, end]")
        found.append(RightKeys(query, keys, among))
    if record.get("image") is not None:
        text = PicturedText(text, record["image"], folder)
        try:
            has_files = bool(text.files)
        except InputError as error:
            raise refused(str(error)) from None
        if not has_files:
            raise refused("'image' names no picture")
    return PairedText(number, text, target, tuple(found))


def _place(value: Any) -> Place | None:
    """Return a place of a text, or None where it is none."""
    if isinstance(value, str) or type(value) is int:
        return value
    if not isinstance(value, list | tuple) or not all(type(each) is int and each >= 0 for each in value):
        return None
    is_span = len(value) == 2 and value[0] < value[1]
    is_box = len(value) == 4 and value[0] < value[2] and value[1] < value[3]
    return tuple(value) if is_span or is_box else None


def _places(value: Any) -> list[Place] | None:
    places = [_place(each) for each in value] if isinstance(value, list | tuple) else [None]
    found = [each for each in places if each is not None]
    return found if len(found) == len(places) else None


# --- one text ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairScores(SentenceFacts):
    """How the heads did on the pairs of one text.

    Attributes:
        pairs: how many of them a head can find.
        sums: of each head, the sums over these pairs of `NUMBERS`.
        left_out: the other pairs, and why no head can find them.
    """

    pairs: int
    sums: Float[np.ndarray, "H 4"]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, trace: Trace, text: PairedText) -> PairScores:
        """Compare where the heads of all layers look with where they should.

        Raises:
            InputMismatchError: a pair names a token that is not there.
            UsageError: it names pictures, and the model has read none.
        """
        if isinstance(text.text, PicturedText) and not trace.pictures:
            name = trace.source.title
            raise UsageError(
                f"the lines name pictures, and {name} reads text alone; give another model, or drop 'image'"
            )
        rows: dict[str, _Rows] = {}
        sums, is_reached = [], np.zeros(len(text.pairs), bool)
        for layer in trace.layers:
            if layer.kind not in rows:
                rows[layer.kind] = _Rows.of(text, trace, layer)
            found, reached = _of_layer(layer, rows[layer.kind])
            sums.append(found)
            is_reached |= reached
        is_cut = np.logical_or.reduce([of_kind.is_cut for of_kind in rows.values()])
        hidden = f"the mask {trace.layers[0].mask} hides the keys from the query"
        left_out = [
            f"sentence {text.number}: {_named(text.pairs, number)}{_CUT if is_cut[number] else hidden}"
            for number in np.flatnonzero(~is_reached).tolist()
        ]
        return cls(
            **vars(SentenceFacts.of_trace(trace)),
            pairs=int(is_reached.sum()), sums=np.concatenate(sums), left_out=tuple(left_out),
        )  # fmt: skip


_CUT = "it stands beyond what the model reads of the text"


class _Rows(NamedTuple):
    """The query rows of pairs, and for each pair the indices of the right keys and of those that compete with them."""

    queries: Int[np.ndarray, " N"]
    pairs: Int[np.ndarray, " N"]  # whose query a row is; one of several tokens has several rows
    right: list[list[int]]
    compete: list[list[int]]
    is_cut: list[bool]  # whether a pair stands beyond the tokens of a text that is cut, and has no rows

    @classmethod
    def of(cls, text: PairedText, trace: Trace, layer: LayerTrace) -> _Rows:
        query_tokens, key_tokens = trace.sides(layer)
        own, target = text.text, text.text if text.target is None else text.target
        queries = _Side(query_tokens, trace.layout("query"), target if layer.kind in ("decoder", "cross") else own)
        keys = _Side(key_tokens, trace.layout("key"), target if layer.kind == "decoder" else own)
        rows: list[tuple[int, int]] = []
        right: list[list[int]] = []
        compete: list[list[int]] = []
        is_cut: list[bool] = []
        for number, pair in enumerate(text.pairs):
            is_cut.append(queries.is_cut(pair.query) or all(map(keys.is_cut, pair.keys)))
            right.append([])
            compete.append([])
            if is_cut[-1]:
                continue
            try:
                rows += [(row, number) for row in queries.find(pair.query)]
                right[-1] = keys.find_all(pair.keys)
                compete[-1] = [*range(layer.num_keys)]
                if pair.among is not None:
                    compete[-1] = [*right[-1], *keys.find_all(pair.among)]
            except InputMismatchError as error:
                raise InputMismatchError(f"{_named(text.pairs, number)}{str(error).removeprefix('--')}") from None
        queried, owners = np.array(rows, int).reshape(-1, 2).T
        return cls(queried, owners, right, compete, is_cut)


def _named(pairs: Sequence[RightKeys], number: int) -> str:
    return f"pair {number + 1}: " if len(pairs) > 1 else ""


class _Side(NamedTuple):
    """The queries or the keys of a trace."""

    tokens: Tokens
    layout: SideLayout
    text: str  # all of it, of which the tokens may be the beginning

    def is_cut(self, place: Place) -> bool:
        """Return whether a place stands in the part of the text that the model does not read."""
        end = max((token.end for token in self.tokens if token.end is not None), default=len(self.text))
        if not self.text[end:].strip():
            return False
        if isinstance(place, str):
            return place in self.text[end:] and place not in self.text[:end]
        return place >= len(self.tokens) if isinstance(place, int) else len(place) == 2 and place[0] >= end

    def find_all(self, places: Iterable[Place]) -> list[int]:
        """Return the indices of the tokens at places, but for those that are cut off."""
        return [index for place in places if not self.is_cut(place) for index in self.find(place)]

    def find(self, place: Place) -> list[int]:
        """Return the indices of the tokens at a place; of characters, or a box, all that have some of it."""
        if not isinstance(place, tuple):
            return self.layout.find(self.tokens, place)
        if len(place) == 4:
            return self.layout.positions_in(place)
        start, end = place
        found = [
            token.index
            for token in self.tokens
            if token.start is not None and token.end is not None and token.start < end and start < token.end
        ]
        if not found:
            raise InputMismatchError(f"{self.layout.role} [{start}, {end}]: no token has these characters")
        return found


def _of_layer(layer: LayerTrace, rows: _Rows) -> tuple[Float[np.ndarray, "H 4"], Bool[np.ndarray, " P"]]:
    """Return the sums over the pairs of `NUMBERS` for each head, and for which pairs it may attend to a right key."""
    sums, is_reached = np.zeros((len(layer.heads), len(NUMBERS))), np.zeros(len(rows.right), bool)
    shares = 1 / np.bincount(rows.pairs)[rows.pairs]  # of its pair, for each row
    for some in row_blocks(np.arange(len(rows.queries)), layer.num_keys * len(layer.heads)):
        right, compete = (
            _marked([of[pair] for pair in rows.pairs[some]], layer.num_keys) for of in (rows.right, rows.compete)
        )
        first = 0
        for stages in stages_of(layer, layer.heads, rows.queries[some]):  # all these rows of some heads
            weights, allowed = stages.weights, stages.mask
            is_right, competes = right & allowed, compete & allowed
            highest = np.where(competes, weights, -np.inf).max(axis=-1, keepdims=True)
            heaviest = competes & (weights == highest)  # of several that are alike, each has its share
            numbers = (
                _share(is_right & heaviest, heaviest),
                np.where(is_right, weights, 0).sum(axis=-1),
                _share(is_right, competes),
                _share(is_right, allowed),
            )
            heads = slice(first, first + len(stages.heads))
            first = heads.stop
            for column, values in enumerate(numbers):
                sums[heads, column] += values @ shares[some]
            is_reached[rows.pairs[some][is_right.any(axis=(0, 2))]] = True
    return sums, is_reached


def _marked(indices: Sequence[Sequence[int]], keys: int) -> Bool[np.ndarray, "N K"]:
    marked = np.zeros((len(indices), keys), bool)
    for row, chosen in zip(marked, indices, strict=True):
        row[chosen] = True
    return marked


def _share(some: Bool[np.ndarray, "H N K"], every: Bool[np.ndarray, "H N K"]) -> Float[np.ndarray, "H N"]:
    return some.sum(axis=-1) / np.maximum(every.sum(axis=-1), 1)


# --- all texts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairSummary:
    """How one head did on all pairs.

    Attributes:
        layer: index of its layer.
        kind: of the layer's attention.
        head: its index.
        hits: in which share of the pairs the heaviest of the competing keys is right.
        weight: the mean weight on right keys.
        hits_uniform: the hits of a head that weighs all allowed keys alike.
        weight_uniform: its weight.
    """

    layer: int
    kind: str
    head: int
    hits: float
    weight: float
    hits_uniform: float
    weight_uniform: float


@dataclass(frozen=True)
class PairReport(RunSummary, Displayed, Tabular):
    """How the heads of a source do on pairs; a notebook shows it as `attn heads --pairs` does.

    Attributes:
        pairs: how many pairs were measured.
        heads: one entry a head, the one with the most hits first, and of these the one with the most weight.
        left_out: the pairs that no head can find, and why.
    """

    pairs: int
    heads: tuple[PairSummary, ...]
    left_out: tuple[str, ...] = ()

    @property
    def by_chance(self) -> float:
        """How many heads that pick competing keys at random would have as many hits as the best one has.

        The pairs are taken for independent, and each head's chance for that of a uniform head on average, which makes
        it no smaller (Hoeffding 1956, "On the distribution of the number of successes in independent trials").
        """
        fewest = ceil(round(self.heads[0].hits * self.pairs, 6))
        return sum(binomial_tail(fewest, self.pairs, head.hits_uniform) for head in self.heads)

    @property
    def median(self) -> tuple[float, float]:
        """The hits and the weight of the head in the middle."""
        hits, weight = (median(getattr(head, name) for head in self.heads) for name in NUMBERS[:2])
        return hits, weight

    def __repr__(self) -> str:
        return f"PairReport({self.source.title}, {plural(len(self.heads), 'head')}, {plural(self.pairs, 'pair')})"


class PairStats:
    """How heads do on the pairs of many texts, none of which is kept."""

    def __init__(self) -> None:
        self._run, self._pairs, self._left_out = RunStats(), 0, list[str]()
        self._sums: Float[np.ndarray, "H 4"] | None = None

    def add(self, scores: PairScores) -> None:
        """Count a text.

        Raises:
            UsageError: it has not the heads of those before it.
        """
        self._left_out += scores.left_out
        if not scores.pairs:
            return
        self._run.add(scores)
        self._pairs += scores.pairs
        self._sums = scores.sums if self._sums is None else self._sums + scores.sums

    def report(self) -> PairReport:
        """Return what a person reads of it.

        Raises:
            InputError: there is no text.
            InputMismatchError: no pair can be found.
        """
        if self._left_out and not self._pairs:
            raise InputMismatchError(f"no pair is left; {self._left_out[0]}")
        summary = self._run.summary
        assert self._sums is not None
        means = (self._sums / self._pairs).tolist()
        heads = [PairSummary(*place, *row) for place, row in zip(self._run.places, means, strict=True)]
        heads.sort(key=lambda head: (-head.hits, -head.weight))
        return PairReport(**vars(summary), pairs=self._pairs, heads=tuple(heads), left_out=tuple(self._left_out))


def paired_items(texts: Iterable[PairedText]) -> Iterator[CorpusItem]:
    """Yield texts as a source computes them."""
    return (CorpusItem(text.number, text.text, target=text.target) for text in texts)


def source_options(texts: Sequence[PairedText], image: Any = None) -> dict[str, Any]:
    """Return what texts need of a source, each unless it is asked for: the kind of attention, and their own pictures.

    Raises:
        UsageError: they name pictures, and there are others for all of them.
    """
    options: dict[str, Any] = {"kind": "cross"} if any(text.target is not None for text in texts) else {}
    if any(isinstance(text.text, PicturedText) for text in texts):
        if image:
            raise UsageError("--image does not apply to pairs that name their pictures; drop one of them")
        options |= {"image": ()}
    return options
