"""The ten rules of writing, as far as a program can check them, for every text that the program prints.

The rules stand in CONTRIBUTING.md. Help is read from the program; errors, notes and findings from the syntax trees.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from attncli.cli.app import app
from attncli.cli.applicability import TABLE
from attncli.cli.help import commands_of, page_of

PROJECT = Path(__file__).parents[2]
ROOT = typer.Context(get_command(app), info_name="attn")
PAGES = [page_of(context) for context in [ROOT, *commands_of(ROOT)]]
MOST_WORDS = 22
MOST_CHARACTERS = 70
# What the rules call by the field's word instead: contributes, resumes, contains, similar.
FORBIDDEN = re.compile(
    r"\b(?:hand(?:s|ed)? over|go(?:es|ne)? on with|tak(?:es?|en) off|kin|says?|said|that which|nobody|somebody)\b",
    re.IGNORECASE,
)
# An option that expects a number names its unit itself.
WITHOUT_UNIT = re.compile(r"(?<!expected )\b(?:at most|at least|up to|more than|less than) \{\}(?=[.,;:)]|$)")
NOT_IMPERATIVE = ("A ", "An ", "The ", "What ", "Which ", "How ", "Whether ", "With ", "Its ", "Only ", "On ", "One ")
# Calls whose texts people read, besides the errors that are raised.
PRINTS = {"note", "print_error", "info", "fail", "Finding", "Failure"}
HOLDS = {"message", "advice", "hint", "why", "reason", "note"}  # variables that hold a text until it is printed


def text_of(node: ast.expr | None) -> str:
    """The text of an expression, with {} for what is only known when it runs."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(one) if isinstance(one, ast.Constant) else "{}" for one in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return f"{text_of(node.left) or '{}'}{text_of(node.right) or '{}'}"
    return ""


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module's errors, notes and findings, with their lines."""
    for node in ast.walk(ast.parse(source)):
        found: list[Any] = []
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in PRINTS or name.endswith("Error") or name == "BadParameter":
                found = [*node.args, *(keyword.value for keyword in node.keywords)]
        elif (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in HOLDS) or isinstance(node, ast.Yield):
            found = [node.value]
        for argument in found:
            if " " in (text := text_of(argument)):
                yield argument.lineno, text


MESSAGES = {
    f"{path.relative_to(PROJECT)}:{line}": text
    for path in sorted((PROJECT / "attncli").rglob("*.py"))
    for line, text in messages(path.read_text("utf-8"))
}


def help_texts() -> Iterator[tuple[str, str]]:
    """Yield every text of the help, with where it stands."""
    for page in PAGES:
        for paragraph in page.paragraphs:
            if not paragraph.startswith("Examples:"):
                yield page.name, paragraph
        for rows in page.tables.values():
            for name, text in rows:
                yield f"{page.name} {name}", text
    yield from ((f"does not apply to {why}", why) for rows in TABLE.values() for _, _, why in rows)


def wrong(text: str) -> list[str]:
    """Return which rules a text breaks."""
    found = [f"says '{one}'" for one in FORBIDDEN.findall(text)]
    found += ["a chain of semicolons"] * (text.count(";") > 1)
    found += [f"no unit after '{one}'" for one in WITHOUT_UNIT.findall(text)]
    for sentence in re.split(r"[.:;?!](?:\s|$)", text):
        if len(words := sentence.split()) > MOST_WORDS:
            found.append(f"a sentence of {len(words)} words")
    return found


def test_every_message_follows_the_rules() -> None:
    assert len(MESSAGES) > 200
    assert {place: [text, *rules] for place, text in MESSAGES.items() if (rules := wrong(text))} == {}


def test_every_text_of_the_help_follows_the_rules() -> None:
    assert {(place, text): rules for place, text in help_texts() if (rules := wrong(text))} == {}


def test_an_option_is_described_in_one_short_command() -> None:
    options = [one for context in commands_of(ROOT) for one in context.command.params]
    for text in {one.help for one in options if one.param_type_name == "option"}:
        assert len(text) <= MOST_CHARACTERS, text
        assert text[0].isupper(), text
        assert text.endswith("."), text
        assert not text.startswith(NOT_IMPERATIVE), text
        assert re.fullmatch(r"(?:(?!Default:).)+(?:Default: .+)?", text), text  # the default stands last


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("what a key hands over", "says 'hands over'"),
        ("the same command goes on with it", "says 'goes on with'"),
        ("one; two; three", "a chain of semicolons"),
        ("a text has at most {}", "no unit after 'at most {}'"),
        (f"{'word ' * 23}.", "a sentence of 23 words"),
    ],
)
def test_a_planted_sentence_is_found(text: str, rule: str) -> None:
    assert wrong(text) == [rule]
    ((_, found),) = messages(f"raise InputError({text!r})")
    assert found == text
