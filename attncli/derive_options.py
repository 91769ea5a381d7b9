"""The options that put other numbers in the place of weights, or other colours in the place of theirs."""

from typing import Annotated, Literal

from typer import Option

_DERIVED, _VIEW = "Numbers made of weights", "View"

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
