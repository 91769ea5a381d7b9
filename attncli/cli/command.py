"""A command of the program: reading its line, with settings from elsewhere, and running it."""

from __future__ import annotations

import inspect
import os
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, get_origin

import typer
from typer import BadParameter
from typer.core import TyperCommand

from attncli.cli.environment import Environment
from attncli.cli.groups import kind_of, value_of
from attncli.errors import AttnError, ExitCode

if TYPE_CHECKING:
    from attncli.cli.settings import Setting


def as_utf8(text: str) -> str:
    """Return a text of the command line, which Python decodes by the locale, as UTF-8 where its bytes are that."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError:
        return text


def print_help(context: typer.Context, code: int = ExitCode.OK) -> NoReturn:
    """Print a command's help and end there; Typer would print what it returns, and a line end after it."""
    from attncli.cli.help import page_of, show

    show(page_of(context, is_whole=False), Environment())
    raise typer.Exit(code)


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
        print_help(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; errors name this command, also where an option has no value."""
        try:
            return self.read_line(ctx, list(args))
        except typer.TyperException as error:
            vars(error).update(ctx=ctx)
            raise


class Command(WithOwnHelp, TyperCommand):
    """A command with options from its command line, the environment and files; only it prints to stdout.

    Typer validates every option with pydantic, typed or not, and importing that takes two thirds of the time that
    NumPy, Typer and Rich take together. So the values are made here, from Click's texts by the annotations.
    """

    def read_line(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line and the settings that apply to the run, which are kept in `ctx.obj`."""
        parsed, rest, _ = self.make_parser(ctx).parse_args(args=list(args))
        typed = {}
        for parameter in self.params:
            value, source = parameter.consume_value(ctx, parsed)
            ctx.set_parameter_source(parameter.name, source)
            if source.name == "COMMANDLINE" and value != ():
                typed[parameter.name] = value
        if ctx.resilient_parsing:  # a shell completes the line
            ctx.params |= typed
            return []
        for parameter in self.get_params(ctx):
            if parameter.is_eager and parameter.name in parsed:  # `--help`, which ends here
                parameter.handle_parse_result(ctx, parsed, rest)
        if rest:
            takes_text = any(parameter.metavar == "TEXT" for parameter in self.params)
            quotes = "; put a text of several words in quotes" if takes_text else ""
            ctx.fail(f"Got unexpected extra argument(s) ({' '.join(rest)}){quotes}")
        from attncli.cli.applicability import CommandLine, check_applicable  # which the help of all commands spares
        from attncli.cli.settings import deciding, settings

        names = {parameter.name for parameter in self.params}
        settable = {parameter.name for parameter in self.params if parameter.envvar} - typed.keys()
        decided = deciding(settings()) if settable else {}
        standing = {name: one for name, one in decided.items() if name in settable and not one.is_default}
        line = CommandLine(ctx.info_name, names, typed, standing)
        every: list[Any] = self.params
        for parameter in sorted(every, key=lambda one: one.name not in typed):  # what is wrong before what is missing
            hint = parameter.get_error_hint().partition(" (env var")[0]
            ctx.params[parameter.name] = parameter.default
            if parameter.name in typed:
                ctx.params[parameter.name] = self._value(parameter, typed[parameter.name], hint)
            elif parameter.required:
                ctx.fail(f"missing {parameter.param_type_name} {hint}")
        ctx.obj = check_applicable(line)
        ctx.params |= {name: self.set_value(one) for name, one in ctx.obj.items()}
        return rest

    def set_value(self, setting: Setting) -> Any:
        """Return the value of a setting.

        Raises:
            UsageError: a file has a value of another type.
            typer.BadParameter: the option does not allow it.
        """
        (parameter,) = (one for one in self.params if one.name == setting.name)
        text = setting.text(self._kinds[setting.name])
        return self._value(parameter, [text] if parameter.multiple else text, setting.label)

    @cached_property
    def _kinds(self) -> dict[str, Any]:
        assert self.callback is not None
        return {name: kind_of(one.annotation) for name, one in inspect.signature(self.callback).parameters.items()}

    def _value(self, parameter: Any, text: Any, label: str) -> Any:
        """Return the value of an option: a flag, a text or several, or a parsed text."""
        kind = self._kinds[parameter.name]
        try:
            if isinstance(text, bool):
                return text
            if re.search(r"\b(?:TEXT|TOKENS?)\b", parameter.metavar or ""):
                text = as_utf8(text) if isinstance(text, str) else [as_utf8(each) for each in text]
            low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
            return list(text) if get_origin(kind) is list else value_of(text, kind, low, high)
        except BadParameter as error:
            error.param_hint = label
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error about a setting names its origin."""
        standing, ctx.obj = ctx.obj, Environment(ctx.params["quiet"], ctx.params["verbose"])
        with ctx.obj:
            try:
                return super().invoke(ctx)
            except typer.Exit as end:  # as it is meant to; `--verbose` says that it is done
                return end.exit_code
            except EOFError as error:  # a library's; Typer would take it for Ctrl-D
                raise RuntimeError(f"EOFError: {error}") from error
            except AttnError as error:
                from attncli.cli.settings import with_places

                error.args = (with_places(str(error), standing.values()),)
                raise


class ProgramCommand(Command):
    """A command that runs a program, whose arguments are its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line up to the program: a script, or `-m MODULE`, as python does."""
        with_value = {name for one in self.params if not getattr(one, "is_flag", True) for name in one.opts}
        index = 0
        while index < len(args) and args[index].startswith("-") and args[index] not in ("-", "--"):
            name = args[index]
            is_attached = "=" in name if name.startswith("--") else len(name) > 2
            index += 2 if not is_attached and name in with_value else 1
            if name.startswith("-m") and not name.startswith("--"):
                return super().parse_args(ctx, [*args[:index], "--", *args[index:]])
        is_divided = args[index : index + 1] == ["--"]
        return super().parse_args(ctx, args if is_divided else [*args[:index], "--", *args[index:]])
