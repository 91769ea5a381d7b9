"""What recipes of several families read alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from attncli.sources.native.blocks import ACTIVATIONS
from attncli.sources.native.fields import DeclinedError, Fields
from attncli.sources.native.recipe import Heads, Hidden


def heads_of(hidden: int, heads: int) -> Heads:
    """Return heads that share a width, each with keys of its own."""
    if hidden % heads:
        raise DeclinedError(f"{heads} heads share a width of {hidden}")
    return Heads(heads, heads, hidden // heads)


def activation_of(
    fields: Fields, name: str, usual: str, meant: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Hidden], Hidden]:
    """Return the activation that a field names, some of which mean another one."""
    said = fields.take(name, usual, among=ACTIVATIONS)
    return ACTIVATIONS[meant.get(said, said)]
