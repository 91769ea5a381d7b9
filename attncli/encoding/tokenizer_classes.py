"""The tokenizer classes of transformers that take only the vocabulary and the merges from a tokenizer.json.

Each of them sets up the rest from its own defaults and tokenizer_config.json. There is a function for each class here.
<https://github.com/huggingface/transformers/tree/v5.23.0/src/transformers/models>
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from attncli.checkpoints.config_reader import UnsupportedError

# <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen2/tokenization_qwen2.py#L33>
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


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
    flags = {
        name: settings.flag(name, default) for name, default in (("trim_offsets", True), ("add_prefix_space", False))
    }
    ends = settings.token("sep_token"), settings.token("cls_token")

    def post_processor(tokenizer: Tokenizer) -> Any:
        id_of: Any = tokenizer.token_to_id
        last, first = ((end, id_of(end)) for end in ends)
        return processors.RobertaProcessing(last, first, **flags)

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
    splits = [
        pre_tokenizers.Split(Regex(QWEN2_WORDS), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=has_prefix, use_regex=False),
    ]
    _set_up(tokenizer, pre_tokenizers.Sequence(splits), normalizers.NFC(), **_BYTES)


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
