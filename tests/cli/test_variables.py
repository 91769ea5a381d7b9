"""Variables of the environment that stand in for options: which goes first, what a run leaves out, what is refused."""

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from readme import pages
from refusals import refused
from typer.main import get_command

from attncli.cli.app import app

Run = Callable[..., Any]
Set = Callable[..., None]
SENTENCE = "time flies like an arrow"
ROOT: Any = get_command(app)


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Set variables by the names of their options."""
    return lambda **values: [monkeypatch.setenv(f"ATTN_{name.upper()}", value) for name, value in values.items()]


def values_of(*arguments: str) -> dict[str, Any]:
    """What `attn inspect` takes from its command line and the environment."""
    context = ROOT.get_command(None, "inspect").make_context("inspect", [*arguments])
    return {name: value for name, value in context.params.items() if value not in (None, False, [])}


@pytest.mark.parametrize(("name", "typed", "value"), [
    ("model", "first", "second"), ("dtype", "float16", "float64"), ("jobs", "1", "2"), ("seed", "1", "2"),
    ("colormap", "cividis", "gray"),
])  # fmt: skip
def test_a_flag_goes_before_the_environment(name: str, typed: str, value: str, variables: Set) -> None:
    rest = ["-F", "jsonl", *(["-m", "a/model"] if name == "dtype" else [])]
    flags = [[*rest, f"--{name}", text] for text in (typed, value)]
    expected = [values_of(*flag) for flag in flags]
    variables(**{name: value})
    assert values_of(*rest) == expected[1]
    assert values_of(*flags[0]) == expected[0]
    variables(**{name: ""})
    assert name not in values_of(*rest)


def test_the_docs_list_them() -> None:
    text = pages()["docs/reference/configuration.md"]
    inspect = ROOT.get_command(None, "inspect")
    listed = set(re.findall(r"`(ATTN_\w+)`", text)) - {"ATTN_DEBUG"}
    assert listed == {one.envvar for one in inspect.params if one.envvar}


@pytest.mark.parametrize(
    ("standing", "arguments", "in_force"),
    [
        # --from has its attention already.
        ({"model": "m", "dtype": "float16", "seed": "3", "offline": "true"}, ["--from", "t.safetensors"], {}),
        ({"colormap": "gray", "precision": "2"}, ["--from", "t.safetensors"], {"colormap": "gray", "precision": 2}),
        ({"precision": "2"}, ["--from", "t.safetensors", "-F", "json"], {}),
        # Options of the toy layer ask for it.
        ({"model": "m", "device": "cuda"}, ["--seed", "3"], {}),
        ({"model": "m", "num_heads": "2"}, ["--d-k", "3"], {"num_heads": 2}),
        ({"dtype": "float16", "device_map": "auto", "num_heads": "2"}, [], {"num_heads": 2}),
        # A checkpoint has no toy layer's options.
        ({"seed": "3", "d_model": "8", "dtype": "float16"}, ["-m", "m"], {"dtype": "float16"}),
        # A model runs in one place.
        ({"device_map": "auto"}, ["-m", "m", "--device", "cpu"], {}),
        ({"device": "cuda"}, ["-m", "m", "--device-map", "auto"], {}),
        ({"init": "zeros"}, ["--project", "none"], {}),
        ({"engine": "native"}, [], {}),
        # What programs read has all digits.
        ({"precision": "2"}, ["-o", "out.JSONL"], {}),
        ({"precision": "2"}, ["-F", "json", "--precision", "1"], {}),
    ],
)
def test_what_does_not_apply_is_left_out(
    standing: dict[str, str], arguments: list[str], in_force: dict[str, Any], variables: Set
) -> None:
    alone = values_of(*arguments)
    variables(**standing)
    assert values_of(*arguments) == alone | in_force


def test_no_variable_switches_on_code_of_others(variables: Set) -> None:
    variables(trust_remote_code="1")
    assert values_of("-m", "m") == {"model": "m"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SEED", "three", "invalid value for ATTN_SEED: "),
        ("WIDTH", "3", "invalid value for ATTN_WIDTH: "),
        ("OFFLINE", "perhaps", "invalid value for ATTN_OFFLINE: expected true or false; see"),
        ("D_MODEL", "30", "(--d-model 30 comes from ATTN_D_MODEL)"),
        ("MODEL", "no/such\x1b[31m", "(--model no/such"),
    ],
)
def test_what_is_wrong_with_a_variable_names_it(
    name: str, value: str, message: str, attn: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, f"ATTN_{name}", value)
    refused(attn("inspect", SENTENCE), 3 if name == "MODEL" else 2, message, f"ATTN_{name}")
