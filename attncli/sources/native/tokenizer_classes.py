"""The tokenizer classes of transformers that take only the vocabulary and the merges of a tokenizer.json.

Everything else they set up from their fields; what each of them sets up is written down here.
<https://github.com/huggingface/transformers/tree/v5.23.0/src/transformers/models>
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from attncli.sources.native.fields import DeclinedError
from attncli.sources.native.tokenizer_settings import Settings

# <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen2/tokenization_qwen2.py#L33>
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TokenizerClass(NamedTuple):
    """A tokenizer class that sets up its own pipeline.

    Attributes:
        model: the kind of vocabulary it takes.
        tokens: the special tokens that it has where the checkpoint names none.
        build: sets normalizer, pre-tokenizer and the model's parameters.
        finish: sets what needs the ids of the special tokens, when they are known.
        has_segments: whether the model is told which text a token belongs to.
    """

    model: Any
    tokens: Mapping[str, Any]
    build: Callable[[Tokenizer, Settings], None]
    finish: Callable[[Tokenizer, Settings], None] | None = None
    has_segments: bool = False


def _set_bpe(
    tokenizer: Tokenizer, *, unk_token: str | None = None, fuse_unk: bool = False, byte_fallback: bool = False
) -> None:
    model = tokenizer.model
    if model.dropout is not None or model.continuing_subword_prefix or model.end_of_word_suffix:
        raise DeclinedError("tokenizer.json has a dropout, a prefix or a suffix, which its class takes away")
    model.unk_token = unk_token
    model.fuse_unk = fuse_unk
    model.byte_fallback = byte_fallback
    model.ignore_merges = False


def _with_id(tokenizer: Tokenizer, token: str) -> Any:
    return token, tokenizer.token_to_id(token)


def _build_bert(tokenizer: Tokenizer, settings: Settings) -> None:
    tokenizer.model.unk_token = settings.content("unk_token")
    tokenizer.model.continuing_subword_prefix = "##"
    tokenizer.model.max_input_chars_per_word = 100
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True),
        strip_accents=settings.flag("strip_accents", None, may_be_none=True),
        lowercase=settings.flag("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


def _finish_bert(tokenizer: Tokenizer, settings: Settings) -> None:
    first, last = (settings.content(name) for name in ("cls_token", "sep_token"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=[_with_id(tokenizer, token) for token in (first, last)],
    )


def _build_bytes(tokenizer: Tokenizer, settings: Settings) -> None:
    _set_bpe(tokenizer)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.flag("add_prefix_space", False))


def _finish_roberta(tokenizer: Tokenizer, settings: Settings) -> None:
    last, first = (_with_id(tokenizer, settings.content(name)) for name in ("sep_token", "cls_token"))
    tokenizer.post_processor = processors.RobertaProcessing(
        last,
        first,
        trim_offsets=settings.flag("trim_offsets", True),
        add_prefix_space=settings.flag("add_prefix_space", False),
    )


def _build_neox(tokenizer: Tokenizer, settings: Settings) -> None:
    _set_bpe(tokenizer)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=settings.flag("add_prefix_space", False), trim_offsets=settings.flag("trim_offsets", True)
    )


def _finish_neox(tokenizer: Tokenizer, settings: Settings) -> None:
    tokenizer.post_processor = bare_template()


def _build_qwen2(tokenizer: Tokenizer, settings: Settings) -> None:
    _set_bpe(tokenizer)
    has_prefix = settings.flag("add_prefix_space", None, may_be_none=True) or False
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_WORDS), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=has_prefix, use_regex=False),
        ]
    )


def _finish_qwen2(tokenizer: Tokenizer, settings: Settings) -> None:
    tokens = dict.fromkeys(map(str, [*settings.named, *settings.extra]))
    tokenizer.add_tokens([AddedToken(token, special=True) for token in tokens])


def _build_llama(tokenizer: Tokenizer, settings: Settings) -> None:
    _set_bpe(tokenizer, fuse_unk=True, byte_fallback=True)
    scheme = "never"
    if settings.flag("add_prefix_space", None, may_be_none=True) is not False:
        scheme = "always" if settings.flag("legacy", False, may_be_none=True) else "first"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)


def _build_gemma(tokenizer: Tokenizer, settings: Settings) -> None:
    _set_bpe(tokenizer, unk_token=settings.content("unk_token"), fuse_unk=True, byte_fallback=True)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous", invert=False)


def _build_sentencepiece(tokenizer: Tokenizer, settings: Settings, unknown_id: int) -> None:
    try:
        tokenizer.model = models.Unigram(settings.pieces, unk_id=unknown_id, byte_fallback=False)
    except Exception as error:  # the library raises bare Exception
        raise DeclinedError(f"tokenizer.json has pieces that its class cannot take: {error}") from None
    if settings.character_map is not None:
        tokenizer.normalizer = normalizers.Precompiled(settings.character_map)
    scheme = "always" if settings.flag("add_prefix_space", True) else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=True),
        ]
    )


def _build_xlm_roberta(tokenizer: Tokenizer, settings: Settings) -> None:
    _build_sentencepiece(tokenizer, settings, 3)


def _build_camembert(tokenizer: Tokenizer, settings: Settings) -> None:
    unknown = settings.content("unk_token")
    found = (index for index, (piece, _) in enumerate(settings.pieces) if piece == unknown)
    _build_sentencepiece(tokenizer, settings, next(found, 0))


def _finish_sentencepiece(tokenizer: Tokenizer, settings: Settings) -> None:
    first, last = (settings.content(name) for name in ("bos_token", "eos_token"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[first, "$A", last],
        pair=[first, "$A", last, last, "$B", last],
        special_tokens=[_with_id(tokenizer, token) for token in (first, last)],
    )


def bare_template() -> Any:
    """Return a post-processor that adds no token."""
    return processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])


def character_map(normalizer: Any) -> bytes | None:
    """Return SentencePiece's map of characters, if a normalizer holds one."""
    if normalizer is None:
        return None
    state = json.loads(normalizer.__getstate__())
    for one in state["normalizers"] if state.get("type") == "Sequence" else [state]:
        if one.get("type") == "Precompiled":
            return base64.b64decode(one["precompiled_charsmap"])
    return None


_BERT_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_ROBERTA_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
_GPT2_TOKENS = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>") | {"pad_token": None}
_GEMMA_TOKENS = {
    "unk_token": "<unk>",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
_BERT = TokenizerClass(models.WordPiece, _BERT_TOKENS, _build_bert, _finish_bert, has_segments=True)
CLASSES = {
    "BertTokenizer": _BERT,
    "CamembertTokenizer": TokenizerClass(
        models.Unigram,
        _ROBERTA_TOKENS
        | {
            "mask_token": AddedToken("<mask>", lstrip=True, special=True),
            "additional_special_tokens": ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"],
        },
        _build_camembert,
        _finish_sentencepiece,
    ),
    "DistilBertTokenizer": _BERT._replace(has_segments=False),
    "ElectraTokenizer": _BERT,
    "GPT2Tokenizer": TokenizerClass(models.BPE, _GPT2_TOKENS, _build_bytes),
    "GPTNeoXTokenizer": TokenizerClass(
        models.BPE, _GPT2_TOKENS | {"pad_token": "<|padding|>"}, _build_neox, _finish_neox
    ),
    "GemmaTokenizer": TokenizerClass(models.BPE, _GEMMA_TOKENS, _build_gemma),
    "LlamaTokenizer": TokenizerClass(
        models.BPE, {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}, _build_llama
    ),
    "Qwen2Tokenizer": TokenizerClass(
        models.BPE,
        {"unk_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
        _build_qwen2,
        _finish_qwen2,
    ),
    "RobertaTokenizer": TokenizerClass(models.BPE, _ROBERTA_TOKENS, _build_bytes, _finish_roberta),
    "XLMRobertaTokenizer": TokenizerClass(models.Unigram, _ROBERTA_TOKENS, _build_xlm_roberta, _finish_sentencepiece),
}
