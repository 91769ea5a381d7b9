"""A hub on this machine that has some repositories."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "2" * 40


@contextmanager
def serving(repositories: Mapping[str, str | Path], home: Path) -> Iterator[dict[str, str]]:
    """Serve folders by their names; yield the environment of a program that asks."""
    held = {
        name: {path.name: path.read_bytes() for path in Path(folder).iterdir()} for name, folder in repositories.items()
    }

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(has_body=False)

        def do_GET(self) -> None:
            self.answer(has_body=True)

        def answer(self, has_body: bool) -> None:
            path = self.path.partition("?")[0]
            name = "/".join(path.removeprefix("/api/models").split("/")[1:3])
            files, file = held.get(name, {}), path.rpartition("/")[2]
            status, body = 404, b""
            if path.startswith("/api/models/") and files:
                listed = [{"rfilename": each} for each in files]
                status, body = 200, json.dumps({"id": name, "sha": COMMIT, "siblings": listed}).encode()
                if "/tree/" in path:
                    tree = [
                        {
                            "type": "file",
                            "path": each,
                            "size": len(files[each]),
                            "oid": hashlib.sha1(files[each]).hexdigest(),
                        }
                        for each in files
                    ]
                    body = json.dumps(tree).encode()
            elif "/resolve/" in path and file in files:
                status, body = 200, files[file]
            size, etag, part = len(body), hashlib.sha1(body).hexdigest(), self.headers.get("Range")
            if has_body and status == 200 and part:
                first, _, last = part.removeprefix("bytes=").partition("-")
                status, body = 206, body[int(first) : int(last) + 1 if last else size]
            self.send_response(status)
            if status == 206:
                self.send_header("Content-Range", f"bytes {first}-{int(first) + len(body) - 1}/{size}")
            if status == 404:
                self.send_header("X-Error-Code", "EntryNotFound" if files else "RepoNotFound")
            if files:
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("ETag", f'"{etag}"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if has_body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    home_of_it = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    try:
        yield {"HF_ENDPOINT": address, **home_of_it}
    finally:
        server.shutdown()
        server.server_close()
