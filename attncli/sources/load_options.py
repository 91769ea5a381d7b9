"""How a checkpoint is opened: the options that its engines share, and those that choose between them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeVar

from attncli.errors import UsageError
from attncli.sources.options import refuse_unknown
from attncli.text import visible

ENGINES = ("auto", "native", "transformers")
DTYPES = ("auto", "float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class LoadOptions:
    """How a checkpoint is loaded; the fields are the command's options.

    Attributes:
        revision: branch, tag or commit on the hub.
        dtype: of the weights; None is float32 on the CPU and the checkpoint's own on an accelerator.
        device: where it runs.
        offline: use the local cache only.
        trust_remote_code: run the Python code that the checkpoint brings.
        allow_pickle: read .bin weights too, with torch's restricted unpickler.
        device_map: how accelerate spreads the model over several devices, such as `auto`.
        truncate: cut a text to the tokens that the model has positions for.
    """

    revision: str | None = None
    dtype: str | None = None
    device: str = "cpu"
    offline: bool = False
    trust_remote_code: bool = False
    allow_pickle: bool = False
    device_map: str | None = None
    truncate: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be before anything is loaded."""
        if self.device_map is not None:
            if self.device != "cpu":
                raise UsageError("--device and --device-map both say where the model runs; drop one of them")
            if find_spec("accelerate") is None:
                raise UsageError("--device-map needs the accelerate library: pip install 'attncli[accelerate]'")
        if self.dtype not in (None, *DTYPES):
            raise UsageError(f"--dtype '{visible(str(self.dtype))}': expected one of {', '.join(DTYPES)}")


@dataclass(frozen=True)
class EngineOptions(LoadOptions):
    """What computes a checkpoint, and how it is loaded.

    Attributes:
        engine: `transformers`; `native`, in NumPy, for the common families; or `auto`, the native one where it gives
            the same numbers.
        verify: let both compute it, and show how far they are apart.
    """

    engine: str = "auto"
    verify: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be before anything is loaded."""
        super().__post_init__()
        if self.engine not in ENGINES:
            raise UsageError(f"--engine '{visible(str(self.engine))}': expected one of {', '.join(ENGINES)}")
        if self.verify and self.engine == "transformers":
            raise UsageError("--verify compares the native engine with transformers; give --engine native or auto")


_Options = TypeVar("_Options")


def checked_options(model: str, options: Mapping[str, Any], known: type[_Options], place: str) -> _Options:
    """Return options that fit a checkpoint's name.

    Args:
        model: folder or hub name.
        options: by name.
        known: the dataclass that they are fields of.
        place: see `refuse_unknown`.

    Raises:
        UsageError: one of them does not exist, or does not apply.
    """
    refuse_unknown(options, known, place)
    if not isinstance(model, str):
        raise UsageError("model: expected a checkpoint's folder or its name on the hub, as text")
    if os.path.isdir(model) and "revision" in options:
        raise UsageError("--revision names a version on the hub; it does not apply to a folder")
    return known(**options)
