"""Notes about a tokenizer that has made masks wrong."""

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
        (pad is None, f"no pad token. This check pads with id {padding}, so only the attention mask marks padding"),
        (
            pad is not None and pad == tokenizer.eos_token,
            f"the pad token is also the end token {visible(str(pad))}, so a mask made from ids hides the end of a "
            "sentence. Use the tokenizer's attention mask",
        ),
        (
            known_padding not in (None, padding),
            f"it pads with id {padding}, but the model skips id {known_padding} when it counts positions, so padding "
            "shifts the tokens",
        ),
        (
            tokenizer.padding_side == "left",
            "it pads on the left. Compute positions from the attention mask: cumsum − 1",
        ),
        (
            reader.special and bos is not None and tokens[0].id != tokenizer.bos_token_id,
            f"it does not add its beginning token {visible(str(bos))}",
        ),
    ]
    yield from (Finding("tokenizer", "note", message) for is_so, message in notes if is_so)
