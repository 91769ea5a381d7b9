"""`attn mask model`: the masks that a checkpoint attends by."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import argument
from attncli.errors import UsageError
from attncli.text import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.analysis.layer_masks import LayerMask
    from attncli.masks.mask_grid import MaskGrid
    from attncli.render.masks import MaskView
    from attncli.trace.trace import Trace


def model(
    environment: Environment,
    load: options.Engine,
    output: options.DocumentOutput,
    text: Annotated[
        list[str] | None,
        argument("Sentences, each in quotes. Default: time flies like an arrow.", "TEXT"),
    ] = None,
    model: Annotated[
        str | None,
        options.model_option("Choose the checkpoint; demo is built in.", "NAME_OR_FOLDER", "-m", setting=None),
    ] = None,
    chat: options.Chat = False,
    pair: options.Pair = None,
    target: Annotated[
        str | None, options.input_option("Set the decoder's text. Default: the sentence itself.", "TEXT")
    ] = None,
    no_special: options.NoSpecial = False,
    colormap: options.Colormap = None,
) -> None:
    """Show the masks that a checkpoint attends by, one for each kind of layer.

    Examples:
    attn mask model -m demo
    attn mask model -m gpt2 "time flies" "fruit flies like a banana"
    attn mask model -m gpt2 "time flies like an arrow" -F json
    """
    from attncli.analysis.layer_masks import layer_masks
    from attncli.analysis.learn import TEXT
    from attncli.cli.progress import status
    from attncli.cli.sentences import check_meant
    from attncli.engines import open_source

    if model is None:
        name = visible(text[0]) if text and len(text[0].split()) == 1 else "demo"
        raise UsageError(f"give the checkpoint with -m: attn mask model -m {name}")
    chosen, text = output.chosen(), text or [TEXT]
    check_meant(text, environment)
    more: dict[str, Any] = {**dict(load.explicit_values()), **({"chat": True} if chat else {})}
    with status(environment, f"loading {model}"):
        source = open_source(model, layer="all", special=not no_special, **more)
    sentences = []
    for one in text:
        trace = source.trace(one, pair, one if target is None and source.is_encoder_decoder else target)
        sentences.append((trace, layer_masks(trace)))
    for note in dict.fromkeys(note for trace, _ in sentences for note in (*trace.source.notes, *trace.notes)):
        environment.note(note)
    if chosen == "json":
        from attncli.formats.documents import write_masks

        masks = [(number, one, mask) for number, (one, found) in enumerate(sentences, 1) for mask in found]
        described = [_described(number, one, mask) for number, one, mask in masks]
        environment.write(write_masks([_grid(mask) for _, _, mask in masks], described), output.file)
        return
    from attncli.cli.commands.mask import draw

    named = [[_named(mask) for mask in found] for _, found in sentences]

    def renderables(view: MaskView) -> Iterator[RenderableType]:
        from rich.text import Text

        for number, ((one, _), grids) in enumerate(zip(sentences, named, strict=True), 1):
            if len(sentences) > 1:
                yield Text(view.palette.label(f"sentence {number}: {one.text}"), "bold")
            for grid in grids:
                yield from view.shown(grid)

    draw(environment, output, "model", model, renderables, chain(*named), colormap)


def _grid(mask: LayerMask) -> MaskGrid:
    """Return a mask under the rule that it follows, if it follows one."""
    from attncli.masks.mask_grid import MaskGrid
    from attncli.masks.recognition import recognise_plane

    rule = recognise_plane(mask.allowed[0], 0) if len(mask.allowed) == 1 else None
    return MaskGrid("" if rule is None else str(rule), mask.allowed, 0, rule)


def _described(number: int, one: Trace, mask: LayerMask) -> dict[str, Any]:
    """Return the entries of a mask in the JSON document besides its cells."""
    return {
        "kind": mask.kind,
        "layers": list(mask.layers),
        "sentence": number,
        "text": one.text,
        "pair": one.pair,
        "target": one.target,
        "query_tokens": [token.as_dict() for token in mask.queries],
        "key_tokens": [token.as_dict() for token in mask.keys],
        "dropped_keys": 0,  # of a KV cache, which the schema has room for
    }


def _named(mask: LayerMask) -> MaskGrid:
    """Return a mask with its tokens, under the names of its layers."""
    from attncli.masks.mask_grid import MaskGrid
    from attncli.text import layers_named

    queries, keys = ([token.label for token in side] for side in (mask.queries, mask.keys))
    return MaskGrid(f"{mask.kind} · {layers_named(mask.layers)}", mask.allowed, 0, tokens=(queries, keys))
