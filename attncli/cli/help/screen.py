"""Pages of help on standard output: what a command is for, examples, and its options in panels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group as Stack
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from attncli.cli.environment import PAGE_WIDTH, Terminal, measured_width, output
from attncli.cli.help.pages import Entry, Group, HelpPage

if TYPE_CHECKING:
    from rich.console import RenderableType

_NO_SHORT = "    "  # the place of `-m, ` before an option without a letter
_EDGES = 6  # cells of a panel that are not its text: borders, padding, and the gap between its columns
_BELOW = (0, 0, 0, 6)  # where the text stands that has no place beside its name


def show(page: HelpPage) -> None:
    """Print a page; its lines are no longer than is good to read, in a pipe too."""
    with output(None, is_stream=False) as stream:
        width = min(measured_width(stream), PAGE_WIDTH)
        Terminal(stream, width=width).show(_Drawn(page, width, getattr(stream, "encoding", None) or "utf-8").parts())


class _Drawn:
    """A page at a width, in an encoding."""

    def __init__(self, page: HelpPage, width: int, encoding: str) -> None:
        self.page = page
        self.encoding = encoding
        self.room = width - _EDGES

    def parts(self) -> Iterator[RenderableType]:
        """Yield what is printed, a blank line between each and the next."""
        page = self.page
        if page.usage is not None:
            yield Text.assemble(("Usage: ", "bold"), f"{page.name} {page.usage}")
        yield self.text(page.purpose)
        if page.examples:
            lines = (Padding(self.text(example, "cyan"), (0, 0, 0, 2), expand=False) for example in page.examples)
            yield Stack(Text("Examples:", "bold"), *lines)
        for note in page.notes:
            yield self.text(note)
        if page.groups:
            yield Stack(*map(self.panel, page.groups))

    def text(self, text: str, style: str = "") -> Text:
        """Return a text whose characters can all be written, before it is measured: an escape is longer than one."""
        return Text(text.encode(self.encoding, "backslashreplace").decode(self.encoding), style)

    def panel(self, group: Group) -> Panel:
        """Return a group in a frame, as wide as all the others of the page."""
        rows = [(self.name(entry), self.text(entry.text)) for entry in group.entries]
        widest = max(cell_len(line) for name, _ in rows for line in name.plain.split("\n"))
        if widest > self.room // 2:  # beside such a name there is no place for a text
            inner: RenderableType = Stack(*(part for name, text in rows for part in (name, Padding(text, _BELOW))))
        else:
            inner = Table.grid(Column(width=widest, no_wrap=True), Column(ratio=1), padding=(0, 2, 0, 0), expand=True)
            for row in rows:
                inner.add_row(*row)
        return Panel(inner, title=group.title, title_align="left", border_style="dim")

    def name(self, entry: Entry) -> Text:
        """Return a name and what follows it; a list of choices goes on below where it is too long."""
        indent = _NO_SHORT if entry.name.startswith("--") else ""
        lines = [indent + entry.name + " " * bool(entry.form)]
        for part in re.findall(r"[^|]+\|?", entry.form):
            if len(lines[-1] + part) > self.room * 2 // 5:
                lines.append(_NO_SHORT + "  ")
            lines[-1] += part
        named = self.text("\n".join(line.rstrip() for line in lines))
        named.stylize("bold", 0, len(indent + entry.name))
        return named
