"""A causal language model's prediction in NumPy, with heads cut or whole."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from attncli.checkpoints.config_reader import UnsupportedError
from attncli.engines.numpy.ablation import effects, next_logits
from attncli.engines.numpy.ragged_batch import TokenIds
from attncli.engines.predictor import Cut, Effects, Measure, Predictor, Replacement
from attncli.errors import NotExposedError
from attncli.text import visible

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    from attncli.encoding.encode import EncodedInput
    from attncli.engines.numpy import NativeCheckpoint

_log = logging.getLogger(__name__)


class NativePredictor(Predictor):
    """Prediction of a checkpoint that this engine computes.

    Raises:
        NotExposedError: it predicts no next token.
        UnsupportedError: its weights have no unembedding.
    """

    def __init__(self, checkpoint: NativeCheckpoint) -> None:
        self._model, self.encoder, self.source = checkpoint.model, checkpoint.encoder, checkpoint.source
        spec = self._model.spec
        self.layers, self.heads = len(spec.layers), spec.heads.count
        self.masks = [layer.mask for layer in spec.layers]
        if spec.unembedding is None:
            shown = f"{visible(checkpoint.name)} ({self.source.architecture})"
            raise NotExposedError(f"{shown} is an encoder, which predicts no next token; give a causal model: -m demo")
        self._model.check_predicts()  # before a sentence is read

    def next_logits(self, sentence: EncodedInput) -> Float[np.ndarray, " V"]:
        """See `Predictor.next_logits`."""
        return next_logits(self._model, _ids(sentence))

    def effects(
        self, sentence: EncodedInput, cuts: Sequence[Cut], replacement: Replacement, measure: Measure
    ) -> Effects:
        """See `Predictor.effects`."""
        texts = [sentence, *([] if replacement.reference is None else [replacement.reference])]
        begun = perf_counter()
        try:
            result = effects(
                self._model,
                list(map(_ids, texts)),
                cuts,
                replacement,
                measure,
            )
        except UnsupportedError as error:
            raise NotExposedError(f"the native engine does not compute this text: {visible(str(error))}") from None
        _log.info("ran %d tokens with %d cuts in %.3f s", len(sentence.tokens), len(cuts), perf_counter() - begun)
        return result


def _ids(sentence: EncodedInput) -> TokenIds:
    return TokenIds(sentence.inputs["input_ids"], sentence.inputs.get("token_type_ids"))
