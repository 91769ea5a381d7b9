"""A checkpoint's tokenizer without transformers: the ids that its AutoTokenizer would give, or none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer, models

from attncli.sources.native.fields import DeclinedError
from attncli.sources.native.tokenizer_choice import class_of
from attncli.sources.native.tokenizer_classes import TokenizerClass, bare_template, character_map
from attncli.sources.native.tokenizer_settings import Settings, read_json
from attncli.sources.vocabulary import tokenizer_in
from attncli.text import visible


class Encoded(dict[str, list[int]]):
    """What a model is given of a text.

    Attributes:
        encodings: one, with the tokens.
    """

    def __init__(self, encoding: Encoding, input_names: list[str]) -> None:
        own = {"token_type_ids": encoding.type_ids, "attention_mask": encoding.attention_mask}
        super().__init__({"input_ids": encoding.ids} | {name: own[name] for name in own if name in input_names})
        self.encodings = [encoding]


class NativeTokenizer:
    """A tokenizer of the library that transformers' own stand on; a `Reader` asks it as it asks those.

    Attributes:
        unk_token: the piece that stands for what the vocabulary lacks.
        unk_token_id: its id.
        eos_token_id: the id of the end token.
        pad_token_id: the id of the padding token.
        input_names: what the model is given of each token.
    """

    def __init__(self, tokenizer: Tokenizer, settings: Settings, input_names: list[str], side: str) -> None:
        self._tokenizer = tokenizer
        self._side = side
        self.input_names = input_names
        self.unk_token = settings.written("unk_token")
        self.unk_token_id, self.eos_token_id, self.pad_token_id = (
            None if (piece := settings.written(name)) is None else tokenizer.token_to_id(piece)
            for name in ("unk_token", "eos_token", "pad_token")
        )

    def __call__(
        self,
        text: str,
        pair: str | None = None,
        *,
        add_special_tokens: bool = True,
        truncation: bool = False,
        max_length: int | None = None,
        **_: object,
    ) -> Encoded:
        """Return what the model is given of a text.

        Args:
            text: the text.
            pair: a second one in the same sequence.
            add_special_tokens: whether they are added.
            truncation: whether it is cut.
            max_length: the number of tokens to cut it to.
            _: what transformers' own do only when asked to, padding and warnings.

        Raises:
            Exception: of the library, for a word that its vocabulary cannot express.
        """
        if truncation and max_length is not None:
            self._tokenizer.enable_truncation(max_length, direction=self._side)
        else:
            self._tokenizer.no_truncation()
        encoding = self._tokenizer.encode(text, pair or None, add_special_tokens=add_special_tokens)
        return Encoded(encoding, self.input_names)

    def convert_ids_to_tokens(self, id_: int) -> str | None:
        """Return the piece of an id."""
        piece: str | None = self._tokenizer.id_to_token(id_)
        return piece


def load_tokenizer(name: str, folder: Path, config: Mapping[str, Any]) -> NativeTokenizer:
    """Load the tokenizer of a checkpoint.

    Args:
        name: of the checkpoint, as the user gave it.
        folder: where its files are.
        config: its config.json.

    Raises:
        DeclinedError: what AutoTokenizer would make of it is not known here.
        LoadError: a file is damaged.
    """
    path = folder / "tokenizer.json"
    if not path.is_file() or not path.stat().st_size:
        raise DeclinedError("it has no tokenizer.json")
    fields = read_json(folder / "tokenizer_config.json")
    said = fields.get("tokenizer_class")
    kind = class_of(name, folder, config, config.get("tokenizer_class") if said is None else said)
    if kind is not None and kind.model is models.Unigram:
        loaded, pieces = _with_exact_scores(path)
    else:
        loaded, pieces = tokenizer_in(path, visible(name)), []
    settings = Settings(folder, fields, character_map(loaded.normalizer), pieces)
    tokenizer = loaded if kind is None else _rebuilt(loaded, kind, settings)
    if loaded.padding is not None:
        settings.set_default("pad_token", loaded.padding["pad_token"])
    tokenizer.post_processor = loaded.post_processor or bare_template()
    settings.add_to(tokenizer)
    if kind is not None and kind.finish is not None:
        kind.finish(tokenizer, settings)
    side = fields.get("truncation_side", (loaded.truncation or {}).get("direction", "right"))
    if side not in ("left", "right"):
        raise DeclinedError(f"truncation_side is {side!r}")
    tokenizer.no_padding()
    return NativeTokenizer(tokenizer, settings, _input_names(fields, kind), side)


def _with_exact_scores(path: Path) -> tuple[Tokenizer, list[tuple[str, float]]]:
    """Return the tokenizer of a file without its pieces, and these with their scores.

    The library's reader of JSON is off by one unit in the last place of every eighth score or so, which decides between
    ways to cut a word that are alike (`aaaaa`); to its classes, transformers hands the scores as Python reads them.

    Raises:
        DeclinedError: it holds no Unigram model, or none that can be read.
    """
    content = read_json(path)
    try:
        if content["model"]["type"] != "Unigram":
            raise DeclinedError(f"its class reads Unigram, tokenizer.json has {content['model']['type']}")
        pieces = [(piece, score) for piece, score in content["model"]["vocab"]]
        content |= {"added_tokens": [], "model": {"type": "Unigram", "unk_id": 0, "vocab": [["", 0.0]]}}
        return Tokenizer.from_str(json.dumps(content)), pieces
    except DeclinedError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise DeclinedError(f"its tokenizer.json cannot be read: {error}") from None


def _rebuilt(loaded: Tokenizer, kind: TokenizerClass, settings: Settings) -> Tokenizer:
    """Return a tokenizer with the vocabulary of the file and the pipeline of its class."""
    model: Any = loaded.model
    if type(model) is not kind.model:
        raise DeclinedError(f"its class reads {kind.model.__name__}, tokenizer.json has {type(model).__name__}")
    for name, token in kind.tokens.items():
        settings.set_default(name, token)
    tokenizer = Tokenizer(model)
    kind.build(tokenizer, settings)
    return tokenizer


def _input_names(fields: Mapping[str, Any], kind: TokenizerClass | None) -> list[str]:
    own = ["input_ids", "attention_mask"]
    if kind is not None and kind.has_segments:
        own.append("token_type_ids")
    names = fields.get("model_input_names", own)
    if type(names) is not list:
        raise DeclinedError(f"model_input_names is {names!r}")
    return names
