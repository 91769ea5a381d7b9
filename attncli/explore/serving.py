"""The explorer in a browser of this machine, through textual-serve.

Whoever reaches it types into a program of its user, which reads and writes files. So it listens on this machine
alone, at an address that nobody can guess, for pages of its own; and these ask no other machine for anything.
"""

from __future__ import annotations

import secrets
import shlex
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from string import Template

from aiohttp import web
from textual_serve.server import Server

_HOST, _PORT = "127.0.0.1", 8000  # the port is textual-serve's own
_PAGE = Path(__file__).with_name("page.html")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; img-src data:; "
    "connect-src {0}; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def serve(command: Sequence[str], tell: Callable[[str], object]) -> None:
    """Show what a command draws to whoever opens a page; it does not return, for a signal ends it.

    Args:
        command: runs the explorer; each page has a process of its own, which ends with it.
        tell: is given the address.

    Raises:
        OSError: no port is free.
    """
    with _listener() as listener:
        port, secret = listener.getsockname()[1], secrets.token_urlsafe(16)
        tell(f"http://{_HOST}:{port}/{secret}/")
        app = _app(Server("exec " + shlex.join(command), _HOST, port), f"/{secret}", port)
        # Signals stay with the program, which they end; each process ends where its standard input does.
        web.run_app(app, sock=listener, handle_signals=False, print=None, access_log=None)


def _listener() -> socket.socket:
    try:
        return socket.create_server((_HOST, _PORT))
    except OSError:  # somebody has it
        return socket.create_server((_HOST, 0))


def _app(server: Server, place: str, port: int) -> web.Application:
    own = {f"{_HOST}:{port}", f"localhost:{port}"}

    @web.middleware  # type: ignore[untyped-decorator]  # mypy reads nothing of aiohttp
    async def for_own_pages(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse what a page of another place asks, under whichever name it found this one."""
        origin = request.headers.get("Origin")
        if request.host not in own or (origin is not None and origin.removeprefix("http://") not in own):
            raise web.HTTPForbidden
        return await handler(request)

    async def page(request: web.Request) -> web.Response:
        websocket = f"ws://{request.host}{place}/ws"
        text = Template(_PAGE.read_text(encoding="utf-8")).substitute(websocket=websocket)
        headers = {"Content-Security-Policy": _POLICY.format(websocket), "Referrer-Policy": "no-referrer"}
        return web.Response(text=text, content_type="text/html", headers=headers)

    app = web.Application(middlewares=[for_own_pages])
    app.add_routes(
        [
            web.get(f"{place}/", page),
            web.get(f"{place}/ws", server.handle_websocket),
            web.static(f"{place}/static", server.statics_path),
        ]
    )
    return app
