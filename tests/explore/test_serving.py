"""`attn explore --serve`: a page for its user alone, a process for each, and nothing left when it ends."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from aiohttp import ClientSession, WSServerHandshakeError

COMMAND = [sys.executable, "-m", "attncli", "explore", "time flies", "-m", "demo", "--serve"]


class Served:
    """A server that runs: its process, and the address that it said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stderr is not None
        self.said = process.stderr.readline()
        found = re.fullmatch(r"attn: (http://127\.0\.0\.1:\d+/[\w-]{22}/) shows it; Ctrl-C ends it\n", self.said)
        assert found, self.said
        self.address = found[1]
        self.host = urlsplit(self.address).netloc

    def listens(self) -> list[tuple[str, int]]:
        """Where it and what it started listen, of all of the machine's addresses."""
        mine = psutil.Process(self.process.pid)
        every = [mine, *mine.children(recursive=True)]
        found = [one.laddr for each in every for one in each.net_connections() if one.status == psutil.CONN_LISTEN]
        return [(one.ip, one.port) for one in found]

    def ended(self, number: signal.Signals) -> tuple[int, str, str]:
        """How it ends by a signal, once nothing is left of what it started: its code and both streams."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        _, alive = psutil.wait_procs(children, timeout=60)
        assert not alive
        return self.process.returncode, out, err


@contextmanager
def served() -> Iterator[Served]:
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    process = subprocess.Popen(
        COMMAND,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=plain,
    )
    try:
        yield Served(process)
    finally:
        process.kill()
        process.communicate()


async def shown(websocket, *wanted: str) -> str:
    """What a page is sent, until all of this has been among it."""
    text = ""
    async with asyncio.timeout(60):
        while not all(each in re.sub(r"\x1b\[[0-9;?]*[A-Za-z$]", "", text) for each in wanted):
            message = await websocket.receive()
            assert isinstance(message.data, bytes), message
            text += message.data.decode(errors="replace")
    return text


@pytest.mark.usefixtures("signals_arrive")
def test_a_page_draws_and_takes_keys_and_all_ends_with_the_server() -> None:
    with served() as one:
        host, port = one.host.split(":")
        assert one.listens() == [(host, int(port))]

        async def visited() -> None:
            async with ClientSession() as session:
                page = await (await session.get(one.address)).text()
                assert "http" not in page.replace("ws://", "")
                for path in re.findall(r'(?:src|href)="(static/[^"]+)"|url\("([^"]+)"\)', page):
                    assert (await session.get(one.address + "".join(path))).status == 200, path
                socket = re.search(r'websocket-url="([^"]+)"', page)
                assert socket is not None
                async with session.ws_connect(socket[1] + "?width=100&height=30") as websocket:
                    first = await shown(websocket, "time flies", "head 0", "entropy")
                    assert "38;2;" in first or "48;2;" in first  # in colours, which a browser has
                    await websocket.send_str(json.dumps(["stdin", " fast"]))
                    await shown(websocket, "fast")
                    await websocket.send_str(json.dumps(["stdin", "\x03"]))
                    while not (message := await websocket.receive()).type.name.startswith("CLOS"):
                        assert b"attn inspect" not in message.data
                async with session.ws_connect(socket[1]) as websocket:  # which is still open when the server ends
                    await shown(websocket, "time flies", "head 0")
                    assert one.listens() == [(host, int(port))]
                    assert one.ended(signal.SIGINT) == (130, "", "")

        asyncio.run(visited())


def test_other_pages_other_names_and_other_addresses_are_refused_and_a_kill_leaves_nothing() -> None:
    with served() as one, served() as other:
        assert other.host != one.host  # a port of its own
        place = urlsplit(one.address).path

        async def refused() -> None:
            async with ClientSession() as session:
                for path in ("/", "/ws", "/static/js/textual.js", place.rstrip("/") + "x/", place + "static/"):
                    assert (await session.get(f"http://{one.host}{path}")).status in (403, 404), path
                for headers in ({"Host": "evil.example:8000"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
                    assert (await session.get(one.address, headers=headers)).status == 403
                    with pytest.raises(WSServerHandshakeError, match="403"):
                        await session.ws_connect(f"ws://{one.host}{place}ws", headers=headers)
                assert not psutil.Process(one.process.pid).children()
                own = {"Origin": f"http://{one.host}"}
                async with session.ws_connect(f"ws://{one.host}{place}ws", headers=own) as websocket:
                    await shown(websocket, "time flies")
                    one.ended(signal.SIGKILL)

        asyncio.run(refused())


def test_a_model_that_cannot_be_opened_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    ran = subprocess.run([*COMMAND[:5], "-m", tmp_path, "--serve"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr.startswith("attn: ")
    assert ran.stderr.count("\n") == 1
