"""Tokens alone, without any attention: by a vocabulary of the toy layer, or by a checkpoint's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attncli.checkpoints.options import (
    LoadOptions,
    TokenizerOptions,
    VocabularyOptions,
    checked_options,
    with_explicit_signature,
)
from attncli.encoding.encode import InputEncoder, as_conversation, check_texts, unknown_notes, unknown_tokens
from attncli.encoding.vocabulary import open_vocabulary
from attncli.errors import LoadError, require
from attncli.text import visible
from attncli.trace.tokenization import Tokenization


@with_explicit_signature(VocabularyOptions, TokenizerOptions)
def open_tokenizer(
    model: str | None = None, *, special: bool = True, **options: Any
) -> VocabularyTokenizer | CheckpointTokenizer:
    """Return a vocabulary of the toy layer, or a checkpoint's tokenizer, ready for sentences.

    Args:
        model: a checkpoint's folder or hub name; None is the toy layer's vocabulary.
        special: whether special tokens are added.
        options: fields of `VocabularyOptions`, or of `TokenizerOptions` with a model.

    Raises:
        UsageError: an option does not exist, or does not apply.
        LoadError: there is no such tokenizer, or it cannot be loaded.
    """
    if model is None:
        owner = "the toy layer's vocabulary; give --model, or leave it out"
        return VocabularyTokenizer(checked_options(options, VocabularyOptions, owner), special)
    chosen = checked_options(options, TokenizerOptions, "--model, whose tokenizer runs alone")
    return CheckpointTokenizer(model, chosen, special)


@with_explicit_signature(open_tokenizer)
def tokenize(
    text: str | Sequence[Mapping[str, str]],
    model: str | None = None,
    *,
    pair: str | None = None,
    **options: Any,
) -> Tokenization:
    """Return the tokens of one sentence; neither a model's weights nor torch are loaded.

        attncli.tokenize("time flies", "sentence-transformers/all-MiniLM-L6-v2").tokens.ids

    Args:
        text: the sentence; with `chat`, a user's turn, or a list of messages.
        model: a checkpoint's folder or hub name, or `demo`; None is the toy layer's vocabulary.
        pair: a second text in the same sequence.
        options: what `attn tokens` takes, under the name of its long option: `vocab`, `special`, `offline`,
            `trust_remote_code`, `truncate`, `base`, `chat`, `tokenizer`, `ids`.

    Raises:
        AttnError: one sentence with the expectation, the actual value and the remedy.
    """
    return open_tokenizer(model, **options).tokenize(as_conversation(text, options), pair)


class VocabularyTokenizer:
    """A vocabulary of the toy layer."""

    def __init__(self, options: VocabularyOptions, special: bool) -> None:
        self._name = options.vocab
        self._vocabulary_of = open_vocabulary(options.vocab, special, options.offline)

    def tokenize(self, text: str, pair: str | None = None) -> Tokenization:
        """Return the tokens of a sentence, and of a second text in the same sequence."""
        check_texts(text, pair)
        texts = (text, pair)
        vocabulary = self._vocabulary_of(texts)
        tokens = vocabulary.encode(text, pair)
        pieces = vocabulary.unknown_pieces(tokens)
        unknown = frozenset(token.index for token in unknown_tokens(texts, tokens, pieces))
        notes = unknown_notes(texts, tokens, pieces)
        return Tokenization("toy", None, self._name, text, pair, tokens, unknown=unknown, notes=notes)


class CheckpointTokenizer:
    """A checkpoint's tokenizer: transformers' own only where the native one may differ."""

    def __init__(self, model: str, options: TokenizerOptions, special: bool) -> None:
        from attncli.checkpoints.snapshot import resolve
        from attncli.engines import numpy as numpy_engine

        load = LoadOptions(**vars(options))
        self._limit: int | None
        snapshot = resolve(model, load, for_tokenizer=True)
        try:
            if snapshot.onnx:
                from attncli.encoding import written_tokenizer

                tokenizer: Any = written_tokenizer.load_alone(snapshot, load)
                self._limit = written_tokenizer.position_limit(snapshot)
            else:
                tokenizer, self._limit = numpy_engine.load_alone(snapshot, load)
        except numpy_engine.UnsupportedError as error:
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
        """Return the tokens of a sentence; see `VocabularyTokenizer.tokenize`."""
        name, limit = self._encoder.name, self._limit
        encoded = self._encoder.encode(text, pair, None)
        text, tokens, notes = encoded.text, encoded.tokens, encoded.notes
        if limit is not None and len(tokens) > limit:
            count = len(tokens)
            notes += (f"the sentence has {count} tokens, {visible(name)} reads at most {limit}; --truncate cuts it",)
        unknown = frozenset(token.index for token in unknown_tokens((text, pair), tokens, self._encoder.unknown_pieces))
        return Tokenization("pretrained", name, None, text, pair, tokens, limit, unknown, notes)
