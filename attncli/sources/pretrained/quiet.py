"""What transformers and the libraries below it would say on our streams, or to others, silenced."""

from __future__ import annotations

import logging
import os

# Read when the libraries are imported: progress bars, and the tokenizers' warning of a fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# And no call that nobody asked for: transformers would ask a service of the hub to convert a pickle.
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def hush() -> None:
    """Import transformers' own logging, and let it and the hub's client say nothing."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries; the outcome is said in one sentence
