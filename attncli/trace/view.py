"""Choice of the shown part of a trace: parts, query rows, key columns, digits."""

from __future__ import annotations

from typing import Literal, NamedTuple

from attncli.errors import InputMismatchError, NotExposedError, UsageError
from attncli.text import span
from attncli.trace.layer import LayerTrace
from attncli.trace.selection import RowRange
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Trace

PARTS = (
    "tokens", "shapes", "embeddings", "q", "k", "v", "scores", "mask", "weights", "heatmap", "output", "metrics",
    "proof", "next",
)  # fmt: skip

Columns = slice | list[int]
Ramp = Literal["sqrt", "linear", "log"]  # scale from weights to colours


class Cells(NamedTuple):
    """The cells of one layer that are shown."""

    row_tokens: Tokens  # of the layer's queries
    rows: list[int]  # the indices of the shown ones, in order
    column_tokens: Tokens  # of its keys
    columns: list[int]  # the indices of the shown ones, in order

    @property
    def of_columns(self) -> Columns:
        """An index for the shown columns of an array: a slice, which copies nothing, where all of them are shown."""
        return slice(None) if self.columns == list(range(len(self.column_tokens))) else self.columns


class View(NamedTuple):
    """Options of a view; its methods raise InputMismatchError where a token does not exist or none is left."""

    show: frozenset[str] | None = None  # parts by name; None leaves the choice to the format
    queries: tuple[str | int, ...] = ()  # tokens, indices or ranges (`3:9`) of the query rows; empty is all of them
    keys: tuple[str, ...] = ()  # tokens, indices or ranges of the key columns; empty is all of them
    hide_special: bool = False  # leave the tokenizer's special tokens out of rows and columns
    precision: int | None = None  # digits after the point; None leaves it to the format
    top_keys: int | None = None  # the number of keys of each query to show, the heaviest ones; None is all of them
    ramp: Ramp | None = None  # the scale from weights to colours; None leaves it to the format

    def parts(self, default: tuple[str, ...]) -> frozenset[str]:
        """Return the parts to show, given a format's default."""
        return frozenset(default) if self.show is None else self.show

    @property
    def is_of_metrics(self) -> bool:
        """Whether metrics alone are shown, so that rows are heads and not cells."""
        return self.show == frozenset({"metrics"})

    def check(self, trace: Trace) -> None:
        """Raise an error where a token does not exist, none is left, or the layers lack the parts to show."""
        self.rows(trace)
        self.columns(trace)
        show, first = self.show or frozenset(), trace.layers[0]
        if trace.origin is not None and (gone := show & first.missing):
            left = [part for part in PARTS if part not in first.missing]
            raise UsageError(f"--show {','.join(sorted(gone))}: derived numbers have only {', '.join(left)}")
        if "next" in show and not trace.next_tokens:
            raise UsageError("--show next needs a causal language model; give -m demo, or another one")
        if show and all(show <= layer.missing for layer in trace.layers):
            raise NotExposedError(f"layer {first.layer} has only its weights; show scores, mask, weights or metrics")

    def rows(self, trace: Trace) -> list[int]:
        """Return the query rows to show, by default those that predicted generated tokens, if any."""
        chosen = self._chosen(trace, self.queries, "query")
        if trace.generated and not self.queries:
            return [row for row in chosen if row in trace.predicted] or chosen
        return chosen

    def chooses_rows(self, trace: Trace) -> bool:
        """Return whether the query rows were chosen one by one, or as a range."""
        return bool(self.queries) or trace.generated > 0

    def columns(self, trace: Trace) -> list[int]:
        """Return the key columns to show."""
        return self._chosen(trace, self.keys, "key")

    def cells(self, trace: Trace, layer: LayerTrace) -> Cells:
        """Return the shown cells of a layer; one within a single text has the same tokens as rows and as columns."""
        within = None if trace.target is None else layer.kind
        rows = self.columns(trace) if within == "encoder" else self.rows(trace)
        columns = self.rows(trace) if within == "decoder" else self.columns(trace)
        row_tokens, column_tokens = trace.sides(layer)
        return Cells(row_tokens, rows, column_tokens, columns)

    def _chosen(self, trace: Trace, wanted: tuple[str | int, ...], role: Literal["query", "key"]) -> list[int]:
        tokens = trace.query_tokens if role == "query" else trace.key_tokens
        shown = [token.index for token in tokens if not (self.hide_special and token.special)]
        if not wanted and not shown:
            raise InputMismatchError(f"--hide-special leaves no {role} token to show; drop it")
        chosen = dict.fromkeys(() if wanted else shown)
        for name in wanted:
            within = RowRange.of(name) if isinstance(name, str) else None
            places = trace.find(name, role) if within is None else [i for i in shown if i in within.among(len(tokens))]
            if not places:
                there = span(shown[0], shown[-1]) if shown else "none"
                raise InputMismatchError(f"--{role} {within} leaves no {role} to show; without it they are {there}")
            chosen |= dict.fromkeys(places)
        return list(chosen)
