"""README and docs/ are the manual: their commands are run and must print what the pages show."""

import doctest
import importlib
import os
import re
import tomllib
from base64 import b64decode
from collections.abc import Callable
from io import BytesIO
from itertools import chain
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recording
from matplotlib.image import imread
from readme import (
    README,
    ROOT,
    Example,
    arguments_of,
    bring_materials,
    bring_models,
    comparable,
    drawn,
    examples,
    is_same,
    pages,
    pictures,
    ran,
    screens,
)
from typer.main import get_command
from whole_program import whole_program

import attncli
from attncli._version import __version__
from attncli.cli.app import app

PAGES = pages()
DEVELOPMENT = {"docs", "test"}
"""The extras of those who work on attncli."""
WITH_TORCH = (
    "attn check",
    "attn run",
    "--engine",
    "verify",
    "--engine transformers",
    "pytest",
    "python ",
)
"""Commands that run a program, or whose libraries look where the hub's cache is only when they are imported."""
FORBIDDEN = re.compile(
    r"\b(?:hand(?:s|ed)? over|go(?:es|ne)? on with|tak(?:es?|en) off|kin|says?|said|that which|nobody|one sees)\b",
    re.IGNORECASE,
)


def tried(example: Example) -> Any:
    name = f"{example.page}: {example.command}"
    return pytest.param(example, id=name, marks=pytest.mark.system if "jq" in example.command else ())


def warm_commands_of(environment: dict[str, str]) -> str:
    return environment["PATH"].split(os.pathsep)[0]


@pytest.mark.filterwarnings("ignore")  # of the libraries below, which have a process to themselves otherwise
@pytest.mark.parametrize("example", [tried(example) for example in examples()])
def test_a_command_prints_what_its_page_shows(
    example: Example,
    tmp_path: Path,
    in_cache: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.delenv("COLUMNS")
    bring_materials(tmp_path)
    bring_models(example.command, tmp_path)
    arguments = arguments_of(example.command)
    if arguments is None or any(word in example.command for word in WITH_TORCH):
        environment = os.environ | request.getfixturevalue("warm_environment")
        printed = [ran(example.command, tmp_path, environment, warm_commands_of(environment))]
    else:  # a process of its own would import NumPy for each
        monkeypatch.chdir(tmp_path)
        with whole_program() as attn:
            alone = attn(*arguments, **in_cache)
        printed = [alone.out + alone.err, alone.err + alone.out]
    assert example.output.strip()
    assert any(is_same(example.output, one) for one in printed), printed[0]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_opens_with_what_it_shows_and_is_plain(page: str) -> None:
    text = PAGES[page]
    blocks = re.findall(r"^```(.*)$", text, re.MULTILINE)[::2]
    assert set(blocks) <= {"console", "pycon", "sh"}
    assert blocks.count("console") == sum(one.page == page for one in examples())
    assert len(text.encode()) <= (8_192 if page == "README.md" else 20_000)
    prose = re.sub(r"^```.*?^```$|^\|.*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert len(prose.split()) <= 1_500
    if not text.startswith("--8<--"):
        assert re.search(r"^(```|!\[|\|)", "\n".join(text.splitlines()[:10]), re.MULTILINE), "a picture or a command"
    assert not FORBIDDEN.findall(prose)
    prose = re.sub(r"^(#|!\[|:::).*$|^([-*]|\d\.) ", "\n\n", prose, flags=re.MULTILINE)
    prose = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", prose))
    long = [one for one in re.split(r"\n\s*\n|(?<=[.?!:;])\s+", prose) if len(one.split()) > 22]
    assert not long


def test_every_example_shows_what_its_page_says_of_it() -> None:
    for one in examples():
        assert one.shows, f"{one.page} does not say what is to be seen: {one.command}"
        assert re.search(one.shows, one.output, re.MULTILINE), f"{one.page} shows no {one.shows}: {one.command}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_where_the_files_of_its_examples_are(page: str) -> None:
    examples_of_page = "\n".join(re.findall(r"^```console\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL))
    for folder in ("docs/cookbook/files", "docs/masks/programs"):
        names = [path.name for path in (ROOT / folder).iterdir() if not path.name.startswith("_")]
        read = [name for name in names if re.search(rf"(?<![\w/.-]){re.escape(name)}(?![\w-])", examples_of_page)]
        told = folder in PAGES[page] or f"({Path(folder).name}/" in PAGES[page]
        assert told or not read, f"{page} reads {', '.join(read)} of {folder}, and does not say so"


def test_every_number_in_a_mask_of_a_page_has_an_effect() -> None:
    quoted = {
        one for text in PAGES.values() for one in re.findall(r"[\"`]([\w~()&|, ]+)[\"`]", text.replace("\\|", "|"))
    }
    expressions = [one for one in quoted if re.search(r"[&|].*\(\d|\(\d.*[&|]", one)]
    assert len(expressions) >= 8
    for expression in set(expressions) - {"causal & windw(2)"}:
        largest = max(map(int, re.findall(r"\d+", expression)))
        queries = 10 if largest <= 10 else largest + 10
        cells = attncli.mask(expression, queries=queries).allowed
        for atom in re.findall(r"\w+\([\d,]+\)", expression):
            for other in ("full", "~full"):
                without = attncli.mask(expression.replace(atom, other), queries=queries).allowed
                assert (cells != without).any(), f"{atom} has no effect in {expression}"


def test_the_faq_is_right_about_bits() -> None:
    def entropy(share: float) -> float:
        return -sum(one * log2(one) for one in (share, 1 - share) if one)

    rows = re.findall(r"^\| (\d+) % \| ([\d.]+) bits? \|", PAGES["docs/help/faq.md"], re.MULTILINE)
    assert len(rows) == 5
    for moved, bits in rows:
        assert entropy(int(moved) / 200) - entropy(int(moved) / 100) / 2 == pytest.approx(float(bits), rel=0.05)


def images_in(svg: str) -> tuple[list[Any], str]:
    """The pictures of a figure, and the rest of it."""
    packed = re.findall(r'<image [^>]*base64,([^"]*)"', svg)
    return [imread(BytesIO(b64decode(each))) for each in packed], re.sub(r"<image [^>]*>", "", svg)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.system) if screen.page else path for path, screen in screens().items()],
)
def test_a_picture_of_a_terminal_is_what_its_command_shows_there(
    path: str, tmp_path: Path, warm_environment: dict[str, str]
) -> None:
    shown = (ROOT / path).read_text(encoding="utf-8")
    again = screens()[path].drawn(tmp_path, os.environ | warm_environment, warm_commands_of(warm_environment))
    assert words_of(again) == words_of(shown)


def words_of(svg: str) -> list[str]:
    """The texts of a picture, and how large it is; the last digit of a weight may choose its neighbour's colour."""
    return [svg[: svg.index(">")], *re.findall(r">([^<>]*)</text>", svg)]


def test_the_recording_is_what_the_explorer_shows() -> None:
    shown = (ROOT / recording.PATH).read_text(encoding="utf-8")
    again = recording.picture(recording.recorded(os.environ))
    assert {*words_of(again)} == {*words_of(shown)}
    assert re.findall("@keyframes.*", again) == re.findall("@keyframes.*", shown)
    assert len(shown) < 400_000


@pytest.mark.parametrize("path", pictures())
def test_a_picture_is_what_its_command_draws(path: str, tmp_path: Path, in_cache: dict[str, str]) -> None:
    shown, words = images_in(comparable((ROOT / path).read_text(encoding="utf-8")))
    again, same_words = images_in(comparable(drawn(path, tmp_path, os.environ | in_cache)))
    assert words == same_words
    for one, other in zip(shown, again, strict=True):
        np.testing.assert_allclose(
            one, other, atol=0.02
        )  # the last digit of a weight may choose its neighbour's colour


def test_every_picture_is_shown_and_a_page_says_what_draws_it() -> None:
    links = {page: re.findall(r"^!\[[^\]]+\]\((\S+?)[ )]", text, re.MULTILINE) for page, text in PAGES.items()}
    shown = {(ROOT / page).parent / link for page, of_page in links.items() for link in of_page}
    stored = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.svg")} - {recording.PATH}
    named = {path.resolve().relative_to(ROOT).as_posix() for path in shown}
    assert named == {recording.PATH, *stored}
    assert stored == {*pictures(), *screens()}


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)# ]+)[^)]*\)", PAGES[page]):
        assert ((ROOT / page).parent / link).is_file(), link


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if "```pycon" in text])
def test_the_python_examples_give_what_a_page_shows(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bring_materials(tmp_path)
    monkeypatch.chdir(tmp_path)
    results = doctest.testfile(str(ROOT / page), module_relative=False)
    assert results.attempted == len(re.findall(r"^>>> ", PAGES[page], re.MULTILINE))
    assert results.failed == 0


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
        for name in () if extra in DEVELOPMENT else map(re.compile(r"[<>=\[]").split, requirements):
            assert re.search(rf"^\| {name[0]} \(extra( `{extra}`)?\) \| \S", reasons, re.MULTILINE), name
    named = {name for row in re.findall(r"^\| ([^|]+) \|", reasons, re.MULTILINE)[1:] for name in row.split(", ")}
    extras = [each for extra, each in project["optional-dependencies"].items() if extra not in DEVELOPMENT]
    assert len(named) == len([*project["dependencies"], *chain(*extras)]), "one that is gone"
    assert "torch==2.13.0\n" in constraints


def test_every_command_is_in_the_readme_and_every_option_has_help() -> None:
    text = README.read_text(encoding="utf-8")
    program: Any = get_command(app)
    for name in program.list_commands(None):
        command = program.get_command(None, name)
        assert f"attn {name}" in text
        assert command.help
        assert "attn " in command.help  # an example
        assert all(parameter.help for parameter in command.params)


def test_the_reference_has_every_command_with_the_options_of_its_help(
    attn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    written = importlib.import_module("commands").commands()
    sections = dict(re.findall(r"^## (attn .*)\n([\s\S]*?)(?=^## |\Z)", written, re.MULTILINE))
    waiting = ["attn"]
    while waiting:
        path = waiting.pop()
        help_text = attn(*path.split()[1:], "--help").out
        section = sections.pop(path) if path != "attn" else help_text
        assert set(re.findall(r"--[a-z][\w-]+", help_text)) <= set(re.findall(r"--[a-z][\w-]+", section)), path
        listed = help_text.partition("╭─ Commands ")[2].partition("╰")[0]
        waiting += [f"{path} {name}" for name in re.findall(r"^│ (\w+) ", listed, re.MULTILINE)]
    assert not sections


def test_the_python_page_has_every_public_name() -> None:
    named = re.findall(r"^::: attncli\.(\w+)$", PAGES["docs/python-api.md"], re.MULTILINE)
    assert sorted([*named, "__version__"]) == sorted(attncli.__all__)


def test_the_changelog_opens_with_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", changelog, re.MULTILINE)[:2] == ["Unreleased", __version__]


def test_the_published_figures_are_those_of_the_benchmarks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    cases = importlib.import_module("cases")
    for made in ("checkpoint", "trace"):
        monkeypatch.setattr(cases.Material, made, lambda *_: "FOLDER")
    monkeypatch.setattr(cases.texts, "sentences", lambda _: "")  # a hundred thousand of them take a while
    page = (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8")
    published = re.findall(r"^\| (\S+) \| median \|", page, re.MULTILINE)
    assert len(published) >= 8
    tables = {name: made for question in cases.QUESTIONS for name, made in question.tables.items()}
    for name in published:
        for case in tables[name](cases.Material(tmp_path, tmp_path)):
            assert re.search(rf"^\| {re.escape(case.name)} \| [\d.]+ s \| .* \| [\d.]+× \|", page, re.MULTILINE), (
                case.name
            )
    quiet = [float(share) for share in re.findall(r"^Other programs used ([\d.]+)% of", page, re.MULTILINE)]
    assert len(quiet) == page.count(" Rounds: ") + page.count(" keys | median |")
    assert max(quiet) <= 3
