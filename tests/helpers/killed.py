"""Runs `attn` again and again, killing it at random moments, until it ends by itself: a program for test_resume.

    python -m tests.helpers.killed RESULT KILLS SEED PRELOADED ARGUMENTS...

Every run is a fork of one process that has imported what it needs, which is a start of milliseconds. Prints, as JSON,
how many bytes each killed run had left behind and, at the end of each series, whether RESULT was as undisturbed.
"""

import json
import os
import random
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any


def started(app: Any, arguments: list[str]) -> int:
    """Start a run; return its process."""
    process = os.fork()
    if process == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            app(arguments, prog_name="attn")
        except SystemExit as ended:
            os._exit(int(ended.code or 0))
        finally:
            os._exit(99)  # an exception that nobody caught
    return process


def size(path: Path) -> int:
    """Return how many bytes a file has, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def await_growth(part: Path, path: Path, process: int) -> None:
    """Wait until a run writes: before that there is nothing to lose."""
    before = size(part)
    while size(part) <= before and not path.exists():
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.0005)


def main() -> None:
    """Run an undisturbed one, and then series that are killed until there were enough kills."""
    result, kills, seed, preloaded, *arguments = sys.argv[1:]
    for module in filter(None, preloaded.split(",")):
        import_module(module)
    from attncli.cli.app import app

    path = Path(result)
    part = path.with_name(path.name + ".part")
    given = ["inspect", *arguments, "--resume", "-o", result]
    undisturbed = started(app, given)
    await_growth(part, path, undisturbed)
    begun = time.monotonic()
    _, status = os.waitpid(undisturbed, 0)
    lasts = time.monotonic() - begun
    expected, code = path.read_bytes(), os.waitstatus_to_exitcode(status)
    path.unlink()

    chance = random.Random(seed)
    left: list[int] = []
    ends: list[bool] = []
    while len(left) < int(kills):
        process = started(app, given)
        await_growth(part, path, process)
        time.sleep(chance.uniform(0, lasts))
        os.kill(process, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if path.exists():
            if ended == -signal.SIGKILL:  # before it said how it ended
                ended = os.waitstatus_to_exitcode(os.waitpid(started(app, given), 0)[1])
            ends.append(ended == code and path.read_bytes() == expected and not part.exists())
            path.unlink()
        elif ended == -signal.SIGKILL and part.exists() and 0 < part.stat().st_size < len(expected):
            left.append(part.stat().st_size)
        elif ended != -signal.SIGKILL:
            raise SystemExit(f"it ended with {ended} and wrote nothing")
    os.waitpid(started(app, given), 0)
    ends.append(path.read_bytes() == expected)
    print(json.dumps({"code": code, "bytes": len(expected), "left": left, "ends": ends}))


if __name__ == "__main__":
    main()
