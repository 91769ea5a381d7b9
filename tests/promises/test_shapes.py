"""The shapes that functions state are executed: everywhere in the package, in every test that runs in this process."""

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
from shapes import UNCHECKED

import attncli

PLANTED = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Bool, Float, Int
    from nowhere import Head
    Hidden = Float[np.ndarray, "T E"]

def of_argument(q: Float[np.ndarray, "H Q D"], k: Float[np.ndarray, "H K D"], head: Head | None = None) -> None: ...
def of_result(q: Float[np.ndarray, "Q D"]) -> Float[np.ndarray, "D Q"]:
    return q
def of_values(q: Float[np.ndarray, "D"]) -> Float[np.ndarray, "D"]:
    return q[q > 0]
def of_alias(hidden: dict[int, Hidden]) -> None: ...
def inner(q: Float[np.ndarray, "Q D"]) -> None:
    def planted(k: Int[np.ndarray, "..."] | None) -> None: ...
    planted(q)
class Planted:
    @property
    def mask(self) -> Bool[np.ndarray, "Q K"]:
        return np.ones((2, 3))
@dataclass(frozen=True)
class Recorded:
    weights: Float[np.ndarray, "H Q K"] | None
def unstated(q: np.ndarray) -> np.ndarray:
    return q
"""


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """Import a module with this source as those of the package are."""
    monkeypatch.syspath_prepend(tmp_path)

    def imported(name: str, source: str) -> Any:
        (tmp_path / f"{name}.py").write_text(source)
        with jaxtyping.install_import_hook(name, "shapes.checked"):
            return importlib.import_module(name)

    return imported


def test_a_planted_wrong_shape_is_found(imported: Callable[[str, str], Any]) -> None:
    planted = imported("wrong_shapes", PLANTED)
    q, k = np.ones((2, 3, 5), np.float32), np.ones((2, 7, 5), np.float32)
    planted.of_argument(q, k)
    planted.of_values(q[0, 0])
    planted.of_alias({0: q[0]})
    planted.Recorded(None)
    planted.unstated(q)
    for wrong in (
        lambda: planted.of_argument(q, k[..., 1:]),
        lambda: planted.of_argument(q, k.astype(int)),
        lambda: planted.of_result(q[0]),
        lambda: planted.of_values(-q[0, 0]),
        lambda: planted.of_alias({0: q}),
        lambda: planted.inner(q[0]),
        lambda: planted.Planted().mask,
        lambda: planted.Recorded(q[0]),
    ):
        with pytest.raises(jaxtyping.TypeCheckError):
            wrong()


def test_every_module_of_the_package_is_imported_so() -> None:
    for module in pkgutil.walk_packages(attncli.__path__, "attncli."):
        if module.name != "attncli.__main__":  # which is the program
            loader = importlib.import_module(module.name).__spec__.loader
            assert type(loader).__module__.startswith("jaxtyping."), module.name


@pytest.mark.parametrize("name", sorted(UNCHECKED))
def test_what_is_left_unchecked_is_still_there(name: str) -> None:
    assert pkgutil.resolve_name(name)
