"""`attn completion`: the script that teaches a shell to complete."""

from __future__ import annotations

from typing import Annotated, Literal

from attncli.cli.environment import Environment
from attncli.cli.groups import argument


def completion(
    environment: Environment,
    shell: Annotated[
        Literal["bash", "zsh", "fish", "powershell"], argument("The shell: bash, zsh, fish or powershell.", "SHELL")
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
