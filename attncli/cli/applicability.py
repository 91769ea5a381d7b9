"""Options that do not apply to a run: one table. Typed ones are refused, those of the environment are ignored."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attncli.checkpoints.options import EngineOptions, ToyOptions
from attncli.cli import options
from attncli.cli.groups import Options, dashed, options_of
from attncli.errors import UsageError


class CommandLine:
    """The options of a run; an attribute with the name of one is its value, None where it has none.

    Attributes:
        command: the name of the command.
        typed: the options on the command line.
        given: those, and the ones that the environment sets.
    """

    def __init__(self, context: Any) -> None:
        self.command, self._context = context.info_name, context
        sources = {name: context.get_parameter_source(name).name for name in context.params}
        self.typed = [name for name in sources if sources[name] == "COMMANDLINE" and getattr(self, name) != []]
        self.given = [*self.typed, *(name for name in sources if sources[name] == "ENVIRONMENT")]

    def __getattr__(self, name: str) -> Any:
        return self._context.params.get(name)

    def ignore(self, name: str) -> None:
        """Give an option of the environment its default."""
        (parameter,) = (option for option in self._context.command.params if option.name == name)
        self._context.params[name] = parameter.default
        self.given.remove(name)

    def has(self, name: str) -> bool:
        """Return whether the command has an option."""
        return name in self._context.params

    @property
    def is_checkpoint(self) -> bool:
        """Whether a checkpoint runs instead of the toy layer."""
        return self.has("num_heads") and self.model is not None

    @property
    def is_toy(self) -> bool:
        """Whether the toy layer computes."""
        return self.has("num_heads") and self.model is None and not self.from_

    @property
    def has_words(self) -> bool:
        """Whether the words of the text are its tokens, without special ones."""
        return self.has("vocab") and self.model is None and not self.from_ and self.vocab in (None, "words")

    @property
    def folder(self) -> str | None:
        """The folder of parts that the output is, if it is one."""
        return options.folder_of(self.output) if self.has("on") or self.command == "ablate" else None

    @property
    def form(self) -> str:
        """The format of the output; a device has no ending, and gets the table."""
        ending = Path(str(self.output or "")).suffix.lower().removeprefix(".").replace("txt", "table")
        return str(self.format_ or ending or ("table" if self.folder is None else "parquet"))

    @property
    def is_drawn(self) -> bool:
        """Whether the output is for people."""
        from attncli.formats import DRAWN

        return self.form in DRAWN

    @property
    def is_figure(self) -> bool:
        """Whether the output is a figure for a paper."""
        from attncli.formats import FIGURES

        return self.command == "inspect" and (self.form in FIGURES or self.size is not None)

    @property
    def one_process(self) -> str:
        """Results that are made in one process, in words, if there are any."""
        if self.command == "inspect" and self.save:
            return "--save, which keeps a trace, one sentence after the other"
        is_drawn = self.command in ("inspect", "tokens") and self.is_drawn
        return f"{self.form}, which is drawn, one sentence after the other" if is_drawn else ""


def _names(*groups: type[Options]) -> set[str]:
    return {name for group in groups for name, _, _ in options_of(group)}


_OF_TOY, _OF_CHECKPOINTS = (set(group.names()) for group in (ToyOptions, EngineOptions))
_OF_TOY, _OF_CHECKPOINTS = _OF_TOY - _OF_CHECKPOINTS, _OF_CHECKPOINTS - _OF_TOY
_OF_SOURCE = _names(options.CommonOptions, options.Parallel) | {"generate", "on"}
_OF_SOURCE -= _names(options.Selection) | _names(options.PositionLayout) | {"from_", "image"}
_OF_TEXTS = (_names(options.TextAndTarget) | {"from_"}) - {"no_special"}
_OF_RANKINGS = _OF_TEXTS - {"image"} | {"induction", "query", "metrics", "sort"}

# Options, the runs that they do not apply to, and those runs in words, with the remedy.
TABLE: dict[str, list[tuple[set[str] | str, Callable[[CommandLine], Any], str]]] = {
    "refused": [
        (_OF_SOURCE, lambda run: run.from_, "--from, whose attention is already computed; drop one of them"),
        (_OF_TOY, lambda run: run.is_checkpoint, "--model; it belongs to the toy layer"),
        (_OF_CHECKPOINTS, lambda run: run.is_toy, "the toy layer; give --model, or leave it out"),
        ("grid prefix", lambda run: not run.from_, "a model, whose processor sets it; give --from"),
        ("prefix", lambda run: not run.grid, "a run without --grid; give --grid, such as 14x14"),
        ("tower", lambda run: not run.image, "a run without --image; drop it, or give --image"),
        ("text file", lambda run: run.tower == "vision", "--tower vision, which reads --image alone; drop one of them"),
        ("pair target", lambda run: run.image, "--image; drop one of them"),
        ("whole", lambda run: run.text and "-" not in run.text, "TEXT, which is one text already; drop it"),
        ("column", lambda run: run.file in (None, "-"), "sentences without --file; give --file NAME.csv or .jsonl"),
        ("init", lambda run: run.project == "none" and not run.out_proj, "--project none, which has no weights"),
        ("quiet", lambda run: run.verbose, "--verbose; drop one of them"),
        ("pair target", lambda run: run.chat, "--chat, which makes one text of all messages; drop one of them"),
        ("no_special", lambda run: run.chat, "--chat, whose template writes the special tokens; drop one of them"),
        ("hide_special no_special", lambda run: run.has_words, "--vocab words, which adds none"),
        ("norms", lambda run: run.rollout, "--rollout, which multiplies weights; drop one of them"),
        ("head", lambda run: run.rollout, "--rollout, which is the mean over all heads; drop one of them"),
        ("words", lambda run: run.generate, "--generate, whose tokens have no places in the text"),
        (
            "words norms rollout mean top_keys",
            lambda run: run.command == "inspect" and run.form == "html",
            "html, whose page holds all weights as they are; give svg or md",
        ),
        ("top_keys", lambda run: run.is_figure, "a figure, whose maps show every key; give svg without --size"),
        (
            "show",
            lambda run: run.is_figure and not {"heatmap", "weights"} & set((run.show or "weights").split(",")),
            "a figure, which is maps of weights; give svg without --size",
        ),
        ("size", lambda run: run.command == "show" and run.text, "TEXT, whose words are the keys; drop it"),
        (
            "size",
            lambda run: run.command == "inspect" and run.form not in ("svg", "pdf", "png"),
            "{run.form}; it is of a figure: give -o figure.pdf, .png or .svg",
        ),
        ("jobs", lambda run: run.one_process and run.jobs != "1", "{run.one_process}; give --format jsonl, or drop it"),
        ("save", lambda run: run.folder is not None, "-o FOLDER/, whose parts are of many sentences"),
        ("on", lambda run: run.folder is None, "a file; give -o FOLDER/, a dataset of parts, each of which is a task"),
        ("device_map", lambda run: run.on, "--on, where each process has one device; give --device cuda"),
        (
            "device",
            lambda run: run.on and re.fullmatch(r"cuda:\d+", run.device),
            "--on, where Ray chooses the GPU; give --device cuda",
        ),
        ("lengths", lambda run: run.command == "run" and not run.prove, "a run without --prove; give --prove EXPR"),
        ("expect place save", lambda run: run.prove, "--prove, which asks whole models; drop one of them"),
        (
            "top",
            lambda run: run.command == "heads" and not (run.sort or run.induction or run.pairs),
            "heads in their places; give --sort METRIC, which ranks them",
        ),
        (_OF_TEXTS, lambda run: run.induction, "--induction, which draws its tokens; drop one of them"),
        (_OF_RANKINGS, lambda run: run.pairs, "--pairs, whose file has the texts and queries; drop one of them"),
        (
            "dtype",
            lambda run: run.command == "convert" and run.to != "additive",
            "--to {run.to}, which writes booleans; leave it out",
        ),
    ],
    # What the environment alone may set without an error.
    "ignored": [
        ("model", lambda run: not _OF_TOY.isdisjoint(run.typed), "the toy layer"),
        ("offline", lambda run: run.command == "tokens" and run.has_words, "the words of a text"),
        ("device", lambda run: run.device_map, "--device-map"),
        ("device_map", lambda run: run.device, "--device"),
        ("precision", lambda run: not run.is_drawn, "what programs read"),
    ],
}


def check_applicable(context: Any) -> None:
    """Give the options of the environment that do not apply to a run their defaults.

    Raises:
        UsageError: a typed option does not apply.
    """
    run = CommandLine(context)
    for kind in ("ignored", "refused"):
        for names, applies, why in TABLE[kind]:
            present = [name for name in run.given if name in (names.split() if isinstance(names, str) else names)]
            if not present or not applies(run):
                continue
            for name in present:
                if name not in run.typed:
                    run.ignore(name)
                elif kind == "refused":
                    option = "TEXT" if name == "text" else f"--{dashed(name)}"
                    raise UsageError(f"{option} does not apply to {why.format(run=run)}")
