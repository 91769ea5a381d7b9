"""Names: a class has one that no other class of the project has."""

import ast
from collections import defaultdict
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def shared_names(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return the class names that several modules define, with these modules."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def test_no_two_classes_have_one_name() -> None:
    sources = {str(path.relative_to(PROJECT)): path.read_text("utf-8") for path in (PROJECT / "attncli").rglob("*.py")}
    assert len(sources) > 100
    assert shared_names(sources) == {}


def test_a_planted_name_is_found() -> None:
    planted = {"a.py": "class Mask: ...", "b.py": "def made():\n    class Mask: ...\n", "c.py": "class Other: ..."}
    assert shared_names(planted) == {"Mask": ["a.py", "b.py"]}
