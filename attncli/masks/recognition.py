"""Recognition of the rule that a mask follows, from its cells: over all heads and batch rows, with their padding.

Masks come in the shape in which a program made them, `[#B, #H, #Q, #K]`, and are never made larger: an axis along
which nothing changes is read once, and cells are compared a block of rows at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from attncli.attention import row_blocks
from attncli.errors import InputError
from attncli.masks.expressions import (
    And,
    Atom,
    Expression,
    Grid,
    Not,
    Or,
    Pad,
    conjuncts,
    is_padding,
    leaves,
    map_leaves,
)
from attncli.masks.padding import SEEN_BY_PADDING, ExceptionKind, RuleWithExceptions, exception_cells
from attncli.text import as_ranges

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

Shape = tuple[int, int, int, int]  # B, H, Q, K
_PLAIN = 3  # rules that come before all others: full, and those looked for at other alignments: causal, a window
_MOST_PLACES = 64  # positions that `global` is tried with
_MOST_DOCUMENTS = 4096
_SAMPLED = 16  # rows that a rule is tried on before all others
_MOST_VARIANTS = 3  # in a text
_MANY = re.compile(r"(\d+(?:,\d+){3})(?:,\d+){5,}")  # numbers, of which the first four are shown
_INFERRED: tuple[ExceptionKind, ...] = ("masked", "open", "themselves", "words")  # they show which keys are padding
_WHATEVER_MANY: tuple[ExceptionKind | None, ...] = (None, "each other", "padding")  # they show it with few words too


class RuleVariant(NamedTuple):
    """The rule of some batch rows and heads.

    Attributes:
        expression: exactly their cells, those of `rows` where it has a batch; None where no rule is known.
        past: number of keys before the first query for it to do so.
        tokens: the keys that are tokens; one row where all of `rows` agree.
        rows: these batch rows.
        heads: these heads.
    """

    expression: Expression | None
    past: int
    tokens: Bool[np.ndarray, "#R K"]
    rows: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rule:
    """The rule that the mask of an attention follows.

    Attributes:
        text: in words and as expressions, such as `causal & pad (rows 0, 3 of 4)`.
        variants: the rules that it consists of: one, or one for each kind of head or batch row.
        shape: `(B, H, Q, K)` of the attention.
    """

    text: str
    variants: tuple[RuleVariant, ...]
    shape: Shape

    @property
    def expression(self) -> Expression | None:
        """Rule of all heads and batch rows; None where they differ, or follow no rule."""
        return self.variants[0].expression if len(self.variants) == 1 else None

    @property
    def varies(self) -> Literal["rows", "heads"] | None:
        """Axis along which the rule varies; batch rows that differ in their padding alone follow one rule."""
        has_heads = len({variant.heads for variant in self.variants}) > 1
        return None if len(self.variants) == 1 else "heads" if has_heads else "rows"

    @cached_property
    def tokens(self) -> Bool[np.ndarray, "B K"]:
        """Mask of the keys that are tokens: all of them where nothing looks like padding."""
        batch, _, _, keys = self.shape
        tokens = np.zeros((batch, keys), bool)
        for variant in self.variants:
            tokens[list(variant.rows)] |= variant.tokens
        return tokens

    @cached_property
    def padded(self) -> tuple[int, ...]:
        """The batch rows that have padding."""
        return tuple(np.flatnonzero(~self.tokens.all(axis=1)).tolist())


def rule_of(
    allowed: Bool[np.ndarray, "_ _ _ _"],
    shape: Shape,
    past: int | None = None,
    tokens: Bool[np.ndarray, "B K"] | None = None,
) -> Rule:
    """Return the rule that a mask follows.

    Args:
        allowed: `[#B, #H, #Q, #K]`, True = attend; an axis may be 1 where nothing changes along it.
        shape: `(B, H, Q, K)` of the attention.
        past: number of keys before the first query; None is as many as there are more keys than queries.
        tokens: the keys that are not padding, where they are known; else they are inferred from the mask.
    """
    _, heads, queries, keys = shape
    before = max(keys - queries, 0) if past is None else past
    cells = _collapsed(allowed)
    alike = [tuple(range(heads))]
    if cells.shape[1] > 1:
        alike = _grouped(range(heads), lambda head: cells[:, head].tobytes())
    variants = [
        variant._replace(heads=some)
        for some in alike
        for variant in _of_rows(cells[:, some[0] % cells.shape[1]], shape, before, tokens)
    ]
    nameless = [variant for variant in variants if variant.expression is None]
    if len({variant.rows for variant in nameless}) == 1:  # heads without a rule are one variant
        some = tuple(sorted(head for variant in nameless for head in variant.heads))
        nameless = [nameless[0]._replace(heads=some)]
    variants = [variant for variant in variants if variant.expression is not None] + nameless
    density = float(np.count_nonzero(cells) / cells.size)
    return Rule(_rule_text(variants, shape, before, density), tuple(variants), shape)


def shape_of(cells: Bool[np.ndarray, "_ _ _ _"]) -> Shape:
    """Return the shape of a mask that is not broadcast any further."""
    batch, heads, queries, keys = cells.shape
    return batch, heads, queries, keys


def recognise_plane(allowed: Bool[np.ndarray, "Q K"], past: int) -> Expression | None:
    """Return the simplest expression that gives exactly these cells, or None where no simple one does."""
    variant = _Planes(allowed[None], past).rule() if allowed.any() else None
    if variant is None or variant.expression is None or variant.past != past:
        return None
    is_padded = any(isinstance(leaf, Pad | RuleWithExceptions) for leaf in leaves(variant.expression))
    return None if is_padded else variant.expression  # padding inside of a row has no spelling


def infer_padding(
    expected: Expression, allowed: Bool[np.ndarray, "B Q K"], past: int, tokens: Bool[np.ndarray, "B K"]
) -> Bool[np.ndarray, "B K"]:
    """Infer the keys that are not padding, from an expression that the queries of words follow only with more padding.

    Args:
        expected: the expression; the lengths of its `pad` are to be found.
        allowed: True = attend.
        past: number of keys before the first query.
        tokens: the keys assumed not to be padding; a row that follows the expression with them keeps them.
    """
    batch, queries, keys = allowed.shape
    if past + queries != keys or queries == 1:
        return tokens
    rule = map_leaves(expected, lambda leaf: Atom("full") if isinstance(leaf, Pad) else leaf)
    inferred = tokens.copy()
    for row, row_tokens in enumerate(tokens):
        planes = _Planes(allowed[row : row + 1], past)
        where = planes.exceptions(_Guess(rule, past, row_tokens[None], "others"))
        if where is None or not (where & row_tokens[past:]).any():
            continue
        for words in planes.words_of(rule):
            few = batch == 1 and 4 * int(words.sum()) < keys  # so few words fit almost any rule
            ways = _WHATEVER_MANY if few else (None, *SEEN_BY_PADDING)
            guesses = (_Guess(rule, past, words[None], way) for way in ways if way != "others")
            if any(planes.exceptions(guess) is not None for guess in guesses):
                inferred[row] = words
                break
    return inferred if 2 * int(inferred.sum(axis=1).max()) >= keys else tokens


# --- planes that are alike ----------------------------------------------------------------------------------


def _collapsed(allowed: Bool[np.ndarray, "_ _ _ _"]) -> Bool[np.ndarray, "_ _ _ _"]:
    """Return the cells with size 1 for every axis along which nothing changes."""
    for axis in range(4):
        before = (slice(None),) * axis
        first, last = allowed[*before, :1], allowed[*before, -1:]
        if allowed.shape[axis] > 1 and np.array_equal(first, last) and (allowed == first).all():
            allowed = first
    return allowed


def _of_rows(
    cells: Bool[np.ndarray, "_ _ _"], shape: Shape, past: int, tokens: Bool[np.ndarray, "B K"] | None
) -> list[RuleVariant]:
    """Return the rule of all batch rows; else one for those that differ in their padding alone, else one for each."""
    batch, _, queries, keys = shape
    everyone = tuple(range(batch))

    @cache
    def joint(rows: tuple[int, ...]) -> RuleVariant:
        plane = cells if len(rows) == batch else cells[list(rows)]
        return _of_planes(plane, queries, keys, past)._replace(rows=rows)

    batch_rule = None
    if tokens is not None and not tokens.all() and tokens.any(axis=1).all() and past + queries == keys:
        batch_rule = _Planes(np.broadcast_to(cells, (batch, queries, keys)), past).of_words(tokens)
    batch_rule = joint(everyone) if batch_rule is None else batch_rule._replace(rows=everyone)
    if batch_rule.expression is not None or len(cells) == 1:
        return [batch_rule]
    alone = [joint((row,)) for row in everyone]
    variants: list[RuleVariant] = []
    for rows in _grouped(everyone, lambda row: (_unpadded(alone[row].expression), alone[row].past)):
        together = joint(rows)
        if together.expression is not None:
            variants.append(together)
        else:
            texts = _grouped(rows, lambda row: (str(alone[row].expression), bool(alone[row].tokens.any())))
            variants += [alone[same[0]]._replace(rows=same) for same in texts]
    return sorted(variants, key=lambda variant: variant.rows)


def _grouped(places: Sequence[int], key: Callable[[int], Hashable]) -> list[tuple[int, ...]]:
    """Group the places that have the same key."""
    groups: dict[Hashable, list[int]] = {}
    for index in places:
        groups.setdefault(key(index), []).append(index)
    return [tuple(group) for group in groups.values()]


def _unpadded(expression: Expression | None) -> str:
    """Return a rule without its padding."""
    if expression is None:
        return ""
    if isinstance(expression, RuleWithExceptions):
        return f"{_unpadded(expression.inner)}, {expression.exception}"
    parts = [part for part in conjuncts(expression) if not is_padding(part)]
    return " & ".join(map(str, parts)) or "full"


def _of_planes(cells: Bool[np.ndarray, "_ _ _"], queries: int, keys: int, past: int) -> RuleVariant:
    """Return the one rule of these planes, `[#B, #Q, #K]`; its expression is None where no rule gives them all."""
    none = RuleVariant(None, past, np.full((1, keys), bool(cells.any())))
    if not cells.any():
        return none
    if cells.all():
        return none._replace(expression=Atom("full"))
    if cells.shape[1] == 1 < queries:  # the same keys for every query
        tokens = np.broadcast_to(cells[:, 0], (len(cells), keys))
        return RuleVariant(_padded(Atom("full"), tokens), past, tokens)
    planes = _Planes(np.broadcast_to(cells, (len(cells), queries, keys)), past)
    return planes.rule() or none


# --- one rule for some planes -------------------------------------------------------------------------------


class _Guess(NamedTuple):
    """A candidate: the rule of the queries of words, the keys that are words, and the keys of the other queries."""

    rule: Expression
    past: int
    tokens: Bool[np.ndarray, "#B K"]
    exception: ExceptionKind | None = None

    def expected(self, grid: Grid, is_exception: bool) -> Bool[np.ndarray, "#B Q K"]:
        """Return the cells of queries that follow the rule, or of those that deviate from it."""
        allowed = self.rule.allowed(grid)
        allowed = allowed.reshape(-1, *allowed.shape[-2:])[0]
        if is_exception and self.exception is not None:
            return exception_cells(self.exception, allowed, self.tokens, grid)
        return allowed[None] if self.tokens.all() else allowed & self.tokens[:, None]


class _Planes:
    """The masks of batch rows, which may be one rule with the padding of each row."""

    def __init__(self, cells: Bool[np.ndarray, "B Q K"], past: int) -> None:
        self.cells = cells
        self.past = past
        self.batch, self.queries, self.keys = cells.shape
        self.every: Bool[np.ndarray, "B Q"] = np.ones((self.batch, self.queries), bool)
        self.no_padding: Bool[np.ndarray, "1 K"] = np.ones((1, self.keys), bool)

    def rule(self) -> RuleVariant | None:
        """Return the rule of all queries, with the padding of each row or without; else that of the words.

        Where queries of padding deviate, the padding is inferred from it: a key that no other query sees. The last try
        is the rule of all queries but some, be they padding or not, that are fully masked.
        """
        visible = self._visible_keys(self.every)
        ways: list[tuple[ExceptionKind | None, Bool[np.ndarray, "B K"] | None]] = [(None, None), (None, visible)]
        shown = [kind for kind in _INFERRED if self._could_see[kind].any()]
        found = (self._followed(*way) for way in ways if way[1] is None or not visible.all())
        of_padding = (self._followed(kind, self._inferred(kind)) for kind in shown)
        of_any = (self._followed("masked", keys, True) for _, keys in ways if "masked" in shown)
        return next(filter(None, chain(found, of_padding, of_any)), None)

    def of_words(self, tokens: Bool[np.ndarray, "B K"]) -> RuleVariant | None:
        """Return the rule of the queries of words, given the keys that are words."""
        words = tokens[:, self.past : self.past + self.queries]
        for rule in (rule for rule, past in self._rules(words) if past == self.past):
            if self.exceptions(_Guess(rule, self.past, self.no_padding)) is not None:
                return RuleVariant(rule, self.past, self.no_padding)
            for exception in (None, *SEEN_BY_PADDING):
                guess = _Guess(rule, self.past, tokens, exception)
                where = self.exceptions(guess)
                if where is not None and not (where & words).any():
                    return self._variant(guess, where)
        return None

    def _followed(
        self, exception: ExceptionKind | None, visible: Bool[np.ndarray, "B K"] | None, is_any: bool = False
    ) -> RuleVariant | None:
        """Return the simplest rule of all queries but those of padding that deviate.

        Args:
            exception: the keys of these; None is no deviation.
            visible: the keys of each row that may be words; None is no padding.
            is_any: whether any query may deviate, be it padding or not.
        """
        rules = self._plain_rules if visible is None or is_any else self._rules(visible[:, self._own])
        for rule, past in rules:
            guess = _Guess(rule, past, self.no_padding, exception)
            if not self._could_be(guess):
                continue
            if visible is not None:
                tokens = self._tokens(guess, visible)
                if exception in _INFERRED and not is_any:
                    follows = ~np.logical_or.reduce([self._unlike(guess, rows).any(axis=1) for rows in self._blocks])
                    tokens = tokens | follows[:, None]  # batch rows that follow the rule without padding have none
                    if tokens.all() or not tokens.any(axis=1).all():
                        continue
                guess = guess._replace(tokens=tokens)
            where = self.exceptions(guess)
            if where is not None and (is_any or exception is None or self._are_padding(where, guess)):
                return self._variant(guess, where)
        return None

    def _variant(self, guess: _Guess, where: Bool[np.ndarray, "B Q"]) -> RuleVariant:
        """Return a rule with its padding, and the keys of the queries that deviate from it."""
        rule, past, tokens, exception = guess
        inner = _padded(rule, tokens)
        if exception is None or not where.any():
            return RuleVariant(inner, past, tokens)
        who: Literal["padding", "some padding", "some"] = "some"
        if self._are_padding(where, guess):
            padding = ~np.broadcast_to(tokens, (self.batch, self.keys))[:, past : past + self.queries]
            blocks = [] if exception == "others" else self._blocks
            differ = any((self._unlike(guess, rows, True) & padding[:, rows]).any() for rows in blocks)
            who = "some padding" if differ else "padding"
        return RuleVariant(RuleWithExceptions(inner, rule, tokens, where, exception, who), past, tokens)

    def words_of(self, rule: Expression) -> list[Bool[np.ndarray, " K"]]:
        """Return the words of the first row, as many as follow a rule, with padding at its right or at its left end."""
        (cells,), candidates, places = self.cells, [], np.arange(self.keys)
        grid = Grid(places[: self.queries, None], self.keys, self.past, self.queries)
        follows = _Guess(rule, self.past, self.no_padding).expected(grid, False)
        for turn in (1, -1):  # padding on the right, and on the left
            visible, wrong = cells[::turn, ::turn], (cells != follows[0])[::turn, ::turn]
            last = np.where(visible, places + 1, 0).max(axis=1)  # one behind the last key that a query sees
            right = np.where(wrong, places, self.keys).min(axis=1)  # the first that it sees against the rule, or misses
            most, least = np.minimum.accumulate(right), np.maximum.accumulate(last)
            lengths = np.arange(1, self.queries + 1) + (self.past if turn == 1 else 0)
            fits = (least <= lengths) & (lengths <= most) & (lengths < self.keys)
            if fits.any():
                candidates.append((places < int(lengths[fits].max()))[::turn])
        return sorted(candidates, key=lambda words: -int(words.sum()))

    @cached_property
    def _plain_rules(self) -> list[tuple[Expression, int]]:
        return self._rules(self.every)

    @cached_property
    def _own(self) -> Int[np.ndarray, " Q"]:
        """The key at the position of each query, or the last one."""
        return np.minimum(np.arange(self.queries) + self.past, self.keys - 1)

    def _rules(self, words: Bool[np.ndarray, "B Q"]) -> list[tuple[Expression, int]]:
        """Return the candidates, the simplest first, each with its past.

        They are read from the batch row that has most words, and of these the one in which most is allowed.
        """
        allowed = np.where(words, self._counts, 0).sum(axis=1)
        row = int(np.lexsort((allowed, words.sum(axis=1)))[-1])
        of_all = _candidates(self.cells[row], self.past, self.every[row])
        of_words = () if words[row].all() else _candidates(self.cells[row], self.past, words[row])
        rules = [(rule, self.past) for rule in dict.fromkeys((*of_all, *of_words))]
        pasts = {0, max(self.keys - self.queries, 0)} - {self.past}
        aligned = [(rule, other) for other in sorted(pasts) for rule, _ in rules[1:_PLAIN]]
        return rules[:_PLAIN] + aligned + rules[_PLAIN:]

    @cached_property
    def _counts(self) -> Int[np.ndarray, "B Q"]:
        return np.count_nonzero(self.cells, axis=-1)

    @cached_property
    def _could_see(self) -> dict[ExceptionKind, Bool[np.ndarray, "B Q"]]:
        """Queries that may be fully masked, open, alone with themselves or deviating otherwise, if they are padding."""
        places = np.arange(self.queries)
        alone = (self._counts == 1) & self.cells[:, places, self._own] & (places + self.past < self.keys)
        odd: dict[ExceptionKind, Bool[np.ndarray, "B Q"]] = dict.fromkeys(SEEN_BY_PADDING, self.every)
        return odd | {"masked": self._counts == 0, "open": self._counts == self.keys, "themselves": alone}

    def _inferred(self, exception: ExceptionKind) -> Bool[np.ndarray, "B K"]:
        """Return the keys that are not padding, if the queries of padding see this."""
        if exception != "words":
            is_odd = self._could_see[exception]
            tokens = self._visible_keys(~is_odd | ~(~is_odd).any(axis=1, keepdims=True))
            return _at_one_end(tokens) if exception == "themselves" else tokens
        counts = np.count_nonzero(self.cells, axis=1)
        places = np.arange(self.past, min(self.past + self.queries, self.keys))
        counts[:, places] -= self.cells[:, places - self.past, places]
        return _at_one_end(counts > 0)

    def _visible_keys(self, queries: Bool[np.ndarray, "B Q"]) -> Bool[np.ndarray, "B K"]:
        """Return the keys that any of these queries of each row sees."""
        pairs = zip(self.cells, queries, strict=True)
        return np.stack([(plane if rows.all() else plane[rows]).any(axis=0) for plane, rows in pairs])

    def _tokens(self, guess: _Guess, visible: Bool[np.ndarray, "B K"]) -> Bool[np.ndarray, "B K"]:
        """Return the keys that are not padding: each that some query sees, or that the rule itself hides from all.

        Keys that the rule hides at either end are taken for the same as their neighbour. Where queries of padding see
        every key, their own position shows nothing either.
        """
        shown = np.zeros(self.keys, bool)
        for rows in row_blocks(np.arange(self.queries), self.keys):
            grid = Grid(rows[:, None], self.keys, guess.past, self.queries)
            allowed = guess.rule.allowed(grid)
            shown |= (allowed & (grid.i != grid.j) if guess.exception == "open" else allowed).any(axis=0)
            if shown.all():
                break
        tokens = visible | ~shown
        places = np.flatnonzero(shown)
        if places.size:
            tokens[:, : places[0]] = tokens[:, places[:1]]
            tokens[:, places[-1] + 1 :] = tokens[:, places[-1:]]
        return tokens

    def _unlike(self, guess: _Guess, rows: Int[np.ndarray, " R"], is_odd: bool = False) -> Bool[np.ndarray, "B R"]:
        """Return the queries whose cells differ from the rule, or from an exception from it."""
        grid = Grid(rows[:, None], self.keys, guess.past, self.queries)
        return (self.cells[:, rows] != guess.expected(grid, is_odd)).any(axis=-1)

    def exceptions(self, guess: _Guess) -> Bool[np.ndarray, "B Q"] | None:
        """Return the queries that do not follow the rule; None if any of them deviates otherwise than it may."""
        where = np.zeros((self.batch, self.queries), bool)
        for rows in (self._sample, *self._blocks):
            wrong = where[:, rows] = self._unlike(guess, rows)
            if guess.exception == "others" or not wrong.any():
                continue
            if guess.exception is None or (wrong & self._unlike(guess, rows, True)).any():
                return None
        return where

    def _could_be(self, guess: _Guess) -> bool:
        """Return whether some queries see nothing that a rule forbids, which no padding allows; odd ones may."""
        rows = self._sample
        try:
            allowed = guess.rule.allowed(Grid(rows[:, None], self.keys, guess.past, self.queries))
        except InputError:  # documents that do not fit another alignment
            return False
        extra = np.any(self.cells[:, rows] & ~allowed, axis=-1)
        return not (extra if guess.exception is None else extra & ~self._could_see[guess.exception][:, rows]).any()

    @cached_property
    def _blocks(self) -> list[Int[np.ndarray, " _"]]:
        return row_blocks(np.arange(self.queries), self.batch * self.keys)

    @cached_property
    def _sample(self) -> Int[np.ndarray, " _"]:
        return np.array([*dict.fromkeys(np.linspace(0, self.queries - 1, _SAMPLED).astype(int).tolist())])

    def _are_padding(self, where: Bool[np.ndarray, "B Q"], guess: _Guess) -> bool:
        """Return whether these queries stand at the positions of keys that are padding."""
        end = guess.past + self.queries
        return end <= self.keys and not (where & guess.tokens[:, guess.past : end]).any()


def _padded(rule: Expression, tokens: Bool[np.ndarray, "#B K"]) -> Expression:
    """Return the rule with its padding, in numbers where all rows agree and it is at the ends."""
    if tokens.all():
        return rule
    left, right = int(tokens[0].argmax()), int(tokens[0, ::-1].argmax())
    is_left = (tokens[:, :-1] <= tokens[:, 1:]).all() and not (tokens[:, :-1] >= tokens[:, 1:]).all()
    pad: Expression = Pad("left" if is_left else "right", tokens)
    if (tokens == tokens[:1]).all() and tokens[0].sum() == tokens.shape[1] - left - right:
        pad = Atom("pad", keywords=tuple((side, n) for side, n in (("left", left), ("right", right)) if n))
    return pad if rule == Atom("full") else And((*conjuncts(rule), pad))


def _at_one_end(tokens: Bool[np.ndarray, "B K"]) -> Bool[np.ndarray, "B K"]:
    """Return tokens with the padding at one end of each row, the one that has more of it."""
    left, right = tokens.argmax(axis=1)[:, None], tokens[:, ::-1].argmax(axis=1)[:, None]
    places = np.arange(tokens.shape[1])
    return np.where(left >= right, places >= left, places < tokens.shape[1] - right)


# --- what a plane could be ----------------------------------------------------------------------------------


def _candidates(plane: Bool[np.ndarray, "Q K"], past: int, chosen: Bool[np.ndarray, " Q"]) -> Iterator[Expression]:
    """Yield the rules that may give these cells, the simplest first, read from the chosen queries."""
    rows = np.flatnonzero(chosen & plane.any(axis=1))
    if not rows.size:
        return
    live = plane if rows.size == len(plane) else plane[rows]
    keys, own = plane.shape[1], rows + past
    counts = np.count_nonzero(live, axis=1)
    first, last = live.argmax(axis=1), keys - 1 - live[:, ::-1].argmax(axis=1)
    most = int(counts.max())
    causal = Atom("causal")
    yield Atom("full")
    yield causal
    yield Atom("window", (most,))
    if 2 * most <= keys:  # fewer positions are documents
        yield And((causal, Atom("chunk", (most,))))
        yield Atom("chunk", (most,))
    yield Atom("band", (max(int((own - first).max()), 0), max(int((last - own).max()), 0)))
    if (last < own).all():
        yield And((causal, Not(Atom("window", (1,)))))
    if last.min() > 0 and (last == own).any():
        yield Or((causal, Atom("prefix", (int(last.min()) + 1,))))
    for documents in _documents(first, last, own, max(keys, past + len(plane))):
        yield documents
        yield And((causal, documents))
        yield And((Atom("window", (most,)), documents))
    if (counts < last - first + 1).any():
        yield from _scattered(live, own, counts)


def _documents(
    first: Int[np.ndarray, " R"], last: Int[np.ndarray, " R"], own: Int[np.ndarray, " R"], total: int
) -> Iterator[Atom]:
    """Yield the documents that the first keys of the queries may be due to.

    A document begins where the first visible key jumps; in a window, where a query sees nothing before itself. Keys
    before the first visible one, and behind the last one, are part of a document or one of their own.
    """
    jumps, selves = {*first.tolist()} - {int(first.min())}, {*own[first == own].tolist()}  # np.unique imports numpy.ma
    options: dict[tuple[int, ...], None] = {}
    for inner in (jumps, selves):
        for edges in (set(), {int(first.min())}, {int(last.max()) + 1}, {int(first.min()), int(last.max()) + 1}):
            starts = sorted((inner | edges | {0}) - {total})
            if inner - {0} and len(starts) <= _MOST_DOCUMENTS and 2 * len(starts) <= total + 2:
                options[tuple(np.diff([*starts, total]).tolist())] = None
    yield from (Atom("docs", lengths) for lengths in options)


def _scattered(
    live: Bool[np.ndarray, "R K"], own: Int[np.ndarray, " R"], counts: Int[np.ndarray, " R"]
) -> Iterator[Expression]:
    """Yield rules whose rows have gaps: steps, and a window with keys that every query sees."""
    at_most = int(counts.max())
    places = np.flatnonzero(live[-1])
    if len(places) > 1:
        yield Atom("dilated", (at_most, int(places[-1] - places[-2])))
    always = live.all(axis=0)
    everywhere = Atom("global", tuple(np.flatnonzero(always)[:_MOST_PLACES].tolist()))
    local = np.flatnonzero(counts < live.shape[1])
    local = local[np.linspace(0, len(local) - 1, min(_SAMPLED, len(local))).astype(int)] if local.size else local
    if always.any() and local.size:
        yield everywhere
        rest = [(own[row], np.flatnonzero(live[row] & ~always)) for row in local.tolist()]
        back = max((int(at - keys[0]) for at, keys in rest if keys.size), default=0)
        ahead = max((int(keys[-1] - at) for at, keys in rest if keys.size), default=0)
        near = Atom("band", (max(back, 0), ahead)) if ahead > 0 else Atom("window", (max(back, 0) + 1,))
        yield Or((near, everywhere))
    gapped = [row for row in local.tolist() if counts[row] < np.ptp(np.flatnonzero(live[row])) + 1]
    if gapped:  # a causal window after the first keys, which a late query shows
        places = np.flatnonzero(live[gapped[-1]])
        start = int(np.flatnonzero(np.diff(places) > 1)[-1]) + 1
        # A window of 1 is a query of padding that sees itself and the words.
        if len(places) - start != 1 and places[start - 1] == start - 1:
            yield And((Atom("causal"), Or((Atom("window", (len(places) - start,)), Atom("prefix", (start,))))))


# --- in words -----------------------------------------------------------------------------------------------


def _rule_text(variants: Sequence[RuleVariant], shape: Shape, past: int, density: float) -> str:
    if len(variants) == 1:
        return _variant_text(variants[0], shape, past, density)
    has_heads = len({variant.heads for variant in variants}) > 1
    has_rows = len({variant.rows for variant in variants}) > 1
    parts = []
    for variant in variants[:_MOST_VARIANTS]:
        rows, heads = (as_ranges(places).replace(",", ", ") for places in (variant.rows, variant.heads))
        where = f"rows {rows} heads {heads}" if has_rows and has_heads else rows if has_rows else heads
        parts.append(f"{where} {_variant_text(variant, shape, past, None)}")
    more = f" and {len(variants) - _MOST_VARIANTS} more" if len(variants) > _MOST_VARIANTS else ""
    what = "" if has_rows and has_heads else "rows " if has_rows else "heads "
    return what + ", ".join(parts) + more


def _variant_text(variant: RuleVariant, shape: Shape, past: int, density: float | None) -> str:
    """Return the rule of some rows and heads in words, with the rows that are padded, and the alignment."""
    if variant.expression is None:
        if not variant.tokens.any():
            return "nothing: every key is masked"
        share = "" if density is None else f", {density:.0%} of cells allowed".replace("%", " %")
        return f"irregular mask{share}"
    expression, odd = variant.expression, ""
    if isinstance(expression, RuleWithExceptions):
        odd = str(expression).removeprefix(str(expression.inner))
        expression = expression.inner
    text = _MANY.sub(lambda found: f"{found[1]},… {found[0].count(',') + 1} in all", str(expression))
    if any(isinstance(leaf, Pad) for leaf in leaves(expression)):
        begins = np.diff(variant.tokens.astype(np.int8), axis=1, prepend=0) > 0
        text += " with gaps" if begins.sum(axis=1).max() > 1 else ""
    padded = [variant.rows[row] for row in np.flatnonzero(~variant.tokens.all(axis=1))]
    if len(variant.tokens) > 1 and 0 < len(padded) < len(variant.tokens):
        rows = as_ranges(padded).replace(",", ", ")
        text += f" ({'row' if len(padded) == 1 else 'rows'} {rows} of {shape[0]})"
    if variant.past != past:
        text += ", aligned top-left" if variant.past == 0 else f", aligned bottom-right (past {variant.past})"
    return text + odd
