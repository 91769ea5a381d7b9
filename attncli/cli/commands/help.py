"""`attn help`: the help of a command, or a topic."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer import Argument, Option

from attncli.cli.environment import Environment
from attncli.errors import UsageError


def help(  # noqa: A001
    context: typer.Context,
    environment: Environment,
    words: Annotated[
        list[str] | None,
        Argument(metavar="TOPIC", help="A topic or a command. Default: the list of them.", show_default=False),
    ] = None,
    man: Annotated[bool | None, Option("--man", help="Print the manual page, in roff.")] = None,
) -> None:
    """Show the help of a command, or on a topic.

    Examples:
    attn help
    attn help masks
    attn help mask show
    attn help --man | man -l -
    """
    from attncli.cli.help import find_page, manual, show

    root: Any = context.find_root()
    if not man:
        show(find_page(root, " ".join(words or [])), environment)
    elif words:
        raise UsageError("--man prints the whole manual; drop it, or the topic")
    else:
        environment.write(manual(root))
