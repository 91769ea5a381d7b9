"""From a text to the token ids that a model reads, with the tokens that stand for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from attncli.errors import InputError, LoadError
from attncli.sources.texts import check_texts
from attncli.sources.vocabulary import tokens_of, unknown_notes
from attncli.tokens import Token, Tokens, visible


@dataclass(frozen=True)
class Sentence:
    """A sentence as a model reads it.

    Attributes:
        text: the sentence.
        pair: the second text of the same sequence.
        target: the decoder's text.
        tokens: of the sentence.
        query_tokens: the tokens whose queries attend: those of the target if there is one.
        inputs: token ids and what goes with them, as the model's forward pass names them.
        notes: what the user should know of its tokens.
    """

    text: str
    pair: str | None
    target: str | None
    tokens: Tokens
    query_tokens: Tokens
    inputs: dict[str, list[int]]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Reader:
    """A checkpoint's tokenizer and what its model can read.

    Attributes:
        name: of the checkpoint.
        tokenizer: a fast tokenizer of transformers.
        special: whether special tokens are added.
        limit: how many positions the model has; None is no limit.
        truncate: cut what is longer instead of refusing it.
        rows: how many ids the model has embeddings for; None is any.
        start_id: the id that a decoder begins with.
    """

    name: str
    tokenizer: Any
    special: bool
    limit: int | None
    truncate: bool
    rows: int | None
    start_id: int | None

    def read(self, text: str, pair: str | None, target: str | None) -> Sentence:
        """Tokenize one sentence and whatever belongs to it.

        Raises:
            InputError: a text is blank, or longer than the model reads.
            LoadError: the tokenizer has ids that the model has not.
        """
        check_texts(text, pair, target)
        encoding, notes = self._encoded("the sentence", text, pair)
        tokens = self._known(tokens_of(encoding.encodings[0]))
        notes += self._unknown(tokens, text, pair)
        inputs = {name: list(ids) for name, ids in encoding.items()}
        query_tokens = tokens
        if target is not None:
            encoding, cut = self._encoded("the target", text_target=target)
            query_tokens = self._known(self._decoder_tokens(list(tokens_of(encoding.encodings[0]))))
            notes += cut + self._unknown(query_tokens, target, None)
            inputs["decoder_input_ids"] = query_tokens.ids
        return Sentence(text, pair, target, tokens, query_tokens, inputs, notes)

    def _encoded(self, role: str, *texts: str | None, **more: str) -> tuple[Any, tuple[str, ...]]:
        """Return what the tokenizer made, and a note if it had to be cut."""
        given = {**more, "add_special_tokens": self.special, "padding": False, "verbose": False}
        encoding = self.tokenizer(*texts, truncation=False, **given)
        count = len(encoding["input_ids"])
        if self.limit is None or count <= self.limit:
            return encoding, ()
        if not self.truncate:
            raise InputError(
                f"{role} has {count} tokens, {visible(self.name)} reads at most {self.limit}; shorten it, or cut it "
                "with --truncate"
            )
        encoding = self.tokenizer(*texts, truncation=True, max_length=self.limit, **given)
        return encoding, (f"{role} has {count} tokens and is cut to the {self.limit} that {visible(self.name)} reads",)

    def _known(self, tokens: Tokens) -> Tokens:
        if self.rows is not None and max(token.id for token in tokens) >= self.rows:
            raise LoadError(
                f"the tokenizer of {visible(self.name)} has ids beyond the {self.rows} rows of the model's vocabulary; "
                "they do not belong together"
            )
        return tokens

    def _unknown(self, tokens: Tokens, text: str, pair: str | None) -> tuple[str, ...]:
        return unknown_notes((text, pair), tokens, self.tokenizer.unk_token_id, self.tokenizer.unk_token)

    def _decoder_tokens(self, tokens: list[Token]) -> Tokens:
        """Return what the decoder reads when it is to write the target: the start token, then all but the last."""
        if not self.special or self.start_id is None:
            return Tokens(tokens)
        # Room for the start token: a target that was cut has lost its end already.
        if tokens[-1].id == self.tokenizer.eos_token_id or len(tokens) == self.limit:
            tokens = tokens[:-1]
        piece = self.tokenizer.convert_ids_to_tokens(self.start_id)
        first = Token(0, self.start_id, piece, None, None, special=True)
        return Tokens(replace(token, index=index) for index, token in enumerate([first, *tokens]))
