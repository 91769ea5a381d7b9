"""Whatever stands in a field of a file that is read: an answer, or one sentence; never a bug of ours."""

import functools
import json
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from outputs import INPUT, OK, hold, one_sentence
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

Run = Callable[..., Any]

# JSON that may stand in a field, whatever belongs there; None takes the field away.
OTHERS = (None, "null", "{}", "[]", "-1", "1e999", '"a text"', "[1, null]", "0.5", "true")
_MARK = "what is to be replaced"


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a JSON document; of a list its first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for name, each in inner:
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
        said = json.loads(file.metadata()["attncli"])
    said["layers"][0]["proof"] = {"max_abs_error": "0.5", "against": "another output", "of": "weights·V"}
    ended: Counter[int] = Counter()
    for place in places(said):
        for other in OTHERS:
            save_file(tensors, path, metadata={"attncli": with_another(said, place, other)})
            ran = attn("inspect", "--from", path, "--show", "tokens,scores,heatmap,output")
            assert ran.code in (OK, INPUT), (place, other, ran.err)
            hold(ran.code, ran.out, ran.err)
            if ran.code == INPUT:
                one_sentence(ran.code, ran.out, ran.err)
            ended[ran.code] += 1
    assert ended[OK] > 20
    assert ended[INPUT] > 300
