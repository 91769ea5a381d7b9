"""Runs commands of attn, words by tabs, while the shapes that its functions state are checked; prints exit codes."""

import importlib
import os
import pkgutil
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, get_args

import jaxtyping
from beartype import beartype

UNCHECKED = {
    # Beartype looks at an item of its list by chance, which Hypothesis forbids to its strategies.
    "attncli.attention.row_blocks",
    # It checks its shapes itself, which come from files.
    "attncli.trace.layer.LayerTrace",
}


@contextmanager
def executed(package: str) -> Iterator[None]:
    """Check the shapes of every module of a package that is imported in a block.

    The package imports jaxtyping for type checkers alone, as if one were at work here.
    """
    every = jaxtyping.jaxtyped

    def jaxtyped(function: Any = None, **options: Any) -> Any:
        if function is None:
            return partial(jaxtyped, **options)
        annotated = function.__init__ if isinstance(function, type) else function
        hints = getattr(annotated, "__annotations__", {}).values()
        is_checked = f"{function.__module__}.{function.__qualname__}" not in UNCHECKED and any(
            _is_shape(hint, vars(sys.modules[function.__module__])) for hint in hints
        )
        # What states none is left alone: jaxtyping would bind the arguments of each call to their names.
        return every(function, **options) if is_checked else function

    jaxtyping.jaxtyped = jaxtyped  # type: ignore[assignment]
    typing.TYPE_CHECKING = True
    try:
        with jaxtyping.install_import_hook(package, "shapes.checked"):
            yield
    finally:
        typing.TYPE_CHECKING = False


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if _has_array(hint)}
    return beartype(function)


def _is_shape(hint: Any, names: dict[str, Any]) -> bool:
    try:
        return _has_array(eval(hint, names) if isinstance(hint, str) else hint)
    except NameError:  # of a class that is defined below
        assert "[np.ndarray" not in hint, hint
        return False


def _has_array(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_has_array, get_args(hint)))


def import_all(package: str) -> None:
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if not module.name.endswith("__main__"):  # which is the program
            importlib.import_module(module.name)


def main(lines: list[str]) -> None:
    for library in "fsspec matplotlib.figure pandas pyarrow ray torch._dynamo transformers.modeling_utils".split():
        importlib.import_module(library)
    import_all("attncli")  # and what it imports, of which type checkers see more than there is
    for name in [name for name in sys.modules if name.partition(".")[0] == "attncli"]:
        del sys.modules[name]
    with executed("attncli"):
        import_all("attncli")
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
