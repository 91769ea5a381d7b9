"""`attn explore`: a text that changes as one types, and its attention, in a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import Options, argument, dashed
from attncli.errors import UsageError, require

_OF_QUESTIONS = ("text", "pair", "target", "mask")


class ExploreOptions(Options):
    """Options of the explored model, and of its first text."""

    load: options.Engine
    toy: options.Toy
    text: list[str] | None = argument("The sentence to begin with. Default: time flies like an arrow.", "TEXT")
    pair: options.Pair = None
    target: options.Target = None
    from_: options.From = None
    model: options.DemoModel = None
    no_special: options.NoSpecial = False
    mask: options.Mask = None


def explore(
    environment: Environment,
    request: ExploreOptions,
    colormap: options.Colormap = None,
    ramp: options.Ramp = None,
    color: options.Color = None,
) -> None:
    """Type a sentence, and watch its attention change with every key.

    Without -m you explore the demo model, or the toy layer if you give one of its options. ? shows the keys. q leaves
    and prints the command line of what you saw last.

    Examples:
    attn explore
    attn explore "time flies like an arrow" -m gpt2
    attn explore --num-heads 2
    """
    from attncli.analysis.learn import TEXT
    from attncli.cli.loop import loading
    from attncli.engines.interactive import Query, open_interactive
    from attncli.explore.command import as_line, command_of
    from attncli.explore.view_state import ViewState

    words = request.text or [TEXT]
    if len(words) > 1 and any(" " in word for word in words):
        raise UsageError(f"{len(words)} sentences; attn explore takes one, attn diff two")
    query = Query(" ".join(words), request.pair, request.target, request.mask)
    state = ViewState(query, ramp=ramp)
    # The options that no key changes, as a command line has them.
    fixed = [option for option in request.explicit_values() if option[0] not in _OF_QUESTIONS]
    is_toy = request.model is None and request.from_ is None
    more = (("model", "toy" if is_toy else None), ("colormap", colormap), ("color", color))
    fixed += [(name, value) for name, value in more if value is not None]
    options_of_all = tuple(word for option in fixed for word in _words(*option))
    command = partial(command_of, fixed=options_of_all, is_saved=request.from_ is not None)
    if why := "- is standard input" if request.text == ["-"] else environment.lacks_screen():
        static = as_line(command(state, "heads"))
        raise UsageError(f"explore needs a terminal, and {why}. Static view: {static}")
    require("attn explore", "textual")
    if request.from_ is not None:
        loading_options = dict(request.load.explicit_values())
        opened = open_interactive(saved=request.from_, model=request.model, **loading_options)
    else:
        with loading(environment, request.model, request.toy.vocab):
            opened = open_interactive(
                model=request.model,
                special=not request.no_special,
                **dict(request.toy.explicit_values()),
                **dict(request.load.explicit_values()),
            )
    if opened.own is not None:
        state = replace(state, question=opened.own)
    from attncli.explore.app import run

    with options.OutputOptions(color=color).view(environment, "table", "explore") as terminal:
        palette = terminal.palette(colormap or "viridis")
    look, what, is_computing = run(opened, state, palette)
    environment.write([f"{as_line(command(look, what))}\n"])
    if is_computing:  # Python would end under its thread, and torch aborts then
        os._exit(0)


def _words(name: str, value: Any) -> Iterator[str]:
    """Yield an option as a command line has it."""
    if isinstance(value, list):
        for item in value:
            yield from _words(name, item)
        return
    option = "-m" if name == "model" else f"--{dashed(name)}"
    if isinstance(value, bool):
        yield option if value else option.replace("--", "--no-", 1)
    else:
        yield from (option, str(value))
