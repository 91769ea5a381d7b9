"""Interactive sources, which answer queries about a changing text, and reuse the unchanged part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from attncli.engines import open_source
from attncli.errors import NotExposedError, UsageError
from attncli.text import as_ranges
from attncli.trace.selection import Indices

if TYPE_CHECKING:
    from pathlib import Path

    from attncli.checkpoints.signatures import Choice
    from attncli.engines.predictor import Predictor
    from attncli.engines.source import OpenModel
    from attncli.trace.tokens import Tokens
    from attncli.trace.trace import Trace


class Query(NamedTuple):
    """Inputs of the attention, besides the model."""

    text: str  # the sentence
    pair: str | None = None  # a second text in the same sequence
    target: str | None = None  # the text whose queries attend to the sentence's keys
    mask: str | None = None  # an expression or a file; None is the source's own mask


def open_interactive(
    *,
    model: str | None = None,
    saved: str | Path | None = None,
    head: Choice = None,
    special: bool = True,
    image: Sequence[str] = (),
    tower: str | None = None,
    grid: str | None = None,
    prefix: int = 0,
    **options: Any,
) -> InteractiveSource:
    """Return the toy layer, a checkpoint with all its layers, or a saved trace, ready for queries.

    Args:
        model: a checkpoint's folder or hub name; None is the toy layer.
        saved: the file of a trace, instead of a model; `special` and `options` do not apply to it.
        head: which heads to show and derive; None is all of them.
        special: whether the tokenizer adds its special tokens.
        image: the files of the pictures of each query, or of the saved trace.
        tower: `vision` if each query is the name of a picture.
        grid: rows and columns of the picture's cells in the saved trace, such as `14x14`.
        prefix: how many of its positions come first.
        options: see `open_source`.

    Raises:
        UsageError: an option does not exist, or does not apply to this source.
        LoadError: the checkpoint or its tokenizer cannot be loaded.
        InputError: the file holds no trace.
    """
    if saved is not None:
        from attncli.trace.store import load

        trace = load(saved, None, head, None)
        if image or grid:
            from attncli.encoding.pictures import with_pictures

            trace = with_pictures(trace, image, grid, prefix)
        return SavedSource(trace)
    if not (image or tower):
        return InteractiveSource(open_source(model, layer="all", head=head, special=special, **options))
    pictured: dict[str, Any] = {"tower": tower} if tower == "vision" else {"image": list(image), "generate": 1}
    opened = open_source(model, layer="all", head=head, special=special, **pictured, **options)
    return InteractiveSource(opened, can_write=tower != "vision")


class InteractiveSource:
    """A model, opened once, that answers queries about its layers, one thread at a time."""

    layers: Sequence[int]  # layers with softmax attention, in order
    own: Query | None = None  # the only query that it answers, that of a saved trace; None where it answers any

    def __init__(self, model: OpenModel, can_write: bool = False) -> None:
        self._model, self._can_write = model, can_write
        self.layers = model.attention_layers

    @property
    def predictor(self) -> Predictor:
        """Predictor of the next token.

        Raises:
            NotExposedError: it is no causal language model of the native engine.
        """
        if self._can_write:  # with pictures, which only transformers reads
            from attncli.engines.torch.predictor import TorchPredictor

            return TorchPredictor(cast(Any, self._model))
        from attncli.checkpoints.config_reader import UnsupportedError
        from attncli.engines.numpy import NativeCheckpoint
        from attncli.engines.numpy.predictor import NativePredictor

        if not isinstance(self._model, NativeCheckpoint):
            raise NotExposedError("x needs the native engine and a causal language model, such as -m demo")
        try:
            return NativePredictor(self._model)
        except UnsupportedError as error:
            raise NotExposedError(f"{error}; x needs a causal language model, such as -m demo") from None

    def steps(self, layers: Sequence[int]) -> list[list[int]]:
        """Group layers that are best computed together, the lowest first.

        A deep layer needs all of those below it. Asking for these step by step allows to stop in between, as their
        results are reused. Where a layer is not computed from the one below, all run together.
        """
        ordered = sorted(set(layers))
        return [[layer] for layer in ordered] if self._model.is_incremental else [ordered]

    def tokens(self, question: Query) -> tuple[Tokens, Tokens]:
        """Return the tokens of a query's queries and keys, before any layer is computed; see `trace`."""
        return self._model.tokens(question.text, question.pair, question.target)

    def trace(self, question: Query, layers: Sequence[int]) -> Trace:
        """Return the attention of some layers; the common part of earlier queries is not computed again.

        Raises:
            InputError: a text cannot be read, or the mask does not fit it.
            UsageError: the mask is none, or there is no such layer, or the source has no such question.
            NotExposedError: the layers have no attention to show, or the model's mask cannot be replaced.
        """
        source = self._model.recording(Indices.of("layer", layers), question.mask)
        return source.trace(question.text, question.pair, question.target)


class SavedSource(InteractiveSource):
    """A saved trace, which answers only its own query."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.layers = sorted({layer.layer for layer in trace.layers})
        self.own = Query(trace.text, trace.pair, trace.target)

    @property
    def predictor(self) -> Predictor:
        """None: NotExposedError."""
        raise NotExposedError("a saved trace has no model that predicts; give --model in place of --from")

    def steps(self, layers: Sequence[int]) -> list[list[int]]:
        """Return all layers in one group, as none is computed."""
        return [sorted(set(layers))]

    def tokens(self, question: Query) -> tuple[Tokens, Tokens]:
        """See `InteractiveSource.tokens`."""
        self._check(question)
        return self._trace.query_tokens, self._trace.key_tokens

    def trace(self, question: Query, layers: Sequence[int]) -> Trace:
        """See `InteractiveSource.trace`."""
        self._check(question)
        for layer in layers:
            if layer not in self.layers:
                raise UsageError(f"layer {layer} is not in the saved trace, which has layers {as_ranges(self.layers)}")
        return replace(self._trace, layers=tuple(each for each in self._trace.layers if each.layer in layers))

    def _check(self, question: Query) -> None:
        if question != self.own:
            raise UsageError("a saved trace has only its own text; give --model for another")
