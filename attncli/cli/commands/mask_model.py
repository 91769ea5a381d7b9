"""`attn mask model`: the masks that a checkpoint's own code builds, without its weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from attncli.cli import options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.cli.environment import PictureFile, Terminal
    from attncli.masks.layout import Subject
    from attncli.render.palette import Palette
    from attncli.sources.pretrained.masks import LayerMask, SentenceMasks

_INPUT = "Input"


def model(
    context: typer.Context,
    model: Annotated[str, Argument(metavar="MODEL", help="A checkpoint's folder or its name on the hub.")],
    text: Annotated[list[str], Argument(metavar="TEXT", help="Sentences; several are one padded batch.")],
    pad: Annotated[
        Literal["left", "right"] | None,
        Option(help="Where shorter sentences are padded. Default: where the tokenizer does.", rich_help_panel=_INPUT),
    ] = None,
    past: Annotated[
        int | None,
        Option(min=1, metavar="N", help="The first N positions stand in a KV cache already.", rich_help_panel=_INPUT),
    ] = None,
    pair: options.Pair = None,
    target: Annotated[
        str | None,
        Option(
            metavar="TEXT",
            help="What the decoder of an encoder-decoder reads. Default: the sentence itself.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    no_special: options.NoSpecial = None,
    revision: options.Revision = None,
    offline: options.Offline = None,
    trust_remote_code: options.TrustRemoteCode = None,
    colormap: options.Colormap = None,
    color: options.Color = None,
    width: options.Width = None,
    format_: options.Document = None,
    output: options.Output = None,
) -> None:
    """Show the masks that a checkpoint's own code builds, one for each kind of layer.

    Its configuration and its tokenizer are enough; the weights are not read.

    Examples:
    attn mask model gpt2 "time flies like an arrow"
    attn mask model gpt2 "time flies" "fruit flies like a banana"
    attn mask model gpt2 "time flies like an arrow" --past 3 -F json
    """
    from attncli.cli.environment import canvas, note, write
    from attncli.cli.progress import status
    from attncli.formats import choose_document

    chosen = choose_document(format_, output)
    loading = {
        name: context.params[name]
        for name in ("revision", "offline", "trust_remote_code")
        if context.params[name] is not None
    }
    with status(f"loading {model}"):
        sentences, notes = _built(model, text, loading, not no_special, pair, target, pad, past or 0)
    for each in notes:
        note(each)
    if chosen == "json":
        from attncli.formats.documents import write_masks

        described = [
            (_subject(mask), _described(number, one, mask))
            for number, one in enumerate(sentences, 1)
            for mask in one.masks
        ]
        write(write_masks([subject for subject, _ in described], [more for _, more in described]), output)
        return
    with canvas(chosen, output, color, width, "attn mask model") as shown:
        _draw(sentences, shown, shown.palette(colormap or "viridis"), model)


def _built(name: str, texts: Sequence[str], loading: dict[str, Any], special: bool, *how: Any) -> Any:
    """Return what `BlankCheckpoint.masks` does."""
    from attncli.sources.options import LoadOptions, checked_options
    from attncli.sources.pretrained import announce_import
    from attncli.trace.selection import Indices

    options = checked_options(name, loading, LoadOptions, "a checkpoint that transformers runs")
    announce_import("attn mask model")
    from attncli.sources.pretrained.masks import BlankCheckpoint

    every = Indices.of("layer", None), Indices.of("head", None)
    return BlankCheckpoint(name, *every, kind=None, mask=None, special=special, options=options).masks(texts, *how)


def _subject(mask: LayerMask) -> Subject:
    """Return a mask under the rule that it follows, if it follows one."""
    from attncli.masks.comparison import recognized
    from attncli.masks.layout import Subject

    rule = recognized(mask.allowed[0], mask.past) if len(mask.allowed) == 1 else None
    return Subject("" if rule is None else str(rule), mask.allowed, mask.past, rule)


def _described(number: int, one: SentenceMasks, mask: LayerMask) -> dict[str, Any]:
    """Return what the JSON document of a mask says besides its cells."""
    return {
        "kind": mask.kind,
        "layers": list(mask.layers),
        "sentence": number,
        "text": one.sentence.text,
        "pair": one.sentence.pair,
        "target": one.sentence.target,
        "query_tokens": [token.as_dict() for token in mask.queries],
        "key_tokens": [token.as_dict() for token in mask.keys],
        "dropped_keys": mask.dropped,
    }


def _draw(sentences: Sequence[SentenceMasks], shown: Terminal | PictureFile, palette: Palette, title: str) -> None:
    from rich.text import Text

    from attncli.cli.environment import note
    from attncli.render.masks import MaskView, pooling_note

    pools: dict[tuple[int, int], None] = {}

    def renderables() -> Iterator[RenderableType]:
        for number, one in enumerate(sentences, 1):
            if len(sentences) > 1:
                yield Text(palette.label(f"sentence {number}: {one.sentence.text}"), "bold")
            for mask in one.masks:
                subject = _named(mask)
                queries, keys = ([token.label for token in side] for side in (mask.queries, mask.keys))
                view = MaskView(palette, shown.width, [""] * mask.past + queries, keys)
                pools[view.pool(subject)] = None
                yield from view.shown([subject])

    shown.show(renderables(), title)
    for pool in pools:
        if pool != (1, 1):
            note(pooling_note(pool, "model"))


def _named(mask: LayerMask) -> Subject:
    """Return a mask under a name that says which layers have it."""
    from attncli.text import layers_named

    subject = _subject(mask)
    parts = [mask.kind, layers_named(mask.layers), subject.name]
    if mask.dropped:
        parts.append(f"the cache has dropped {mask.dropped} key{'s' if mask.dropped > 1 else ''}")
    return subject._replace(name=" · ".join(filter(None, parts)))
