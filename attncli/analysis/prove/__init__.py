"""Whether a model computes what a mask expression claims: one position changes, and which outputs move is seen.

A mask that looks right proves nothing: a kernel may ignore it, and a convolution, a norm, a router or a cache may leak
past it. So the model itself is asked: its forward runs again with the vector of one position changed. What must not
move follows from the expression, closed over the layers: attention to a window of w keys in L layers reaches L·(w − 1)
back. Rows of a batch must not move each other, whatever the expression.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import ref

from attncli.analysis.prove.claim import parsed
from attncli.analysis.prove.inputs import CollectedHints, SeenCalls
from attncli.analysis.prove.labels import Loss, label_findings
from attncli.analysis.prove.probed_forward import ProbedForward
from attncli.analysis.prove.proof import Leak, ModelProof
from attncli.errors import AttnError, InputError, require
from attncli.recording.notes import Notes

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Int

    from attncli.recording.rerun import Forward

__all__ = ["Leak", "ModelProof", "Prover", "prove"]

_MOST_FORWARDS = 8  # different ones of a program that are proved


def prove(model: Any, inputs: Any, expression: str, lengths: Any = None) -> ModelProof:
    """Ask a model whether its outputs depend on what a mask expression says, and on nothing else.

    The model runs once, and once more for each probe, with the same random state, buffers and caches. None of its
    numbers, its gradients or the random state changes.

    Args:
        model: an `nn.Module` with outputs `[B, T, …]`.
        inputs: what it is called with: a dictionary of arguments by name, a tuple or list, or one tensor.
        expression: which key each query may see, as `causal & pad`. Without numbers, `pad` and `docs` are what the
            inputs say of padding and of positions; `window` and `chunk` what the model's configuration says.
        lengths: how many tokens each row has, for `pad`; None is what the inputs say.

    Raises:
        LoadError: torch is not installed.
        UsageError: `expression` is none, or leaves out a number that nothing says.
        InputError: the model has no output for each position.
    """
    require("attncli.prove", "torch")
    from attncli.recording.rerun import unwrapped

    prover = Prover(expression, lengths)
    args: Sequence[Any] = (
        () if isinstance(inputs, Mapping) else inputs if isinstance(inputs, (tuple, list)) else [inputs]
    )
    with prover.watching(unwrapped(model)):
        model(*args, **(inputs if isinstance(inputs, Mapping) else {}))
    if prover.error is not None:
        raise prover.error
    if not prover.proofs:
        reason = "; ".join(prover.notes) or "it did not run as an nn.Module that returns tensors"
        raise InputError(f"nothing is proved of {type(model).__name__}: {reason}")
    return prover.proofs[0]


class Prover:
    """Proves the forwards of a program as they run: the first of each module, and of each shape of its arguments.

    Args:
        expression: see `prove`.
        lengths: likewise.

    Attributes:
        proofs: of the forwards until now.
        notes: what could not be proved, and why.
        left_out: how many forwards of other modules and shapes ran after as many as are proved.
        error: what was wrong with the claim in the last forward; None is nothing.

    Raises:
        UsageError: the expression is none.
    """

    def __init__(self, expression: str, lengths: Any = None) -> None:
        parsed(expression)  # or a UsageError
        self.expression, self.lengths = expression, lengths
        self.proofs: list[ModelProof] = []
        self.notes = Notes()
        self.left_out = 0
        self.error: AttnError | None = None
        self._calls = SeenCalls()
        self._hints = CollectedHints()
        self._known: set[Any] = set()
        self._ran_before = False  # the module that runs, so that it may have a cache
        self._only: Any = None
        self._losses: list[Loss] = []  # since the last forward began
        self._ids: list[Int[np.ndarray, "B T"]] = []  # of all forwards, the last one's first
        self._probed: ProbedForward | None = None  # of the last forward

    @contextmanager
    def watching(self, module: Any = None) -> Iterator[None]:
        """Prove the forwards that run inside.

        Args:
            module: whose forward alone is proved; None is each outermost module that computes attention.
        """
        from attncli.recording.rerun import forwards
        from attncli.recording.watch import watching

        self._only = module
        seen = Notes()  # attention that is not followed is known by its module
        with (
            watching(lambda call: self._calls.take(call), None, seen, lambda: self._hints),
            forwards(self._is_proved, self._take, self._take_labels, lambda: len(self._calls.places), os.getcwd()),
        ):
            yield
        self._judge_labels()
        if seen.fault is not None:
            self.notes.failed(seen.fault)

    def _is_proved(self, module: Any, shapes: tuple[Any, ...]) -> bool:
        self._calls = SeenCalls()
        self._judge_labels()
        key = ref(module), module.training, shapes
        if key in self._known or self._only not in (None, module):
            return False
        self._ran_before = any(each() is module for each, *_ in self._known)
        self._known.add(key)
        self.left_out += len(self.proofs) >= _MOST_FORWARDS
        return len(self.proofs) < _MOST_FORWARDS

    def _take(self, forward: Forward) -> None:
        if self._only is None and not any(one.calls[1] for one in forward.outputs.values()):
            return  # it does not attend
        try:
            has_cache = self._ran_before or _holds_keys(forward)
            probed = ProbedForward(forward, self._calls, self._hints, self.expression, self.lengths, has_cache)
            self.proofs.append(probed.proof())
            self._probed = probed
            self._ids = [*probed.ids, *self._ids]
        except AttnError as error:
            self.error = error
            self.notes.add(f"{type(forward.module).__name__} is not proved: {error}")
        except Exception as fault:
            self.notes.failed(fault)

    def _take_labels(self, labels: Any, place: str) -> None:
        self._losses.append(Loss(labels.cpu().numpy().reshape(-1), place))

    def _judge_labels(self) -> None:
        """Hold the losses of a step, which is over, against what its forward reads."""
        losses, self._losses = self._losses, []
        if losses and self._probed is not None and self._probed.ids:
            found = label_findings(losses, self._ids, self._probed.has_heads)
            others = self.proofs[-1].others
            self.proofs[-1] = replace(self.proofs[-1], others=(*others, *(one for one in found if one not in others)))


def _holds_keys(forward: Forward) -> bool:
    """Return whether an argument of a forward or an attribute of its modules may be a cache: a tensor, no parameter."""
    names = [*forward.tensors, *(name for name, _ in forward.module.named_buffers())]
    attributes = (value for each in forward.module.modules() for value in vars(each).values())
    held = any(_is_tensor(one) or (isinstance(one, (tuple, list)) and any(map(_is_tensor, one))) for one in attributes)
    return held or any("past" in name or "cache" in name for name in names)


def _is_tensor(value: Any) -> bool:
    return type(value).__name__ == "Tensor"
