"""The native engine's tokenizers against AutoTokenizer, which is the one that says what is right."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import BERT, END, FAMILIES, STRINGS, save_tokenizer
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from attncli.checkpoints.checkpoint_folder import CheckpointFolder
from attncli.checkpoints.config_reader import UnsupportedError
from attncli.encoding.fast_tokenizer import NativeTokenizer, load_tokenizer
from attncli.errors import LoadError

LIMIT = 9  # tokens, where texts are cut


def _parts(encoding: Any) -> tuple[Any, ...]:
    names = "ids tokens offsets special_tokens_mask type_ids word_ids sequence_ids attention_mask"
    return tuple(getattr(encoding, name) for name in names.split())


def _read(tokenizer: Any, text: str, pair: str | None, special: bool, limit: int | None) -> Any:
    """Return all that a tokenizer, of transformers or ours, makes of a text, or what it says against it."""
    cut = {"truncation": limit is not None, "max_length": limit}
    try:
        made = tokenizer(text, pair, add_special_tokens=special, padding=False, **cut)
    except Exception as error:  # the library raises bare Exception
        return str(error)
    return _parts(made.encodings[0]), dict(made.items())


def _differently_read(native: NativeTokenizer, auto: Any, texts: list[str]) -> list[str]:
    """Return the texts of which they do not make the same: alone, in pairs, cut, and without special tokens."""
    names = ("unk_token", "unk_token_id", "eos_token_id", "pad_token_id")
    assert [getattr(native, name) for name in names] == [getattr(auto, name) for name in names]
    for id_ in (0, 5, len(auto) - 1):
        assert native.convert_ids_to_tokens(id_) == auto.convert_ids_to_tokens(id_)
    different = []
    for index, text in enumerate(texts):
        pair = texts[index - 1] if index % 3 == 0 else None
        case = text, pair, index % 5 != 0, LIMIT if index % 4 == 0 else None
        if _read(native, *case) != _read(auto, *case):
            different.append(text)
    return different


def _differences(folder: Path, texts: list[str]) -> list[str]:
    """Return the texts that the native tokenizer of a folder reads in another way than AutoTokenizer's.

    Raises:
        UnsupportedError: there is no native one.
    """
    native = load_tokenizer(str(folder), CheckpointFolder(folder), json.loads((folder / "config.json").read_text()))
    return _differently_read(native, AutoTokenizer.from_pretrained(folder, mistral_format=False), texts)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that saves a family's tokenizer and says where."""
    return lambda family: save_tokenizer(tmp_path, family)


def _edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    change(content)
    path.write_text(json.dumps(content))


def test_a_real_checkpoint(minilm: str) -> None:
    assert _differences(Path(minilm), STRINGS) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_by_its_class_also_with_padding_of_the_training_and_without_other_files(
    family: str, saved: Callable[[str], Path]
) -> None:
    folder = saved(family)
    assert _differences(folder, STRINGS) == []
    config = folder / "tokenizer_config.json"
    fields = json.loads(config.read_text())
    config.unlink()
    assert _differences(folder, STRINGS[::3]) == []
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(7, direction="left")
    tokenizer.enable_padding(length=16, pad_token=FAMILIES[family][2][-1], pad_id=3)
    tokenizer.save(str(folder / "tokenizer.json"))
    config.write_text(json.dumps({name: value for name, value in fields.items() if name != "pad_token"}))
    assert _differences(folder, STRINGS[::3]) == []


def _beside(name: str, content: Any) -> Callable[[Path], None]:
    """Return a change of the fields of a file."""
    return lambda folder: _edit(folder / name, lambda fields: fields.update(content))


def _fields(**fields: Any) -> Callable[[Path], None]:
    return _beside("tokenizer_config.json", fields)


def _file(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Return a change of a tokenizer.json."""
    return lambda folder: _edit(folder / "tokenizer.json", change)


def _class_in_config(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    _beside("config.json", {"tokenizer_class": "Qwen2Tokenizer"})(folder)


def _added(content: str, id_: int, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": id_, "content": content, **plain, **flags}


def _matched(**flags: bool) -> Callable[[Path], None]:
    """Return a change of how a tokenizer.json has its added tokens matched."""

    def change(content: dict[str, Any]) -> None:
        for token in content["added_tokens"]:
            token.update(flags)

    return _file(change)


def _whole_words(content: dict[str, Any]) -> None:
    content["model"]["ignore_merges"] = True
    content["model"]["vocab"] |= {"arrow": 5000, "Ġarrow": 5001, "Hello": 5002, "the": 5003, "Ġthe": 5004}
    del content["model"]["merges"][::2]


def _no_tokens(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    _file(lambda content: content.update(added_tokens=[]))(folder)


def _out_of_order(content: dict[str, Any]) -> None:
    content["added_tokens"] += [_added("[NEW]", 5001), _added("wide load", 5000, normalized=True)]


def _twice(content: dict[str, Any]) -> None:
    content["added_tokens"] += [_added("the", 9000, lstrip=True), _added("a", 9001), _added("the", 8000, special=True)]


ADDED = {k: v for k, v in _added("", 0, special=True).items() if k != "id"}
WIDE = {"__type": "AddedToken"} | ADDED | {"content": "wide load", "lstrip": True, "rstrip": True, "special": False}
MASK = WIDE | {"content": "<mask>"}
NEW = {str(6000 + index): {k: v for k, v in token.items() if k != "id"} for index, token in enumerate(
    [_added("[NEW]", 0, lstrip=True), _added("<extra>", 0, normalized=True), _added("wide load", 0, single_word=True)]
)}  # fmt: skip
LISTED = {str(id_): ADDED | {"content": content} for id_, content in enumerate(BERT)}
# How a checkpoint may differ from what its class writes, and AutoTokenizer reads it all the same.
# fmt: off
VARIANTS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "accents stripped": ("bert", _fields(do_lower_case=False, strip_accents=True)),
    "a class of nothing": ("bert", _fields(tokenizer_class="PreTrainedTokenizerFast")),
    "other normalizer in the file": ("bert", _file(lambda c: c.update(normalizer={"type": "Lowercase"}))),
    "other model in the file": ("bert", _file(lambda c: c["model"].update(max_input_chars_per_word=4))),
    "no processor, GPT-2": ("gpt2", _file(lambda content: content.update(post_processor=None))),
    "Pythia": ("gpt_neox", _file(lambda c: c.update(post_processor={"type": "ByteLevel", "add_prefix_space": False,
                                                                    "trim_offsets": True, "use_regex": True}))),
    "whole words, GPT-2": ("gpt2", _file(_whole_words)),
    "prefix, GPT-2": ("gpt2", _fields(add_prefix_space=True)),
    "prefix, RoBERTa": ("roberta", _fields(add_prefix_space=True)),
    "offsets, RoBERTa": ("roberta", _fields(trim_offsets=False)),
    "no prefix, Llama": ("llama", _fields(add_prefix_space=False)),
    "legacy, Llama": ("llama", _fields(legacy=True)),
    "legacy is null, Llama": ("llama", _fields(legacy=None)),
    "begin and end, GPT-2": ("gpt2", _fields(add_bos_token=True, add_eos_token=True)),
    "begin and end, Llama": ("llama", _fields(add_bos_token=False, add_eos_token=True)),
    "Llama 3": ("llama", _file(lambda c: c.update(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False,
                                                                "trim_offsets": True, "use_regex": True}))),
    "Llama 2": ("llama", _file(lambda c: c.update(pre_tokenizer=None, normalizer={"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}))),
    "a GPT-2 that is a Llama": ("llama", _fields(tokenizer_class="GPT2Tokenizer", add_prefix_space=True)),
    "class in config.json": ("gpt2", _class_in_config),
    "added tokens": ("bert", _fields(added_tokens_decoder=NEW | LISTED)),
    "added tokens, Qwen": ("qwen2", _fields(added_tokens_decoder=NEW | {"0": ADDED | {"content": END[0]}})),
    "tokens out of order": ("bert", _file(_out_of_order)),
    "tokens listed twice": ("gpt2", _file(_twice)),
    "a table of extra tokens": ("gemma3_text", _fields(extra_special_tokens={"own": "<mask>"}, boi_token="<bos>")),
    "extra tokens": ("roberta", _fields(additional_special_tokens=["<s>", MASK])),
    "tokens of another name": ("bert", _fields(mask_token="[UNK]", cls_token="[MASK]", sep_token="[PAD]")),
    "special_tokens_map.json": ("roberta", _beside("special_tokens_map.json", {
        "mask_token": {k: v for k, v in MASK.items() if k != "__type"}, "additional_special_tokens": ["<pad>"]})),
    "tekken": ("mistral", _beside("tekken.json", {})),
    "nothing to remap": ("mistral", _fields(fix_mistral_regex=False)),
}
# fmt: on


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant(name: str, saved: Callable[[str], Path]) -> None:
    family, change = VARIANTS[name]
    folder = saved(family)
    change(folder)
    assert _differences(folder, STRINGS[::3]) == []


# What may say something of the tokens that is not read here.
DECLINED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "no tokenizer.json": ("bert", lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
    "unknown type": ("bert", _beside("config.json", {"model_type": "deberta"}), "'deberta' is not known"),
    "unknown class": ("bert", _fields(tokenizer_class="AlbertTokenizer"), "AlbertTokenizer"),
    "unknown field": ("gpt2", _fields(new_rule=1), "the field new_rule"),
    "another model": ("bert", _fields(tokenizer_class="GPT2Tokenizer"), "BPE, tokenizer.json has WordPiece"),
    "another name": ("llama", _beside("config.json", {"_name_or_path": "deepseek-ai/deepseek-coder-1b"}), "that name"),
    "a flag of text": ("bert", _fields(do_lower_case="yes"), "do_lower_case is 'yes'"),
    "dropout": ("gpt2", _file(lambda content: content["model"].update(dropout=0.5)), "dropout"),
    "added alone": ("bert", _beside("added_tokens.json", {"[MASK]": 4}), "an added_tokens.json"),
    "no added tokens": ("roberta", _no_tokens, "is none of the special tokens"),
    "a new token": ("bert", _fields(sep_token="[NEW]"), "[NEW] is none of the special tokens"),
    "special tokens that are not": ("bert", _matched(special=False), "[UNK] is none"),
    "special tokens with blanks": ("qwen2", _matched(lstrip=True), "in a way that its class changes"),
    "odd added tokens": ("bert", _fields(added_tokens_decoder={"a": {}}), "added tokens cannot be read"),
    "no list": ("gpt2", _file(lambda c: c.pop("added_tokens")), "does not list its added tokens"),
    "odd side": ("bert", _fields(truncation_side="top"), "truncation_side is 'top'"),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_is_declined(name: str, saved: Callable[[str], Path]) -> None:
    family, change, reason = DECLINED[name]
    folder = saved(family)
    _differences(folder, [])
    change(folder)
    with pytest.raises(UnsupportedError, match=re.escape(reason)):
        _differences(folder, [])


def test_a_name_that_transformers_treats_apart(saved: Callable[[str], Path]) -> None:
    with pytest.raises(UnsupportedError, match="that name"):
        load_tokenizer("deepseek-ai/DeepSeek-Coder-1b", CheckpointFolder(saved("llama")), {"model_type": "llama"})


@pytest.mark.parametrize(("name", "content", "sentence"), [
    ("tokenizer.json", "{", "tokenizer.json cannot be read"),
    ("tokenizer.json", '{"version": "1.0"}', "tokenizer.json cannot be read"),
    ("tokenizer_config.json", "{", "tokenizer_config.json cannot be read"),
    ("tokenizer_config.json", "[]", "tokenizer_config.json holds no JSON object"),
    ("special_tokens_map.json", "\x1b", "special_tokens_map.json cannot be read"),
])  # fmt: skip
def test_damaged_files(name: str, content: str, sentence: str, saved: Callable[[str], Path]) -> None:
    folder = saved("bert")
    (folder / name).write_text(content)
    with pytest.raises(LoadError, match=sentence) as raised:
        load_tokenizer("it", CheckpointFolder(folder), {"model_type": "bert"})
    assert "\n" not in str(raised.value)
    assert "\x1b" not in str(raised.value)
