"""`attn mask model`: the masks that a checkpoint's own code builds, without its weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument

from attncli.cli import options
from attncli.cli.environment import Environment

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.cli.environment import PictureFile, Terminal
    from attncli.engines.torch.model_masks import LayerMask, SentenceMasks
    from attncli.masks.mask_grid import MaskGrid
    from attncli.render.palette import Palette


def model(
    environment: Environment,
    model: Annotated[str, Argument(metavar="MODEL", help="A checkpoint's folder or its name on the hub.")],
    text: Annotated[list[str], Argument(metavar="TEXT", help="Sentences; several are one padded batch.")],
    hub: options.Hub,
    prompt: options.ChatOptions,
    output: options.Document,
    pad: Annotated[
        Literal["left", "right"] | None,
        options.input_option(help="Where shorter sentences are padded. Default: where the tokenizer does."),
    ] = None,
    pair: options.Pair = None,
    target: Annotated[
        str | None,
        options.input_option(
            metavar="TEXT", help="What the decoder of an encoder-decoder reads. Default: the sentence itself."
        ),
    ] = None,
    no_special: options.NoSpecial = False,
    colormap: options.Colormap = None,
) -> None:
    """Show the masks that a checkpoint's own code builds, one for each kind of layer.

    Its configuration and its tokenizer are enough; the weights are not read.

    Examples:
    attn mask model demo "time flies like an arrow"
    attn mask model gpt2 "time flies" "fruit flies like a banana"
    attn mask model gpt2 "time flies like an arrow" -F json
    """
    from attncli.checkpoints.options import LoadOptions, checked_options
    from attncli.checkpoints.snapshot import resolve
    from attncli.cli.progress import status
    from attncli.cli.sentences import say_how_taken
    from attncli.encoding.chat import refuse_beside_chat
    from attncli.engines.torch import announce_import
    from attncli.trace.selection import Indices

    chosen = output.chosen()
    say_how_taken(options.TextOptions(text), environment)
    if prompt.chat:
        refuse_beside_chat(pair, target)
    with status(environment, f"loading {model}"):
        loading = checked_options(
            model,
            dict(hub.explicit_values()) | dict(prompt.explicit_values()),
            LoadOptions,
            "a checkpoint that transformers runs",
        )
        snapshot = resolve(model, loading)
        announce_import("attn mask model", snapshot)
        from attncli.engines.torch.model_masks import BlankCheckpoint

        every, special = (Indices.of("layer", None), Indices.of("head", None)), not no_special
        blank = BlankCheckpoint(snapshot, *every, kind=None, mask=None, special=special, options=loading)
        sentences, notes = blank.masks(text or [], pair, target, pad)
    for one in notes:
        environment.note(one)
    if chosen == "json":
        from attncli.formats.documents import write_masks

        described = [
            (_subject(mask), _described(number, one, mask))
            for number, one in enumerate(sentences, 1)
            for mask in one.masks
        ]
        environment.write(
            write_masks([subject for subject, _ in described], [more for _, more in described]), output.file
        )
        return
    from attncli.render.masks import pooling_note

    with output.canvas(environment, chosen, "mask model") as shown:
        pools = _draw(sentences, shown, shown.palette(colormap or "viridis"), model)
    for pool in pools:
        environment.note(pooling_note(pool, "model"))


def _subject(mask: LayerMask) -> MaskGrid:
    """Return a mask under the rule that it follows, if it follows one."""
    from attncli.masks.mask_grid import MaskGrid
    from attncli.masks.recognition import recognise_plane

    rule = recognise_plane(mask.allowed[0], 0) if len(mask.allowed) == 1 else None
    return MaskGrid("" if rule is None else str(rule), mask.allowed, 0, rule)


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
        "dropped_keys": 0,  # of a KV cache, which the schema has room for
    }


def _draw(
    sentences: Sequence[SentenceMasks], shown: Terminal | PictureFile, palette: Palette, title: str
) -> list[tuple[int, int]]:
    """Draw the masks; return by how much they are pooled, where they are."""
    from rich.text import Text

    from attncli.render.masks import MaskView

    pools: dict[tuple[int, int], None] = {}

    def renderables() -> Iterator[RenderableType]:
        for number, one in enumerate(sentences, 1):
            if len(sentences) > 1:
                yield Text(palette.label(f"sentence {number}: {one.sentence.text}"), "bold")
            for mask in one.masks:
                subject = _named(mask)
                queries, keys = ([token.label for token in side] for side in (mask.queries, mask.keys))
                view = MaskView(palette, shown.width, queries, keys)
                pools[view.pool(subject)] = None
                yield from view.shown(subject)

    shown.show(renderables(), title)
    return [pool for pool in pools if pool != (1, 1)]


def _named(mask: LayerMask) -> MaskGrid:
    """Return a mask under a name that says which layers have it."""
    from attncli.text import layers_named

    subject = _subject(mask)
    parts = [mask.kind, layers_named(mask.layers), subject.name]
    return subject._replace(name=" · ".join(filter(None, parts)))
