"""Reads the line of a command, with the variables of the environment that stand in for options, and runs it."""

from __future__ import annotations

import inspect
import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

import typer
from typer import BadParameter
from typer.core import TyperCommand

from attncli.cli.environment import Environment
from attncli.cli.groups import dashed, kind_of
from attncli.errors import AttnError, ExitCode
from attncli.text import did_you_mean, visible


def _as_utf8(text: str) -> str:
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
            except typer.Exit as end:  # as it is meant to; `--verbose` says that it is done
                return end.exit_code
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
