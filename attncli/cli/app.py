"""The command line: the tree of commands, and the one place where an error becomes a sentence and an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from attncli.cli.command import Command, ProgramCommand, WithOwnHelp, print_help
from attncli.cli.environment import print_error
from attncli.cli.groups import with_option_groups
from attncli.errors import AttnError, ExitCode, is_panic
from attncli.text import ADDRESS, brief, did_you_mean, visible

# The commands, each a function of its own name in a module of its own name, and their purposes.
_COMMANDS = {
    "inspect": "Show the attention of a sentence.",
    "heads": "Measure every head, and label what it does.",
    "check": "Check the attention of a checkpoint for errors.",
    "why": "Explain why a query attends to a key.",
    "ablate": "Cut heads or edges, and see what it does to the prediction.",
    "diff": "Compare two sentences, checkpoints or traces.",
    "tokens": "Show the tokens of a sentence.",
    "explore": "Type, and watch attention change with every key.",
    "learn": "Follow one query through a layer, step by step.",
    "run": "Run a Python program, and list every attention in it.",
    "completion": "Print the completion script of a shell.",
    "mask": "Draw, check, compare and convert masks.",
}
_MASK_COMMANDS = {
    "show": "Draw a mask.",
    "check": "Check a mask for errors.",
    "diff": "Show where two masks differ.",
    "convert": "Write a mask for another API.",
    "model": "Show the masks that a checkpoint attends by.",
}


class _Group(WithOwnHelp, TyperGroup):
    """A command group whose commands are imported and built on use, and whose errors are one line on stderr."""

    purposes: Mapping[str, str] = _COMMANDS

    def build(self, name: str) -> Any:
        """Return one of the commands."""
        return _mask_group() if name == "mask" else _built(name, name, self.purposes[name])

    def tables(self) -> dict[str, list[tuple[str, str]]]:
        """Return the tables of the help besides those of options."""
        return {"Commands": [*self.purposes.items()]}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return [*self.purposes]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name."""
        if cmd_name not in self.commands and cmd_name in self.purposes:
            self.add_command(self.build(cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def main(self, args: Any = None, prog_name: Any = None, *, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """Run the program; standalone, it ends with an exit code of `ExitCode`."""
        if "_ATTN_COMPLETE" in os.environ:
            from typer._completion_classes import completion_init

            completion_init()
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name, standalone_mode=False, **extra)
        except typer.TyperException as error:
            context = getattr(error, "ctx", None)
            print_error(f"{_complaint(error)}; see {context.command_path if context else 'attn'} --help")
            code = getattr(error, "exit_code", ExitCode.USAGE)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            code = _failed(error)
        sys.exit(code or ExitCode.OK)


class _Masks(_Group):
    """`attn mask`."""

    purposes = _MASK_COMMANDS

    def build(self, name: str) -> Any:
        """Return one of the commands."""
        return _built("mask", name, self.purposes[name])

    def tables(self) -> dict[str, list[tuple[str, str]]]:
        """Return the same, and what an expression is made of."""
        from attncli.masks.notation import NOTATION

        atoms = [(kind.usage, kind.meaning) for kind in NOTATION.values()]
        return super().tables() | {"Atoms: when query i may attend to key j": atoms}


_group = partial(
    typer.Typer,
    invoke_without_command=True,
    add_completion=False,
    suggest_commands=False,  # of Typer's own; it knows only the commands that were built
    pretty_exceptions_enable=False,
)
app = _group(name="attn", cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})


def _built(module: str, name: str, purpose: str) -> Any:
    from attncli.cli.options import Verbosity

    alone = typer.Typer(add_completion=False)
    kind = ProgramCommand if name == "run" else Command
    function = getattr(import_module(f"attncli.cli.commands.{module}"), name)
    alone.command(name, cls=kind, short_help=purpose)(with_option_groups(function, Verbosity))
    return typer.main.get_command(alone)


def _mask_group() -> Any:
    masks = _group(name="mask", cls=_Masks)

    @masks.callback(short_help=_COMMANDS["mask"])
    def _masks(context: typer.Context) -> None:
        """Draw, check, compare and convert attention masks.

        An expression combines the atoms below with & (and), | (or), ~ (not) and parentheses. i is the position of the
        query and j that of the key, both from 0. A .npy, .safetensors or .pt file may replace an expression: in it,
        True or 1 = may attend; additive masks hold 0 and -inf.

        Examples:
        attn mask show "causal & window(4)" --size 12
        attn mask check mask.npy --expect "causal & pad(left=2)"
        """
        if context.invoked_subcommand is None:
            print_help(context, ExitCode.USAGE)

    return typer.main.get_command(masks)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from attncli._version import __version__

        typer.echo(f"attn {__version__}")
        raise typer.Exit


@app.callback(short_help="See attention happen, with numbers.")
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """See attention happen, with numbers.

    `attn COMMAND --help` explains a command. `attn mask --help` lists what a mask expression is made of.

    Examples:
    attn inspect "time flies like an arrow"
    attn inspect -m demo "time flies like an arrow" --layer 1
    attn mask show "causal & window(4)" --size 12
    """
    if context.invoked_subcommand is None:
        print_help(context, ExitCode.USAGE)


def _complaint(error: Any) -> str:
    """Return the message of an error in a command line, in one line."""
    context: Any = getattr(error, "ctx", None)
    message, hint = error.format_message(), ""
    if hasattr(error, "possibilities"):  # an option that does not exist
        names = [name for param in context.command.get_params(context) for name in (*param.opts, *param.secondary_opts)]
        message = error.message
        hint = did_you_mean(error.option_name, [name for name in names if name.startswith("-")])
    elif unknown := re.fullmatch(r"No such command '(.*)'\.?", message, re.DOTALL):
        hint = did_you_mean(unknown[1], context.command.list_commands(context))
    message = " ".join(message.split()).rstrip(".")
    return message[:1].lower() + message[1:] + hint


def _failed(error: BaseException) -> ExitCode:
    """Print why a run ends, and return the exit code that it ends with.

    An exception that is not one of ours is a bug, and is called one; for a script it is an input that was not read.
    """
    if os.environ.get("ATTN_DEBUG", "0") not in ("", "0"):
        import traceback  # needed for this alone

        behind: BaseException | None = error
        while behind is not None:
            behind.__suppress_context__ = False  # of those that were raised `from None`, for the sentence's sake
            behind = behind.__context__
        lines = "".join(traceback.format_exception(error)).splitlines()
        with suppress(OSError):
            sys.stderr.write("".join(f"{visible(brief(line))}\n" for line in lines))
    if isinstance(error, AttnError):
        print_error(str(error))
        return error.exit_code
    if isinstance(error, MemoryError):
        print_error("out of memory; give fewer tokens, layers or heads")
    else:
        message = ADDRESS.sub("", " ".join(f"{type(error).__name__}: {error}".split()))
        print_error(f"this is a bug in attn, please report it: {message[:300]}; ATTN_DEBUG=1 shows the traceback")
    return ExitCode.INPUT
