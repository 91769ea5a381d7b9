"""No call over the network that was not asked for: connections and look-ups are recorded, and refused."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apart
import pytest
import torch
from apart import RanApart, ran_apart
from fuzzing import commands
from refusals import LOAD, refused
from safetensors.torch import load_file
from typer.main import get_command

from attncli.cli.app import app

COMMANDS = {
    "toy": ["inspect", "time flies like an arrow"],
    "tokenizer": ["inspect", "time flies", "--vocab", "tiny/tokenizer.json"],
    "help": ["inspect", "--help"],
    "version": ["--version"],
    "completion": ["completion", "bash"],
    "trace": ["inspect", "--from", "trace.safetensors", "-o", "page.html"],
    "parquet": ["inspect", "time flies", "-o", "rows.parquet"],
    "checkpoint": ["inspect", "time flies", "-m", "tiny", "-l", "all"],
    "what a model writes": ["inspect", "time flies", "-m", "tiny", "--generate", "2"],
    "pickle": ["inspect", "time flies", "-m", "pickle"],
    "broken": ["inspect", "time flies", "-m", "broken"],
    "tokens": ["tokens", "time flies", "-m", "tiny"],
    "lesson": ["learn", "time flies"],
    "explorer": ["explore", "time flies", "-m", "tiny"],
    "heads": ["heads", "time flies", "-m", "tiny"],
    "why": ["why", "time flies", "-m", "tiny", "-q", "1"],
    "ablate": ["ablate", "time flies", "-m", "tiny"],
    "diff": ["diff", "time flies", "-m", "tiny", "-m", "pickle"],
    "check": ["check", "time flies", "-m", "tiny"],
    "mask": ["mask", "show", "causal"],
    "mask file": ["mask", "check", "mask.pt", "--expect", "causal"],
    "mask model": ["mask", "model", "-m", "tiny", "time flies"],
    "mask diff": ["mask", "diff", "causal", "causal & window(3)"],
    "mask convert": ["mask", "convert", "causal", "--to", "additive", "-o", "additive.safetensors"],
    "both engines": ["inspect", "time flies", "-m", "tiny", "--engine", "verify"],
    "program": ["run", "program.py"],  # the last one: after a program there are no more threads
}
ENDS = {"explorer": 2, "broken": LOAD, "mask diff": 1}
# What would keep the libraries off the network anyway.
KEEPERS = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DISABLE_SAFETENSORS_CONVERSION"}

# A network namespace of its own, without a route: for C's and Rust's sockets too, and for child processes.
NO_ROUTE = ("unshare", "--map-root-user", "--net")

Ended = dict[str, RanApart]


@pytest.fixture
def recorded(
    attn: Callable[..., Any], tmp_path: Path, tiny_llama: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ended]:
    """Run command lines online, among checkpoints, in one process that keeps the record."""
    for name in ("tiny", "pickle", "broken"):
        shutil.copytree(tiny_llama, tmp_path / name)
    torch.save(load_file(tmp_path / "pickle" / "model.safetensors"), tmp_path / "pickle" / "pytorch_model.bin")
    for name in ("pickle", "broken"):
        (tmp_path / name / "model.safetensors").unlink()
    assert attn("inspect", "time flies", "--save", tmp_path / "trace.safetensors").code == 0
    assert attn("mask", "convert", "causal", "--to", "sdpa", "-o", tmp_path / "mask.pt").code == 0
    (tmp_path / "program.py").write_text("import torch\n")
    online = {name: value for name, value in os.environ.items() if name not in KEEPERS}
    online |= {"HF_HOME": str(tmp_path / "hub")}

    monkeypatch.chdir(tmp_path)
    return partial(ran_apart, env=online, cwd=tmp_path)


def test_the_record_sees_a_connection_and_a_look_up() -> None:
    script = (
        "import apart, socket, sys\nsys.addaudithook(apart.refuse)\n"
        "for call in (lambda: socket.create_connection(('example.org', 80)), "
        "lambda: socket.socket().connect(('192.0.2.1', 80))):\n"
        "    try:\n        call()\n    except OSError:\n        pass\n"
        "print(*apart.HOSTS)"
    )
    folder = Path(apart.__file__).parent
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, cwd=folder)
    assert ran.stdout.split() == [b"example.org", b"192.0.2.1"]


@pytest.fixture
def no_route() -> tuple[str, ...]:
    """What runs a command in a network namespace without a route; nothing where this machine forbids namespaces."""
    tried = subprocess.run([*NO_ROUTE, "true"], capture_output=True, encoding="utf-8", check=False)
    is_forbidden = "Operation not permitted" in tried.stderr
    assert is_forbidden or (tried.returncode, tried.stderr) == (0, "")
    return () if is_forbidden else NO_ROUTE


def test_no_command_speaks_to_the_network_unasked(recorded: Callable[..., Ended], no_route: tuple[str, ...]) -> None:
    for path in commands(get_command(app)):
        assert [line for line in COMMANDS.values() if tuple(line[: len(path)]) == path], path
    for name, ran in recorded(COMMANDS, *no_route).items():
        assert ran.hosts == [], name
        assert ran.code == ENDS.get(name, 0), (name, ran.err)
        assert not ran.unrouted or not no_route, name  # below Python


def test_a_name_on_the_hub_is_asked_of_the_hub_alone(recorded: Callable[..., Ended]) -> None:
    for option in ("-m", "--vocab"):
        line = ["inspect", "time flies", option, "no-one/nothing"]
        ended = recorded({"offline": [*line, "--offline"], "online": line})
        assert {name: set(ran.hosts) for name, ran in ended.items()} == {"offline": set(), "online": {"huggingface.co"}}
        for name, ran in ended.items():
            refused(ran, LOAD, "was not found")
            assert ("Network is unreachable" in ran.err) == (name == "online"), ran.err


def test_the_libraries_below_report_nothing_and_convert_nothing_unless_they_are_told_to() -> None:
    script = (
        "from attncli.engines.torch import announce_import\n"
        "from attncli.checkpoints.options import LoadOptions\n"
        "from attncli.checkpoints.snapshot import resolve\n"
        "announce_import('this test', resolve('demo', LoadOptions()))\n"
        "from huggingface_hub import constants\nfrom transformers.utils import is_env_variable_true\n"
        "print(constants.HF_HUB_DISABLE_TELEMETRY, is_env_variable_true('DISABLE_SAFETENSORS_CONVERSION'))"
    )
    plain = {name: value for name, value in os.environ.items() if name not in KEEPERS}
    for more, printed in (({}, "True True"), ({"HF_HUB_DISABLE_TELEMETRY": "0"}, "False True")):
        ran = subprocess.run([sys.executable, "-c", script], env=plain | more, capture_output=True, check=True)
        assert ran.stdout.decode().strip() == printed
