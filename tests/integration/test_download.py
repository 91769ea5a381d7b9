"""A checkpoint that comes over the network: from a hub of our own, on this machine."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from test_progress import on_terminal, plain

NAME = "somebody/tiny"
COMMIT = "1" * 40


@pytest.fixture
def hub(tiny_llama: str) -> Iterator[str]:
    """A hub with one checkpoint, whose weights take their time; its address."""
    files = {path.name: path.read_bytes() for path in Path(tiny_llama).iterdir()}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(has_body=False)

        def do_GET(self) -> None:
            self.answer(has_body=True)

        def answer(self, has_body: bool) -> None:
            path = self.path.partition("?")[0]
            if path.startswith(f"/api/models/{NAME}"):
                listed = [{"rfilename": name} for name in files]
                is_tree = "/tree/" in path
                body = json.dumps([] if is_tree else {"id": NAME, "sha": COMMIT, "siblings": listed}).encode()
                self.send_response(200)
            elif (name := path.rpartition("/")[2]) in files and path.startswith(f"/{NAME}/resolve/"):
                body = files[name]
                self.send_response(200)
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
            else:
                body = b""
                self.send_response(404)
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if has_body and path.endswith(".safetensors"):
                for start in range(0, len(body), len(body) // 4):
                    self.wfile.write(body[start : start + len(body) // 4])
                    time.sleep(0.3)
            elif has_body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_download_shows_its_name_and_size_on_a_terminal_and_is_there_afterwards(
    hub: str, tiny_llama: str, tmp_path: Path
) -> None:
    size = (Path(tiny_llama) / "model.safetensors").stat().st_size
    online = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    first = on_terminal("inspect", "-m", NAME, "time flies", "-F", "json", **online)
    assert first[0] == 0, first
    shown = plain(first[2])
    assert f"downloading model.safetensors: 0 B of {size / 1000:.0f} kB" in shown
    assert json.loads(first[1])["source"]["model"] == NAME
    again = on_terminal("inspect", "-m", NAME, "time flies", "-F", "json", **online)
    assert again[:2] == first[:2]
    assert "downloading" not in plain(again[2])
    offline = on_terminal("inspect", "-m", NAME, "time flies", "-F", "json", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert offline[:2] == first[:2]
    assert os.listdir(tmp_path / "hub") != []
