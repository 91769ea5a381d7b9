"""A server of files on this machine, as web servers and object stores answer: ranges, lists of a bucket, refusals."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path, query = unquote(urlsplit(self.path).path), parse_qs(urlsplit(self.path).query)
            if path.startswith("/denied"):
                self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            elif "list-type" in query:
                self.answer(200, self.listed(path.strip("/"), query["prefix"][0]))
            elif path in files:
                self.give(files[path])
            else:
                self.answer(404, b"")

        def listed(self, bucket: str, prefix: str) -> bytes:
            keys = [path.removeprefix(f"/{bucket}/") for path in files]
            found = [
                f"<Contents><Key>{escape(key)}</Key><Size>{len(files[f'/{bucket}/{key}'])}</Size></Contents>"
                for key in keys
                if key.startswith(prefix)
            ]
            body = f"<IsTruncated>false</IsTruncated><KeyCount>{len(found)}</KeyCount>"
            return f"<ListBucketResult>{body}{''.join(found)}</ListBucketResult>".encode()

        def give(self, content: bytes) -> None:
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if wanted is None:
                self.answer(200, content)
                return
            start, stop = int(wanted[1]), min(int(wanted[2] or len(content)) + 1, len(content))
            self.answer(206, content[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"})

        def answer(self, code: int, content: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(code)
            every = {"Content-Length": str(len(content)), "Accept-Ranges": "bytes", "ETag": '"1"'} | (headers or {})
            for name, value in (every | {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
