"""What the libraries below raise, turned into one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attncli.errors import AttnError, InputError, LoadError
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.sources.load_options import LoadOptions

# Torch's allocator for the CPU has no class of its own for this.
_EXHAUSTED = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory", "unable to mmap", "out of memory")


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
    except Exception as error:  # the libraries below raise nearly everything
        raise _sentence(error, name, part, options) from None


def _sentence(error: Exception, name: str, part: str, options: LoadOptions) -> AttnError:
    shown = visible(name)
    if is_exhausted(error):
        return InputError(f"{shown} does not fit into the memory of this machine")
    if not os.path.isdir(name):
        if why := unreached(error):
            return LoadError(
                f"the hub could not be reached, the {part} of '{shown}' is not in the local cache, and there is no "
                f"such folder; check the connection, or give the folder of a downloaded checkpoint ({why})"
            )
        from huggingface_hub import is_offline_mode

        where = "in the local cache" if options.offline or is_offline_mode() else "on the hub or in the local cache"
        return LoadError(
            f"the {part} of '{shown}' was not found {where}, and there is no such folder; check the name, or "
            f"give the folder of a downloaded checkpoint ({first_sentence(error)})"
        )
    if part == "model" and not any(file.endswith(".safetensors") for file in os.listdir(name)) and options.allow_pickle:
        return LoadError(f"the pickle of {shown} holds more than tensors or is damaged; nothing in it was run")
    return LoadError(
        f"the {part} of {shown} cannot be loaded: {first_sentence(error)}; check that the folder is complete"
    )


def unreached(error: BaseException) -> str | None:
    """Return what kept the hub's client from its hub; None where the hub answered, or was not to be asked."""
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    behind: BaseException | None = error
    while behind is not None:
        cause = behind.__cause__
        # What the client raises where it has looked into the local cache alone.
        if isinstance(behind, LocalEntryNotFoundError) and cause and not isinstance(cause, OfflineModeIsEnabled):
            return first_sentence(cause)
        behind = cause or behind.__context__
    return None


def is_exhausted(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _EXHAUSTED)


def first_sentence(error: BaseException) -> str:
    """Return what a library said, without its advice and its line breaks."""
    text = " ".join(str(error).split()) or type(error).__name__
    return visible(text.partition(". ")[0][:300].rstrip("."))
