"""How the program starts: what it imports, what it leaves alone, and which way its own imports go."""

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import program
from safetensors.numpy import save_file

import attncli

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "attncli"
HEAVY = {"torch", "transformers"}
COLD = {name: value for name, value in os.environ.items() if name not in {"PYTHONSTARTUP", "COVERAGE_PROCESS_START"}}


def modules_after(script: str, *arguments: str | Path) -> set[str]:
    """Return the modules that a fresh interpreter has imported once it has run the script."""
    script += "\nimport sys\nprint('IMPORTED', *sys.modules)"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, env=COLD, cwd=PROJECT)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.splitlines()[-1].split()[1:])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists the threads of a process")
@pytest.mark.parametrize(("variable", "threads"), [(None, 1), ("OPENBLAS_NUM_THREADS", 2), ("OMP_NUM_THREADS", 2)])
def test_numpy_multiplies_on_one_core_unless_it_is_told_otherwise(variable: str | None, threads: int) -> None:
    environment = {name: value for name, value in COLD.items() if not name.endswith("_NUM_THREADS")}
    if variable is not None:
        environment[variable] = str(threads)
    script = "import attncli.__main__, numpy, os; print(len(os.listdir('/proc/self/task')))"
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, env=environment, cwd=PROJECT)
    assert ran.stdout.split() == [str(min(threads, len(os.sched_getaffinity(0))))]


def imported_by(script: str, *arguments: str | Path) -> set[str]:
    """Return the top-level packages of these modules."""
    return {name.partition(".")[0] for name in modules_after(script, *arguments)}


PROGRAM = """
import sys
from typer.testing import CliRunner
from attncli.__main__ import main
from attncli.cli.app import app
result = CliRunner().invoke(app, sys.argv[1:])
assert result.exit_code == 0, result.output
assert result.stdout
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["inspect", "--help"],
        ["--version"],
        ["inspect", "time flies like an arrow"],
        ["heads", "time flies like an arrow", "--grid", "sink"],
        ["tokens", "time flies like an arrow"],
        ["inspect", "time flies", "--format", "json", "--show", "q,k,v,output,metrics", "--mask", "window(2)"],
    ],
    ids=" ".join,
)
def test_neither_torch_nor_transformers_is_imported(arguments: list[str]) -> None:
    imported = imported_by(PROGRAM, *arguments)
    assert "typer" in imported
    assert not imported & HEAVY


def test_a_saved_trace_and_a_dump_are_shown_without_torch(tmp_path: Path, attn: Callable[..., Any]) -> None:
    saved, dump = tmp_path / "trace.safetensors", tmp_path / "dump.safetensors"
    assert attn("inspect", "time flies", "--save", saved).code == 0
    save_file({"q": np.ones((2, 3), np.float32), "k": np.ones((2, 3), np.float32)}, dump)
    for path in (saved, dump):
        assert not imported_by(PROGRAM, "inspect", "--from", path) & HEAVY


# The program as it is started: the runner of the tests imports more than a run does.
STARTED = """
from attncli.__main__ import main
try:
    main()
except SystemExit as ended:
    assert not ended.code
"""
# What no view of a short sentence or a saved trace needs, and costs a hundredth of a run or more.
SPARED = {
    *("logging", "pydantic", "tokenizers"),
    *(
        "attncli.cli.commands.heads",
        "attncli.analysis.derive.layer",
        "attncli.analysis.derive.words",
        "attncli.masks.files",
    ),
    *("attncli.cli.resume", "attncli.sources.native", "attncli.sources.pretrained"),
}


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (["inspect", "time flies"], {"json", "safetensors", "attncli.masks.conventions", "attncli.trace.store"}),
        (["inspect", "--from", "TRACE"], {"numpy.random", "attncli.sources.toy"}),
        (["tokens", "time flies"], {"json", "numpy", "attncli.masks", "attncli.sources.toy", "attncli.trace.trace"}),
        (
            ["mask", "show", "causal & window(2)", "--size", "4"],
            {
                "json",
                "numpy.random",
                "attncli.trace.layer",
                "attncli.sources",
                "attncli.trace.trace",
                "attncli.trace.view",
            },
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_run_imports_nothing_that_it_does_not_need(
    arguments: list[str], unused: set[str], tmp_path: Path, attn: Callable[..., Any]
) -> None:
    unused = unused | SPARED
    assert all(map(find_spec, unused)), "a module that is called otherwise now is never imported"
    saved = tmp_path / "trace.safetensors"
    assert attn("inspect", "time flies", "--save", saved).code == 0
    imported = modules_after(STARTED, *(str(saved) if argument == "TRACE" else argument for argument in arguments))
    assert {"typer", "rich.console", f"attncli.cli.commands.{arguments[0]}"} <= imported
    assert imported & unused == set()


def test_help_and_version_need_no_arrays() -> None:
    pages = ["--help"], ["inspect", "--help"], ["heads", "--help"], ["tokens", "--help"]
    pages += ["help", "masks"], ["help", "formats"]
    for arguments in (*pages, ["help", "--man"], ["--version"]):
        assert not {"numpy", "pydantic"} & imported_by(PROGRAM, *arguments)


def test_importing_the_package_imports_nothing_heavy() -> None:
    imported = imported_by("import attncli\nassert dir(attncli)\nassert attncli.__version__")
    assert "attncli" in imported
    assert not imported & {*HEAVY, "numpy", "typer", "click", "rich", "pydantic", "safetensors", "tokenizers"}


def test_torchs_random_numbers_are_what_imports_torch() -> None:
    imported = imported_by(PROGRAM, "inspect", "time flies", "--rng", "torch")
    assert "torch" in imported
    assert "transformers" not in imported


def test_the_public_names_are_sorted_complete_and_importable() -> None:
    assert attncli.__all__ == sorted(attncli.__all__)
    promised = {"Trace", "__version__", "from_multihead_attention", "inspect", "load"}
    assert promised <= set(attncli.__all__)
    assert set(attncli.__all__) == {"__version__", *attncli._HOMES}
    assert dir(attncli) == attncli.__all__
    for name in attncli.__all__:
        assert getattr(attncli, name) is not None
    everything: dict[str, Any] = {}
    exec("from attncli import *", everything)  # what a notebook does
    assert set(attncli.__all__) <= set(everything)
    with pytest.raises(AttributeError, match="nonsense"):
        attncli.nonsense  # noqa: B018


def test_the_version_is_the_one_that_is_packaged(attn: Callable[..., Any]) -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    module, _, name = project["tool"]["setuptools"]["dynamic"]["version"]["attr"].rpartition(".")
    source = PROJECT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    (packaged,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    assert attncli.__version__ == packaged
    assert attn("--version").out == f"attn {packaged}\n"


def test_a_bare_program_prints_its_help_and_exits_2() -> None:
    ran = program()
    assert ran.returncode == 2
    assert "Usage: attn" in ran.stdout + ran.stderr
    assert "inspect" in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_runner_and_the_program_say_the_same(attn: Callable[..., Any]) -> None:
    for arguments in (["frobnicate"], ["inspect", "--format", "xml", "time"], ["inspect", "--layer", "9", "time"]):
        ran, outside = attn(*arguments), program(*arguments)
        assert (ran.code, ran.out, ran.err) == (outside.returncode, outside.stdout, outside.stderr)


# --- which way imports go ----------------------------------------------------------------------------------


def name_of(path: Path) -> str:
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(module: str, *, when_loaded: bool = False) -> set[str]:
    """Return the full names of the modules that a module imports, anywhere in it or only while it is loaded."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in _loaded(tree) if when_loaded else ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            assert node.module is not None
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(inner & MODULES.keys() or {node.module})
    return found


def _loaded(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when the module is imported: outside functions and `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _loaded(child)


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def broken(importers: tuple[str, ...], forbidden: tuple[str, ...], *, when_loaded: bool = False) -> list[str]:
    """Return `importer -> imported` for every import that a rule forbids."""
    held = [module for module in MODULES if within(module, *importers)]
    assert held, f"no module is called {importers}"
    return [
        f"{module} -> {imported}"
        for module in held
        for imported in sorted(imports(module, when_loaded=when_loaded))
        if within(imported, *forbidden)
    ]


def test_what_draws_and_what_writes_never_imports_a_source() -> None:
    assert broken(("attncli.render", "attncli.formats"), ("attncli.sources",)) == []


def test_the_kernel_masks_and_metrics_never_import_a_terminal_library() -> None:
    kernel = ("attncli.attention", "attncli.masks", "attncli.analysis.metrics")
    assert broken(kernel, ("rich", "typer", "click")) == []
    script = "import attncli.attention, attncli.masks.expressions, attncli.masks.files, attncli.analysis.metrics"
    assert not imported_by(script) & {"rich", "typer", "click"}


def test_nothing_imports_the_command_line_but_the_entry_point() -> None:
    assert broken(("attncli",), ("attncli.cli.app",)) == ["attncli.__main__ -> attncli.cli.app"]
    importers = [line.partition(" ")[0] for line in broken(("attncli",), ("attncli.cli.commands",))]
    assert set(importers) <= {"attncli.cli.app"}


def test_only_the_pretrained_source_loads_torch_with_itself() -> None:
    heavy = ("torch", "transformers", "huggingface_hub")
    loading = broken(("attncli",), heavy, when_loaded=True)
    assert [line for line in loading if not line.startswith("attncli.sources.pretrained.")] == []
    assert loading, "the pretrained source does, or this test sees nothing"


def test_what_is_below_never_imports_what_is_above() -> None:
    above = (
        "attncli.cli.app",
        "attncli.cli.commands",
        "attncli.cli.request",
        "attncli.cli.options",
        "attncli.cli.options",
    )
    library = tuple(module for module in MODULES if not within(module, "attncli.__main__", *above))
    assert broken(tuple(name for name in library if name != "attncli"), above) == []
    assert (
        broken(("attncli.trace.tokens", "attncli.errors"), ("attncli.trace.trace", "attncli.masks", "attncli.sources"))
        == []
    )
    assert (
        broken(("attncli.attention", "attncli.masks"), ("attncli.trace.trace", "attncli.sources", "attncli.trace.view"))
        == []
    )
    assert broken(("attncli.sources",), ("attncli.render", "attncli.formats", "attncli.trace.view")) == []


def test_no_two_modules_need_each_other_to_load() -> None:
    graph = {module: imports(module, when_loaded=True) & MODULES.keys() for module in MODULES}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)
