"""A run of the program that a signal ends at a moment of its own."""

import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ATTN = [sys.executable, "-m", "attncli"]
# of several
STOPPED = re.compile(r"attn: stopped after \d+( of \d+)? sentences?(; .*\.part has their results)?\n")


def ended(arguments: list[str], number: signal.Signals, delay: float) -> tuple[int, bytes, float]:
    """Return the exit code, stderr and seconds of a run that gets a signal so long after its first line has run."""
    with subprocess.Popen([*ATTN, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        while not _has_begun(running.pid):
            time.sleep(0.001)
        begun = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            running.wait(delay)
        running.send_signal(number)
        _, errors = running.communicate(timeout=120)
    return running.returncode, errors, time.monotonic() - begun


def _has_begun(pid: int) -> bool:
    """Return whether a process catches SIGTERM, which Python by itself does not, or has ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), "ffffffff"), 16)
    return bool(caught & 1 << (signal.SIGTERM - 1)) or "State:\tZ" in status
