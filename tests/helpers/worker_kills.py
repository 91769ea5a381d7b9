"""Kills the workers of runs of `attn` at random moments, and compares what the runs write with an undisturbed one.

    python tests/helpers/worker_kills.py KILLS SEED ARGUMENTS...

Prints, as JSON, how many workers each run lost and whether its bytes were those of `--jobs 1`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

ATTN = [sys.executable, "-m", "attncli"]


def workers_of(pid: int) -> list[int]:
    """Return the processes that work for a run."""
    with suppress(OSError):  # one of them has just ended
        tasks = [(task / "children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
        return [int(one) for own in tasks for one in own if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
    return []


def disturbed(arguments: list[str], kills: int, drawn: random.Random) -> tuple[bytes, int]:
    """Return what a run writes, and how many of its workers were killed, one after the other."""
    with subprocess.Popen([*ATTN, *arguments], stdout=subprocess.PIPE) as running:
        pieces: list[bytes] = []
        reading = Thread(target=lambda: pieces.extend(iter(lambda: running.stdout.read1(), b"")))  # type: ignore[union-attr]
        reading.start()
        lost = 0
        while lost < kills and reading.is_alive():
            time.sleep(drawn.uniform(0.05, 0.4))
            if workers := workers_of(running.pid):
                with suppress(ProcessLookupError):
                    os.kill(drawn.choice(workers), signal.SIGKILL)
                    lost += 1
        reading.join()
    assert running.returncode == 0
    return b"".join(pieces), lost


def main() -> None:
    """Kill as many workers as are asked for."""
    kills, seed, *arguments = sys.argv[1:]
    left, drawn = int(kills), random.Random(int(seed))
    expected = subprocess.run([*ATTN, *arguments, "--jobs", "1"], stdout=subprocess.PIPE, check=True).stdout
    runs = []
    while left > 0:
        written, lost = disturbed([*arguments, "--jobs", "2"], min(left, 10), drawn)
        left -= lost
        runs.append((lost, written == expected))
    print(json.dumps({"runs": runs, "kills": sum(lost for lost, _ in runs), "equal": all(same for _, same in runs)}))


if __name__ == "__main__":
    main()
