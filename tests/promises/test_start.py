"""How the program starts: what it imports, and what it leaves alone."""

import os
import pkgutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imported import COLD, HEAVY, PROGRAM, PROJECT, STARTED, imported_by, modules_after
from safetensors.numpy import save_file

import attncli


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


@pytest.mark.parametrize(
    ("line", "imported"),
    [
        ("heads|time flies like an arrow|--metrics|sink", set()),
        ("inspect|time flies|--format|json|--show|q,k,v,output,metrics|--mask|window(2)", set()),
        ("inspect|--from|DUMP", set()),
        ("inspect|time flies|--rng|torch", {"torch"}),
    ],
)
def test_neither_torch_nor_transformers_is_imported_unless_it_is_needed(
    line: str, imported: set[str], tmp_path: Path
) -> None:
    save_file({name: np.ones((2, 3), np.float32) for name in "qk"}, tmp_path / "dump.safetensors")
    arguments = line.replace("DUMP", str(tmp_path / "dump.safetensors")).split("|")
    assert imported_by(PROGRAM, *arguments) & HEAVY == imported


# What no view of a short sentence or a saved trace needs, and costs a hundredth of a run or more.
SPARED = HEAVY | {
    "asyncio", "textual", "attncli.explore", "numpy.ma",
    "logging", "pydantic", "tokenizers", "attncli.cli.commands.heads",
    "attncli.analysis.derive",
    "attncli.engines.numpy", "attncli.engines.torch",
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "unused"),
    [
        (
            "inspect|time flies",
            "json safetensors attncli.masks.files attncli.masks.conventions attncli.trace.store attncli.trace.layout",
        ),
        ("inspect|--from|TRACE", "numpy.random attncli.engines.toy"),
        ("explore|--help", "json numpy attncli.masks attncli.engines attncli.trace.tokens"),
        ("tokens|time flies", "json numpy attncli.masks attncli.engines.toy attncli.trace.trace"),
        ("mask|show|causal & window(2)|--size|4", "json numpy.random attncli.engines attncli.trace.layer"),
        ("mask|check|causal|--size|4", "numpy.random attncli.engines attncli.trace.trace"),
    ],
)
def test_a_run_imports_nothing_that_it_does_not_need(
    line: str, unused: str, tmp_path: Path, attn: Callable[..., Any]
) -> None:
    spared = SPARED | {*unused.split()}
    assert all(map(find_spec, spared)), "a module that is called otherwise now is never imported"
    assert attn("inspect", "time flies", "--save", tmp_path / "trace.safetensors").code == 0
    arguments = line.replace("TRACE", str(tmp_path / "trace.safetensors")).split("|")
    imported = modules_after(STARTED, *arguments)
    assert {"typer", "rich.console", f"attncli.cli.commands.{arguments[0]}"} <= imported
    assert imported & spared == set()


def test_a_file_of_text_is_read_without_what_reads_other_files(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("time flies\n", encoding="utf-8")
    (tmp_path / "table.csv").write_text("text\ntime flies\n", encoding="utf-8")
    readers = {"csv", "gzip", "pyarrow", "fsspec"}
    assert not readers & modules_after(STARTED, "tokens", "--file", tmp_path / "text.txt")
    imported = modules_after(STARTED, "tokens", "--file", tmp_path / "table.csv")
    assert "csv" in imported
    assert not {"pyarrow", "fsspec"} & imported


# The numbers only fall.
@pytest.mark.parametrize(("model", "most"), [("toy", 49), ("demo", 59)])
def test_a_sentence_passes_few_modules(model: str, most: int) -> None:
    imported = modules_after(STARTED, "inspect", "-m", model, "time flies like an arrow")
    ours = sorted(name for name in imported if name.partition(".")[0] == "attncli")
    assert len(ours) <= most, "\n".join(ours)


ENDING = """
import atexit, os, sys, threading, types
class Global:
    def __del__(self): os.write(2, b"taken apart ")
sys.modules["torch"], torn = types.ModuleType("torch"), Global()
atexit.register(lambda: print("handled", file=sys.stderr))
{}
from attncli.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("line", "before", "is_taken_apart", "code"),
    [
        ("inspect|time flies|--format|tsv", "", False, 0),
        ("inspect|time flies|--head|9", "", False, 2),
        ("inspect|time flies", "sys.setprofile(getattr)", True, 0),
        ("inspect|time flies", "threading.Thread(target=threading.Event().wait, daemon=True).start()", True, 0),
    ],
)
def test_a_run_with_torch_ends_at_once_unless_something_waits_for_more(
    line: str, before: str, is_taken_apart: bool, code: int
) -> None:
    command = [sys.executable, "-c", ENDING.format(before), *line.split("|")]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, env=COLD, cwd=PROJECT)
    assert (ran.returncode, "taken apart" in ran.stderr) == (code, is_taken_apart)
    assert "handled" in ran.stderr
    assert ("flies" in ran.stdout and ran.stdout.endswith("\n")) == (code == 0)


def test_help_and_version_need_no_arrays() -> None:
    for arguments in (["--help"], ["inspect", "--help"], ["mask", "--help"], ["--version"]):
        assert not {"numpy", "pydantic", *HEAVY} & imported_by(PROGRAM, *arguments)
    assert "rich" not in imported_by(PROGRAM, "--version")


def test_importing_the_package_imports_nothing_heavy() -> None:
    imported = imported_by("import attncli\nassert dir(attncli)\nassert attncli.__version__")
    assert "attncli" in imported
    assert not imported & {*HEAVY, "numpy", "typer", "click", "rich", "pydantic", "safetensors", "tokenizers"}


def test_the_public_names_are_sorted_complete_and_importable() -> None:
    assert attncli.__all__ == sorted(attncli.__all__)
    promised = {"Trace", "__version__", "inspect", "load", "watch"}
    assert promised <= set(attncli.__all__)
    assert set(attncli.__all__) == set(attncli._HOMES)
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
    packaged = pkgutil.resolve_name(project["tool"]["setuptools"]["dynamic"]["version"]["attr"])
    assert attncli.__version__ == packaged
    assert attn("--version").out == f"attn {packaged}\n"
