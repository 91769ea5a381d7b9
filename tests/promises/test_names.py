"""Names: a class has one that no other class has, and what is named is called what it is."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
SOURCES = {
    str(path.relative_to(PROJECT)): path.read_text("utf-8")
    for folder in ("attncli", "benchmarks", "demo", "tests")
    for path in (PROJECT / folder).rglob("*.py")
}
# What happened to a thing is no name of it.
PARTICIPLES = set("given said told wish kept known beside usual going met asked".split())
MOST = 20


def shared_names(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return the class names that several modules define, with these modules."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


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
    assert len(shared) > 300
    assert shared_names(shared) == {}


def test_things_are_called_what_they_are() -> None:
    found = list(participles(SOURCES))
    assert len(found) <= MOST, found


def test_a_planted_name_is_found() -> None:
    planted = {"a.py": "class Mask: ...", "b.py": "def made():\n    class Mask: ...\n", "c.py": "class Other: ..."}
    assert shared_names(planted) == {"Mask": ["a.py", "b.py"]}
    planted = {"a.py": "def of(said):\n    self.kept, _known = said\n    given = 1\nknown()\nunknown = 2\n"}
    assert [each.split()[1] for each in participles(planted)] == ["said", "given", "kept", "_known"]
