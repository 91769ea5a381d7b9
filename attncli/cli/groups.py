"""Groups of options: dataclasses whose fields carry what Typer says of an option, which a command takes whole."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_type_hints

import typer

from attncli.cli.environment import Environment


@dataclass(frozen=True)
class Options:
    """Options that belong together.

    A field is an option, `Annotated[type, typer.Option(...)]`, or a group within this one. An option that has its
    default, None or False, was not given.
    """

    def said(self) -> Iterator[tuple[str, Any]]:
        """Yield the options that were given, by the name of their field; those of the groups within with theirs."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Options):
                yield from value.said()
            elif value != field.default:
                yield field.name, value


_Group = TypeVar("_Group", bound=Options)


def takes(command: Callable[..., None], *beside: type[Options]) -> Callable[..., None]:
    """Return a command as Typer takes it: with a parameter for every option of its groups.

    A parameter of the command itself that is called as an option of a group stands in its place, to say other things
    of it; the group has its value too.

    Args:
        command: a function of groups, of options of its own, of a `typer.Context`, and of the `Environment`.
        beside: groups of options that are read before the command is called, which does not take them.
    """
    kinds = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in kinds.items() if _is_group(kind)}
    signature = inspect.signature(command)
    parameters = {
        name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kinds[name])
        for name, parameter in signature.parameters.items()
        if name not in groups and kinds[name] is not Environment
    }
    own = list(parameters)
    parameters.setdefault(
        "context", inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    )
    for group in (*groups.values(), *beside):
        for parameter in _parameters(group):
            parameters.setdefault(parameter.name, parameter)

    def run(**values: Any) -> None:
        filled: dict[str, Any] = {name: _filled(group, values) for name, group in groups.items()}
        if "environment" in signature.parameters:
            filled["environment"] = values["context"].obj
        command(**filled, **{name: values[name] for name in own})

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    run.__signature__ = signature.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
    return run


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Options)


def _parameters(group: type[Options]) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each option of a group, and of the groups within."""
    kinds = get_type_hints(group, include_extras=True)
    for field in fields(group):
        kind = kinds[field.name]
        if _is_group(kind):
            yield from _parameters(kind)
        else:
            yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=kind)


def _filled(group: type[_Group], values: Mapping[str, Any]) -> _Group:
    kinds = get_type_hints(group, include_extras=True)
    return group(**{name: _filled(kind, values) if _is_group(kind) else values[name] for name, kind in kinds.items()})
