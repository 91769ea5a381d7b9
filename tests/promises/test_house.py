"""Budgets, which only fall: lines of each package, docstrings to be read twice, names of what happened to things."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

# Lines of Python. A change that makes a package smaller lowers its number; none is raised.
PACKAGES = {
    "analysis": 9008,
    "checkpoints": 2429,
    "cli": 4433,
    "corpus": 1252,
    "encoding": 1649,
    "engines": 5670,
    "explore": 1154,
    "formats": 2287,
    "masks": 2401,
    "recording": 4394,
    "render": 5891,
    "trace": 2308,
}
TOP = 875  # the modules that stand in no package
TESTS = 34115
PAGE = 1142  # lines of HTML, CSS and JavaScript
RIDDLES = 0

_RIDDLE = re.compile(
    r"^(What|Which|Where|From|Of)\b|\bof which\b|\bin whose\b|\bso many\b"
    r"|\b(nobody|whoever|whatever|beside|stands|hung)\b|\bgoes on\b|\blooks at\b"
    r"|\bat the most\b|\bis none\b|\b(says|told|said)\b"
)


def lines(folder: Path, pattern: str = "*.py") -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob(pattern))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_keeps_its_budget(package: str) -> None:
    assert lines(PROJECT / "attncli" / package) <= PACKAGES[package]


def test_every_package_has_a_budget() -> None:
    folders = {path.parent.name for path in (PROJECT / "attncli").glob("*/__init__.py")}
    assert folders == set(PACKAGES)


def test_the_top_the_tests_and_the_page_keep_their_budgets() -> None:
    top = sum(path.read_bytes().count(b"\n") for path in (PROJECT / "attncli").glob("*.py"))
    page = PROJECT / "attncli" / "formats" / "page"
    assert top <= TOP
    assert lines(PROJECT / "tests") <= TESTS
    assert sum(lines(page, f"*.{ending}") for ending in ("html", "css", "js")) <= PAGE


def riddles() -> list[str]:
    found = []
    for path in sorted((PROJECT / "attncli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                first = (ast.get_docstring(node) or "").split("\n\n")[0]
                if _RIDDLE.search(first):
                    found.append(f"{path.relative_to(PROJECT)}:{getattr(node, 'name', 'module')}: {first}")
    return found


def test_first_lines_of_docstrings_are_read_once() -> None:
    assert len(riddles()) <= RIDDLES, "\n".join(riddles())


# --- names -------------------------------------------------------------------------------------------------

SOURCES = {
    str(path.relative_to(PROJECT)): path.read_text("utf-8")
    for folder in ("attncli", "benchmarks", "demo", "tests")
    for path in (PROJECT / folder).rglob("*.py")
}
# What happened to a thing is no name of it.
PARTICIPLES = set("given said told wish kept known beside usual going met asked".split())
MOST = 20


def shared_names(sources: dict[str, str]) -> list[str]:
    """Return the class names that are defined more than once."""
    nodes = (node for source in sources.values() for node in ast.walk(ast.parse(source)))
    return [name for name, n in Counter(one.name for one in nodes if isinstance(one, ast.ClassDef)).items() if n > 1]


def participles(sources: dict[str, str]) -> Iterator[str]:
    """Yield where a variable, a parameter or an attribute is called by one of these words."""
    for module, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            name = ""
            if isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.id if isinstance(node, ast.Name) else node.attr
            if name.strip("_") in PARTICIPLES:
                yield f"{module}:{node.lineno} {name}"  # type: ignore[attr-defined]


def test_no_two_classes_have_one_name() -> None:
    # What a test file defines for itself is a program of a user's, such as a model, and goes by a user's names.
    shared = {name: text for name, text in SOURCES.items() if not name.startswith("tests") or "helpers" in name}
    assert len(shared) > 200
    assert shared_names(shared) == []


def test_things_are_called_what_they_are() -> None:
    found = list(participles(SOURCES))
    assert len(found) <= MOST, found


def test_a_planted_name_is_found() -> None:
    planted = {"a.py": "class Mask: ...", "b.py": "def made():\n    class Mask: ...\n", "c.py": "class Other: ..."}
    assert shared_names(planted) == ["Mask"]
    planted = {"a.py": "def of(said):\n    self.kept, _known = said\n    given = 1\nknown()\nunknown = 2\n"}
    assert [each.split()[1] for each in participles(planted)] == ["said", "given", "kept", "_known"]
