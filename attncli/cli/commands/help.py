"""`attn help`: the help of a command, or a topic."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attncli.cli.environment import Environment
from attncli.cli.groups import argument


def help(  # noqa: A001
    context: typer.Context,
    environment: Environment,
    words: Annotated[list[str] | None, argument("A topic or a command. Default: a list of them.", "TOPIC")] = None,
) -> None:
    """Show the help of a command or a topic.

    Examples:
    attn help
    attn help masks
    attn help mask show
    """
    from attncli.cli.help import find_page, show

    root: Any = context.find_root()
    show(find_page(root, " ".join(words or [])), environment)
