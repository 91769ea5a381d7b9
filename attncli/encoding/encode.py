"""From a text to the token ids that a model reads, with the tokens that stand for them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.encoding.induction_probe import Repeated
from attncli.encoding.vocabulary import tokens_of, translate_tokenizer_errors, unknown_notes
from attncli.errors import InputError, LoadError, UsageError
from attncli.text import visible
from attncli.trace.tokens import Token, Tokens

if TYPE_CHECKING:
    from tokenizers import Encoding

    from attncli.encoding.chat import Chat


def check_texts(text: str | None, pair: str | None = None, target: str | None = None) -> None:
    """Refuse texts that cannot be tokenized; a text that is None was not given.

    Raises:
        InputError: one is blank, or holds half of a character (bytes that were not UTF-8).
    """
    for given, role in ((text, "the sentence"), (pair, "the pair"), (target, "the target")):
        if given is None:
            continue
        if not isinstance(given, str):
            raise InputError(f"{role} is {type(given).__name__}; expected text")
        if not given.strip():
            raise InputError(f"{role} is empty; expected at least one word")
        try:
            given.encode("utf-8")
        except UnicodeEncodeError as error:
            encoding = sys.getfilesystemencoding()
            if encoding == "utf-8":
                why = f"is not valid UTF-8 at character {error.start + 1}; convert it to UTF-8 first"
            else:  # of the locale, in which Python reads arguments
                why = f"is not {encoding}, which the locale says arguments are; set PYTHONUTF8=1"
            raise InputError(f"{role} {why}") from None


def as_conversation(text: str | Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> str:
    """Return a text as sources take it: of a list of messages, the conversation.

    Raises:
        UsageError: a list is given, and its options ask for no chat.
        InputError: it is no list of messages.
    """
    if not isinstance(text, list | tuple):
        return text  # type: ignore[return-value]  # what else it may be, `check_texts` refuses
    if not options.get("chat"):
        raise UsageError("a list of messages is read through a chat template; give chat=True")
    from attncli.encoding.chat import Conversation

    return Conversation.of(text)


class EncodedInput(NamedTuple):
    """A sentence as a model reads it.

    Attributes:
        text: the sentence, or what a chat template has made of it; empty where a target stands alone.
        pair: the second text of the same sequence.
        target: the decoder's text.
        tokens: of the sentence.
        query_tokens: the tokens whose queries attend: those of the target if there is one.
        inputs: token ids and what goes with them, as the model's forward pass names them.
        notes: what the user should know of its tokens.
        generated: how many of the last tokens the model wrote.
    """

    text: str
    pair: str | None
    target: str | None
    tokens: Tokens
    query_tokens: Tokens
    inputs: dict[str, list[int]]
    notes: tuple[str, ...]
    generated: int = 0


class InputEncoder(NamedTuple):
    """A checkpoint's tokenizer and what its model can read.

    Attributes:
        name: of the checkpoint.
        tokenizer: a fast tokenizer of transformers, or the native engine's, which is called alike.
        special: whether special tokens are added.
        limit: how many positions the model has; None is no limit.
        truncate: cut what is longer instead of refusing it.
        rows: how many ids the model has embeddings for; None is any.
        start_id: the id that a decoder begins with.
        chat: what makes a chat of a sentence, and adds the special tokens itself; None leaves it as it stands.
    """

    name: str
    tokenizer: Any
    special: bool
    limit: int | None
    truncate: bool
    rows: int | None = None
    start_id: int | None = None
    chat: Chat | None = None

    @property
    def padding_id(self) -> int:
        """The id that fills up a batch: that of the pad token, else of the end token, else 0."""
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return next(each for each in known if each is not None)

    def encode(self, text: str, pair: str | None, target: str | None) -> EncodedInput:
        """Tokenize a sentence, with its pair and its target.

        Raises:
            InputError: a text is blank, or longer than the model reads.
            LoadError: the tokenizer has ids that the model has not.
            UsageError: a chat has a pair or a target; or what is given is not what the model reads.
        """
        if isinstance(text, Repeated):
            return self._encode_repeated(text)
        check_texts(text, pair, target)
        written = None
        if self.chat is not None:
            written = self.chat.write(text, pair, target)
            text = written.text
            check_texts(text)
        encoding, inputs = self.encoded(text, pair, None)
        notes = self._cut("the sentence", len(encoding.ids))
        if notes:
            encoding, inputs = self.encoded(text, pair, self.limit)
        tokens = self._known(tokens_of(encoding, text, pair))
        if self.chat is not None and written is not None:
            controls = {id_ for id_, token in self.tokenizer.added_tokens_decoder.items() if token.special}
            tokens, more = self.chat.marked(tokens, written, controls)
            notes += more
        notes += unknown_notes((text, pair), tokens, self.unknown_pieces)
        query_tokens = tokens
        if target is not None:
            query_tokens, more = self._of_target(target)
            notes += more
            inputs["decoder_input_ids"] = query_tokens.ids
        return EncodedInput(text, pair, target, tokens, query_tokens, inputs, notes)

    def _encode_repeated(self, text: Repeated) -> EncodedInput:
        """Return random tokens twice, between what the tokenizer puts around a text.

        Where it puts nothing before a text, the token for the beginning stands there, if there is one (GPT-2's has one
        that it does not use).
        """
        if self.chat is not None:
            raise UsageError("--chat does not apply to --induction, which draws its tokens; drop one of them")
        encoding, inputs = self.encoded("a", None, None)
        around = tokens_of(encoding, "a")
        before = [token.id for token in takewhile(lambda token: token.special, around)]
        behind = [token.id for token in around[len(before) :] if token.special]
        ids = self.tokenizer.get_vocab()
        if self.special and not before:
            before = [ids[first] for first in [self.tokenizer.special_tokens_map.get("bos_token")] if first in ids]
        special = {id_ for id_, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        known = [id_ for id_ in sorted(ids.values()) if id_ not in special and (self.rows is None or id_ < self.rows)]
        room = (self.limit or sys.maxsize) - len(before) - len(behind)
        read = [*before, *text.drawn(known, room), *behind]
        tokens = Tokens(
            Token(index, id_, self.tokenizer.convert_ids_to_tokens(id_) or "", None, None, special=id_ in special)
            for index, id_ in enumerate(read)
        )
        alike = {name: values[:1] * len(read) for name, values in inputs.items()}
        return EncodedInput(text, None, None, tokens, tokens, alike | {"input_ids": read}, ())

    def _of_target(self, target: str) -> tuple[Tokens, tuple[str, ...]]:
        """Return what the decoder reads while it writes a target, and what the user should know of it."""
        encoding = self.tokenizer(text_target=target, **self._plainly(), truncation=False)
        shifted = self._known(self._decoder_tokens(list(tokens_of(encoding.encodings[0], target))))
        tokens = Tokens(shifted[: self.limit])
        notes = self._cut("the target", len(shifted)) + unknown_notes((target, None), tokens, self.unknown_pieces)
        return tokens, notes

    def _plainly(self) -> dict[str, Any]:
        return {"add_special_tokens": self.special and self.chat is None, "padding": False, "verbose": False}

    def encoded(self, text: str, pair: str | None, limit: int | None) -> tuple[Encoding, dict[str, list[int]]]:
        """Return the tokens of a text, cut to a limit, and the inputs of the model."""
        cut = {"truncation": limit is not None, "max_length": limit}
        with translate_tokenizer_errors():
            encoding = self.tokenizer(text, pair, **self._plainly(), **cut)
        return encoding.encodings[0], {name: list(ids) for name, ids in encoding.items()}

    def _cut(self, role: str, count: int) -> tuple[str, ...]:
        """Return a note that a text of so many tokens is cut, or nothing where it fits.

        Raises:
            InputError: they may not be.
        """
        if self.limit is None or count <= self.limit:
            return ()
        name = visible(self.name)
        if not self.truncate:
            raise InputError(
                f"{role} has {count} tokens, {name} reads at most {self.limit}; shorten it, or cut it with --truncate"
            )
        return (f"{role} has {count} tokens and is cut to the {self.limit} that {name} reads",)

    def _known(self, tokens: Tokens) -> Tokens:
        if self.rows is not None and max(token.id for token in tokens) >= self.rows:
            raise LoadError(
                f"the tokenizer of {visible(self.name)} has ids beyond the {self.rows} rows of the model's vocabulary; "
                "they do not belong together"
            )
        return tokens

    @property
    def unknown_pieces(self) -> dict[int, str]:
        """The id that stands for what the vocabulary lacks, with its piece; empty without an unknown token."""
        known = self.tokenizer.unk_token_id
        return {} if known is None else {known: self.tokenizer.unk_token}

    def _decoder_tokens(self, tokens: list[Token]) -> Tokens:
        """Return what a decoder reads while it writes a target: the start token, then the target without its end."""
        if not self.special or self.start_id is None:
            return Tokens(tokens)
        if tokens[-1].id == self.tokenizer.eos_token_id:
            tokens = tokens[:-1]
        piece = self.tokenizer.convert_ids_to_tokens(self.start_id)
        first = Token(0, self.start_id, piece, None, None, special=True)
        return Tokens(replace(token, index=index) for index, token in enumerate([first, *tokens]))
