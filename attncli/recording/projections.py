"""Which linear layer queries and keys come from: a layer called after keys makes no queries.

What a layer gave is known by its storage, which all views of it have, in every mode of autograd.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Literal, NamedTuple
from weakref import ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from attncli.masks.findings import Finding

_MOST = 32  # outputs of layers that are remembered

_BEFORE, _AFTER = r"(?:to|w|lin|linear|fc|proj|c|in)?_?", r"_?(?:proj|projection|lin|linear|layer|net|fc|w|s)?"
_QUERIES = re.compile(rf"{_BEFORE}(?:q|qs|query|queries){_AFTER}", re.IGNORECASE)
_KEYS = re.compile(rf"{_BEFORE}(?:k|ks|key|keys){_AFTER}", re.IGNORECASE)


class _Projection(NamedTuple):
    storage: StorageWeakRef
    layer: ref[torch.nn.Module]


class Projected:
    """What linear layers gave last, as long as it lives."""

    def __init__(self) -> None:
        self._made: OrderedDict[int, _Projection] = OrderedDict()

    def put(self, output: torch.Tensor, layer: torch.nn.Module) -> None:
        """Remember what a layer gave."""
        storage = output.untyped_storage()
        self._made[storage._cdata] = _Projection(StorageWeakRef(storage), ref(layer))  # type: ignore[no-untyped-call]
        if len(self._made) > _MOST:
            self._made.popitem(last=False)

    def name(self, tensor: torch.Tensor, module: torch.nn.Module) -> str | None:
        """Return what a module calls its layer that gave a tensor."""
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # it has no storage
            return None
        made = self._made.get(tensor.untyped_storage()._cdata)
        if made is None or made.storage.expired():  # type: ignore[no-untyped-call]
            return None
        layer = made.layer()
        return next((name for name, child in module.named_children() if child is layer), None)


def swapped(
    projected: Projected, module: torch.nn.Module | None, query: torch.Tensor, key: torch.Tensor
) -> tuple[Finding, ...]:
    """Return that queries and keys have each other's place, where the names of their layers in a module say so."""
    if module is None:
        return ()
    names = [projected.name(each, module) for each in (query, key)]
    if None in names or [_role(name or "") for name in names] != ["key", "query"]:
        return ()
    message = f"queries come from {names[0]} and keys from {names[1]}: they have each other's place"
    return (Finding("swapped", "error", message, advice="scores are q @ k.transpose(-2, -1)"),)


def _role(name: str) -> Literal["query", "key"] | None:
    return "query" if _QUERIES.fullmatch(name) else "key" if _KEYS.fullmatch(name) else None
