"""Encoding of a text: the token ids that a model reads, and the tokens that are shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.errors import AttnError, InputError, LoadError, UsageError, is_panic
from attncli.text import visible
from attncli.trace.tokens import Token, Tokens, decode_pieces

if TYPE_CHECKING:
    from tokenizers import Encoding

    from attncli.checkpoints.options import LoadOptions
    from attncli.encoding.chat import Chat
    from attncli.trace.layout import ImageGrid, Picture


def check_texts(text: str | None, pair: str | None = None, target: str | None = None) -> None:
    """Raise InputError for a text that is blank, or holds half of a character; None is no text."""
    for content, role in ((text, "the sentence"), (pair, "the pair"), (target, "the target")):
        if content is None:
            continue
        if not isinstance(content, str):
            raise InputError(f"{role} is {type(content).__name__}; expected text")
        if not content.strip():
            raise InputError(f"{role} is empty; expected at least one word")
        try:
            content.encode("utf-8")
        except UnicodeEncodeError as error:
            where = f"at character {error.start + 1}; convert it to UTF-8 first"
            raise InputError(f"{role} is not valid UTF-8 {where}") from None


def as_conversation(text: str | Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> str:
    """Return a text for a source: a list of messages becomes a conversation; UsageError without `chat`."""
    if not isinstance(text, list | tuple):
        return text  # type: ignore[return-value]  # `check_texts` refuses other types
    if not any(isinstance(message, Mapping) for message in text):
        raise UsageError(f"expected one text, not a list of {len(text)}; call it once for each text")
    if not options.get("chat"):
        raise UsageError("a list of messages needs chat=True")
    from attncli.encoding.chat import Conversation

    return Conversation.of(text)


class TokenizerOutput(dict[str, list[int]]):
    """Output of a tokenizer: inputs of a model by their names."""

    def __init__(self, inputs: Mapping[str, list[int]], encoding: Any) -> None:
        super().__init__(inputs)
        self.encodings = [encoding]


class IdTokenizer:
    """A tokenizer for models without one: a text is its token ids, such as `101 2051 102`."""

    unk_token_id = eos_token_id = pad_token_id = unk_token = chat_template = None
    special_tokens_map: Mapping[str, str] = {}
    added_tokens_decoder: Mapping[int, Any] = {}

    def __call__(self, text: str | None = None, pair: str | None = None, **how: Any) -> TokenizerOutput:
        """Return the model's inputs for a text, or for a `text_target`; ValueError for a text that is no ids."""
        if pair is not None:
            raise ValueError("--ids are of one text; drop --pair")
        words = [*re.finditer(r"[^\s,]+", how.get("text_target") or text or "")][: how.get("max_length")]
        if bad := next((word[0] for word in words if not (word[0].isascii() and word[0].isdecimal())), None):
            raise ValueError(f"expected token ids, such as 101 2051, and {visible(bad)} is none")
        ids, count = [int(word[0][:18]) for word in words], len(words)
        encoding = SimpleNamespace(
            ids=ids, tokens=[str(id_) for id_ in ids], offsets=[word.span() for word in words],
            special_tokens_mask=[0] * count, sequence_ids=[0] * count, word_ids=[*range(count)],
        )  # fmt: skip
        return TokenizerOutput({"input_ids": ids, "attention_mask": [1] * count}, encoding)

    def get_vocab(self) -> dict[str, int]:
        """Return no pieces."""
        return {}

    def convert_ids_to_tokens(self, id_: int) -> str:
        """Return an id as text."""
        return str(id_)


class EncodedInput(NamedTuple):
    """An encoded sentence."""

    text: str  # the sentence, or the rendered chat template
    pair: str | None  # the second text of the same sequence
    target: str | None  # the decoder's text
    tokens: Tokens  # of the sentence
    query_tokens: Tokens  # the tokens whose queries attend: those of the target if there is one
    inputs: dict[str, list[int]]  # token ids and the like, by the names of the model's forward pass
    notes: tuple[str, ...]  # notes on the tokens for the user
    generated: int = 0  # number of tokens at the end that the model generated
    # pictures, their grids over the positions, and the pixels, by the names of the model's forward pass
    pictures: tuple[Picture, ...] = ()
    grids: tuple[ImageGrid, ...] = ()
    tensors: Mapping[str, Any] = {}


class InputEncoder(NamedTuple):
    """A checkpoint's tokenizer and the limits of its model."""

    name: str  # of the checkpoint
    tokenizer: Any  # a fast tokenizer of transformers, or the native engine's, which is called alike
    special: bool  # whether special tokens are added
    limit: int | None  # number of positions of the model; None is no limit
    truncate: bool  # cut what is longer instead of refusing it
    rows: int | None = None  # number of embeddings of the model; None is any
    start_id: int | None = None  # the id that a decoder begins with
    # renders a sentence as a chat, with the special tokens; None leaves it as it is
    chat: Chat | None = None
    # reads a text and pictures, or the picture that a text names
    looking: Callable[[str, InputEncoder], EncodedInput] | None = None

    def with_chat(self, options: LoadOptions) -> InputEncoder:
        """Return the encoder that reads sentences through the chat template, if the options ask for it."""
        if not options.chat:
            return self
        from attncli.encoding.chat import open_chat

        return self._replace(chat=open_chat(self.name, self.tokenizer, options, special=self.special, asks=False))

    @property
    def padding_id(self) -> int:
        """The id that pads a batch: that of the pad token, else of the end token, else 0."""
        ids = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return next(id_ for id_ in ids if id_ is not None)

    @property
    def special_ids(self) -> set[int]:
        """The ids of the special tokens."""
        return {id_ for id_, token in self.tokenizer.added_tokens_decoder.items() if token.special}

    @property
    def unknown_pieces(self) -> dict[int, str]:
        """The id of the unknown token, with its piece; empty without one."""
        id_ = self.tokenizer.unk_token_id
        return {} if id_ is None else {id_: self.tokenizer.unk_token}

    def tokens_of_ids(self, ids: Sequence[int], first: int = 0, segment: int = 0) -> Tokens:
        """Return tokens that have no place in a text, by their ids; `first` is the index of the first one."""
        special, pieces = self.special_ids, map(self.tokenizer.convert_ids_to_tokens, ids)
        return Tokens(
            Token(index, id_, f"<id {id_}>" if piece is None else piece, None, None, id_ in special, segment)
            for index, (id_, piece) in enumerate(zip(ids, pieces, strict=True), first)
        )

    def encode(self, text: str, pair: str | None, target: str | None) -> EncodedInput:
        """Tokenize a sentence, with its pair and its target.

        Raises:
            InputError: a text is blank, or longer than the model reads.
            LoadError: the tokenizer has ids that the model has not.
            UsageError: a chat has a pair or a target; or what is given is not what the model reads.
        """
        if hasattr(text, "encode_with"):  # random tokens in place of a text: see `induction_probe`
            return text.encode_with(self)
        check_texts(text, pair, target)
        if self.looking is not None:
            if pair is not None:
                raise UsageError("--pair does not apply to a text with pictures; drop one of them")
            return self.looking(text, self)
        if self.chat is not None:
            text = self.chat.write(text, pair, target)
            check_texts(text)
        encoding, inputs = self.tokenize(text, pair)
        notes = self._check_length("the sentence", len(encoding.ids))
        if notes:
            encoding, inputs = self.tokenize(text, pair, self.limit)
        tokens = self._check_ids(tokens_of(encoding, text, pair))
        if self.chat is not None:
            special = self.special_ids
            tokens = Tokens([replace(token, special=token.id in special) for token in tokens])
        notes += unknown_notes((text, pair), tokens, self.unknown_pieces)
        query_tokens = tokens
        if target is not None:
            query_tokens, more = self._encode_target(target)
            notes, inputs["decoder_input_ids"] = notes + more, query_tokens.ids
        return EncodedInput(text, pair, target, tokens, query_tokens, inputs, notes)

    def tokenize(self, text: str, pair: str | None, limit: int | None = None) -> tuple[Encoding, dict[str, list[int]]]:
        """Return the tokens of a text, cut to a limit, and the inputs of the model."""
        with translate_tokenizer_errors():
            encoding = self.tokenizer(text, pair, **self._options, truncation=limit is not None, max_length=limit)
        return encoding.encodings[0], {name: list(ids) for name, ids in encoding.items()}

    def _encode_target(self, target: str) -> tuple[Tokens, tuple[str, ...]]:
        """Return the decoder's input for a target (the start token, then it without its end), and notes on it."""
        encoding = self.tokenizer(text_target=target, **self._options, truncation=False)
        tokens = list(tokens_of(encoding.encodings[0], target))
        if self.special and self.start_id is not None:
            if tokens[-1].id == self.tokenizer.eos_token_id:
                tokens = tokens[:-1]
            piece = self.tokenizer.convert_ids_to_tokens(self.start_id)
            tokens.insert(0, Token(0, self.start_id, piece, None, None, special=True))
        numbered = self._check_ids(Tokens(replace(token, index=index) for index, token in enumerate(tokens)))
        shown = Tokens(numbered[: self.limit])
        notes = self._check_length("the target", len(numbered))
        return shown, notes + unknown_notes((target, None), shown, self.unknown_pieces)

    @property
    def _options(self) -> dict[str, Any]:
        return {"add_special_tokens": self.special and self.chat is None, "padding": False, "verbose": False}

    def _check_length(self, role: str, count: int) -> tuple[str, ...]:
        """Return a note on truncating a text of `count` tokens, empty if it fits; InputError without `--truncate`."""
        if self.limit is None or count <= self.limit:
            return ()
        reads = f"{visible(self.name)} reads"
        if not self.truncate:
            most = f"{reads} at most {self.limit} tokens"
            raise InputError(f"{role} has {count} tokens, and {most}; shorten it, or add --truncate")
        return (f"{role} has {count} tokens and is cut to the {self.limit} that {reads}",)

    def _check_ids(self, tokens: Tokens) -> Tokens:
        if self.rows is not None and (largest := max(tokens.ids)) >= self.rows:
            if isinstance(self.tokenizer, IdTokenizer):
                raise InputError(
                    f"the token id {largest} is none of {visible(self.name)}, which has {self.rows} ids; give its model"
                )
            what = f"has ids beyond the {self.rows} rows of the model's vocabulary"
            raise LoadError(f"the tokenizer of {visible(self.name)} {what}; check that they belong together")
        return tokens


@contextmanager
def translate_tokenizer_errors(
    failure: str = "the tokenizer cannot read the text", kind: type[AttnError] = InputError
) -> Iterator[None]:
    """Make one sentence of an error of the tokenizers library, InputError unless another kind is given."""
    try:
        yield
    except BaseException as error:  # the library raises bare Exception, for a word without an unknown token
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise kind(f"{failure}: {visible(str(error))}") from None


def tokens_of(encoding: Any, text: str, pair: str | None = None) -> Tokens:
    """Return the tokens of one `tokenizers.Encoding` of a text, and of a second one in the same sequence."""
    if not encoding.ids:
        raise InputError("the tokenizer made no token of the text; give another text")
    names = ("ids", "tokens", "offsets", "special_tokens_mask", "sequence_ids", "word_ids")
    columns = zip(*(getattr(encoding, name) for name in names), strict=True)
    tokens = []
    segment = 0
    for index, (id_, piece, (start, end), special, sequence, word) in enumerate(columns):
        if sequence is not None:
            segment = sequence  # a separator belongs to the text it closes
        if special:
            start = end = word = None
        tokens.append(Token(index, id_, piece, start, end, bool(special), segment, word))
    return decode_pieces(tokens, text, pair)


def unknown_tokens(texts: tuple[str, str | None], tokens: Tokens, pieces: Mapping[int, str]) -> dict[Token, str]:
    """Return the unknown tokens with the texts that they replace; one that spells the piece itself is not unknown."""
    unknown = {}
    for token in tokens:
        if token.id in pieces and not token.special:
            text, piece = texts[token.segment] or "", pieces[token.id]
            word = text[token.start : token.end] if token.start is not None else piece if piece in text else ""
            if word != piece:
                unknown[token] = word
    return unknown


def unknown_notes(texts: tuple[str, str | None], tokens: Tokens, pieces: Mapping[int, str]) -> tuple[str, ...]:
    """Return a note for each unknown piece, with the words that it replaces; see `unknown_tokens`."""
    words: dict[str, dict[str, None]] = {}  # of each piece, in their order
    for token, word in unknown_tokens(texts, tokens, pieces).items():
        words.setdefault(pieces[token.id], {})[f"'{visible(word)}'" if word else "some of the text"] = None
    return tuple(
        f"the model's vocabulary lacks {', '.join(lacking)}, read as {piece}; attention there is to the unknown token"
        for piece, lacking in words.items()
    )
