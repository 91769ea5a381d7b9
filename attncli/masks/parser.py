"""The parser of mask expressions: text in, tree out; nothing is ever evaluated as code.

expression := term ('|' term)*        term := factor ('&' factor)*
factor     := '~' factor | '(' expression ')' | atom
atom       := name [ '(' argument (',' argument)* ')' ]          pad := 'pad' [ '(' side ')' ]
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attncli.errors import AttnError, UsageError
from attncli.masks import ENDINGS, MOST, NOTATION
from attncli.masks.expressions import ATOMS, And, Atom, Expression, File, Not, Or, Pad, Unnumbered
from attncli.text import did_you_mean, visible

if TYPE_CHECKING:
    from attncli.masks.conventions import Reader

_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<number>-?\d+)|(?P<string>"[^"]*"|'[^']*')|(?P<sign>[&|~(),=]))"""
)
_ROWS = re.compile(r"\s*\(\s*(?P<side>left|right)\s*\)|(?!\s*\()")  # what follows `pad` of a batch's rows
_WITHOUT_NUMBERS = {"docs", "window", "chunk", "prefix"}  # a program may have numbers of its batch or its model
_DEEPEST = 100  # parentheses and ~ inside one another; keeps a hostile expression from exhausting the stack


class Mistake(NamedTuple):
    """An error in the text of a mask, and its position."""

    reason: str  # one sentence
    start: int  # the first character that is wrong; one past the last where something is missing at the end
    end: int  # one past the last one that is wrong


class MaskError(UsageError):
    """A text is not a mask expression; `mistake` has the reason and the position."""

    mistake: Mistake


def mistake_in(text: str) -> Mistake | None:
    """Return the mistake in a mask of a source, an expression or a file name; None if it is valid."""
    try:
        parse(text)
    except MaskError as error:
        return error.mistake
    except AttnError as error:
        return Mistake(str(error), 0, len(text))
    return None


def parse(
    text: str, allow_files: bool = True, *, allow_rows: bool = False, allow_unnumbered: bool = False
) -> Expression:
    """Parse a mask expression, or the name of a mask file, which its ending shows; `none` is `full`.

    In `file("mask.npy")` it is stated that True = attend, and in `~file("mask.npy")` that True = masked. The bare name
    of a file states neither; see `attncli.masks.conventions`. With `allow_rows`, `pad` may stand without numbers, for
    padding that each row of a batch has of its own; with `allow_unnumbered`, atoms whose numbers a program has.

    Raises:
        MaskError: it is not one; the message points at the character.
        UsageError: it is neither one nor the file of a mask, or the meaning of True in that is not known.
        InputError: a file it names cannot be read.
    """
    if not isinstance(text, str):
        raise UsageError("expected a mask expression such as 'causal & window(4)', or a file")
    if allow_files and text.lower().endswith(ENDINGS):
        return _read_file(text, None)
    return _Parser(text, allow_files, allow_rows, _WITHOUT_NUMBERS if allow_unnumbered else set()).parse_all()


def _read_file(path: str, reader: Reader | None) -> Expression:
    from attncli.masks.conventions import read_convention
    from attncli.masks.files import read_values

    values = read_values(Path(path), most_axes=3).values
    reading = read_convention(values, f"the mask file {visible(path)}", reader)
    if reading.is_ambiguous:
        stated = visible(str(File(path, reading.allowed)))
        raise UsageError(
            f"{visible(path)}: {reading.why}; write {shlex.quote(stated)} for the first reading, "
            f"{shlex.quote('~' + stated)} for the other (attn mask show --for sdpa draws the first)"
        )
    return Not(File(path, ~reading.allowed)) if reading.convention == "masked" else File(path, reading.allowed)


class _Parser:
    """Recursive descent over one expression."""

    def __init__(self, text: str, allow_files: bool, allow_rows: bool, without_numbers: set[str]) -> None:
        self.text = text
        self.allow_files = allow_files
        self.allow_rows = allow_rows
        self.without_numbers = without_numbers
        self.position = 0
        self.depth = 0

    def parse_all(self) -> Expression:
        expression = self.expression()
        if self.text[self.position :].strip():
            raise self.error("expected & or | here")
        return expression

    def expression(self) -> Expression:
        return self.joined("|", Or, self.term)

    def term(self) -> Expression:
        return self.joined("&", And, self.factor)

    def joined(self, sign: str, node: type[And | Or], part: Callable[[], Expression]) -> Expression:
        sides = [part()]
        while self.accept("sign", sign):
            sides.append(part())
        return sides[0] if len(sides) == 1 else node(tuple(sides))

    def factor(self) -> Expression:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.error(f"more than {_DEEPEST} nested parentheses")
        node: Expression
        if self.accept("sign", "~"):
            node = Not(self.factor())
        elif self.accept("sign", "("):
            node = self.expression()
            self.expect(")")
        else:
            node = self.atom()
        self.depth -= 1
        return node

    def atom(self) -> Expression:
        start = self.position
        name = self.accept("name")
        if name is None:
            raise self.error("expected a mask such as causal or window(4)")
        if name == "none":
            return Atom("full")
        if name == "file" and self.allow_files:
            return self.file(start)
        if name == "pad" and self.allow_rows and (match := _ROWS.match(self.text, self.position)):
            self.position = match.end()
            return Pad("left" if match["side"] == "left" else "right")
        if name in self.without_numbers and not self.text[self.position :].lstrip().startswith("("):
            return Unnumbered(name)
        if name not in ATOMS:
            names = [*ATOMS, *["file"] * self.allow_files]
            hint = did_you_mean(name, names) or f"; the masks are: {', '.join(names)}"
            raise self.error(f"unknown mask '{name}'{hint}", start)
        positional, keywords = self.arguments(name)
        kind = NOTATION[name]
        if not kind.takes(len(positional)) or (name == "pad" and not keywords):
            takes = f"is written {kind.usage}" if "(" in kind.usage else "takes no number"
            raise self.error(f"{name} {takes}", start)
        return Atom(name, tuple(positional), tuple(sorted(keywords.items())))

    def file(self, start: int) -> Expression:
        quoted = self.accept("string") if self.accept("sign", "(") else None
        if quoted is None or not self.accept("sign", ")"):
            raise self.error('file is written file("mask.npy")', start)
        return _read_file(quoted[1:-1], "sdpa")

    def arguments(self, name: str) -> tuple[list[int], dict[str, int]]:
        """Return the numbers of an atom, and for `pad` those of its sides."""
        kind = NOTATION[name]
        positional: list[int] = []
        keywords: dict[str, int] = {}
        if not self.accept("sign", "("):
            return positional, keywords
        while not self.accept("sign", ")"):
            if positional or keywords:
                self.expect(",")
            start, side = self.position, self.accept("name")
            is_side = name == "pad" and side in ("left", "right") and side not in keywords and self.accept("sign", "=")
            digits = self.accept("number") if side is None or is_side else None
            if digits is None:
                raise self.error(f"expected a number: {kind.usage}", start)
            if len(digits) > len(str(MOST)) or int(digits) < kind.least:
                raise self.error(f"expected a number from {kind.least} to {MOST}, got {digits[:20]}", start)
            if side is None:
                positional.append(int(digits))
            else:
                keywords[side] = int(digits)
        return positional, keywords

    def accept(self, kind: str, text: str | None = None) -> str | None:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match[kind] is None or text not in (None, match[kind]):
            return None
        self.position = match.end()
        return match[kind]

    def expect(self, sign: str) -> None:
        if not self.accept("sign", sign):
            raise self.error(f"expected '{sign}'")

    def error(self, message: str, position: int | None = None) -> MaskError:
        at = self.position if position is None else position
        at += len(self.text[at:]) - len(self.text[at:].lstrip())
        piece = _TOKEN.match(self.text, at)
        end = max(self.position, min(at + 1, len(self.text)) if piece is None else piece.end())
        position_text = f"at character {at + 1}" if at < len(self.text) else "at the end"
        shown = self.text if len(self.text) <= 80 else "…" * (at > 40) + self.text[max(at - 40, 0) : at + 40] + "…"
        error = MaskError(f"mask '{visible(shown)}', {position_text}: {message}")
        error.mistake = Mistake(message, at, end)
        return error
