"""GGUF files: their metadata, and their tensors by the names and in the order of rows that transformers has.

<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. The `gguf` package dequantizes. Its reader takes 700
bytes and 15 µs for every entry of every list, so that a file of 1 MB can make it take 700 MB; the header is read here,
within the bounds of the file. The changes that llama.cpp's converter makes to tensors are undone:
<https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py>.
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
_VERSIONS = (2, 3)
_MAX_COUNT = 1 << 21  # of fields, tensors and entries of a list; the largest vocabularies have half a million merges
_MAX_AXES = 4


class _Tensor(NamedTuple):
    """Shape of a tensor, its position in the file, and GGUF's number of its type."""

    shape: tuple[int, ...]
    type: int
    start: int


class GgufFile:
    """A GGUF file, mapped into memory.

    Attributes:
        metadata: its fields.
        shapes: those of its tensors, by the names that they have in the file.
    """

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

    @property
    def is_quantized(self) -> bool:
        """Whether any of its tensors is."""
        return any(tensor.type not in _PLAIN for tensor in self._tensors.values())

    def dtype(self, name: str) -> str:
        """Return the type of the numbers that a tensor is read as, as safetensors calls it."""
        return _PLAIN.get(self._tensors[name].type, ("F32",))[0]

    def check_tensors(self) -> None:
        """Raise LoadError if a tensor is incomplete, of an unknown type, or needs a package that is missing."""
        for name in self._tensors:
            self._blocks(name)

    def read(self, name: str, rows: Sequence[int] | None = None) -> Array:
        """Return a tensor, or some of its rows; only their blocks are dequantized."""
        shape, type_, _ = self._tensors[name]
        blocks = self._blocks(name)
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

    def _blocks(self, name: str) -> Array:
        """Return the bytes of a tensor."""
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
        if (version := self._scalar("I")) not in _VERSIONS:
            raise self.damaged(f"it is of version {version}, expected 2 or 3")
        tensors, fields = self._count("tensors"), self._count("fields")
        metadata = {self._string(): self._value(self._scalar("I")) for _ in range(fields)}
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1:
            raise self.damaged(f"its alignment is {alignment!r}")
        table: dict[str, _Tensor] = {}
        for _ in range(tensors):
            name, axes = self._string(), self._scalar("I")
            if axes > _MAX_AXES or name in table:
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


# --- as transformers has them ---------------------------------------------------------------------------------------

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
        file.check_tensors()
        self._file = file
        self.form = "GGUF, dequantized" if file.is_quantized else ""
        # Name of each tensor in the file, and its number of heads, if the order of their rows is undone.
        self._sources = dict(_source(file, name) for name in file.shapes if name != FREQUENCIES)
        self.names = self._sources.keys()

    def stored(self, name: str) -> Stored:
        """See `Store.stored`."""
        source, _ = self._sources[name]
        return Stored(self._file.dtype(source), self._file.shapes[source])

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
    architecture, shape = file.metadata["general.architecture"], file.shapes[name]
    layer = _LAYER.match(name)
    part, _, kind = name[layer.end() if layer else 0 :].rpartition(".")
    full_name = _NAMES.get(part)
    if full_name is None or ("{}" in full_name) != bool(layer):
        raise file.damaged(f"it has a tensor {name}, which no {architecture} has")
    full_name = f"{full_name.format(layer.group(1)) if layer else full_name}.{kind}"
    if architecture != "llama" or part not in ("attn_q", "attn_k"):
        return full_name, (name, 0)
    heads = file.metadata.get("llama.attention.head_count")
    if part == "attn_k":
        heads = file.metadata.get("llama.attention.head_count_kv", heads)
    if type(heads) is not int or heads < 1 or shape[0] % (2 * heads):
        raise file.damaged(f"{name} has {shape[0]} rows for {heads!r} heads")
    return full_name, (name, heads)
