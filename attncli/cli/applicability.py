"""Options that do not apply to a run, and default models. Typed options are refused, those of variables ignored."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attncli.checkpoints import is_checkpoint
from attncli.checkpoints.options import EngineOptions, ToyOptions
from attncli.cli import options
from attncli.cli.groups import Options, dashed, options_of
from attncli.errors import UsageError
from attncli.formats import DRAWN, FIGURES

DEFAULT_MODELS = {"heads": "demo", "explore": "demo", "why": "demo", "ablate": "demo"}
"""Models of the commands without `--model`; others have the toy layer, as all have with one of its options."""


class CommandLine:
    """The options of a run; an attribute with the name of one is its value, None where it has none.

    `typed` are the options on the command line, `given` those and the ones that the environment sets.
    """

    def __init__(self, context: Any) -> None:
        self.command, self._context, self.params = context.info_name, context, context.params
        sources = {name: context.get_parameter_source(name).name for name in self.params}
        self.typed = [name for name, source in sources.items() if source == "COMMANDLINE" and self.params[name] != []]
        self.given = [*self.typed, *(name for name, source in sources.items() if source == "ENVIRONMENT")]

    def __getattr__(self, name: str) -> Any:
        return self.params.get(name)

    def move_checkpoints(self) -> None:
        """Move folders of checkpoints from the sentences to a `--model` of several: a shell expands `-m run/ckpt-*`."""
        if isinstance(self.model, list) and "text" in self.typed:
            folders = [text for text in self.text if is_checkpoint(text)]
            self.model.extend(folders)
            self.params["text"] = [text for text in self.text if text not in folders] or None
            if not self.text:
                self.typed.remove("text")
                self.given.remove("text")

    def ignore(self, name: str) -> None:
        """Give an option of the environment its default."""
        (self.params[name],) = (option.default for option in self._context.command.params if option.name == name)
        self.given.remove(name)

    def set_model(self) -> None:
        """Give a run without `--model` its default, and the toy layer, which is `toy`, no checkpoint.

        Raises:
            UsageError: the command has no toy layer.
        """
        models = self.model if isinstance(self.model, list) else [self.model]
        if "toy" in models and not {"num_heads", "vocab"} & self.params.keys():
            raise UsageError(f"{self._context.command_path} reads a checkpoint, and toy is none; give -m demo")
        is_toy = not {*_OF_TOY, "target", "from_"}.isdisjoint(self.typed)  # the demo has no decoder
        if self.model is None and self.command in DEFAULT_MODELS and not is_toy:
            name = DEFAULT_MODELS[self.command]
            self.params["model"] = [name] if self.command == "heads" else name
        elif "toy" in models:
            self.params["model"] = [None if name == "toy" else name for name in models] if len(models) > 1 else None

    @property
    def has_several(self) -> bool:
        """Whether there are several checkpoints."""
        return isinstance(self.model, list) and len(self.model) > 1

    @property
    def has_toy(self) -> bool:
        """Whether the toy layer is one of the command's models."""
        return "num_heads" in self.params

    @property
    def is_toy(self) -> bool:
        """Whether the toy layer computes."""
        return self.has_toy and self.model is None and not self.from_

    @property
    def has_words(self) -> bool:
        """Whether the words of the text are its tokens, without special ones."""
        return "vocab" in self.params and self.model is None and not self.from_ and self.vocab in (None, "words")

    @property
    def folder(self) -> str | None:
        """The folder of parts that the output is, if it is one."""
        return options.folder_of(self.output) if "on" in self.params or self.command == "ablate" else None

    @property
    def form(self) -> str:
        """The format of the output; a device has no ending, and gets the table."""
        ending = Path(str(self.output or "")).suffix.lower().removeprefix(".").replace("txt", "table")
        return str(self.format_ or ending or ("table" if self.folder is None else "parquet"))

    @property
    def is_figure(self) -> bool:
        """Whether the output is a figure for a paper."""
        return self.command == "inspect" and (self.form in FIGURES or self.size is not None)


def _names(*groups: type[Options]) -> set[str]:
    return {name for group in groups for name, _, _ in options_of(group)}


_TOY, _CHECKPOINTS = {*ToyOptions.names()}, {*EngineOptions.names()}
_OF_TOY, _OF_CHECKPOINTS = _TOY - _CHECKPOINTS, _CHECKPOINTS - _TOY
_OF_SOURCE = _names(options.CommonOptions, options.Parallel) | {"generate", "on"}
_OF_SOURCE -= _names(options.Selection) | {"from_", "grid", "image", "model", "prefix"}
_OF_LOADING = _names(options.Engine)
_COMPUTED = "--from, whose attention is already computed; drop one of them"
_OF_TEXTS = (_names(options.TextAndTarget) | {"from_"}) - {"no_special"}
_OF_DIFFERENCES = {"query", "top", "precision", "colormap", "ramp", "layer", "head", "kind", "target", "image", "grid"}
_OF_RANKINGS = _OF_TEXTS - {"image"} | {"induction", "query", "metrics", "sort"}

# Options, the runs that they do not apply to, and those runs in words, with the remedy.
TABLE: dict[str, list[tuple[set[str] | str, Callable[[CommandLine], Any], str]]] = {
    "refused": [
        (_OF_SOURCE - _OF_LOADING - {"text"}, lambda run: run.from_, _COMPUTED),
        ("text", lambda run: run.from_ and not (run.first and run.model), _COMPUTED),
        (_OF_LOADING, lambda run: run.from_ and not run.model, "--from without the --model of a capture; drop it"),
        (_OF_TOY, lambda run: run.has_toy and run.model, "--model; it belongs to the toy layer"),
        (_OF_CHECKPOINTS, lambda run: run.is_toy, "the toy layer; give --model, or leave it out"),
        ("mask", lambda run: run.first, "--first, which compares the masks of the runs; drop one of them"),
        (
            _OF_DIFFERENCES,
            lambda run: run.first,
            "--first, which compares whole runs of one text; drop one of them",
        ),
        ("grid prefix", lambda run: not run.from_, "a model, whose processor sets it; give --from"),
        ("prefix", lambda run: not run.grid, "a run without --grid; give --grid, such as 14x14"),
        ("tower", lambda run: not run.image, "a run without --image; drop it, or give --image"),
        ("text file", lambda run: run.tower == "vision", "--tower vision, which reads --image alone; drop one of them"),
        ("pair target", lambda run: run.image, "--image; drop one of them"),
        ("whole", lambda run: run.text and "-" not in run.text, "TEXT, which is one text already; drop it"),
        ("column", lambda run: run.file in (None, "-"), "sentences without --file; give --file NAME.csv or .jsonl"),
        ("init", lambda run: run.project == "none" and not run.out_proj, "--project none, which has no weights"),
        (
            "layer target fail_on",
            lambda run: run.command == "check" and run.against,
            "--against, which compares all layers of a text; drop one of them",
        ),
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
            "{run.form}; it sets the size of a figure: give -o figure.pdf, .png or .svg",
        ),
        ("jobs", lambda run: run.save and run.jobs != "1", "--save, which keeps a trace; drop one of them"),
        (
            "jobs",
            lambda run: run.command in ("inspect", "tokens") and run.form in DRAWN and run.jobs != "1",
            "{run.form}, which draws one sentence at a time; give --format jsonl, or drop it",
        ),
        (
            "from_",
            lambda run: run.folder is not None,
            "-o FOLDER/, which holds many sentences; give -o x.parquet",
        ),
        ("save", lambda run: run.folder is not None, "-o FOLDER/, whose parts hold many sentences"),
        ("on", lambda run: run.folder is None, "a file; give -o FOLDER/, whose parts Ray computes"),
        ("device_map", lambda run: run.on, "--on, where each process has one device; give --device cuda"),
        (
            "device",
            lambda run: run.on and re.fullmatch(r"cuda:\d+", run.device),
            "--on, where Ray chooses the GPU; give --device cuda",
        ),
        ("lengths", lambda run: run.command == "run" and not run.prove, "a run without --prove; give --prove EXPR"),
        ("warn fail", lambda run: run.command == "run" and not run.every, "a run without --every; give --every N"),
        ("expect place prove save no_fail", lambda run: run.every, "--every, which checks no mask; drop one of them"),
        ("expect place save", lambda run: run.prove, "--prove, which asks whole models; drop one of them"),
        (
            "top",
            lambda run: run.command == "heads" and not (run.sort or run.induction or run.pairs),
            "heads that are not ranked; give --sort METRIC",
        ),
        (
            "sort top pairs from_ ramp",
            lambda run: run.has_several and (run.command == "heads" or (len(run.model) > 2 and not run.first)),
            "several checkpoints, whose heads are listed by their change; drop it, or give one -m",
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
        ("model", lambda run: run.from_, "--from"),
        ("offline", lambda run: run.command == "tokens" and run.has_words, "the words of a text"),
        ("device", lambda run: run.device_map, "--device-map"),
        ("device_map", lambda run: run.device, "--device"),
        ("precision", lambda run: run.form not in DRAWN, "what programs read"),
    ],
}


def check_applicable(context: Any) -> None:
    """Give a run its default model, and options of the environment that do not apply to it their defaults.

    Raises:
        UsageError: a typed option does not apply.
    """
    run = CommandLine(context)
    run.move_checkpoints()
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
        if kind == "ignored":
            run.set_model()
