"""The README is the manual: its commands are run and must print what it shows."""

import doctest
import importlib
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from conftest import hub_cache
from readme import README, comparable, drawn, examples, pictures, ran
from typer.main import get_command

from attncli._version import __version__
from attncli.cli import app

ROOT = README.parent
MODEL = "sentence-transformers/all-MiniLM-L6-v2"


def needs_debian(command: str) -> bool:
    return "jq" in command


@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=pytest.mark.system if needs_debian(c) else ()) for c in examples()],
)
def test_a_command_prints_what_the_readme_shows(command: str, tmp_path: Path, minilm: str, tiny_llama: str) -> None:
    environment = hub_cache(tmp_path / "cache", MODEL, minilm)
    (tmp_path / "tiny-llama").symlink_to(tiny_llama, target_is_directory=True)
    expected = examples()[command]
    assert expected.strip()
    assert comparable(ran(command, tmp_path, environment)) == comparable(expected)


@pytest.mark.parametrize("path", pictures())
def test_a_picture_is_what_its_command_draws(path: str, tmp_path: Path, minilm: str) -> None:
    environment = hub_cache(tmp_path / "cache", MODEL, minilm)
    shown = (ROOT / path).read_text(encoding="utf-8")
    assert comparable(drawn(path, tmp_path, environment)) == comparable(shown)


def test_the_readme_shows_every_picture_and_says_what_draws_it() -> None:
    shown = set(re.findall(r"^!\[[^\]]+\]\((\S+)\)$", README.read_text(encoding="utf-8"), re.MULTILINE))
    kept = {f"docs/{path.name}" for path in (ROOT / "docs").iterdir()}
    assert shown == kept == set(pictures())


def test_the_python_examples_give_what_the_readme_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tried = doctest.testfile(str(README), module_relative=False)
    assert tried.attempted >= 10
    assert tried.failed == 0


def test_the_quick_start_is_two_blocks_of_one_line_with_the_constraints() -> None:
    section = README.read_text(encoding="utf-8").split("## Quick start")[1].split("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)\n```", section, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        assert "\n" not in block
        assert "pip install -c constraints.txt" in block
    assert 'attn inspect "time flies like an arrow"' in blocks[0]
    assert ".[test]" in blocks[1]


def test_every_dependency_has_a_reason_and_a_tested_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    reasons = README.read_text(encoding="utf-8").split("## Dependencies")[1].split("\n## ")[0]
    for requirement in project["dependencies"]:
        name = re.split(r"[<>=]", requirement)[0]
        assert re.search(rf"\b{name}\b", reasons), name
        assert re.search(rf"^{name}==", constraints, re.MULTILINE), name
    for extra, requirements in project["optional-dependencies"].items():
        for name in () if extra == "test" else map(re.compile("[<>=]").split, requirements):
            assert re.search(rf"^\| {name[0]} \(extra( `{extra}`)?\) \| \S", reasons, re.MULTILINE), name
    named = {name for row in re.findall(r"^\| ([^|]+) \|", reasons, re.MULTILINE)[1:] for name in row.split(", ")}
    extras = [each for extra, each in project["optional-dependencies"].items() if extra != "test"]
    assert len(named) == len([*project["dependencies"], *chain(*extras)]), "one that is gone"
    assert "torch==2.13.0\n" in constraints


def test_every_command_is_in_the_readme_and_every_option_has_help() -> None:
    text = README.read_text(encoding="utf-8")
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        assert f"attn {name}" in text
        assert command.help
        assert "attn " in command.help  # an example
        assert all(parameter.help for parameter in command.params)


def test_every_module_and_package_is_in_the_table_of_parts() -> None:
    table = README.read_text(encoding="utf-8").split("## Development")[1]
    named = set(re.findall(r"`([a-z0-9_]+)(?:\.py|/)`", table))
    found = [path for path in (ROOT / "attncli").iterdir() if not path.name.startswith("_")]
    there = {path.stem for path in found if path.is_dir() or path.suffix == ".py"}
    assert named == there


def test_the_changelog_opens_with_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (?:\[?(\S+?)\]?)(?: |$)", changelog, re.MULTILINE)[0] == __version__


def test_every_benchmark_stands_in_the_readme_with_its_ratio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    cases = importlib.import_module("cases")
    for made in ("checkpoint", "trace"):
        monkeypatch.setattr(cases.Material, made, lambda *_: "FOLDER")
    monkeypatch.setattr(cases.texts, "sentences", lambda _: "")  # a million of them take a while
    table = README.read_text(encoding="utf-8").split("## Performance")[1].split("\n## ")[0]
    names = [case.name for made in cases.TABLES.values() for case in made(cases.Material(tmp_path, tmp_path))]
    assert len(names) >= 25
    for name in names:
        assert re.search(rf"^\| {re.escape(name)} \| [\d.]+ s \| .* \| [\d.]+× \|", table, re.MULTILINE), name
