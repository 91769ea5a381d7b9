"""Help pages of commands and topics.

Typer can draw pages of the same parameters, in 1.5 times what importing numpy, typer and rich takes: it renders
Markdown. There a list of choices is broken inside a word, and lines overflow where the encoding lacks a character.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from attncli.cli.environment import Environment
from attncli.cli.terminal import PAGE_WIDTH, Terminal, measured_width
from attncli.errors import ExitCode, UsageError
from attncli.text import did_you_mean, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

# The panels in their order, by the beginnings of their titles.
_ORDER = (
    "Commands", "Arguments", "Input", "Model", "Toy layer", "Size", "Selection", "Outcome", "Cut", "Derived numbers",
    "View", "Output", "Options",
)  # fmt: skip


Tables = dict[str, list[tuple[str, str]]]


class Page(NamedTuple):
    """A page of help.

    Attributes:
        name: of the command, the program's in front, or of the topic.
        usage: the usage after the name of a command.
        paragraphs: the purpose, then the rest; one that begins with `Examples:` has a line for each.
        tables: rows of a name and its meaning, by title.
    """

    name: str
    usage: str
    paragraphs: list[str]
    tables: Tables


def paragraphs_of(docstring: str) -> list[str]:
    """Return the paragraphs of a docstring, a line each; its last part, the examples, follows the purpose."""
    prose, _, examples = cleandoc(docstring).partition("\n\nExamples:\n")
    purpose, *notes = (" ".join(paragraph.split()) for paragraph in prose.split("\n\n"))
    lines = [line for line in examples.splitlines() if line]
    return [purpose, *(["\n".join(["Examples:", *lines])] if lines else []), *notes]


def page_of(context: typer.Context, is_whole: bool = True) -> Page:
    """Return the page of a context's command, without `is_whole` only the common options."""
    command: Any = context.command
    tables: Tables = {}
    if hasattr(command, "list_commands"):
        tables["Commands"] = [(name, command.purpose(name)) for name in command.list_commands(context)]
    left_out = 0
    for parameter in command.get_params(context):
        if getattr(parameter, "hidden", False) and not is_whole:
            left_out += not parameter.is_eager
            continue
        title = parameter.rich_help_panel or ("Options" if parameter.param_type_name == "option" else "Arguments")
        tables.setdefault(title, []).append(_row(parameter, context, is_whole))
    if left_out:
        tables["Options"].append(("    --help-all", f"Show every option: there are {left_out} more."))
    ordered = sorted(tables, key=lambda title: [title.startswith(start) for start in _ORDER].index(True))
    usage = " ".join(command.collect_usage_pieces(context))
    paragraphs = paragraphs_of(command.help or command.get_short_help_str(100))  # python -OO has no docstrings
    return Page(context.command_path, usage, paragraphs, {title: tables[title] for title in ordered})


def _row(parameter: Any, context: typer.Context, is_whole: bool) -> tuple[str, str]:
    if parameter.param_type_name == "argument":
        return parameter.metavar + "..." * (parameter.nargs == -1), parameter.help
    parameter = copy(parameter)
    parameter.hidden = False  # or there is no record
    name, text = parameter.get_help_record(context)
    text = " ".join((text if is_whole else parameter.help).split()).replace("[env var: ", "[env:")
    name, _, choices = name.partition(" <")  # <auto|always|never>, which cannot be wrapped
    if not choices:
        return name, text
    return f"{name} {parameter.opts[0].strip('-').upper()}", f"{text} [{choices.rstrip('>').replace('|', ', ')}]"


def commands_of(context: typer.Context) -> Iterator[typer.Context]:
    """Yield the contexts of all commands below a group, each after the group that it belongs to."""
    group: Any = context.command
    for name in group.list_commands(context) if hasattr(group, "list_commands") else ():
        inner = typer.Context(group.get_command(context, name), info_name=name, parent=context)
        yield inner
        yield from commands_of(inner)


def find_page(root: typer.Context, name: str) -> Page:
    """Return the page on a topic or a command, or the one that lists them if there is no name.

    Raises:
        UsageError: there is no such command or topic.
    """
    if not name:
        paragraphs = ["Help on topics and commands.", _EXAMPLES]
        return Page("help", "", paragraphs, {"Topics": topics(), "Commands": page_of(root).tables["Commands"]})
    if name in TOPICS:
        return topic(name, root)
    commands = {inner.command_path.removeprefix("attn "): inner for inner in commands_of(root)}
    if name not in commands:
        raise UsageError(f"no topic or command '{visible(name)}'{did_you_mean(name, [*TOPICS, *commands])}")
    return page_of(commands[name], is_whole=False)


# --- topics: the docstring and the return value of a function are a page, with tables that the program itself uses -

_EXAMPLES = "Examples:\nattn help masks\nattn help inspect\nattn help mask show"
# Variables of the environment besides those of options.
ENVIRONMENT = {
    "NO_COLOR": "not empty: no colour, unless --color always",
    "FORCE_COLOR": "not empty: colour in a pipe too",
    "TERM": "dumb: no colour and no bold",
    "ACCESSIBLE": "1: sentences instead of maps, and no changing screen, for a screen reader",
    "COLUMNS": "columns of the terminal, instead of those it reports",
    "ATTN_DEBUG": "1: a traceback before each error",
    "XDG_CONFIG_HOME": "the folder that holds attncli/attncli.toml; see attn config --help. Default: ~/.config",
    "HF_HOME": "the folder of the hub's local cache and token. Default: ~/.cache/huggingface",
    "HF_HUB_CACHE": "the folder of the hub's local cache. Default: hub in HF_HOME",
    "HF_HUB_ETAG_TIMEOUT": "seconds until the hub must answer. Default: 10",
    "HF_HUB_OFFLINE": "1: use the local cache only, as --offline does",
    "HF_TOKEN": "the token for gated and private checkpoints",
}


def _masks(_: typer.Context) -> Tables:
    """Mask expressions: which keys each query may attend to.

    An expression combines the atoms below with & (and), | (or), ~ (not) and parentheses. i is the position of the
    query and j that of the key, both from 0. none is full.

    A .npy, .safetensors, .pt or .csv file may replace an expression. In it, True or 1 = may attend; additive masks hold
    0 and −inf.

    Examples:
    attn inspect "time flies like an arrow" --mask "causal & window(3)"
    attn mask show "causal & (window(2) | prefix(1))" --size 6
    """
    from attncli.masks.notation import NOTATION

    return {"Atoms: when i may attend to j": [(kind.usage, kind.meaning) for kind in NOTATION.values()]}


def _formats(root: typer.Context) -> Tables:
    """Output formats, by --format or the ending of --output.

    json, jsonl, tsv and csv carry every digit of a float32 unless --precision is given. parquet always does. In JSON,
    NaN and infinities are the strings "nan", "inf" and "-inf", and undefined numbers are null.

    A cell of CSV and TSV is the token itself, even if it begins with =, +, - or @. A spreadsheet may read such a token
    as a formula: import its column as text.

    Examples:
    attn inspect "time flies like an arrow" -F json
    attn inspect "time flies like an arrow" -o map.svg
    attn inspect -F jsonl - < sentences.txt
    """
    from attncli.formats import MEANINGS

    taking = [
        (inner.command_path, ", ".join(choice.value for choice in one.shell_complete(inner, "")))
        for inner in commands_of(root)
        for one in inner.command.params
        if one.name == "format_"
    ]
    return {"Formats": list(MEANINGS.items()), "Commands that have them": taking}


def _exit_codes(_: typer.Context) -> Tables:
    """Exit codes.

    Examples:
    attn mask check mask.npy --expect causal || echo "ended with $?"
    """
    return {"Exit codes": [(str(int(code)), code.meaning) for code in ExitCode]}


def _environment(root: typer.Context) -> Tables:
    """Environment variables.

    Examples:
    NO_COLOR=1 attn inspect 'time flies like an arrow'
    """
    own: dict[str, str] = {}
    parameters: Iterator[Any] = (one for inner in commands_of(root) for one in inner.command.params)
    for one in parameters:
        if one.envvar:  # as the first command says it, which is `inspect`
            own.setdefault(one.envvar, f"{one.opts[0]}: {one.help}")
    return {"In place of an option": list(own.items()), "Others": list(ENVIRONMENT.items())}


def _metrics(_: typer.Context) -> Tables:
    """Metrics of a head, in attn heads and --show metrics.

    They average over the query rows that may attend to some key, without padding. An undefined metric is –, null or an
    empty field, never 0.

    Examples:
    attn heads -m demo "the cat saw the dog" --sort previous --top 5
    """
    from attncli.analysis.labels import LABELS, LEAST, LEAST_OF_PLACE
    from attncli.analysis.metric_names import MEANINGS

    labels = {name: f"attends to {what}" for name, what in LABELS.items()} | {"mixed": "none of these"}
    labels["localization"] += f"; needs a gain of {LEAST_OF_PLACE:g}"
    return {
        "Metrics": list(MEANINGS.items()),
        f"Labels, from a gain over uniform attention of {LEAST:g}": list(labels.items()),
    }


TOPICS = {
    "masks": _masks,
    "formats": _formats,
    "exit-codes": _exit_codes,
    "environment": _environment,
    "metrics": _metrics,
}


def topics() -> list[tuple[str, str]]:
    """Return the name and the purpose of each topic."""
    return [(name, paragraphs_of(topic.__doc__ or name)[0]) for name, topic in TOPICS.items()]


def topic(name: str, root: typer.Context) -> Page:
    """Return the page of one of the topics."""
    return Page(name, "", paragraphs_of(TOPICS[name].__doc__ or name), TOPICS[name](root))


# --- on the screen -----------------------------------------------------------------------------------------


def show(page: Page, environment: Environment) -> None:
    """Print a page; its lines are no longer than is good to read, in a pipe too."""
    with environment.output(None) as stream:
        width = min(measured_width(stream), PAGE_WIDTH)
        Terminal(stream, width=width).show(_drawn(page, width, getattr(stream, "encoding", None) or "utf-8"))


def _drawn(page: Page, width: int, encoding: str) -> Iterator[RenderableType]:
    """Yield the renderables of a page, with a blank line between each and the next."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.table import Column, Table
    from rich.text import Text

    def text(words: str, style: str = "") -> Text:
        # Characters outside of the encoding are escaped before measuring: an escape is longer.
        return Text(words.encode(encoding, "backslashreplace").decode(encoding), style)

    def panel(title: str, rows: list[tuple[str, str]]) -> Panel:
        is_aligned = any(name.startswith("-") and not name.startswith("--") for name, _ in rows)
        named = [(" " * 4 * (is_aligned and name.startswith("--")) + name, role) for name, role in rows]
        inner: RenderableType
        below = (0, 0, 0, 6)
        if max(len(name) for name, _ in named) > width // 2:  # there is no place beside it
            inner = Group(*(part for name, role in named for part in (text(name, "bold"), Padding(text(role), below))))
        else:
            inner = Table.grid(Column(no_wrap=True), Column(ratio=1), padding=(0, 2, 0, 0), expand=True)
            for name, role in named:
                inner.add_row(text(name, "bold"), text(role))
        return Panel(inner, title=title, title_align="left", border_style="dim")

    if page.usage:
        yield Text.assemble(("Usage: ", "bold"), f"{page.name} {page.usage}")
    for paragraph in page.paragraphs:
        first, *examples = paragraph.split("\n")
        indented = (Padding(text(example, "cyan"), (0, 0, 0, 2), expand=False) for example in examples)
        yield Group(text(first, "bold" if examples else ""), *indented)
    yield Group(*(panel(title, rows) for title, rows in page.tables.items()))
