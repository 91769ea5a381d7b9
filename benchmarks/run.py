"""How long whole processes take, and how much memory, beside a floor or a peer measured in the same run.

    python benchmarks/run.py [GROUP]... [--rounds N] [--keep FOLDER] [--peers FOLDER]

The commands of a table run in turn, A B C A B C …, so that a machine whose speed drifts slows them alike; the medians
are compared. The exit code is 1 if something is over its target. The groups are start, help, heads, native, engines,
checkpoint, sentences, stream, long and long16k; tables may be named too: native-minilm, native-gpt2, native-sentences,
engines-minilm, engines-gpt2, engines-llama, checkpoint-minilm, checkpoint-llama, checkpoint-llama-1024,
stream-inspect, stream-tokens, long-1024, long-4096, long-8192. The peers, other tools with environments of their own,
are measured where ``--peers FOLDER`` has FOLDER/bertviz; how to make one stands in its script.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from cases import TABLES, Case, Material

ROUNDS = {"start": 11, "help": 7, "heads": 11, "native": 5, "engines": 1, "checkpoint": 5, "sentences": 5, "stream": 1}
ROUNDS |= {"long": 3, "long16k": 1}
WARMED = ("start", "help", "heads", "native", "checkpoint", "sentences")
"""The groups that first get a round that does not count; the others run too long for the disk to matter."""


@dataclass
class Result:
    """The rounds of one command, and why there are no more of them, if it failed."""

    seconds: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    failure: str = ""


def once(command: list[str], material: Material, result: Result, counts: bool) -> None:
    """Run a command and add what it took to its result.

    The peak of a child starts at that of the process it was forked from: this one has to stay small.
    """
    written = material.folder / "out"
    written.mkdir(exist_ok=True)
    with open(written / "stdout", "wb") as stdout, open(written / "stderr", "wb") as stderr:
        start = time.perf_counter()
        # In a folder without a pyproject.toml that speaks of attncli, as the one of this project does.
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=material.environment, cwd=written)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        lines = (written / "stderr").read_text(errors="replace").strip().splitlines()
        result.failure = f"exit code {process.returncode}: {lines[-1] if lines else ''}".replace("|", "/")
    elif counts:
        result.seconds.append(seconds)
        result.megabytes.append(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6)
    for file in written.iterdir():
        file.unlink()


def measured(cases: list[Case], material: Material, rounds: int, warmed: bool) -> list[Result]:
    results = [Result() for _ in cases]
    for number in range(0 if warmed else 1, rounds + 1):
        for case, result in zip(cases, results, strict=True):
            if not result.failure:
                once(case.command, material, result, counts=number > 0)
    return results


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def limit(value: float, target: float | None, unit: str) -> tuple[str, bool]:
    """Return how a target is written, and whether the value is over it."""
    return ("", False) if target is None else (f"≤ {target:.{3 if unit == '×' else 5}g}{unit}", value > target)


def table(name: str, cases: list[Case], results: list[Result]) -> int:
    """Print a table; return how many of its commands failed or took too much."""
    loaded = next((median(result.megabytes) for case, result in zip(cases, results, strict=True) if case.is_loaded), 0)
    first_seconds, first_megabytes = median(results[0].seconds), median(results[0].megabytes)
    heads = [name, "median", "min..max", "ratio", "target", "peak memory", "compared", "target"]
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
        cells = [case.name, f"{seconds:.3f} s", f"{min(result.seconds):.3f}..{max(result.seconds):.3f}"]
        cells += [f"{seconds / first_seconds:.2f}×", time_target + " **over**" * slow]
        cells += [f"{megabytes:.0f} MB", memory, memory_target + " **over**" * big]
        print("| " + " | ".join(cells) + " |")
    sys.stdout.flush()
    return over


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("group", nargs="*", help=f"{', '.join(ROUNDS)} or a table (default: all)")
    parser.add_argument("--rounds", type=int, help="of every command (default: the group's)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the checkpoints stay for the next run")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="where the environments of other tools are")
    arguments = parser.parse_args()
    if unknown := set(arguments.group) - ROUNDS.keys() - TABLES.keys():
        parser.error(f"no group or table {', '.join(sorted(unknown))}; there are {', '.join(ROUNDS | TABLES)}")
    over = 0
    with tempfile.TemporaryDirectory() as folder:
        keep = Path(folder) if arguments.keep is None else arguments.keep.resolve()
        keep.mkdir(parents=True, exist_ok=True)
        peers = None if arguments.peers is None else arguments.peers.resolve()
        material = Material(Path(folder), keep, peers)
        for name, cases_of in TABLES.items():
            group = name.partition("-")[0]
            if not arguments.group or {name, group} & set(arguments.group):
                cases = cases_of(material)
                rounds = arguments.rounds or ROUNDS[group]
                over += table(name, cases, measured(cases, material, rounds, group in WARMED))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
