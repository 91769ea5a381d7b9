"""The program with every connection and look-up over the network recorded and refused.

Run with command lines by name, as JSON, on standard input; it writes a JSON line for each: how it ended, the hosts that
it would have spoken to, and how often the kernel had no route for somebody, which in a network namespace of its own is
what the hook of Python does not see.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

HOSTS: list[str] = []
_CALLS = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.sendto"}


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Stand in the way of an audited event that leaves this machine."""
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


def main() -> None:
    """Run the program, again and again."""
    sys.addaudithook(refuse)
    from typer.testing import CliRunner

    from attncli.cli.app import app

    time.sleep = lambda _: None  # the hub's client waits longer and longer before it tries again
    for name, arguments in json.load(sys.stdin).items():
        HOSTS.clear()
        ran = CliRunner().invoke(app, arguments)
        print(json.dumps([name, ran.exit_code, ran.stdout, ran.stderr, HOSTS, unrouted()]), flush=True)


if __name__ == "__main__":
    main()
