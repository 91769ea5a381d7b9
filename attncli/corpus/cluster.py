"""The Ray cluster that a run is a part of, or has by itself: joined within seconds, or refused with what is wrong."""

from __future__ import annotations

import io
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from threading import current_thread, main_thread
from typing import Any

from attncli.engines.cpu import cores
from attncli.errors import LoadError
from attncli.text import visible

PORT = 6379  # of `ray start --head`
_REACHED = 5  # seconds in which a machine answers that is there

_log = logging.getLogger(__name__)


@contextmanager
def joined(address: str | None, jobs: int | None) -> Iterator[Any]:
    """Be a part of a cluster, or one by itself, as long as the block runs.

    Args:
        address: of the cluster, as `HOST:PORT`. None is what the variable RAY_ADDRESS says, and without it processes
            on this machine.
        jobs: how many processors the machine by itself counts; None are those that it has.

    Yields:
        The module `ray`.

    Raises:
        LoadError: Ray is not installed, or the cluster is not reached.
    """
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    try:
        import ray
        import ray.data  # which brings more along
    except ImportError as error:
        raise LoadError(f"--on ray needs Ray ({error}); install it with: pip install 'attncli[ray]'") from None
    named = "" if address else ", which RAY_ADDRESS names"
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address not in ("local", "auto"):
        _reach(address, named)
    if ray.is_initialized():  # by the program that this is a part of
        yield ray
        return
    options: dict[str, Any] = {"num_cpus": jobs or cores(), "include_dashboard": False} if address == "local" else {}
    try:
        with _as_before():
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        why = str(error).strip().partition("\n")[0]
        raise LoadError(
            f"cannot join the Ray cluster at {visible(address)}: {visible(why)} This machine has to be a part of it, "
            f"which ray start --address={visible(address)} --num-cpus=0 makes it"
        ) from None
    with redirect_stdout(_Heard()):
        try:
            yield ray
        finally:
            ray.shutdown()


class _Heard(io.TextIOBase):
    """What Ray prints of its own, into a stream that is for data."""

    def write(self, text: str) -> int:
        """Log it."""
        if text.strip():
            _log.info("Ray: %s", text.strip())
        return len(text)


def _reach(address: str, named: str) -> None:
    """Raise LoadError, at once, for what is no address, or where nobody answers; Ray tries for minutes.

    `named` is added to the address where the error says it.
    """
    host, _, port = address.rpartition(":")
    try:
        if not (host and port.isdecimal()) or "/" in host:
            raise ValueError(f"expected HOST:PORT, as ray start says it, such as 10.0.0.1:{PORT}")
        socket.create_connection((host.strip("[]"), int(port)), _REACHED).close()
    except (OSError, ValueError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise LoadError(f"cannot reach the Ray cluster at {visible(address)}{named}: {why}") from None


@contextmanager
def _as_before() -> Iterator[None]:
    """Give back the signals that the block takes, and keep what its C++ writes, past Python, off the terminal."""
    kept = {}
    if current_thread() is main_thread():
        kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stderr = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        for number, handler in kept.items():
            signal.signal(number, handler)
