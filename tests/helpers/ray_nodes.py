"""Kill processes and a node of a Ray cluster in the middle of a run, and compare its result with that of one process.

    python tests/helpers/ray_nodes.py sentences.txt --model demo --kills 25

It starts two nodes here, with a processor each: `ray start --head` and `ray start --address`. While the metrics of all
heads over the sentences are computed on them, the second node is killed (SIGKILL of its raylet) after a third of the
sentences, another one joins, and processes that compute are killed at random moments.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from typing import Any

from attncli.corpus.reading import Corpus
from attncli.corpus.surveying import Surveying
from attncli.corpus.tracing import Tracing
from attncli.corpus.work import Answer, in_windows

from attncli.analysis.heads import SurveyStates
from attncli.corpus import local, on_ray
from attncli.trace.view import View

PORT = 6399
RAY = Path(sys.executable).with_name("ray")


class Nodes:
    """A cluster of processes on this machine, whose files are in a folder of its own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.address = self._start("--head", f"--port={PORT}", "--include-dashboard=false", "--disable-usage-stats")

    def _start(self, *options: str) -> str:
        limits = ["--num-cpus=1", f"--object-store-memory={2**28}", f"--temp-dir={self._folder}"]
        subprocess.run([RAY, "start", *options, *limits], check=True, capture_output=True)
        return f"127.0.0.1:{PORT}"

    def join(self) -> None:
        """Start one more node."""
        self._start(f"--address={self.address}")

    def raylets(self) -> list[int]:
        """Return the processes that are the nodes, the oldest first."""
        return sorted(pid for pid, line in processes() if "raylet/raylet" in line and self._folder in line)

    def workers(self) -> list[int]:
        """Return the processes that compute."""
        raylets = self.raylets()
        return [pid for pid, line in processes() if line.startswith("ray::MapWorker") and parent(pid) in raylets]

    def stop(self) -> None:
        """End all of it."""
        for pid, line in processes():
            if self._folder in line and pid != os.getpid():
                kill(pid)


def processes() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # it has ended
                continue


def parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class Killing:
    """What happens to the cluster while it works."""

    def __init__(self, nodes: Nodes, kills: int, every: float, seed: int) -> None:
        self._nodes, self._left, self._every = nodes, kills, every
        self._random = random.Random(seed)
        self._is_over = Event()
        self._killing = Thread(target=self._kill, daemon=True)
        self.killed = self.lost = 0

    def lose_a_node(self) -> None:
        """Kill the second node, and let another one join, which is the machine that an autoscaler brings."""
        self.lost += kill(self._nodes.raylets()[-1])
        Thread(target=self._nodes.join, daemon=True).start()

    def begin(self) -> None:
        self._killing.start()

    def end(self) -> None:
        self._is_over.set()
        self._killing.join()

    def _kill(self) -> None:
        while self._left and not self._is_over.wait(self._random.uniform(0.2, 2) * self._every):
            if workers := self._nodes.workers():
                self.killed += (is_killed := kill(self._random.choice(workers)))
                self._left -= is_killed


def merged(answers: Iterable[Answer[Any]], at: int = 0, then: Any = None) -> tuple[str, int]:
    """Return what tells the result from another one, and how many sentences it is of."""
    whole, failures = None, []
    for answer in answers:
        if isinstance(answer.result, SurveyStates):
            whole = answer.result if whole is None else whole.merged(answer.result)
        elif answer.result is not None:
            failures.append(answer[:2])
        if then and answer.number >= at:
            then = then()
    assert whole is not None
    (survey,) = whole.surveys()
    return sha256(repr((survey, failures)).encode()).hexdigest(), survey.sentences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--kills", type=int, default=0, help="of processes that compute")
    parser.add_argument("--every", type=float, default=4, help="seconds between two of them, on average about")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    corpus = Corpus.of(asked.file)
    work = Tracing(Surveying(View()), {"model": asked.model, "layers": "all", "values": False})
    last = corpus.last_number() or 0

    began = time.perf_counter()
    here = merged(local.answered(work, in_windows(corpus.sentences()), 1))
    print(f"one process: {here[1]} sentences in {time.perf_counter() - began:.0f} s, sha256 {here[0][:16]}", flush=True)

    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # short: sockets are in it
        nodes = Nodes(folder)
        try:
            nodes.join()
            killing = Killing(nodes, asked.kills, asked.every, asked.seed)
            killing.begin()
            began = time.perf_counter()
            answers = on_ray.answered(work, corpus, in_windows, address=nodes.address)
            there = merged(answers, last // 3, killing.lose_a_node)
            seconds = time.perf_counter() - began
            killing.end()
        finally:
            nodes.stop()
    lost = f"{killing.lost} node and {killing.killed} processes killed"
    print(f"two nodes, {lost}: {there[1]} sentences in {seconds:.0f} s, sha256 {there[0][:16]}")
    if there != here:
        sys.exit("the results differ")
    print("the results are equal")


if __name__ == "__main__":
    main()
