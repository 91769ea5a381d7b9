"""Sources: everything that turns a text, a model or a file into a Trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attncli.checkpoints.options import (
    Choice,
    EngineOptions,
    Kind,
    ToyOptions,
    checked_options,
    with_explicit_signature,
)

if TYPE_CHECKING:
    from pathlib import Path

    from attncli.engines.source import OpenModel
    from attncli.trace.selection import Indices
    from attncli.trace.trace import Trace


@with_explicit_signature(ToyOptions, EngineOptions)
def open_source(
    model: str | None = None,
    *,
    layer: Choice | Indices = 0,
    head: Choice = None,
    kind: Kind | None = None,
    mask: str | None = None,
    special: bool = True,
    generate: int = 0,
    **options: Any,
) -> OpenModel:
    """Return the toy layer, or a checkpoint with its tokenizer, ready for sentences.

    Args:
        model: a checkpoint's folder or hub name; None is the toy layer.
        layer: the layers to record: an index, several, `"2-4"`, or `"all"`.
        head: the heads to show and derive; None is all of them. `"L3H2"` is head 2 of layer 3.
        kind: the only kind of attention to record, `self`, `encoder`, `decoder` or `cross`; None is every kind.
        mask: a mask expression or file; None is the toy layer's default or the checkpoint's own mask.
        special: whether the tokenizer adds its special tokens.
        generate: how many tokens a causal model writes after each sentence, greedily.
        options: fields of `options.ToyOptions`, or of `options.EngineOptions` with a model.

    Raises:
        UsageError: an option does not exist, or does not apply to this source.
        LoadError: the checkpoint or its tokenizer cannot be loaded.
    """
    from attncli.engines.source import ModelRequest, parse_mask
    from attncli.trace.selection import Indices, layer_and_heads

    named, head = layer_and_heads(layer or None, head)  # 0, the default, may be any
    layers, heads = Indices.of("layer", layer if named is None else named), Indices.of("head", head)
    request = ModelRequest(layers, heads, kind, parse_mask(mask), special, generate)
    if model in (None, "toy"):
        from attncli.engines.toy import ToyLayer
        from attncli.errors import UsageError

        if generate:
            raise UsageError("--generate needs a causal language model, --model; the toy layer predicts none")
        owner = "the toy layer; give --model, or leave it out"
        return ToyLayer(request, checked_options(options, ToyOptions, owner))
    from attncli.engines.engine import open_checkpoint

    return open_checkpoint(model, request, **options)


def load_saved(
    path: str | Path,
    model: str | None = None,
    layer: Choice | Indices = None,
    head: Choice = None,
    kind: str | None = None,
    **options: Any,
) -> Trace:
    """Read a saved trace, see `attncli.load`; or a capture with the checkpoint that ran, which completes it.

    Args:
        path: the file.
        model: a checkpoint's folder or hub name; None for a trace, or a capture of rotated q and k.
        layer: the recorded layers to read; None is all of them.
        head: which heads to show and derive; None is all of them.
        kind: the only kind of attention to read; None is every kind.
        options: fields of `options.EngineOptions`.

    Raises:
        InputError: the file is damaged, or no capture, or does not fit the checkpoint.
        UsageError: it lacks that layer or head.
        NotExposedError: the native engine does not compute the checkpoint.
    """
    if model is None:
        from attncli.trace.store import load

        return load(path, layer, head, kind)
    from attncli.engines.captures import load_completed

    return load_completed(path, model, layer, head, kind, **options)


@with_explicit_signature(open_source)
def inspect(
    text: str | Sequence[Mapping[str, str]] = "",
    model: str | None = None,
    *,
    pair: str | None = None,
    target: str | None = None,
    **options: Any,
) -> Trace:
    """Return the attention of one sentence.

        trace = attncli.inspect("time flies like an arrow", "demo", layer=1)
        trace.weights[3]                    # of head 3
        trace.layer(1).head(3).weights      # NumPy, [Q, K]

    Args:
        text: the sentence; with `chat`, a user's turn, or a list of messages. Without it `image` is read alone.
        model: a checkpoint's folder or hub name, or `demo`; `toy` or None is the toy layer.
        pair: a second text in the same sequence.
        target: the text whose queries attend to the sentence's keys.
        options: everything `attn inspect` takes, under the name of its long option: `layer`, `head`, `mask`,
            `special`, `generate`, the toy layer's (`d_model`, `num_heads`, `init`, …) and the checkpoint's
            (`dtype`, `device`, `engine`, `chat`, …).

    Raises:
        AttnError: one sentence with the expectation, the actual value and the remedy.
    """
    from attncli.encoding.encode import as_conversation

    if model is not None and options.get("image"):
        from attncli.encoding.pictures import pictures_alone
        from attncli.errors import UsageError

        if pictures := pictures_alone(text, options):
            text, *more_pictures = pictures
            if more_pictures:
                raise UsageError(f"expected one picture without a text, not {len(pictures)}; call it once for each")
    text = as_conversation(text, options)
    return open_source(model, **options).trace(text, pair, target)
