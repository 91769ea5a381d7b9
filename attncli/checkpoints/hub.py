"""The hub and the libraries that talk to it: silences their output, logs downloads, makes one sentence of an error."""

from __future__ import annotations

import inspect
import io
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm.std import tqdm

from attncli.checkpoints.folder import ALONE, INDEX, PICKLE, PICKLE_INDEX, is_known, shards_of, snapshot, split_name
from attncli.checkpoints.nested import ADAPTER, has_adapter_weights, is_adapter
from attncli.checkpoints.suggestions import nearby
from attncli.errors import AttnError, InputError, LoadError, is_panic
from attncli.text import ADDRESS, bytes_shown, visible

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions

_log = logging.getLogger(__name__)

# What reads weights, of transformers' modules.
_READERS = tuple(
    f"transformers.{name}" for name in ("modeling_utils", "core_model_loading", "quantizers", "integrations")
)

# Of a repository with an adapter: itself and its tokenizer; some hold whole training runs.
_OF_ADAPTER = [
    "adapter_config.json", "adapter_model.*", "config.json", "model*.safetensors*", "*token*.json", "*.model",
    "vocab.*", "merges.txt", "*.jinja",
]  # fmt: skip

# Read when the libraries are imported: progress bars, and the tokenizers' warning of a fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# And no call that nobody asked for: transformers would ask a service of the hub to convert a pickle.
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# And no copies of vocabularies by their path alone, which outlive the file that was there.
os.environ.setdefault("TIKTOKEN_CACHE_DIR", "")


def hush() -> None:
    """Keep transformers and the hub's client from writing anything; imports transformers' logging alone."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    hush_hub()


def hush_hub() -> None:
    """Log what the hub's client says as steps of ours: it tries a download again for half a minute."""
    from huggingface_hub.utils import logging as hub_logging  # which makes a handler of its own

    hub_logging.get_logger().handlers = [_Relay()]


def is_offline(options: LoadOptions) -> bool:
    """Return whether nothing may be asked of the hub."""
    from huggingface_hub import is_offline_mode

    return options.offline or is_offline_mode()


PATIENCE = 5  # seconds in which a hub that can be reached has answered something
_REMEMBERED = 60.0  # seconds: one run may want many files of a hub that does not answer


def silence() -> str | None:
    """Return why the hub does not answer; None where it does, or is not to be asked.

    The client alone would find out in half a minute, or in many where nothing is refused and nothing comes. Once the
    hub has answered, it is the client that waits and tries again.
    """
    from huggingface_hub import constants, is_offline_mode

    if is_offline_mode():
        return None
    said = _asked(constants.ENDPOINT)
    if said.why is not None and monotonic() - said.at > _REMEMBERED:  # the connection may be back, in a notebook
        _asked.cache_clear()
        said = _asked(constants.ENDPOINT)
    return said.why


def is_local(name: str, options: LoadOptions) -> bool:
    """Return whether a checkpoint is read from this machine alone: the hub may not be asked, or does not answer."""
    return is_offline(options) or (not os.path.isdir(name) and silence() is not None)


def check_answers(name: str, part: str, options: LoadOptions) -> None:
    """Raise LoadError where the hub is to be asked for a part of a checkpoint, and does not answer."""
    if not is_offline(options) and (why := silence()):
        raise _unreached(visible(name), part, why)


class _Said(NamedTuple):
    """What came of asking the hub for anything.

    Attributes:
        why: nothing came; None where an answer did, whichever.
        at: when, in seconds.
    """

    why: str | None
    at: float


@cache
def _asked(endpoint: str) -> _Said:
    """Ask the hub for the headers of its first page; in a thread, since looking up a name knows no limit of time."""
    from huggingface_hub import constants, get_session

    hush_hub()
    patience = constants.HF_HUB_ETAG_TIMEOUT if os.environ.get("HF_HUB_ETAG_TIMEOUT") else PATIENCE
    came: list[str | None] = []

    def ask() -> None:
        try:
            get_session().head(endpoint, timeout=patience, follow_redirects=False)
        except Exception as error:  # of the client, and what lies below it
            came.append(first_sentence(error))
        else:
            came.append(None)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(patience)
    why = came[0] if came else f"it did not answer within {patience} s; HF_HUB_ETAG_TIMEOUT sets how many"
    if why is not None:
        _log.info("the hub does not answer: %s", why)
    return _Said(why, monotonic())


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collect the warnings of transformers while weights are read, a sentence each.

    Its table of tensors that are missing, misshapen or left over is not among them: those we judge ourselves.
    """
    said: list[str] = []
    logger = logging.getLogger("transformers")
    handlers, level = logger.handlers, logger.level
    logger.handlers = [_Collector(said)]
    logger.setLevel(logging.WARNING)
    try:
        yield said
    finally:
        logger.handlers = handlers
        logger.setLevel(level)


class _Collector(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.name.startswith(_READERS) and "LOAD REPORT" not in message:
            self._said.append("transformers: " + visible(" ".join(message.split())))


_REFUSES = re.compile(r"HTTP Error 429 |^Rate limited")
_WAITS = re.compile(r"(?:Waiting|Retrying in) ([\d.]+)s")
_LONGEST_WAIT = 900  # seconds; the hub counts requests in windows of 300
_put_off: list[tuple[float, str]] = []  # until when the hub is not to be asked, and why
_TOKEN = "a token allows more requests (hf auth login, or HF_TOKEN)"


class _Relay(logging.Handler):
    """Logs what the hub's client says; that the hub refuses so many requests is said, since it may wait for minutes."""

    def __init__(self) -> None:
        super().__init__()
        self._is_refused = False

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        _log.info("the hub's client: %s", message)
        self._is_refused = self._is_refused or bool(_REFUSES.search(message))
        if self._is_refused and (found := _WAITS.search(message)):
            self._is_refused = False
            _wait(float(found[1]))


def _wait(seconds: float) -> None:
    """Say that the hub's client is about to wait, and how long.

    Raises:
        LoadError: it is longer than anyone waits.
    """
    said = f"the hub answers 429, too many requests, and is asked again in {seconds:.0f} s"
    if seconds > _LONGEST_WAIT:
        why = f"it answers 429, too many requests, for {seconds:,.0f} s; {_TOKEN}"
        _put_off.append((monotonic() + seconds, why))
        raise LoadError(f"the hub could not be reached: {why}")
    if _log.hasHandlers():
        _log.warning("%s; %s", said, _TOKEN)
    elif _log.isEnabledFor(logging.WARNING):
        sys.stderr.write(f"attn: {said}; {_TOKEN}\n")
        sys.stderr.flush()


# Torch's allocator for the CPU has no class of its own for this.
_EXHAUSTED = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory", "unable to mmap", "out of memory")
BRINGS_CODE = "contains custom code which must be executed"  # how transformers says that it does not run it


@contextmanager
def explained(name: str, part: str, options: LoadOptions) -> Iterator[None]:
    """Turn whatever is raised while a part of a checkpoint is read into one sentence.

    Raises:
        InputError: memory ran out.
        LoadError: anything else.
    """
    try:
        yield
    except AttnError:
        raise
    except BaseException as error:  # the libraries below raise nearly everything
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise _sentence(error, name, part, options) from None


def _sentence(error: BaseException, name: str, part: str, options: LoadOptions) -> AttnError:
    shown = visible(name)
    if is_exhausted(error):
        return InputError(f"{shown} does not fit into the memory of this machine")
    if BRINGS_CODE in str(error):
        return LoadError(
            f"the {part} of {shown} is Python code that the checkpoint brings; read it, and --trust-remote-code runs it"
        )
    if not os.path.isdir(name):
        if why := unreached(error) or (None if is_offline(options) else silence()):
            return _unreached(shown, part, why)
        if why := _refused(error):
            return LoadError(f"the hub does not hand out the {part} of '{shown}': {why}")
        return not_found(name, part, options, None if split_name(name)[1] else first_sentence(error))
    if part == "model" and not any(file.endswith(".safetensors") for file in os.listdir(name)) and options.allow_pickle:
        return LoadError(f"the pickle of {shown} holds more than tensors or is damaged; nothing in it was run")
    return LoadError(
        f"the {part} of {shown} cannot be loaded: {first_sentence(error)}; check that the folder is complete"
    )


def _unreached(shown: str, part: str, why: str) -> LoadError:
    return LoadError(
        f"the hub could not be reached, the {part} of '{shown}' is not in the local cache, and there is no such folder"
        f"{nearby(shown) or '; check the connection, or give the folder of a downloaded checkpoint'} ({why})"
    )


def not_found(name: str, part: str, options: LoadOptions, why: str | None = None) -> LoadError:
    """Return the error for a part of a checkpoint that is nowhere; `why` is what the hub's client said."""
    where = "in the local cache" if is_offline(options) else "on the hub or in the local cache"
    return LoadError(
        f"the {part} of '{visible(name)}' was not found {where}, and there is no such folder"
        f"{nearby(name) or '; check the name, or give the folder of a downloaded checkpoint'}"
        f"{'' if why is None else f' ({why})'}"
    )


def unreached(error: BaseException) -> str | None:
    """Return why the hub could not be reached; None where it answered, or was not to be asked."""
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    if _put_off and monotonic() < _put_off[-1][0]:
        return _put_off[-1][1]
    for behind in _chain(error):
        cause = behind.__cause__
        # What the client raises where it has looked into the local cache alone.
        if isinstance(behind, LocalEntryNotFoundError) and cause and not isinstance(cause, OfflineModeIsEnabled):
            return first_sentence(cause)
        if isinstance(behind, transient()):
            return first_sentence(behind)
    return None


def _refused(error: BaseException) -> str | None:
    """Return why the hub does not hand out what it has, and what to do; None where it has no such thing."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    absent = (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError)
    for behind in _chain(error):
        if isinstance(behind, GatedRepoError):
            return (
                "it is gated; ask for access on its page on the hub, and give your token by hf auth login or HF_TOKEN"
            )
        if isinstance(behind, HfHubHTTPError) and not isinstance(behind, absent):
            return f"{first_sentence(behind)}; check your token, or try again later"
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    behind: BaseException | None = error
    while behind is not None:
        yield behind
        behind = behind.__cause__ or behind.__context__


def client() -> Any:
    """Return how the hub's client asks, of which mypy does not see that it is public."""
    from huggingface_hub import utils

    return utils


def transient() -> tuple[type[Exception], ...]:
    """Return the errors after which the hub's client tries again."""
    return inspect.signature(client().http_stream_backoff).parameters["retry_on_exceptions"].default


def is_exhausted(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _EXHAUSTED)


def first_sentence(error: BaseException) -> str:
    """Return what a library said, without its advice and its line breaks."""
    text = ADDRESS.sub("", " ".join(str(error).split())) or type(error).__name__
    return visible(text.partition(". ")[0][:300].rstrip("."))


def download_adapter(name: str, options: LoadOptions) -> bool:
    """Download an adapter that is not, or not whole, in the local cache; return whether there is one that was not.

    Raises:
        LoadError: some of its files could not be had.
    """
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    if split_name(name)[1]:
        return False
    revision = options.revision or "main"
    folder = snapshot(name, revision)
    is_there = has_adapter_weights(folder) if is_adapter(folder) else is_known(folder, ADAPTER)
    if is_there or is_local(name, options):
        return False
    try:
        hf_hub_download(name, ADAPTER, revision=revision)
    except (HfHubHTTPError, LocalEntryNotFoundError):  # it has none, or the hub does not answer
        return False
    with explained(name, "adapter", options):
        snapshot_download(name, revision=revision, allow_patterns=_OF_ADAPTER, tqdm_class=Download)
    return has_adapter_weights(snapshot(name, revision))


def download_weights(name: str, options: LoadOptions) -> None:
    """Download the weights of a checkpoint into the local cache: safetensors files, or pickles where it has no others.

    Raises:
        Exception: of the client.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    def fetch(file: str) -> str:
        return hf_hub_download(
            name,
            file,
            revision=options.revision,
            local_files_only=is_local(name, options),
            tqdm_class=Download,
        )

    def fetch_all(index: str, alone: str) -> None:
        try:
            fetch(index)
        except EntryNotFoundError:
            fetch(alone)
            return
        for file in sorted(set(shards_of(snapshot(name, options.revision or "main"), index).values())):
            fetch(file)

    try:
        fetch_all(INDEX, ALONE)
    except EntryNotFoundError:
        if not options.allow_pickle:
            raise
        fetch_all(PICKLE_INDEX, PICKLE)


class Download(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A progress bar for the hub's client that logs in place of drawing."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, file=io.StringIO())

    def display(self, *_: Any, **__: Any) -> None:
        """Log the name of the file, how much of it has come, and its size."""
        size = "" if self.total is None else f" of {bytes_shown(self.total)}"
        share = self.n / self.total if self.total else None
        name = (self.desc or "a file").rpartition("/")[2]
        _log.debug("downloading %s: %s%s", name, bytes_shown(self.n), size, extra={"share": share})
