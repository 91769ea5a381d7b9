"""The shapes that the package's functions state, checked at every call that the tests make of them in this process.

The package imports jaxtyping for type checkers alone, for it costs a fifth of a run of the program. So its annotations
are strings, and what they name is missing where they stand: here it is built in.
"""

import ast
import builtins
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache, partial
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
    vars(builtins).update(Bool=jaxtyping.Bool, Float=jaxtyping.Float, Int=jaxtyping.Int, np=np)
    every = jaxtyping.jaxtyped
    is_checked: dict[Any, bool] = {}  # by code: an inner function is made again at every call of the outer one

    def jaxtyped(function: Any = None, **how: Any) -> Any:
        if function is None:
            return partial(jaxtyped, **how)
        code = getattr(function, "__code__", function)
        if code not in is_checked:
            name = f"{function.__module__}.{function.__qualname__}"
            is_checked[code] = name not in UNCHECKED and _states_shapes(function)
        return every(function, **how) if is_checked[code] else function

    # What states none is left alone: jaxtyping would bind the arguments of each call to their names.
    jaxtyping.jaxtyped = jaxtyped  # type: ignore[assignment]
    jaxtyping.install_import_hook("attncli", "shapes.checked")


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
