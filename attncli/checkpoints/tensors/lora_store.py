"""The tensors of a model with an adapter: those that it changes are computed where they are read, in float32.

They are what peft's merge_and_unload makes of the weights, which is what its model computes unmerged too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.checkpoints.tensors import Store, Stored
from attncli.errors import LoadError
from attncli.files import widened
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.checkpoints.adapter import Adapter, Change

_FLOATS = ("F64", "F32", "F16", "BF16")


class Adapted:
    """The tensors of a model with an adapter; see `attncli.checkpoints.tensors.Store`.

    Attributes:
        form: of the model's tensors.
        names: of the model's tensors, and of those that the adapter has for parts which the files of the model lack,
            such as a head of its own.
        resized: how many rows the adapter's own tables have, by how many the model's have: it may know more tokens.

    Raises:
        LoadError: the adapter does not fit the model.
    """

    def __init__(self, base: Store, adapter: Adapter) -> None:
        self._base = base
        self.form = base.form
        self._adapter = adapter
        self._changes: dict[str, Change] = {}
        self._whole: dict[str, np.ndarray[Any, Any]] = {}
        self._added: dict[str, np.ndarray[Any, Any]] = {}
        self.resized: dict[int, int] = {}
        named = _by_ends(base.names)
        for tensor, array in adapter.whole.items():
            if found := self._found(named, tensor, self._whole):
                self._replace(found, array)
            else:
                self._added[tensor] = array
        for module, change in adapter.changes.items():
            if found := self._found(named, f"{module}.weight", self._changes):
                self._change(found, change)
            else:
                self._added |= {f"{module}.{part}": array for part, array in change.parts.items()}
        if not self._changes and not self._whole:
            raise self._misfit(next(iter(self._added)), "which its base does not have")
        self.names: Collection[str] = {**dict.fromkeys(base.names), **dict.fromkeys(self._added)}.keys()

    def _misfit(self, tensor: str, what: str) -> LoadError:
        return LoadError(
            f"the adapter {visible(self._adapter.name)} changes {visible(tensor)}, {what}; --base names the model that "
            "it was made for"
        )

    def _found(self, named: Mapping[str, list[str]], tensor: str, taken: Collection[str]) -> str | None:
        """Return the model's name of a tensor; None for one outside the layers that the model does not have.

        Either may have been saved without the head that the other has on top, so that names differ in how they begin.
        """
        parts = tensor.split(".")
        layer = next((place for place, part in enumerate(parts) if part.isdigit()), None)
        for start in range(max(len(parts) - 1 if layer is None else layer, 1)):
            found = named.get(".".join(parts[start:]), [])
            found = [tensor] if tensor in found else found
            found = _nearest(found, parts[:start])
            if len(found) > 1:
                raise self._misfit(tensor, f"which may be {visible(found[0])} or {visible(found[1])} of its base")
            if found and found[0] in taken:
                raise self._misfit(tensor, f"and so {visible(found[0])} of its base a second time")
            if found:
                return found[0]
        if layer is None:
            return None
        raise self._misfit(tensor, "which its base does not have")

    def _replace(self, tensor: str, array: np.ndarray[Any, Any]) -> None:
        """Take note of a tensor in place of the model's, after checking that it fits."""
        shape = self._base.stored(tensor).shape
        if array.shape != shape:
            if len(shape) != 2 or array.shape[1:] != shape[1:]:
                raise self._misfit(tensor, f"to one of shape {list(array.shape)}, where its base has {list(shape)}")
            self.resized[shape[0]] = len(array)
        self._whole[tensor] = array

    def _change(self, tensor: str, change: Change) -> None:
        """Take note of a change, after checking that it fits."""
        stored = self._base.stored(tensor)
        if stored.type not in _FLOATS:
            raise self._misfit(tensor, f"which its base stores as {stored.type}, quantized")
        shape = self._whole[tensor].shape if tensor in self._whole else stored.shape
        if not _fits(change, shape, self._adapter.is_transposed):
            raise self._misfit(tensor, f"by tensors that do not fit the shape {list(shape)} which it has in its base")
        self._changes[tensor] = change
        bias = tensor.removesuffix("weight") + "bias"
        if (outputs := _of_bias(change)) is None:
            return
        if bias in self._base.names and self.stored(bias).shape == (outputs,):
            self._changes[bias] = change
        elif bias in self._base.names or change.kind == "LORA":
            raise self._misfit(bias, "which is none that its base has")

    def stored(self, name: str) -> Stored:
        """See `attncli.checkpoints.tensors.Store.stored`."""
        own = self._whole if name in self._whole else self._added
        if name in own:
            return Stored("F32", own[name].shape)
        stored = self._base.stored(name)
        return Stored("F32", stored.shape) if name in self._changes else stored

    def _unchanged(self, name: str) -> np.ndarray[Any, Any]:
        """Return a tensor before it is changed: the model's, or what stands in place of it."""
        own = self._whole if name in self._whole else self._added
        return widened(own[name]) if name in own else self._base.read(name)

    def prepare(self, names: Collection[str]) -> None:
        """See `attncli.checkpoints.tensors.Store.prepare`."""
        self._base.prepare(names)

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """See `attncli.checkpoints.tensors.Store.read`."""
        tensor = self._unchanged(name)
        if name not in self._changes:
            return tensor
        made = _bias if tensor.ndim == 1 else _FORMULAS[self._changes[name].kind]
        return made(widened(tensor), self._changes[name], self._adapter.is_transposed)

    def rows(self, name: str, indices: Sequence[int]) -> np.ndarray[Any, Any]:
        """See `attncli.checkpoints.tensors.Store.rows`."""
        if name in self._whole:
            return (
                self.read(name)[list(indices)] if name in self._changes else widened(self._whole[name][list(indices)])
            )
        if name not in self._changes:
            return self._base.rows(name, indices)
        change = self._changes[name]
        parts = change.parts
        if change.kind == "LORA" and "lora_embedding_A" in parts and "lora_magnitude_vector" not in parts:
            own = widened(parts["lora_embedding_A"][:, list(indices)]).T @ widened(parts["lora_embedding_B"]).T
            return widened(self._base.rows(name, indices)) + own * np.float32(change.scale)
        return self.read(name)[list(indices)]


def _nearest(names: list[str], above: Sequence[str]) -> list[str]:
    """Return the names that share the most parts with what stands above: two towers may have layers of one name."""
    shared = [len(set(above) & set(name.split("."))) for name in names]
    return [name for name, count in zip(names, shared, strict=True) if count == max(shared)]


def _by_ends(names: Collection[str]) -> dict[str, list[str]]:
    """Return the names by each of their ends that may be all of a name elsewhere, the number of a layer kept."""
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        layer = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
        for start in range(max(layer, 1)):
            found.setdefault(".".join(parts[start:]), []).append(name)
    return found


# --- the formulas ------------------------------------------------------------------------------------------


def _product(change: Change, one: str, other: str) -> Float[np.ndarray, "R C"]:
    return widened(change.parts[one]) @ widened(change.parts[other])


def _shape(change: Change) -> tuple[int, ...]:
    """Return the shape of what is added to a weight, as [out, in]."""
    parts = change.parts
    if change.kind == "LOHA":
        return _product_shape(change, "hada_w1")
    if change.kind == "LOKR":
        outer, inner = (_product_shape(change, f"lokr_w{each}") for each in (1, 2))
        return outer[0] * inner[0], outer[1] * inner[1]
    if "lora_embedding_A" in parts:
        return parts["lora_embedding_A"].shape[1], len(parts["lora_embedding_B"])
    return len(parts["lora_B"]), parts["lora_A"].shape[1]


def _product_shape(change: Change, name: str) -> tuple[int, ...]:
    """Return the shape of a factor, which is there whole or as a product of two."""
    whole = change.parts.get(name)
    return (len(change.parts[f"{name}_a"]), change.parts[f"{name}_b"].shape[1]) if whole is None else whole.shape


def _fits(change: Change, shape: tuple[int, ...], is_transposed: bool) -> bool:
    """Return whether a change is one of a weight of this shape."""
    shapes = {name: array.shape for name, array in change.parts.items()}
    if len(shape) != 2 or any(len(each) > 2 for each in shapes.values()):
        return False
    if change.kind == "TOKENS":
        rows = shapes["token_adapter.trainable_tokens_delta"]
        return rows[1:] == shape[1:] and all(token < shape[0] for token in change.tokens)
    if change.kind == "IA3":
        outputs, inputs = shape[::-1] if is_transposed else shape
        return shapes["ia3_l"] in ((outputs, 1), (1, inputs))
    if change.kind == "LOHA" and _product_shape(change, "hada_w1") != _product_shape(change, "hada_w2"):
        return False
    if change.kind == "LOKR" and any(len(_product_shape(change, f"lokr_w{each}")) != 2 for each in (1, 2)):
        return False
    own = _shape(change)
    is_table = "lora_embedding_A" in shapes
    for part, length in (("lora_magnitude_vector", own[is_table]), ("lora_B.bias", own[0])):
        if shapes.get(part, (length,)) != (length,):
            return False
    return own == shape or (change.kind == "LORA" and not is_table and own[::-1] == shape)


def _of_bias(change: Change) -> int | None:
    """Return how many outputs' bias is changed with the weight, None if it is not."""
    if change.kind == "IA3":
        return len(change.parts["ia3_l"]) if change.parts["ia3_l"].shape[1] == 1 else None
    return len(change.parts["lora_B.bias"]) if "lora_B.bias" in change.parts else None


def _bias(bias: Float[np.ndarray, " N"], change: Change, _: bool) -> Float[np.ndarray, " N"]:
    if change.kind == "IA3":
        return bias * widened(change.parts["ia3_l"])[:, 0]
    return bias + widened(change.parts["lora_B.bias"]) * np.float32(change.scale)


def _lora(weight: Float[np.ndarray, "R C"], change: Change, is_transposed: bool) -> Float[np.ndarray, "R C"]:
    """Return W + s·B·A, and with a magnitude m of each output, m·(W + s·B·A) / ‖W + s·B·A‖."""
    is_table = "lora_embedding_A" in change.parts
    own = _shape(change)
    # GPT-2 and its kin store [in, out]; where a matrix is square, only the configuration says so.
    is_turned = not is_table and (is_transposed if own == own[::-1] else own != weight.shape)
    added = _product(change, *(("lora_embedding_B", "lora_embedding_A") if is_table else ("lora_B", "lora_A")))
    made = weight + (added.T if is_table or is_turned else added) * np.float32(change.scale)
    if "lora_magnitude_vector" not in change.parts:
        return made
    over = 0 if is_table or is_turned else 1  # the norm of an embedding is over the vocabulary
    magnitude = np.expand_dims(widened(change.parts["lora_magnitude_vector"]), over)
    return magnitude * made / np.linalg.norm(made, axis=over, keepdims=True)


def _ia3(weight: Float[np.ndarray, "R C"], change: Change, is_transposed: bool) -> Float[np.ndarray, "R C"]:
    """Return W with its outputs scaled, or its inputs in a feed-forward layer."""
    factors = widened(change.parts["ia3_l"])
    return weight * (factors.T if is_transposed else factors)


def _loha(weight: Float[np.ndarray, "R C"], change: Change, _: bool) -> Float[np.ndarray, "R C"]:
    both = _product(change, "hada_w1_a", "hada_w1_b") * _product(change, "hada_w2_a", "hada_w2_b")
    return weight + both * np.float32(change.scale)


def _lokr(weight: Float[np.ndarray, "R C"], change: Change, _: bool) -> Float[np.ndarray, "R C"]:
    factors = (
        widened(change.parts[name]) if name in change.parts else _product(change, f"{name}_a", f"{name}_b")
        for name in ("lokr_w1", "lokr_w2")
    )
    return weight + np.kron(*factors) * np.float32(change.scale)


def _with_rows(weight: Float[np.ndarray, "R C"], change: Change, _: bool) -> Float[np.ndarray, "R C"]:
    """Return a table in which the adapter's rows stand in place of those of their tokens."""
    made = weight.copy()
    made[list(change.tokens)] = widened(change.parts["token_adapter.trainable_tokens_delta"])
    return made


_FORMULAS = {"LORA": _lora, "IA3": _ia3, "LOHA": _loha, "LOKR": _lokr, "TOKENS": _with_rows}
