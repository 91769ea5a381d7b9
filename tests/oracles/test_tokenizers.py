"""`attn tokens -m` against transformers' own tokenizer: the document, words, what is unknown, what is too long."""

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

Run = Callable[..., Any]

TEXTS = [
    "time flies like an arrow",
    "  leading, double  and trailing spaces  ",
    "Unbelievably naïve cafe\u0301",  # the last accent is a combining character
    "family 👨\u200d👩\u200d👧 ☃ 🇩🇪",
    "السهم and שלום",
    "a [MASK] and an [UNK] that are written out, and ☃",
    "tab\tand\nnewline \\n \x07 \u202e\u200b",
]


def test_ids_pieces_places_and_segments_are_those_of_transformers(attn: Run, minilm: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    for options in ([], ["--no-special"], ["--pair", "and a banana 🍌"]):
        ran = attn("tokens", *TEXTS, *options, "-m", minilm, "-F", "jsonl")
        assert ran.code == 0, ran.err
        for text, line in zip(TEXTS, ran.out.splitlines(), strict=True):
            document = json.loads(line)
            expected = tokenizer(
                text,
                options[1] if "--pair" in options else None,
                add_special_tokens="--no-special" not in options,
                return_offsets_mapping=True,
                return_special_tokens_mask=True,
            )
            tokens = document["tokens"]
            assert (document["text"], document["length"]) == (text, len(tokens))
            assert [token["id"] for token in tokens] == expected["input_ids"]
            assert [token["text"] for token in tokens] == expected.tokens()
            assert [token["special"] for token in tokens] == [bool(mask) for mask in expected["special_tokens_mask"]]
            places = zip(expected["offset_mapping"], expected["special_tokens_mask"], strict=True)
            expected_places = [(None, None) if special else place for place, special in places]
            assert [(token["start"], token["end"]) for token in tokens] == expected_places
            unknown = [token for token in tokens if token["id"] == tokenizer.unk_token_id]
            for token in unknown:  # and not what is written out
                assert token["unknown"] == (text[token["start"] : token["end"]] != "[UNK]")
            of_text = [token["segment"] for token in tokens if not token["special"]]
            assert of_text == [each for each in expected.sequence_ids() if each is not None]


def test_words_are_those_of_the_tokenizer(attn: Run, minilm: str) -> None:
    """Two neighbours are in one word where the tokenizer's own numbers of words say so."""
    text = "Unbelievably naïve time-flies, unbelievable"
    words = AutoTokenizer.from_pretrained(minilm)(text).word_ids()
    tokens = attn("tokens", text, "-m", minilm, "-F", "json").json["tokens"]
    found = [token["word"] for token in tokens]
    assert [a == b for a, b in pairwise(found)] == [a == b and a is not None for a, b in pairwise(words)]
    merged = attn("tokens", text, "-m", minilm, "-F", "json", "--words").json["tokens"]
    assert [word["index"] for word in merged] == list(range(len(merged)))
    for word in merged:
        assert [token["index"] for token in tokens if token["word"] == word["index"]] == word["pieces"]


def test_a_sentence_that_is_too_long_is_shown_with_a_warning_and_cut_if_asked(attn: Run, minilm: str) -> None:
    text = "time " * 600
    ran = attn("tokens", text, "-m", minilm, "-F", "json")
    assert (ran.code, ran.json["length"], ran.json["limit"]) == (0, 602, 512)
    expected = f"warning: the sentence has 602 tokens, {minilm} reads at most 512; --truncate cuts it"
    assert ran.err == f"attn: {expected}\n"
    ran = attn("tokens", text, "-m", minilm, "-F", "json", "--truncate")
    assert (ran.code, ran.json["length"], ran.json["tokens"][-1]["text"]) == (0, 512, "[SEP]")
    assert "is cut to the 512" in ran.err
    assert "602 tokens of at most 512" in attn("tokens", text, "-m", minilm).out.splitlines()[0]


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_a_special_token_without_a_letter_is_none(
    engine: str, name: str, attn: Run, tiny_llama: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "here"))
    empty = dict.fromkeys(("unk_token", "pad_token", "bos_token"), "")
    fields = json.loads((folder / "tokenizer_config.json").read_text())
    bare = {key: fields[key] for key in fields.keys() - empty.keys()}
    (folder / "tokenizer_config.json").write_text(json.dumps(bare))
    path = folder / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | empty))
    run = ["inspect", "time zeppelin", "--engine", engine, "-F", "json", "-m"]
    ran, expected = attn(*run, folder), attn(*run, tiny_llama)
    assert (ran.code, ran.err) == (0, "")
    assert "'zeppelin'" in expected.err
    assert ran.json["layers"] == expected.json["layers"]
