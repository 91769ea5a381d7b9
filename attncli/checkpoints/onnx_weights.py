"""Quantized matrices of an ONNX graph, as the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import numpy_helper

from attncli.checkpoints.onnx_graph import attributes, read_graph, translated
from attncli.errors import LoadError

Array = np.ndarray[Any, Any]
_MOST_STEPS = 0.4  # the root mean square of what rounding changes
_QUANTIZED = "_quantized"  # end of a name that onnxruntime gives; `_scale` and `_zero_point` stand beside it


class QuantizedMatrix(NamedTuple):
    """A matrix that a graph stores in few bits."""

    node: str  # name of the operator that reads it
    values: Array  # `[rows, columns]`, step·(stored − zero point)
    step: Array  # of each number: rounding changes it by up to half of that

    def is_rounding_of(self, matrix: Array) -> bool:
        """Return whether a matrix gives these numbers when it is rounded."""
        if matrix.shape != self.values.shape:
            return False
        # Rounding alone gives 1/√12 = 0.29 steps; most other matrices show in their first rows.
        few = (slice(0, 8), slice(None))
        return all(
            np.square((matrix[part] - self.values[part]) / self.step[part]).mean() <= _MOST_STEPS**2 for part in few
        )


def quantized_matrices(path: Path) -> Iterator[QuantizedMatrix]:
    """Yield the matrices that onnxruntime's tools quantize; LoadError where they cannot be read."""
    model, _, folder = read_graph(path)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    readers = {name: node.name for node in model.graph.node for name in node.input}

    def read(name: str) -> Array:
        failure = "a quantized weight cannot be read"
        array: Array = translated(LoadError, failure, numpy_helper.to_array, stored[name], folder)
        return array

    for node in model.graph.node:
        if node.op_type == "MatMulNBits" and {*node.input[1:4]} <= {*stored, ""}:
            yield QuantizedMatrix(node.name, *_of_blocks(attributes(node), *map(read, filter(None, node.input[1:4]))))
        for name in (name for name in node.input if name in stored and name.endswith(_QUANTIZED)):
            names = [name.removesuffix(_QUANTIZED) + end for end in ("_scale", "_zero_point")]
            if len(stored[name].dims) == 2 and {*names} <= stored.keys():
                numbers, (step, zero) = read(name), (read(other).astype(np.float32) for other in names)
                if step.size not in (1, numbers.shape[1]):  # one a row
                    step, zero = step[:, None], zero[:, None]
                reader = readers.get(node.output[0], "") if node.op_type == "DequantizeLinear" else node.name
                yield QuantizedMatrix(reader, (numbers - zero) * step, np.broadcast_to(step, numbers.shape))


def _of_blocks(how: dict[str, Any], packed: Array, steps: Array, *zeros: Array) -> tuple[Array, Array]:
    """Return the numbers of MatMulNBits, which has a step for each block of a row, and their steps."""
    bits, rows, columns = how.get("bits", 4), how["N"], how["K"]

    def numbers(array: Array) -> Array:
        array = array.reshape(rows, -1)
        is_packed = bits == 4 and array.dtype == np.uint8
        return np.stack([array & 15, array >> 4], axis=-1).reshape(rows, -1) if is_packed else array

    def of_each(array: Array) -> Array:
        return array.astype(np.float32).repeat(how["block_size"], axis=1)[:, :columns]

    step = of_each(steps.reshape(rows, -1))
    zero = of_each(numbers(*zeros)) if zeros else np.float32(2 ** (bits - 1))
    return (numbers(packed)[:, :columns] - zero) * step, step
