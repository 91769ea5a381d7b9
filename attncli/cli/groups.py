"""Options, each declared once: as a field of a class, an option group that commands share.

`option` declares everything but an option's type; Typer's parameters, their help and completion are made of that.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer import Context

from attncli.checkpoints.options import OptionValues


class Declaration(NamedTuple):
    """Declaration of an option or an argument; see `option`."""

    help: str
    metavar: str | None = None
    letter: str = ""
    panel: str | None = None
    rare: bool = False
    env: bool = False
    low: int | None = None
    high: int | None = None
    flags: str = ""
    eager: Callable[[Context, bool], None] | None = None
    is_argument: bool = False


def option(help: str, metavar: str | None = None, letter: str = "", **more: Any) -> Any:  # noqa: A002
    """Declare an option: as the default of a field or parameter, or in its annotation.

    Args:
        help: its help.
        metavar: the word for its value, which also chooses its completion.
        letter: its letter.
        more: the `panel` of the help; whether it is `rare`, shown by `--help-all` alone; whether `env`, `ATTN_NAME`,
            sets it too; its `low`est and `high`est number; its `flags`, where they do not follow from its name; a
            function that is called before others are read (`eager`).
    """
    return Declaration(help, metavar, letter, **more)


def argument(help: str, metavar: str) -> Any:  # noqa: A002
    """Declare an argument of the command line by its help and the word for its value."""
    return Declaration(help, metavar, is_argument=True)


def _declared(kind: Any, default: Any) -> tuple[Any, Any]:
    """Return the annotation and the default of an option; either may be its declaration."""
    if isinstance(default, Declaration):
        return Annotated[kind, default], False if kind in (bool, "bool") else None
    return kind, default


class Options(OptionValues):
    """Options that belong together.

    A field is an option, or a group within this one. An option that has its default, None or False, is not in use.
    """

    def __init_subclass__(cls) -> None:
        """Move declarations from the defaults of fields to their annotations."""
        fields = inspect.get_annotations(cls)
        for name in fields.keys() & vars(cls).keys():
            fields[name], default = _declared(fields[name], vars(cls)[name])
            setattr(cls, name, default)
        cls.__annotations__ = fields

    def explicit_values(self) -> Iterator[tuple[str, Any]]:
        """Yield the options in use, by the name of their field; those of the groups within with theirs."""
        for name in self.names():
            value = getattr(self, name)
            if isinstance(value, Options):
                yield from value.explicit_values()
            elif value != getattr(type(self), name):
                yield name, value


_Group = TypeVar("_Group", bound=Options)

_hints: Callable[[Any], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))


def with_option_groups(command: Callable[..., int | None], *more: type[Options]) -> Callable[..., int | None]:
    """Return a command for Typer: with a parameter for every option of its groups.

    An option of the command with the name of a group's option replaces its declaration; the group has its value too.

    It is a function of the `Environment`, groups and options, to an exit code. `more` are groups that it does not take.
    """
    _, *parameters = inspect.signature(command).parameters.items()  # the first is the environment
    kinds = get_type_hints(command, include_extras=True)
    groups = {name: kinds[name] for name, _ in parameters if _is_group(kinds[name])}
    own_options = {name: _declared(kinds[name], one.default) for name, one in parameters if name not in groups}
    every = dict(own_options)
    for group in (*groups.values(), *more):
        for name, kind, default in options_of(group):
            every.setdefault(name, (kind, default))

    def run(context: Context, **values: Any) -> int | None:
        filled = {name: _filled(group, values) for name, group in groups.items()}
        return command(context.obj, **filled, **{name: values[name] for name in own_options})

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {}  # Typer would evaluate them, and reads the signature too
    keyword = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    made = [keyword(name, annotation=kind, default=default) for name, (kind, default) in every.items()]
    signature = inspect.Signature([keyword("context", annotation=Context), *map(_for_typer, made)])
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


def options_of(group: type[Options]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the annotation and the default of each option of a group, and of the groups within."""
    for name, kind in _hints(group).items():
        if _is_group(kind):
            yield from options_of(kind)
        else:
            yield name, kind, getattr(group, name)


def kind_of(annotation: Any) -> Any:
    """Return the type of an option's values, without the None of one that is not in use."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    kinds = get_args(annotation)
    return next(kind for kind in kinds if kind is not NoneType) if NoneType in kinds else annotation


def choices_of(group: type[Options], name: str) -> tuple[str, ...]:
    """Return the choices of a group's option."""
    return get_args(kind_of(_hints(group)[name]))


def dashed(name: str) -> str:
    """Return the name of an option after `--`."""
    return name.rstrip("_").replace("_", "-")


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Options)


def _filled(group: type[_Group], values: Mapping[str, Any]) -> _Group:
    kinds = _hints(group).items()
    return group(**{name: _filled(kind, values) if _is_group(kind) else values[name] for name, kind in kinds})


def _for_typer(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter for Typer, which copies defaults once and `Annotated` twice."""
    kind, declared = get_args(parameter.annotation)[:2]
    default = ... if parameter.default is parameter.empty else parameter.default
    is_completed = "_ATTN_COMPLETE" in os.environ
    more: dict[str, Any] = {"metavar": declared.metavar, "help": declared.help}
    if is_completed and declared.metavar:
        from attncli.cli.completion import completer

        more["autocompletion"] = completer(declared.metavar)
    if declared.is_argument:
        return parameter.replace(annotation=kind, default=typer.Argument(default, show_default=False, **more))
    flags = [declared.flags or f"--{dashed(parameter.name)}", *([declared.letter] if declared.letter else [])]
    # A shell is offered rare options too.
    more |= {"rich_help_panel": declared.panel, "hidden": declared.rare and not is_completed}
    more |= {"min": declared.low, "max": declared.high}
    if declared.env:
        more["envvar"] = f"ATTN_{parameter.name.upper()}"
    if declared.eager is not None:
        more |= {"callback": declared.eager, "is_eager": True}
    return parameter.replace(annotation=kind, default=typer.Option(default, *flags, **more))
