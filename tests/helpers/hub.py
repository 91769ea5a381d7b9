"""A small hub on this machine, whose repositories are folders, with a storage: it answers as the real one does."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import pytest

NAME = "somebody/tiny"
COMMIT = "1" * 40
TOKEN = "hf_of_the_tests"
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_PATH = re.compile(
    r"(?:/api/models)?/(?P<name>[^/]+/[^/]+)(?:/(?P<verb>resolve|tree|revision)/[^/]+)?(?:/(?P<inside>.*))?"
)


@dataclass
class Asked:
    host: str  # `hub` or `storage`
    method: str  # `HEAD` or `GET`
    path: str  # without the query
    range: tuple[int, int] | None  # the first and the last byte
    token: bool  # whether it carried one
    sent: int = 0  # how many bytes of a body it got
    status: int = 0  # of the answer


@dataclass
class Hub:
    repositories: dict[str, Path]  # the folder of each, by its name
    address: str = ""  # of the hub
    requests: list[Asked] = field(default_factory=list)  # every request
    etags: dict[Path, str] = field(default_factory=dict)  # of paths whose ETag is not a hash of their content
    has_storage: bool = True  # whether weights are at another host, to which the hub redirects
    is_gated: bool = False  # whether it wants the token
    takes_ranges: bool = True  # whether a part of a file can be had
    commit: str = COMMIT
    # called before each answer to a GET with what was asked; it may return a status and headers to answer with, or a
    # number of bytes after which the connection is cut
    trouble: Callable[[Asked], tuple[int, dict[str, str]] | int | None] = lambda _: None
    pause: float = 0.0  # seconds after each megabyte of a body, or the body's fourth, whichever is less
    storage: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {"HF_ENDPOINT": self.address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}

    def reach(self, home: Path, patch: pytest.MonkeyPatch) -> None:
        """Let the hub's client of this process ask it, and keep what it gets in a folder."""
        from huggingface_hub import close_session, constants, hf_api

        patch.setenv("HF_HOME", str(home))
        patch.setattr(constants, "ENDPOINT", self.address)
        template = self.address + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(hf_api.api, "endpoint", self.address)
        if "transformers.utils.hub" in sys.modules:  # which keeps the first one that it has asked
            patch.setattr(sys.modules["transformers.utils.hub"], "_hf_api", None)
        patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        patch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        # As attncli says before it imports the client, which a test may have imported before.
        patch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        close_session()

    @property
    def folder(self) -> Path:
        return self.repositories[NAME]

    def etag(self, path: Path) -> str:
        if path not in self.etags:
            small = path.read_bytes() if path.stat().st_size < 1 << 24 else str(path.stat().st_size).encode()
            self.etags[path] = hashlib.sha256(small).hexdigest()
        return self.etags[path]

    def __enter__(self) -> Hub:
        kinds = [type("Handler", (_Handler,), {"hub": self, "host": host}) for host in ("hub", "storage")]
        self._servers = [_Server(("127.0.0.1", 0), kind) for kind in kinds]
        for one in self._servers:
            threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.address, self.storage = (f"http://127.0.0.1:{one.server_address[1]}" for one in self._servers)
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._servers:
            one.shutdown()
            one.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of a client that went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    host: str

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = urlsplit(self.path).path
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        span = (int(found[1]), int(found[2])) if found else None
        one = Asked(self.host, self.command, path, span, "authorization" in self.headers)
        self.hub.requests.append(one)
        trouble = self.hub.trouble(one)
        match = _PATH.fullmatch(path)
        name, verb, inside = (match["name"], match["verb"], unquote(match["inside"] or "")) if match else ("", None, "")
        folder, commit = self.hub.repositories.get(name), {"X-Repo-Commit": self.hub.commit}
        if isinstance(trouble, tuple):
            self.send(one, *trouble)
        elif self.hub.is_gated and self.host == "hub" and self.headers.get("authorization") != f"Bearer {TOKEN}":
            self.send(one, 401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        elif folder is None:
            self.send(one, 404, {"X-Error-Code": "RepoNotFound"})
        elif self.host == "hub" and verb not in ("resolve", "tree"):
            listed = [{"rfilename": each} for each in _files(folder)]
            self.json(one, {"id": name, "sha": self.hub.commit, "siblings": listed})
        elif not (folder / inside).exists() or (verb == "tree") != (folder / inside).is_dir():
            self.send(one, 404, {"X-Error-Code": "EntryNotFound"} | commit)
        elif verb == "tree":
            paths = {each: folder / each for each in _files(folder) if each.startswith(inside)}
            entries = [("file", each, path.stat().st_size, self.hub.etag(path)) for each, path in paths.items()]
            self.json(one, [dict(zip(("type", "path", "size", "oid"), each, strict=True)) for each in entries])
        else:
            self.resolve(one, f"{name}/{inside}", folder / inside, trouble, commit)

    def resolve(self, one: Asked, name: str, path: Path, trouble: int | None, headers: dict[str, str]) -> None:
        etag = self.hub.etag(path)
        if self.host == "storage":
            self.file(one, path, trouble, {"ETag": f'"storage-{etag[:8]}"'})
        elif self.hub.has_storage and path.suffix == ".safetensors":
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(path.stat().st_size)}
            headers |= {"ETag": '"of the redirect"', "Location": f"{self.hub.storage}/{name}?signature=1"}
            self.send(one, 302, headers)
        else:
            self.file(one, path, trouble, headers | {"ETag": f'"{etag}"'})

    def file(self, one: Asked, path: Path, cut: int | None, headers: dict[str, str]) -> None:
        size, span = path.stat().st_size, one.range if self.hub.takes_ranges else None
        begin, end = (0, size) if span is None else (span[0], min(span[1] + 1, size))
        if begin >= end and span is not None:
            self.send(one, 416, {"Content-Range": f"bytes */{size}"})
            return
        if span is not None:
            headers = headers | {"Content-Range": f"bytes {begin}-{end - 1}/{size}"}
        self.begin(one, 200 if span is None else 206, headers | {"Accept-Ranges": "bytes"}, end - begin)
        if self.command == "HEAD":
            return
        step = min(1 << 20, max((end - begin) // 4, 1))
        with path.open("rb") as file, suppress(OSError):  # where nobody reads any more
            file.seek(begin)
            while one.sent < end - begin:
                body = file.read(min(step, end - begin - one.sent))[: None if cut is None else cut - one.sent]
                self.wfile.write(body)
                one.sent += len(body)
                if one.sent == cut:
                    break
                if self.hub.pause and path.suffix == ".safetensors":
                    time.sleep(self.hub.pause)
        self.close_connection |= one.sent < end - begin

    def json(self, one: Asked, content: Any) -> None:
        self.send(one, 200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def send(self, one: Asked, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.begin(one, status, headers, len(body))
        if self.command == "GET":
            self.wfile.write(body)

    def begin(self, one: Asked, status: int, headers: dict[str, str], length: int) -> None:
        one.status = status
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(length)}).items():
            self.send_header(key, value)
        self.end_headers()


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
