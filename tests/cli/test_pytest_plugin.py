"""The fixture `attention`, in runs of pytest as its users make them."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attncli.errors import install_command

MODEL = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, mask):
        x = torch.zeros(len(mask), mask.shape[-1], 16)
        for layer in self.layers:
            x = layer(x, mask)


def right(lengths, size=6):
    real = torch.arange(size) < torch.tensor(lengths)[:, None]
    return torch.ones(size, size, dtype=torch.bool).tril() & real[:, None, None]


def padded(lengths, size=6):
    return torch.ones(len(lengths), 1, size, size, dtype=torch.bool)
"""
PADDED = "    return torch.ones(len(lengths), 1, size, size, dtype=torch.bool)"
TESTS = """
import pytest
import torch

import attncli
from model import Model, padded, right


def test_right(attention):
    Model()(right([6, 2]))
    attention.check("causal & pad", lengths=[6, 2])
    attention.check("causal & pad")
    attention.check({"*": "full", "layers.*": "causal & pad"}, lengths=[6, 2])
    with pytest.raises(AssertionError, match="no attention ran at decoder"):
        attention.check({"*": "causal & pad", "decoder.*": "causal"})
    attention.check("causal & pad", lengths=torch.arange(6) < torch.tensor([[6], [2]]))
    (row,) = attention.calls
    assert (row.calls, row.module, row.findings) == (2, "layers.0-1", ())
    assert len(row.traces) == 2
    Model()(right([6, 2]))
    assert attention.calls[0].calls == 4


def test_padding_is_seen(attention):
    Model()(padded([6, 2]))
    attention.check("pad", lengths=[6, 2])


def test_the_future_is_seen(attention):
    Model()(torch.ones(1, 1, 200, 200, dtype=torch.bool).tril(2))
    attention.check("causal")


def test_nothing_runs(attention):
    attention.check("causal")


def test_no_expression(attention):
    attention.check("cuasal")


def test_it_is_watched_to_the_end(attention):
    with pytest.raises(AssertionError):
        attention.check("causal & pad")
    with attncli.watch() as inner:
        Model()(right([3]))
    attention.check("causal & pad", lengths=[3])
    inner.check("causal & pad", lengths=[3])


def test_a_failure_of_its_own(attention):
    Model()(right([3]))
    raise KeyError("its own")


def test_nothing_leaks(attention):
    model = torch.nn.Sequential(torch.nn.Embedding(9, 16), torch.nn.Linear(16, 16))
    assert attention.prove(model, torch.arange(1, 7)[None], "causal").is_proved
    Model()(right([3]))
    layer = torch.nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    assert attention.prove(layer, torch.rand(1, 5, 16), "full").is_proved
    attention.check("causal & pad", lengths=[3])
    assert [row.calls for row in attention.calls] == [2]


def test_it_leaks(attention):
    conv = torch.nn.Conv1d(6, 6, 1)
    attention.prove(torch.nn.Sequential(torch.nn.Embedding(9, 16), conv), torch.arange(1, 7)[None], "causal")


def test_without_it():
    assert torch._C._len_torch_function_stack() == 0
    assert not torch.nn.modules.module._global_forward_hooks
"""
RIGHT = {"test_right", "test_nothing_leaks", "test_it_is_watched_to_the_end", "test_without_it"}


def run_pytest(folder: Path, *arguments: str, **environment: str) -> tuple[str, dict[str, str]]:
    """Run pytest as its users do, and return what it prints, and the failures by their tests."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "ATTN"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml", "out.xml", "-W", "error"]
    ended = subprocess.run(
        [*command, *arguments], cwd=folder, env=clean | environment, capture_output=True, encoding="utf-8", check=False
    )
    cases = ElementTree.parse(folder / "out.xml").iter("testcase")
    return ended.stdout + ended.stderr, {
        each.attrib["name"]: "".join(failed.text or "" for failed in each if failed.tag in ("failure", "error"))
        for each in cases
    }


def project(folder: Path, tests: str = TESTS) -> Path:
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    (folder / "test_masks.py").write_text(tests, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the tests above fail with."""
    return run_pytest(project(tmp_path_factory.mktemp("project")))[1]


def line_of(text: str, line: str) -> int:
    return text.splitlines().index(line) + 1


def message(failure: str) -> list[str]:
    """The lines of an error as pytest shows it."""
    return [line.removeprefix("E").strip() for line in failure.splitlines() if line.startswith("E ")]


def map_of(lines: Sequence[str], size: int) -> list[list[str]]:
    """The cells of the map in a message, two characters each."""
    start = next(index for index, line in enumerate(lines) if line.startswith("0 ") and set(line[2:]) <= set("░AB· "))
    rows = [line.partition(" ")[2].removeprefix(" ").ljust(2 * size) for line in lines[start : start + size]]
    return [[row[2 * key : 2 * key + 2].strip() for key in range(size)] for row in rows]


def test_right_masks_pass_and_nothing_else(failures: dict[str, str]) -> None:
    assert {name for name, failed in failures.items() if not failed} == RIGHT


def test_a_failure_says_where_what_and_draws_the_wrong_cells(failures: dict[str, str]) -> None:
    failed = failures["test_padding_is_seen"]
    lines = message(failed)
    assert lines[0] == "AssertionError: attention is not pad"
    line = line_of(MODEL, "        return scaled_dot_product_attention(q, k, v, attn_mask=mask)"
                          ".transpose(1, 2).flatten(2)")  # fmt: skip
    where = f"model.py:{line} Block.forward"
    text_shown, made = lines[1].split("; ")
    assert text_shown == f"{where} (layers.0-1): pad: attends to padding in 8 cells, in batch row 1"
    assert made == f"mask made at model.py:{line_of(MODEL, PADDED)}"
    assert f"{where} (layers.0)" in lines
    # What the queries of padding see is no matter.
    wrong = [["AA" if query < 2 <= key else "░░" for key in range(6)] for query in range(6)]
    assert map_of(lines, 6) == wrong
    assert lines[-1] == "A only the call, batch row 1: 8 cells   ░ both   · neither"
    assert "\x1b" not in failed
    assert failed.rstrip().endswith(
        f"test_masks.py:{line_of(TESTS, '    Model()(padded([6, 2]))') + 1}: AssertionError"
    )
    assert "pytest_plugin" not in failed.partition("\n\n")[2], "it ends at the line of the test"


def test_without_torch_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('import sys\nsys.modules["torch"] = None\n', encoding="utf-8")
    text_shown, failures = run_pytest(project(tmp_path, "def test(attention): pass\ndef test_other(): pass"))
    sentence = f"the fixture attention needs torch, which is not installed: {install_command('torch')}"
    assert failures["test"].strip().endswith(sentence)
    assert len(failures["test"].strip().splitlines()) == 1
    assert "1 passed, 1 error" in text_shown


def test_it_is_there_and_costs_nothing() -> None:
    requests = (
        "import sys, pytest\n"
        "from importlib.metadata import entry_points\n"
        "(plugin,) = entry_points(group='pytest11', name='attncli')\n"
        "before = set(sys.modules)\n"
        "plugin.load()\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    printed = subprocess.run([sys.executable, "-c", requests], capture_output=True, encoding="utf-8", check=True).stdout
    assert printed.split() == ["attncli", "attncli.cli", "attncli.cli.pytest_plugin"]
