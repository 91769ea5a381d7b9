"""Which way imports go: a module imports what stands before it, whole or in a function, and no circle closes.

The order is that of the rooms: first what everything stands on, last the command line. Every import counts: at the head
of a file, inside a function, under `TYPE_CHECKING`, and by a string that names a module.
"""

import ast
import re
from collections.abc import Iterator
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
    "torch": (*TRANSFORMERS, "recording", "checkpoints.tensors.pickles", "masks.files", "engines.toy_init", "files"),
    "rich": ("render", "formats.python", "formats.pictures", "formats.figures.views", "explore", "cli"),
    "matplotlib": ("formats.figures", "trace.display"),
    "pandas": ("trace.display",),
    "polars": ("trace.display",),
    "ray": ("corpus.on_ray",),
    "textual": ("explore",),
    "typer": ("cli",),
    "click": ("cli",),
}
# Who imports what is heavy as soon as it is imported itself: nothing that a view of the toy layer or a file needs.
HEAVY = ("torch", "transformers", "huggingface_hub", "matplotlib", "ray", "textual")
DRAWING = ("formats.figures.maps", "formats.figures.pictures", "formats.figures.views", "formats.figures.fonts")
LOADING = (
    "checkpoints.tensors.pickles",
    "engines.torch",
    "encoding.auto_tokenizer",
    "recording",
    "analysis.check",
    "explore.app",
    "explore.panes",
    *DRAWING,
)

_A_MODULE = re.compile(r"attncli(?:\.\w+)+(?=(?::\w+)?$)")


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def name_of(path: Path) -> str:
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path.read_text(encoding="utf-8") for path in sorted((PROJECT / "attncli").rglob("*.py"))}


def floor_of(module: str) -> int:
    room = module.removeprefix("attncli").removeprefix(".").partition(".")[0]
    found = [floor for floor, rooms in enumerate(FLOORS) if room in rooms]
    assert found, f"{module} is in no room of the house"
    return found[0]


def within(module: str, *places: str) -> bool:
    own = module.removeprefix("attncli.")
    return any(own == place or own.startswith(place + ".") for place in places)


@cache
def named(source: str) -> list[tuple[str, str]]:
    """Return the module that each import names, and the name that it takes from there."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            assert node.module is not None
            found += [(node.module, alias.name) for alias in node.names]
    return found


def imports(source: str, modules: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the full name of what each import names, and the name that it takes from there."""
    for module, name in named(source):
        inner = f"{module}.{name}"
        yield (inner, "") if inner in modules else (module, name)


@cache
def strings(source: str) -> set[str]:
    """Return what the strings of a module say that may be a module of ours."""
    constants = (node.value for node in ast.walk(parsed(source)) if isinstance(node, ast.Constant))
    found = (_A_MODULE.match(value) for value in constants if isinstance(value, str))
    return {match[0] for match in found if match}


def by_strings(source: str, modules: dict[str, str]) -> set[str]:
    """Return the modules that strings name, which are imported from there when they are needed."""
    return strings(source) & modules.keys()


def arrows(modules: dict[str, str]) -> set[tuple[str, str]]:
    """Return who imports whom, inside the package."""
    return {
        (module, imported)
        for module, source in modules.items()
        for imported, _ in imports(source, modules)
        if imported in modules and imported != module
    }


def upward(modules: dict[str, str]) -> list[str]:
    found = arrows(modules) | {(one, other) for one, source in modules.items() for other in by_strings(source, modules)}
    return [f"{one} -> {other}" for one, other in sorted(found) if floor_of(one) < floor_of(other)]


def circle(modules: dict[str, str]) -> list[str]:
    """Return a circle of modules, inside a package or through several; empty where there is none."""
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for one, other in arrows(modules):
        graph[one].add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def misplaced(modules: dict[str, str]) -> list[str]:
    """Return which modules name a library that is not theirs to name."""
    found = set()
    for module, source in modules.items():
        for imported, _ in imports(source, modules):
            library = imported.partition(".")[0]
            if library in LIBRARIES and not within(module, *LIBRARIES[library]):
                found.add(f"{module} -> {library}")
    return sorted(found)


def private(modules: dict[str, str]) -> list[str]:
    """Return which modules use a `_name` of another one, imported or through the module."""
    found = set()
    for module, source in modules.items():
        tree = parsed(source)
        own_modules: set[str] = set()  # names that stand for modules of ours
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                own_modules |= {one.asname or one.name for one in node.names if f"{node.module}.{one.name}" in modules}
        for imported, name in imports(source, modules):
            if imported in modules and re.match(r"_(?!_)", name):
                found.add(f"{module} -> {imported}.{name}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                is_private = re.match(r"_(?!_)", node.attr) is not None
                if is_private and node.value.id in own_modules:
                    found.add(f"{module} -> {node.value.id}.{node.attr}")
    return sorted(found)


def loaded(modules: dict[str, str]) -> list[str]:
    """Return which modules import a heavy library while they are imported."""

    def run_at_once(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            yield child
            yield from run_at_once(child)

    found = set()
    for module, source in modules.items():
        for node in run_at_once(parsed(source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for imported, _ in imports(ast.unparse(node), modules):
                    if imported.partition(".")[0] in HEAVY:
                        found.add(module)
    return sorted(found)


@pytest.fixture(scope="module", autouse=True)
def _trees_are_let_go() -> Iterator[None]:
    """Leave no trees behind: every later search for garbage would walk them."""
    yield
    parsed.cache_clear()


def test_no_import_goes_upward() -> None:
    assert upward(SOURCES) == []
    assert arrows(SOURCES), "modules import each other, or this test sees nothing"


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle(SOURCES) == []


def test_the_house_has_few_rooms() -> None:
    assert len([room for floor in FLOORS for room in floor if room not in ("", "_version")]) <= 18


def test_libraries_are_named_where_they_belong() -> None:
    assert misplaced(SOURCES) == []


def test_heavy_libraries_are_loaded_by_what_runs_checkpoints_alone() -> None:
    loading = loaded(SOURCES)
    assert loading, "checkpoints need torch, or this test sees nothing"
    assert [module for module in loading if not within(module, *LOADING)] == []


def test_no_module_uses_what_is_private_to_another() -> None:
    assert private(SOURCES) == []


def test_nobody_but_its_command_imports_the_explorer() -> None:
    found = {one for one, other in arrows(SOURCES) if within(other, "explore") and not within(one, "explore")}
    assert found == {"attncli.cli.commands.explore"}
    assert not loaded({name: text for name, text in SOURCES.items() if within(name, "cli")})


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


def test_a_planted_circle_is_found() -> None:
    planted = f"{SOURCES['attncli.masks.expressions']}\ndef planted():\n    from attncli.masks import parser\n"
    assert {"attncli.masks.parser", "attncli.masks.expressions"} <= set(
        circle({**SOURCES, "attncli.masks.expressions": planted})
    )


def test_a_planted_room_library_and_private_name_are_found() -> None:
    with pytest.raises(AssertionError, match="in no room"):
        upward({**SOURCES, "attncli.cellar": "from attncli import errors"})
    planted = "import torch\nfrom attncli.masks.parser import _Parser\nfrom attncli.masks import audit\naudit._cells\n"
    found = {**SOURCES, "attncli.trace.words": planted}
    assert misplaced(found) == ["attncli.trace.words -> torch"]
    assert loaded(found) == sorted({*loaded(SOURCES), "attncli.trace.words"})
    assert private(found) == [
        "attncli.trace.words -> attncli.masks.parser._Parser",
        "attncli.trace.words -> audit._cells",
    ]
