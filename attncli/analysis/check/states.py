"""Hidden states of a model run as its users run it: in its own attention implementation, whole or with a cache.

Where two ways of running the same text should give the same numbers, the hidden states after each layer say whether
they do, and from which layer on not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attncli.engines.torch.attention_backend import translate_model_errors
from attncli.engines.torch.recorder import Span
from attncli.errors import NotExposedError
from attncli.files import to_numpy

if TYPE_CHECKING:
    from jaxtyping import Float

    # After each layer of a kind, `[T, E]`; layer −1 is the embeddings.
    States = dict[tuple[int, str], Float[np.ndarray, "T E"]]


class RunFailedError(NotExposedError):
    """The model runs, but not in this way."""


_SOURCES = (("self", "hidden_states"), ("encoder", "encoder_hidden_states"), ("decoder", "decoder_hidden_states"))


def states(model: Any, inputs: Mapping[str, Any], spans: Sequence[Span]) -> list[States]:
    """Run a model on a batch and return the hidden states after each layer, for the tokens of each sentence.

    Raises:
        NotExposedError: the model does not run on these inputs, or does not return its hidden states.
    """
    output = _run(model, inputs)
    found: list[States] = [{} for _ in spans]
    tokens = max(span.text.stop for span in spans)
    for kind, name in _SOURCES:
        for number, hidden in enumerate(output.get(name) or ()):
            for own, sentence, span in zip(_by_token(hidden, len(spans), tokens), found, spans, strict=True):
                sentence[number - 1, kind] = to_numpy(own[span.of(kind)[0]])
    if not all(found):
        raise NotExposedError("it returns no hidden states")
    return found


def states_with_cache(
    model: Any, inputs: Mapping[str, Any], spans: Sequence[Span], steps: Sequence[int]
) -> list[States]:
    """Run a batch piece by piece, keys and values of the earlier pieces kept, as generation does.

    Args:
        model: the model.
        inputs: of the batch; positions, where given, are of all tokens.
        spans: where each sentence stands.
        steps: where each piece ends; the last one is the length.

    Raises:
        NotExposedError: the model keeps no keys and values, or does not run with them.
    """
    is_encoder_decoder = model.config.is_encoder_decoder
    kind = "decoder" if is_encoder_decoder else "self"
    own = "decoder_" if is_encoder_decoder else ""
    more = {}
    if is_encoder_decoder:
        text = {name: value for name, value in inputs.items() if not name.startswith(own)}
        more["encoder_outputs"] = _run(model.get_encoder(), text)
    pieces: list[dict[tuple[int, str], torch.Tensor]] = []
    cache, start = None, 0
    for end in steps:
        piece = {  # masks are of all positions before them too, and an encoder's inputs stay whole
            name: value[:, None if name.endswith("attention_mask") else start : end] if name.startswith(own) else value
            for name, value in inputs.items()
        }
        output = _run(model, piece | more | {"past_key_values": cache, "use_cache": True})
        cache = output.get("past_key_values")
        if cache is None:
            raise NotExposedError("it keeps no cache")
        hidden = output.get(dict(_SOURCES)[kind]) or ()
        pieces.append({(i - 1, kind): _by_token(one, len(spans), end - start) for i, one in enumerate(hidden)})
        start = end
    whole = {place: torch.cat([piece[place] for piece in pieces], dim=1) for place in pieces[0]}
    return [
        {place: to_numpy(hidden[number, span.of(kind)[0]]) for place, hidden in whole.items()}
        for number, span in enumerate(spans)
    ]


def _by_token(hidden: torch.Tensor, batch: int, tokens: int) -> torch.Tensor:
    """Return hidden states as `[B, T, E]`; some models carry several streams, `[S, B, T, E]` or `[B, T, S, E]`.

    Raises:
        NotExposedError: they have another shape.
    """
    if hidden.ndim == 4:
        hidden = (hidden if hidden.shape[:2] == (batch, tokens) else hidden.movedim(0, 2)).flatten(2)
    if hidden.ndim != 3 or len(hidden) != batch:
        raise NotExposedError(f"its hidden states have shape {list(hidden.shape)}, not [batch, tokens, width]")
    return hidden


def _run(model: Any, inputs: Mapping[str, Any]) -> Any:
    device = next(model.parameters()).device
    moved = {name: value.to(device) if hasattr(value, "to") else value for name, value in inputs.items()}
    with translate_model_errors("the texts", "it does not run", RunFailedError):
        return model(**moved, output_hidden_states=True, return_dict=True)
