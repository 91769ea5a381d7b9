"""The options of the commands: each one once, with the same letter and the same meaning everywhere, in groups.

Defaults live with what they configure (`ToyOptions`, `EngineOptions`); here None means that an option is not in use, so
that one which does not apply to the source is told from one that was left alone.
"""

# Annotations are values here, not texts that would have to be compiled once more when a command is built; and nobody
# prints or compares a group, whose methods for that would cost a run of the toy layer 3 % to make.
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Context, Exit

from attncli.cli.groups import Options, argument, choices_of, option
from attncli.errors import UsageError
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.cli.environment import Environment
    from attncli.cli.terminal import PictureFile, Terminal
    from attncli.corpus.read import SentenceReader

# An option in one of the panels of the help; commands make their own options of these too.
input_option = partial(option, panel="Input")
model_option = partial(option, panel="Model")
toy_option = partial(option, panel="Toy layer (without --model)")
choice_option = partial(option, panel="What to look at")
derived_option = partial(option, panel="Numbers made of weights")
view_option = partial(option, panel="View")
output_option = partial(option, panel="Output")
size_option = partial(option, panel="Size")

# --- what is read -----------------------------------------------------------------------------------------

File = Annotated[
    str | None, input_option("Read sentences from a file, a folder or a glob; - is standard input.", "PATH|URL", "-f")
]
Column = Annotated[str | None, input_option("The column or field that holds the sentence. Default: text.", "NAME")]
Pair = Annotated[str | None, input_option("A second text in the same sequence.", "TEXT")]
Target = Annotated[str | None, input_option("The text whose queries attend to the sentence's keys.", "TEXT")]
From = Annotated[Path | None, input_option("A saved trace, or a safetensors dump of q and k (v, mask, bias).", "FILE")]
NoSpecial = Annotated[bool, choice_option("Do not add the tokenizer's special tokens.", rare=True)]
Chat = Annotated[
    bool,
    input_option(
        "Read a sentence as a user's turn, through the checkpoint's chat template; of --file NAME.json, a list of "
        "messages.",
        rare=True,
    ),
]


@dataclass(frozen=True, repr=False, eq=False)
class TextOptions(Options):
    """Which sentences, and a second text in the sequence of each."""

    text: Annotated[
        list[str] | None, argument("Sentences, each in quotes; - reads them from standard input, one a line.", "TEXT")
    ] = None
    file: File = None
    column: Column = None
    whole: Annotated[bool, input_option("A file or standard input is one text, newlines and all.", rare=True)] = False
    pair: Pair = None
    no_special: NoSpecial = False
    chat: Chat = False

    @cached_property
    def reader(self) -> "SentenceReader | None":
        """The reader of the files of sentences, which are looked for once; None where `--file` names none.

        Raises:
            UsageError: an option does not apply to what is there.
            InputError: there is no file.
            LoadError: what would look for files is not installed.
        """
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
    def is_one_text(self) -> bool:
        """Whether the file or standard input is one text, or one list of messages."""
        return self.whole if self.reader is None else self.reader.is_one

    @property
    def is_alone(self) -> bool:
        """Whether there can be one sentence only, which need not be named by its number."""
        return self.is_one_text or (self.text != ["-"] and len(self.text or ()) == 1)

    @property
    def last_number(self) -> int | None:
        """The number of the last sentence or empty line, if there is a quick way to know."""
        if self.file is None:
            return len(self.text) if self.text and self.text != ["-"] else None
        if self.is_one_text:
            return 1
        return None if self.reader is None else self.reader.last_number()


@dataclass(frozen=True, repr=False, eq=False)
class TextAndTarget(TextOptions):
    """The same, and the text whose queries attend to them."""

    target: Target = None


# --- what computes ----------------------------------------------------------------------------------------

Model = Annotated[
    str | None,
    model_option(
        "A checkpoint, or demo, which is built in. Default: the toy layer.", "NAME_OR_FOLDER", "-m", setting=None
    ),
]
Mask = Annotated[
    str | None,
    choice_option(
        "Which keys a query may attend to: 'causal & window(4)', mask.npy. Default: causal; a checkpoint's own.",
        "EXPR|FILE|none",
    ),
]
Vocab = Annotated[
    str | None,
    toy_option(
        "The words of the text, or a tokenizer.json, its folder or hub name. Default: words.",
        "words|TOKENIZER",
        rare=True,
    ),
]


@dataclass(frozen=True, repr=False, eq=False)
class HubOptions(Options):
    """Where a checkpoint comes from, and whether the code that it brings may run."""

    offline: Annotated[bool, model_option("Use the local cache only.", setting=False)] = False
    trust_remote_code: Annotated[bool, model_option("Run the Python code that the checkpoint brings.", rare=True)] = (
        False
    )
    base: Annotated[
        str | None,
        model_option(
            "The model under an adapter. Default: the one that the adapter names.", "NAME_OR_FOLDER", rare=True
        ),
    ] = None


@dataclass(frozen=True, repr=False, eq=False)
class Load(HubOptions):
    """How a checkpoint is loaded: the fields of `LoadOptions`."""

    dtype: Annotated[
        Literal["auto", "float32", "float16", "bfloat16", "float64"] | None,
        model_option(
            "Type of the weights. Default: float32 on the CPU, the checkpoint's own elsewhere.", rare=True, setting=None
        ),
    ] = None
    device: Annotated[
        str | None, model_option("Where it runs: cpu, cuda, cuda:1, mps. Default: cpu.", "NAME", setting="cpu")
    ] = None
    device_map: Annotated[
        str | None,
        model_option("Spread the model over several devices, with accelerate.", "auto", rare=True, setting=None),
    ] = None
    truncate: Annotated[bool, model_option("Cut a text to the tokens that the model has positions for.", rare=True)] = (
        False
    )


@dataclass(frozen=True, repr=False, eq=False)
class Engine(Load):
    """How a checkpoint is loaded and what computes it: the fields of `EngineOptions`."""

    engine: Annotated[
        Literal["auto", "native", "transformers", "verify"] | None,
        model_option("What computes the model; verify runs both and compares. Default: auto.", setting="auto"),
    ] = None


@dataclass(frozen=True, repr=False, eq=False)
class Toy(Options):
    """How the toy layer is made: the fields of `ToyOptions`, but for `offline`, which is among those of the hub."""

    d_model: Annotated[int | None, toy_option("Width of the embeddings. Default: 32.", "N", setting=32)] = None
    num_heads: Annotated[
        int | None, toy_option("Number of heads. Default: 4; 1 with --project none.", "N", setting=4)
    ] = None
    d_k: Annotated[
        int | None, toy_option("Query and key width of a head. Default: d-model / num-heads.", "N", rare=True)
    ] = None
    d_v: Annotated[int | None, toy_option("Value width of a head. Default: d-model / num-heads.", "N", rare=True)] = (
        None
    )
    init: Annotated[
        Literal["scaled", "normal", "uniform", "linear", "zeros"] | None,
        toy_option("How the weights are drawn. Default: scaled, N(0, 1/d-model).", rare=True, setting="scaled"),
    ] = None
    project: Annotated[
        Literal["qkv", "qk", "none"] | None,
        toy_option("Which of Q, K, V are projected; the rest are the embeddings. Default: qkv.", rare=True),
    ] = None
    positions: Annotated[
        Literal["none", "sinusoidal"] | None,
        toy_option("Position encoding added to the embeddings. Default: none.", rare=True, setting="none"),
    ] = None
    scale: Annotated[
        str | None, toy_option("What multiplies q·k. Default: sqrt, 1/√d-k.", "sqrt|none|NUMBER", rare=True)
    ] = None
    seed: Annotated[int | None, toy_option("Seed of the weights. Default: 0.", "N", setting=0)] = None
    rng: Annotated[
        Literal["numpy", "torch"] | None,
        toy_option("Whose random numbers; torch's reproduce notebooks. Default: numpy.", rare=True, setting="numpy"),
    ] = None
    vocab: Vocab = None
    vocab_size: Annotated[
        int | None, toy_option("Size of the vocabulary. Default: as many as there are words.", "N", rare=True)
    ] = None
    out_proj: Annotated[
        bool | None,
        toy_option(
            "Project the concatenated heads by W_o. Default: yes; no with --project none.",
            rare=True,
            flags="--out-proj/--no-out-proj",
        ),
    ] = None


# --- what is wanted of it -----------------------------------------------------------------------------------

EveryLayer = Annotated[str | None, choice_option("Which layers: 0, 2-4, 0,3,-1 or all. Default: all.", "LAYERS", "-l")]


@dataclass(frozen=True, repr=False, eq=False)
class Selection(Options):
    """Which layers and heads."""

    layer: Annotated[str | None, choice_option("Which layers: 0, 2-4, 0,3,-1 or all. Default: 0.", "LAYERS", "-l")] = (
        None
    )
    head: Annotated[str | None, choice_option("Which heads: 0, 2-4, 0,3,-1 or all. Default: all.", "HEADS", "-H")] = (
        None
    )
    kind: Annotated[
        Literal["self", "encoder", "decoder", "cross"] | None,
        choice_option("Only this kind of attention. Default: every kind that ran.", rare=True),
    ] = None


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class CommonOptions(Options):
    """Whose attention is wanted: what a checkpoint or the toy layer computes of sentences, or what was saved."""

    model: Model = None
    texts: TextAndTarget
    load: Engine
    toy: Toy
    selection: Selection
    mask: Mask = None
    from_: From = None

    @property
    def is_alone(self) -> bool:
        """Whether there can be one trace only."""
        return self.from_ is not None or self.texts.is_alone


_MOST = 1024  # processes that anyone means


@dataclass(frozen=True, repr=False, eq=False)
class Parallel(Options):
    """How many processes work."""

    jobs: Annotated[
        str | None, model_option("Processes that share many sentences. Default: auto.", "N|auto", "-j", setting="auto")
    ] = None

    @property
    def workers(self) -> int | None:
        """How many; None leaves it to the number of sentences, cores and memory.

        Raises:
            UsageError: it is no number.
        """
        if self.jobs in (None, "auto"):
            return None
        if not (self.jobs.isascii() and self.jobs.isdecimal() and 0 < int(self.jobs) <= _MOST):
            raise UsageError(f"--jobs {visible(self.jobs)}: expected a number of processes from 1 to {_MOST}, or auto")
        return int(self.jobs)


# --- what is shown, and where it goes -------------------------------------------------------------------------

Precision = Annotated[
    int | None,
    view_option(
        "Digits after the point. Default: 4 in the table, all of them elsewhere.",
        "N",
        rare=True,
        setting=None,
        low=0,
        high=17,
    ),
]
Colormap = Annotated[
    Literal["viridis", "cividis", "gray"] | None,
    view_option("Colours of the heat maps. Default: viridis.", rare=True, setting="viridis"),
]
Ramp = Annotated[
    Literal["sqrt", "linear", "log"] | None,
    view_option(
        "Colour scale: log, sqrt or linear. Default: sqrt.",
        rare=True,
        setting="sqrt",
    ),
]
Color = Annotated[
    Literal["auto", "always", "never"] | None,
    view_option("Colour the output. Default: auto, which is in a terminal.", setting="auto"),
]
HideSpecial = Annotated[bool, choice_option("Compute with the special tokens, leave them out of the view.", rare=True)]
FailOn = Annotated[str | None, option("Fail on these findings alone: leak,pad,dead-row. Default: errors.", "CODES")]


@dataclass(frozen=True, repr=False, eq=False)
class ViewOptions(Options):
    """Which rows, columns and parts of a trace are shown, and how."""

    query: Annotated[
        list[str] | None,
        choice_option("Show this query row: a token, an index or 500:520. May be repeated.", "TOKEN", "-q"),
    ] = None
    key: Annotated[
        list[str] | None,
        choice_option("Show this key column: a token, an index or 500:520. May be repeated.", "TOKEN", "-k"),
    ] = None
    top_keys: Annotated[int | None, choice_option("Show only the N heaviest keys of each query.", "N", low=1)] = None
    hide_special: HideSpecial = False
    show: Annotated[
        str | None,
        view_option(
            "With commas: tokens, shapes, embeddings, q, k, v, scores, mask, weights, heatmap, output, metrics, proof.",
            "PARTS",
        ),
    ] = None
    colormap: Colormap = None
    ramp: Ramp = None
    precision: Precision = None
    size: Annotated[
        str | None,
        view_option(
            "How large a figure is: 3.3in, 84mm, 3.3inx2in. For pdf and png, and for svg, which becomes one. "
            "Default: 3.3in wide for one head, 6.9in for several.",
            "SIZE",
            rare=True,
        ),
    ] = None


@dataclass(frozen=True, repr=False, eq=False)
class Derive(Options):
    """Which numbers stand in place of the weights."""

    words: Annotated[
        bool, derived_option("Merge word pieces: sum over the pieces of a key, mean over those of a query.")
    ] = False
    norms: Annotated[bool, derived_option("‖weight·value‖ instead of weights: what a key really hands over.")] = False
    rollout: Annotated[
        bool,
        derived_option(
            "Attention through all layers up to --layer, which is the last one unless it is named.", rare=True
        ),
    ] = False
    mean: Annotated[
        Literal["heads", "layers", "all"] | None,
        derived_option(
            "Average over the chosen heads, over layers (all unless --layer names some), or over both.", rare=True
        ),
    ] = None


def folder_of(output: str | None) -> str | None:
    """Return the folder that `--output` names, absolute or a URL; None is a file.

    It ends in a slash, which a path would forget, or is there and has no ending, as every file has that is written.
    """
    if output is None or "://" in output:
        return output
    is_folder = output.endswith(("/", os.sep)) or (not Path(output).suffix and os.path.isdir(output))
    return os.path.abspath(output) if is_folder else None


_FORMAT = output_option("The format. Default: table, or what --output ends in.", letter="-F")


@dataclass(frozen=True, repr=False, eq=False)
class OutputOptions(Options):
    """Where what is shown goes, and in which format."""

    color: Color = None
    width: Annotated[
        int | None,
        view_option(
            "Cells in a line. Default: the terminal's; none in a pipe.",
            "N",
            rare=True,
            setting=None,
            low=40,
            high=100_000,
        ),
    ] = None
    all_: Annotated[
        bool, view_option("Show everything, not what one screen has room for; in a terminal through $PAGER.")
    ] = False
    format_: Annotated[
        Literal["table", "json", "jsonl", "tsv", "csv", "parquet", "svg", "pdf", "png", "html", "md"] | None, _FORMAT
    ] = None
    output: Annotated[
        str | None,
        output_option("Write to a file; its ending decides the format. Default: standard output.", "FILE", "-o"),
    ] = None

    @cached_property
    def file(self) -> Path | None:
        """What is written to; None is the default.

        Raises:
            UsageError: its name is empty, which would be the working directory.
        """
        if self.output == "":
            raise UsageError("--output: the file name is empty")
        return None if self.output is None else Path(self.output)

    @property
    def folder(self) -> str | None:
        """The folder that parts are written into, absolute or a URL; None is a file."""
        return folder_of(self.output)

    def chosen(self, takes_folder: bool = False) -> str:
        """Return the format that `--format` and the ending of `--output` agree on.

        Args:
            takes_folder: whether the command writes folders of parts.

        Raises:
            UsageError: they contradict each other, the ending is unknown, what writes it is not installed, or a format
                that needs a file has none.
        """
        from attncli.formats import FIGURES, choose_format

        is_folder = takes_folder and self.folder is not None
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
        """Give what views are drawn on, in one of `formats.DRAWN`; see `Environment.open_view`."""
        return environment.open_view(f"attn {command}", chosen, self.file, self.color, self.width, self.all_)


@dataclass(frozen=True, repr=False, eq=False)
class TableOutput(OutputOptions):
    """Where what has rows goes."""

    format_: Annotated[
        Literal["table", "json", "tsv", "csv", "parquet", "svg", "pdf", "png", "html", "md"] | None, _FORMAT
    ] = None


@dataclass(frozen=True, repr=False, eq=False)
class TraceOutput(OutputOptions):
    """Where traces go, sentence by sentence or in parts."""

    output: Annotated[
        str | None,
        output_option(
            "Write to a file, whose ending decides the format, or to a folder of parts. Default: standard output.",
            "FILE|FOLDER/",
            "-o",
        ),
    ] = None


@dataclass(frozen=True, repr=False, eq=False)
class StderrOutput(OutputOptions):
    """Where what is found in a program goes, whose standard output is its own."""

    format_: Annotated[Literal["table", "json", "tsv"] | None, _FORMAT] = None
    output: Annotated[
        str | None,
        output_option("Write to a file; its ending decides the format. Default: standard error.", "FILE", "-o"),
    ] = None


@dataclass(frozen=True, repr=False, eq=False)
class DocumentOutput(OutputOptions):
    """Where what is one document goes."""

    format_: Annotated[Literal["table", "json", "svg", "pdf", "png", "html", "md"] | None, _FORMAT] = None


@dataclass(frozen=True, repr=False, eq=False)
class PictureOutput(OutputOptions):
    """Where what is only drawn goes."""

    format_: Annotated[Literal["table", "svg", "pdf", "png", "html", "md"] | None, _FORMAT] = None


SETTABLE = (CommonOptions, Parallel, ViewOptions, OutputOptions)
"""The groups whose options the environment and the files of settings may set."""


def _show_every_option(context: Context, is_wanted: bool) -> None:
    if is_wanted:
        from attncli.cli.environment import Environment
        from attncli.cli.help import page_of, show

        show(page_of(context), Environment())
        raise Exit


@dataclass(frozen=True, repr=False, eq=False)
class Verbosity(Options):
    """How much a run says on stderr, and how much its help: every command takes these."""

    help_all: Annotated[bool, option("Show every option.", rare=True, eager=_show_every_option)] = False
    quiet: Annotated[bool, output_option("On stderr, errors alone: no warnings, notes or progress.")] = False
    verbose: Annotated[
        bool, output_option("Say on stderr what is loaded and run, how, and when.", letter="-v", rare=True)
    ] = False
