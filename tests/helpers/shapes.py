"""The shapes that the package's functions state, checked whatever shapes the tests in this process give them.

The package imports jaxtyping for type checkers alone, for it costs a fifth of a run of the program. So its annotations
are strings, and what they name is missing where they stand: here it is built in.
"""

import ast
import builtins
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache, partial, update_wrapper
from types import FunctionType
from typing import Any, get_args

import jaxtyping
import numpy as np
from beartype import beartype

_STATED = re.compile(r"\b(?:Bool|Float|Int)\[")
UNCHECKED = {
    # Beartype looks at an item of its list by chance, which Hypothesis forbids to its strategies.
    "attncli.attention.row_blocks",
    # It checks its shapes itself, which come from files.
    "attncli.trace.layer.LayerTrace",
}


def execute_shapes() -> None:
    """Check the shapes of every module of the package that is imported from now on."""
    vars(builtins).update(Bool=jaxtyping.Bool, Float=jaxtyping.Float, Int=jaxtyping.Int, np=np, torch=_Torch())
    every = jaxtyping.jaxtyped
    known: dict[Any, dict[Any, set[Any]] | None] = {}  # by code: an inner function is made again at every outer call

    def jaxtyped(function: Any = None, **how: Any) -> Any:
        if function is None:
            return partial(jaxtyped, **how)
        code = getattr(function, "__code__", function)
        if code not in known:
            name = f"{function.__module__}.{function.__qualname__}"
            known[code] = {} if name not in UNCHECKED and _states_shapes(function) else None
        held = known[code]
        # What states none is left alone: jaxtyping would bind the arguments of each call to their names.
        if held is None:
            return function
        if isinstance(function, type):
            function.__init__ = _checked_once(function.__init__, held, partial(every, **how))
            return function
        return _checked_once(function, held, partial(every, **how))

    jaxtyping.jaxtyped = jaxtyped  # type: ignore[assignment]
    jaxtyping.install_import_hook("attncli", "shapes.checked")
    # What pytest imported before, for the package brings a plugin of it.
    for name in [name for name in sys.modules if name.partition(".")[0] == "attncli"]:
        del sys.modules[name]


class _Torch:
    """torch for modules that name it for type checkers alone, imported when a shape of a tensor is stated there."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)


def _checked_once(function: Any, held: dict[Any, set[Any]], check: Callable[..., Any]) -> Any:
    """Check a function wherever shapes come that have not come before, from which nothing else could follow.

    Args:
        function: what states shapes.
        held: the shapes of its arguments, and of the results that they had.
        check: makes a function that is checked at every call.
    """

    stated = {name for name, hint in function.__annotations__.items() if _is_shape(str(hint), function)}
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    by_name = code.co_argcount  # from this place on
    places = [(place if place < by_name else sys.maxsize, name) for place, name in enumerate(names) if name in stated]
    results: list[Any] = []  # to be checked without another call

    def known_or_called(*args: Any, **kwargs: Any) -> Any:
        return results.pop() if results else function(*args, **kwargs)

    # Of the function's module, where its annotations are looked up.
    checkable = FunctionType(known_or_called.__code__, function.__globals__, closure=known_or_called.__closure__)
    checking = cache(lambda: check(update_wrapper(checkable, function)))

    def call(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        given = tuple(_shapes(args[place] if place < len(args) else kwargs.get(name)) for place, name in places)
        if given in held:
            result = function(*args, **kwargs)
            if "return" not in stated or _shapes(result) in held[given]:
                return result
            results.append(result)
        result = checking()(*args, **kwargs)
        held.setdefault(given, set()).add(_shapes(result))
        return result

    return update_wrapper(call, function)


def _shapes(value: Any) -> Any:
    """Return everything in a value on which its check depends, to be compared with others."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_shapes, value))
    if isinstance(value, dict):
        return dict, tuple((name, _shapes(one)) for name, one in value.items())
    return type(value)


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that checks the arrays among its arguments and in its result, and those alone."""
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if _has_array(hint)}
    return beartype(function)


def _states_shapes(function: Any) -> bool:
    """Whether a function, or a dataclass in its fields, states a shape; one that is none is an error."""
    annotated = function.__init__ if isinstance(function, type) else function
    _define_aliases(function.__module__)
    return any(_is_shape(str(hint), annotated) for hint in getattr(annotated, "__annotations__", {}).values())


def _is_shape(annotation: str, function: Callable[..., Any]) -> bool:
    try:
        return _has_array(eval(annotation, function.__globals__))
    except Exception:
        if _STATED.search(annotation):  # of which jaxtyping would say nothing, and check nothing
            raise
        return False  # the name of another type, which type checkers alone import


def _has_array(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_has_array, get_args(hint)))


@cache
def _define_aliases(name: str) -> None:
    """Define the names that a module gives to shapes, which it does for type checkers alone."""
    module = sys.modules[name]
    for block in ast.parse(inspect.getsource(module)).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in block.body:
                if isinstance(line, ast.Assign) and _STATED.search(ast.unparse(line)):
                    exec(ast.unparse(line), vars(module))
