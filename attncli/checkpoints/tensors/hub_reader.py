"""Bytes of a file on the hub, asked for by range through the hub's own client, and held against one version of it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from attncli.checkpoints.hub import client, transient
from attncli.checkpoints.tensors.cache import Version
from attncli.errors import LoadError
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.errors import AttnError

_log = logging.getLogger(__name__)

_TRIES = 5  # in a row that bring nothing
_LONGEST_WAIT = 8.0  # seconds, as the hub's client waits
_EXPIRED = (401, 403, 404, 410)  # what a storage says of an address that was good for an hour
_ABOVE_MIRRORS = ("https", "huggingface.co")  # which a mirror may redirect to, with the token
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class _Place(NamedTuple):
    """Where the bytes of a file are.

    Attributes:
        version: which file it is.
        address: of the storage, or of the hub.
        headers: that a request there may have: no token for a host that is not the hub.
        is_hub: whether it is the hub that answers there.
    """

    version: Version
    address: str
    headers: dict[str, str]
    is_hub: bool


class _Expired(Exception):  # noqa: N818  no error
    pass


class HubFile:
    """A file of a repository at a commit.

    Args:
        name: of the repository.
        commit: of the repository.
        file: its path there.
    """

    def __init__(self, name: str, commit: str, file: str) -> None:
        self._name, self._commit, self._file = name, commit, file
        self._place: _Place | None = None
        self._lock = Lock()
        self._etag_of_storage: str | None = None

    def version(self) -> Version:
        """Ask which version of the file the commit has.

        Raises:
            Exception: of the hub's client.
            LoadError: it is not said, or is another one than it was.
        """
        return self._located().version

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield all bytes between two places; where a connection is cut, it is asked for the rest.

        Raises:
            Exception: of the hub's client, which has tried again.
            LoadError: the server sends something else, or another version of the file.
        """
        tries = 0
        while begin < end:
            place = self._located()
            try:
                for some in self._answer(place, begin, end):
                    begin, tries = begin + len(some), 0
                    yield some
                why = "it ended too early"
            except _Expired:
                self._forget(place)
                why = "its address is no longer good"
            except transient() as error:
                why = str(error)
                if tries >= _TRIES:
                    raise
            if begin < end:
                tries += 1
                if tries > _TRIES:
                    raise LoadError(f"{self._shown} could not be fetched: {visible(why)}; try again later")
                _log.info("asking for the rest of %s: %s", self._file, visible(why))
                time.sleep(min(2.0 ** (tries - 1), _LONGEST_WAIT))

    @property
    def _shown(self) -> str:
        return f"{visible(self._file)} of {visible(self._name)}"

    def _located(self) -> _Place:
        """Return where the bytes are, which is asked once."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        with self._lock:
            if self._place is None:
                url = hf_hub_url(self._name, self._file, revision=self._commit)
                found = get_hf_file_metadata(url, retry_on_errors=True)
                if found.etag is None or found.size is None or found.commit_hash != self._commit:
                    raise LoadError(
                        f"the server does not say of {self._shown} which version it has at this commit, so that parts "
                        "of it cannot be put together; --whole-files downloads it whole"
                    )
                is_hub = _origin(found.location) in (_origin(url), _ABOVE_MIRRORS)
                headers = client().build_hf_headers() | {"Accept-Encoding": "identity"}
                if not is_hub:
                    headers.pop("authorization", None)
                self._place = _Place(Version(found.etag, found.size), found.location, headers, is_hub)
            return self._place

    def _forget(self, place: _Place) -> None:
        """Ask anew where the bytes are; they have to be of the same version there."""
        with self._lock:
            if self._place is place:
                self._place = None
        if self._located().version != place.version:
            raise self.changed()

    def _answer(self, place: _Place, begin: int, end: int) -> Iterator[bytes]:
        """Yield what one request brings."""
        from huggingface_hub import constants

        headers = place.headers | {"Range": f"bytes={begin}-{end - 1}"}
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        # What is cut while it comes is tried again here, from where it was cut.
        request = client().http_stream_backoff
        with request("GET", place.address, headers=headers, timeout=timeout, retry_on_exceptions=()) as response:
            if response.status_code in _EXPIRED and not place.is_hub:
                raise _Expired
            if response.status_code == 416:
                raise self.changed()
            client().hf_raise_for_status(response)
            self._check(response, place, begin, end)
            for some in response.iter_bytes():  # as it comes: of what is collected first, a cut would lose the last
                if len(some) > end - begin:
                    raise LoadError(f"the server sent more of {self._shown} than was asked for; try again later")
                begin += len(some)
                yield some

    def _check(self, response: Any, place: _Place, begin: int, end: int) -> None:
        """Raise LoadError unless an answer is the range that was asked for, of the same version as all others."""
        size = place.version.size
        if response.status_code != 206 and not (begin == 0 and end == size):
            raise LoadError(
                f"the server sends {self._shown} whole where a part of it was asked for; --whole-files downloads it"
            )
        if response.status_code == 206:
            said = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if said is None or [int(each) for each in said.groups()] != [begin, end - 1, size]:
                raise self.changed()
        etags = [_etag(each.headers.get("X-Linked-Etag")) for each in (*response.history, response)]
        own = _etag(response.headers.get("ETag"))
        if place.is_hub and not response.history:
            etags.append(own)
        elif own is not None:  # a name of the storage's own for it
            with self._lock:
                self._etag_of_storage = self._etag_of_storage or own
            if own != self._etag_of_storage:
                raise self.changed()
        if any(etag not in (None, place.version.etag) for etag in etags):
            raise self.changed()

    def changed(self) -> AttnError:
        """Return the error for a file that is another one than it was."""
        return ChangedError(
            f"{self._shown} is not what it was when a part of it was fetched (commit {self._commit[:12]}); what was "
            "fetched is not used any more: run it again"
        )


class ChangedError(LoadError):
    """A file at a commit is another one than it was."""


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _etag(said: str | None) -> str | None:
    """Return an ETag as the hub's client has it."""
    return None if said is None else said.removeprefix("W/").strip('"')
