"""Models that are asked, in the plainest way: a whole run for every question."""

from collections.abc import Callable, Sequence
from typing import Any

from attncli.engines import inspect
from attncli.engines.interactive import Query
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Trace


class Plain:
    """What `attncli.inspect` says, and what it was asked for."""

    own: Query | None = None

    def __init__(self, layers: int, **options: Any) -> None:
        self.layers: Sequence[int] = range(layers)
        self.options = options
        self.requests: list[str] = []  # texts that were recorded

    def tokens(self, question: Query) -> tuple[Tokens, Tokens]:
        trace = self.whole(question)
        return trace.query_tokens, trace.key_tokens

    def trace(self, question: Query) -> Trace:
        self.requests.append(question.text)
        return self.whole(question)

    def whole(self, question: Query) -> Trace:
        text, pair, target, mask = question
        return inspect(text, pair=pair, target=target, mask=mask, layer="all", **self.options)


class Made:
    """A model whose attention a test makes."""

    own: Query | None = None

    def __init__(self, made: Callable[[Query], Trace], layers: Sequence[int] = (0,)) -> None:
        self.made = made
        self.layers = layers

    def tokens(self, question: Query) -> tuple[Tokens, Tokens]:
        trace = self.made(question)
        return trace.query_tokens, trace.key_tokens

    def trace(self, question: Query) -> Trace:
        return self.made(question)
