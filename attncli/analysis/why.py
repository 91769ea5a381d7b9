"""Why a query attends to a key: from tokens to the cell, or the row, of every head that was asked for."""

from __future__ import annotations

from typing import Any, Literal

from attncli.analysis.cell import AttentionCell, AttentionRow
from attncli.analysis.summary import OF_TRACES, refuse_beside
from attncli.checkpoints.options import with_explicit_signature
from attncli.engines import inspect, open_source
from attncli.errors import InputMismatchError, UsageError
from attncli.text import visible
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Trace

Explained = tuple[AttentionRow, ...] | tuple[AttentionCell, ...]


@with_explicit_signature(open_source)
def why(
    text: str | Trace,
    model: str | None = None,
    *,
    query: str | int,
    key: str | int | None = None,
    pair: str | None = None,
    target: str | None = None,
    **options: Any,
) -> Explained:
    """Return why a query attends to a key, or with no key to all of them, in every layer and head asked for.

        (cell,) = attncli.why("time flies like an arrow", query="arrow", key="flies", head=3)
        cell.dot_product, cell.products.sum()      # the same number

    Args:
        text: the sentence, or a trace of it.
        model: a checkpoint's folder or hub name, or `demo`; None is the toy layer.
        query: the token that attends: its text, or its index.
        key: the token that is attended to: its text, or its index; None explains the whole row.
        pair: a second text in the same sequence.
        target: the text whose queries attend to the sentence's keys.
        options: everything `attncli.inspect` takes, `layer`, `head` and `mask` among it.

    Returns:
        An `AttentionCell`, or without a key an `AttentionRow`, for each head of each layer.

    Raises:
        UsageError: no token, or several, are called that; or an option is given beside a trace.
        AttnError: as `attncli.inspect` does.
    """
    if isinstance(text, Trace):
        refuse_beside(OF_TRACES, {"model": model, "pair": pair, "target": target, **options})
    else:
        text = inspect(text, model, pair=pair, target=target, **options)
    return explain(text, query, key)


def explain(trace: Trace, query: str | int, key: str | int | None = None) -> Explained:
    """Return the row of a query, or its cell at a key, in every head that was asked for.

    Where the kinds of attention of a model have other tokens, those that lack one of the two are left out.

    Raises:
        UsageError: no token, or several, are called that, or the trace is derived.
    """
    trace.check_recorded("why")
    rows: list[tuple[AttentionRow, Token | None]] = []
    first_error = None
    for layer in trace:
        query_tokens, key_tokens = trace.sides(layer)
        try:
            token = _the_token(trace, query_tokens, query, "query")
            other = None if key is None else _the_token(trace, key_tokens, key, "key")
        except InputMismatchError as error:  # another kind of attention may have such a token
            first_error = first_error or error
            continue
        rows += [(AttentionRow(layer.head(head, [token.index]), token, key_tokens), other) for head in layer.heads]
    if not rows and first_error is not None:
        raise UsageError(str(first_error))
    if key is None:
        return tuple(row for row, _ in rows)
    return tuple(AttentionCell(row, token) for row, token in rows if token is not None)


def _the_token(trace: Trace, tokens: Tokens, wanted: str | int, role: Literal["query", "key"]) -> Token:
    matches = trace.layout(role).find(tokens, wanted)
    if len(matches) > 1:
        # An index that is also a token's text means the token; counted from the end it cannot be one.
        spelled = f", counted from the end: {matches[0] - len(tokens)}" if str(wanted).isdigit() else ""
        places = ", ".join(map(str, matches[:8])) + ", …" * (len(matches) > 8)
        why = f"{len(matches)} {role} tokens match, at {places}"
        raise UsageError(f"--{role} '{visible(str(wanted))}': {why}; give an index{spelled}")
    return tokens[matches[0]]
