"""The hub and the libraries that talk to it: downloads files, silences output, makes one sentence of an error."""

from __future__ import annotations

import glob
import io
import logging
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tqdm.std import tqdm

from attncli.checkpoints.checkpoint_folder import CONFIG, cached_snapshot, nearby
from attncli.errors import AttnError, InputError, LoadError, is_panic
from attncli.text import ADDRESS, bytes_shown, visible

_log = logging.getLogger(__name__)

# Read when the libraries are imported.
for _name, _value in {
    "TOKENIZERS_PARALLELISM": "false",  # whose tokenizers warn of a fork
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "DISABLE_SAFETENSORS_CONVERSION": "1",  # or transformers asks a service of the hub to convert a pickle
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TIKTOKEN_CACHE_DIR": "",  # or vocabularies are copied by their path alone, and outlive the file that was there
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",  # to install torch
}.items():
    os.environ.setdefault(_name, _value)


def silence_transformers() -> None:
    """Keep transformers and the hub's client from writing anything; imports transformers' logging alone."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    silence_hub()


def silence_hub() -> None:
    """Log the messages of the hub's client, which retries a download for half a minute, as steps."""
    from huggingface_hub.utils import logging as hub_logging  # which makes a handler of its own

    hub_logging.get_logger().handlers = [_Relay()]


class _Relay(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _log.info("the hub's client: %s", record.getMessage())


class Download(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A progress bar for the hub's client that logs in place of drawing."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, file=io.StringIO())

    def display(self, *_: Any, **__: Any) -> None:
        """Log the name of the file, how much of it has come, and its size."""
        size, share = (
            f" of {bytes_shown(self.total)}" if self.total else "",
            self.n / self.total if self.total else None,
        )
        name = (self.desc or "a file").partition("?")[0].rpartition("/")[2]
        _log.debug("downloading %s: %s%s", name, bytes_shown(self.n), size, extra={"share": share})


class Repository:
    """A repository on the hub at a branch, tag or commit, and its part in the local cache."""

    root: Path  # the folder of the commit in the local cache
    sizes: dict[str, int]  # in bytes, of its files by their names; none where they are not known

    def __init__(self, name: str, revision: str, offline: bool, shown: str = "") -> None:
        from huggingface_hub import is_offline_mode

        silence_hub()
        self.name = name
        self._shown = shown or name
        self.is_offline = offline or is_offline_mode()
        self._list(revision)
        if not self.sizes and not self.is_offline:
            _log.info("asking the hub for %s", name)
            self._download("configuration", revision, [CONFIG])  # whose client keeps a list of all files in the cache
            self._list(revision)

    def _list(self, revision: str) -> None:
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError, HFValidationError

        self.root, self.sizes = cached_snapshot(self.name, revision), {}
        with suppress(CachedRepoTreeNotFoundError, HFValidationError):
            tree = get_cached_repo_tree(self.name, revision=self.root.name)
            self.sizes = {file.path: file.size for file in tree}

    def _download(self, part: str, revision: str, files: Collection[str]) -> None:
        from huggingface_hub import snapshot_download

        exactly = [glob.escape(file) for file in files]
        with translate_hub_errors(self._shown, part, self.is_offline):
            snapshot_download(self.name, revision=revision, allow_patterns=exactly, tqdm_class=Download)

    def fetch(self, files: Collection[str], part: str) -> None:
        """Download files that are not in the local cache; LoadError names the part of a checkpoint that they are."""
        missing = sorted(file for file in files if not (self.root / file).is_file())
        if missing and self.is_offline:
            raise not_found(self._shown, part, offline=True, why=f"{missing[0]} is missing there")
        if missing:
            self._download(part, self.root.name, missing)


# Torch's allocator for the CPU has no class of its own for this.
_EXHAUSTED = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory", "unable to mmap", "out of memory")
BRINGS_CODE = "contains custom code which must be executed"  # how transformers says that it does not run it


@contextmanager
def translate_errors(name: str, part: str) -> Iterator[None]:
    """Make one sentence of an error of reading a checkpoint: InputError if memory ran out, else LoadError."""
    try:
        yield
    except AttnError:
        raise
    except BaseException as error:  # the libraries below raise nearly everything
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        shown = visible(name)
        if is_exhausted(error):
            raise InputError(f"{shown} does not fit into the memory of this machine") from None
        why = f"cannot be loaded: {first_sentence(error)}; check that the folder is complete"
        if BRINGS_CODE in str(error):
            why = "is Python code in the checkpoint; read it, then add --trust-remote-code"
        raise LoadError(f"the {part} of {shown} {why}") from None


@contextmanager
def translate_hub_errors(name: str, part: str, offline: bool = False) -> Iterator[None]:
    """Turn any error of asking the hub for a part of a checkpoint into a LoadError of one sentence."""
    try:
        yield
    except AttnError:
        raise
    except Exception as error:  # of the client, and of what lies below it
        # By then the client has looked into the local cache, and its message is of that.
        cause = error.__cause__ if type(error).__name__ == "LocalEntryNotFoundError" else None
        raise not_found(name, part, offline, first_sentence(cause or error)) from None


def not_found(name: str, part: str, offline: bool, why: str | None = None) -> LoadError:
    """Return the error for a part of a checkpoint that does not exist; `why` is the message of the hub's client."""
    where = "in the local cache" if offline else "on the hub or in the local cache"
    advice = "check the name" if offline else "check the name, the connection, and for a gated model hf auth login"
    return LoadError(
        f"the {part} of '{visible(name)}' was not found {where}, and there is no such folder"
        f"{nearby(name) or f'; {advice}, or give the folder of a downloaded checkpoint'}"
        f"{'' if why is None else f' ({why})'}"
    )


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error is one of memory that ran out."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _EXHAUSTED)


def first_sentence(error: BaseException) -> str:
    """Return the message of a library, without its advice and its line breaks."""
    text = ADDRESS.sub("", " ".join(str(error).split())) or type(error).__name__
    return visible(text.partition(". ")[0][:300].rstrip("."))
