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
    import torch
    from jaxtyping import Float

# What computed it: a function of torch, a hand-written softmax, or another library's function.
Api = Literal["sdpa", "mha", "flex", "softmax", "transformers", "flash", "xformers"]
ZERO_WHERE_BLIND: frozenset[Api] = frozenset({"sdpa", "flash", "xformers"})  # give 0 for a query that sees no key
LOOKED_FOR = (
    "scaled_dot_product_attention, nn.MultiheadAttention and nn.Transformer, flex_attention, a softmax between two "
    "products, transformers' attention functions, and those of flash_attn and xformers"
)


class CallSite(NamedTuple):
    """Where a program computes attention.

    Attributes:
        file: of the user's code: as seen from the working directory where it is below it.
        line: in it, counted from 1.
        function: its qualified name, such as `Block.attend`; `<module>` at a script's top.
        module: the name of the torch module that ran in the model that the program called, such as `layers.3.attn`;
            empty for the model itself, None outside of modules.
    """

    file: str
    line: int
    function: str
    module: str | None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class MaskArgument(NamedTuple):
    """A mask as it was handed to a call."""

    name: str  # what the API calls it, or the operation that laid it on the scores (`masked_fill`, …)
    values: torch.Tensor  # the program's own, in a shape that broadcasts to `[B, H, Q, K]` (a view, no copy)
    convention: Convention  # what they mean to this API
    source_tensor: torch.Tensor | None = None  # that was handed over: with its `_version` it tells a mask
    made_at: str | None = None  # the program's line that made it, `train.py:40`, if not that of the call


@dataclass(frozen=True)
class AttentionCall:
    """One attention of a running program.

    Attributes:
        api: what computed it.
        place: where.
        shape: `(B, H, Q, K)`; B is 1 where the program has no batch axis.
        dtype: of the queries, without `torch.`.
        device: of the queries.
        q: queries as the dot product takes them, None where they are not known.
        k: keys, likewise; grouped heads are not repeated.
        v: values.
        project: makes q, k and v where they are None, because the API projects them inside (`mha`) or because they
            are nested tensors; it computes, so it is called for what is kept alone, and while the program waits.
        masks: those that apply, in the order in which they apply.
        ignored_masks: masks that were handed over and that the API does not apply, such as the attn_mask that
            `nn.MultiheadAttention` takes for causal at the word of `is_causal`.
        is_causal: whether the API itself hides later keys; it aligns them top-left: query i sees keys up to i.
        scale: what multiplies q·k; None where it is not known.
        softcap: c in c·tanh(scores/c); None without.
        sinks: a logit beside the scores of a query, which takes weight and gives no value; None without.
        dropout: the probability with which weights are dropped in this call.
        is_training: whether the module that ran is in training mode; None outside of modules.
        scores: what the softmax received, with the masks in it, where the program made it; None in fused functions.
        weights: what the softmax gave; likewise.
        weight_sums: of the weights of each query, where a reader adds them up.
        output: weights·V, or what the API made of it; None where it is not known yet.
        output_of: what gave that output, for the proof that is made of it.
        findings: what only the reader of the call could see, such as a mask after the softmax.
        unsupported: what of the call cannot be read, in words, such as `the score_mod`; None where all of it is.
        is_mask_read: whether all that hides keys is read nevertheless.
        windows: how many windows of a picture follow one another in the batch; None where that is not known.
    """

    api: Api
    place: CallSite
    shape: tuple[int, int, int, int]
    dtype: str
    device: str
    q: Float[torch.Tensor, "B H Q D"] | None = None
    k: Float[torch.Tensor, "B Hkv K D"] | None = None
    v: Float[torch.Tensor, "B Hkv K Dv"] | None = None
    project: Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] | None = None
    masks: tuple[MaskArgument, ...] = ()
    ignored_masks: tuple[MaskArgument, ...] = ()
    is_causal: bool = False
    scale: float | None = None
    softcap: float | None = None
    sinks: Float[torch.Tensor, "#B #H #Q 1"] | None = None
    dropout: float = 0.0
    is_training: bool | None = None
    scores: Float[torch.Tensor, "B H Q K"] | None = None
    weights: Float[torch.Tensor, "B H Q K"] | None = None
    weight_sums: Float[torch.Tensor, "B H Q"] | None = None
    output: torch.Tensor | None = None
    output_of: str = "what the program's call returned"
    findings: tuple[Finding, ...] = ()
    unsupported: str | None = None
    is_mask_read: bool = False
    windows: int | None = None
