"""Signatures of the Python functions, whose `**options` editors, `help` and notebooks list with types and defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from inspect import Parameter, signature
from typing import Any, Literal, TypeVar

from attncli.checkpoints.options import OptionValues

Choice = str | int | Iterable[int] | None
"""Choice of layers or heads: an index, several, a text such as `2-4`, or `all`; None is all of them."""

Kind = Literal["self", "encoder", "decoder", "cross"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_explicit_signature(*sources: type[OptionValues] | Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Return a decorator that lists the options behind `**options` in the signature of a function."""
    options = {option.name: option for source in sources for option in _options_of(source)}

    def decorated(function: _Function) -> _Function:
        written = signature(function)
        named = [option for option in written.parameters.values() if option.kind is not Parameter.VAR_KEYWORD]
        names = {option.name for option in named}
        parameters = [*named, *(option for name, option in options.items() if name not in names)]
        function.__signature__ = written.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return decorated


def _options_of(source: type[OptionValues] | Callable[..., Any]) -> Iterator[Parameter]:
    if isinstance(source, type) and issubclass(source, OptionValues):
        for name, kind in source.types().items():
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=getattr(source, name), annotation=kind)
    else:
        options = signature(source).parameters.values()
        yield from (option for option in options if option.kind is Parameter.KEYWORD_ONLY)
