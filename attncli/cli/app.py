"""The command line: the Typer app, and the one place where an error becomes a sentence and an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from attncli.cli.config import with_places
from attncli.cli.environment import Environment, complain
from attncli.cli.groups import SettableCommand, with_option_groups
from attncli.errors import AttnError, ExitCode, UsageError, is_panic
from attncli.text import ADDRESS, did_you_mean, visible
from attncli.trace.tokens import brief

# The commands, each a function of its own name in a module of its own name, and what they are for.
_COMMANDS = {
    "inspect": "Show the attention of a sentence.",
    "heads": "Say what every head does, in numbers.",
    "check": "Say what is wrong with a checkpoint's attention.",
    "why": "Say why a query attends to a key.",
    "diff": "Show what changed between two sentences, checkpoints or traces.",
    "tokens": "Show the tokens of a sentence.",
    "explore": "Type, and watch attention change with every key.",
    "learn": "Walk one query through a layer, step by step.",
    "run": "Run a Python program, and show every attention that ran.",
    "config": "Say what the options are set to, and where.",
    "completion": "Print the completion script of a shell.",
    "help": "Show the help of a command, or on a topic.",
}
_MASK = "Draw, check, compare and convert masks."


class _Ours:
    """A command or a group of them, whose help and errors are its own."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return `--help`, which is off where it is not given: that it is nothing at all would be validated."""
        option = super().get_help_option(ctx)  # type: ignore[misc]  # of Typer's class, which follows
        option.default = False
        return option

    def get_help(self, ctx: Any) -> NoReturn:
        """Print the help, and end there."""
        _help(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; what is wrong with it is said of this command, also where an option has no value."""
        try:
            return super().parse_args(ctx, list(args))  # type: ignore[misc]
        except typer.TyperException as error:
            vars(error).update(ctx=ctx)
            raise


class _Group(_Ours, TyperGroup):
    """A command group whose errors are one line on stderr."""

    def purpose(self, name: str) -> str:
        """Return what one of the commands is for."""
        return self.commands[name].get_short_help_str(100)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the program; standalone, it ends with an exit code of `ExitCode`."""
        if "_ATTN_COMPLETE" in os.environ:
            from typer._completion_classes import completion_init

            completion_init()
        run = partial(super().main, args, prog_name, complete_var, False, windows_expand_args, **extra)
        if not standalone_mode:
            return run()
        try:
            code = run()
        except typer.TyperException as error:
            code = _usage(error)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            code = failed(error)
        sys.exit(code or ExitCode.OK)


class _Root(_Group):
    """The program: a command is imported and built when it, or the help of all of them, is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return [*_COMMANDS, "mask"]

    def purpose(self, name: str) -> str:
        """Return what one of the commands is for, without building it."""
        return _MASK if name == "mask" else _COMMANDS[name]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name."""
        if cmd_name not in self.commands and cmd_name in self.list_commands(ctx):
            self.add_command(_mask_group() if cmd_name == "mask" else _built(cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)


class _Command(_Ours, SettableCommand):
    """A command beside which nothing else prints."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error about a setting says where it comes from."""
        quiet, verbose = ctx.params["quiet"], ctx.params["verbose"]
        if quiet and verbose:
            raise UsageError("--quiet does not apply to --verbose; drop one of them")
        settings, ctx.obj = ctx.obj, Environment(quiet, verbose)
        with ctx.obj.running():
            try:
                return super().invoke(ctx)
            except typer.Exit as end:  # as it is meant to; `--verbose` says that it is done
                return end.exit_code
            except EOFError as error:  # a library's; Typer would take it for a person who gives up
                raise RuntimeError(f"EOFError: {error}") from error
            except AttnError as error:
                error.args = (with_places(str(error), settings),)
                raise


class _Program(_Command):
    """A command that runs a program, whose arguments are its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line up to the program: a script, or what follows `-m MODULE`."""
        return super().parse_args(ctx, self._divided(list(args)))

    def _divided(self, args: list[str]) -> list[str]:
        """Return the command line with `--` where the program's part begins, as python reads its own."""
        with_value = {name for one in self.params if not getattr(one, "is_flag", True) for name in one.opts}
        index = 0
        while index < len(args) and args[index].startswith("-") and args[index] not in ("-", "--"):
            name = args[index]
            if name.startswith("-m") and not name.startswith("--"):
                index += 1 if len(name) > 2 else 2
                return [*args[:index], "--", *args[index:]]
            is_attached = "=" in name if name.startswith("--") else len(name) > 2
            index += 2 if not is_attached and name in with_value else 1
        return args if args[index : index + 1] == ["--"] else [*args[:index], "--", *args[index:]]


def _help(context: typer.Context, code: int = ExitCode.OK) -> NoReturn:
    """Print a command's help and end there; Typer would print what it is given, and a line end after it."""
    from attncli.cli.help import page_of, show

    show(page_of(context, is_whole=False), Environment())
    raise typer.Exit(code)


def _usage(error: typer.TyperException) -> int:
    """Say what Typer found wrong with the command line, in one line and with the way to the help."""
    context = getattr(error, "ctx", None)
    complain(f"{complaint(error)}; see {context.command_path if context else 'attn'} --help")
    return getattr(error, "exit_code", ExitCode.USAGE)


def _help_alone(context: typer.Context) -> None:
    """Print the help of a group that is called without a command."""
    if context.invoked_subcommand is None:
        _help(context, ExitCode.USAGE)


app = typer.Typer(
    name="attn",
    cls=_Root,
    invoke_without_command=True,
    add_completion=False,
    suggest_commands=False,  # of Typer's own; it knows only the commands that were built
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _built(name: str) -> Any:
    """Return one of `_COMMANDS`."""
    from attncli.cli.options import Volume

    alone = typer.Typer(add_completion=False)
    found = getattr(import_module(f"attncli.cli.commands.{name}"), name)
    alone.command(name, cls=_Program if name == "run" else _Command, short_help=_COMMANDS[name])(
        with_option_groups(found, Volume)
    )
    return typer.main.get_command(alone)


def _mask_group() -> Any:
    """Return `attn mask`."""
    from attncli.cli.commands import mask, mask_model
    from attncli.cli.options import Volume

    masks = typer.Typer(
        name="mask", cls=_Group, invoke_without_command=True, add_completion=False, suggest_commands=False
    )

    @masks.callback(short_help=_MASK)
    def _masks(context: typer.Context) -> None:
        """Draw, check, compare and convert attention masks.

        `attn help masks` lists what an expression is made of.

        Examples:
        attn mask show "causal & window(4)" --size 12
        attn mask check mask.npy --expect "causal & pad(left=2)"
        """
        _help_alone(context)

    for function, short in (
        (mask.show, "Draw a mask."),
        (mask.check, "Say what is wrong with a mask."),
        (mask.diff, "Show where two masks differ."),
        (mask.convert, "Write a mask for another API."),
        (mask_model.model, "Show the masks that a checkpoint builds."),
    ):
        masks.command(cls=_Command, short_help=short)(with_option_groups(function, Volume))
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

    `attn COMMAND --help` says more on a command; `attn help` lists what else there is to read.

    Examples:
    attn inspect "time flies like an arrow"
    attn inspect -m demo "time flies like an arrow" --layer 1
    attn mask show "causal & window(4)" --size 12
    """
    _help_alone(context)


_NO_COMMAND = re.compile(r"No such command '(?P<given>.*)'\.?", re.DOTALL)


def complaint(error: Any) -> str:
    """Return what is wrong with a command line, in one line."""
    context: Any = getattr(error, "ctx", None)
    message, hint = error.format_message(), ""
    if hasattr(error, "possibilities"):  # an option that does not exist
        from attncli.cli.retired import RETIRED

        name = error.option_name
        bare, command = name.removeprefix("--"), context.command_path.split()[1:2]
        if instead := RETIRED.get(bare) or RETIRED.get(" ".join([*command, bare])):
            return f"{name} is retired: {instead}"
        names = [name for one in context.command.get_params(context) for name in (*one.opts, *one.secondary_opts)]
        message, hint = error.message, did_you_mean(name, [name for name in names if name.startswith("-")])
    elif found := _NO_COMMAND.fullmatch(message):
        hint = did_you_mean(found["given"], context.command.list_commands(context))
    message = " ".join(message.split()).rstrip(".")
    return message[:1].lower() + message[1:] + hint


def failed(error: BaseException) -> ExitCode:
    """Say why a run ends, and return the exit code that it ends with.

    An exception that is not one of ours is a bug, and is called one; for a script it is an input that was not read.
    """
    if os.environ.get("ATTN_DEBUG", "0") not in ("", "0"):
        _trace(error)
    if isinstance(error, AttnError):
        complain(str(error))
        return error.exit_code
    if isinstance(error, MemoryError):
        complain("out of memory; give fewer tokens, layers or heads")
        return ExitCode.INPUT
    message = ADDRESS.sub("", " ".join(f"{type(error).__name__}: {error}".split()))
    complain(f"this is a bug in attn, please report it: {message[:300]}; ATTN_DEBUG=1 shows where")
    return ExitCode.INPUT


def _trace(error: BaseException) -> None:
    """Write the traceback to stderr, of what lies behind the error too, and harmless whatever it quotes."""
    import traceback  # needed for this alone

    behind: BaseException | None = error
    while behind is not None:
        behind.__suppress_context__ = False  # of those that were raised `from None`, for the sentence's sake
        behind = behind.__context__
    lines = "".join(traceback.format_exception(error)).splitlines()
    with suppress(OSError):
        sys.stderr.write("".join(f"{visible(brief(line))}\n" for line in lines))
