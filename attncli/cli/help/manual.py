"""The manual page, from the same pages that the terminal shows: roff with the macros of man(7)."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

import typer

from attncli._version import __version__
from attncli.cli.help.pages import HelpPage, commands_of, page_of
from attncli.cli.help.topics import TOPICS, topic

# The names that man(7) gives to sections that have a usual one.
_USUAL = {"exit-codes": "EXIT STATUS"}
_ESCAPES = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"}


def manual(root: typer.Context) -> Iterator[str]:
    """Yield the manual page of the program, section by section."""
    program = page_of(root)
    yield f'.TH ATTN 1 "" "attncli {__version__}" "User Commands"\n'
    yield f".SH NAME\nattn \\- {_escaped(program.purpose[0].lower() + program.purpose[1:].rstrip('.'))}\n"
    yield f".SH SYNOPSIS\n.B attn\n{_escaped(program.usage or '')}\n"
    yield ".SH DESCRIPTION\n" + "".join(_body(program))
    yield ".SH COMMANDS\n"
    for context in commands_of(root):
        page = page_of(context)
        yield f".SS {_escaped(page.name)} {_escaped(page.usage or '')}\n" + "".join(_body(page))
    for name in TOPICS:
        yield f".SH {_escaped(_USUAL.get(name, name.upper()))}\n" + "".join(_body(topic(name, root)))


def _body(page: HelpPage) -> Iterator[str]:
    yield _paragraph(page.purpose)
    if page.examples:
        yield ".PP\n.EX\n" + "".join(f"  {_escaped(example)}\n" for example in page.examples) + ".EE\n"
    for note in page.notes:
        yield ".PP\n" + _paragraph(note)
    for group in page.groups:
        yield ".PP\n" + _paragraph(group.title + ":")
        for name, form, text in group.entries:
            followed = f" \\fI{_escaped(form)}\\fR" if form else ""
            yield f".TP\n\\fB{_escaped(name)}\\fR{followed}\n" + _paragraph(text)


def _paragraph(text: str) -> str:
    lines = wrap(text, 76, break_long_words=False, break_on_hyphens=False)
    return "".join(_escaped(line) + "\n" for line in lines)


def _escaped(line: str) -> str:
    """Return a line that roff prints as it stands: nothing in it is a macro, an escape or a hyphen to break at."""
    written = "".join(_ESCAPES.get(one, one if one.isascii() else f"\\[u{ord(one):04X}]") for one in line)
    return "\\&" + written if written.startswith(".") else written
