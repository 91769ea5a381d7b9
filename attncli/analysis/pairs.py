"""Pairs of a query and its right keys, and how often each head gives a right key the most weight."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, lgamma, log, log1p
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

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
_OF_PAIR = ("query", "keys", "among")
_FIELDS = ("text", "target", "image", *_OF_PAIR, "pairs")
_EXAMPLE = '{"text": "the cat sat", "query": "sat", "keys": ["cat"]}'

Place = str | int | tuple[int, ...]
"""Token by its text, its index, its characters from one up to another, or left, top, right, bottom of pixels."""

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


def read_pairs(source: PairSource) -> list[PairedText]:
    """Return the texts and their pairs.

    Raises:
        InputError: a line is no such text, the file cannot be read, or there is no pair.
    """
    if not isinstance(source, str | Path):
        return [_paired_text(number, record, f"text {number}") for number, record in enumerate(source, start=1)]
    import orjson

    name, texts = visible(str(source)), []
    try:
        lines = read_file(source, MOST_TEXT).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                why = f"line {number} is not JSON: {visible(str(error))}"
                raise InputError(f"{name}, {why}; expected {_EXAMPLE}") from None
            texts.append(_paired_text(number, record, f"{name}, line {number}", os.path.dirname(source)))
    if not texts:
        raise InputError(f"{name} holds no pair; expected lines such as {_EXAMPLE}")
    return texts


def _paired_text(number: int, record: Any, line: str, folder: str = "") -> PairedText:
    def check(is_right: Any, why: str) -> None:
        if not is_right:
            raise InputError(f"{line}: {why}; expected {_EXAMPLE}")

    check(isinstance(record, Mapping), "it is not a JSON object")
    for field in record:
        check(field in _FIELDS, f"there is no field '{visible(str(field))}'{did_you_mean(str(field), _FIELDS)}")
    text, target, pairs = record.get("text"), record.get("target"), record.get("pairs", [record])
    check(isinstance(text, str) and text, "'text' is missing or no text")
    check(target is None or isinstance(target, str), "'target' is no text")
    check(isinstance(pairs, list | tuple) and pairs, "'pairs' is not a list of pairs")
    check("pairs" not in record or not record.keys() & {*_OF_PAIR}, "its pairs stand in 'pairs' and beside it")
    right_keys = []
    for pair in pairs:
        is_pair = isinstance(pair, Mapping) and (pair is record or not pair.keys() - {*_OF_PAIR})
        check(is_pair, "a pair is more or less than query, keys and among")
        query, keys, among = _parsed_place(pair.get("query")), _places(pair.get("keys")), pair.get("among")
        check(query is not None, "'query' is not a token, an index or [start, end]")
        check(keys, "'keys' is not a list of tokens, indices or [start, end]")
        check(among is None or _places(among) is not None, "'among' is not a list of tokens, indices or [start, end]")
        assert query is not None
        right_keys.append(RightKeys(query, keys or [], None if among is None else _places(among)))
    if record.get("image") is not None:
        text = PicturedText(text, record["image"], folder)
        try:
            files = text.files
        except InputError as error:
            check(False, str(error))
        check(files, "'image' names no picture")
    return PairedText(number, text, target, tuple(right_keys))


def _parsed_place(value: Any) -> Place | None:
    """Return a place that is written in JSON; None for another value."""
    if isinstance(value, str) or type(value) is int:
        return value
    if not isinstance(value, list | tuple) or not all(type(number) is int and number >= 0 for number in value):
        return None
    half = len(value) // 2
    is_range = len(value) in (2, 4) and all(low < high for low, high in zip(value[:half], value[half:], strict=True))
    return tuple(value) if is_range else None


def _places(values: Any) -> list[Place] | None:
    places = [_parsed_place(value) for value in values] if isinstance(values, list | tuple) else [None]
    return None if None in places else [position for position in places if position is not None]


@dataclass(frozen=True)
class PairScores(SentenceFacts):
    """Scores of the heads on the pairs of one text."""

    pairs: int  # how many of them a head can find
    sums: Float[np.ndarray, "H 4"]  # of each head, the sums over these pairs of `NUMBERS`
    left_out: tuple[str, ...]  # the other pairs, and why no head can find them

    @classmethod
    def of(cls, trace: Trace, text: PairedText) -> PairScores:
        """Compare where the heads of all layers look with where they should.

        Raises:
            InputMismatchError: a pair names a token that is not there.
            UsageError: it names pictures, and the model has read none.
        """
        if isinstance(text.text, PicturedText) and not trace.pictures:
            why = f"the lines name pictures, and {trace.source.title} reads text alone"
            raise UsageError(f"{why}; give another model, or drop 'image'")
        one_of_kind = {layer.kind: layer for layer in trace.layers}
        rows = {kind: _PairRows.of(text, trace, layer) for kind, layer in one_of_kind.items()}
        sums, reached = zip(*(_of_layer(layer, rows[layer.kind]) for layer in trace.layers), strict=True)
        is_reached = np.logical_or.reduce(reached)
        hidden = f"the mask {trace.layers[0].mask} hides the keys from the query"
        unreached = [_numbered(text.pairs, number) for number in np.flatnonzero(~is_reached).tolist()]
        left_out = tuple(f"sentence {text.number}: {pair}{hidden}" for pair in unreached)
        facts = vars(SentenceFacts.of_trace(trace))
        return cls(**facts, pairs=int(is_reached.sum()), sums=np.concatenate(sums), left_out=left_out)


class _PairRows(NamedTuple):
    """The query rows of pairs, and for each pair the indices of the right keys and of those that compete with them."""

    queries: Int[np.ndarray, " N"]
    pairs: Int[np.ndarray, " N"]  # whose query a row is; one of several tokens has several rows
    right: Bool[np.ndarray, "P K"]
    competing: Bool[np.ndarray, "P K"]

    @classmethod
    def of(cls, text: PairedText, trace: Trace, layer: LayerTrace) -> _PairRows:
        of_queries, of_keys = trace.sides(layer)
        queries, keys = trace.layout("query"), trace.layout("key")
        rows: list[tuple[int, int]] = []
        right, competing = np.zeros((2, len(text.pairs), layer.num_keys), bool)
        for number, pair in enumerate(text.pairs):
            try:
                rows += [(row, number) for row in _find(of_queries, queries, [pair.query])]
                right[number, _find(of_keys, keys, pair.keys)] = True
                competing[number] = right[number] | (pair.among is None)
                competing[number, _find(of_keys, keys, pair.among or ())] = True
            except InputMismatchError as error:
                raise InputMismatchError(f"{_numbered(text.pairs, number)}{str(error).removeprefix('--')}") from None
        queried, owners = np.array(rows, int).reshape(-1, 2).T
        return cls(queried, owners, right, competing)


def _numbered(pairs: Sequence[RightKeys], number: int) -> str:
    return f"pair {number + 1}: " if len(pairs) > 1 else ""


def _find(tokens: Tokens, layout: SideLayout, places: Iterable[Place]) -> list[int]:
    """Return the indices of the tokens at places; of characters, or a box, all that have some of it."""
    indices = list[int]()
    for name in places:
        if not isinstance(name, tuple):
            indices += layout.find(tokens, name)
        elif len(name) == 4:
            indices += layout.positions_in(name)
        else:
            start, end = name
            covering = [token.index for token in tokens if (token.start or 0) < end and start < (token.end or 0)]
            if not covering:
                raise InputMismatchError(f"{layout.role} [{start}, {end}]: no token has these characters")
            indices += covering
    return indices


def _of_layer(layer: LayerTrace, rows: _PairRows) -> tuple[Float[np.ndarray, "H 4"], Bool[np.ndarray, " P"]]:
    """Return the sums over the pairs of `NUMBERS` for each head, and for which pairs it may attend to a right key."""
    sums, is_reached = np.zeros((len(layer.heads), len(NUMBERS))), np.zeros(len(rows.right), bool)
    shares = 1 / np.bincount(rows.pairs)[rows.pairs]  # of its pair, for each row
    for block in row_blocks(np.arange(len(rows.queries)), layer.num_keys * len(layer.heads)):
        right, competing = rows.right[rows.pairs[block]], rows.competing[rows.pairs[block]]
        first = 0
        for stages in stages_of(layer, layer.heads, rows.queries[block]):  # all these rows, some heads at a time
            weights, allowed = stages.weights, stages.mask
            is_right, competes = right & allowed, competing & allowed
            highest = np.where(competes, weights, -np.inf).max(axis=-1, keepdims=True)
            heaviest = competes & (weights == highest)  # of several that are alike, each has its share
            hits, weight = _share(is_right & heaviest, heaviest), np.where(is_right, weights, 0).sum(axis=-1)
            uniform = _share(is_right, competes), _share(is_right, allowed)
            numbers = np.stack(np.broadcast_arrays(hits, weight, *uniform), axis=-1)
            heads = slice(first, first := first + len(stages.heads))
            sums[heads] += shares[block] @ numbers
            is_reached[rows.pairs[block][is_right.any(axis=(0, 2))]] = True
    return sums, is_reached


def _share(part: Bool[np.ndarray, "H N K"], total: Bool[np.ndarray, "H N K"]) -> Float[np.ndarray, "H N"]:
    return part.sum(axis=-1) / np.maximum(total.sum(axis=-1), 1)


@dataclass(frozen=True)
class PairSummary:
    """Scores of one head on all pairs."""

    layer: int  # index of its layer
    kind: str  # of the layer's attention
    head: int  # its index
    hits: float  # share of the pairs in which the heaviest of the competing keys is right
    weight: float  # the mean weight on right keys
    hits_uniform: float  # the hits of a head that weighs all allowed keys alike
    weight_uniform: float  # its weight


@dataclass(frozen=True)
class PairReport(RunSummary, Displayed, Tabular):
    """Scores of the heads of a source on pairs; a notebook shows it as `attn heads --pairs` does."""

    pairs: int  # how many pairs were measured
    heads: tuple[PairSummary, ...]  # those with the most hits first, and of these those with the most weight
    left_out: tuple[str, ...] = ()  # the pairs that no head can find, and why

    @property
    def by_chance(self) -> float:
        """Expected number of heads that pick competing keys at random and have as many hits as the best one.

        The pairs are taken for independent, and each head's chance for that of a uniform head on average, which makes
        it no smaller (Hoeffding 1956, "On the distribution of the number of successes in independent trials").
        """
        fewest = ceil(round(self.heads[0].hits * self.pairs, 6))
        return sum(_binomial_tail(fewest, self.pairs, head.hits_uniform) for head in self.heads)

    @property
    def median(self) -> tuple[float, float]:
        """The hits and the weight of the head in the middle."""
        hits, weight = (median(getattr(head, name) for head in self.heads) for name in NUMBERS[:2])
        return hits, weight

    def __repr__(self) -> str:
        return f"PairReport({self.source.title}, {plural(len(self.heads), 'head')}, {plural(self.pairs, 'pair')})"


def _binomial_tail(hits: int, trials: int, chance: float) -> float:
    """Return the probability of at least this number of hits."""
    if not 0 < chance < 1:
        return float(hits <= trials * chance)
    ways = (lgamma(trials + 1) - lgamma(n + 1) - lgamma(trials - n + 1) for n in range(hits, trials + 1))
    return sum(exp(w + n * log(chance) + (trials - n) * log1p(-chance)) for n, w in enumerate(ways, start=hits))


class PairStats(RunStats):
    """Sums of the scores of heads on the pairs of many texts; no text is kept."""

    def __init__(self) -> None:
        super().__init__()
        self._pairs, self._left_out = 0, list[str]()
        self._sums: Float[np.ndarray, "H 4"] | float = 0.0

    def add(self, sentence: SentenceFacts) -> None:
        """See `RunStats.add`; a text without a pair that a head can find does not count."""
        assert isinstance(sentence, PairScores)
        self._left_out += sentence.left_out
        if sentence.pairs:
            super().add(sentence)
            self._pairs += sentence.pairs
            self._sums = self._sums + sentence.sums

    def report(self) -> PairReport:
        """Return the report. Raises InputError: there is no text; InputMismatchError: no pair can be found."""
        if self._left_out and not self._pairs:
            raise InputMismatchError(f"no pair is left; {self._left_out[0]}")
        summary, means = vars(self.summary), np.asarray(self._sums / self._pairs).tolist()
        heads = [PairSummary(*head, *row) for head, row in zip(self.places, means, strict=True)]
        heads.sort(key=lambda head: (-head.hits, -head.weight))
        return PairReport(**summary, pairs=self._pairs, heads=tuple(heads), left_out=tuple(self._left_out))


def paired_items(texts: Iterable[PairedText]) -> list[CorpusItem]:
    """Return texts as a source computes them."""
    return [CorpusItem(text.number, text.text, target=text.target) for text in texts]


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
