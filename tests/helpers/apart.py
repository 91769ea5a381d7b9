"""Many command lines in one process of its own, which refuses and records each connection and look-up."""

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class RanApart(NamedTuple):
    code: int
    out: str
    err: str
    hosts: list[str]  # that it would have spoken to
    unrouted: int  # how often the kernel had no route, which Python's hook does not see of C and Rust
    kibibytes: int  # by how much the process has grown since it was warm


def ran_apart(
    lines: Mapping[str, Sequence[str]], *within: str, gibibytes: int | None = None, **options: Any
) -> dict[str, RanApart]:
    def limit() -> None:
        if gibibytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (gibibytes * 2**30,) * 2)

    ran = subprocess.run(
        [*within, sys.executable, __file__], input=json.dumps(lines), capture_output=True, encoding="utf-8",
        check=False, timeout=300, preexec_fn=limit, **options,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr[-2000:]  # which the libraries below write past us
    answers = {name: RanApart(*rest) for name, *rest in map(json.loads, ran.stdout.splitlines())}
    assert list(answers) == list(lines)
    return answers


HOSTS: list[str] = []
_CALLS = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.sendto"}


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _CALLS:
        return
    address = arguments[1] if event in ("socket.connect", "socket.sendto") else arguments[0]
    HOSTS.append(str(address[0] if isinstance(address, tuple) else address))
    raise OSError(101, "Network is unreachable")


def unrouted() -> int:
    """Return how often the kernel found no route, for anyone in this network namespace since it was made."""
    lines = Path("/proc/net/snmp").read_text().splitlines()
    names, counts = (line.split() for line in lines if line.startswith("Ip:"))
    return int(counts[names.index("OutNoRoutes")])


def most_memory() -> int:
    """Return the most memory that this process has had, in KiB; ru_maxrss would be its parent's to begin with."""
    found = re.search(r"VmHWM:\s+([0-9]+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1])


def main() -> None:
    sys.addaudithook(refuse)
    from typer.testing import CliRunner

    from attncli.cli.app import app

    time.sleep = lambda _: None  # the hub's client waits longer and longer before it tries again
    CliRunner().invoke(app, ["inspect", "warm up"])
    before = most_memory()
    for name, arguments in json.load(sys.stdin).items():
        HOSTS.clear()
        ran = CliRunner().invoke(app, arguments)
        answer = (name, ran.exit_code, ran.stdout, ran.stderr, HOSTS, unrouted(), most_memory() - before)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
