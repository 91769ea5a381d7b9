"""README and docs/ are the manual: their commands are run and must print what the pages show."""

import doctest
import os
import re
import tomllib
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import readme
import recording
from matplotlib.image import imread
from readme import README, ROOT, Example
from typer.main import get_command
from whole_program import whole_program

import attncli
from attncli._version import __version__
from attncli.cli.app import app

PAGES = readme.pages()
DEVELOPMENT = {"docs", "test"}
"""The extras of those who work on attncli."""
WITH_TORCH = ("attn check", "attn run", "--engine", "verify", "--engine transformers", "pytest", "python ")
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
@pytest.mark.parametrize("example", [tried(example) for example in readme.examples()])
def test_a_command_prints_what_its_page_shows(
    example: Example,
    tmp_path: Path,
    in_cache: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.delenv("COLUMNS")
    readme.bring_materials(tmp_path)
    readme.bring_models(example.command, tmp_path)
    arguments = readme.arguments_of(example.command)
    if arguments is None or any(word in example.command for word in WITH_TORCH):
        environment = os.environ | request.getfixturevalue("warm_environment")
        printed = [readme.ran(example.command, tmp_path, environment, warm_commands_of(environment))]
    else:  # a process of its own would import NumPy for each
        monkeypatch.chdir(tmp_path)
        with whole_program() as attn:
            alone = attn(*arguments, **in_cache)
        printed = [alone.out + alone.err, alone.err + alone.out]
    assert example.output.strip()
    assert any(readme.is_same(example.output, one) for one in printed), printed[0]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_opens_with_what_it_shows_and_is_plain(page: str) -> None:
    text = PAGES[page]
    blocks = re.findall(r"^```(.*)$", text, re.MULTILINE)[::2]
    assert set(blocks) <= {"console", "pycon", "sh"}
    assert blocks.count("console") == sum(one.page == page for one in readme.examples())
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
    for one in readme.examples():
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


def images_in(svg: str) -> tuple[list[Any], str]:
    """The pictures of a figure, and the rest of it."""
    packed = re.findall(r'<image [^>]*base64,([^"]*)"', svg)
    return [imread(BytesIO(b64decode(each))) for each in packed], re.sub(r"<image [^>]*>", "", svg)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.system) if screen.page else path
        for path, screen in readme.screens().items()
    ],
)
def test_a_picture_of_a_terminal_is_what_its_command_shows_there(
    path: str, tmp_path: Path, warm_environment: dict[str, str]
) -> None:
    shown = (ROOT / path).read_text(encoding="utf-8")
    again = readme.screens()[path].drawn(tmp_path, os.environ | warm_environment, warm_commands_of(warm_environment))
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


@pytest.mark.parametrize("path", readme.pictures())
def test_a_picture_is_what_its_command_draws(path: str, tmp_path: Path, in_cache: dict[str, str]) -> None:
    shown, words = images_in(readme.comparable((ROOT / path).read_text(encoding="utf-8")))
    again, same_words = images_in(readme.comparable(readme.drawn(path, tmp_path, os.environ | in_cache)))
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
    assert stored == {*readme.pictures(), *readme.screens()}


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)# ]+)[^)]*\)", PAGES[page]):
        assert ((ROOT / page).parent / link).is_file(), link


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if "```pycon" in text])
def test_the_python_examples_give_what_a_page_shows(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme.bring_materials(tmp_path)
    monkeypatch.chdir(tmp_path)
    results = doctest.testfile(str(ROOT / page), module_relative=False)
    assert results.attempted == len(re.findall(r"^>>> ", PAGES[page], re.MULTILINE))
    assert results.failed == 0


def test_the_quick_start_is_two_blocks_of_one_line_with_the_constraints() -> None:
    section = README.read_text(encoding="utf-8").split("## Quick start")[1].split("\n## ")[0]
    first, second = re.findall(r"```sh\n(.*?)\n```", section, re.DOTALL)
    assert "\n" not in first + second
    assert all("pip install -c constraints.txt" in block for block in (first, second))
    assert 'attn inspect "time flies like an arrow"' in first
    assert ".[test]" in second


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
    assert "torch==2.13.0\n" in constraints


def test_every_command_is_in_the_readme_and_every_option_has_help() -> None:
    text = README.read_text(encoding="utf-8")
    program: Any = get_command(app)
    for name in program.list_commands(None):
        command = program.get_command(None, name)
        assert f"attn {name}" in text
        assert "attn " in command.help  # an example
        assert all(parameter.help for parameter in command.params)


def test_the_python_page_has_every_public_name() -> None:
    named = re.findall(r"^::: attncli\.(\w+)$", PAGES["docs/python-api.md"], re.MULTILINE)
    assert sorted([*named, "__version__"]) == sorted(attncli.__all__)


def test_the_changelog_opens_with_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", changelog, re.MULTILINE)[:2] == ["Unreleased", __version__]
