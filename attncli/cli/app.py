"""The command line: the tree of commands, how each reads its line and the environment, and how an error ends it."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_origin

import typer
from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

from attncli.cli.environment import Environment, print_error
from attncli.cli.groups import dashed, kind_of, with_option_groups
from attncli.errors import AttnError, ExitCode, is_panic
from attncli.text import ADDRESS, brief, did_you_mean, visible


def _as_utf8(text: str) -> str:
    """Return a text of the command line, which Python decodes by the locale, as UTF-8 where its bytes are that."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError:
        return text


def _print_help(context: typer.Context, code: int = ExitCode.OK) -> NoReturn:
    from attncli.cli.help import print_help  # which other runs spare

    print_help(context, code=code)


class WithOwnHelp:
    """A command or a group of them, with help and errors of attn's own form."""

    def read_line(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line as Click does."""
        return super().parse_args(ctx, args)  # type: ignore[misc]

    def get_help_option(self, ctx: Any) -> Any:
        """Return `--help`, which is off where it is not typed: that it is nothing at all would be validated."""
        option = super().get_help_option(ctx)  # type: ignore[misc]  # of Typer's class, which follows
        option.default = False
        return option

    def get_help(self, ctx: Any) -> NoReturn:
        """Print the help, and end there."""
        _print_help(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; errors name this command, also where an option has no value."""
        try:
            return self.read_line(ctx, list(args))
        except typer.TyperException as error:
            vars(error).update(ctx=ctx)
            raise


class Command(WithOwnHelp, TyperCommand):
    """A command with options from its command line and the environment; only it prints to stdout.

    Typer validates every option with pydantic, typed or not, and importing that takes two thirds of the time that
    NumPy, Typer and Rich take together. So the values are made here, from Click's texts by the annotations.
    """

    def read_line(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line, and the variables that apply to the run."""
        parsed, rest, _ = self.make_parser(ctx).parse_args(args=list(args))
        texts: dict[str, Any] = {}
        for parameter in self.params:
            value, source = parameter.consume_value(ctx, parsed)
            ctx.set_parameter_source(parameter.name, source)
            if source.name == "COMMANDLINE" and value != ():
                texts[parameter.name] = value
        if ctx.resilient_parsing:  # a shell completes the line
            ctx.params |= texts
            return []
        for parameter in self.get_params(ctx):
            if parameter.is_eager and parameter.name in parsed:  # `--help`, which ends here
                parameter.handle_parse_result(ctx, parsed, rest)
        if rest:
            takes_text = any(parameter.metavar == "TEXT" for parameter in self.params)
            quotes = "; put a text of several words in quotes" if takes_text else ""
            ctx.fail(f"Got unexpected extra argument(s) ({' '.join(rest)}){quotes}")
        every: list[Any] = self.params
        for parameter in sorted(every, key=lambda option: option.name not in texts):  # an error before what is missing
            hint = parameter.get_error_hint().partition(" (env var")[0]
            text = texts.get(parameter.name)
            if ctx.get_parameter_source(parameter.name).name == "ENVIRONMENT":
                hint, text = parameter.envvar, os.environ[parameter.envvar]
                text = [text] if parameter.multiple else text
            if text is None and parameter.required:
                ctx.fail(f"missing {parameter.param_type_name} {hint}")
            ctx.params[parameter.name] = parameter.default if text is None else self._value(parameter, text, hint)
        from attncli.cli.applicability import check_applicable  # which the help of all commands spares

        check_applicable(ctx)
        return rest

    @cached_property
    def _kinds(self) -> dict[str, Any]:
        assert self.callback is not None
        return {name: kind_of(param.annotation) for name, param in inspect.signature(self.callback).parameters.items()}

    def _value(self, parameter: Any, text: Any, label: str) -> Any:
        kind = self._kinds[parameter.name]
        if isinstance(text, bool):
            return text
        if re.search(r"\b(?:TEXT|TOKENS?)\b", parameter.metavar or ""):
            text = _as_utf8(text) if isinstance(text, str) else [_as_utf8(each) for each in text]
        if get_origin(kind) is list:
            return list(text)
        try:
            return _value_of(text, kind, getattr(parameter, "min", None), getattr(parameter, "max", None))
        except BadParameter as error:
            error.param_hint = label
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error about a variable of the environment names it."""
        ctx.obj = Environment(ctx.params["quiet"], ctx.params["verbose"])
        with ctx.obj:
            try:
                return super().invoke(ctx)
            except EOFError as error:  # a library's; Typer would take it for Ctrl-D
                raise RuntimeError(f"EOFError: {error}") from error
            except AttnError as error:
                error.args = (f"{error}{self._variables(ctx, str(error))}",)
                raise

    def _variables(self, ctx: Any, message: str) -> str:
        """Return which variables have set the options that a message is about, in parentheses."""
        origins = []
        parameters: list[Any] = self.params
        for parameter in parameters:
            if ctx.get_parameter_source(parameter.name).name != "ENVIRONMENT":
                continue
            # A message about a checkpoint says its name, others say the option's.
            value = visible(os.environ[parameter.envvar])
            words = [f"--{dashed(parameter.name)}", *([re.escape(value)] if parameter.name == "model" else [])]
            if re.search(rf"(?<![\w/])(?:{'|'.join(words)})(?![\w/-])", message):
                origins.append(f"--{dashed(parameter.name)} {value} comes from {parameter.envvar}")
        return f" ({'; '.join(origins)})" if origins else ""


_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _value_of(text: str, kind: Any, low: int | None, high: int | None) -> Any:
    """Parse the text of an option; BadParameter if it is no value of this kind, or out of the range of numbers."""
    if kind is bool:
        if text.lower() not in _WORDS:
            raise BadParameter("expected true or false")
        return _WORDS[text.lower()]
    if kind is Path:
        if not text:  # which would be the working directory
            raise BadParameter("the file name is empty")
        return Path(text)
    if kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            raise BadParameter(f"expected a {'whole ' * (kind is int)}number") from None
        if low is not None and not number >= low:
            raise BadParameter(f"expected at least {low}")
        if high is not None and not number <= high:
            raise BadParameter(f"expected at most {high}")
        return number
    if (choices := get_args(kind)) and text not in choices:
        expected = ", ".join(f"'{choice}'" for choice in choices)
        raise BadParameter(f"'{text}' is not one of {expected}{did_you_mean(text, choices)}")
    return text


class ProgramCommand(Command):
    """A command that runs a program, whose arguments are its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line up to the program: a script, or `-m MODULE`, as python does."""
        with_value = {name for param in self.params if not getattr(param, "is_flag", True) for name in param.opts}
        index = 0
        while index < len(args) and args[index].startswith("-") and args[index] not in ("-", "--"):
            name = args[index]
            is_attached = "=" in name if name.startswith("--") else len(name) > 2
            index += 2 if not is_attached and name in with_value else 1
            if name.startswith("-m") and not name.startswith("--"):
                return super().parse_args(ctx, [*args[:index], "--", *args[index:]])
        is_divided = args[index : index + 1] == ["--"]
        return super().parse_args(ctx, args if is_divided else [*args[:index], "--", *args[index:]])


# --- the tree ----------------------------------------------------------------------------------------------

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
    module = ""  # of all commands; without one each has its own

    def build(self, name: str) -> Any:
        """Return one of the commands."""
        return _mask_group() if name == "mask" else _built(self.module or name, name, self.purposes[name])

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
    module = "mask"

    def tables(self) -> dict[str, list[tuple[str, str]]]:
        """Return the same, and what an expression is made of."""
        from attncli.masks import NOTATION

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
            _print_help(context, ExitCode.USAGE)

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
    With ACCESSIBLE=1 a screen reader gets sentences. Exit codes: 0 is success, 1 a finding, and 2 to 5 an error.

    Examples:
    attn inspect "time flies like an arrow"
    attn inspect -m demo "time flies like an arrow" --layer 1
    attn mask show "causal & window(4)" --size 12
    """
    if context.invoked_subcommand is None:
        _print_help(context, ExitCode.USAGE)


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
