"""`attn run` as a user runs it: the program as it is, and its attention beside it."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from running import program
from whole_program import forked

FINDINGS, USAGE, INPUT = 1, 2, 5

MODEL = """\
import torch
import torch.nn.functional as F
from torch import nn

KEEP = torch.arange(8) < torch.tensor([8, 5, 2])[:, None]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def attend(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def forward(self, x):
        return x + self.attend(x)


class Pooler(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, 16))
        self.attn = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        return self.attn(self.query.expand(len(x), -1, -1), x, x, key_padding_mask=~KEEP)[0]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.pooler = nn.ModuleList(Block() for _ in range(3)), Pooler()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.pooler(x)
"""

TRAIN = """\
import sys
import torch
from model import Model

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.randn(3, 8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item().hex())
print(*sys.argv[1:], sys.stdin.read())
sys.exit(len(sys.argv) - 1)
"""


@pytest.fixture
def train(folder: Path) -> Path:
    """A folder with a model and its training."""
    (folder / "model.py").write_text(MODEL)
    (folder / "train.py").write_text(TRAIN)
    return folder


def python(*arguments: str, stdin: str = "", by: str = "python") -> subprocess.CompletedProcess[str]:
    return subprocess.run([by, *arguments], input=stdin, capture_output=True, text=True, check=False)


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked("run", *arguments, **environment)


def table(ran: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """The cells of the rows of a table on stderr, in which two blanks stand between them."""
    lines = ran.stderr.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("place  "))
    rows = itertools.takewhile(bool, lines[first + 1 :])
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in rows]


@pytest.mark.usefixtures("warm")
def test_the_program_is_as_it_is_and_the_table_stands_on_stderr(train: Path) -> None:
    arguments = ("train.py", "--epochs", "1", "-F", "x")
    ran, alone = program("run", *arguments, python="python", input="told"), python(*arguments, stdin="told")
    assert (ran.stdout, ran.returncode) == (alone.stdout, alone.returncode)
    assert ran.returncode == 4
    assert ran.stdout.splitlines()[-1] == "--epochs 1 -F x told"
    assert table(ran) == [
        ["model.py:15", "layers.0-2", "12", "sdpa", "2", "8×8", "causal", "ok"],
        ["model.py:28", "pooler.attn", "4", "mha", "2", "1×8", "pad (rows 1-2 of 3)", "ok"],
    ]
    assert "2 places, 16 calls, " in ran.stderr


@pytest.mark.parametrize(
    "arguments", [("--expect", "causal"), ("a", "--expect=causal"), ("--epochs", "2", "--no-fail")]
)
def test_an_option_behind_the_program_is_told_to_have_gone_to_it(train: Path, arguments: tuple[str, ...]) -> None:
    ran = run("train.py", *arguments)
    own = next(one.partition("=")[0] for one in arguments if one.startswith(("--expect", "--no-fail")))
    assert f"attn: {own} went to the program; write options of attn run before it" in ran.stderr
    assert ran.stdout.splitlines()[-1].startswith(" ".join(arguments))
    assert "went to the program" not in run("--expect", "pad", "train.py", "--epochs", "1", "-F", "x").stderr


def test_the_document(train: Path) -> None:
    ran = run("-F", "json", "-o", "calls.json", "train.py")
    assert ran.stderr == ""
    document = json.loads(Path("calls.json").read_text())
    assert set(document) == {"schema", "places", "seconds", "notes", "rank", "ranks"}
    assert document["rank"] is None
    assert document["schema"] == "attncli.calls/1"
    assert document["seconds"] > 0
    blocks, pooler = document["places"][:3], document["places"][3]
    assert [one["module"] for one in blocks] == ["layers.0", "layers.1", "layers.2"]
    assert pooler == {
        "place": "model.py:28", "function": "Pooler.forward", "module": "pooler.attn", "api": "mha", "calls": 4,
        "batch": 3, "heads": 2, "queries": 1, "keys": 8,
        "sizes": {"batch": [3, 3], "heads": [2, 2], "queries": [1, 1], "keys": [8, 8]},
        "dtype": "float32", "mask": "pad (rows 1-2 of 3)", "expected": None, "checked": True,
        "findings": [],
    }  # fmt: skip
    refused = run("-o", "calls.tsv", "train.py")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "tsv is a format of attention over training; give --every N, or -F json" in refused.stderr


def test_expect_ends_with_1_where_a_call_is_not_as_expected(train: Path) -> None:
    right = run("--expect", "causal", "--place", "Block.*", "train.py")
    assert right.returncode == 0, right.stderr
    wrong = run("--expect", "full", "--place", "Block.*", "train.py")
    assert wrong.returncode == FINDINGS
    assert wrong.stdout == right.stdout
    assert "error  missing  misses an allowed key in 28 cells" in wrong.stderr
    line = MODEL.splitlines()[14].strip()
    assert f"--> model.py:15 in Block.attend (layers.0-2)\n  15 | {line}\n28 of 64 cells differ" in wrong.stderr
    save, show = (line.strip() for line in wrong.stderr.partition("more: ")[2].splitlines()[:2])
    assert save == "attn run --place model.py:15 --save calls train.py"
    assert show == "attn mask show --from calls/01-model.py-15-row0.safetensors"
    for command in (save, show):  # without --expect nothing is wrong there
        assert forked(*command.split()[1:]).returncode == 0
    assert run("--expect", "full", "--no-fail", "train.py").returncode == 0
    assert run("--expect", "pad", "--place", "*.attn", "train.py").returncode == 0
    failed = run("--expect", "full", "train.py", "a", "b", "c")
    assert failed.returncode == 3  # the program's own


def test_expect_takes_the_mask_of_each_place(train: Path) -> None:
    right = run("--expect", "Block.*=causal", "--expect", "pooler.*=pad", "train.py")
    assert right.returncode == 0, right.stderr
    assert [cells[-1] for cells in table(right)] == ["ok", "ok"]
    wrong = run("--expect", "causal", "--expect", "pooler.*=pad(left=1)", "train.py")
    assert wrong.returncode == FINDINGS
    assert "attends to padding" in wrong.stderr
    some = run("--expect", "pooler.*=pad", "-F", "json", "train.py")
    assert some.returncode == 0
    places = json.loads(some.stderr)["places"]
    assert [one["expected"] for one in places] == [None, None, None, "pad"]
    assert [one["checked"] for one in places] == [False, False, False, True]


def test_steps_end_the_program(train: Path) -> None:
    ran = run("--steps", "2", "train.py", "a")
    assert ran.returncode == 0
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["0"]  # the second ends before it is printed
    assert [row[2] for row in table(ran)] == ["6", "2"]


WRONG = """\
import torch
import torch.nn.functional as F

q = torch.randn(1, 2, 3, 4)
k = torch.randn(1, 2, 8, 4)
F.scaled_dot_product_attention(q, k, k, is_causal=True)
"""


def test_an_error_ends_with_1_unless_the_program_keeps_its_code(folder: Path) -> None:
    (folder / "wrong.py").write_text(WRONG)
    ran = run("wrong.py")
    assert ran.returncode == FINDINGS
    assert table(ran) == [["wrong.py:6", "1", "sdpa", "2", "3×8", "causal, aligned top-left", "1 error"]]
    assert "error  shape  is_causal aligns 3 queries and 8 keys top-left" in ran.stderr
    assert run("--no-fail", "wrong.py").returncode == 0
    saved = run("--save", "calls", "wrong.py")
    command = saved.stderr.partition("more: attn ")[2].splitlines()[0]
    assert forked(*command.split()).returncode == 0


def test_a_program_that_fails_is_reported_until_then(folder: Path) -> None:
    (folder / "fails.py").write_text(WRONG + "raise ValueError('no')\n")
    ran, alone = program("run", "fails.py"), python("fails.py", by=sys.executable)
    assert ran.returncode == alone.returncode == 1
    assert ran.stderr.startswith(alone.stderr)
    assert len(table(ran)) == 1


def test_files_are_where_the_program_began(train: Path) -> None:
    (train / "elsewhere").mkdir()
    (train / "train.py").write_text("import os\n" + TRAIN.replace("sys.exit", "os.chdir('elsewhere'); sys.exit"))
    ran = run("-o", "calls.json", "--save", "saved", "train.py")
    assert ran.returncode == 0, ran.stderr
    assert json.loads((train / "calls.json").read_text())["places"]
    names = sorted(path.name for path in (train / "saved").iterdir())
    assert names == [
        f"0{number}-model.py-{place}-row{row}.safetensors"
        for number, place in ((1, "15"), (2, "28"))
        for row in range(3)
    ]
    shown = forked("inspect", "--from", "saved/01-model.py-15-row1.safetensors", "--layer", "2")
    assert shown.returncode == 0, shown.stderr
    assert "mask causal" in shown.stdout


def test_no_attention_is_said_with_what_was_looked_for(folder: Path) -> None:
    (folder / "none.py").write_text("print('hello')")
    ran = run("none.py")
    assert (ran.returncode, ran.stdout) == (0, "hello\n")
    note, headline = ran.stderr.splitlines()
    assert note.startswith("attn: no attention was seen. attn looks for scaled_dot_product_attention, nn.Multihead")
    assert headline.startswith("0 places, 0 calls, ")
    assert run("--expect", "causal", "none.py").returncode == FINDINGS
    (quiet,) = run("--quiet", "none.py").stderr.splitlines()
    assert quiet.startswith("0 places, 0 calls, ")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), USAGE, "give a program: attn run train.py, or"),
        (("--expect", "casual", "none.py"), USAGE, "did you mean 'causal'?"),
        (("--expect", "pad", "--expect", "a.*=casual", "none.py"), USAGE, "did you mean 'causal'?"),
        (("--expect", "=causal", "none.py"), USAGE, "'=causal' has no pattern before the '='"),
        (("--steps", "0", "none.py"), USAGE, "'--steps': expected at least 1"),
        (("-o", "calls.svg", "none.py"), USAGE, "give --every N, or -F json"),
        (("--save", "none.py", "none.py"), INPUT, "--save none.py: a file; --save takes a folder"),
    ],
)
def test_bad_requests_run_nothing(folder: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    (folder / "none.py").write_text("print('hello')")
    ran = run(*arguments)
    assert ran.stdout == ""
    assert ran.returncode == code
    assert len(ran.stderr.splitlines()) == 1
    assert message in ran.stderr
