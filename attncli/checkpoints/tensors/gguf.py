"""GGUF files: their metadata, and their tensors by the names and in the order of rows that transformers has.

<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. The `gguf` package dequantizes. A file of 1 MB can make its
reader take 700 MB; so the header is read here, within the bounds of the file. The changes that llama.cpp's converter
makes to tensors are undone: <https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py>.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attncli.checkpoints.checkpoint_folder import check_utf8
from attncli.checkpoints.tensors import Array, Store, Stored
from attncli.errors import LoadError, require
from attncli.files import check_file
from attncli.text import visible

_PLAIN = {0: ("F32", "<f4"), 1: ("F16", "<f2"), 30: ("BF16", "<u2")}  # types of tensors that are not quantized
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_COUNT = 1 << 21  # of fields, tensors and entries of a list; the largest vocabularies have half a million merges


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    type: int  # GGUF's number
    start: int  # in the file


class GgufFile:
    """A GGUF file, mapped into memory: its `metadata` by field, and the `shapes` of its tensors by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        check_utf8(path)
        try:
            check_file(path)
            with open(path, "rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise self.damaged(getattr(error, "strerror", None) or str(error)) from None
        if self._bytes[:4] != b"GGUF":
            raise self.damaged("it does not begin as one")
        self._at = 4
        try:
            self.metadata, self._tensors = self._read_header()
        except struct.error:
            raise self.damaged("it ends before its header does") from None
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}

    def damaged(self, why: str) -> LoadError:
        """Return the error for a damaged file."""
        return LoadError(f"the GGUF file {visible(str(self.path))} cannot be read: {visible(why)}")

    def dtype(self, name: str) -> str:
        """Return the type of a tensor's numbers, as safetensors calls it; empty for one that is quantized."""
        return _PLAIN.get(self._tensors[name].type, ("",))[0]

    def read(self, name: str, rows: Sequence[int] | None = None) -> Array:
        """Return a tensor, or some of its rows; only their blocks are dequantized."""
        shape, type_, _ = self._tensors[name]
        blocks = self.blocks(name)
        if rows is not None:
            blocks, shape = blocks.reshape(shape[0], -1)[list(rows)].reshape(-1), (len(rows), *shape[1:])
        if type_ in _PLAIN:
            return blocks.view(_PLAIN[type_][1]).reshape(shape)
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        kind = GGMLQuantizationType(type_)
        try:
            with np.errstate(all="ignore"):  # scales that are not finite
                return dequantize(blocks, kind).reshape(shape)
        except NotImplementedError:
            raise self.damaged(f"the gguf package does not read its type {kind.name}") from None

    def blocks(self, name: str) -> Array:
        """Return the bytes of a tensor; LoadError if it is incomplete, or of an unknown type."""
        shape, type_, start = self._tensors[name]
        if type_ in _PLAIN:
            block, size = 1, np.dtype(_PLAIN[type_][1]).itemsize
        else:
            require(f"{visible(str(self.path))}, whose tensors are quantized,", "gguf")
            from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

            try:
                block, size = GGML_QUANT_SIZES[GGMLQuantizationType(type_)]
            except (KeyError, ValueError):
                raise self.damaged(f"{name} is of type {type_}, which is not known") from None
        length = prod(shape) // block * size
        if (shape or (1,))[-1] % block or not length or start + length > len(self._bytes):
            raise self.damaged(f"{name} of shape {list(shape)} is not whole")
        return np.frombuffer(self._bytes, np.uint8, length, start)

    def _read_header(self) -> tuple[dict[str, Any], dict[str, _Tensor]]:
        if (version := self._scalar("I")) not in (2, 3):
            raise self.damaged(f"it is of version {version}, expected 2 or 3")
        tensors, fields = self._count("tensors"), self._count("fields")
        metadata = {self._string(): self._value(self._scalar("I")) for _ in range(fields)}
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1:
            raise self.damaged(f"its alignment is {alignment!r}")
        table: dict[str, _Tensor] = {}
        for _ in range(tensors):
            name, axes = self._string(), self._scalar("I")
            if axes > 4 or name in table:
                raise self.damaged(f"it has {name} twice, or with {axes} axes")
            # The axis of adjacent numbers comes first.
            shape = tuple(self._scalar("Q") for _ in range(axes))[::-1]
            table[name] = _Tensor(shape, self._scalar("I"), self._scalar("Q"))
        data = -(-self._at // alignment) * alignment
        return metadata, {name: tensor._replace(start=data + tensor.start) for name, tensor in table.items()}

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from("<" + form, self._bytes, self._at)
        self._at += struct.calcsize("<" + form)
        return value

    def _skip(self, size: int) -> int:
        """Skip bytes, and return the position before them."""
        if size > len(self._bytes) - self._at:
            raise struct.error
        self._at += size
        return self._at - size

    def _count(self, what: str) -> int:
        if (count := self._scalar("Q")) > _MAX_COUNT:
            raise self.damaged(f"it claims to have {count} {what}")
        return count

    def _string(self) -> str:
        start = self._skip(self._scalar("Q"))
        return self._bytes[start : self._at].decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        of = self._scalar("I") if kind == _ARRAY else None
        if of != _STRING and of not in _SCALARS:
            raise self.damaged(f"it has a field of type {kind if of is None else f'{kind} of {of}'}")
        count = self._count("entries in a list")
        if of == _STRING:
            return [self._string() for _ in range(count)]
        dtype = np.dtype(f"<{_SCALARS[of]}")
        return np.frombuffer(self._bytes, dtype, count, self._skip(count * dtype.itemsize))


_LAYER = re.compile(r"blk\.(\d+)\.")
_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "model.layers.{}.input_layernorm", "attn_q": "model.layers.{}.self_attn.q_proj",
    "attn_k": "model.layers.{}.self_attn.k_proj", "attn_v": "model.layers.{}.self_attn.v_proj",
    "attn_output": "model.layers.{}.self_attn.o_proj", "attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "attn_k_norm": "model.layers.{}.self_attn.k_norm", "ffn_norm": "model.layers.{}.post_attention_layernorm",
    "ffn_gate": "model.layers.{}.mlp.gate_proj", "ffn_up": "model.layers.{}.mlp.up_proj",
    "ffn_down": "model.layers.{}.mlp.down_proj",
}  # fmt: skip
ARCHITECTURES = ("llama", "qwen2", "qwen3")
FREQUENCIES = "rope_freqs.weight"  # part of the configuration; see `attncli.engines.numpy.gguf_config`


class Gguf(Store):
    """The tensors of a GGUF file, whose architecture is one of `ARCHITECTURES`."""

    def __init__(self, file: GgufFile) -> None:
        for name in file.shapes:
            file.blocks(name)  # raises its errors before anything is computed
        self._file = file
        self.form = "" if all(map(file.dtype, file.shapes)) else "GGUF, dequantized"
        # Name of each tensor in the file, and its number of heads, if the order of their rows is undone.
        self._sources = dict(_source(file, name) for name in file.shapes if name != FREQUENCIES)
        self.names = self._sources.keys()

    def stored(self, name: str) -> Stored:
        """See `Store.stored`."""
        source, _ = self._sources[name]
        return Stored(self._file.dtype(source) or "F32", self._file.shapes[source])

    def precision(self, name: str) -> str:
        """See `Store.precision`."""
        source, _ = self._sources[name]
        is_plain, stored = self._file.dtype(source), self._file.blocks(source).nbytes
        has_8_bits = stored >= prod(self._file.shapes[source])
        return super().precision(name) if is_plain else "int8" if has_8_bits else "int4"

    def read(self, name: str) -> Array:
        """See `Store.read`; of queries and keys, transformers rotates a half of each head with the other.

        In the file, the two rows that are rotated together are adjacent.
        """
        source, heads = self._sources[name]
        array = self._file.read(source)
        if not heads:
            return array
        pairs = array.reshape(heads, -1, 2, *array.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)

    def rows(self, name: str, indices: Sequence[int]) -> Array:
        """See `Store.rows`."""
        source, heads = self._sources[name]
        return super().rows(name, indices) if heads else self._file.read(source, indices)


def _source(file: GgufFile, name: str) -> tuple[str, tuple[str, int]]:
    """Return the name of a tensor in a checkpoint, and how it is read: see `Gguf`."""
    architecture, rows, layer = file.metadata["general.architecture"], file.shapes[name][:1], _LAYER.match(name)
    part, _, kind = name[layer.end() if layer else 0 :].rpartition(".")
    full_name = _NAMES.get(part, "")
    if not full_name or ("{}" in full_name) != bool(layer):
        raise file.damaged(f"it has a tensor {name}, which no {architecture} has")
    full_name = f"{full_name.format(layer and layer[1])}.{kind}"
    if architecture != "llama" or part not in ("attn_q", "attn_k"):
        return full_name, (name, 0)
    heads = file.metadata.get("llama.attention.head_count")
    if part == "attn_k":
        heads = file.metadata.get("llama.attention.head_count_kv", heads)
    if type(heads) is not int or heads < 1 or not rows or rows[0] % (2 * heads):
        raise file.damaged(f"{name} has {rows} rows for {heads!r} heads")
    return full_name, (name, heads)
