"""What transformers and the libraries below it would say on our streams, or to others, silenced or said as ours."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from attncli.text import visible

_log = logging.getLogger(__name__)

# What reads weights, of transformers' modules.
_READERS = tuple(
    f"transformers.{name}" for name in ("modeling_utils", "core_model_loading", "quantizers", "integrations")
)

# Read when the libraries are imported: progress bars, and the tokenizers' warning of a fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# And no call that nobody asked for: transformers would ask a service of the hub to convert a pickle.
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def hush() -> None:
    """Import transformers' own logging, and let it and the hub's client write nothing."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    hush_hub()


def hush_hub() -> None:
    """Pass on what the hub's client says while it tries again, for half a minute and more, as a step of ours."""
    from huggingface_hub.utils import logging as hub_logging  # which makes a handler of its own

    hub_logging.get_logger().handlers = [_Relay()]


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collect what transformers warns of while weights are read, a sentence each.

    But for its table of tensors that are missing, of another shape or left over: that is judged by us, from the data.
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


class _Relay(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _log.info("the hub's client: %s", record.getMessage())
