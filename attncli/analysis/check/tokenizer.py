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
    tokenizer = reader.tokenizer
    pad, eos, bos = tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token
    if pad is None:
        yield _note(
            f"it has no pad token; a batch is padded with id {reader.padding_id} here, and the attention mask alone "
            "says where"
        )
    elif pad == eos:
        yield _note(
            f"its pad token is its end token {visible(pad)}: a mask made from the ids hides the end of a sentence; "
            "use the attention mask that the tokenizer returns"
        )
    if known_padding not in (None, reader.padding_id):
        yield _note(
            f"it pads with id {reader.padding_id}, and the model counts positions by its padding's id, "
            f"{known_padding}: a batch moves its tokens"
        )
    if tokenizer.padding_side == "left":
        yield _note("it pads on the left: positions have to follow from the attention mask, cumsum − 1")
    if reader.special and bos is not None and tokens[0].id != tokenizer.bos_token_id:
        yield _note(f"it has a token {visible(bos)} for the beginning and does not add it")


def _note(message: str) -> Finding:
    return Finding("tokenizer", "note", message)
