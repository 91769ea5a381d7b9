"""How long whole processes take, and how much memory, beside a floor or a peer measured in the same run.

    python benchmarks/run.py [TABLE]... [--rounds N] [--keep FOLDER] [--peers FOLDER]

prints BENCHMARKS.md, or the part of it that asks for the named tables (``native`` names all that begin with it). The
commands of a table run in turn, A B C A B C …, so that a machine whose speed drifts slows them alike; the medians are
compared. The exit code is 1 if something is over its target, or if other programs used the processor meanwhile. The
peers, other tools with environments of their own, are measured where ``--peers FOLDER`` has FOLDER/bertviz; how to make
one stands in its script.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cases import QUESTIONS, Case, Material

QUIET = 0.03  # of the processor that other programs may use before a figure is about them too
HEAD, ANSWERS, TAIL = re.split(r"\{\w+\}\n", (Path(__file__).parent / "page.md").read_text(encoding="utf-8"))


@dataclass
class Timings:
    """The rounds of one command, and why there are no more of them, if it failed."""

    seconds: list[float] = field(default_factory=list)
    worked: list[float] = field(default_factory=list)
    """The seconds of the processor, its own and its children's."""
    megabytes: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    """The seconds of the processor up to the end of a program's first step, where it tells them."""
    failure: str = ""


def once(case: Case, material: Material, result: Timings, counts: bool) -> None:
    """Run a command and add what it took to its result.

    The peak of a child starts at that of the process it was forked from: this one has to stay small.
    """
    written = material.folder / "out"
    written.mkdir(exist_ok=True)
    with open(written / "stdout", "wb") as stdout, open(written / "stderr", "wb") as stderr:
        start = time.perf_counter()
        # In a folder without a pyproject.toml that speaks of attncli, as the one of this project does.
        process = subprocess.Popen(case.command, stdout=stdout, stderr=stderr, env=material.environment, cwd=written)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        lines = (written / "stderr").read_text(errors="replace").strip().splitlines()
        result.failure = f"exit code {process.returncode}: {lines[-1] if lines else ''}".replace("|", "/")
    elif counts:
        if case.has_start:
            *_, start, steps = (written / "stdout").read_text().split()
            result.starts.append(float(start))
            seconds = float(steps)
        result.seconds.append(seconds)
        result.worked.append(usage.ru_utime + usage.ru_stime)
        result.megabytes.append(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6)
    for file in written.iterdir():
        file.unlink()


def measured(cases: list[Case], material: Material, rounds: int, is_warmed: bool) -> list[Timings]:
    results = [Timings() for _ in cases]
    for number in range(0 if is_warmed else 1, rounds + 1):
        for case, result in zip(cases, results, strict=True):
            if not result.failure:
                once(case, material, result, counts=number > 0)
    return results


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def limit(value: float, target: float | None, unit: str) -> tuple[str, bool]:
    """Return how a target is written, and whether the value is over it."""
    return ("", False) if target is None else (f"≤ {target:.{3 if unit == '×' else 5}g}{unit}", value > target)


def table(name: str, cases: list[Case], results: list[Timings]) -> int:
    """Print a table; return how many of its commands failed or took too much."""
    loaded = next((median(result.megabytes) for case, result in zip(cases, results, strict=True) if case.is_loaded), 0)
    first_seconds, first_megabytes = median(results[0].seconds), median(results[0].megabytes)
    heads = [name, "median", "min..max", "ratio", "target", "peak memory", "compared", "target"]
    if counts := any(case.sentences for case in cases):
        heads += ["processor, a sentence", "target"]
    print("\n| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    over = 0
    for case, result in zip(cases, results, strict=True):
        if result.failure:
            over += 1
            print(f"| {case.name} | {result.failure} |" + " |" * (len(heads) - 2))
            continue
        seconds, megabytes = median(result.seconds), median(result.megabytes)
        time_target, slow = limit(seconds / first_seconds, case.time, "×")
        if case.added is not None:
            time_target, slow = limit(seconds - first_seconds, case.added, " s more")
        if case.beside_loaded is None:
            memory = f"{megabytes / first_megabytes:.2f}×"
            memory_target, big = limit(megabytes / first_megabytes, case.memory, "×")
        else:
            memory = f"loaded {megabytes - loaded:+.0f} MB"
            memory_target, big = limit(megabytes - loaded, case.beside_loaded, " MB")
        over += slow or big
        name = case.name + f", whose start takes {median(result.starts):.2f} s" * case.has_start
        cells = [name, f"{seconds:.3f} s", f"{min(result.seconds):.3f}..{max(result.seconds):.3f}"]
        cells += [f"{seconds / first_seconds:.2f}×", time_target + " **over**" * slow]
        cells += [f"{megabytes:.0f} MB", memory, memory_target + " **over**" * big]
        if counts:
            each = 1000 * median(result.worked) / case.sentences
            each_target, busy = limit(each, case.each, " ms")
            over += busy
            cells += [f"{each:.2f} ms", each_target + " **over**" * busy]
        print("| " + " | ".join(cells) + " |")
    sys.stdout.flush()
    return over


def machine() -> str:
    """Return the machine and the day, for a reader who compares."""
    names = re.findall(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"Machine: {len(names)} cores of {names[0]}, {memory:.0f} GB, {platform.system()}, "
        f"Python {platform.python_version()}. Date: {datetime.date.today()}."
    )


@contextmanager
def alone(title: str) -> Iterator[list[float]]:
    """Measure the share of the processor that other programs use meanwhile, and put it into the list."""
    share: list[float] = []
    start, busy, own = time.perf_counter(), _busy(), _own()
    yield share
    seconds = (time.perf_counter() - start) * (os.cpu_count() or 1)
    share.append(max(0.0, (_busy() - busy) - (_own() - own)) / seconds)
    if share[0] > QUIET:
        print(f"{title} Other programs used {share[0]:.0%} of the processor: measure again", file=sys.stderr)


def _busy() -> float:
    """Return the seconds that all processors of the machine have worked, or were kept from this machine."""
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    """Return the seconds that this process and the commands have worked."""
    return sum(os.times()[:4])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("table", nargs="*", help="its name, or what several begin with (default: all)")
    parser.add_argument("--rounds", type=int, help="of every command (default: what the question has)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the checkpoints stay for the next run")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="where the environments of other tools are")
    arguments = parser.parse_args()
    every = [name for question in QUESTIONS for name in question.tables]
    wanted = {name for name in every if not arguments.table or name.startswith(tuple(arguments.table))}
    if not wanted and "keys" not in arguments.table:
        parser.error(f"no such table; there are {', '.join(every)}, keys")
    print(f"{HEAD}{machine()}")
    over = 0
    with tempfile.TemporaryDirectory() as folder:
        keep = Path(folder) if arguments.keep is None else arguments.keep.resolve()
        keep.mkdir(parents=True, exist_ok=True)
        material = Material(Path(folder), keep, arguments.peers and arguments.peers.resolve())
        for question in QUESTIONS:
            tables = {name: made(material) for name, made in question.tables.items() if name in wanted}
            if not tables:
                continue
            rounds = arguments.rounds or question.rounds
            print(f"\n## {question.title}\n\n{question.text} Rounds: {rounds}.")
            with alone(question.title) as others:
                for name, cases in tables.items():
                    over += table(name, cases, measured(cases, material, rounds, question.is_warmed))
            print(f"\nOther programs used {others[0]:.1%} of the processor.")
            over += others[0] > QUIET
        if not arguments.table or "keys" in arguments.table:
            print(ANSWERS, flush=True)
            with alone("keys") as others:
                keys = [sys.executable, str(Path(__file__).with_name("keys.py")), "--keep", str(keep)]
                over += subprocess.run(keys, check=False).returncode
            print(f"\nOther programs used {others[0]:.1%} of the processor.\n")
            over += others[0] > QUIET
    print(f"\n{TAIL}", end="")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
