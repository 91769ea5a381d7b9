"""Groups of options: dataclasses whose fields carry what Typer says of an option, which a command takes whole."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property, partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from typer import BadParameter, Context
from typer.core import TyperCommand

from attncli.cli.config import Setting, default_map, unfit
from attncli.cli.environment import Environment
from attncli.text import did_you_mean


@dataclass(frozen=True)
class Options:
    """Options that belong together.

    A field is an option, `Annotated[type, typer.Option(...)]`, or a group within this one. An option that has its
    default, None or False, was not given.
    """

    def explicit_values(self) -> Iterator[tuple[str, Any]]:
        """Yield the options that were given, by the name of their field; those of the groups within with theirs."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Options):
                yield from value.explicit_values()
            elif value != field.default:
                yield field.name, value


_Group = TypeVar("_Group", bound=Options)

_hints: Callable[[Any], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))  # of a group's fields


def with_option_groups(command: Callable[..., None], *more: type[Options]) -> Callable[..., None]:
    """Return a command as Typer takes it: with a parameter for every option of its groups.

    A parameter of the command itself that is called as an option of a group stands in its place, to say other things
    of it; the group has its value too.

    Args:
        command: a function of groups, of options of its own, of a `typer.Context`, and of the `Environment`.
        more: groups of options that are read before the command is called, which does not take them.
    """
    kinds = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in kinds.items() if _is_group(kind)}
    environments = [name for name, kind in kinds.items() if kind is Environment]
    signature = inspect.signature(command)
    parameters = {
        name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kinds[name])
        for name, parameter in signature.parameters.items()
        if name not in groups and name not in environments
    }
    own = list(parameters)
    if environments:  # which the context brings
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=Context)
        parameters.setdefault("context", context)
    for group in (*groups.values(), *more):
        for parameter in _parameters(group):
            parameters.setdefault(parameter.name, parameter)

    if "_ATTN_COMPLETE" in os.environ:  # a shell asks
        from attncli.cli.completion import with_values

        parameters = {name: one.replace(annotation=with_values(one.annotation)) for name, one in parameters.items()}

    def run(**values: Any) -> None:
        filled: dict[str, Any] = {name: _filled(group, values) for name, group in groups.items()}
        for name in environments:
            filled[name] = values["context"].obj
        command(**filled, **{name: values[name] for name in own})

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    run.__signature__ = signature.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
    return run


def choices_of(group: type[Options], name: str) -> tuple[str, ...]:
    """Return what an option of a group can be chosen from."""
    return get_args(_kind(_hints(group)[name]))


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Options)


def _parameters(group: type[Options]) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each option of a group, and of the groups within."""
    kinds = _hints(group)
    for field in fields(group):
        kind = kinds[field.name]
        if _is_group(kind):
            yield from _parameters(kind)
        else:
            yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=kind)


def _filled(group: type[_Group], values: Mapping[str, Any]) -> _Group:
    kinds = _hints(group).items()
    return group(**{name: _filled(kind, values) if _is_group(kind) else values[name] for name, kind in kinds})


_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def value_of(text: str, kind: Any, low: float | None = None, high: float | None = None) -> Any:
    """Return what a text says.

    Args:
        text: from a command line, or where an option is set.
        kind: `str`, `int`, `float`, `bool`, `Path`, or a `Literal` of some texts.
        low: the least number.
        high: the largest number.

    Raises:
        typer.BadParameter: it says nothing of this kind.
    """
    if kind is bool:
        if text.strip().lower() not in _WORDS:
            raise BadParameter("expected true or false")
        return _WORDS[text.strip().lower()]
    if kind is Path:
        if not text:  # which would be the working directory
            raise BadParameter("the file name is empty")
        return Path(text)
    if kind in (int, float):
        return _number(text, kind, low, high)
    choices = get_args(kind)
    if choices and text not in choices:
        expected = ", ".join(f"'{choice}'" for choice in choices)
        raise BadParameter(f"'{text}' is not one of {expected}{did_you_mean(text, choices)}")
    return text


def _number(text: str, kind: type[int] | type[float], low: float | None, high: float | None) -> int | float:
    try:
        number = kind(text)
    except ValueError:
        raise BadParameter("expected a whole number" if kind is int else "expected a number") from None
    if low is not None and not number >= low:
        raise BadParameter(f"expected at least {low}")
    if high is not None and not number <= high:
        raise BadParameter(f"expected at most {high}")
    return number


class SettableCommand(TyperCommand):
    """A command whose options are set by its command line, the environment and the configuration files.

    Typer validates every option with pydantic, given or not, and importing that takes two thirds of the time that
    NumPy, Typer and Rich take together. So the values are made here, of what Click finds and as the annotations say.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line, and what is set elsewhere and applies to the run, which is kept in `ctx.obj`."""
        parsed, rest, _ = self.make_parser(ctx).parse_args(args=list(args))
        if ctx.resilient_parsing:  # a shell asks what could follow
            for parameter in self.params:
                value, source = parameter.consume_value(ctx, parsed)
                ctx.set_parameter_source(parameter.name, source)
                if source.name == "COMMANDLINE" and value != ():
                    ctx.params[parameter.name] = value
            return []
        for parameter in self.get_params(ctx):
            if parameter.is_eager and parameter.name in parsed:  # `--help`, which ends here
                parameter.handle_parse_result(ctx, parsed, rest)
        if rest:
            takes_text = any(parameter.metavar == "TEXT" for parameter in self.params)
            quotes = "; a text of several words stands in quotes" if takes_text else ""
            ctx.fail(f"Got unexpected extra argument(s) ({' '.join(rest)}){quotes}")
        typed, standing = self._standing(ctx, parsed)
        left_out = unfit(standing, typed)
        ctx.obj = {name: one for name, one in standing.items() if name not in left_out}
        every: list[Any] = self.params
        for parameter in sorted(every, key=lambda one: one.name not in typed):  # what is wrong before what is missing
            name, hint = parameter.name, parameter.get_error_hint().partition(" (env var")[0]
            if name in typed:
                ctx.params[name] = self._value(parameter, typed[name], hint)
            elif name in ctx.obj:
                ctx.params[name] = self.set_value(ctx.obj[name])
            elif parameter.required:
                ctx.fail(f"missing {parameter.param_type_name} {hint}")
            else:
                ctx.params[name] = parameter.default
        return rest

    def set_value(self, setting: Setting) -> Any:
        """Return the value that an option is set to.

        Raises:
            UsageError: a file has a value of another type.
            typer.BadParameter: it is none that the option takes.
        """
        (parameter,) = (one for one in self.params if one.name == setting.name)
        text = setting.text(self._kinds[setting.name])
        return self._value(parameter, [text] if parameter.multiple else text, setting.label)

    @cached_property
    def _kinds(self) -> dict[str, Any]:
        assert self.callback is not None
        return {name: _kind(one.annotation) for name, one in inspect.signature(self.callback).parameters.items()}

    def _standing(self, ctx: Any, parsed: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Setting]]:
        """Return what stands on the command line, and what is set elsewhere."""
        settable = {parameter.name for parameter in self.params if parameter.envvar}
        if settable:
            ctx.default_map = {name: one for name, one in default_map().items() if name in settable}
        typed, standing = {}, {}
        for parameter in self.params:
            value, source = parameter.consume_value(ctx, parsed)
            ctx.set_parameter_source(parameter.name, source)
            if source.name == "COMMANDLINE" and value != ():
                typed[parameter.name] = value
            elif source.name == "ENVIRONMENT":  # as it is; Click cuts lists at blanks
                standing[parameter.name] = Setting.of_variable(parameter.name)
            elif source.name == "DEFAULT_MAP":
                standing[parameter.name] = value
        return typed, standing

    def _value(self, parameter: Any, text: Any, label: str) -> Any:
        """Return what an option is given: a flag, a text or several."""
        kind = self._kinds[parameter.name]
        low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
        try:
            if isinstance(text, bool):
                return text
            return list(text) if get_origin(kind) is list else value_of(text, kind, low, high)
        except BadParameter as error:
            error.param_hint = label
            raise


def _kind(annotation: Any) -> Any:
    """Return the type of an option's values, without the None of one that nobody gives."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    kinds = get_args(annotation)
    return next(kind for kind in kinds if kind is not NoneType) if NoneType in kinds else annotation
