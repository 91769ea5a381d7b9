"""`attn completion`: the script that teaches a shell to complete, and the question that the script asks."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer
from typer import Argument


def completion(shell: Annotated[Literal["bash", "zsh", "fish", "powershell"], Argument(help="Which shell.")]) -> None:
    """Print the completion script of a shell.

    Example:
    attn completion bash > ~/.local/share/bash-completion/completions/attn
    """
    from attncli.completion.shells import script

    typer.echo(script(shell), nl=False)


def complete(context: typer.Context, shell: str, words: list[str]) -> None:
    """Say what could stand where a line ends; for the scripts of `attn completion`."""
    from attncli.completion.shells import answer

    # A file's name need not be valid in the terminal's encoding; it goes back as it came.
    typer.echo(os.fsencode(answer(context.find_root().command, shell, words)), nl=False)
