"""Recognition of the rule that a mask follows, from its cells: over all heads and batch rows, with their padding.

Masks come in the shape in which a program made them, `[#B, #H, #Q, #K]`: an axis along which nothing changes is read
once, and cells are compared a block of rows at a time. Queries of padding may see anything, as their outputs are not
used: a rule is read from the queries of words and compared at them, and the others are named afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np

from attncli.attention import row_blocks
from attncli.errors import InputError
from attncli.masks.expressions import And, Atom, Expression, Grid, Not, Or, Pad, conjuncts, leaves, map_leaves
from attncli.text import as_ranges

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    Planes = Bool[np.ndarray, "#B #Q K"]
    Keys = Bool[np.ndarray, "#B K"]
    Queries = Bool[np.ndarray, "B Q"]

Shape = tuple[int, int, int, int]  # B, H, Q, K
_PLAIN = 3  # rules before all others: full, and those that are tried at other alignments: causal and a window
_MOST_PLACES = 64  # positions that `global` is tried with
_MOST_DOCUMENTS = 4096
_SAMPLED = 16  # rows that a rule is tried on before all others
_MOST_VARIANTS = 3  # in a text
_MANY = re.compile(r"(\d+(?:,\d+){3})(?:,\d+){5,}")  # numbers, of which the first four are shown

# Queries of padding that deviate from the rule: their keys in words, and their cells by the rule, words and diagonal.
_KINDS: dict[str, Callable[..., Bool[np.ndarray, "#B Q K"]]] = {
    "see nothing": lambda rule, words, diagonal: rule[None] & False,
    "see every key": lambda rule, words, diagonal: rule[None] | True,
    "see themselves alone": lambda rule, words, diagonal: diagonal[None],
    "see the words and themselves": lambda rule, words, diagonal: rule & words | diagonal,
    "see each other": lambda rule, words, diagonal: rule & ~words,
    "see padding too": lambda rule, words, diagonal: rule[None],
}


class Match(NamedTuple):
    """A rule of the queries of words, the keys that are words, and the queries that deviate from it."""

    rule: Expression  # without padding
    past: int  # number of keys before the first query
    tokens: Keys
    where: Queries | None = None
    kind: str = ""  # the keys of these, one of `_KINDS` or `see other keys`; empty where none deviates
    who: str = "padding"


class RuleWithExceptions(NamedTuple):
    """A rule that some queries of a batch do not follow: mostly padding, whose outputs are not used."""

    inner: Expression  # the rule of the others, with the padding of each batch row
    match: Match

    def allowed(self, grid: Grid) -> Bool[np.ndarray, " ..."]:
        """See `Expression.allowed`."""
        inner, (rule, _, tokens, where, kind, _) = self.inner.allowed(grid), self.match
        if kind not in _KINDS or where is None:
            return inner
        cells = _KINDS[kind](rule.allowed(grid), tokens[:, None], grid.i == grid.j)
        return np.where(where[:, None, grid.queries[:, 0], None], cells[:, None], inner)

    def __str__(self) -> str:
        return str(self.inner) + self.suffix

    @property
    def suffix(self) -> str:
        """The queries that deviate and their keys, as the end of the rule."""
        return f", {self.match.who} queries {self.match.kind}"


class RuleVariant(NamedTuple):
    """The rule of some batch rows and heads."""

    expression: Expression | None  # exactly their cells, of `rows` where it has a batch; None where no rule is known
    past: int  # number of keys before the first query for it to do so
    tokens: Bool[np.ndarray, "#R K"]  # the keys that are tokens; one row where all of `rows` agree
    rows: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rule:
    """The rule that the mask of an attention follows."""

    text: str  # in words and as expressions, such as `causal & pad (rows 0, 3 of 4)`
    variants: tuple[RuleVariant, ...]  # the rules that it consists of: one, or one for each kind of head or batch row
    shape: Shape  # `(B, H, Q, K)` of the attention

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
        tokens = np.zeros((self.shape[0], self.shape[3]), bool)
        for variant in self.variants:
            tokens[list(variant.rows)] |= variant.tokens
        return tokens

    @cached_property
    def padded(self) -> tuple[int, ...]:
        """The batch rows that have padding."""
        return tuple(np.flatnonzero(~self.tokens.all(axis=1)).tolist())


def rule_of(
    allowed: Bool[np.ndarray, "_ _ _ _"],
    shape: Shape | None = None,
    past: int | None = None,
    tokens: Keys | None = None,
) -> Rule:
    """Return the rule that a mask `[#B, #H, #Q, #K]` follows in attention of a shape; True = attend.

    `shape` is by default the mask's, `past` keys − queries. `tokens` are the keys that are not padding; None infers
    them from the mask.
    """
    shape = shape or cast(Shape, allowed.shape)
    _, heads, queries, keys = shape
    past = max(keys - queries, 0) if past is None else past
    cells = _collapsed(allowed)
    planes = cells.swapaxes(0, 1)
    alike = _grouped(range(heads), lambda head: len(planes) > 1 and planes[head].tobytes())
    variants = [
        variant._replace(heads=same_heads)
        for same_heads in alike
        for variant in _of_rows(planes[same_heads[0] % len(planes)], shape, past, tokens)
    ]
    nameless = [variant for variant in variants if variant.expression is None]
    if len({variant.rows for variant in nameless}) == 1:  # heads without a rule are one variant
        nameless = [nameless[0]._replace(heads=tuple(sorted(chain(*(variant.heads for variant in nameless)))))]
    variants = [variant for variant in variants if variant.expression is not None] + nameless
    share = f", {np.count_nonzero(cells) / cells.size:.0%} of cells allowed".replace("%", " %")
    return Rule(_rule_text(variants, shape, past, share), (*variants,), shape)


def recognise_plane(allowed: Bool[np.ndarray, "Q K"], past: int) -> Expression | None:
    """Return the simplest expression that gives exactly these cells, or None where no simple one does."""
    guess = _Planes(allowed[None], past).match() if allowed.any() else None
    is_plain = guess is not None and not guess.kind and guess.past == past and bool(guess.tokens.all())
    return guess.rule if guess is not None and is_plain else None


def infer_padding(expected: Expression, allowed: Planes, past: int, tokens: Keys) -> Keys:
    """Infer the keys that are not padding, from an expression that the queries of words follow only with more padding.

    `tokens` are the keys assumed not to be padding; a row that follows the expression with them keeps them.
    """
    batch, queries, keys = allowed.shape
    if past + queries != keys or queries == 1:
        return tokens
    rule = map_leaves(expected, lambda leaf: Atom("full") if isinstance(leaf, Pad) else leaf)
    inferred = tokens.copy()
    for row, row_tokens in enumerate(tokens):
        planes = _Planes(allowed[row : row + 1], past)
        if planes.deviating(Match(rule, past, row_tokens[None])) is None:
            least = 1 if batch > 1 else keys / 4  # fewer words fit almost any rule
            inferred[row] = next(planes.words_of(rule, least), row_tokens)
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


def _grouped(places: Iterable[int], key: Callable[[int], Hashable]) -> list[tuple[int, ...]]:
    groups: dict[Hashable, list[int]] = {}
    for index in places:
        groups.setdefault(key(index), []).append(index)
    return [tuple(group) for group in groups.values()]


def _of_rows(cells: Planes, shape: Shape, past: int, tokens: Keys | None) -> list[RuleVariant]:
    """Return the rule of all batch rows; else one for those that differ in their padding alone."""
    batch, _, queries, keys = shape

    def match(planes: Planes, known: Keys | None = None) -> Match | None:
        if not planes.any():
            return None
        if planes.shape[1] == 1 < queries and known is None:  # the same keys for every query
            return Match(Atom("full"), past, np.broadcast_to(planes[:, 0], (len(planes), keys)))
        planes = np.broadcast_to(planes, (len(planes) if known is None else batch, queries, keys))
        return _Planes(planes, past).match(known)

    def variant(rows: tuple[int, ...], matches: Sequence[Match | None]) -> RuleVariant:
        recognised = [match for match in matches if match is not None]
        if not recognised:
            return RuleVariant(None, past, np.full((1, keys), bool(cells[rows[0] % len(cells)].any())), rows)
        joint = recognised[0]._replace(tokens=np.concatenate([match.tokens for match in recognised]))
        expression = _padded(joint.rule, joint.tokens)
        if joint.kind:
            where = np.concatenate([match.where for match in recognised if match.where is not None])
            expression = RuleWithExceptions(expression, joint._replace(where=where))
        return RuleVariant(expression, joint.past, joint.tokens, rows)

    everyone = tuple(range(batch))
    is_known = tokens is not None and not tokens.all() and tokens.any(axis=1).all() and past + queries == keys
    together = match(cells, tokens if is_known else None)
    if together is not None or len(cells) == 1:
        return [variant(everyone, [together])]
    alone = [match(cells[row : row + 1]) for row in everyone]
    rules = [guess and (str(guess.rule), guess.past, guess.kind) for guess in alone]
    alike = _grouped(everyone, lambda row: rules[row] or bool(cells[row].any()))
    return [variant(rows, [alone[row] for row in rows]) for rows in alike]


# --- one rule for some planes -------------------------------------------------------------------------------


class _Planes:
    """Masks of batch rows, which are to follow one rule with the padding of each row."""

    def __init__(self, cells: Planes, past: int) -> None:
        self.cells = cells
        self.past = past
        self.batch, self.queries, self.keys = cells.shape
        self.every: Queries = np.ones((self.batch, self.queries), bool)
        self.diagonal = np.minimum(np.arange(self.queries) + past, self.keys - 1)  # the key at each query's position
        self.counts = np.count_nonzero(cells, axis=-1)
        self.blocks = row_blocks(np.arange(self.queries), self.batch * self.keys)
        self.sample = np.linspace(0, self.queries - 1, min(_SAMPLED, self.queries)).astype(int)

    def match(self, known: Keys | None = None) -> Match | None:
        """Return the rule of all queries; else that of words, with padding as it is known or as the cells show it.

        The last try is the rule of all queries but those that are fully masked.
        """
        if known is not None and (match := self._with_padding(known, is_known=True)) is not None:
            return match
        no_padding: Keys = np.ones((1, self.keys), bool)
        rules = [Match(rule, past, no_padding) for rule, past in self._rules(self.every)]
        for guess in rules:
            if self.deviating(guess) is not None:
                return guess
        seen = self._seen_keys(self.every)
        for tokens in chain([seen], (tokens for tokens in self._shown_words() if tokens.any(axis=1).all())):
            if not tokens.all() and (match := self._with_padding(tokens)) is not None:
                return match
        blind = self.counts == 0
        for guess in rules if blind.any() else []:
            for tokens in (no_padding, self._words(guess, seen)):
                padded = guess._replace(tokens=tokens)
                if (where := self.deviating(padded, blind)) is not None:
                    return padded._replace(where=where, kind="see nothing", who="some")
        return None

    def _with_padding(self, tokens: Keys, is_known: bool = False) -> Match | None:
        """Return the simplest rule of the queries of words, which are known or which the cells show."""
        for rule, past in self._rules(tokens[:, self.diagonal]):
            unpadded = Match(rule, past, np.ones((1, self.keys), bool))
            if is_known and past != self.past:
                continue
            if is_known and self.deviating(unpadded) is not None:
                return unpadded
            guess = unpadded._replace(tokens=tokens if is_known else self._words(unpadded, tokens))
            if (where := self.deviating(guess)) is None:
                continue
            if not is_known and (unlike := self.deviating(unpadded, self.every)) is not None:
                is_padded = unlike.any(axis=1, keepdims=True)  # rows that follow the rule without padding have none
                guess, where = guess._replace(tokens=guess.tokens | ~is_padded), where & is_padded
            kind = self.kind_of(guess, where)
            if is_known or not kind or kind in _KINDS:
                return guess._replace(where=where, kind=kind)
        return None

    def deviating(self, guess: Match, free: Queries | None = None) -> Queries | None:
        """Return the queries that do not follow a rule; None if one does that is not free to, as padding is."""
        if free is None:
            end = guess.past + self.queries  # where queries have no key of their own, none is padding
            free = self.every & (~guess.tokens[:, guess.past : end] if end <= self.keys else False)
        where = np.zeros((self.batch, self.queries), bool)
        with suppress(InputError):  # documents that do not fit another alignment
            for rows in (self.sample, *self.blocks):
                expected = self._laid(guess, rows) & guess.tokens[:, None]
                where[:, rows] = (self.cells[:, rows] != expected).any(axis=-1)
                if (where[:, rows] & ~free[:, rows]).any():
                    return None
            return where
        return None

    def kind_of(self, guess: Match, where: Queries) -> str:
        """Return the keys of the queries of padding that deviate from a rule."""
        kinds = (kind for kind in _KINDS if self._is_kind(kind, guess, where))
        return next(kinds, "see other keys") if where.any() else ""

    def _is_kind(self, kind: str, guess: Match, where: Queries) -> bool:
        for rows in self.blocks:
            diagonal = rows[:, None] + guess.past == np.arange(self.keys)
            expected = _KINDS[kind](self._laid(guess, rows), guess.tokens[:, None], diagonal)
            if ((self.cells[:, rows] != expected).any(axis=-1) & where[:, rows]).any():
                return False
        return True

    def _laid(self, guess: Match, rows: Int[np.ndarray, " R"]) -> Bool[np.ndarray, "R K"]:
        allowed = guess.rule.allowed(Grid(rows[:, None], self.keys, guess.past, self.queries))
        return allowed.reshape(-1, *allowed.shape[-2:])[0]

    def words_of(self, rule: Expression, least: float) -> Iterator[Bool[np.ndarray, " K"]]:
        """Yield the words of the only row, as many as follow a rule, with padding at its right or at its left end."""
        (cells,), candidates, places = self.cells, [], np.arange(self.keys)
        wrong = cells != self._laid(Match(rule, self.past, cells[:1]), places[: self.queries])
        for turn in (1, -1):  # padding on the right, and on the left
            last = np.where(cells[::turn, ::turn], places + 1, 0).max(axis=1)  # one behind the last key of a query
            right = np.where(wrong[::turn, ::turn], places, self.keys).min(axis=1)  # the first against the rule
            lengths = np.arange(1, self.queries + 1) + (self.past if turn == 1 else 0)
            fits = (np.maximum.accumulate(last) <= lengths) & (lengths <= np.minimum.accumulate(right))
            if (fits := fits & (lengths < self.keys)).any():
                candidates.append((places < int(lengths[fits].max()))[::turn])
        for words in sorted(candidates, key=lambda words: -int(words.sum())):
            guess = Match(rule, self.past, words[None])
            where = self.deviating(guess)
            kind = "see other keys" if where is None else self.kind_of(guess, where)
            if (not kind or kind in _KINDS) and words.sum() >= least:
                yield words

    def _rules(self, words: Queries) -> list[tuple[Expression, int]]:
        """Return the candidates, the simplest first, each with its past, read from the batch row with most words."""
        allowed = np.where(words, self.counts, 0).sum(axis=1)
        row = int(np.lexsort((allowed, words.sum(axis=1)))[-1])
        candidates = (_candidates(self.cells[row], self.past, chosen) for chosen in (words[row], self.every[row]))
        rules = [(rule, self.past) for rule in dict.fromkeys(chain.from_iterable(candidates))]
        pasts = {0, max(self.keys - self.queries, 0)} - {self.past}
        aligned = [(rule, other) for other in sorted(pasts) for rule, _ in rules[1:_PLAIN]]
        return rules[:_PLAIN] + aligned + rules[_PLAIN:]

    def _shown_words(self) -> Iterator[Keys]:
        """Yield the keys that are seen, but by padding that sees every key, itself alone, or the words and itself."""
        places = np.arange(self.queries)
        diagonal = self.cells[:, places, self.diagonal] & (places + self.past < self.keys)
        for odd, is_at_end in ((self.counts == self.keys, False), (diagonal & (self.counts == 1), True)):
            if odd.any():
                tokens = self._seen_keys(~odd | odd.all(axis=1, keepdims=True))
                yield _at_one_end(tokens) if is_at_end else tokens
        counts = np.count_nonzero(self.cells, axis=1)
        inside = places[places + self.past < self.keys]
        counts[:, inside + self.past] -= diagonal[:, inside]
        yield _at_one_end(counts > 0)

    def _seen_keys(self, queries: Queries) -> Keys:
        return np.stack([plane[rows].any(axis=0) for plane, rows in zip(self.cells, queries, strict=True)])

    def _words(self, guess: Match, visible: Keys) -> Keys:
        """Return the visible keys, and those that the rule itself hides; at either end they are as their neighbour."""
        shown = np.zeros(self.keys, bool)
        with suppress(InputError):  # documents that do not fit another alignment
            for rows in self.blocks:
                shown |= self._laid(guess, rows).any(axis=0)
        tokens, places = visible | ~shown, np.flatnonzero(shown)
        if places.size:
            tokens[:, : places[0]] = tokens[:, places[:1]]
            tokens[:, places[-1] + 1 :] = tokens[:, places[-1:]]
        return tokens


def _padded(rule: Expression, tokens: Keys) -> Expression:
    """Return the rule with its padding, in numbers where all rows agree and it is at the ends."""
    if tokens.all():
        return rule
    left, right = int(tokens[0].argmax()), int(tokens[0, ::-1].argmax())
    is_left = (tokens[:, :-1] <= tokens[:, 1:]).all() and not (tokens[:, :-1] >= tokens[:, 1:]).all()
    pad: Expression = Pad("left" if is_left else "right", tokens)
    if (tokens == tokens[:1]).all() and tokens[0].sum() == tokens.shape[1] - left - right:
        pad = Atom("pad", keywords=tuple((side, n) for side, n in (("left", left), ("right", right)) if n))
    return pad if rule == Atom("full") else And((*conjuncts(rule), pad))


def _at_one_end(tokens: Keys) -> Keys:
    """Return tokens with the padding at one end of each row, the one that has more of it."""
    left, right = tokens.argmax(axis=1)[:, None], tokens[:, ::-1].argmax(axis=1)[:, None]
    places = np.arange(tokens.shape[1])
    return np.where(left >= right, places >= left, places < tokens.shape[1] - right)


# --- rules that a plane may follow --------------------------------------------------------------------------


def _candidates(plane: Bool[np.ndarray, "Q K"], past: int, chosen: Bool[np.ndarray, " Q"]) -> Iterator[Expression]:
    """Yield the rules that may give these cells, the simplest first, read from the chosen queries."""
    rows = np.flatnonzero(chosen & plane.any(axis=1))
    if not rows.size:
        return
    live, keys, own = plane[rows], plane.shape[1], rows + past
    counts = np.count_nonzero(live, axis=1)
    first, last = live.argmax(axis=1), keys - 1 - live[:, ::-1].argmax(axis=1)
    most, causal = int(counts.max()), Atom("causal")
    window, chunk = Atom("window", (most,)), Atom("chunk", (most,))
    yield from (Atom("full"), causal, window)
    if 2 * most <= keys:  # fewer positions are documents
        yield from (And((causal, chunk)), chunk)
    back = keys - 1 if (first == first[0]).all() else max(int((own - first).max()), 0)
    ahead = keys - 1 if (last == last[0]).all() else max(int((last - own).max()), 0)
    yield Atom("band", (back, ahead))
    if (last < own).all():
        yield And((causal, Not(Atom("window", (1,)))))
    if last.min() > 0 and (last == own).any():
        yield Or((causal, Atom("prefix", (int(last.min()) + 1,))))
    total = max(keys, past + len(plane))  # a document begins where a query sees nothing before itself
    starts = sorted({0, *own[(first == own) & (own > first.min())].tolist()} - {total})
    if 1 < len(starts) <= min(_MOST_DOCUMENTS, total // 2 + 1):
        documents = Atom("docs", tuple(np.diff([*starts, total]).tolist()))
        yield from (documents, And((causal, documents)), And((window, documents)))
    gapped = np.flatnonzero(counts < last - first + 1)
    if gapped.size:
        yield from _scattered(live, own, counts, live[gapped[-1]])


def _scattered(
    live: Bool[np.ndarray, "R K"],
    own: Int[np.ndarray, " R"],
    counts: Int[np.ndarray, " R"],
    gapped: Bool[np.ndarray, " K"],
) -> Iterator[Expression]:
    """Yield rules whose rows have gaps: steps, and a window with keys that every query sees."""
    places, start = np.flatnonzero(gapped), int(gapped.argmin())
    yield Atom("dilated", (int(counts.max()), int(places[-1] - places[-2])))
    always, local = live.all(axis=0), np.flatnonzero(counts < live.shape[1])
    if always.any():
        everywhere = Atom("global", tuple(np.flatnonzero(always)[:_MOST_PLACES].tolist()))
        local = local[np.linspace(0, len(local) - 1, min(_SAMPLED, len(local))).astype(int)]
        distances = (np.arange(live.shape[1]) - own[local, None])[live[local] & ~always]
        back, ahead = -int(distances.min(initial=0)), int(distances.max(initial=0))
        near = Atom("band", (back, ahead)) if ahead > 0 else Atom("window", (back + 1,))
        yield from (everywhere, Or((near, everywhere)))
    width = len(places) - start
    if start and width != 1:  # 1 is a query of padding that sees itself and the words
        yield And((Atom("causal"), Or((Atom("window", (width,)), Atom("prefix", (start,))))))


# --- in words -----------------------------------------------------------------------------------------------


def _rule_text(variants: Sequence[RuleVariant], shape: Shape, past: int, share: str) -> str:
    if len(variants) == 1:
        return _variant_text(variants[0], shape, past, share)
    axes = [axis for axis in ("rows", "heads") if len({getattr(variant, axis) for variant in variants}) > 1]
    parts = []
    for variant in variants[:_MOST_VARIANTS]:
        places = [as_ranges(getattr(variant, axis)).replace(",", ", ") for axis in axes]
        where = f"rows {places[0]} heads {places[1]}" if len(axes) > 1 else places[0]
        parts.append(f"{where} {_variant_text(variant, shape, past)}")
    more = f" and {len(variants) - _MOST_VARIANTS} more" if len(variants) > _MOST_VARIANTS else ""
    return ("" if len(axes) > 1 else f"{axes[0]} ") + ", ".join(parts) + more


def _variant_text(variant: RuleVariant, shape: Shape, past: int, share: str = "") -> str:
    """Return the rule of some rows and heads in words, with the rows that are padded, and the alignment."""
    expression, suffix = variant.expression, ""
    if expression is None:
        return f"irregular mask{share}" if variant.tokens.any() else "nothing: every key is masked"
    if isinstance(expression, RuleWithExceptions):
        suffix, expression = expression.suffix, expression.inner
    text = _MANY.sub(lambda numbers: f"{numbers[1]},… {numbers[0].count(',') + 1} in all", str(expression))
    if any(isinstance(leaf, Pad) for leaf in leaves(expression)):
        begins = np.diff(variant.tokens.astype(np.int8), axis=1, prepend=0) > 0
        text += " with gaps" if begins.sum(axis=1).max() > 1 else ""
    padded = [variant.rows[row] for row in np.flatnonzero(~variant.tokens.all(axis=1))]
    if len(variant.tokens) > 1 and 0 < len(padded) < len(variant.tokens):
        rows = as_ranges(padded).replace(",", ", ")
        text += f" ({'row' if len(padded) == 1 else 'rows'} {rows} of {shape[0]})"
    if variant.past != past:
        text += ", aligned top-left" if variant.past == 0 else f", aligned bottom-right (past {variant.past})"
    return text + suffix
