"""attncli: see attention happen, with numbers.

    import attncli

    trace = attncli.inspect("time flies like an arrow", "demo", layer=1)
    trace.weights                       # NumPy, [H, Q, K]: rows are queries, columns keys
    trace.layer(1).head(3).weights      # [Q, K]

Importing the package imports nothing heavy; each name is loaded when it is first used.

PYTEST_DONT_REWRITE: `attn run -m pytest` imports this before pytest does, which would warn of it.
"""

from __future__ import annotations

# `typing` would be imported before a Ctrl-C can be quiet; see `signals`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from attncli._version import __version__ as __version__
    from attncli.analysis.ablation import ablate as ablate
    from attncli.analysis.calls import watch as watch
    from attncli.analysis.check import check as check
    from attncli.analysis.derive import derive as derive
    from attncli.analysis.diff import diff as diff
    from attncli.analysis.heads import heads as heads
    from attncli.analysis.mask import mask as mask
    from attncli.analysis.prove import prove as prove
    from attncli.analysis.why import why as why
    from attncli.encoding.pictures import with_pictures as with_pictures
    from attncli.engines import inspect as inspect
    from attncli.engines import open_source as open_source
    from attncli.engines.tokenize import tokenize as tokenize
    from attncli.errors import AttnError as AttnError
    from attncli.trace.store import load as load
    from attncli.trace.trace import Trace as Trace

_HOMES = {
    "__version__": "_version", "AttnError": "errors", "Trace": "trace.trace", "ablate": "analysis.ablation",
    "check": "analysis.check", "derive": "analysis.derive", "diff": "analysis.diff", "heads": "analysis.heads",
    "inspect": "engines", "load": "trace.store", "mask": "analysis.mask", "open_source": "engines",
    "prove": "analysis.prove", "tokenize": "engines.tokenize", "watch": "analysis.calls", "why": "analysis.why",
    "with_pictures": "encoding.pictures",
}  # fmt: skip
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attncli' has no attribute '{name}'")
    from functools import partial
    from importlib import import_module

    from attncli.trace.display import register

    register(partial(import_module, "attncli.formats.python"))
    return getattr(import_module(f"attncli.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
