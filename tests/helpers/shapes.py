"""Runs commands of attn, words by tabs, while the shapes that its functions state are checked; prints exit codes.

The package imports jaxtyping for type checkers alone, for it costs a fifth of a run of the program. So its annotations
are strings, and what they name is missing where they stand: here it is built in.
"""

import ast
import builtins
import importlib
import inspect
import os
import pkgutil
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


def executed(package: str) -> Any:
    """Check the shapes of every module of a package that is imported from now on, or in a `with` block."""
    vars(builtins).update(Bool=jaxtyping.Bool, Float=jaxtyping.Float, Int=jaxtyping.Int, np=np, torch=_Torch())
    every = jaxtyping.jaxtyped

    def jaxtyped(function: Any = None, **options: Any) -> Any:
        if function is None:
            return partial(jaxtyped, **options)
        is_checked = f"{function.__module__}.{function.__qualname__}" not in UNCHECKED and _states_shapes(function)
        # What states none is left alone: jaxtyping would bind the arguments of each call to their names.
        return every(function, **options) if is_checked else function

    jaxtyping.jaxtyped = jaxtyped  # type: ignore[assignment]
    return jaxtyping.install_import_hook(package, "shapes.checked")


class _Torch:
    """torch for modules that name it for type checkers alone, imported when a shape of a tensor is stated there."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)


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


def main(lines: list[str]) -> None:
    executed("attncli")
    for module in pkgutil.walk_packages(importlib.import_module("attncli").__path__, "attncli."):
        if module.name != "attncli.__main__":  # which is the program
            loader = importlib.import_module(module.name).__spec__.loader
            assert type(loader).__module__.startswith("jaxtyping."), module.name
    app = importlib.import_module("attncli.cli.app").app
    codes = []
    standard_output = sys.stdout
    for line in lines:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        try:
            app(line.split("\t"), prog_name="attn")
        except SystemExit as end:
            codes.append(end.code or 0)
    sys.stdout = standard_output
    print(*codes, sep="\n")


if __name__ == "__main__":
    sys.modules["shapes"] = sys.modules["__main__"]  # where the hook looks for `checked`
    main(sys.argv[1:])
