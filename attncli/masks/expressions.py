"""Mask expressions: a tree of named masks with and, or and not, such as `causal & (window(4) | prefix(3))`.

`True` means that this query may attend to this key. Query i stands at position past+i; key j at position j.
Every atom is a rule over positions, so a mask costs nothing until some of its rows are computed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np

from attncli.attention import row_blocks
from attncli.errors import InputError, UsageError
from attncli.masks import NOTATION
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


class Grid(NamedTuple):
    """The cells that a mask is computed for: some query rows, all keys."""

    queries: Int[np.ndarray, "Q 1"]  # indices of the query rows, `[Q, 1]`
    keys: int  # the number of keys, which are the columns
    past: int  # number of keys before the first query (a KV cache)
    total_queries: int  # how many query rows the whole mask has

    @property
    def i(self) -> Int[np.ndarray, "Q 1"]:
        """Positions of the queries, past included."""
        return self.queries + self.past

    @property
    def j(self) -> Int[np.ndarray, "1 K"]:
        """Positions of the keys."""
        return np.arange(self.keys)[None, :]


class Expression(Protocol):
    """A node of a parsed mask expression; `str()` writes it back."""

    def allowed(self, grid: Grid) -> Bool[np.ndarray, " ..."]:
        """Return which cells of `grid` are allowed, in a shape that broadcasts to `[H, Q, K]`.

        Where batch rows have padding of their own (`Pad`) it broadcasts to `[B, H, Q, K]`.
        """


@dataclass(frozen=True)
class _Sides:
    sides: tuple[Expression, ...]


class And(_Sides):
    """Intersection: a cell is allowed if every side allows it."""

    def allowed(self, grid: Grid) -> Bool[np.ndarray, " ..."]:
        """See `Expression.allowed`."""
        return reduce(operator.and_, (side.allowed(grid) for side in self.sides))

    def __str__(self) -> str:
        return " & ".join(f"({side})" if isinstance(side, Or) else str(side) for side in self.sides)


class Or(_Sides):
    """Union: a cell is allowed if at least one side allows it."""

    def allowed(self, grid: Grid) -> Bool[np.ndarray, " ..."]:
        """See `Expression.allowed`."""
        return reduce(operator.or_, (side.allowed(grid) for side in self.sides))

    def __str__(self) -> str:
        return " | ".join(map(str, self.sides))


class Not(NamedTuple):
    """Complement: a cell is allowed if the inner expression forbids it."""

    inner: Expression

    def allowed(self, grid: Grid) -> Bool[np.ndarray, " ..."]:
        """See `Expression.allowed`."""
        return ~self.inner.allowed(grid)

    def __str__(self) -> str:
        return f"~({self.inner})" if isinstance(self.inner, And | Or) else f"~{self.inner}"


class Atom(NamedTuple):
    """A named rule with its arguments."""

    name: str
    arguments: tuple[int, ...] = ()
    keywords: tuple[tuple[str, int], ...] = ()

    def allowed(self, grid: Grid) -> Bool[np.ndarray, " ..."]:
        """See `Expression.allowed`."""
        return ATOMS[self.name](grid, *self.arguments, **dict(self.keywords))

    def __str__(self) -> str:
        written = [str(argument) for argument in self.arguments]
        written += [f"{name}={value}" for name, value in self.keywords]
        return f"{self.name}({','.join(written)})" if written else self.name


class File(NamedTuple):
    """A mask in a file, which is read once, together with the expression."""

    path: str  # the file
    mask: Bool[np.ndarray, "*H Q K"]  # True = attend

    def allowed(self, grid: Grid) -> Bool[np.ndarray, " ..."]:
        """See `Expression.allowed`."""
        expected = (grid.total_queries, grid.keys)
        if self.mask.shape[-2:] != expected:
            raise InputError(
                f"the mask in {visible(self.path)} has shape {list(self.mask.shape)}; expected [queries, keys] = "
                f"{list(expected)}, or an axis of heads before these"
            )
        return self.mask[..., grid.queries[:, 0], :]

    def __str__(self) -> str:
        quote = "'" if '"' in self.path else '"'
        return f"file({quote}{self.path}{quote})"


class Pad(NamedTuple):
    """Padding of each batch row, `pad` without numbers; its lengths come apart from the expression."""

    side: Literal["left", "right"] = "right"  # the side of the padding, where lengths are numbers
    # how many tokens each row has, `[B]`, or which of its keys are tokens, `[B, K]`
    lengths: Int[np.ndarray, " B"] | Bool[np.ndarray, "B K"] | None = None

    @property
    def stated(self) -> Int[np.ndarray, " B"] | Bool[np.ndarray, "B K"]:
        """The lengths; UsageError without them."""
        if self.lengths is None:
            raise UsageError(
                f"{self} needs the lengths of the rows; give --lengths 5,2 (in Python lengths=[5, 2]), or write "
                "pad(left=n) or pad(right=n)"
            )
        return self.lengths

    def allowed(self, grid: Grid) -> Bool[np.ndarray, "B 1 Q K"]:
        """See `Expression.allowed`; InputError for lengths of another number of keys."""
        tokens, keys = self.stated, grid.keys
        if tokens.ndim == 2 and tokens.shape[1] != keys:
            raise InputError(f"lengths is a mask of {tokens.shape[1]} keys, and the mask has {keys}")
        if tokens.ndim == 1:
            lengths, positions = tokens[:, None], np.arange(keys)
            if lengths.max() > keys:
                raise InputError(f"a row of {lengths.max()} tokens does not fit into {keys} keys; check the lengths")
            tokens = positions < lengths if self.side == "right" else positions >= keys - lengths
        return np.broadcast_to(tokens[:, None, None], (len(tokens), 1, len(grid.queries), keys))

    def __str__(self) -> str:
        return "pad" if self.side == "right" else f"pad({self.side})"


Numbers = tuple[tuple[int, ...], ...]  # of an atom, in each row of a batch


class Unnumbered(NamedTuple):
    """An atom without its numbers, such as `docs`, which a program has for each batch row."""

    name: str
    rows: Numbers | None = None  # None where they are not known

    @property
    def stated(self) -> Numbers:
        """The numbers; UsageError without them."""
        if self.rows is None:
            raise UsageError(f"{self} has no number, and the program states none; write {self}(…)")
        return self.rows

    def allowed(self, grid: Grid) -> Bool[np.ndarray, "B 1 Q K"]:
        """See `Expression.allowed`."""
        return np.stack([ATOMS[self.name](grid, *row) for row in self.stated])[:, None]

    def __str__(self) -> str:
        return self.name


def leaves(*expressions: Expression) -> Iterator[Expression]:
    """Yield the atoms and files of expressions, as they are written from left to right."""
    for expression in expressions:
        if isinstance(expression, And | Or):
            yield from leaves(*expression.sides)
        elif isinstance(expression, Not):
            yield from leaves(expression.inner)
        else:
            yield expression


def conjuncts(expression: Expression) -> list[Expression]:
    """Return the parts that all have to allow a cell: the sides of an `And`, however nested, else the expression."""
    if not isinstance(expression, And):
        return [expression]
    return [part for side in expression.sides for part in conjuncts(side)]


def atoms_named(name: str, parts: Iterable[Expression]) -> list[Atom]:
    """Return the atoms of this name among parts of an expression."""
    return [part for part in parts if isinstance(part, Atom) and part.name == name]


def is_padding(part: Expression) -> bool:
    """Return whether a part of an expression hides padding: `pad`, with numbers or without."""
    return isinstance(part, Pad) or (isinstance(part, Atom) and part.name == "pad")


def map_leaves(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Return the expression with `change` applied to every atom and file."""
    if isinstance(expression, And | Or):
        return type(expression)(tuple(map_leaves(side, change) for side in expression.sides))
    if isinstance(expression, Not):
        return Not(map_leaves(expression.inner, change))
    return change(expression)


def with_lengths(expression: Expression, lengths: Int[np.ndarray, " B"] | Bool[np.ndarray, "B K"]) -> Expression:
    """Return the expression with these lengths, or this mask of tokens, in each `pad` without numbers.

    Raises:
        UsageError: a mask of tokens has its padding on the other side than the expression.
    """
    is_left = any(isinstance(leaf, Pad) and leaf.side == "left" for leaf in leaves(expression))
    if is_left and lengths.ndim == 2 and (lengths[:, :-1] > lengths[:, 1:]).any():
        raise UsageError("pad(left) needs rows padded on the left, and these are not; write pad")
    return map_leaves(expression, lambda leaf: leaf._replace(lengths=lengths) if isinstance(leaf, Pad) else leaf)


def with_numbers(expression: Expression, numbers: Callable[[str], Numbers | None]) -> Expression:
    """Return the expression with its missing numbers, and its chunks counted from the first word of a row.

    `numbers` returns those of an atom in each batch row, and for `first` its first word; None if unknown.

    Raises:
        UsageError: the numbers of an atom are not known.
    """
    first = numbers("first")

    def numbered(leaf: Expression) -> Expression:
        is_chunk = isinstance(leaf, Atom | Unnumbered) and leaf.name == "chunk" and first is not None
        if isinstance(leaf, Unnumbered):
            rows = leaf._replace(rows=numbers(leaf.name)).stated
        elif isinstance(leaf, Atom) and is_chunk:
            rows = (leaf.arguments,) * len(first or ())
        else:
            return leaf
        if is_chunk:
            rows = tuple((*own, *start) for own, start in zip(rows, first or (), strict=True))
        return Unnumbered(leaf.name, rows) if len(set(rows)) > 1 else Atom(leaf.name, rows[0])

    return map_leaves(expression, numbered)


def batch_rows(expression: Expression) -> int | None:
    """Return how many batch rows have padding or documents of their own in an expression; None without any.

    Raises:
        UsageError: it has such padding without lengths.
    """
    return next((len(leaf.stated) for leaf in leaves(expression) if isinstance(leaf, Pad | Unnumbered)), None)


def files_of(*expressions: Expression) -> list[File]:
    """Return the files that expressions read, as they are written from left to right."""
    return [leaf for leaf in leaves(*expressions) if isinstance(leaf, File)]


# --- the atoms ---------------------------------------------------------------------------------------------


def _docs(at: Grid, *lengths: int) -> Bool[np.ndarray, "Q K"]:
    positions = max(at.keys, at.past + at.total_queries)
    if sum(lengths) != positions:
        raise InputError(
            f"docs({','.join(map(str, lengths))}) covers {sum(lengths)} positions, the sequence has {positions}; make "
            "the lengths add up to it"
        )
    ends = np.cumsum(lengths)  # a table of all positions could be of any size
    return np.searchsorted(ends, at.i, "right") == np.searchsorted(ends, at.j, "right")


def _between(at: Grid, positions: Int[np.ndarray, "_ _"], start: int, stop: int) -> Bool[np.ndarray, "Q K"]:
    return np.broadcast_to((start <= positions) & (positions < stop), (len(at.queries), at.keys))


# The rule of each atom: whether a query may attend to a key, by the grid and the arguments.
ATOMS: dict[str, Callable[..., Bool[np.ndarray, " ..."]]] = {
    "full": lambda at: np.ones((len(at.queries), at.keys), bool),
    "causal": lambda at: at.j <= at.i,
    "window": lambda at, w: (at.i - w < at.j) & (at.j <= at.i),
    "band": lambda at, left, right: (at.i - left <= at.j) & (at.j <= at.i + right),
    "prefix": lambda at, n: _between(at, at.j, 0, n),
    "docs": _docs,
    "chunk": lambda at, size, first=0: (at.i - first) // size == (at.j - first) // size,
    "dilated": lambda at, w, step: (at.j <= at.i) & (at.i - at.j < w * step) & ((at.i - at.j) % step == 0),
    "global": lambda at, *places: np.isin(at.i, places) | np.isin(at.j, places),
    "pad": lambda at, left=0, right=0: _between(at, at.j, left, at.keys - right),
    "keys": lambda at, start, stop: _between(at, at.j, start, stop),
    "queries": lambda at, start, stop: _between(at, at.i, start, stop),
}


# --- masks -------------------------------------------------------------------------------------------------


class RuleMask(NamedTuple):
    """A mask given by an expression over positions; its rows are computed on demand."""

    expression: Expression
    queries: int
    keys: int
    heads: int
    past: int = 0

    def rows(self, heads: list[int], queries: Int[np.ndarray, " Q"]) -> Bool[np.ndarray, "H Q K"]:
        """Return which keys the given query rows may attend to; `H` is 1 where all heads agree.

        Raises:
            InputError: the expression does not fit a sequence of this length.
        """
        allowed = self.expression.allowed(Grid(queries[:, None], self.keys, self.past, self.queries))
        if allowed.ndim == 2:
            return allowed[None]
        if len(allowed) not in (1, self.heads):
            raise InputError(f"the mask has {len(allowed)} heads, and the layer has {self.heads}")
        return allowed if len(allowed) == 1 else allowed[heads]

    def padding(self) -> Bool[np.ndarray, " K"]:
        """Return the keys that `pad` forbids to every query, without the rest of the expression."""
        grid = Grid(np.zeros((1, 1), int), self.keys, self.past, self.queries)
        pads = atoms_named("pad", conjuncts(self.expression))
        return reduce(operator.or_, (~pad.allowed(grid)[0] for pad in pads), np.zeros(self.keys, bool))

    @property
    def allows_own(self) -> bool:
        """Whether every query surely may attend to its own position; decided without computing cells."""
        parts = conjuncts(self.expression)
        is_sure = all(isinstance(part, Atom) and NOTATION[part.name].allows_own for part in parts)
        return is_sure and self.past + self.queries <= self.keys

    def __str__(self) -> str:
        return str(self.expression)


class ArrayMask(NamedTuple):
    """A mask given cell by cell: `[1, Q, K]` where all heads share it, `[H, Q, K]` where they do not."""

    allowed: Bool[np.ndarray, "#H Q K"]

    @property
    def past(self) -> int:
        """Number of keys before the first query, if the last query is at the last key."""
        return max(self.allowed.shape[2] - self.allowed.shape[1], 0)

    def rows(self, heads: list[int], queries: Int[np.ndarray, " Q"]) -> Bool[np.ndarray, "H Q K"]:
        """Return which keys the given query rows may attend to; `H` is 1 where all heads agree."""
        shown = [0] if len(self.allowed) == 1 else heads
        return self.allowed[np.ix_(np.array(shown), queries)]

    def padding(self) -> Bool[np.ndarray, " K"]:
        """Return no key, as cells do not show why they are forbidden."""
        return np.zeros(self.allowed.shape[-1], bool)

    def __str__(self) -> str:
        return "cell by cell"


Mask = RuleMask | ArrayMask


def one_plane(allowed: Bool[np.ndarray, "#H Q K"]) -> Bool[np.ndarray, "#H Q K"]:
    """Return the cells of a mask as one plane where all heads agree."""
    return allowed[:1] if (allowed == allowed[:1]).all() else allowed


def smallest(allowed: Bool[np.ndarray, "#H Q K"], heads: int) -> Mask:
    """Return a mask in its smallest exact form: `full`, `causal` or `window(w)` if it is one, else its cells."""
    queries, keys = allowed.shape[1:]
    allowed = one_plane(allowed)
    if len(allowed) == 1 and queries <= keys:
        width = max(int(allowed[0, -1].sum()), 1)  # no window is empty
        for atom in (Atom("full"), Atom("causal"), Atom("window", (width,))):
            rule = RuleMask(atom, queries, keys, heads, past=keys - queries)
            blocks = row_blocks(np.arange(queries), keys)
            if all(np.array_equal(rule.rows([0], rows), allowed[:, rows]) for rows in blocks):
                return rule
    return ArrayMask(np.array(allowed))
