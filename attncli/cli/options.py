"""The options of the commands: each one once, with the same letter and the same meaning everywhere.

Defaults live with what they configure (`ToyOptions`, `EngineOptions`); here None means that the user said nothing,
so that an option which does not apply to the source is told from one that was left alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from typer import Argument, Option


def choices(parameter: Any) -> tuple[str, ...]:
    """Return the values that a parameter takes, where they can be listed."""
    return tuple(value for value in get_args(parameter.type_descriptor.annotation) if isinstance(value, str))


def variables(parameter: Any) -> tuple[str, ...]:
    """Return the environment variables that a parameter is taken from."""
    named = getattr(parameter, "envvar", None)
    return (named,) if isinstance(named, str) else tuple(named or ())


_SOURCE, _TOY, _CHOICE, _VIEW, _OUTPUT = (
    "Model",
    "Toy layer (without --model)",
    "What to look at",
    "View",
    "Output",
)
_INPUT = "Input"

Texts = Annotated[
    list[str] | None,
    Argument(
        metavar="TEXT",
        help="Sentences; - reads them from standard input, one a line.",
        show_default=False,
    ),
]
File = Annotated[
    Path | None,
    Option(
        "--file",
        "-f",
        metavar="PATH",
        help="Read the sentences from a file, one a line; - is standard input.",
        rich_help_panel=_INPUT,
    ),
]
Whole = Annotated[
    bool | None,
    Option("--whole", help="The file or standard input is one text, newlines and all.", rich_help_panel=_INPUT),
]
FailFast = Annotated[
    bool | None,
    Option("--fail-fast", help="Stop at the first sentence that cannot be read.", rich_help_panel=_INPUT),
]
KeepErrors = Annotated[
    bool | None,
    Option(
        "--keep-errors",
        help="In json and jsonl, put an error document where a sentence cannot be read.",
        rich_help_panel=_INPUT,
    ),
]
Pair = Annotated[str | None, Option(metavar="TEXT", help="A second text in the same sequence.", rich_help_panel=_INPUT)]
Target = Annotated[
    str | None,
    Option(metavar="TEXT", help="The text whose queries attend to the sentence's keys.", rich_help_panel=_INPUT),
]
From = Annotated[
    Path | None,
    Option(
        "--from",
        metavar="FILE",
        help="A saved trace, or a safetensors dump of q and k (v, mask, bias).",
        rich_help_panel=_INPUT,
    ),
]

Model = Annotated[
    str | None,
    Option(
        "--model",
        "-m",
        metavar="NAME_OR_FOLDER",
        help="A checkpoint; without it, the toy layer.",
        envvar="ATTN_MODEL",
        rich_help_panel=_SOURCE,
    ),
]
Revision = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="Branch, tag or commit on the hub. Default: main.",
        envvar="ATTN_REVISION",
        rich_help_panel=_SOURCE,
    ),
]
Dtype = Annotated[
    Literal["auto", "float32", "float16", "bfloat16", "float64"] | None,
    Option(
        help="Type of the weights. Default: float32 on the CPU, the checkpoint's own elsewhere.",
        envvar="ATTN_DTYPE",
        rich_help_panel=_SOURCE,
    ),
]
Device = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="Where it runs: cpu, cuda, cuda:1, mps. Default: cpu.",
        envvar="ATTN_DEVICE",
        rich_help_panel=_SOURCE,
    ),
]
Offline = Annotated[
    bool | None, Option("--offline", help="Use the local cache only.", envvar="ATTN_OFFLINE", rich_help_panel=_SOURCE)
]
TrustRemoteCode = Annotated[
    bool | None,
    Option("--trust-remote-code", help="Run the Python code that the checkpoint brings.", rich_help_panel=_SOURCE),
]
DeviceMap = Annotated[
    str | None,
    Option(
        metavar="auto",
        help="Spread the model over several devices, with accelerate.",
        envvar="ATTN_DEVICE_MAP",
        rich_help_panel=_SOURCE,
    ),
]
Truncate = Annotated[
    bool | None,
    Option("--truncate", help="Cut a text to the tokens that the model has positions for.", rich_help_panel=_SOURCE),
]
Engine = Annotated[
    Literal["auto", "native", "transformers"] | None,
    Option(
        help="What computes the model: native is NumPy, for the common families; auto is native where it gives the "
        "same numbers. Default: auto.",
        envvar="ATTN_ENGINE",
        rich_help_panel=_SOURCE,
    ),
]
Verify = Annotated[
    bool | None,
    Option("--verify", help="Run both engines and show how far they are apart.", rich_help_panel=_SOURCE),
]
AllowPickle = Annotated[
    bool | None,
    Option("--allow-pickle", help="Read .bin weights too, without running code in them.", rich_help_panel=_SOURCE),
]

DModel = Annotated[
    int | None,
    Option(metavar="N", help="Width of the embeddings. Default: 32.", envvar="ATTN_D_MODEL", rich_help_panel=_TOY),
]
NumHeads = Annotated[
    int | None,
    Option(
        metavar="N",
        help="Number of heads. Default: 4; 1 with --project none.",
        envvar="ATTN_NUM_HEADS",
        rich_help_panel=_TOY,
    ),
]
DK = Annotated[
    int | None,
    Option(metavar="N", help="Query and key width of a head. Default: d-model / num-heads.", rich_help_panel=_TOY),
]
DV = Annotated[
    int | None,
    Option(metavar="N", help="Value width of a head. Default: d-model / num-heads.", rich_help_panel=_TOY),
]
Init = Annotated[
    Literal["scaled", "normal", "uniform", "linear", "zeros"] | None,
    Option(
        help="How the weights are drawn. Default: scaled, N(0, 1/d-model).", envvar="ATTN_INIT", rich_help_panel=_TOY
    ),
]
Project = Annotated[
    Literal["qkv", "qk", "none"] | None,
    Option(
        help="Which of Q, K, V are projected; the rest are the embeddings. Default: qkv.",
        rich_help_panel=_TOY,
    ),
]
Positions = Annotated[
    Literal["none", "sinusoidal"] | None,
    Option(
        help="Position encoding added to the embeddings. Default: none.", envvar="ATTN_POSITIONS", rich_help_panel=_TOY
    ),
]
Scale = Annotated[
    str | None,
    Option(metavar="sqrt|none|NUMBER", help="What multiplies q·k. Default: sqrt, 1/√d-k.", rich_help_panel=_TOY),
]
Seed = Annotated[
    int | None, Option(metavar="N", help="Seed of the weights. Default: 0.", envvar="ATTN_SEED", rich_help_panel=_TOY)
]
Rng = Annotated[
    Literal["numpy", "torch"] | None,
    Option(
        help="Whose random numbers; torch's reproduce notebooks. Default: numpy.",
        envvar="ATTN_RNG",
        rich_help_panel=_TOY,
    ),
]
Vocab = Annotated[
    str | None,
    Option(
        metavar="words|TOKENIZER",
        help="The words of the text, or a tokenizer.json, its folder or hub name. Default: words.",
        rich_help_panel=_TOY,
    ),
]
VocabSize = Annotated[
    int | None,
    Option(metavar="N", help="Rows of the embedding. Default: as many as there are words.", rich_help_panel=_TOY),
]
OutProj = Annotated[
    bool | None,
    Option(
        "--out-proj/--no-out-proj",
        help="Project the concatenated heads by W_o. Default: yes; no with --project none.",
        rich_help_panel=_TOY,
    ),
]

Mask = Annotated[
    str | None,
    Option(
        metavar="EXPR|FILE|none",
        help="Which keys a query may attend to: 'causal & window(4)', mask.npy. Default: causal; a checkpoint's own.",
        rich_help_panel=_CHOICE,
    ),
]
Generate = Annotated[
    int | None,
    Option(
        min=1,
        metavar="N",
        help="Let a causal model write N more tokens, greedily, and show the rows that predicted them.",
        rich_help_panel=_INPUT,
    ),
]
Layer = Annotated[
    str | None,
    Option(
        "--layer",
        "-l",
        metavar="LAYERS",
        help="Which layers: 0, 2-4, 0,3,-1 or all. Default: 0.",
        rich_help_panel=_CHOICE,
    ),
]
EveryLayer = Annotated[
    str | None,
    Option(
        "--layer",
        "-l",
        metavar="LAYERS",
        help="Which layers: 0, 2-4, 0,3,-1 or all. Default: all.",
        rich_help_panel=_CHOICE,
    ),
]
Head = Annotated[
    str | None,
    Option(
        "--head",
        "-H",
        metavar="HEADS",
        help="Which heads: 0, 2-4, 0,3,-1 or all. Default: all.",
        rich_help_panel=_CHOICE,
    ),
]
Kind = Annotated[
    Literal["self", "encoder", "decoder", "cross"] | None,
    Option(help="Only this kind of attention. Default: every kind that ran.", rich_help_panel=_CHOICE),
]
Query = Annotated[
    list[str] | None,
    Option(
        "--query",
        "-q",
        metavar="TOKEN",
        help="Show this query row: a token or its index. May be repeated. Default: all.",
        rich_help_panel=_CHOICE,
    ),
]
Key = Annotated[
    list[str] | None,
    Option(
        "--key",
        "-k",
        metavar="TOKEN",
        help="Show this key column: a token or its index. May be repeated. Default: all.",
        rich_help_panel=_CHOICE,
    ),
]
Rows = Annotated[
    str | None,
    Option(
        metavar="START:STOP",
        help="Show these query rows, as Python slices: 500:520, -20:, :10.",
        rich_help_panel=_CHOICE,
    ),
]
TopKeys = Annotated[
    int | None,
    Option(
        min=1,
        metavar="N",
        help="Show only the N heaviest keys of each query.",
        rich_help_panel=_CHOICE,
    ),
]
MinWeight = Annotated[
    float | None,
    Option(
        min=0,
        metavar="NUMBER",
        help="Show only the keys of each query whose weight, or norm with --norms, is at least this.",
        rich_help_panel=_CHOICE,
    ),
]
NoSpecial = Annotated[
    bool | None,
    Option("--no-special", help="Do not add the tokenizer's special tokens.", rich_help_panel=_CHOICE),
]
HideSpecial = Annotated[
    bool | None,
    Option(
        "--hide-special",
        help="Compute with the special tokens, leave them out of the view.",
        rich_help_panel=_CHOICE,
    ),
]

Show = Annotated[
    str | None,
    Option(
        metavar="PARTS",
        help="With commas: tokens, shapes, embeddings, q, k, v, scores, mask, weights, heatmap, output, metrics, "
        "proof.",
        rich_help_panel=_VIEW,
    ),
]
Precision = Annotated[
    int | None,
    Option(
        min=0,
        max=17,
        metavar="N",
        help="Digits after the point. Default: 4 in the table, all of them elsewhere.",
        envvar="ATTN_PRECISION",
        rich_help_panel=_VIEW,
    ),
]
Colormap = Annotated[
    Literal["viridis", "cividis", "gray"] | None,
    Option(help="Colours of the heat maps. Default: viridis.", envvar="ATTN_COLORMAP", rich_help_panel=_VIEW),
]
Color = Annotated[
    Literal["auto", "always", "never"] | None,
    Option(
        help="Colour in the output. Default: auto, in a terminal unless NO_COLOR is set.",
        envvar="ATTN_COLOR",
        rich_help_panel=_VIEW,
    ),
]
Width = Annotated[
    int | None,
    Option(
        min=40,
        max=100_000,
        metavar="N",
        help="Cells in a line. Default: the terminal's; none in a pipe.",
        envvar="ATTN_WIDTH",
        rich_help_panel=_VIEW,
    ),
]

_FORMAT = Option(
    "--format",
    "-F",
    help="What is written; attn help formats. Default: table, or what --output ends in.",
    rich_help_panel=_OUTPUT,
)
Format = Annotated[
    Literal["table", "json", "jsonl", "tsv", "csv", "parquet", "svg", "html", "md"] | None,
    _FORMAT,
]
Tidy = Annotated[Literal["table", "json", "tsv", "csv", "svg", "html", "md"] | None, _FORMAT]
Document = Annotated[Literal["table", "json", "svg", "html", "md"] | None, _FORMAT]
Picture = Annotated[Literal["table", "svg", "html", "md"] | None, _FORMAT]
Output = Annotated[
    Path | None,
    Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to a file; its ending decides the format. Default: standard output.",
        rich_help_panel=_OUTPUT,
    ),
]
Resume = Annotated[
    Path | None,
    Option(
        metavar="FILE",
        help="--output to a .jsonl, .tsv or .csv that goes on from FILE.part, if a run was interrupted.",
        rich_help_panel=_OUTPUT,
    ),
]
Quiet = Annotated[
    bool | None,
    Option("--quiet", help="On stderr, errors alone: no warnings, notes or progress.", rich_help_panel=_OUTPUT),
]
Verbose = Annotated[
    bool | None,
    Option("--verbose", help="Say on stderr what is loaded and run, how, and when.", rich_help_panel=_OUTPUT),
]
Interactive = Annotated[
    bool | None,
    Option(
        "--interactive",
        help="Write a page to look around in, for any browser: -o report.html. --show q,k adds q×k.",
        rich_help_panel=_OUTPUT,
    ),
]
FailOn = Annotated[
    str | None,
    Option(metavar="CODES", help="Fail on these findings alone: leak,pad,dead-row. Default: errors."),
]
Save = Annotated[
    Path | None,
    Option(metavar="FILE.safetensors", help="Save the trace, for --from.", rich_help_panel=_OUTPUT),
]


def of_every_command(quiet: Quiet = None, verbose: Verbose = None) -> None:
    """Take the options that every command has besides its own, which the command line takes care of."""


_DERIVED = "Numbers made of weights"

Words = Annotated[
    bool | None,
    Option(
        "--words",
        help="Merge word pieces: sum over the pieces of a key, mean over those of a query.",
        rich_help_panel=_DERIVED,
    ),
]
Norms = Annotated[
    bool | None,
    Option(
        "--norms", help="‖weight·value‖ instead of weights: what a key really hands over.", rich_help_panel=_DERIVED
    ),
]
Rollout = Annotated[
    bool | None,
    Option(
        "--rollout",
        help="Attention through all layers up to --layer, which is the last one unless given.",
        rich_help_panel=_DERIVED,
    ),
]
Reduce = Annotated[
    Literal["mean", "max"] | None, Option(help="Make one map of many, of the chosen heads.", rich_help_panel=_DERIVED)
]
Over = Annotated[
    str | None,
    Option(
        metavar="heads|layers|heads,layers",
        help="What --reduce merges. Default: heads. Over layers, --layer is all of them unless given.",
        rich_help_panel=_DERIVED,
    ),
]
NoSink = Annotated[
    bool | None,
    Option("--no-sink", help="Leave the first key out of the range of colours.", rich_help_panel=_VIEW),
]
Log = Annotated[bool | None, Option("--log", help="Colours on a logarithmic scale of weights.", rich_help_panel=_VIEW)]
