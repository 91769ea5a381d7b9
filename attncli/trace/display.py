"""Methods of results in Python: a view in a notebook, a data frame, a figure.

They are made by `attncli.formats.python`, which this module may not import: `attncli/__init__.py` registers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from attncli.errors import UsageError
from attncli.text import as_list

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_registered: list[Callable[[], Any]] = []


def register(load: Callable[[], Any]) -> None:
    """Register the function that returns the module that shows results, in place of the last one."""
    _registered[:] = [load]


def presentation() -> Any:
    """Return the module that makes HTML, text, data frames and figures of results."""
    if not _registered:
        raise UsageError("results are shown by the package: take them from attncli, as in attncli.load(path)")
    return _registered[0]()


class Displayed:
    """Result that a notebook shows as the view that the command draws."""

    def _repr_html_(self) -> Any:
        return presentation().html_of(self)


class Tabular:
    """Result of rows."""

    def to_dataframe(self) -> Any:
        """Return a data frame of pandas with the columns of TSV; `polars.from_pandas` takes it.

        Raises:
            LoadError: pandas is not installed.
        """
        return presentation().frame_of(self)


class Drawable:
    """Result of maps of heads."""

    def plot(
        self,
        *,
        queries: str | int | Iterable[str | int] = (),
        keys: str | Iterable[str] = (),
        hide_special: bool = False,
        ramp: Literal["sqrt", "linear", "log"] | None = None,
        colormap: Literal["viridis", "cividis", "gray"] = "viridis",
        size: str | None = None,
    ) -> Figure:
        """Return the maps as a figure of matplotlib: a row is a query, a column a key, or a cell of a picture.

            trace.layer(3).head(1).plot(size="3.3in").savefig("head.pdf")

        Args:
            queries: the query rows to draw, a token, its index, or several; empty is all of them.
            keys: likewise the key columns.
            hide_special: leave out the tokenizer's special tokens.
            ramp: the scale from weights to colours; None is that of a terminal.
            colormap: the colours of weights.
            size: how wide in inches, such as `3.3in`, or `3.3inx2in`; None is as large as it takes.

        Raises:
            UsageError: matplotlib is not installed, the layer is of no trace, or a token or a value does not exist.
        """
        rows, columns = tuple(as_list(queries)), tuple(as_list(keys))
        view = {"hide_special": hide_special, "ramp": ramp, "colormap": colormap, "size": size}
        return presentation().plotted(self, queries=rows, keys=columns, **view)
