"""What a command's options ask to derive, and which layers a source has to record for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attncli.derived import parse_over
from attncli.errors import UsageError
from attncli.trace.selection import Indices
from attncli.trace.trace import Derivation


def derivation_of(given: Mapping[str, Any]) -> tuple[Derivation, dict[str, Any]]:
    """Return what is to be derived, and the options with the layers that it needs.

    A rollout needs every layer up to the one that is shown, by default the last one; what is reduced over layers is
    reduced over all of them unless some were chosen.

    Args:
        given: options by the name of their parameter; those that were not given are left out.

    Raises:
        UsageError: they do not go together.
    """
    if "over" in given and "reduce" not in given:
        raise UsageError("--over says what --reduce merges; give --reduce mean or --reduce max")
    if "words" in given and "generate" in given:
        raise UsageError("--words merges pieces by their places in the text, and what --generate writes has none")
    over = parse_over(given.get("over"))
    is_rollout, asked = "rollout" in given, dict(given)
    spans_layers = "reduce" in given and "layers" in over
    if is_rollout and "head" in given:
        raise UsageError("--rollout is the mean over all heads of a layer; drop --head")
    chosen = given.get("layer", "all" if spans_layers else None)
    layers = None
    if is_rollout:
        layers = None if chosen is None else Indices.of("layer", chosen)
    wish = Derivation("norms" in given, is_rollout, "words" in given, given.get("reduce"), over, layers)
    if is_rollout and not ("from_" in given and chosen is None):
        asked["layer"] = (layers or Indices.of("layer", -1)).and_below
    elif spans_layers and "from_" not in given:
        asked["layer"] = chosen
    return wish, asked
