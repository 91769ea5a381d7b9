"""Whatever stands in a field of a file that is read: an answer, or one sentence; never a bug of ours."""

import functools
import json
import operator
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzzing import TIMES
from outputs import FINDINGS, INPUT, LOAD, OK, answered_or_refused
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from small_checkpoints import save_tiny_llama
from transformers import AutoConfig

Run = Callable[..., Any]

# JSON that may stand in a field, whatever belongs there; None takes the field away.
OTHERS = (None, "null", "{}", "[]", "-1", "1e999", '"a text"', "[1, null]", "0.5", "true", '""', "0", "9" * 20)
_MARK = "what is to be replaced"


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a JSON document; of a list and of a vocabulary the first."""
    inner = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for name, each in inner[:1] if isinstance(value, list) or place[-1:] == ("vocab",) else inner:
        yield (*place, name)
        yield from places(each, (*place, name))


def with_another(document: Any, place: tuple[Any, ...], other: str | None) -> str:
    """The document with something else in one place."""
    copy = json.loads(json.dumps(document))
    holder = functools.reduce(operator.getitem, place[:-1], copy)
    if other is None:
        del holder[place[-1]]
        return json.dumps(copy)
    holder[place[-1]] = _MARK
    return json.dumps(copy).replace(json.dumps(_MARK), other)


def test_of_a_trace(attn: Run, tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.safetensors", tmp_path / "trace.safetensors"
    assert attn("inspect", "time flies", "--pair", "fruit", "--save", whole).code == OK
    tensors = load_file(whole)
    with safe_open(whole, framework="numpy") as file:
        document = json.loads(file.metadata()["attncli"])
    document["layers"][0]["proof"] = {
        "max_abs_error": "0.5",
        "against": "another output",
        "of": "weights·V",
        "magnitude": "1",
    }
    ended: Counter[int] = Counter()
    for place in places(document):
        for other in OTHERS:
            save_file(tensors, path, metadata={"attncli": with_another(document, place, other)})
            ran = attn("inspect", "--from", path, "--show", "tokens,scores,heatmap,output")
            assert ran.code in (OK, INPUT), (place, other, ran.err)
            answered_or_refused(ran)
            ended[ran.code] += 1
    assert ended[OK] > 20
    assert ended[INPUT] > 300


FILES = ("config.json", "generation_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A tiny checkpoint whose files state everything that they can."""
    folder = tmp_path / "llama"
    save_tiny_llama(str(folder))
    config = json.loads(AutoConfig.from_pretrained(folder).to_json_string(use_diff=False))
    (folder / "config.json").write_text(json.dumps(config | {"_name_or_path": ""}))
    (folder / "generation_config.json").write_text('{"bos_token_id": 1, "eos_token_id": [2], "max_length": 20}')
    (folder / "special_tokens_map.json").write_text('{"unk_token": {"content": "<unk>", "lstrip": false}}')
    return folder


@pytest.mark.parametrize("name", FILES)
def test_of_a_checkpoint(name: str, attn: Run, checkpoint: Path) -> None:
    commands = [
        ["inspect", "w7 w8 time flies", "-l", "all", "-m", checkpoint],
        ["inspect", "w7 w8 time flies", "-l", "all", "--engine", "transformers", "-m", checkpoint],
        ["heads", "w7 w8 time flies", "--engine", "transformers", "-m", checkpoint],
        ["mask", "model", "-m", checkpoint, "w7 time", "w8"],
        ["check", "-m", checkpoint, "w7 w8 time"],
        ["tokens", "w7 time", "-m", checkpoint],
    ]
    path = checkpoint / name
    document = json.loads(path.read_text(encoding="utf-8"))
    drawn = random.Random(name * TIMES)
    ended = Counter(attn(*command).code for command in commands)
    assert set(ended) <= {OK, FINDINGS}
    for place in list(places(document)) * TIMES:
        other = drawn.choice(OTHERS)
        command = drawn.choice(commands)
        path.write_text(with_another(document, place, other), encoding="utf-8")
        ran = attn(*command)
        try:
            answered_or_refused(ran)
        except AssertionError as error:
            raise AssertionError(f"{place} is {other}: {command[:2]}: {error}") from None
        ended[ran.code] += 1
    assert name == "generation_config.json" or ended[LOAD]
