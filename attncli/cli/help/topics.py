"""The topics of `attn help`, each around the tables that the program itself works by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import typer

from attncli.cli.help.pages import Entry, Group, HelpPage, commands_of
from attncli.cli.options import choices, variables

# What is read from the environment besides the options' own variables.
ENVIRONMENT = {
    "NO_COLOR": "where it is not empty: no colour, unless --color always",
    "FORCE_COLOR": "where it is not empty: colour in a pipe too",
    "TERM": "dumb: no colour and no bold",
    "COLUMNS": "cells in a line of the terminal, instead of what it says itself",
    "ATTN_DEBUG": "1: the traceback of any error before its sentence",
    "XDG_CONFIG_HOME": "the folder that holds attncli/attncli.toml; see attn config --help. Default: ~/.config",
    "HF_HOME": "the folder of the hub's local cache and token. Default: ~/.cache/huggingface",
    "HF_HUB_CACHE": "the folder of the hub's local cache alone. Default: hub in HF_HOME",
    "HF_HUB_OFFLINE": "1: use the local cache only, as --offline does",
    "HF_TOKEN": "the token for checkpoints of the hub that are not open to everybody",
}


class Topic(NamedTuple):
    """What a topic is about, and what is said on it.

    Attributes:
        purpose: one line.
        groups: its tables, given the program's context.
        examples: command lines.
        notes: paragraphs that follow them.
    """

    purpose: str
    groups: Callable[[typer.Context], Iterable[Group]]
    examples: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def topic(name: str, root: typer.Context) -> HelpPage:
    """Return the page of one of `TOPICS`."""
    purpose, groups, examples, notes = TOPICS[name]
    return HelpPage(name, purpose, None, examples, notes, tuple(groups(root)))


def contents(root: typer.Context) -> HelpPage:
    """Return the page that lists what there is to read."""
    program: Any = root.command
    topics = _group("Topics", ((name, one.purpose) for name, one in TOPICS.items()))
    commands = _group("Commands", ((name, program.purpose(name)) for name in program.list_commands(root)))
    examples = ("attn help masks", "attn help inspect", "attn help mask show")
    return HelpPage("help", "There is help on topics and on commands.", None, examples, (), (topics, commands))


def _masks(_: typer.Context) -> Iterator[Group]:
    from attncli.masks.notation import NOTATION

    yield _group("Atoms: when i may attend to j", NOTATION.values())


def _formats(root: typer.Context) -> Iterator[Group]:
    from attncli.formats import MEANINGS

    yield _group("Formats", MEANINGS.items())
    yield _group(
        "Commands that have them",
        (
            (inner.command_path, ", ".join(choices(parameter)))
            for inner in commands_of(root)
            for parameter in inner.command.params
            if parameter.name == "format_"
        ),
    )


def _exit_codes(_: typer.Context) -> Iterator[Group]:
    from attncli.errors import ExitCode

    yield _group("Exit codes", ((str(int(code)), code.meaning) for code in ExitCode))


def _environment(root: typer.Context) -> Iterator[Group]:
    parameters: Iterator[Any] = (parameter for inner in commands_of(root) for parameter in inner.command.params)
    own: dict[str, str] = {}
    for parameter in parameters:
        for name in variables(parameter):  # as the first command says it, which is `inspect`
            own.setdefault(name, f"{parameter.opts[0]}: {parameter.help}")
    if own:
        yield _group("In place of an option", own.items())
    yield _group("Others", ENVIRONMENT.items())


def _metrics(_: typer.Context) -> Iterator[Group]:
    from attncli.analysis.metric_names import MEANINGS

    yield _group("Metrics", MEANINGS.items())


def _group(title: str, rows: Iterable[tuple[str, str]]) -> Group:
    return Group(title, tuple(Entry(name, "", text) for name, text in rows))


TOPICS = {
    "masks": Topic(
        "Which keys a query may attend to, as --mask and attn mask take it.",
        _masks,
        (
            'attn inspect "time flies like an arrow" --mask "causal & window(3)"',
            'attn mask show "causal & (window(2) | prefix(1))" --size 6',
        ),
        (
            "An expression is made of the atoms below, with & (and), | (or), ~ (not) and parentheses. i is the "
            "position of the query, j that of the key; both count from 0.",
            "none is full. A file that ends in .npy, .npz, .safetensors, .pt, .json or .csv may stand in place of an "
            "expression: True or 1 = may attend; or additive, 0 and −inf.",
        ),
    ),
    "formats": Topic(
        "What --format writes; with --output FILE the ending says it.",
        _formats,
        (
            'attn inspect "time flies like an arrow" -F json',
            'attn inspect "time flies like an arrow" -o map.svg',
            "attn inspect -F jsonl - < sentences.txt",
        ),
        (
            "json, jsonl, tsv, csv and parquet carry every digit of a float32 unless --precision is given. In JSON, "
            'NaN and the infinities are the strings "nan", "inf" and "-inf", and what is not defined is null.',
            "A cell of CSV and TSV is the token itself, also where it begins with =, +, - or @, so that a program "
            "reads what the model read. A spreadsheet may take such a token for a formula: import its column as text.",
        ),
    ),
    "exit-codes": Topic(
        "What the number means that a command ends with.",
        _exit_codes,
        ('attn mask check mask.npy --expect causal || echo "ended with $?"',),
    ),
    "environment": Topic(
        "Environment variables that are read.", _environment, ("NO_COLOR=1 attn inspect 'time flies like an arrow'",)
    ),
    "metrics": Topic(
        "The numbers that say what a head does, in attn heads and --show metrics.",
        _metrics,
        ('attn heads -m gpt2 "the cat saw the dog" --sort previous --top 5',),
        (
            "They are over the query rows that may attend to some key, padding left out. What is not defined is –, "
            "null, or an empty field, never 0.",
        ),
    ),
}
