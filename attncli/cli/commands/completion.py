"""`attn completion`: the script that teaches a shell to complete."""

from __future__ import annotations

from typing import Annotated, Literal

from attncli.cli.environment import Environment
from attncli.cli.groups import argument


def completion(
    environment: Environment,
    shell: Annotated[Literal["bash", "zsh", "fish", "powershell"], argument("The shell to complete in.", "SHELL")],
) -> None:
    """Print the completion script of a shell.

    Examples:
    attn completion bash > ~/.local/share/bash-completion/completions/attn
    attn completion zsh > ~/.zfunc/_attn
    attn completion fish > ~/.config/fish/completions/attn.fish
    """
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name="attn", complete_var="_ATTN_COMPLETE", shell=shell)
    if shell == "zsh":  # Typer's only registers itself, so that the first TAB would do nothing
        register = "compdef _attn_completion attn"
        called = f'if [ "$funcstack[1]" = "_attn" ]; then _attn_completion "$@"; else {register}; fi'
        script = script.replace(register, called)
    environment.write([script + "\n"])
