"""`attn completion`: the script that teaches a shell to complete, and the question that the script asks."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer
from typer import Argument

from attncli.cli.environment import Environment


def completion(
    environment: Environment,
    shell: Annotated[
        Literal["bash", "zsh", "fish", "powershell"],
        Argument(help="The shell: bash, zsh, fish or powershell.", metavar="SHELL"),
    ],
) -> None:
    """Print the completion script of a shell.

    Examples:
    attn completion bash > ~/.local/share/bash-completion/completions/attn
    attn completion zsh > ~/.zfunc/_attn
    attn completion fish > ~/.config/fish/completions/attn.fish
    """
    from attncli.cli.completion import script

    environment.write([script(shell)])


def complete(context: typer.Context, environment: Environment, shell: str, words: list[str]) -> None:
    """Say what could stand where a line ends; for the scripts of `attn completion`."""
    from attncli.cli.completion import answer

    # The encoding of names of files, which is what the shell reads; a · in the help may be more than it has.
    said = answer(context.find_root().command, shell, words).encode(sys.getfilesystemencoding(), "replace")
    with environment.output(None) as stream:
        typer.echo(said, stream, nl=False)
