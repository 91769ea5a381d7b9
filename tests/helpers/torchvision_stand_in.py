"""torchvision where it is not installed: timm imports it, and its vision transformers use nothing of it.

Its wheels need the torch that was built beside them, of which that for CPUs alone is none.
"""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class _Named(type):
    """A class whose attributes are their names."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def _made(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Named(name, (), {})


class _Modules:
    """Finds every module of torchvision, in which there is whatever is looked for."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "torchvision" else None

    def create_module(self, _: ModuleSpec) -> None:
        """As Python does."""

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = _made  # type: ignore[method-assign]


if find_spec("torchvision") is None:
    sys.meta_path.insert(0, _Modules())  # type: ignore[arg-type]
