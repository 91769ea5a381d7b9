"""What whole processes take: a stream no more memory for more sentences, a very large mask little of both."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_checkpoints import minilm_folder

# The peak is the kernel's; ru_maxrss would be inherited from a test worker that has loaded torch.
_CODE = """
import re, sys, time
from attncli.cli.app import app
from attncli.engines.numpy import forward
forward._BATCH //= 8  # fewer sentences fill it
try:
    app(sys.argv[1:])
except SystemExit as end:
    assert not end.code
peak, seconds = re.search(r"VmHWM:\\s+([0-9]+) kB", open("/proc/self/status").read())[1], time.process_time()
import numpy
cells = numpy.tri(8192, dtype=bool)
for _ in range(9):
    cells = ~cells
print(peak, seconds / (time.process_time() - seconds), file=sys.stderr)
"""


def taken(*arguments: str | Path) -> tuple[int, float]:
    """Return a command's most memory, in KiB, and its CPU time in units of ten looks at all cells of a large mask."""
    command = [sys.executable, "-c", _CODE, *map(str, arguments)]
    ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    peak, times = ran.stderr.splitlines()[-1].split()
    return int(peak), float(times)


@pytest.mark.parametrize(
    ("arguments", "few", "many", "words"),
    [
        (["inspect", "-F", "jsonl", "--num-heads", "1"], 200, 2000, 5),
        (["inspect", "-F", "jsonl", "--num-heads", "1", "--jobs", "2"], 1000, 4000, 5),
        # The first ones fill what is computed at once, twice: the last trace may hold the arrays of those before it.
        (["heads", "-F", "tsv", "-m", minilm_folder(), "--engine", "native"], 32, 120, 24),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else "",
)
def test_memory_is_flat(arguments: list[str], few: int, many: int, words: int, tmp_path: Path) -> None:
    peaks = []
    for count in (few, many):
        path = tmp_path / f"{count}.txt"
        path.write_text("".join("time flies like arrow " * (words // 4) + f"{number}\n" for number in range(count)))
        jobs = [] if "--jobs" in arguments else ["--jobs", "1"]
        peaks.append(taken(*arguments, "--file", path, *jobs)[0])
    assert peaks[1] <= 1.1 * peaks[0], peaks


def test_a_very_large_mask_is_checked_in_little_time_and_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "mask.npy", np.tri(8192, dtype=bool))
    peak, times = taken("mask", "check", tmp_path / "mask.npy", "--expect", "causal")
    assert peak < 400 * 1024  # 160 MiB, of which 64 are the mask
    assert times < 40, times
