"""Which tokenizer class transformers' AutoTokenizer chooses for a checkpoint.

<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/auto/tokenization_auto.py>
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from attncli.sources.native.fields import DeclinedError
from attncli.sources.native.tokenizer_classes import CLASSES, TokenizerClass

# The class that a model type has of its own; None is the plain one, whatever the checkpoint says; where a type is
# `_SAID`, the checkpoint says.
_SAID = ""
_REGISTERED = {
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "gemma3_text": "GemmaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "llama": _SAID,
    "mistral": None,
    "olmo2": None,
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "roberta": "RobertaTokenizer",
    "smollm3": _SAID,
    "xlm-roberta": "XLMRobertaTokenizer",
}
_PLAIN = {"TokenizersBackend", "PreTrainedTokenizer", "PythonBackend"}
# Names whose tokenizer_config.json transformers does not believe.
_DISBELIEVED = (
    "deepseek-ai/deepseek-r1-distill-llama-*",
    "deepseek-ai/deepseek-coder-*",
    "allenai/dolma2-tokenizer",
    "google/umt5-small",
    "naver-clova-ix/donut-*",
    "salesforce/blip2-opt-*",
    "salesforce/blip2-flan-t5-*",
    "salesforce/instructblip-flan-t5-*",
    "stepfun-ai/step-3.7-*",
)


def class_of(name: str, folder: Path, config: Mapping[str, Any], said: Any) -> TokenizerClass | None:
    """Return the class that AutoTokenizer would choose for a checkpoint; None is the plain one.

    Args:
        name: of the checkpoint, as the user gave it.
        folder: where its files are.
        config: its config.json.
        said: the class that the checkpoint names, if it does.

    Raises:
        DeclinedError: it is not known here.
    """
    kind = config.get("model_type")
    if kind not in _REGISTERED:
        raise DeclinedError(f"the tokenizer of {kind!r} is not known")
    if "model_name" in config:
        raise DeclinedError("config.json has a model_name, which may choose another tokenizer")
    names = (name, config.get("_name_or_path"), config.get("name_or_path"))
    if any(fnmatch(str(each).lower(), pattern) for each in names for pattern in _DISBELIEVED):
        raise DeclinedError("transformers has a tokenizer of its own for a checkpoint of that name")
    registered = _REGISTERED[kind]
    if registered is None:
        return None
    if said is not None and (type(said) is not str or not said):
        raise DeclinedError(f"tokenizer_class is {said!r}")
    chosen = said.removesuffix("Fast") if said and kind != "qwen2" else registered
    if chosen == _SAID or chosen in _PLAIN:
        return None
    if chosen == "LlamaTokenizer" and _mentions_bytes(folder / "tokenizer.json"):
        return None
    if chosen not in CLASSES:
        raise DeclinedError(f"tokenizer_class is {said!r}")
    return CLASSES[chosen]


def _mentions_bytes(path: Path) -> bool:
    """Return whether the file names a ByteLevel part, which is how transformers tells Llama 3 from Llama 2."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return content.find(b'"ByteLevel"') >= 0
