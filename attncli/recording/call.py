"""One attention as a running program computed it, before anything is made of it.

A reader (`sdpa`, `mha`, `softmax`, …) makes an `AttentionCall` of what it saw. It holds the program's own tensors and
copies none, so it is to be looked at while the program waits, and not to be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from attncli.masks.conventions import Convention
from attncli.masks.findings import Finding

if TYPE_CHECKING:
    import numpy as np
    import torch
    from jaxtyping import Float
    from torch.multiprocessing.reductions import StorageWeakRef

# What computed it: a function of torch, a hand-written softmax, or another library's function.
Api = Literal["sdpa", "mha", "flex", "softmax", "flash", "xformers"]
ZERO_WHERE_BLIND: frozenset[Api] = frozenset({"sdpa", "flash", "xformers"})  # give 0 for a query that sees no key
LOOKED_FOR = (
    "scaled_dot_product_attention, nn.MultiheadAttention and nn.Transformer, flex_attention, a softmax between two "
    "products, and the functions of flash_attn and xformers"
)


class CallSite(NamedTuple):
    """Place of an attention in a program."""

    file: str  # of the user's code, as seen from the working directory where it is below it
    line: int  # in it, counted from 1
    function: str  # its qualified name, such as `Block.attend`; `<module>` at a script's top
    module: str | None  # that ran, as its model names it (`layers.3.attn`); empty for the model, None outside

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class MaskArgument(NamedTuple):
    """A mask as it was handed to a call."""

    name: str  # what the API calls it, or the operation that laid it on the scores (`masked_fill`, …)
    values: torch.Tensor  # the program's own, in a shape that broadcasts to `[B, H, Q, K]` (a view, no copy)
    convention: Convention  # what they mean to this API
    source_tensor: torch.Tensor | None = None  # that was handed over: with its `_version` it tells a mask
    made_at: str | None = None  # the program's line that made it, `train.py:40`, if not that of the call


class PositionSlice(NamedTuple):
    """The positions of a tensor in the one that it is a view of."""

    storage: StorageWeakRef  # equal where the memory is the same; it keeps no numbers alive
    start: int
    stop: int
    length: int  # of the whole

    @classmethod
    def of(cls, tensor: Float[torch.Tensor, "... T D"], base: torch.Tensor | None) -> PositionSlice:
        """Return the positions of queries or keys in the base that they are a view of; without, they are a whole."""
        from torch.multiprocessing.reductions import StorageWeakRef

        size, stride = tensor.shape[-2], tensor.stride(-2)
        storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        axes = () if base is None else zip(base.shape, base.stride(), strict=True)
        length = max((n for n, step in axes if step == stride), default=0)
        if base is None or length <= size or not stride:
            return cls(storage, 0, size, size)
        start = int(tensor.storage_offset() - base.storage_offset()) // stride % length
        return cls(storage, start, start + size, length)


class CallSlices(NamedTuple):
    """The queries and keys of a call as slices of longer ones, as ring or flash attention has blocks of them."""

    q: PositionSlice
    k: PositionSlice
    forward: int = 0  # which run of a module made them, counted in its thread

    def blocks(self, other: CallSlices, is_same_line: bool) -> tuple[bool, bool]:
        """Return whether this call and another one of the same forward are blocks of one attention.

        Queries meet keys at other positions of one tensor then, or other queries the same keys. A call that ends at its
        last query and its last key may be the whole attention of a document.
        """
        if self.forward != other.forward:
            return False, False
        has_queries, has_keys = self.q.storage == other.q.storage, self.k.storage == other.k.storage
        is_at_queries, is_at_keys = self.q.start == other.q.start, self.k.start == other.k.start
        if has_queries and is_at_queries and not has_keys:
            return is_same_line, is_same_line
        if not has_keys or (is_at_keys and (is_at_queries or not has_queries)):
            return False, False
        return not self._is_aligned, not other._is_aligned

    @property
    def _is_aligned(self) -> bool:
        return self.q.length == self.k.length and self.q.stop == self.k.stop


@dataclass(frozen=True)
class AttentionCall:
    """One attention of a running program."""

    api: Api  # what computed it
    place: CallSite
    shape: tuple[int, int, int, int]  # `(B, H, Q, K)`; B is 1 where the program has no batch axis
    dtype: str  # of the queries, without `torch.`
    device: str  # of the queries
    q: Float[torch.Tensor, "B H Q D"] | None = None  # as the dot product takes it
    k: Float[torch.Tensor, "B Hkv K D"] | None = None  # likewise; grouped heads are not repeated
    v: Float[torch.Tensor, "B Hkv K Dv"] | None = None
    # Makes q, k and v where the API projects them inside, or they are nested; called for what is kept alone.
    project: Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] | None = None
    masks: tuple[MaskArgument, ...] = ()  # in the order in which they apply
    ignored_masks: tuple[MaskArgument, ...] = ()  # that were handed over and that the API does not apply
    is_causal: bool = False  # whether the API hides later keys, aligned top-left: query i sees keys up to i
    scale: float | None = None  # what multiplies q·k; None where it is not known
    # Of which it is made: what q and k were multiplied with before, NaN where that is not known, and the rest.
    scale_factors: tuple[float, ...] = ()
    softcap: float | None = None  # c in c·tanh(scores/c)
    sinks: Float[torch.Tensor, "#B #H #Q 1"] | None = None  # which take weight and give no value
    dropout: float = 0.0  # the probability with which weights are dropped
    is_training: bool | None = None  # of the module that ran; None outside of modules
    is_recorded: bool = True  # whether autograd was on, as the outermost module began that runs
    run: tuple[int, int] = (0, 0)  # the id of the module that ran, and which run of its thread; 0 outside of modules
    scores: Float[torch.Tensor, "B H Q K"] | None = None  # what a softmax of the program received, masked
    weights: Float[torch.Tensor, "B H Q K"] | None = None  # what it gave
    output: torch.Tensor | None = None  # weights·V, or what the API made of it
    output_of: str = "what the program's call returned"  # for the proof
    findings: tuple[Finding, ...] = ()  # what only its reader sees
    unsupported: str | None = None  # what of the call cannot be read, in words, such as `the score_mod`
    is_mask_read: bool = False  # whether all that hides keys is read nevertheless
    slices: CallSlices | None = None  # of longer queries and keys
    projections: tuple[torch.Tensor, ...] = ()  # that modules inside of its own gave before it


METRICS = ("max_score", "entropy", "effective_keys", "sink", "previous", "distance")
COLUMNS = (*METRICS, "keys", "uniformity", "similarity")  # allowed keys of a row, effective ones as their part


class LayerMetrics(NamedTuple):
    """Metrics of the heads of a layer in a step of training."""

    layer: int  # in the order in which attention ran first
    place: str  # in the program, `train.py:12`
    module: str  # as its model names it; empty for the model, and outside of modules
    values: Float[np.ndarray, "C H"]  # the `COLUMNS`; NaN where one is not defined
