"""Tokenizers against transformers' own: ids, pieces, offsets and segments are the same, or the native one declines."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import INPUT, LOAD, USAGE, refused
from running import Run
from tiny_tokenizers import BERT, FAMILIES, STRINGS, save_tokenizer
from tokenizer_folders import IN_PYTHON, PLACED, custom
from tokenizers import Tokenizer
from transformers import AutoTokenizer, MarianConfig, MarianModel, TokenizersBackend

from attncli.checkpoints.checkpoint_folder import CheckpointFolder, UnsupportedError
from attncli.encoding.fast_tokenizer import NativeTokenizer, load_tokenizer

LIMIT = 9  # tokens, where texts are cut
PARTS = "ids tokens offsets special_tokens_mask type_ids word_ids sequence_ids attention_mask".split()


def native_of(folder: Path) -> NativeTokenizer:
    return load_tokenizer(str(folder), CheckpointFolder(folder), json.loads((folder / "config.json").read_text()))


def _read(tokenizer: Any, text: str, pair: str | None, special: bool, limit: int | None) -> Any:
    cut = {"truncation": limit is not None, "max_length": limit}
    try:
        made = tokenizer(text, pair, add_special_tokens=special, padding=False, **cut)
    except Exception as error:  # the library raises bare Exception
        return str(error)
    return [getattr(made.encodings[0], name) for name in PARTS], dict(made.items())


def check_equal(folder: Path, texts: list[str]) -> None:
    """Check that the native tokenizer of a folder reads texts as AutoTokenizer does: alone, in pairs, cut, bare."""
    native, auto = native_of(folder), AutoTokenizer.from_pretrained(folder, mistral_format=False)
    for name in ("unk_token", "unk_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(native, name) == getattr(auto, name)
    for id_ in (0, 5, len(auto) - 1):
        assert native.convert_ids_to_tokens(id_) == auto.convert_ids_to_tokens(id_)
    for index, text in enumerate(texts):
        pair = texts[index - 1] if index % 3 == 0 else None
        case = text, pair, index % 5 != 0, LIMIT if index % 4 == 0 else None
        assert _read(native, *case) == _read(auto, *case), text


def _edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    change(content)
    path.write_text(json.dumps(content))


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str], Path]:
    return lambda family: save_tokenizer(tmp_path, family)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_read_as_auto_tokenizer_reads_it(family: str, saved: Callable[[str], Path]) -> None:
    folder = saved(family)
    check_equal(folder, STRINGS)
    config = folder / "tokenizer_config.json"
    fields = json.loads(config.read_text())
    config.unlink()
    check_equal(folder, STRINGS[::3])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(7, direction="left")
    tokenizer.enable_padding(length=16, pad_token=FAMILIES[family][2][-1], pad_id=3)
    tokenizer.save(str(folder / "tokenizer.json"))
    config.write_text(json.dumps({name: value for name, value in fields.items() if name != "pad_token"}))
    check_equal(folder, STRINGS[::3])


Change = Callable[[Path], None]


def _beside(name: str, content: Any) -> Change:
    return lambda folder: _edit(folder / name, lambda fields: fields.update(content))


def _fields(**fields: Any) -> Change:
    return _beside("tokenizer_config.json", fields)


def _file(change: Callable[[dict[str, Any]], Any]) -> Change:
    return lambda folder: _edit(folder / "tokenizer.json", change)


def _class_in_config(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    _beside("config.json", {"tokenizer_class": "Qwen2Tokenizer"})(folder)


def _added(content: str, id_: int, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": id_, "content": content, **plain, **flags}


def _whole_words(content: dict[str, Any]) -> None:
    content["model"]["ignore_merges"] = True
    content["model"]["vocab"] |= {"arrow": 5000, "Ġarrow": 5001, "Hello": 5002, "the": 5003, "Ġthe": 5004}
    del content["model"]["merges"][::2]


TWICE = [_added("the", 9000, lstrip=True), _added("a", 9001), _added("the", 8000, special=True)]
ADDED = {k: v for k, v in _added("", 0, special=True).items() if k != "id"}
WIDE = {"__type": "AddedToken"} | ADDED | {"content": "wide load", "lstrip": True, "rstrip": True, "special": False}
MASK = WIDE | {"content": "<mask>"}
NEW = {str(6000 + index): {k: v for k, v in token.items() if k != "id"} for index, token in enumerate(
    [_added("[NEW]", 0, lstrip=True), _added("<extra>", 0, normalized=True), _added("wide load", 0, single_word=True)]
)}  # fmt: skip
LISTED = {str(id_): ADDED | {"content": content} for id_, content in enumerate(BERT)}
# How a checkpoint may differ from what its class writes, and AutoTokenizer reads it all the same.
# fmt: off
VARIANTS: dict[str, tuple[str, Change]] = {
    "accents stripped": ("bert", _fields(do_lower_case=False, strip_accents=True)),
    "Pythia": ("gpt_neox", _file(lambda c: c.update(post_processor={"type": "ByteLevel", "add_prefix_space": False,
                                                                    "trim_offsets": True, "use_regex": True}))),
    "whole words, GPT-2": ("gpt2", _file(_whole_words)),
    "prefix, RoBERTa": ("roberta", _fields(add_prefix_space=True)),
    "begin and end, Llama": ("llama", _fields(add_bos_token=False, add_eos_token=True)),
    "Llama 2": ("llama", _file(lambda c: c.update(pre_tokenizer=None, normalizer={"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}))),
    "class in config.json": ("gpt2", _class_in_config),
    "added tokens": ("bert", _fields(added_tokens_decoder=NEW | LISTED)),
    "tokens listed twice": ("gpt2", _file(lambda c: c["added_tokens"].extend(TWICE))),
    "named tokens": ("roberta", _fields(extra_special_tokens={"image_token": "<pad>"}, image_token="<pad>")),
    "special_tokens_map.json": ("roberta", _beside("special_tokens_map.json", {
        "mask_token": {k: v for k, v in MASK.items() if k != "__type"}, "additional_special_tokens": ["<pad>"]})),
    "tekken": ("mistral", _beside("tekken.json", {})),
}
# fmt: on


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_read_as_auto_tokenizer_reads_it(name: str, saved: Callable[[str], Path]) -> None:
    family, change = VARIANTS[name]
    change(folder := saved(family))
    check_equal(folder, STRINGS[::3])


# What may say something of the tokens that is not read here.
DECLINED: dict[str, tuple[str, Change, str]] = {
    "unknown type": ("bert", _beside("config.json", {"model_type": "deberta"}), "'deberta' is not known"),
    "unknown class": ("bert", _fields(tokenizer_class="AlbertTokenizer"), "AlbertTokenizer"),
    "unknown field": ("gpt2", _fields(new_rule=1), "the field new_rule"),
    "another model": ("bert", _fields(tokenizer_class="GPT2Tokenizer"), "BPE, tokenizer.json has WordPiece"),
    "added alone": ("bert", _beside("added_tokens.json", {"[MASK]": 4}), "added_tokens.json or"),
    "odd added tokens": ("bert", _fields(added_tokens_decoder={"a": {}}), "added tokens cannot be read"),
}


@pytest.mark.parametrize("name", DECLINED)
def test_an_unusual_folder_is_declined(name: str, saved: Callable[[str], Path]) -> None:
    family, change, reason = DECLINED[name]
    change(folder := saved(family))
    with pytest.raises(UnsupportedError, match=re.escape(reason)):
        native_of(folder)


TEXTS = ["time flies like an arrow", "  naïve cafe\u0301 ☃ 2024", "LIKE </s> an <unk> [MASK] end", "👨\u200d👩 שלום\t"]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory, minilm: str) -> Callable[[str], Path]:
    @cache
    def folder(kind: str) -> Path:
        if kind == "minilm":
            return Path(minilm)
        made = tmp_path_factory.mktemp("tokenizer")
        (PLACED | IN_PYTHON)[kind](made)
        return made

    return folder


@pytest.mark.parametrize("kind", ["minilm", *PLACED, *IN_PYTHON])
def test_tokens_are_those_of_transformers(attn: Run, folder_of: Callable[[str], Path], kind: str) -> None:
    folder, auto = folder_of(kind), {"mistral_format": False}
    # Without mistral-common, which has no offsets.
    made = (TokenizersBackend, {}) if kind == "tekken of mistral-common" else (AutoTokenizer, auto)
    tokenizer = made[0].from_pretrained(folder, **made[1])
    assert tokenizer.is_fast == (kind not in IN_PYTHON)
    for options in ([], ["--no-special"], ["--pair", "and a banana"]):
        pair = options[1] if "--pair" in options else None
        ran = attn("tokens", *TEXTS, *options, "-m", folder, "-F", "jsonl")
        if pair and kind in IN_PYTHON:
            assert "does not separate two texts; drop --pair" in ran.err
            continue
        assert ran.code == 0, ran.err
        for text, line in zip(TEXTS, ran.out.splitlines(), strict=True):
            tokens = json.loads(line)["tokens"]
            expected = tokenizer(text, pair, add_special_tokens="--no-special" not in options)
            ids = expected["input_ids"]
            assert [token["id"] for token in tokens] == ids
            if kind in IN_PYTHON:
                assert [token["text"] for token in tokens] == tokenizer.convert_ids_to_tokens(ids)
                assert {token["start"] for token in tokens} == {None}
                continue
            (encoding,) = expected.encodings
            assert [token["text"] for token in tokens] == encoding.tokens
            assert [token["special"] for token in tokens] == [bool(mask) for mask in encoding.special_tokens_mask]
            spans = zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
            spans = [(None, None) if special else span for span, special in spans]
            assert [(token["start"], token["end"]) for token in tokens] == spans
            of_text = [token["segment"] for token in tokens if not token["special"]]
            assert of_text == [each for each in encoding.sequence_ids if each is not None]
            for token in filter(lambda token: token["unknown"], tokens):  # and not what is written out
                assert token["id"] == tokenizer.unk_token_id
                assert token["start"] is None or text[token["start"] : token["end"]] != tokenizer.unk_token


def test_a_long_sentence_is_shown_with_a_warning_and_cut_on_demand(attn: Run, minilm: str) -> None:
    text = "time " * 600
    ran = attn("tokens", text, "-m", minilm, "-F", "json")
    assert (ran.code, ran.json["length"], ran.json["limit"]) == (0, 602, 512)
    expected = f"warning: the sentence has 602 tokens, {minilm} reads at most 512; --truncate cuts it"
    assert ran.err == f"attn: {expected}\n"
    ran = attn("tokens", text, "-m", minilm, "-F", "json", "--truncate")
    assert (ran.code, ran.json["length"], ran.json["tokens"][-1]["text"]) == (0, 512, "[SEP]")
    assert "is cut to the 512" in ran.err


def test_code_that_a_checkpoint_brings_runs_only_if_it_may(attn: Run, tmp_path: Path) -> None:
    custom(tmp_path)
    refused(attn("tokens", "time", "-m", tmp_path), LOAD, "Python code in the checkpoint", "--trust-remote-code")
    ran = attn("tokens", "time", "-m", tmp_path, "--trust-remote-code", "-F", "json")
    assert [token["id"] for token in ran.json["tokens"]] == [byte + 3 for byte in b"time"] + [1]


@pytest.fixture
def marian(tmp_path: Path) -> str:
    folder = tmp_path
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=90, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, pad_token_id=1,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64,
        decoder_start_token_id=1, decoder_vocab_size=90, init_std=0.5,
    )  # fmt: skip
    IN_PYTHON["marian"](folder)
    MarianModel(config).save_pretrained(folder)
    return str(folder)


def test_tokens_without_offsets(attn: Run, marian: str) -> None:
    for command in ("inspect --hide-special", "why --query an --head 0", "check", "mask model", "tokens -F csv"):
        assert attn(*command.split(), "time flies like an arrow", "-m", marian).code == 0
    refused(attn("inspect", "a b", "--words", "-m", marian), USAGE, "--words needs the position of each token")
    ran = attn("tokens", "time ☃ flies", "-m", marian)
    assert "lacks some of the text, read as <unk>" in ran.err
    assert attn("tokens", "time <unk> flies", "-m", marian).err == ""  # which the text spells
    refused(attn("tokens", "time", "--pair", "flies", "-m", marian), INPUT, "does not separate two texts")
