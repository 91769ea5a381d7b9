"""Options that do not apply to a run: one table; typed ones are refused, those of settings are ignored."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from attncli.checkpoints.options import EngineOptions, ToyOptions
from attncli.cli import options
from attncli.cli.groups import Options, dashed, options_of
from attncli.cli.settings import Setting
from attncli.errors import UsageError


class CommandLine:
    """Values of a run's options, on its command line, and in the environment and files.

    Args:
        command: its name.
        names: of its options, in Python.
        typed: the values on the command line, as texts.
        standing: the values of settings.
    """

    def __init__(
        self, command: str, names: Collection[str], typed: Mapping[str, Any], standing: Mapping[str, Setting]
    ) -> None:
        self.command, self.names, self.typed, self.standing = command, names, typed, dict(standing)

    def value(self, name: str) -> Any:
        """Return the value of an option; None where it has none."""
        return self.typed.get(name, self.standing[name].value if name in self.standing else None)

    def is_nearer(self, name: str, other: str) -> bool:
        """Return whether one option is set nearer to the command line than another one that is set."""

        def rank(name: str) -> int:
            return -1 if name in self.typed else self.standing[name].rank if name in self.standing else 3

        return rank(name) < rank(other)

    @property
    def is_checkpoint(self) -> bool:
        """Whether a checkpoint runs instead of the toy layer."""
        return "num_heads" in self.names and self.value("model") is not None

    @property
    def is_toy(self) -> bool:
        """Whether the toy layer computes."""
        return "num_heads" in self.names and self.value("model") is None and not self.value("from_")

    @property
    def has_words(self) -> bool:
        """Whether the words of the text are its tokens, without special ones."""
        is_of_text = self.value("model") is None and not self.value("from_")
        return "vocab" in self.names and is_of_text and self.value("vocab") in (None, "words")

    @property
    def toy_option(self) -> str:
        """The option of the command line that the toy layer alone has, if there is one."""
        return next((f"--{dashed(name)}" for name in self.typed if name in _OF_TOY), "")

    @property
    def folder(self) -> str | None:
        """The folder of parts that the output is, if it is one."""
        return options.folder_of(self.value("output")) if "on" in self.names or self.command == "ablate" else None

    @property
    def form(self) -> str:
        """The format of the output; a device has no ending, and gets the table."""
        ending = Path(self.value("output") or "").suffix.lower().removeprefix(".").replace("txt", "table")
        return str(self.value("format_") or ending or ("table" if self.folder is None else "parquet"))

    @property
    def is_drawn(self) -> bool:
        """Whether the output is for people."""
        from attncli.formats import DRAWN

        return self.form in DRAWN

    @property
    def is_figure(self) -> bool:
        """Whether the output is a figure for a paper."""
        from attncli.formats import FIGURES

        return self.command == "inspect" and (self.form in FIGURES or self.value("size") is not None)

    @property
    def has_texts(self) -> bool:
        """Whether sentences stand on the command line."""
        return bool(self.value("text")) and "-" not in self.value("text")

    @property
    def shows_no_map(self) -> bool:
        """Whether `--show` leaves nothing for a figure to draw."""
        return self.is_figure and not {"heatmap", "weights"} & set((self.value("show") or "weights").split(","))

    @property
    def one_process(self) -> str:
        """Results that are made in one process, in words, if there are any."""
        if self.command == "inspect" and self.value("save"):
            return "--save, which keeps a trace, one sentence after the other"
        is_drawn = self.command in ("inspect", "tokens") and self.is_drawn
        return f"{self.form}, which is drawn, one sentence after the other" if is_drawn else ""

    @property
    def is_unranked(self) -> bool:
        """Whether heads stand by layer and head."""
        return self.command == "heads" and not any(map(self.value, ("sort", "induction", "pairs")))


class Exclusion(NamedTuple):
    """Options that do not apply to some runs.

    Attributes:
        names: of the options, in Python.
        to: returns whether a run is one of these.
        why: those runs in words, and the remedy.
        is_refused: whether typing one is an error; else it is only ignored as a setting.
    """

    names: Collection[str]
    to: Callable[[CommandLine], Any]
    why: str
    is_refused: bool = True


def _names(*groups: type[Options]) -> set[str]:
    return {name for group in groups for name, _, _ in options_of(group)}


_OF_TOY, _OF_CHECKPOINTS = (set(one.names()) for one in (ToyOptions, EngineOptions))
_OF_TOY, _OF_CHECKPOINTS = _OF_TOY - _OF_CHECKPOINTS, _OF_CHECKPOINTS - _OF_TOY
_OF_SOURCE = _names(options.CommonOptions, options.Parallel) - _names(options.Selection)
_OF_SOURCE -= {"from_", "image", *_names(options.PositionLayout)}
_OF_TEXTS = _names(options.TextAndTarget) - {"no_special"}


def _uses(name: str) -> Callable[[CommandLine], Any]:
    return lambda line: line.value(name)


TABLE = (
    Exclusion(
        {*_OF_SOURCE, "generate", "on"}, _uses("from_"), "--from, whose attention is already computed; drop one of them"
    ),
    Exclusion(
        {"model"}, lambda line: line.toy_option, "the toy layer, which {line.toy_option} asks for", is_refused=False
    ),
    Exclusion(_OF_TOY, lambda line: line.is_checkpoint, "--model; it belongs to the toy layer"),
    Exclusion(_OF_CHECKPOINTS, lambda line: line.is_toy, "the toy layer; give --model, or leave it out"),
    Exclusion(
        {"offline"}, lambda line: line.command == "tokens" and line.has_words, "the words of a text", is_refused=False
    ),
    Exclusion(
        {"grid", "prefix"}, lambda line: not line.value("from_"), "a model, whose processor sets it; give --from"
    ),
    Exclusion({"prefix"}, lambda line: not line.value("grid"), "a run without --grid; give --grid, such as 14x14"),
    Exclusion({"tower"}, lambda line: not line.value("image"), "a run without --image; drop it, or give --image"),
    Exclusion(
        {"text", "file"},
        lambda line: line.value("tower") == "vision",
        "--tower vision, which reads --image alone; drop one of them",
    ),
    Exclusion({"pair", "target"}, _uses("image"), "--image; drop one of them"),
    Exclusion({"whole"}, lambda line: line.has_texts, "TEXT, which is one text already; drop it"),
    Exclusion(
        {"column"},
        lambda line: line.value("file") in (None, "-"),
        "sentences without --file; give --file NAME.csv, .tsv, .jsonl or .parquet",
    ),
    Exclusion({"device"}, lambda line: line.is_nearer("device_map", "device"), "--device-map", is_refused=False),
    Exclusion({"device_map"}, lambda line: line.is_nearer("device", "device_map"), "--device", is_refused=False),
    Exclusion(
        {"init"},
        lambda line: line.value("project") == "none" and not line.value("out_proj"),
        "--project none, which has no weights; drop one of them",
    ),
    Exclusion({"precision"}, lambda line: not line.is_drawn, "what programs read", is_refused=False),
    Exclusion({"quiet"}, _uses("verbose"), "--verbose; drop one of them"),
    Exclusion({"pair", "target"}, _uses("chat"), "--chat, which makes one text of all messages; drop one of them"),
    Exclusion({"no_special"}, _uses("chat"), "--chat, whose template writes the special tokens; drop one of them"),
    Exclusion({"hide_special", "no_special"}, lambda line: line.has_words, "--vocab words, which adds none"),
    Exclusion({"norms"}, _uses("rollout"), "--rollout, which multiplies weights; drop one of them"),
    Exclusion({"head"}, _uses("rollout"), "--rollout, which is the mean over all heads; drop one of them"),
    Exclusion({"words"}, _uses("generate"), "--generate, whose tokens have no places in the text"),
    Exclusion(
        {"words", "norms", "rollout", "mean", "top_keys"},
        lambda line: line.command == "inspect" and line.form == "html",
        "html, whose page holds all weights as they are; give svg or md",
    ),
    Exclusion(
        {"top_keys"}, lambda line: line.is_figure, "a figure, whose maps show every key; give svg without --size"
    ),
    Exclusion({"show"}, lambda line: line.shows_no_map, "a figure, which is maps of weights; give svg without --size"),
    Exclusion(
        {"size"}, lambda line: line.command == "show" and line.value("text"), "TEXT, whose words are the keys; drop it"
    ),
    Exclusion(
        {"size"},
        lambda line: line.command == "inspect" and line.form not in ("svg", "pdf", "png"),
        "{line.form}; it is of a figure: give -o figure.pdf, .png or .svg",
    ),
    Exclusion(
        {"jobs"},
        lambda line: line.one_process and line.value("jobs") != "1",
        "{line.one_process}; give --format jsonl, or drop it",
    ),
    Exclusion({"save"}, lambda line: line.folder is not None, "-o FOLDER/, whose parts are of many sentences"),
    Exclusion(
        {"on"}, lambda line: line.folder is None, "a file; give -o FOLDER/, a dataset of parts, each of which is a task"
    ),
    Exclusion({"device_map"}, _uses("on"), "--on, where each process has one device; give --device cuda"),
    Exclusion(
        {"device"},
        lambda line: line.value("on") and re.fullmatch(r"cuda:\d+", line.value("device")),
        "--on, where Ray chooses the GPU; give --device cuda",
    ),
    Exclusion(
        {"lengths"},
        lambda line: line.command == "run" and not line.value("prove"),
        "a run without --prove; give --prove EXPR",
    ),
    Exclusion({"expect", "place", "save"}, _uses("prove"), "--prove, which asks whole models; drop one of them"),
    Exclusion({"top"}, lambda line: line.is_unranked, "heads in their places; give --sort METRIC, which ranks them"),
    Exclusion({*_OF_TEXTS, "from_"}, _uses("induction"), "--induction, which draws its tokens; drop one of them"),
    Exclusion(
        {*_OF_TEXTS - {"image"}, "from_", "induction", "query", "metrics", "sort"},
        _uses("pairs"),
        "--pairs, whose file has the texts and queries; drop one of them",
    ),
    Exclusion(
        {"dtype"},
        lambda line: line.command == "convert" and line.value("to") != "additive",
        "--to {line.typed[to]}, which writes booleans; leave it out",
    ),
)


def leave_out(line: CommandLine) -> tuple[dict[str, str], str]:
    """Remove settings that do not apply.

    Returns:
        The removed settings, by name, each with the reason; and the error of the typed options, if there is one.
    """
    taken: dict[str, str] = {}
    error = ""
    for row in TABLE:
        present = [name for name in (*line.typed, *line.standing) if name in row.names]
        if not present or not row.to(line):
            continue
        why = row.why.format(line=line)
        for name in present:
            if name not in line.typed:
                taken[name] = f"does not apply to {why.partition(';')[0]}"
                del line.standing[name]
            elif row.is_refused and not error:
                option = "TEXT" if name == "text" else f"--{dashed(name)}"
                error = f"{option} does not apply to {why}"
    return taken, error


def check_applicable(line: CommandLine) -> dict[str, Setting]:
    """Return the settings that apply to a run.

    Raises:
        UsageError: a typed option does not apply.
    """
    _, error = leave_out(line)
    if error:
        raise UsageError(error)
    return line.standing
