"""A checkpoint's tokenizer without transformers, where it is sure to give the ids that AutoTokenizer gives.

Some classes of transformers take only the vocabulary and the merges from a tokenizer.json. Each of them sets up the
rest from its own defaults and tokenizer_config.json. There is a function for each class here.
<https://github.com/huggingface/transformers/tree/v5.23.0/src/transformers/models>

The files of a usual folder are read as transformers reads them; anything unusual is declined.
<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/auto/tokenization_auto.py>
<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/tokenization_utils_base.py>
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from attncli.checkpoints.checkpoint_folder import TEMPLATE, CheckpointFolder, UnsupportedError
from attncli.encoding.encode import TokenizerOutput, translate_tokenizer_errors
from attncli.errors import LoadError
from attncli.files import MOST_TEXT, read_file
from attncli.text import visible

# <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen2/tokenization_qwen2.py#L33>
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


# RoBERTa and similar models number their positions from the one after the padding's.
AFTER_PADDING = frozenset({
    "camembert", "data2vec-text", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "prophetnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip


class Settings(NamedTuple):
    """Settings of a tokenizer, from its files."""

    fields: Mapping[str, Any]  # those of tokenizer_config.json
    tokens: Mapping[str, str | None]  # the special tokens by their names, such as `pad_token`
    added: list[AddedToken]  # the tokens that are matched before the vocabulary is, in the order of their ids

    def flag(self, name: str, default: bool | None, may_be_none: bool = False) -> Any:
        """Return a field that is true or false; UnsupportedError if it is neither."""
        value = self.fields.get(name, default)
        if type(value) is not bool and not (may_be_none and value is None):
            raise UnsupportedError(f"{name} is {value!r}")
        return value

    def token(self, name: str) -> str:
        """Return the text of a special token; UnsupportedError without one, or if it holds a blank."""
        text = self.tokens.get(name) or ""
        if text.split() != [text]:
            raise UnsupportedError(f"{name} is {text!r}")
        return text


# Makes the post-processor of a tokenizer that has its special tokens; None takes that of tokenizer.json.
PostProcessor = Callable[[Tokenizer], Any] | None


class TokenizerClass(NamedTuple):
    """A tokenizer class."""

    model: Any  # the kind of vocabulary it takes
    tokens: Mapping[str, str | None]  # its special tokens where the checkpoint names none
    # sets up a tokenizer that has only its vocabulary; None takes that in tokenizer.json unchanged
    build: Callable[[Tokenizer, Settings], PostProcessor] | None
    has_segments: bool = False  # whether the model reads token type ids


def words_of_bytes(expression: str, has_prefix: bool = False) -> Any:
    """Return the pre-tokenizer that cuts a text as a regular expression matches it, and spells the parts in bytes."""
    words = pre_tokenizers.Split(Regex(expression), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=has_prefix, use_regex=False)])


def _set_up(tokenizer: Tokenizer, pre_tokenizer: Any, normalizer: Any = None, **parameters: Any) -> None:
    """Set parts around a vocabulary, and its parameters."""
    for field, value in parameters.items():
        setattr(tokenizer.model, field, value)
    tokenizer.pre_tokenizer, tokenizer.normalizer = pre_tokenizer, normalizer


# Parameters of byte-pair vocabularies: of those whose alphabet is bytes, and of those that spell out unknown bytes.
_BYTES: dict[str, Any] = {"unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
_FALLBACK = _BYTES | {"fuse_unk": True, "byte_fallback": True}


def _bert(tokenizer: Tokenizer, settings: Settings) -> PostProcessor:
    normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True),
        strip_accents=settings.flag("strip_accents", None, may_be_none=True),
        lowercase=settings.flag("do_lower_case", True),
    )
    model = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    _set_up(tokenizer, pre_tokenizers.BertPreTokenizer(), normalizer, unk_token=settings.token("unk_token"), **model)
    last = settings.token("sep_token")
    return text_template(settings.token("cls_token"), last, ["$B:1", f"{last}:1"])


def _gpt2(tokenizer: Tokenizer, settings: Settings) -> None:
    has_prefix = settings.flag("add_prefix_space", False)
    _set_up(tokenizer, pre_tokenizers.ByteLevel(add_prefix_space=has_prefix), **_BYTES)


def _roberta(tokenizer: Tokenizer, settings: Settings) -> PostProcessor:
    _gpt2(tokenizer, settings)
    last, first = settings.token("sep_token"), settings.token("cls_token")
    trims, has_prefix = settings.flag("trim_offsets", True), settings.flag("add_prefix_space", False)

    def post_processor(tokenizer: Tokenizer) -> Any:
        id_of: Any = tokenizer.token_to_id
        return processors.RobertaProcessing((last, id_of(last)), (first, id_of(first)), trims, has_prefix)

    return post_processor


def _gpt_neox(tokenizer: Tokenizer, settings: Settings) -> PostProcessor:
    settings.flag("trim_offsets", True)  # of a part that trims none
    _gpt2(tokenizer, settings)
    tokenizer.normalizer = normalizers.NFC()
    return text_template()


def _qwen2(tokenizer: Tokenizer, settings: Settings) -> None:
    special = [token for token in settings.added if token.special]
    if any(token.lstrip or token.rstrip or token.single_word or token.normalized for token in special):
        raise UnsupportedError("its special tokens are matched in a way that its class changes")
    has_prefix = settings.flag("add_prefix_space", None, may_be_none=True) or False
    _set_up(tokenizer, words_of_bytes(QWEN2_WORDS, has_prefix), normalizers.NFC(), **_BYTES)


def _llama(tokenizer: Tokenizer, settings: Settings) -> None:
    scheme = "always" if settings.flag("legacy", False, may_be_none=True) else "first"
    if settings.flag("add_prefix_space", None, may_be_none=True) is False:
        scheme = "never"
    _set_up(tokenizer, pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False), **_FALLBACK)


def _gemma(tokenizer: Tokenizer, settings: Settings) -> None:
    pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous", invert=False)
    parameters = _FALLBACK | {"unk_token": settings.token("unk_token")}
    _set_up(tokenizer, pre_tokenizer, normalizers.Replace(" ", "▁"), **parameters)


def text_template(
    first: str | None = None, last: str | None = None, pair: list[str] | None = None
) -> Callable[[Tokenizer], Any]:
    """Return a function that makes a post-processor: a text between two optional tokens."""
    ends = [end for end in (first, last) if end is not None]
    single = [*[first] * (first is not None), "$A", *[last] * (last is not None)]
    more = pair or [f"{token}:1" if token != "$A" else "$B:1" for token in single]
    return lambda tokenizer: processors.TemplateProcessing(
        single, [*single, *more], [(end, tokenizer.token_to_id(end)) for end in dict.fromkeys(ends)]
    )


_BERT_TOKENS = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
_LLAMA_TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_ROBERTA_TOKENS = _LLAMA_TOKENS | {
    "sep_token": "</s>", "cls_token": "<s>", "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip
_GEMMA_TOKENS = {f"{name}_token": f"<{name}>" for name in ("unk", "bos", "eos", "pad", "mask")}
_GPT2_TOKENS = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
_QWEN2_TOKENS = dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>")
_BERT = TokenizerClass(models.WordPiece, _BERT_TOKENS, _bert, has_segments=True)

PLAIN = TokenizerClass(None, {}, None)
CLASSES = {
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT._replace(has_segments=False),
    "GPT2Tokenizer": TokenizerClass(models.BPE, _GPT2_TOKENS | {"pad_token": None}, _gpt2),
    "GPTNeoXTokenizer": TokenizerClass(models.BPE, _GPT2_TOKENS | {"pad_token": "<|padding|>"}, _gpt_neox),
    "GemmaTokenizer": TokenizerClass(models.BPE, _GEMMA_TOKENS, _gemma),
    "LlamaTokenizer": TokenizerClass(models.BPE, _LLAMA_TOKENS, _llama),
    "PreTrainedTokenizer": PLAIN,
    "PythonBackend": PLAIN,
    "Qwen2Tokenizer": TokenizerClass(models.BPE, _QWEN2_TOKENS, _qwen2),
    "RobertaTokenizer": TokenizerClass(models.BPE, _ROBERTA_TOKENS, _roberta),
    "TokenizersBackend": PLAIN,
}


# --- files -------------------------------------------------------------------------------------------------

# The tokenizer class of a model type where the checkpoint names none.
_CLASS_OF = {
    kind: name
    for name, kinds in {
        "BertTokenizer": "bert distilbert",
        "GPT2Tokenizer": "gpt2",
        "GPTNeoXTokenizer": "gpt_neox",
        "GemmaTokenizer": "gemma gemma2 gemma3_text",
        "Qwen2Tokenizer": "qwen2 qwen3",
        "RobertaTokenizer": "roberta",
        "TokenizersBackend": "llama mistral",
    }.items()
    for kind in kinds.split()
}
_ALWAYS = {"mistral", "qwen2"}  # whose class it is whatever the checkpoint names
# What the names of checkpoints begin with for which transformers has a rule of its own.
_APART = (
    "deepseek-ai/deepseek-r1-distill-llama-", "deepseek-ai/deepseek-coder-", "allenai/dolma2", "google/umt5",
    "naver-clova-ix/", "salesforce/blip2", "salesforce/instructblip", "stepfun-ai/",
)  # fmt: skip

NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
# Other fields of tokenizer_config.json that change no id, or that a class reads.
_FIELDS = """
add_bos_token add_eos_token add_prefix_space added_tokens_decoder backend chat_template clean_up_tokenization_spaces
do_basic_tokenize do_lower_case errors fast is_local legacy local_files_only max_len max_length model_input_names
model_max_length name_or_path never_split pad_to_multiple_of pad_token_type_id padding_side processor_class
sp_model_kwargs spaces_between_special_tokens special_tokens_map_file stride strip_accents tokenize_chinese_chars
tokenizer_class tokenizer_file trim_offsets truncation_side truncation_strategy use_default_system_prompt use_fast
vocab_file
"""
_KNOWN = {*_EXTRA, *_FIELDS.split()}
# What has to be as it is, if it is there.
_FIXED = {"fix_mistral_regex": (False,), "split_special_tokens": (False,), "init_inputs": ([],), "auto_map": (None,)}


class NativeTokenizer:
    """A tokenizer of the tokenizers library, which an `InputEncoder` calls as it calls those of transformers."""

    def __init__(
        self, tokenizer: Tokenizer, tokens: Mapping[str, str | None], input_names: list[str], side: str, template: Any
    ) -> None:
        self._tokenizer, self._side, self.input_names, self.chat_template = tokenizer, side, input_names, template
        self.unk_token = tokens.get("unk_token")
        self.special_tokens_map = {name: text for name in NAMES if (text := tokens.get(name)) is not None}
        self.unk_token_id, self.eos_token_id, self.pad_token_id = (
            None if (piece := tokens.get(name)) is None else tokenizer.token_to_id(piece)
            for name in ("unk_token", "eos_token", "pad_token")
        )

    def __call__(self, text: str | None = None, pair: str | None = None, **how: Any) -> TokenizerOutput:
        """Return the model's inputs for texts, or for a `text_target`; called as transformers' tokenizers are."""
        text = how.get("text_target") or text or ""
        if how.get("truncation"):
            self._tokenizer.enable_truncation(how["max_length"], direction=self._side)
        else:
            self._tokenizer.no_truncation()
        encoding = self._tokenizer.encode(text, pair or None, add_special_tokens=how.get("add_special_tokens", True))
        more = {"token_type_ids": encoding.type_ids, "attention_mask": encoding.attention_mask}
        inputs = {"input_ids": encoding.ids} | {name: more[name] for name in more if name in self.input_names}
        return TokenizerOutput(inputs, encoding)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The tokens that are matched before the vocabulary is, by their ids."""
        return self._tokenizer.get_added_tokens_decoder()

    def get_vocab(self) -> dict[str, int]:
        """Return the id of every piece."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def convert_ids_to_tokens(self, id_: int) -> str | None:
        """Return the piece of an id."""
        return self._tokenizer.id_to_token(id_)


# A text of that length in JSON, but for tables of characters; and in the binary form of sentencepiece.
_LONG_IN_JSON = re.compile(rb'(?<!charsmap": )(?<!charsmap":)"[^"]{4096}')
_LONG_IN_MODEL = re.compile(rb"[^\0-\x1f]{4096}")


def read_vocabulary(path: Path) -> bytes:
    """Return the bytes of a vocabulary; ValueError for a long piece, at which tokenizers overflows its stack."""
    content = read_file(path, MOST_TEXT)
    if (_LONG_IN_MODEL if path.suffix in (".model", ".spm") else _LONG_IN_JSON).search(content):
        raise ValueError(f"{visible(path.name)} has a piece of more than 4,096 bytes")
    return content


def read_tokenizer(path: Path, whose: str) -> Tokenizer:
    """Read a tokenizer.json; LoadError if it cannot be read; the sentence begins with whose it is."""
    with translate_tokenizer_errors(f"{whose}: tokenizer.json cannot be read", LoadError):
        return Tokenizer.from_buffer(read_vocabulary(path))


def load_tokenizer(name: str, files: CheckpointFolder, config: Mapping[str, Any]) -> NativeTokenizer:
    """Load the tokenizer of a checkpoint.

    Raises:
        UnsupportedError: AutoTokenizer might make another one of the files.
        LoadError: a file is damaged.
    """
    if not files.sizes.get("tokenizer.json"):
        raise UnsupportedError("it has no tokenizer.json")
    fields = files.read_json("tokenizer_config.json")
    kind = _class_of(name, config, fields)
    path = files.path / "tokenizer.json"
    tokenizer = loaded = read_tokenizer(path, visible(name))
    if kind == "LlamaTokenizer" and b'"ByteLevel"' in path.read_bytes():  # so transformers tells Llama 3 from Llama 2
        kind = "TokenizersBackend"
    kind_of_model, defaults, build, has_segments = CLASSES[kind]
    model: Any = loaded.model
    if kind_of_model not in (None, type(model)):
        raise UnsupportedError(f"its class reads {kind_of_model.__name__}, tokenizer.json has {type(model).__name__}")
    of_padding = {} if loaded.padding is None else {"pad_token": loaded.padding["pad_token"]}
    settings = _settings(files, fields, of_padding | dict(defaults))
    post_processor = None
    if build is not None:
        is_cut = kind_of_model is models.BPE and (model.continuing_subword_prefix or model.end_of_word_suffix)
        if is_cut or getattr(model, "dropout", None):
            raise UnsupportedError("tokenizer.json has a dropout, a prefix or a suffix, which its class takes away")
        tokenizer = Tokenizer(model)
        post_processor = build(tokenizer, settings)
    tokenizer.add_tokens(settings.added)
    made = None if post_processor is None else post_processor(tokenizer)
    tokenizer.post_processor = made or loaded.post_processor or text_template()(loaded)
    tokenizer.no_padding()
    side = fields.get("truncation_side", (loaded.truncation or {}).get("direction", "right"))
    input_names = fields.get("model_input_names", ["attention_mask", *["token_type_ids"] * has_segments])
    if side not in ("left", "right") or type(input_names) is not list:
        raise UnsupportedError(f"truncation_side is {side!r}, and model_input_names {input_names!r}")
    template = fields.get("chat_template")
    if TEMPLATE in files:  # which goes before the field
        try:
            template = (files.path / TEMPLATE).read_bytes().decode("utf-8")
        except (OSError, ValueError) as error:
            folder = visible(str(files.path))
            raise LoadError(f"the chat template of {folder} cannot be read: {visible(str(error))}") from None
    return NativeTokenizer(tokenizer, settings.tokens, input_names, side, template)


def _class_of(name: str, config: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """Return the name of the class that AutoTokenizer would choose for a checkpoint."""
    kind, stated = config.get("model_type"), fields.get("tokenizer_class") or config.get("tokenizer_class")
    if kind not in _CLASS_OF:
        raise UnsupportedError(f"the tokenizer of {kind!r} is not known")
    names = (name, config.get("_name_or_path"), config.get("name_or_path"))
    if "model_name" in config or any(str(candidate).lower().startswith(_APART) for candidate in names):
        raise UnsupportedError("transformers may have a tokenizer of its own for a checkpoint of that name")
    chosen = str(stated).removesuffix("Fast") if stated and kind not in _ALWAYS else _CLASS_OF[kind]
    if chosen not in CLASSES:
        raise UnsupportedError(f"tokenizer_class is {stated or chosen!r}")
    return chosen


def _settings(files: CheckpointFolder, fields: Mapping[str, Any], defaults: Mapping[str, str | None]) -> Settings:
    """Return the settings in the other files of a vocabulary; UnsupportedError if one is unusual."""
    named = {name: value for name, value in fields.items() if name.endswith("_token") and name not in _KNOWN}
    for name, value in fields.items():
        if name not in named and name not in _KNOWN and value not in _FIXED.get(name, ()):
            raise UnsupportedError(f"it does not support the field {visible(name)} of tokenizer_config.json")
    extra = [fields[name] for name in _EXTRA if name in fields]
    by_id: Any = fields.get("added_tokens_decoder")
    if "added_tokens_decoder" not in fields:
        mapped = dict(files.read_json("special_tokens_map.json"))
        if "added_tokens.json" in files or mapped.keys() - {*NAMES, "additional_special_tokens"}:
            raise UnsupportedError("its added_tokens.json or special_tokens_map.json is not supported")
        extra += [mapped.pop(name) for name in _EXTRA if name in mapped]
        marked = {"__type": "AddedToken"}
        named |= {name: value | marked if type(value) is dict else value for name, value in mapped.items()}
        try:  # by the ids there, which the library may change
            by_id = {token.pop("id"): token for token in map(dict, files.read_json("tokenizer.json")["added_tokens"])}
        except (LoadError, KeyError, TypeError, ValueError):
            raise UnsupportedError("tokenizer.json does not list its added tokens") from None
    try:
        added_by_id = {int(id_): AddedToken(**token) for id_, token in by_id.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise UnsupportedError(f"its added tokens cannot be read: {error}") from None
    added = [added_by_id[id_] for id_ in sorted(added_by_id)]
    tokens = {**defaults, **{name: _text(value) for name, value in named.items()}}
    special = {str(token) for token in added if token.special} - {str(token) for token in added if not token.special}
    for text in (*tokens.values(), *(text for listed in extra for text in _texts(listed))):
        if text is not None and text not in special:
            raise UnsupportedError(f"{visible(text)} is none of the special tokens among the added ones")
    return Settings(fields, tokens, added)


def _text(token: Any) -> str | None:
    """Return the text of a special token; an empty one, which no vocabulary has, is None."""
    if type(token) is dict and token.get("__type") == "AddedToken":
        token = token.get("content")
    if token is not None and type(token) is not str:
        raise UnsupportedError(f"a special token is {token!r}")
    return token or None


def _texts(tokens: Any) -> list[str | None]:
    """Return the texts of special tokens in a list, or in a table of names that the checkpoint gave them (Gemma 3)."""
    if type(tokens) is dict and tokens.keys().isdisjoint((*_KNOWN, *NAMES)):
        tokens = list(tokens.values())
    if tokens is not None and type(tokens) is not list:
        raise UnsupportedError(f"extra special tokens are {tokens!r}")
    return [_text(token) for token in tokens or ()]
