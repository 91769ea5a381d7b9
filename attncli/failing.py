"""How a run fails: one sentence on stderr and an exit code; with ATTN_DEBUG, the traceback before it."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress

from attncli.errors import AttnError, ExitCode
from attncli.terminal import complain
from attncli.text import visible
from attncli.trace.tokens import brief


def failed(error: Exception) -> ExitCode:
    """Say why a run ends, and return the exit code that it ends with.

    An exception that is not one of ours is a bug, and is called one; for a script it is an input that was not read.
    """
    if os.environ.get("ATTN_DEBUG", "0") not in ("", "0"):
        _trace(error)
    if isinstance(error, AttnError):
        complain(str(error))
        return error.exit_code
    if isinstance(error, MemoryError):
        complain("out of memory; give fewer tokens, layers or heads")
        return ExitCode.INPUT
    said = " ".join(f"{type(error).__name__}: {error}".split())
    complain(f"this is a bug in attn, please report it: {said[:300]}; ATTN_DEBUG=1 shows where")
    return ExitCode.INPUT


def _trace(error: Exception) -> None:
    """Write the traceback to stderr, of what lies behind the error too, and harmless whatever it quotes."""
    behind: BaseException | None = error
    while behind is not None:
        behind.__suppress_context__ = False  # of those that were raised `from None`, for the sentence's sake
        behind = behind.__context__
    lines = "".join(traceback.format_exception(error)).splitlines()
    with suppress(OSError):
        sys.stderr.write("".join(f"{visible(brief(line))}\n" for line in lines))
