"""The options of the commands: each one once, with the same letter and the same meaning everywhere, in groups.

Defaults live with what they configure (`ToyOptions`, `EngineOptions`); here None means that an option is not in use, so
that one which does not apply to the source is told from one that was left alone.
"""

# Annotations are values here, not texts that would have to be compiled once more when a command is built.
import os
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Context

from attncli.checkpoints import options as checkpoints
from attncli.cli.groups import Options, argument, choices_of, dashed, option
from attncli.errors import UsageError
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.cli.environment import Environment, PictureFile, Terminal
    from attncli.corpus.read import SentenceReader

# An option in one of the panels of the help; commands make their own options of these too.
input_option = partial(option, panel="Input")
model_option = partial(option, panel="Model")
toy_option = partial(option, panel="Toy layer (without --model)")
choice_option = partial(option, panel="Selection")
derived_option = partial(option, panel="View")
view_option = partial(option, panel="View")
output_option = partial(option, panel="Output")
size_option = partial(option, panel="Size")

Lengths = Annotated[str | None, input_option("Set the tokens of each batch row, for pad, such as 5,2.", "LENGTHS")]


def parse_lengths(text: str | None) -> list[int] | None:
    """Return how many tokens each row of a batch has.

    Raises:
        UsageError: the text is no list of numbers.
    """
    numbers = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in numbers):
        raise UsageError(f"--lengths {visible(text or '')}: expected numbers such as 5,2")
    return [int(part) for part in numbers] or None


# --- input ------------------------------------------------------------------------------------------------

File = Annotated[str | None, input_option("Read sentences from files; - is standard input.", "PATH|URL", "-f")]
Column = Annotated[
    str | None, input_option("Read sentences from this column or field. Default: text.", "NAME", rare=True)
]
Pair = Annotated[str | None, input_option("Add a second text to the same sequence.", "TEXT")]
Target = Annotated[str | None, input_option("Set the decoder's text, whose queries attend to TEXT.", "TEXT")]
From = Annotated[Path | None, input_option("Read a saved trace, a capture of an engine, or a dump of q and k.", "FILE")]
NoSpecial = Annotated[bool, choice_option("Add no special tokens.", rare=True)]
Chat = Annotated[bool, input_option("Apply the chat template: a sentence or a JSON list of messages.", rare=True)]


class TextOptions(Options):
    """Options of the sentences, and of a second text in the sequence of each."""

    text: list[str] | None = argument("Sentences, each in quotes; - reads standard input, one a line.", "TEXT")
    file: File = None
    column: Column = None
    whole: bool = input_option("Read a file or standard input as one text.", rare=True)
    pair: Pair = None
    no_special: NoSpecial = False
    chat: Chat = False

    @cached_property
    def reader(self) -> "SentenceReader | None":
        """The reader of the files of sentences, None without `--file`; see `SentenceReader.of` for the errors."""
        if self.file in (None, "-"):
            return None
        from attncli.corpus.read import SentenceReader

        return SentenceReader.of(self.file, column=self.column, whole=self.whole, chat=self.chat)

    @property
    def files(self) -> list[str]:
        """The names of the files of sentences, where there are several."""
        files = () if self.reader is None else self.reader.files
        return [file.name for file in files] if len(files) > 1 else []

    @property
    def of_model(self) -> dict[str, object]:
        """Options of how texts are encoded, as in `open_source`."""
        return {"special": not self.no_special, **({"chat": True} if self.chat else {})}

    @property
    def origin(self) -> dict[str, str]:
        """The input that a resumed run must have: its texts, or its files with their sizes."""
        if self.reader is None:
            return {} if self.text in (None, ["-"]) else {"texts": " / ".join(self.text or ())}
        files = self.reader.files
        sizes = ["" if file.root else f" of {os.path.getsize(file.path):,} bytes" for file in files]
        return {f"file {index}": file.name + sizes[index] for index, file in enumerate(files)}

    @property
    def pictures(self) -> list[str]:
        """The files of pictures that are read in the place of sentences."""
        return []

    @property
    def names_pictures(self) -> bool:
        """Whether lines of the file name pictures, each besides its text."""
        return self.reader is not None and self.reader.names_pictures

    @property
    def is_one_text(self) -> bool:
        """Whether the file or standard input is one text, or one list of messages."""
        return self.whole if self.reader is None else self.reader.is_one

    @property
    def is_alone(self) -> bool:
        """Whether there can be one sentence only, which need not be named by its number."""
        texts = self.pictures or self.text or ()
        return self.is_one_text or (texts != ["-"] and len(texts) == 1)

    @property
    def last_number(self) -> int | None:
        """The number of the last sentence or empty line, if there is a quick way to know."""
        texts = self.pictures or self.text or ()
        if self.file is None:
            return len(texts) if texts and texts != ["-"] else None
        return 1 if self.is_one_text else None if self.reader is None else self.reader.last_number()


Image = Annotated[list[str] | None, input_option("Read a picture beside TEXT, or alone. Repeatable.", "IMAGE")]


class TextAndTarget(TextOptions):
    """The same, and the text whose queries attend to them."""

    target: Target = None
    image: Image = None
    tower: checkpoints.Tower | None = input_option(
        "Choose the tower. Default: text; vision for --image alone.", rare=True
    )

    @property
    def has_text(self) -> bool:
        """Whether there are sentences, besides pictures that are read alone."""
        return not self.image or self.tower == "text" or bool(self.text) or self.file is not None

    @cached_property
    def pictures(self) -> list[str]:
        """The files of pictures that are read alone, each as a sentence; see `picture_files` for the errors."""
        if self.has_text:
            return []
        from attncli.encoding.pictures import picture_files

        return picture_files(self.image or ())

    @property
    def of_source(self) -> dict[str, object]:
        """Options of the pictures for the source, as in `open_source`."""
        if not self.image:
            return {"image": ()} if self.names_pictures else {}
        return {"image": self.image, "tower": self.tower} if self.has_text else {"tower": "vision"}


# --- model ------------------------------------------------------------------------------------------------

DemoModel = Annotated[
    str | None,
    model_option("Use a checkpoint, demo or toy. Default: demo.", "MODEL", "-m", env=True),
]
Mask = Annotated[str | None, choice_option("Set the mask. Default: the model's own, or causal.", "EXPR|FILE")]
Vocab = Annotated[
    str | None,
    toy_option("Choose the vocabulary: words, or a tokenizer. Default: words.", "words|TOKENIZER", rare=True),
]


class HubOptions(Options):
    """Options of a checkpoint's origin, and of running its code."""

    offline: bool = model_option("Use the local cache only.", env=True, rare=True)
    trust_remote_code: bool = model_option("Run the Python code in the checkpoint.", rare=True)
    tokenizer: str | None = model_option("Use this tokenizer. Default: the checkpoint's own.", "FOLDER|NAME", rare=True)
    ids: bool = input_option("Read TEXT as token ids, such as '101 2051 102'.", rare=True)
    base: str | None = model_option("Set the model under an adapter. Default: the one it names.", "MODEL", rare=True)


class Load(HubOptions):
    """Options of loading a checkpoint: the fields of `LoadOptions`."""

    dtype: checkpoints.Dtype | None = model_option(
        "Set the type of the weights. Default: float32; on a GPU the model's.", rare=True, env=True
    )
    device: str | None = model_option("Run on cpu, cuda, cuda:1 or mps. Default: cpu.", "NAME", env=True)
    device_map: str | None = model_option(
        "Spread the model over several devices with accelerate.", "auto", rare=True, env=True
    )
    truncate: bool = model_option("Cut texts to the most tokens that the model reads.", rare=True)


class Engine(Load):
    """Options of loading and computing a checkpoint: the fields of `EngineOptions`."""

    engine: checkpoints.Engine | None = model_option("Choose the engine; verify runs both. Default: auto.", env=True)


class Toy(Options):
    """Options of the toy layer: the fields of `ToyOptions`, but for `offline`, which is among those of the hub."""

    d_model: int | None = toy_option("Set the width of the embeddings. Default: 32.", "N", env=True)
    num_heads: int | None = toy_option("Set the number of heads. Default: 4; 1 with --project none.", "N", env=True)
    d_k: int | None = toy_option("Set a head's query and key width. Default: d-model / num-heads.", "N", rare=True)
    d_v: int | None = toy_option("Set a head's value width. Default: d-model / num-heads.", "N", rare=True)
    init: checkpoints.Init | None = toy_option(
        "Choose how weights are drawn. Default: scaled, N(0, 1/d-model).", rare=True, env=True
    )
    project: checkpoints.Project | None = toy_option("Choose which of Q, K, V are projected. Default: qkv.", rare=True)
    positions: checkpoints.Positions | None = toy_option(
        "Add a position encoding to the embeddings. Default: none.", rare=True, env=True
    )
    scale: str | None = toy_option(
        "Multiply q·k by this number. Default: sqrt, which is 1/√d-k.", "sqrt|none|NUMBER", rare=True
    )
    seed: int | None = toy_option("Set the seed of the weights. Default: 0.", "N", env=True)
    rng: checkpoints.Rng | None = toy_option(
        "Draw random numbers by numpy or torch. Default: numpy.", rare=True, env=True
    )
    vocab: Vocab = None
    vocab_size: int | None = toy_option("Set the vocabulary's size. Default: the number of words.", "N", rare=True)
    out_proj: bool | None = toy_option(
        "Project the heads by W_o. Default: yes; no with --project none.",
        rare=True,
        flags="--out-proj/--no-out-proj",
    )


# --- what is wanted of it -----------------------------------------------------------------------------------

EveryLayer = Annotated[str | None, choice_option("Choose layers, such as 2-4 or 0,-1. Default: all.", "LAYERS", "-l")]


class Selection(Options):
    """Options of layers and heads."""

    layer: str | None = choice_option("Choose layers, such as 2-4, 0,-1 or all. Default: 0.", "LAYERS", "-l")
    head: str | None = choice_option("Choose heads, such as 2-4, 0,-1 or L3H2. Default: all.", "HEADS", "-H")
    kind: Literal["self", "encoder", "decoder", "cross"] | None = choice_option(
        "Show one kind of attention alone. Default: every kind that ran.", rare=True
    )


class CommonOptions(Options):
    """Options of a command on traces: of a checkpoint or the toy layer, or saved ones."""

    model: str | None = model_option("Use a checkpoint, demo or toy. Default: toy.", "MODEL", "-m", env=True)
    texts: TextAndTarget
    load: Engine
    toy: Toy
    selection: Selection
    mask: Mask = None
    from_: From = None
    grid: str | None = input_option(
        "Set the rows and columns of the picture that --from attends to.", "ROWSxCOLUMNS", rare=True
    )
    prefix: int | None = input_option(
        "Set the positions before the grid, such as CLS. Default: 0.", "N", rare=True, low=0
    )

    @property
    def is_alone(self) -> bool:
        """Whether there can be one trace only."""
        return self.from_ is not None or self.texts.is_alone


_MOST = 1024  # processes that anyone means


class Parallel(Options):
    """Options of processes."""

    jobs: str | None = model_option("Share the sentences among N processes. Default: auto.", "N|auto", "-j", env=True)

    @property
    def workers(self) -> int | None:
        """Number of processes; None leaves it to the number of sentences, cores and memory."""
        if self.jobs in (None, "auto"):
            return None
        if not (self.jobs.isascii() and self.jobs.isdecimal() and 0 < int(self.jobs) <= _MOST):
            raise UsageError(f"--jobs {visible(self.jobs)}: expected a number of processes from 1 to {_MOST}, or auto")
        return int(self.jobs)


# --- views and output -------------------------------------------------------------------------------------

Precision = Annotated[
    int | None,
    view_option(
        "Set the digits after the point. Default: 4 in tables, else all.", "N", rare=True, env=True, low=0, high=17
    ),
]
Colormap = Annotated[
    Literal["viridis", "cividis", "gray"] | None,
    view_option("Choose the colours of heat maps. Default: viridis.", rare=True, env=True),
]
Ramp = Annotated[
    Literal["sqrt", "linear", "log"] | None, view_option("Choose the colour scale. Default: sqrt.", rare=True, env=True)
]
Color = Annotated[
    Literal["auto", "always", "never"] | None,
    view_option("Colour the output. Default: auto.", env=True),
]
FailOn = Annotated[str | None, option("Fail on these codes only, such as leak,pad. Default: all errors.", "CODES")]


class ViewOptions(Options):
    """Options of the rows, columns and parts of a trace, and their look."""

    query: list[str] | None = choice_option("Show where this query looks: a token, an index or 500:520.", "TOKEN", "-q")
    key: list[str] | None = choice_option("Show this key: a token, an index or 500:520. Repeatable.", "TOKEN", "-k")
    top_keys: int | None = choice_option("Show only the N heaviest keys of each query.", "N", low=1)
    hide_special: bool = choice_option("Compute with the special tokens, but hide them.", rare=True)
    show: str | None = view_option("Show these parts, such as tokens,weights. Default: what fits.", "PARTS")
    colormap: Colormap = None
    ramp: Ramp = None
    precision: Precision = None
    size: str | None = view_option("Set the size of a figure in inches: 3.3in or 3.3inx2in.", "SIZE", rare=True)


class Derive(Options):
    """Options of numbers in place of the weights."""

    words: bool = derived_option("Merge word pieces: sum the keys, average the queries.")
    norms: bool = derived_option("Show ‖weight·value‖: how much each key contributes.")
    rollout: bool = derived_option("Multiply the attention of all layers up to --layer.", rare=True)
    mean: Literal["heads", "layers", "all"] | None = derived_option(
        "Average over the chosen heads, over layers, or over both.", rare=True
    )


def folder_of(output: str | None) -> str | None:
    """Return the folder that `--output` names, absolute; None is a file.

    It ends in a slash, which a path would forget, or is there and has no ending, as every file has that is written.
    """
    if output is None:
        return None
    if "://" in output:
        raise UsageError("--output: expected a path on this machine, not a URL; copy the result there afterwards")
    is_folder = output.endswith(("/", os.sep)) or (not Path(output).suffix and os.path.isdir(output))
    return os.path.abspath(output) if is_folder else None


def provenance(command: str, *groups: Options) -> dict[str, str]:
    """Return the command and the options in use that the numbers of a folder depend on."""
    of_the_run = {"text", "file", "jobs", "on", "offline", "trust_remote_code", "ramp", "colormap"}
    values = {name: value for group in groups for name, value in group.explicit_values() if name not in of_the_run}
    words = {
        f"--{dashed(name)}": ",".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in sorted(values.items())
        if value is not True
    }
    given = {f"--{dashed(name)}": "given" for name, value in values.items() if value is True}
    return {"command": command, **words, **given}


_FORMAT = output_option("Choose the format. Default: that of --output.", letter="-F")


class OutputOptions(Options):
    """Options of the output file and its format."""

    color: Color = None
    width: int | None = view_option(
        "Set the columns of a line. Default: the terminal's.", "N", rare=True, env=True, low=40, high=100_000
    )
    all_: bool = view_option("Show everything; in a terminal through $PAGER.")
    format_: Literal["table", "json", "jsonl", "tsv", "csv", "parquet", "svg", "html", "md"] | None = _FORMAT
    output: str | None = output_option("Write to a file; its ending sets the format.", "FILE", "-o")

    @cached_property
    def file(self) -> Path | None:
        """File to write; None is the default."""
        if self.output == "":  # which would be the working directory
            raise UsageError("--output: the file name is empty")
        return None if self.output is None else Path(self.output)

    @property
    def folder(self) -> str | None:
        """The folder that parts are written into, absolute; None is a file."""
        return folder_of(self.output)

    def chosen(self, takes_folder: bool = False) -> str:
        """Return the format that `--format` and the ending of `--output` agree on; see `choose_format` for the errors.

        A format that needs a file or a package is refused without it.
        """
        from attncli.formats import FIGURES, choose_format

        is_folder = takes_folder and self.folder is not None
        if self.file is not None and not is_folder:
            from attncli.files import check_folder

            check_folder(self.file)  # before anything is computed
        chosen = choose_format(self.format_, self.file, choices_of(type(self), "format_"), is_folder)
        if chosen in FIGURES:
            from attncli.formats.figures import check_figures

            check_figures(self.file, chosen)
        elif chosen == "parquet":
            from attncli.formats.parquet import check_parquet

            check_parquet(self.file)
        return chosen

    def view(
        self, environment: "Environment", chosen: str, command: str
    ) -> "AbstractContextManager[Terminal | PictureFile]":
        """Return an output for views, in one of `formats.DRAWN`; see `Environment.open_view`."""
        return environment.open_view(f"attn {command}", chosen, self.file, self.color, self.width, self.all_)


class TableOutput(OutputOptions):
    """Output of rows."""

    format_: Literal["table", "json", "tsv", "csv", "parquet", "svg", "html", "md"] | None = _FORMAT


class TraceOutput(OutputOptions):
    """Output of traces, sentence by sentence or in parts."""

    output: str | None = output_option("Write to a file, whose ending is its format, or a folder.", "PATH", "-o")


_WithFigures = Literal["table", "json", "jsonl", "tsv", "csv", "parquet", "svg", "pdf", "png", "html", "md"]


class InspectOutput(TraceOutput):
    """Output of traces, or of a figure of their maps."""

    format_: _WithFigures | None = _FORMAT  # type: ignore[assignment]  # there are more of them


class DocumentOutput(OutputOptions):
    """Output of a single document."""

    format_: Literal["table", "json", "svg", "html", "md"] | None = _FORMAT


class PictureOutput(OutputOptions):
    """Output of views only."""

    format_: Literal["table", "svg", "html", "md"] | None = _FORMAT


def _show_every_option(context: Context, is_wanted: bool) -> None:
    if is_wanted:
        from attncli.cli.help import print_help

        print_help(context, is_whole=True)


class Verbosity(Options):
    """Options of a run's output on stderr, and of its help, which every command has."""

    help_all: bool = option("Show every option.", rare=True, eager=_show_every_option)
    quiet: bool = output_option("Print only errors on stderr.")
    verbose: bool = output_option("Report each step and its time on stderr.", letter="-v", rare=True)
