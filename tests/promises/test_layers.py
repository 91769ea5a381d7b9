"""Which way imports go: a module imports what stands before it, whole or in a function, and no circle closes.

The order is that of the rooms: first what everything stands on, last the command line. Every import counts: at the head
of a file, inside a function, under `TYPE_CHECKING`, and by a string that names a module. Which modules load a heavy
library while they are imported, ruff says (TID253 in pyproject.toml).
"""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

# Each imports itself and those before it; the rooms of one floor may import each other, as long as no circle closes.
FLOORS = (
    ("_version", "errors", "signals", "text", "files"),
    ("attention",),
    ("masks",),
    ("trace",),
    ("checkpoints",),
    ("encoding",),
    ("recording",),
    ("engines",),
    ("analysis",),
    ("render",),
    ("formats",),
    ("corpus", "explore"),
    ("cli",),
    ("", "__main__"),  # the Python API, which is loaded name by name, and the entry point
)
# Who may name a library, wherever in the file.
TRANSFORMERS = (
    "engines.torch",
    "encoding.auto_tokenizer",
    "checkpoints.hub",
    "analysis.check",
    "recording.readers.transformers",
)
LIBRARIES = {
    "transformers": TRANSFORMERS,
    "torch": (*TRANSFORMERS, "recording", "checkpoints.tensors.pickles", "masks.files", "engines.toy", "files"),
    "rich": ("render", "formats.python", "formats.pictures", "explore", "cli"),
    "matplotlib": ("formats.figures", "trace.display"),
    "pandas": ("formats.python", "trace.display"),
    "ray": ("corpus.on_ray",),
    "textual": ("explore",),
    "typer": ("cli",),
    "click": ("cli",),
}
_A_MODULE = re.compile(r"attncli(?:\.\w+)+(?=(?::\w+)?$)")


def name_of(path: Path) -> str:
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path.read_text(encoding="utf-8") for path in sorted((PROJECT / "attncli").rglob("*.py"))}
Imported = list[tuple[str, str]]  # modules, and the names that are taken from them


def floor_of(module: str) -> int:
    room = module.removeprefix("attncli").removeprefix(".").partition(".")[0]
    found = [floor for floor, rooms in enumerate(FLOORS) if room in rooms]
    assert found, f"{module} is in no room of the house"
    return found[0]


def within(module: str, *places: str) -> bool:
    return f"{module}.".removeprefix("attncli.").startswith(tuple(f"{place}." for place in places))


def named_by(node: ast.AST) -> Imported:
    if isinstance(node, ast.Import):
        return [(alias.name, "") for alias in node.names]
    return [(str(node.module), alias.name) for alias in node.names] if isinstance(node, ast.ImportFrom) else []


@cache
def facts_of(source: str) -> tuple[Imported, set[str], set[tuple[str, str]]]:
    """Return all imports, modules that strings name, and attributes `name._private`."""
    nodes = list(ast.walk(ast.parse(source)))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    attributes = {
        (node.value.id, node.attr) for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and re.match("_(?!_)", node.attr)
    }  # fmt: skip
    strings = {match[0] for match in map(_A_MODULE.match, texts) if match}
    return [one for node in nodes for one in named_by(node)], strings, attributes


def imports(source: str, modules: dict[str, str]) -> Imported:
    """Return the full name of what each import names, and the name that it takes from there."""
    named = facts_of(source)[0]
    return [(f"{one}.{name}", "") if f"{one}.{name}" in modules else (one, name) for one, name in named]


def arrows(modules: dict[str, str]) -> set[tuple[str, str]]:
    """Return who imports whom, inside the package."""
    return {
        (module, imported)
        for module, source in modules.items()
        for imported, _ in imports(source, modules)
        if imported in modules and imported != module
    }


def upward(modules: dict[str, str]) -> list[str]:
    strings = {(one, other) for one, source in modules.items() for other in facts_of(source)[1] & modules.keys()}
    return [f"{a} -> {b}" for a, b in sorted(arrows(modules) | strings) if floor_of(a) < floor_of(b)]


def circle(modules: dict[str, str]) -> list[str]:
    """Return a circle of modules, inside a package or through several; empty where there is none."""
    graph = TopologicalSorter[str]()
    for one, other in arrows(modules):
        graph.add(one, other)
    try:
        graph.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def misplaced(modules: dict[str, str]) -> list[str]:
    """Return which modules name a library that is not theirs to name."""
    named = {(module, name.partition(".")[0]) for module, source in modules.items() for name, _ in facts_of(source)[0]}
    wrong = [(one, name) for one, name in named if name in LIBRARIES and not within(one, *LIBRARIES[name])]
    return sorted(f"{one} -> {name}" for one, name in wrong)


def private(modules: dict[str, str]) -> list[str]:
    """Return which modules use a `_name` of another one, imported or through the module."""
    found = set()
    for module, source in modules.items():
        named, _, attributes = facts_of(source)
        ours = {name for one, name in named if f"{one}.{name}" in modules}
        found |= {f"{module} -> {one}.{name}" for one, name in attributes if one in ours}
        found |= {f"{module} -> {one}.{name}" for one, name in named if one in modules and re.match("_(?!_)", name)}
    return sorted(found)


def test_no_import_goes_upward_and_no_circle_closes() -> None:
    assert upward(SOURCES) == []
    assert circle(SOURCES) == []
    assert arrows(SOURCES), "modules import each other, or this test sees nothing"


def test_the_house_has_few_rooms() -> None:
    assert len([room for floor in FLOORS for room in floor if room not in ("", "_version")]) <= 18


def test_libraries_are_named_where_they_belong() -> None:
    assert misplaced(SOURCES) == []


def test_no_module_uses_what_is_private_to_another() -> None:
    assert private(SOURCES) == []


def test_nobody_but_its_command_imports_the_explorer() -> None:
    found = {one for one, other in arrows(SOURCES) if within(other, "explore") and not within(one, "explore")}
    assert found == {"attncli.cli.commands.explore"}


@pytest.mark.parametrize(
    "line",
    [
        "import attncli.trace.trace",
        "def planted():\n    from attncli.analysis.why import why",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from attncli.trace.trace import Trace",
        'PLANTED = "attncli.formats.json:write_json"',
    ],
)
def test_a_planted_upward_import_is_found(line: str) -> None:
    (found,) = upward({**SOURCES, "attncli.masks.parser": f"{SOURCES['attncli.masks.parser']}\n{line}\n"})
    assert found.startswith("attncli.masks.parser -> attncli.")


def test_a_planted_circle_room_library_and_private_name_are_found() -> None:
    source = f"{SOURCES['attncli.masks.expressions']}\ndef planted():\n    from attncli.masks import parser\n"
    assert "attncli.masks.parser" in circle({**SOURCES, "attncli.masks.expressions": source})
    with pytest.raises(AssertionError, match="in no room"):
        upward({**SOURCES, "attncli.cellar": "from attncli import errors"})
    planted = "import torch\nfrom attncli.masks.parser import _Parser\nfrom attncli.masks import audit\naudit._cells\n"
    found = {**SOURCES, "attncli.trace.tokenization": planted}
    assert misplaced(found) == ["attncli.trace.tokenization -> torch"]
    assert private(found) == [
        "attncli.trace.tokenization -> attncli.masks.parser._Parser",
        "attncli.trace.tokenization -> audit._cells",
    ]
