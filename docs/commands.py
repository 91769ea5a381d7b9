"""A hook of MkDocs: reference/commands.md gets every command and option, as the program itself describes them."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncli.cli.help import Page


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page's text, with the commands below it if it is the one about them."""
    return markdown + commands() if page.file.src_uri == "reference/commands.md" else markdown


def commands() -> str:
    """Return a section of Markdown for each command."""
    import typer
    from typer.main import get_command

    from attncli.cli.app import app
    from attncli.cli.help import commands_of, page_of

    root = typer.Context(get_command(app), info_name="attn")
    return "".join(line for context in commands_of(root) for line in _section(page_of(context))) + "".join(_keys())


def _keys() -> Iterator[str]:
    from attncli.explore.keys import KEYS

    yield "\n## Keys of attn explore\n\n| key | |\n|---|---|\n"
    for key in KEYS:
        meaning = f"{key.description}: {key.tooltip}".removeprefix(": ")
        yield f"| {_escaped(key.key_display or key.key)} | {_escaped(meaning)} |\n"


def _section(page: Page) -> Iterator[str]:
    yield f"\n## {page.name}\n"
    yield f"\n```sh\n{page.name} {page.usage}\n```\n"
    for paragraph in page.paragraphs:
        first, _, examples = paragraph.partition("\n")
        yield f"\n{_escaped(first)}\n" + (f"\n```sh\n{examples}\n```\n" if examples else "")
    for title, rows in page.tables.items():
        yield f"\n| {title} | |\n|---|---|\n"
        for name, text in rows:
            yield f"| `{name}` | {_escaped(text)} |\n"


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it stands; what is between backticks stays code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\*_\[\]|#])", r"\\\1", html.escape(part, quote=False))
        for part in parts
    )
