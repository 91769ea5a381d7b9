"""Mask expressions: `causal & (window(4) | prefix(3))`, parsed into a small tree and never evaluated as code.

`True` means that this query may attend to this key. Query i stands at position past+i; key j at position j.
Every atom is a rule over positions, so a mask costs nothing until somebody asks for some of its rows.

    expression := term ('|' term)*        term := factor ('&' factor)*
    factor     := '~' factor | '(' expression ')' | atom
    atom       := name [ '(' argument (',' argument)* ')' ]
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from attncli.errors import InputError, UsageError
from attncli.masks.files import ENDINGS, read_mask
from attncli.tokens import visible

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


@dataclass(frozen=True)
class Grid:
    """The cells a mask is asked for.

    Attributes:
        queries: indices of the query rows, `[Q, 1]`.
        keys: how many keys there are; all columns are asked for.
        past: how many keys stand before the first query (a KV cache).
        total_queries: how many query rows the whole mask has.
        heads: how many heads the layer has.
    """

    queries: Int[np.ndarray, "Q 1"]
    keys: int
    past: int
    total_queries: int
    heads: int

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

    def allowed(self, grid: Grid) -> Bool[np.ndarray, ...]:
        """Return which cells of `grid` are allowed, in a shape that broadcasts to `[H, Q, K]`."""

    @property
    def reads_files(self) -> bool:
        """Whether it means nothing without a file beside it."""


@dataclass(frozen=True)
class And:
    """Every side allows it."""

    sides: tuple[Expression, ...]

    def allowed(self, grid: Grid) -> Bool[np.ndarray, ...]:
        """See `Expression.allowed`."""
        return reduce(operator.and_, (side.allowed(grid) for side in self.sides))

    @property
    def reads_files(self) -> bool:
        """See `Expression.reads_files`."""
        return any(side.reads_files for side in self.sides)

    def __str__(self) -> str:
        return " & ".join(f"({side})" if isinstance(side, Or) else str(side) for side in self.sides)


@dataclass(frozen=True)
class Or:
    """At least one side allows it."""

    sides: tuple[Expression, ...]

    def allowed(self, grid: Grid) -> Bool[np.ndarray, ...]:
        """See `Expression.allowed`."""
        return reduce(operator.or_, (side.allowed(grid) for side in self.sides))

    @property
    def reads_files(self) -> bool:
        """See `Expression.reads_files`."""
        return any(side.reads_files for side in self.sides)

    def __str__(self) -> str:
        return " | ".join(map(str, self.sides))


@dataclass(frozen=True)
class Not:
    """The inner expression forbids it."""

    inner: Expression

    def allowed(self, grid: Grid) -> Bool[np.ndarray, ...]:
        """See `Expression.allowed`."""
        return ~self.inner.allowed(grid)

    @property
    def reads_files(self) -> bool:
        """See `Expression.reads_files`."""
        return self.inner.reads_files

    def __str__(self) -> str:
        return f"~({self.inner})" if isinstance(self.inner, And | Or) else f"~{self.inner}"


@dataclass(frozen=True)
class Atom:
    """A named rule with its arguments."""

    name: str
    arguments: tuple[int | str, ...] = ()
    keywords: tuple[tuple[str, int], ...] = ()

    def allowed(self, grid: Grid) -> Bool[np.ndarray, ...]:
        """See `Expression.allowed`."""
        return ATOMS[self.name].rule(grid, *self.arguments, **dict(self.keywords))

    @property
    def reads_files(self) -> bool:
        """See `Expression.reads_files`."""
        return ATOMS[self.name].takes_path

    def __str__(self) -> str:
        written = [f'"{a}"' if isinstance(a, str) else str(a) for a in self.arguments]
        written += [f"{name}={value}" for name, value in self.keywords]
        return f"{self.name}({','.join(written)})" if written else self.name


# --- the atoms ---------------------------------------------------------------------------------------------


def _full(grid: Grid) -> Bool[np.ndarray, ...]:
    return np.ones((len(grid.queries), grid.keys), bool)


def _causal(grid: Grid) -> Bool[np.ndarray, ...]:
    return grid.j <= grid.i


def _window(grid: Grid, width: int) -> Bool[np.ndarray, ...]:
    return (grid.i - width < grid.j) & (grid.j <= grid.i)


def _band(grid: Grid, left: int, right: int) -> Bool[np.ndarray, ...]:
    return (grid.i - left <= grid.j) & (grid.j <= grid.i + right)


def _prefix(grid: Grid, length: int) -> Bool[np.ndarray, ...]:
    return (grid.j <= grid.i) | (grid.j < length)


def _docs(grid: Grid, *lengths: int) -> Bool[np.ndarray, ...]:
    positions = max(grid.keys, grid.past + grid.total_queries)
    if sum(lengths) != positions:
        listed = ",".join(map(str, lengths))
        raise InputError(
            f"docs({listed}) covers {sum(lengths)} positions, the sequence has {positions}; make the lengths add up"
        )
    document = np.repeat(np.arange(len(lengths)), lengths)
    return document[grid.i] == document[grid.j]


def _chunk(grid: Grid, size: int) -> Bool[np.ndarray, ...]:
    return grid.i // size == grid.j // size


def _dilated(grid: Grid, width: int, step: int) -> Bool[np.ndarray, ...]:
    back = grid.i - grid.j
    return (back >= 0) & (back % step == 0) & (back < width * step)


def _global(grid: Grid, *positions: int) -> Bool[np.ndarray, ...]:
    return np.isin(grid.i, positions) | np.isin(grid.j, positions)


def _pad(grid: Grid, left: int = 0, right: int = 0) -> Bool[np.ndarray, ...]:
    return np.broadcast_to((grid.j >= left) & (grid.j < grid.keys - right), (len(grid.queries), grid.keys))


def _keys(grid: Grid, start: int, stop: int) -> Bool[np.ndarray, ...]:
    return np.broadcast_to((start <= grid.j) & (grid.j < stop), (len(grid.queries), grid.keys))


def _queries(grid: Grid, start: int, stop: int) -> Bool[np.ndarray, ...]:
    return np.broadcast_to((start <= grid.queries) & (grid.queries < stop), (len(grid.queries), grid.keys))


def _file(grid: Grid, path: str) -> Bool[np.ndarray, ...]:
    mask = _read_once(path)
    expected = (grid.total_queries, grid.keys)
    if mask.shape[-2:] != expected or (mask.ndim == 3 and mask.shape[0] not in (1, grid.heads)):
        raise InputError(
            f"the mask in {path} has shape {list(mask.shape)}; expected [queries, keys] = {list(expected)}, "
            f"or [heads, queries, keys] with {grid.heads} heads"
        )
    return mask[..., grid.queries[:, 0], :]


@cache
def _read_once(path: str) -> Bool[np.ndarray, ...]:
    return read_mask(Path(path))


@dataclass(frozen=True)
class _AtomKind:
    """What the parser and the help need to know of an atom."""

    rule: Callable[..., Bool[np.ndarray, ...]]
    usage: str
    arguments: range = range(1)  # how many positional arguments it takes
    keywords: frozenset[str] = frozenset()
    least: int = 0  # the smallest argument that makes sense
    takes_path: bool = False


_MANY = range(1, 1_000_000)

ATOMS = {
    "full": _AtomKind(_full, "full"),
    "causal": _AtomKind(_causal, "causal"),
    "window": _AtomKind(_window, "window(w)", range(1, 2), least=1),
    "band": _AtomKind(_band, "band(left,right)", range(2, 3)),
    "prefix": _AtomKind(_prefix, "prefix(n)", range(1, 2)),
    "docs": _AtomKind(_docs, "docs(3,2,…)", _MANY, least=1),
    "chunk": _AtomKind(_chunk, "chunk(c)", range(1, 2), least=1),
    "dilated": _AtomKind(_dilated, "dilated(w,step)", range(2, 3), least=1),
    "global": _AtomKind(_global, "global(a,…)", _MANY),
    "pad": _AtomKind(_pad, "pad(left=n) or pad(right=n)", keywords=frozenset({"left", "right"})),
    "keys": _AtomKind(_keys, "keys(a,b)", range(2, 3)),
    "queries": _AtomKind(_queries, "queries(a,b)", range(2, 3)),
    "file": _AtomKind(_file, 'file("mask.npy")', range(1, 2), takes_path=True),
}


# --- the parser --------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<number>-?\d+)|(?P<string>"[^"]*"|'[^']*')|(?P<sign>[&|~(),=]))"""
)
_DEEPEST = 100  # parentheses and ~ inside one another; keeps a hostile expression from exhausting the stack


def parse(text: str) -> Expression:
    """Parse a mask expression.

    Args:
        text: an expression, or a file that holds a mask (told by its ending); `none` is `full`.

    Raises:
        UsageError: it is not one; the message points at the character.
    """
    if text.strip() == "none":
        return Atom("full")
    if text.lower().endswith(ENDINGS):
        return Atom("file", (text,))
    return _Parser(text).whole()


class _Parser:
    """Recursive descent over one expression."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.depth = 0

    def whole(self) -> Expression:
        expression = self.expression()
        if self.rest():
            raise self.error("expected & or | here")
        return expression

    def expression(self) -> Expression:
        sides = [self.term()]
        while self.take("|"):
            sides.append(self.term())
        return sides[0] if len(sides) == 1 else Or(tuple(sides))

    def term(self) -> Expression:
        sides = [self.factor()]
        while self.take("&"):
            sides.append(self.factor())
        return sides[0] if len(sides) == 1 else And(tuple(sides))

    def factor(self) -> Expression:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.error(f"more than {_DEEPEST} nested parentheses")
        node: Expression
        if self.take("~"):
            node = Not(self.factor())
        elif self.take("("):
            node = self.expression()
            self.expect(")")
        else:
            node = self.atom()
        self.depth -= 1
        return node

    def atom(self) -> Atom:
        start = self.position + len(self.text[self.position :]) - len(self.rest())
        name = self.take_kind("name")
        if name is None:
            raise self.error("expected a mask such as causal or window(4)")
        if name not in ATOMS:
            near = difflib.get_close_matches(name, ATOMS, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"the masks are: {', '.join(ATOMS)}"
            raise self.error(f"unknown mask '{name}'; {hint}", start)
        kind = ATOMS[name]
        positional: list[int | str] = []
        keywords: dict[str, int] = {}
        if self.take("("):
            while not self.take(")"):
                if positional or keywords:
                    self.expect(",")
                self.argument(kind, positional, keywords)
        if len(positional) not in kind.arguments or (kind.keywords and not keywords):
            raise self.error(f"{name} is written {kind.usage}", start)
        return Atom(name, tuple(positional), tuple(sorted(keywords.items())))

    def argument(self, kind: _AtomKind, positional: list[int | str], keywords: dict[str, int]) -> None:
        start = self.position
        if kind.takes_path:
            quoted = self.take_kind("string")
            if quoted is None:
                raise self.error(f"expected a quoted file name: {kind.usage}", start)
            positional.append(quoted[1:-1])
            return
        keyword = self.take_kind("name")
        if keyword is not None and (keyword not in kind.keywords or keyword in keywords or not self.take("=")):
            raise self.error(f"expected a number: {kind.usage}", start)
        digits = self.take_kind("number")
        if digits is None:
            raise self.error(f"expected a number: {kind.usage}", start)
        if len(digits) > 9 or int(digits) < kind.least:
            raise self.error(f"expected a number from {kind.least} to 999999999, got {digits[:20]}", start)
        if keyword is None:
            positional.append(int(digits))
        else:
            keywords[keyword] = int(digits)

    def rest(self) -> str:
        return self.text[self.position :].lstrip()

    def take(self, sign: str) -> bool:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match["sign"] != sign:
            return False
        self.position = match.end()
        return True

    def take_kind(self, kind: str) -> str | None:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match[kind] is None:
            return None
        self.position = match.end()
        return match[kind]

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            raise self.error(f"expected '{sign}'")

    def error(self, message: str, position: int | None = None) -> UsageError:
        at = self.position if position is None else position
        at += len(self.text[at:]) - len(self.text[at:].lstrip())
        place = f"at character {at + 1}" if at < len(self.text) else "at the end"
        return UsageError(f"mask '{visible(self.text)}', {place}: {message}")


# --- masks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RuleMask:
    """A mask given by an expression over positions; any rows of it can be had at once."""

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
        grid = Grid(queries[:, None], self.keys, self.past, self.queries, self.heads)
        return _of_heads(self.expression.allowed(grid), heads)

    def __str__(self) -> str:
        return str(self.expression)


@dataclass(frozen=True)
class ArrayMask:
    """A mask given cell by cell: `[1, Q, K]` where all heads share it, `[H, Q, K]` where they do not."""

    allowed: Bool[np.ndarray, "#H Q K"]

    def rows(self, heads: list[int], queries: Int[np.ndarray, " Q"]) -> Bool[np.ndarray, "H Q K"]:
        """Return which keys the given query rows may attend to; `H` is 1 where all heads agree."""
        return _of_heads(self.allowed[:, queries], heads)

    def __str__(self) -> str:
        return "all keys" if self.allowed.all() else "cell by cell"


Mask = RuleMask | ArrayMask


def _of_heads(allowed: Bool[np.ndarray, ...], heads: list[int]) -> Bool[np.ndarray, "H Q K"]:
    if allowed.ndim == 2:
        return allowed[None]
    return allowed if len(allowed) == 1 else allowed[heads]
