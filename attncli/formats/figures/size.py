"""The size of a figure, in points, 72 of them to an inch, as fonts are measured."""

from __future__ import annotations

import re
from typing import NamedTuple

from attncli.errors import UsageError
from attncli.text import visible

INCH = 72.0
_UNITS = {"in": INCH, "cm": INCH / 2.54, "mm": INCH / 25.4, "pt": 1.0}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d*)?|\.\d+)(in|cm|mm|pt)(?:x(\d{1,9}(?:\.\d*)?|\.\d+)(in|cm|mm|pt))?")
_LEAST, _MOST = 1, 100  # inches of a side; no reader shows a page of more than 200


class Size(NamedTuple):
    """Size of a figure, in points.

    Attributes:
        width: of the figure.
        height: of the figure; None is as much as its maps need.
    """

    width: float
    height: float | None = None

    @classmethod
    def of(cls, text: str) -> Size:
        """Return the size that is written as `3.3in`, `84mm` or `3.3inx2in`.

        Raises:
            UsageError: it is no size, or none for a figure.
        """
        match = _SIZE.fullmatch(text.strip().lower().replace("×", "x").replace(" ", ""))
        if match is None:
            raise UsageError(
                f"--size {visible(text)}: expected a width, as in 3.3in, 84mm, 8.4cm or 238pt, or a width and a "
                "height, as in 3.3inx2in"
            )
        width, unit, height, other = match.groups()
        size = cls(float(width) * _UNITS[unit], None if height is None else float(height) * _UNITS[other])
        if not all(side is None or _LEAST <= side / INCH <= _MOST for side in size):
            raise UsageError(f"--size {visible(text)}: expected sides of {_LEAST} to {_MOST} inches")
        return size
