"""What a tokenizer does that has made masks wrong: notes, for a tokenizer alone is never an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attncli.masks.findings import Finding
from attncli.text import visible
from attncli.trace.tokens import Tokens

if TYPE_CHECKING:
    from attncli.encoding.encode import InputEncoder


def tokenizer_findings(reader: InputEncoder, tokens: Tokens, known_padding: int | None) -> Iterator[Finding]:
    """Yield notes about a tokenizer.

    Args:
        reader: has the tokenizer.
        tokens: of a sentence that it read.
        known_padding: the id by which the model itself finds its padding; None if it does not.
    """
    tokenizer, padding = reader.tokenizer, reader.padding_id
    pad, bos = tokenizer.pad_token, tokenizer.bos_token
    notes = [
        (
            pad is None,
            f"it has no pad token; a batch is padded with id {padding} here, and the attention mask alone says where",
        ),
        (
            pad is not None and pad == tokenizer.eos_token,
            f"its pad token is its end token {visible(str(pad))}: a mask made from the ids hides the end of a "
            "sentence; use the attention mask that the tokenizer returns",
        ),
        (
            known_padding not in (None, padding),
            f"it pads with id {padding}, and the model counts positions by its padding's id, {known_padding}: a batch "
            "moves its tokens",
        ),
        (
            tokenizer.padding_side == "left",
            "it pads on the left: positions have to follow from the attention mask, cumsum − 1",
        ),
        (
            reader.special and bos is not None and tokens[0].id != tokenizer.bos_token_id,
            f"it has a token {visible(str(bos))} for the beginning and does not add it",
        ),
    ]
    yield from (Finding("tokenizer", "note", message) for is_so, message in notes if is_so)
