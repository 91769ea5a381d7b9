"""The work of `attn tokens`: a tokenizer, and the part of what is written that is a sentence's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from attncli.corpus.work import Answer, Batch, Done
from attncli.encoding.encode import check_texts
from attncli.engines.tokenize import Tokenizer, open_tokenizer
from attncli.errors import Failure, InputError
from attncli.trace.tokenization import Choice, Tokenization


@dataclass(frozen=True)
class Tokenized:
    """What is made of a tokenization.

    Attributes:
        choice: what of it is shown.
        form: the machine format whose part is made; None leaves it as it is, to be drawn.
    """

    choice: Choice
    form: str | None = None

    def of(self, number: int, tokens: Tokenization) -> Answer[Any]:
        """Return what a sentence has become: its tokens, or an iterator of the pieces of its part.

        Raises:
            UsageError: words were asked for, and no token has a place in the text.
        """
        tokens.shown(self.choice)  # refused here, before anything is written
        if self.form is None:
            return Answer(number, tokens, tokens.notes)
        from attncli.formats.tokens import part_of

        return Answer(number, part_of(self.form, number, tokens, self.choice), tokens.notes)


@dataclass(frozen=True)
class Tokenizing:
    """See `Work`.

    Attributes:
        made: of each tokenization.
        options: of `open_tokenizer`.
        pair: a second text in the same sequence as each sentence.
    """

    made: Tokenized
    options: Mapping[str, Any]
    pair: str | None = None
    by_sentence: ClassVar[bool] = True

    def open(self) -> Done[Any]:
        """Open the tokenizer, and return what answers batches.

        Raises:
            AttnError: it cannot be opened, or the pair cannot be read.
        """
        tokenizer = open_tokenizer(**self.options)
        check_texts(None, self.pair)
        return lambda batch: self._answers(tokenizer, batch)

    def _answers(self, tokenizer: Tokenizer, batch: Batch) -> Iterator[Answer[Any]]:
        for number, text, kept in batch.sentences:
            if isinstance(text, Failure):
                yield Answer(number, text)
                continue
            try:
                tokens = tokenizer.tokenize(text, self.pair)
            except InputError as error:
                yield Answer(number, Failure(str(error), kept=kept))
                continue
            yield self.made.of(number, replace(tokens, kept=kept) if kept else tokens)
