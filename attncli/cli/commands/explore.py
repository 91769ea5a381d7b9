"""`attn explore`: a text that changes as one types, and its attention, in a terminal."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from attncli.cli import options
from attncli.cli.environment import Environment, is_piped_in
from attncli.cli.groups import Options
from attncli.errors import UsageError, require

if TYPE_CHECKING:
    from attncli.engines.interactive import InteractiveSource
    from attncli.explore.command import InputSource
    from attncli.explore.view_state import ViewState

_OF_QUESTIONS = ("text", "pair", "target", "mask")


@dataclass(frozen=True, repr=False, eq=False)
class Explored(Options):
    """Whose attention is explored, and of which text first."""

    load: options.Engine
    toy: options.Toy
    text: Annotated[
        list[str] | None,
        Argument(
            metavar="TEXT",
            help="The sentence to begin with. Default: time flies like an arrow.",
            show_default=False,
        ),
    ] = None
    pair: options.Pair = None
    target: options.Target = None
    from_: options.From = None
    model: options.Model = None
    no_special: options.NoSpecial = False
    mask: options.Mask = None

    @property
    def sentence(self) -> str:
        """The text, or what it is where none is given.

        Raises:
            UsageError: there are several.
        """
        from attncli.analysis.learn import TEXT

        words = self.text or [TEXT]
        if len(words) > 1 and any(" " in word for word in words):
            raise UsageError(f"{len(words)} sentences, and one is explored at a time; attn diff compares two")
        return " ".join(words)

    def input_source(self, colors: options.Colors) -> InputSource:
        """Return the options that no key changes, as a command line has them."""
        from attncli.explore.command import InputSource

        named = (one for one in self.explicit_values() if one[0] not in _OF_QUESTIONS)
        of_colors = (one for one in colors.explicit_values() if one[0] in ("colormap", "color"))
        words = (word for name, value in (*named, *of_colors) for word in _words(name, value))
        return InputSource(tuple(words), self.from_ is not None)


def explore(environment: Environment, explored: Explored, colors: options.Colors) -> None:
    """Type a sentence, and watch its attention change with every key.

    It shows a head, all heads of its layer, and layers × heads, and takes the whole terminal. ? shows the keys; q or
    Ctrl-C leaves, and prints the command line that gives what was seen last.

    Examples:
    attn explore "time flies like an arrow"
    attn explore -m demo
    attn explore -m gpt2
    """
    from attncli.engines.interactive import Query
    from attncli.explore.command import command_of
    from attncli.explore.view_state import ViewState

    asks = Query(explored.sentence, explored.pair, explored.target, explored.mask)
    look = ViewState(asks, ramp=colors.ramp)
    source = explored.input_source(colors)
    _refuse_without_screen(environment, explored, look, source)
    require("attn explore", "textual")
    opened = _opened(environment, explored)
    if opened.own is not None:
        look = replace(look, question=opened.own)
    from attncli.explore.app import run
    from attncli.explore.exporter import Exporter

    with environment.canvas("attn explore", color=colors.color) as terminal:
        palette = terminal.palette(colors.colormap or "viridis")
    seen, is_computing = run(opened, look, palette, Exporter(source))
    environment.write([f"{command_of(seen, source).line()}\n"])
    if is_computing:  # Python would end under its thread, and torch aborts then
        os._exit(0)


def _refuse_without_screen(environment: Environment, explored: Explored, look: ViewState, source: InputSource) -> None:
    """Raise UsageError, with the command that takes its place, where there is no terminal for it."""
    from attncli.explore.command import ViewSnapshot, command_of

    why = "- is standard input" if explored.text == ["-"] else environment.lacks_screen()
    if not why:
        return
    if explored.text is None and explored.from_ is None and is_piped_in():
        look = look.asking("-")
    command = shlex.join(["attn", *command_of(ViewSnapshot(look, "heads"), source).words()])
    raise UsageError(f"attn explore is drawn on a terminal, and {why}; this prints what it would begin with: {command}")


def _opened(environment: Environment, explored: Explored) -> InteractiveSource:
    """Return the model, the toy layer or the saved trace.

    Raises:
        UsageError: an option does not apply.
        LoadError: the checkpoint cannot be loaded.
        InputError: there is no trace in the file.
    """
    from attncli.cli.request import loading, refuse_beside_saved
    from attncli.engines.interactive import open_interactive

    if explored.from_ is not None:
        refuse_beside_saved(name for name, _ in explored.explicit_values() if name != "from_")
        return open_interactive(saved=explored.from_)

    with loading(environment, explored.model, explored.toy.vocab):
        return open_interactive(
            model=explored.model,
            special=not explored.no_special,
            **dict(explored.toy.explicit_values()),
            **dict(explored.load.explicit_values()),
        )


def _words(name: str, value: Any) -> Iterator[str]:
    """Yield an option as a command line has it."""
    option = "-m" if name == "model" else "--" + name.rstrip("_").replace("_", "-")
    if isinstance(value, bool):
        yield option if value else option.replace("--", "--no-", 1)
    else:
        yield from (option, str(value))
