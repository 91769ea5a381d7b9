"""The options of the commands: each one once, with the same letter and the same meaning everywhere, in groups.

Defaults live with what they configure (`ToyOptions`, `EngineOptions`); here None means that nobody has said anything,
so that an option which does not apply to the source is told from one that was left alone.
"""

# Annotations are values here, not texts that would have to be compiled once more when a command is built; and nobody
# prints or compares a group, whose methods for that would cost a run of the toy layer 3 % to make.
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Context, Exit, Option

from attncli.cli.groups import Options, choices_of
from attncli.errors import UsageError

if TYPE_CHECKING:
    from attncli.cli.environment import Environment, PictureFile, Terminal
    from attncli.corpus.read import SentenceReader


# An option in one of the panels of the help; commands make their own options of these too.
input_option = partial(Option, rich_help_panel="Input")
model_option = partial(Option, rich_help_panel="Model")
toy_option = partial(Option, rich_help_panel="Toy layer (without --model)")
choice_option = partial(Option, rich_help_panel="What to look at")
derived_option = partial(Option, rich_help_panel="Numbers made of weights")
view_option = partial(Option, rich_help_panel="View")
output_option = partial(Option, rich_help_panel="Output")
size_option = partial(Option, rich_help_panel="Size")

# --- what is read -----------------------------------------------------------------------------------------

File = Annotated[
    str | None,
    input_option(
        "--file",
        "-f",
        metavar="PATH|URL",
        help="Read sentences from a file, a folder or a glob; - is standard input.",
    ),
]
Column = Annotated[
    str | None,
    input_option(metavar="NAME", help="The column or field that holds the sentence. Default: text."),
]
Jobs = Annotated[
    str | None,
    model_option(
        "--jobs",
        "-j",
        metavar="N|auto",
        help="Processes that share many sentences. Default: auto.",
        envvar="ATTN_JOBS",
    ),
]
On = Annotated[
    str | None,
    model_option(
        metavar="ray|ray://HOST:PORT",
        help="Compute the parts of -o FOLDER/ on Ray: here, or on all machines of the cluster that this one is in.",
        hidden=True,
    ),
]
Pair = Annotated[str | None, input_option(metavar="TEXT", help="A second text in the same sequence.")]
Target = Annotated[
    str | None,
    input_option(
        metavar="TEXT",
        help="The text whose queries attend to the sentence's keys.",
    ),
]
From = Annotated[
    Path | None,
    input_option("--from", metavar="FILE", help="A saved trace, or a safetensors dump of q and k (v, mask, bias)."),
]
NoSpecial = Annotated[
    bool, choice_option("--no-special", help="Do not add the tokenizer's special tokens.", hidden=True)
]


@dataclass(frozen=True, repr=False, eq=False)
class ChatOptions(Options):
    """Whether a checkpoint's chat template is put around a sentence: the fields of `LoadOptions`."""

    chat: Annotated[
        bool,
        input_option(
            "--chat",
            help="Read a sentence as a user's turn, through the checkpoint's chat template; of --file NAME.json, a "
            "list of messages.",
            hidden=True,
        ),
    ] = False


@dataclass(frozen=True, repr=False, eq=False)
class TextOptions(Options):
    """Which sentences, and a second text in the sequence of each."""

    text: Annotated[
        list[str] | None,
        Argument(
            metavar="TEXT",
            help="Sentences, each in quotes; - reads them from standard input, one a line.",
            show_default=False,
        ),
    ] = None
    file: File = None
    column: Column = None
    whole: Annotated[
        bool, input_option("--whole", help="A file or standard input is one text, newlines and all.", hidden=True)
    ] = False
    pair: Pair = None
    no_special: NoSpecial = False
    prompt: ChatOptions = ChatOptions()

    @property
    def are_words(self) -> bool:
        """Whether the sentences may be words of one that somebody wrote without quotes: several, none with a blank."""
        texts = self.text or []
        return len(texts) > 1 and "-" not in texts and not any(map(str.isspace, "".join(texts)))

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

        return SentenceReader.of(self.file, column=self.column, whole=self.whole, chat=self.prompt.chat)

    @property
    def files(self) -> list[str]:
        """The names of the files of sentences, where there are several."""
        files = () if self.reader is None else self.reader.files
        return [file.name for file in files] if len(files) > 1 else []

    @property
    def is_one(self) -> bool:
        """Whether the file or standard input is one text, or one list of messages."""
        return self.whole if self.reader is None else self.reader.is_one


@dataclass(frozen=True, repr=False, eq=False)
class Sentences(TextOptions):
    """The same, and the text whose queries attend to them."""

    target: Target = None


# --- what computes ----------------------------------------------------------------------------------------

Model = Annotated[
    str | None,
    model_option(
        "--model",
        "-m",
        metavar="NAME_OR_FOLDER",
        help="A checkpoint, or demo, which is built in. Default: the toy layer.",
        envvar="ATTN_MODEL",
    ),
]
Mask = Annotated[
    str | None,
    choice_option(
        metavar="EXPR|FILE|none",
        help="Which keys a query may attend to: 'causal & window(4)', mask.npy. Default: causal; a checkpoint's own.",
    ),
]
Vocab = Annotated[
    str | None,
    toy_option(
        metavar="words|TOKENIZER",
        help="The words of the text, or a tokenizer.json, its folder or hub name. Default: words.",
        hidden=True,
    ),
]


@dataclass(frozen=True, repr=False, eq=False)
class Hub(Options):
    """Where a checkpoint comes from, and whether the code that it brings may run."""

    offline: Annotated[bool, model_option("--offline", help="Use the local cache only.", envvar="ATTN_OFFLINE")] = False
    trust_remote_code: Annotated[
        bool, model_option("--trust-remote-code", help="Run the Python code that the checkpoint brings.", hidden=True)
    ] = False
    base: Annotated[
        str | None,
        model_option(
            metavar="NAME_OR_FOLDER",
            help="The model under an adapter. Default: the one that the adapter names.",
            hidden=True,
        ),
    ] = None


@dataclass(frozen=True, repr=False, eq=False)
class Load(Hub):
    """How a checkpoint is loaded: the fields of `LoadOptions`."""

    dtype: Annotated[
        Literal["auto", "float32", "float16", "bfloat16", "float64"] | None,
        model_option(
            help="Type of the weights. Default: float32 on the CPU, the checkpoint's own elsewhere.",
            envvar="ATTN_DTYPE",
            hidden=True,
        ),
    ] = None
    device: Annotated[
        str | None,
        model_option(metavar="NAME", help="Where it runs: cpu, cuda, cuda:1, mps. Default: cpu.", envvar="ATTN_DEVICE"),
    ] = None
    device_map: Annotated[
        str | None,
        model_option(
            metavar="auto",
            help="Spread the model over several devices, with accelerate.",
            envvar="ATTN_DEVICE_MAP",
            hidden=True,
        ),
    ] = None
    truncate: Annotated[
        bool, model_option("--truncate", help="Cut a text to the tokens that the model has positions for.", hidden=True)
    ] = False


@dataclass(frozen=True, repr=False, eq=False)
class Engine(Load):
    """How a checkpoint is loaded and what computes it: the fields of `EngineOptions`."""

    engine: Annotated[
        Literal["auto", "native", "transformers", "verify"] | None,
        model_option(
            help="What computes the model; verify runs both and compares. Default: auto.",
            envvar="ATTN_ENGINE",
        ),
    ] = None


@dataclass(frozen=True, repr=False, eq=False)
class Toy(Options):
    """How the toy layer is made: the fields of `ToyOptions`, but for `offline`, which is among those of `Hub`."""

    d_model: Annotated[
        int | None, toy_option(metavar="N", help="Width of the embeddings. Default: 32.", envvar="ATTN_D_MODEL")
    ] = None
    num_heads: Annotated[
        int | None,
        toy_option(metavar="N", help="Number of heads. Default: 4; 1 with --project none.", envvar="ATTN_NUM_HEADS"),
    ] = None
    d_k: Annotated[
        int | None,
        toy_option(metavar="N", help="Query and key width of a head. Default: d-model / num-heads.", hidden=True),
    ] = None
    d_v: Annotated[
        int | None, toy_option(metavar="N", help="Value width of a head. Default: d-model / num-heads.", hidden=True)
    ] = None
    init: Annotated[
        Literal["scaled", "normal", "uniform", "linear", "zeros"] | None,
        toy_option(
            help="How the weights are drawn. Default: scaled, N(0, 1/d-model).", envvar="ATTN_INIT", hidden=True
        ),
    ] = None
    project: Annotated[
        Literal["qkv", "qk", "none"] | None,
        toy_option(help="Which of Q, K, V are projected; the rest are the embeddings. Default: qkv.", hidden=True),
    ] = None
    positions: Annotated[
        Literal["none", "sinusoidal"] | None,
        toy_option(
            help="Position encoding added to the embeddings. Default: none.", envvar="ATTN_POSITIONS", hidden=True
        ),
    ] = None
    scale: Annotated[
        str | None,
        toy_option(metavar="sqrt|none|NUMBER", help="What multiplies q·k. Default: sqrt, 1/√d-k.", hidden=True),
    ] = None
    seed: Annotated[
        int | None, toy_option(metavar="N", help="Seed of the weights. Default: 0.", envvar="ATTN_SEED")
    ] = None
    rng: Annotated[
        Literal["numpy", "torch"] | None,
        toy_option(
            help="Whose random numbers; torch's reproduce notebooks. Default: numpy.", envvar="ATTN_RNG", hidden=True
        ),
    ] = None
    vocab: Vocab = None
    vocab_size: Annotated[
        int | None,
        toy_option(metavar="N", help="Size of the vocabulary. Default: as many as there are words.", hidden=True),
    ] = None
    out_proj: Annotated[
        bool | None,
        toy_option(
            "--out-proj/--no-out-proj",
            help="Project the concatenated heads by W_o. Default: yes; no with --project none.",
            hidden=True,
        ),
    ] = None


# --- what is wanted of it -----------------------------------------------------------------------------------

EveryLayer = Annotated[
    str | None,
    choice_option("--layer", "-l", metavar="LAYERS", help="Which layers: 0, 2-4, 0,3,-1 or all. Default: all."),
]


@dataclass(frozen=True, repr=False, eq=False)
class Selection(Options):
    """Which layers and heads."""

    layer: Annotated[
        str | None,
        choice_option("--layer", "-l", metavar="LAYERS", help="Which layers: 0, 2-4, 0,3,-1 or all. Default: 0."),
    ] = None
    head: Annotated[
        str | None,
        choice_option("--head", "-H", metavar="HEADS", help="Which heads: 0, 2-4, 0,3,-1 or all. Default: all."),
    ] = None
    kind: Annotated[
        Literal["self", "encoder", "decoder", "cross"] | None,
        choice_option(help="Only this kind of attention. Default: every kind that ran.", hidden=True),
    ] = None


@dataclass(frozen=True, repr=False, eq=False)
class Computed(Options):
    """What attention is computed of, and by what."""

    sentences: Sentences
    load: Engine
    toy: Toy
    mask: Mask = None


@dataclass(frozen=True, repr=False, eq=False)
class Request(Options):
    """Whose attention is wanted: what a checkpoint or the toy layer computes, or what was saved."""

    computed: Computed
    selection: Selection
    model: Model = None
    from_: From = None

    @property
    def has_words(self) -> bool:
        """Whether the toy layer reads the words of the text, and adds no special tokens."""
        return self.from_ is None and self.model is None and self.computed.toy.vocab in (None, "words")

    def making(self) -> Iterator[str]:
        """Yield the names of the given options that make attention, and do not apply to what was saved."""
        asked_of_both = {"from_", *dict(self.selection.explicit_values())}
        return (name for name, _ in self.explicit_values() if name not in asked_of_both)


@dataclass(frozen=True, repr=False, eq=False)
class Stream(Request):
    """A request that may be of many sentences."""

    jobs: Jobs = None


@dataclass(frozen=True, repr=False, eq=False)
class Inspection(Stream):
    """A stream of sentences that a model may write on, whose parts may be computed elsewhere."""

    on: On = None
    generate: Annotated[
        int | None,
        input_option(
            min=1,
            metavar="N",
            help="Let a causal model write N more tokens, and show their rows.",
        ),
    ] = None


# --- what is shown, and where it goes -------------------------------------------------------------------------

Precision = Annotated[
    int | None,
    view_option(
        min=0,
        max=17,
        metavar="N",
        help="Digits after the point. Default: 4 in the table, all of them elsewhere.",
        envvar="ATTN_PRECISION",
        hidden=True,
    ),
]
Colormap = Annotated[
    Literal["viridis", "cividis", "gray"] | None,
    view_option(help="Colours of the heat maps. Default: viridis.", envvar="ATTN_COLORMAP", hidden=True),
]
Ramp = Annotated[
    Literal["sqrt", "linear", "log"] | None,
    view_option(
        help="How colours grow with weights: with their square root, with themselves or with their logarithm. "
        "Default: log.",
        envvar="ATTN_RAMP",
        hidden=True,
    ),
]
Color = Annotated[
    Literal["auto", "always", "never"] | None,
    view_option(help="Colour the output. Default: auto, which is in a terminal.", envvar="ATTN_COLOR"),
]


@dataclass(frozen=True, repr=False, eq=False)
class Colors(Options):
    """What cells look like."""

    colormap: Colormap = None
    ramp: Ramp = None
    color: Color = None


FigureSize = Annotated[
    str | None,
    view_option(
        "--size",
        metavar="SIZE",
        help="How large a figure is: 3.3in, 84mm, 3.3inx2in. For pdf and png, and for svg, which becomes one. "
        "Default: 3.3in wide for one head, 6.9in for several.",
        hidden=True,
    ),
]
FailOn = Annotated[
    str | None, Option(metavar="CODES", help="Fail on these findings alone: leak,pad,dead-row. Default: errors.")
]


@dataclass(frozen=True, repr=False, eq=False)
class ViewOptions(Options):
    """Which rows, columns and parts of a trace are shown, and how."""

    query: Annotated[
        list[str] | None,
        choice_option(
            "--query",
            "-q",
            metavar="TOKEN",
            help="Show this query row: a token, an index or 500:520. May be repeated.",
        ),
    ] = None
    key: Annotated[
        list[str] | None,
        choice_option(
            "--key",
            "-k",
            metavar="TOKEN",
            help="Show this key column: a token, an index or 500:520. May be repeated.",
        ),
    ] = None
    top_keys: Annotated[
        int | None, choice_option(min=1, metavar="N", help="Show only the N heaviest keys of each query.")
    ] = None
    hide_special: Annotated[
        bool,
        choice_option(
            "--hide-special", help="Compute with the special tokens, leave them out of the view.", hidden=True
        ),
    ] = False
    show: Annotated[
        str | None,
        view_option(
            metavar="PARTS",
            help="With commas: tokens, shapes, embeddings, q, k, v, scores, mask, weights, heatmap, output, metrics, "
            "proof.",
        ),
    ] = None
    ramp: Ramp = None
    precision: Precision = None


@dataclass(frozen=True, repr=False, eq=False)
class Derive(Options):
    """Which numbers stand in place of the weights."""

    words: Annotated[
        bool,
        derived_option("--words", help="Merge word pieces: sum over the pieces of a key, mean over those of a query."),
    ] = False
    norms: Annotated[
        bool, derived_option("--norms", help="‖weight·value‖ instead of weights: what a key really hands over.")
    ] = False
    rollout: Annotated[
        bool,
        derived_option(
            "--rollout",
            help="Attention through all layers up to --layer, which is the last one unless given.",
            hidden=True,
        ),
    ] = False
    mean: Annotated[
        Literal["heads", "layers", "all"] | None,
        derived_option(
            help="Average over the chosen heads, over layers (all unless --layer is given), or over both.", hidden=True
        ),
    ] = None


_FORMAT = output_option("--format", "-F", help="The format. Default: table, or what --output ends in.")


def _file_option(default: str) -> Any:
    help_ = f"Write to a file; its ending decides the format. Default: {default}."
    return output_option("--output", "-o", metavar="FILE", help=help_)


_FILE_OR_FOLDER = output_option(
    "--output",
    "-o",
    metavar="FILE|FOLDER/",
    help="Write to a file, whose ending decides the format, or to a folder of parts. Default: standard output.",
)


@dataclass(frozen=True, repr=False, eq=False)
class OutputOptions(Options):
    """Where what is shown goes, and in which format."""

    color: Color = None
    width: Annotated[
        int | None,
        view_option(
            min=40,
            max=100_000,
            metavar="N",
            help="Cells in a line. Default: the terminal's; none in a pipe.",
            envvar="ATTN_WIDTH",
            hidden=True,
        ),
    ] = None
    all_: Annotated[
        bool,
        view_option("--all", help="Show everything, not what one screen has room for; in a terminal through $PAGER."),
    ] = False
    format_: Annotated[
        Literal["table", "json", "jsonl", "tsv", "csv", "parquet", "svg", "pdf", "png", "html", "md"] | None, _FORMAT
    ] = None
    output: Annotated[str | None, _file_option("standard output")] = None

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
        """The folder that parts are written into, absolute or a URL; None is a file.

        It ends in a slash, which a path would forget, or is there and has no ending, as every file has that is written.
        """
        if self.output is None or "://" in self.output:
            return self.output
        is_folder = self.output.endswith(("/", os.sep)) or (not Path(self.output).suffix and os.path.isdir(self.output))
        return os.path.abspath(self.output) if is_folder else None

    def chosen(self, takes_folder: bool = False) -> str:
        """Return the format that `--format` and the ending of `--output` agree on.

        Args:
            takes_folder: whether the command writes folders of parts.

        Raises:
            UsageError: they contradict each other, the ending is unknown, or what draws figures is not installed.
        """
        from attncli.formats import FIGURES, choose_format

        is_folder = takes_folder and self.folder is not None
        chosen = choose_format(self.format_, self.file, choices_of(type(self), "format_"), is_folder)
        if chosen in FIGURES:
            from attncli.formats.figures import check_figures

            check_figures(self.file, chosen)
        return chosen

    def canvas(
        self, environment: "Environment", chosen: str, command: str
    ) -> "AbstractContextManager[Terminal | PictureFile]":
        """Give what views are drawn on, in one of `formats.DRAWN`; see `Environment.canvas`."""
        return environment.canvas(f"attn {command}", chosen, self.file, self.color, self.width, self.all_)


@dataclass(frozen=True, repr=False, eq=False)
class Rows(OutputOptions):
    """Where what has rows goes."""

    format_: Annotated[
        Literal["table", "json", "tsv", "csv", "parquet", "svg", "pdf", "png", "html", "md"] | None, _FORMAT
    ] = None
    output: Annotated[str | None, _file_option("standard output")] = None


@dataclass(frozen=True, repr=False, eq=False)
class Traces(OutputOptions):
    """Where traces go, sentence by sentence or in parts."""

    output: Annotated[str | None, _FILE_OR_FOLDER] = None


@dataclass(frozen=True, repr=False, eq=False)
class StderrOutput(OutputOptions):
    """Where what is said of a program goes, whose standard output is its own."""

    format_: Annotated[Literal["table", "json", "tsv"] | None, _FORMAT] = None
    output: Annotated[str | None, _file_option("standard error")] = None


@dataclass(frozen=True, repr=False, eq=False)
class Document(OutputOptions):
    """Where what is one document goes."""

    format_: Annotated[Literal["table", "json", "svg", "pdf", "png", "html", "md"] | None, _FORMAT] = None


@dataclass(frozen=True, repr=False, eq=False)
class Picture(OutputOptions):
    """Where what is only drawn goes."""

    format_: Annotated[Literal["table", "svg", "pdf", "png", "html", "md"] | None, _FORMAT] = None


Save = Annotated[Path | None, output_option(metavar="FILE.safetensors", help="Save the trace, for --from.")]


def _show_every_option(context: Context, is_wanted: bool) -> None:
    if is_wanted:
        from attncli.cli.environment import Environment
        from attncli.cli.help import page_of, show

        show(page_of(context), Environment())
        raise Exit


@dataclass(frozen=True, repr=False, eq=False)
class Volume(Options):
    """How much a run says on stderr, and how much its help: every command takes these."""

    help_all: Annotated[
        bool,
        Option("--help-all", help="Show every option.", is_eager=True, hidden=True, callback=_show_every_option),
    ] = False

    quiet: Annotated[
        bool, output_option("--quiet", help="On stderr, errors alone: no warnings, notes or progress.")
    ] = False
    verbose: Annotated[
        bool, output_option("--verbose", "-v", help="Say on stderr what is loaded and run, how, and when.", hidden=True)
    ] = False
