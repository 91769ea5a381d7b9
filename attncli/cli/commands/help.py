"""`attn help`: the help of a command, or a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from attncli.errors import UsageError

if TYPE_CHECKING:
    from attncli.cli.help.pages import HelpPage


def help(  # noqa: A001
    context: typer.Context,
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
    from attncli.cli.environment import write

    root: Any = context.find_root()
    if man:
        if words:
            raise UsageError("--man prints the whole manual; drop it, or the topic")
        from attncli.cli.help.manual import manual

        write(manual(root), None)
        return
    from attncli.cli.help.screen import show

    show(_page(root, words or []))


def _page(root: typer.Context, words: list[str]) -> HelpPage:
    """Return what is asked for.

    Raises:
        UsageError: there is no such command or topic.
    """
    from attncli.cli.help.pages import names_within, page_of, within
    from attncli.cli.help.topics import TOPICS, contents, topic
    from attncli.text import did_you_mean, visible

    if not words:
        return contents(root)
    if len(words) == 1 and words[0] in TOPICS:
        return topic(words[0], root)
    context = root
    for word in words:
        inner = within(context, word)
        if inner is None:
            known = [*(TOPICS if context is root else ()), *names_within(context)]
            raise UsageError(f"no topic or command '{visible(' '.join(words))}'{did_you_mean(word, known)}")
        context = inner
    return page_of(context)
