"""`attn run --every` as a user runs it: a table that grows, warnings, a picture, and an exit code."""

import csv
import json
import os
import random
import re
import signal
import subprocess
from pathlib import Path

import pyarrow.parquet
import pytest
from running import on_terminal
from whole_program import forked

FINDINGS, USAGE, INPUT = 1, 2, 5
PROGRAMS = Path(__file__).parents[1] / "live" / "programs"
TRAIN = f"""\
import os, signal, sys, threading
sys.path.insert(0, {str(PROGRAMS)!r})
import training
name, rate, steps = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
model = training.gpt()
if name.startswith("killed"):
    threading.Timer(float(name.split()[-1]), os.kill, (os.getpid(), signal.SIGKILL)).start()
if name == "ranked":
    os.environ |= {{"RANK": "1", "WORLD_SIZE": "2"}}
for step, loss in training.trained(model, training.next_words(model, steps, length=12), rate):
    os.write(1, b"%d\\n" % step)
    if name == "full" and step == 2:
        import resource
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = max(os.path.getsize(each) for each in os.listdir() if each.startswith("x."))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
    if name == "full" and step == 5:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if name == "fails" and step == 3:
        raise SystemExit(7)
"""


@pytest.fixture
def train(folder: Path) -> Path:
    """A program that trains, and prints the number of each step that has ended."""
    (folder / "train.py").write_text(TRAIN)
    return folder


def run(
    *arguments: str | Path, steps: int = 6, name: str = "goes", **environment: str
) -> subprocess.CompletedProcess[str]:
    return forked("run", *arguments, "train.py", name, "0.001", str(steps), **environment)


def rows_of(path: Path) -> list[dict[str, object]]:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    text = path.read_text()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return [*csv.DictReader(text.splitlines(), delimiter="\t" if path.suffix == ".tsv" else ",")]


@pytest.mark.parametrize("file", ["stats.jsonl", "stats.csv", "stats.tsv", "stats.parquet", "stats/"])
def test_a_table_has_a_row_for_each_head_and_step(file: str, train: Path) -> None:
    ran = run("--every", "2", "-o", file)
    assert (ran.returncode, ran.stdout) == (0, "1\n2\n3\n4\n5\n6\n")
    path = train / file
    (only,) = [path] if path.is_file() else path.iterdir()
    assert sorted(one.name for one in only.parent.iterdir() if one.name.startswith(("stats", "rank"))) == [only.name]
    rows = rows_of(only)
    places = [(str(row["step"]), row["module"], str(row["head"]), str(row["rank"])) for row in rows]
    modules = ("blocks.0.attention", "blocks.1.attention")
    assert places == [(s, m, str(h), "0") for s in ("1", "2", "4", "6") for m in modules for h in range(4)]
    assert all(0 < float(str(row["entropy"])) < 2 < float(str(row["effective_keys"])) < 6.5 for row in rows)
    assert all(str(row["place"]).endswith("training.py:25") and float(str(row["keys"])) == 6.5 for row in rows)
    assert "4 of 6 optimizer steps measured · 8 heads" in ran.stderr


def test_a_warning_is_a_line_as_it_comes_and_an_exit_code_on_request(train: Path) -> None:
    arguments = ("--every", "2", "--warn", "rank>0"), ("--every", "2", "--warn", "effective_keys>1, sink<0")
    assert run(*arguments[0]).returncode == USAGE
    assert run(*arguments[1]).returncode == 0
    ran = run(*arguments[1], "--fail")
    assert ran.returncode == FINDINGS
    place = r"\(blocks.0.attention, \S*training.py:25\)"
    expected = rf"attn: warning: step 1: layer 0 heads 0-3: effective_keys [\d.]+ to [\d.]+, above 1 {place}"
    assert re.match(expected, ran.stderr)
    assert len(re.findall("attn: warning", ran.stderr)) == 2  # the other is of layer 1; of later steps there is none
    assert run("--every", "2", "--fail").returncode == 0
    assert run(*arguments[1], "--fail", name="fails").returncode == 7


@pytest.mark.parametrize("ending", ["svg", "html", "md", "txt"])
def test_a_picture_shows_every_head_over_all_steps(ending: str, train: Path) -> None:
    ran = run("--every", "1", "-o", f"x.{ending}")
    text = (train / f"x.{ending}").read_text()
    names = re.findall(r"L\dH\d", text)
    assert sorted(names) == sorted([f"L{layer}H{head}" for layer in (0, 1) for head in range(4)] * 7)
    assert "measured" in text
    assert "similarity" in text
    assert ran.stderr == ""


def test_the_strip_has_a_cell_for_each_step_in_the_order_of_numbers(train: Path) -> None:
    run("--every", "1", "-o", "x.jsonl")
    ran = run("--every", "1", "--color", "never", steps=6)
    rows = [row for row in rows_of(train / "x.jsonl") if (row["layer"], row["head"]) == (0, 0)]
    line = next(line for line in ran.stderr.splitlines() if line.startswith("L0H0"))
    shades = line.split()[1]
    assert len(shades) == 6 * 4
    scores = [row["max_score"] for row in rows]
    drawn = ["░▒▓█".index(shades[4 * at]) for at in range(6)]
    assert [drawn[a] <= drawn[b] for a in range(6) for b in range(6) if scores[a] < scores[b]].count(False) == 0
    assert line.split()[2:] == [f"{scores[0]:.2f}", f"{scores[-1]:.2f}"]


def test_the_title_of_a_terminal_follows_the_measured_steps(train: Path) -> None:
    code, _, shown = on_terminal("run", "--every", "2", "train.py", "goes", "0.001", "4")
    titles = re.findall(r"\x1b\]0;step (\d) · max_score [\d.]+ · entropy [\d.]+\x07", shown)
    assert (code, titles) == (0, ["1", "2", "4"])


def test_each_rank_writes_its_own_part(train: Path) -> None:
    for rank in "01":
        ran = run("--every", "6", "-o", "x.csv", RANK=rank, WORLD_SIZE="2")
        assert ("2 of 6 optimizer steps" in ran.stderr) == (rank == "0")
        assert {row["rank"] for row in rows_of(train / f"x.rank{rank}.csv")} == {rank}


@pytest.mark.parametrize(
    ("file", "own", "other"), [("x.csv", "x.rank1.csv", "x.csv"), ("x/", "x/rank-1.csv", "x/rank-0.csv")]
)
def test_a_rank_that_is_known_late_writes_its_own_file_alone(file: str, own: str, other: str, train: Path) -> None:
    (train / other).parent.mkdir(exist_ok=True)
    (train / other).write_text("of another process")
    assert run("--every", "6", "-o", file, "-F", "csv", name="ranked").stderr == ""
    assert (train / other).read_text() == "of another process"
    assert {row["rank"] for row in rows_of(train / own)} == {"1"}
    assert len([path for path in train.rglob("*.csv") if path.is_file()]) == 2


@pytest.mark.parametrize("file", ["x.csv", "x.parquet"])
def test_a_link_is_followed_and_an_earlier_table_is_overwritten(file: str, train: Path) -> None:
    (train / "earlier").write_text("of an earlier run")
    (train / file).symlink_to("earlier")
    assert run("--every", "6", "-o", file).returncode == 0
    assert (train / file).is_symlink()
    assert len(rows_of(train / file)) == 16
    assert (train / "earlier").stat().st_size > 1000


def test_a_pipe_gets_the_rows(train: Path) -> None:
    os.mkfifo(train / "x.csv")
    reader = os.open(train / "x.csv", os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(reader) as pipe:
        assert run("--every", "6", "-o", "x.csv", name="ranked", steps=6).returncode == 0
        assert len(pipe.read().splitlines()) == 17
    assert [path.name for path in train.glob("x*")] == ["x.csv"]


@pytest.mark.parametrize("file", ["x.csv", "x.jsonl", "x.parquet"])
def test_a_full_disk_leaves_whole_steps_and_fails(file: str, train: Path) -> None:
    (train / "x.parquet").touch()  # of an earlier run
    ran = run("--every", "1", "-o", file, "--fail", name="full")
    assert (ran.returncode, ran.stdout) == (FINDINGS, "1\n2\n3\n4\n5\n6\n")
    assert "the table ends before step 3" in ran.stderr
    path = train / {"x.parquet": "x.parquet.jsonl"}.get(file, file)
    assert [int(str(row["step"])) for row in rows_of(path if path.exists() else train / file)] == [1] * 8 + [2] * 8


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--every", "0"], USAGE, "expected at least 1"),
        (["--every", "2", "--warn", "sinks>1"], USAGE, "did you mean 'sink'?"),
        (["--every", "2", "--warn", "sink"], USAGE, "expected METRIC>NUMBER or METRIC<NUMBER"),
        (["--warn", "sink>1"], USAGE, "give --every N"),
        (["--fail"], USAGE, "give --every N"),
        (["--every", "2", "--expect", "causal"], USAGE, "--every, which checks no mask"),
        (["--every", "2", "-F", "json"], USAGE, "give -o stats.jsonl"),
        (["-o", "x.svg"], USAGE, "give --every N"),
        (["--every", "2", "-o", "no/x.csv"], INPUT, "mkdir -p no"),
    ],
)
def test_what_does_not_fit_is_one_sentence(arguments: list[str], code: int, message: str, train: Path) -> None:
    ran = run(*arguments)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert message in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_program_without_attention_is_told(folder: Path) -> None:
    (folder / "train.py").write_text("import torch\n")
    assert "no attention was measured" in run("--every", "2").stderr
    assert run("--every", "2", "--fail").returncode == FINDINGS


@pytest.mark.parametrize("moment", range(10))
def test_a_killed_run_has_every_step_that_ended(moment: int, train: Path) -> None:
    file = ("x.jsonl", "x.csv", "x.parquet")[moment % 3]
    delay = random.Random(moment).uniform(0.02, 0.3)
    ran = run("--every", "1", "-o", file, name=f"killed after {delay}", steps=10**6)
    assert ran.returncode == -signal.SIGKILL
    growing = train / {"x.parquet": "x.parquet.jsonl"}.get(file, file)
    ended, rows = len(ran.stdout.splitlines()), rows_of(growing) if growing.exists() else []
    steps = [int(str(row["step"])) for row in rows]
    assert steps[: 8 * ended] == [step for step in range(1, ended + 1) for _ in range(8)]
    assert len(steps) - 8 * ended in (0, 8)
    assert not (train / "x.parquet").exists()
