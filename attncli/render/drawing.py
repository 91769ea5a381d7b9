"""The drawing of a mask: its cells over two axes, once for heads that are alike, and what they are like in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from rich.segment import Segment

from attncli.masks.comparison import summary
from attncli.render.axes import Axis, mark_note
from attncli.render.block import Block, block, flowing, grid, stack
from attncli.render.heatmap import Picture, Scale, heatmaps
from attncli.render.palette import BOLD, DIM, Palette
from attncli.text import listed, span

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


class MaskDrawing:
    """A mask over two axes.

    Attributes:
        allowed: the cells that are drawn, True = attend; a plane for each mask that heads or batch rows have.
        blind: the rows of each plane that may attend to no key, be it drawn or not.
        names: what each plane is called.
        rows: the query axis.
        columns: the key axis.
        past: how many keys stand before the row of index 0.
    """

    def __init__(
        self,
        allowed: Bool[np.ndarray, "P Q K"],
        blind: Bool[np.ndarray, "P Q"],
        names: Sequence[str],
        rows: Axis,
        columns: Axis,
        past: int = 0,
    ) -> None:
        self.allowed = allowed
        self.blind = blind
        self.names = names
        self.rows = rows
        self.columns = columns
        self.past = past

    @cached_property
    def kinds(self) -> list[list[int]]:
        """The planes, those that are alike together."""
        kinds: list[list[int]] = []
        for plane in range(len(self.allowed)):
            alike = next((kind for kind in kinds if self._are_alike(kind[0], plane)), None)
            if alike is None:
                kinds.append([plane])
            else:
                alike.append(plane)
        return kinds

    def picture(self, pool: tuple[int, int], palette: Palette, room: int) -> Block:
        """Return the cells, what their marks mean, and the keys that the rows do not name.

        Args:
            pool: how many rows and columns a drawn cell stands for.
            palette: how cells look.
            room: cells in a line.
        """
        pictures = [_picture(self._title(kind), self.allowed[kind[0]], pool) for kind in self.kinds]
        drawn = heatmaps(pictures, self.rows, self.columns, pool, palette, room)
        # Without titles the first line is empty.
        cells = drawn if len(pictures) > 1 else Block(drawn.lines[1:], drawn.width)
        return stack([cells, self._legend(pool, palette, room), *self._keys(pool, palette, room)])

    def facts(self, palette: Palette, room: int, title: str = "") -> Iterator[Block]:
        """Yield the numbers of every kind of plane, under a title that says which."""
        for kind in self.kinds:
            heading = palette.fit(f"{title} {self._title(kind)}".strip())
            lines = [(line, BOLD) for line in wrap(heading, room)]
            yield stack([*(block([[Segment(*line)]]) for line in lines), self._numbers(kind[0], palette, room)])

    def _are_alike(self, one: int, other: int) -> bool:
        allowed, blind = self.allowed, self.blind
        return np.array_equal(allowed[one], allowed[other]) and np.array_equal(blind[one], blind[other])

    def _title(self, kind: Sequence[int]) -> str:
        """Return what the planes of a kind are called."""
        if len(self.kinds) == 1:
            return self.names[0] if len(self.names) == 1 else ""
        return self.names[kind[0]] + (f" and {len(kind) - 1} more" if len(kind) > 1 else "")

    def _legend(self, pool: tuple[int, int], palette: Palette, room: int) -> Block:
        full, style = palette.ramp(2)[-1]
        parts = [
            [Segment(full, style), Segment(" attends", DIM)],
            [Segment(palette.fit("·"), DIM), Segment(" masked", DIM)],
        ]
        if mark := mark_note(self.blind):
            parts.append([Segment(mark, DIM)])
        if pool != (1, 1):
            parts.append([Segment(palette.fit(f"shade: share of {pool[0]}×{pool[1]} cells"), DIM)])
        return flowing(parts, room)

    def _keys(self, pool: tuple[int, int], palette: Palette, room: int) -> Iterator[Block]:
        """Yield the keys by name, unless they are nameless, pooled, or named by the rows already."""
        keys = list(zip(self.columns.indices, self.columns.labels, strict=True))
        named = set(zip((index + self.past for index in self.rows.indices), self.rows.labels, strict=True))
        if pool == (1, 1) and any(self.columns.labels) and not named >= set(keys):
            parts = [[Segment(f"{index} ", DIM), Segment(label)] for index, label in keys]
            yield flowing([[Segment("keys", BOLD)], *parts], room)

    def _numbers(self, plane: int, palette: Palette, room: int) -> Block:
        queries, keys = np.array(self.rows.indices), np.array(self.columns.indices)
        facts = summary(self.allowed[plane], queries + self.past, keys)
        first = "none" if facts.first is None else span(*(self.columns.indices[place] for place in facts.first))
        lines = [
            ("keys per row", f"{span(facts.fewest, facts.most)}, the first one visible {first}"),
            ("density", f"{facts.density:.4g}"),
            ("symmetric", {None: "rows and columns differ", True: "yes", False: "no"}[facts.is_symmetric]),
            ("causal", "yes" if facts.is_causal else "no"),
            ("fully masked rows", listed(queries[self.blind[plane]].tolist())),
            ("keys nobody sees", listed(keys[list(facts.unseen_keys)].tolist())),
        ]
        margin = max(len(name) for name, _ in lines) + 2
        rows = [
            ("" if number else name, part)
            for name, said in lines
            for number, part in enumerate(wrap(palette.fit(said), max(room - margin, 1)))
        ]
        return grid([((name, DIM), (part, None)) for name, part in rows], "<<", None)


def _shares(cells: Bool[np.ndarray, "Q K"], pool: tuple[int, int]) -> Float[np.ndarray, "R C"]:
    """Return the share of each block of cells that is true; blocks at the edges may be smaller."""
    starts = [np.arange(0, size, step) for size, step in zip(cells.shape, pool, strict=True)]
    rows = np.array([cells[start : start + pool[0]].sum(axis=0, dtype=np.int32) for start in starts[0]])
    sizes = [np.diff(np.append(start, size)) for start, size in zip(starts, cells.shape, strict=True)]
    return np.add.reduceat(rows, starts[1], axis=1) / np.outer(*sizes)


def _picture(title: str, allowed: Bool[np.ndarray, "Q K"], pool: tuple[int, int]) -> Picture:
    shares = _shares(allowed, pool)
    return Picture(title, shares, shares > 0, Scale(1.0))
