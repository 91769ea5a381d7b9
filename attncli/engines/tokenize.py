"""Tokens alone, without any attention: by a vocabulary of the toy layer, or by a checkpoint's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from attncli.checkpoints.options import (
    LoadOptions,
    TokenizerOptions,
    VocabularyOptions,
    checked_options,
    refuse_unknown,
)
from attncli.checkpoints.signatures import TokenizeKeywords, VocabularyKeywords, spelling_out
from attncli.encoding.encode import InputEncoder, as_conversation, check_texts, unknown_notes, unknown_tokens
from attncli.encoding.vocabulary import open_vocabulary
from attncli.errors import LoadError, require
from attncli.text import visible
from attncli.trace.tokenization import Tokenization


@spelling_out(VocabularyKeywords, VocabularyOptions, TokenizerOptions)
def open_tokenizer(
    model: str | None = None, *, special: bool = True, **options: Unpack[VocabularyKeywords]
) -> Tokenizer:
    """Return a vocabulary of the toy layer, or a checkpoint's tokenizer, ready for sentences; see `tokenize`.

    Raises:
        UsageError: an option does not exist, or does not apply.
        LoadError: there is no such tokenizer, or it cannot be loaded.
    """
    if model is None:
        of_vocabulary: dict[str, Any] = {**options}
        refuse_unknown(of_vocabulary, VocabularyOptions, "the toy layer's vocabulary; give --model, or leave it out")
        return _OfVocabulary(VocabularyOptions(**of_vocabulary), special)
    return _OfCheckpoint(
        model, checked_options(model, options, TokenizerOptions, "--model, whose tokenizer runs alone"), special
    )


@spelling_out(TokenizeKeywords, open_tokenizer)
def tokenize(
    text: str | Sequence[Mapping[str, str]],
    model: str | None = None,
    *,
    pair: str | None = None,
    **options: Unpack[TokenizeKeywords],
) -> Tokenization:
    """Return the tokens of one sentence; neither a model's weights nor torch are loaded.

        attncli.tokenize("time flies", "sentence-transformers/all-MiniLM-L6-v2").tokens.ids

    Args:
        text: the sentence; with `chat`, a user's turn, or a list of messages.
        model: a checkpoint's folder or hub name, or `demo`; None is the toy layer's vocabulary.
        pair: a second text in the same sequence.
        options: what `attn tokens` takes, under the name of its long option: `vocab`, `special`, `offline`,
            `trust_remote_code`, `truncate`, `base`, `chat`.

    Raises:
        AttnError: one sentence with the expectation, the actual value and the remedy.
    """
    return open_tokenizer(model, **options).tokenize(as_conversation(text, options), pair)


class _OfVocabulary:
    def __init__(self, options: VocabularyOptions, special: bool) -> None:
        self._name = options.vocab
        self._vocabulary_of = open_vocabulary(options.vocab, special, options.offline)

    def tokenize(self, text: str, pair: str | None = None) -> Tokenization:
        check_texts(text, pair)
        texts = (text, pair)
        vocabulary = self._vocabulary_of(texts)
        tokens = vocabulary.encode(text, pair)
        pieces = vocabulary.unknown_pieces(tokens)
        unknown = frozenset(token.index for token in unknown_tokens(texts, tokens, pieces))
        notes = unknown_notes(texts, tokens, pieces)
        return Tokenization("toy", None, self._name, text, pair, tokens, unknown=unknown, notes=notes)


class _OfCheckpoint:
    def __init__(self, model: str, options: TokenizerOptions, special: bool) -> None:
        from attncli.checkpoints.snapshot import resolve
        from attncli.engines import numpy as numpy_engine

        load = LoadOptions(**vars(options))
        snapshot = resolve(model, load, for_tokenizer=True)
        self._limit: int | None
        try:
            tokenizer, self._limit = numpy_engine.load_alone(snapshot, load)
        except numpy_engine.UnsupportedError as error:  # the tokenizer of transformers may differ
            name, why = visible(snapshot.name), visible(str(error))
            if snapshot.gguf is not None:
                raise LoadError(f"the tokenizer of {name} cannot be read: {why}") from None
            require(f"{name}: {why}. The tokenizer of transformers", "transformers")
            import logging  # other runs print no such message

            logging.getLogger(__name__).info("the tokenizer is left to transformers: %s", why)
            from attncli.encoding import auto_tokenizer

            tokenizer, self._limit = auto_tokenizer.load_alone(snapshot, load)
        # The length of a text is a result here: none is refused, and it is cut only on demand.
        limit = self._limit if options.truncate else None
        self._encoder = InputEncoder(snapshot.name, tokenizer, special, limit, options.truncate).with_chat(load)

    def tokenize(self, text: str, pair: str | None = None) -> Tokenization:
        name, limit = self._encoder.name, self._limit
        encoded = self._encoder.encode(text, pair, None)
        text, tokens, notes, count = encoded.text, encoded.tokens, encoded.notes, len(encoded.tokens)
        if limit is not None and count > limit:
            notes += (f"the sentence has {count} tokens, {visible(name)} reads at most {limit}; --truncate cuts it",)
        unknown = frozenset(token.index for token in unknown_tokens((text, pair), tokens, self._encoder.unknown_pieces))
        return Tokenization("pretrained", name, None, text, pair, tokens, limit, unknown, notes)


Tokenizer = _OfVocabulary | _OfCheckpoint
"""Returns the tokens of a sentence, and of a second text in the same sequence, by `tokenize`."""
