"""`--jobs`: many processes write what one writes, whatever happens to them, and none of them outlives the run."""

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from signalled import ATTN
from small_checkpoints import minilm_folder
from threadpoolctl import threadpool_limits

Run = Callable[..., Any]

WORDS = "time flies like an arrow fruit banana a the cat".split()


@pytest.fixture(autouse=True)
def on_one_core() -> Iterator[None]:
    """NumPy multiplies on one core, as it does in the program."""
    with threadpool_limits(1):
        yield


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Sentences of which some are bad, one is empty, and some are warned of."""
    drawn, path = random.Random(0), tmp_path / "corpus.jsonl"
    texts = [" ".join(drawn.choices(WORDS, k=drawn.randint(1, 6))) for _ in range(70)]
    texts[4], texts[33] = " ", "\ud800"
    texts[20] = "zyzzyva \u2603"
    lines = [json.dumps({"text": text}) for text in texts]
    lines[50] = '{"other": "time flies"}'
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["heads", "-F", "tsv"],
        ["inspect", "-F", "tsv", "--norms", "--words", "-m", "demo"],
        ["inspect", "-F", "csv", "--query", "1", "--mask", "~full"],
        ["tokens", "-F", "tsv"],
    ],
    ids=" ".join,
)
def test_many_processes_write_what_one_writes(attn: Run, corpus: Path, arguments: list[str]) -> None:
    alone = attn(*arguments, "--file", corpus, "--jobs", "1")
    assert alone.code == 5
    ran = attn(*arguments, "--file", corpus, "-j", "3")
    assert (ran.code, ran.out) == (alone.code, alone.out)
    # What is skipped is noted once all of it is read, which is earlier where others work.
    err, expected = (sorted(one.err.splitlines(), key=lambda line: "skipped" in line) for one in (ran, alone))
    assert err == expected


def workers_of(pid: int) -> list[int]:
    """Return the processes that work for a run."""
    with suppress(OSError):  # one of them has just ended
        tasks = [(task / "children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
        return [int(one) for own in tasks for one in own if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
    return []


def running(path: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Return a run that waits for somebody to read on, and its workers."""
    arguments = [*ATTN, "inspect", "-m", minilm_folder(), "--file", str(path), "-F", "tsv", "-j", "2"]
    run = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert run.stdout is not None
    run.stdout.read(2**20)
    while len(workers := workers_of(run.pid)) < 2:
        time.sleep(0.01)
    return run, workers


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """More sentences than a run that nobody reads gets done."""
    path = tmp_path / "long.txt"
    path.write_text("time flies like an arrow\n" * 50_000)
    return path


@pytest.mark.usefixtures("signals_arrive")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, None])
def test_no_worker_outlives_the_run(long: Path, number: signal.Signals | None) -> None:
    run, workers = running(long)
    assert run.stdout is not None
    assert run.stderr is not None
    if number is None:  # nobody reads any more
        run.stdout.close()
    elif number is signal.SIGINT:  # which a terminal sends to all of them
        os.killpg(run.pid, number)
    else:
        run.kill()
    assert run.wait(60) == {None: 141, signal.SIGKILL: -9}.get(number, 128 + (number or 0))
    message = run.stderr.read().decode()
    assert (
        message == ""
        if number in (None, signal.SIGKILL)
        else re.fullmatch(r"attn: stopped after [\d,]+ of 50,000 sentences\n", message)
    )
    deadline = time.monotonic() + 60
    while any(_is_alive(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run.stdout.close()
    run.stderr.close()


def _is_alive(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
