"""Models and saved traces that answer queries about a changing text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.engines import open_source
from attncli.errors import NotExposedError, UsageError

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
    image: Sequence[str] = (),
    tower: str | None = None,
    grid: str | None = None,
    prefix: int = 0,
    **options: Any,
) -> InteractiveSource:
    """Return the toy layer, a checkpoint with all its layers, or a saved trace, ready for queries.

    Args:
        model: a checkpoint's folder or hub name; None is the toy layer.
        saved: the file of a trace, instead of a model; `options` do not apply to it.
        head: which heads to show and derive; None is all of them.
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
    if tower == "vision":
        options["tower"] = tower
    elif image:  # with the head that predicts the next token
        options |= {"image": list(image), "generate": 1}
    return InteractiveSource(open_source(model, layer="all", head=head, **options))


class InteractiveSource:
    """A model, opened once, that answers queries, one thread at a time."""

    layers: Sequence[int]  # layers with softmax attention, in order
    own: Query | None = None  # the only query that it answers, that of a saved trace; None where it answers any

    def __init__(self, model: OpenModel) -> None:
        self._model = model
        self.layers = model.attention_layers

    def predictor(self) -> Predictor:
        """Return the predictor of the next token; see `OpenModel.predictor`."""
        return self._model.predictor()

    def tokens(self, query: Query) -> tuple[Tokens, Tokens]:
        """Return the tokens of a query's queries and keys; see `trace`."""
        return self._model.tokens(query.text, query.pair, query.target)

    def trace(self, query: Query) -> Trace:
        """Return the attention of all layers.

        Raises:
            InputError: a text cannot be read, or the mask does not fit it.
            UsageError: the mask cannot be read, or the source has no such query.
            NotExposedError: the model's mask cannot be replaced.
        """
        return self._model.with_mask(query.mask).trace(query.text, query.pair, query.target)


class SavedSource(InteractiveSource):
    """A saved trace, which answers only its own query."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.layers = sorted({layer.layer for layer in trace.layers})
        self.own = Query(trace.text, trace.pair, trace.target)

    def predictor(self) -> Predictor:
        """Raise NotExposedError."""
        raise NotExposedError("a saved trace has no model that predicts; give --model in place of --from")

    def tokens(self, query: Query) -> tuple[Tokens, Tokens]:
        """Return the tokens of its queries and keys; see `trace`."""
        self._check(query)
        return self._trace.query_tokens, self._trace.key_tokens

    def trace(self, query: Query) -> Trace:
        """Return the saved trace; UsageError for another query than its own."""
        self._check(query)
        return self._trace

    def _check(self, query: Query) -> None:
        if query != self.own:
            raise UsageError("a saved trace has only its own text; give --model for another")
