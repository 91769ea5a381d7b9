"""Models and saved traces that answer queries about a changing text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.engines import load_saved, open_source
from attncli.engines.source import parse_mask
from attncli.errors import NotExposedError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from attncli.checkpoints.options import Choice
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
    **options: Any,
) -> InteractiveSource:
    """Return a model with all its layers, or a saved trace, ready for queries.

    `saved` is the file of a trace, instead of a model, or of a capture, which a model completes. See `open_source` for
    the rest.
    """
    if saved is not None:
        return InteractiveSource(None, load_saved(saved, model, None, head, **options))
    return InteractiveSource(open_source(model, layer="all", head=head, **options))


class InteractiveSource:
    """A model, opened once, that answers queries, one thread at a time; or a saved trace, which answers its own.

    Attributes:
        layers: layers with softmax attention, in order.
        own: the only query of a saved trace; None where any is answered.
    """

    def __init__(self, model: OpenModel | None, saved: Trace | None = None) -> None:
        self._model, self._saved = model, saved
        self.layers: Sequence[int] = () if model is None else model.attention_layers
        self.own: Query | None = None
        if saved is not None:
            self.layers = sorted({layer.layer for layer in saved.layers})
            self.own = Query(saved.text, saved.pair, saved.target)

    def predictor(self) -> Predictor:
        """Return the predictor of the next token; see `OpenModel.predictor`."""
        if self._model is None:
            raise NotExposedError("a saved trace has no model that predicts; give --model in place of --from")
        return self._model.predictor()

    def tokens(self, query: Query) -> tuple[Tokens, Tokens]:
        """Return the tokens of a query's queries and keys; see `trace`."""
        if self._model is None:
            trace = self.trace(query)
            return trace.query_tokens, trace.key_tokens
        return self._model.tokens(*query[:3])

    def trace(self, query: Query) -> Trace:
        """Return the attention of all layers; UsageError if a saved trace has no such query, else see `open_source`."""
        if self._saved is not None and query == self.own:
            return self._saved
        if self._model is None:
            raise UsageError("a saved trace has only its own text; give --model for another")
        return self._model.with_mask(parse_mask(query.mask)).trace(*query[:3])
