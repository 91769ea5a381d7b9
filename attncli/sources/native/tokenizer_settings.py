"""What the files beside a tokenizer.json say of it: fields, special tokens, added tokens.

They are read as `PreTrainedTokenizerBase.from_pretrained` of transformers reads them.
<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/tokenization_utils_base.py>
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from attncli.errors import LoadError
from attncli.files import MOST_TEXT, read_file
from attncli.sources.native.fields import DeclinedError
from attncli.text import visible

# The special tokens with a name, in the order in which they are added.
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
# What every class reads, or one of them, or none: what is not here is not known to be idle.
_FIELDS = """
add_bos_token add_eos_token add_prefix_space added_tokens_decoder backend chat_template clean_up_tokenization_spaces
do_basic_tokenize do_lower_case errors fast is_local legacy local_files_only max_len max_length model_input_names
model_max_length name_or_path never_split pad_to_multiple_of pad_token_type_id padding_side processor_class
sp_model_kwargs spaces_between_special_tokens special_tokens_map_file stride strip_accents tokenize_chinese_chars
tokenizer_class tokenizer_file trim_offsets truncation_side truncation_strategy use_default_system_prompt use_fast
vocab_file
"""
_KNOWN = {*NAMED, *_EXTRA, *_FIELDS.split()}
# What has to be as it is, if it is there.
_FIXED = {"fix_mistral_regex": (False,), "split_special_tokens": (False,), "init_inputs": ([],), "auto_map": (None,)}
_LISTED = re.compile(r'"added_tokens"\s*:\s*')
_HEAD = 1 << 21  # characters of a tokenizer.json before which its added tokens have to end


class Settings:
    """The fields of a tokenizer_config.json, with the tokens that other files name.

    Attributes:
        fields: the file as it is.
        character_map: SentencePiece's map of characters in the tokenizer.json, if it holds one.
        pieces: those of SentencePiece's vocabulary there, with their scores.
    """

    def __init__(
        self,
        folder: Path,
        fields: dict[str, Any],
        character_map: bytes | None = None,
        pieces: Sequence[tuple[str, float]] = (),
    ) -> None:
        _check_known(fields)
        self.fields = fields
        self.character_map = character_map
        self.pieces = pieces
        tokens = {name: fields[name] for name in (*NAMED, *_EXTRA) if name in fields}
        if "additional_special_tokens" in tokens and not tokens.get("extra_special_tokens"):
            tokens["extra_special_tokens"] = tokens.pop("additional_special_tokens")
        self._own = {name: fields[name] for name in fields if _is_own(name, fields[name])}
        if type(tokens.get("extra_special_tokens")) is dict:
            self._own |= _own_tokens(tokens.pop("extra_special_tokens"))
        if "added_tokens_decoder" in fields:
            added = _by_id(fields["added_tokens_decoder"])
        else:
            tokens |= _special_tokens_map(folder)
            added = _listed(folder / "tokenizer.json")
            _check_added(folder, added)
        self._added = [added[id_] for id_ in sorted(added)]
        by_content = {str(token): token for token in self._added}
        named = {name: _token(tokens[name]) for name in NAMED if name in tokens}
        self._named = {name: token and by_content.get(str(token), token) for name, token in named.items()}
        self._extra = {name: _token_list(tokens[name]) for name in _EXTRA if name in tokens}

    def set_default(self, name: str, token: Any) -> None:
        """Set a special token, or a list of those without a name, where the checkpoint's files say nothing of it.

        Where they say no more than how it is written, it is matched as the default is.
        """
        tokens: dict[str, Any] = self._extra if name in _EXTRA else self._named
        said = tokens.setdefault(name, token)
        if isinstance(token, AddedToken) and type(said) is str:
            tokens[name] = AddedToken(said, lstrip=token.lstrip, special=token.special)

    def flag(self, name: str, default: bool | None, may_be_none: bool = False) -> Any:
        """Return a field that is true or false.

        Raises:
            DeclinedError: it is neither.
        """
        value = self.fields.get(name, default)
        if type(value) is not bool and not (may_be_none and value is None):
            raise DeclinedError(f"{name} is {value!r}")
        return value

    def content(self, name: str) -> str:
        """Return a special token as it is written.

        Raises:
            DeclinedError: there is none, or it is several words.
        """
        content = self.written(name) or ""
        if content.split() != [content]:
            raise DeclinedError(f"{name} is {content!r}")
        return content

    @property
    def named(self) -> list[Any]:
        """The special tokens that have a name, in the order in which they are added."""
        return [token for name in NAMED if (token := self._named.get(name)) is not None] + [*self._own.values()]

    @property
    def extra(self) -> list[Any]:
        """The special tokens without a name."""
        return next((self._extra[name] for name in _EXTRA if name in self._extra), [])

    def written(self, name: str) -> str | None:
        """Return a special token as it is written, or None where there is none."""
        token = self._named.get(name)
        return None if token is None else str(token)

    def add_to(self, tokenizer: Tokenizer) -> None:
        """Add to a tokenizer the added tokens, then the special ones that are not among them."""
        adding: list[Any] = list(self._added)
        known = {token.content for token in tokenizer.get_added_tokens_decoder().values()} | set(map(str, adding))
        for token in (*self.named, *self.extra):
            if str(token) not in known and token not in adding:
                adding.append(token)
        special = {str(token) for token in self.named}
        for index, token in enumerate(adding):
            if type(token) is str:
                adding[index] = AddedToken(token, special=True)
            elif not token.special and str(token) in special:
                token.special = True
        tokenizer.add_tokens(adding)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, an empty one if there is no such file.

    Raises:
        LoadError: it is damaged.
    """
    try:
        content = json.loads(read_file(path, MOST_TEXT).decode("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{visible(str(path))} cannot be read: {visible(str(error))}") from None
    if type(content) is not dict:
        raise LoadError(f"{visible(str(path))} holds no JSON object")
    return content


def _check_known(fields: dict[str, Any]) -> None:
    """Raise DeclinedError for a field that may say something that is not read here."""
    for name, value in fields.items():
        if name in _KNOWN or _is_own(name, value):
            continue
        if name not in _FIXED or value not in _FIXED[name]:
            raise DeclinedError(f"it does not know the field {visible(name)} of tokenizer_config.json")


def _is_own(name: str, value: Any) -> bool:
    """Return whether a field is a special token with a name that this checkpoint gave it, such as image_token."""
    return name.endswith("_token") and name not in _KNOWN and type(value) is str


def _own_tokens(tokens: dict[str, Any]) -> dict[str, str]:
    if any(name in _KNOWN or type(token) is not str for name, token in tokens.items()):
        raise DeclinedError("extra_special_tokens has other names or values than are known here")
    return tokens


def _token_list(values: Any) -> list[Any]:
    if values is not None and type(values) is not list:
        raise DeclinedError("the extra special tokens are no list")
    return [_token(value) for value in values or []]


def _token(value: Any) -> Any:
    """Return a token from what a file says: text, an object that says how it is matched, or nothing."""
    if type(value) is dict and value.get("__type") == "AddedToken":
        return _added_token({name: field for name, field in value.items() if name != "__type"})
    if value is not None and type(value) is not str:
        raise DeclinedError(f"a special token is {value!r}")
    return value


def _added_token(fields: dict[str, Any]) -> AddedToken:
    try:
        return AddedToken(**fields)
    except TypeError as error:
        raise DeclinedError(f"an added token cannot be read: {error}") from None


def _by_id(tokens: Any) -> dict[int, AddedToken]:
    try:
        return {int(id_): _added_token(dict(fields)) for id_, fields in tokens.items()}
    except (AttributeError, TypeError, ValueError):
        raise DeclinedError("added_tokens_decoder is no table of tokens") from None


def _special_tokens_map(folder: Path) -> dict[str, Any]:
    return dict(_mapped(read_json(folder / "special_tokens_map.json")))


def _mapped(tokens: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in tokens.items():
        if name not in NAMED and name != "additional_special_tokens":
            raise DeclinedError(f"it does not know the field {visible(name)} of special_tokens_map.json")
        yield name, {**value, "special": True, "__type": "AddedToken"} if type(value) is dict else value


def _listed(path: Path) -> dict[int, AddedToken]:
    """Return the added tokens that a tokenizer.json lists; the library gives some of them ids of its own.

    Raises:
        DeclinedError: they are not at its beginning, where the library writes them.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.read(_HEAD)
    found = _LISTED.search(head)
    try:
        tokens = json.JSONDecoder().raw_decode(head, found.end() if found else 0)[0]
        return {token.pop("id"): _added_token(token) for token in tokens}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise DeclinedError("tokenizer.json does not list its added tokens at its beginning") from None


def _check_added(folder: Path, listed: dict[int, AddedToken]) -> None:
    """Raise DeclinedError if added_tokens.json has a token that tokenizer.json has not."""
    for content, id_ in read_json(folder / "added_tokens.json").items():
        if id_ not in listed or str(listed[id_]) != content:
            raise DeclinedError("added_tokens.json has tokens that tokenizer.json has not")
