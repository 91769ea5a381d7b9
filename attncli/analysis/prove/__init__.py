"""Proof that a model computes what a mask expression claims: one position changes, and outputs that move are compared.

A mask that looks right proves nothing: a kernel may ignore it, and a convolution, a norm, a router or a cache may leak
past it. So the model's forward runs again with the vector of one position changed. What must not move follows from the
expression, closed over the layers: attention to a window of w keys in L layers reaches L·(w − 1) back. Rows of a batch
must not move each other, whatever the expression.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import ref

from attncli.analysis.calls.calls import Calls
from attncli.analysis.prove.claim import parsed
from attncli.analysis.prove.inputs import CollectedHints, SeenCalls
from attncli.analysis.prove.labels import Loss, label_findings
from attncli.analysis.prove.proof import Leak, ModelProof
from attncli.errors import AttnError, InputError, require
from attncli.masks.findings import Finding
from attncli.masks.mask_grid import bind_lengths
from attncli.recording.notes import Notes

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Int

    from attncli.analysis.prove.probed_forward import ProbedForward
    from attncli.recording.call import AttentionCall
    from attncli.recording.rerun import Forward

__all__ = ["Leak", "ModelProof", "Prover", "prove"]

_MOST_FORWARDS = 8  # different ones of a program that are proved


def prove(model: Any, inputs: Any, expression: str, lengths: Any = None) -> ModelProof:
    """Prove that the outputs of a model depend on the positions that a mask expression allows, and on nothing else.

    The model runs once, and a copy of it once more for each probe, with the same random state, buffers and caches. None
    of its numbers, its gradients or the random state changes.

    Args:
        model: an `nn.Module` with outputs `[B, T, …]`.
        inputs: what it is called with: a dictionary of arguments by name, a tuple or list, or one tensor.
        expression: which key each query may see, as `causal & pad`. Without numbers, `pad` and `docs` follow from
            padding and positions of the inputs; `window` and `chunk` from the model's configuration.
        lengths: how many tokens each row has, for `pad`; None reads the inputs.

    Raises:
        LoadError: torch is not installed.
        UsageError: `expression` is none, or leaves out a number that nothing says.
        InputError: the model has no output for each position.
    """
    require("attncli.prove", "torch")
    from attncli.recording.rerun import unwrapped

    prover = Prover(expression, lengths)
    kwargs = inputs if isinstance(inputs, Mapping) else {}
    args: Sequence[Any] = inputs if isinstance(inputs, (tuple, list)) else [] if inputs is kwargs else [inputs]
    with prover.watching(unwrapped(model)):
        model(*args, **kwargs)
    if prover.error is not None:
        raise prover.error
    if not prover.proofs:
        reason = "; ".join(prover.notes) or "it did not run as an nn.Module that returns tensors"
        raise InputError(f"nothing is proved of {type(model).__name__}: {reason}")
    return prover.proofs[0]


class Prover:
    """Proves the forwards of a program as they run: for each module and each shape of its arguments those that differ.

    Args:
        expression: see `prove`.
        lengths: likewise.

    Raises:
        UsageError: the expression is none, or has no `pad` for the lengths.
        InputError: `lengths` are none.
    """

    def __init__(self, expression: str, lengths: Any = None) -> None:
        claimed = parsed(expression)  # or a UsageError
        if lengths is not None:
            bind_lengths(claimed, lengths)  # likewise
        self.expression, self.lengths = expression, lengths
        self.proofs: list[ModelProof] = []  # of the forwards until now
        self.notes = Notes()  # what could not be proved, and why
        self.left_out = 0  # other forwards that may differ from those that are proved
        self.error: AttnError | None = None  # what was wrong with the claim in the last forward
        self._hints, self._only = CollectedHints(), None
        self._seen, self._checked = SeenCalls(), _CheckedCalls(self._hints)
        self._kinds: dict[Any, _Kind] = {}
        self._kind = _Kind()  # of the last forward
        self._unattended: list[ModelProof] = []  # of modules that compute no attention that attn sees
        self._losses: list[Loss] = []  # since the last forward began
        self._ids: list[Int[np.ndarray, "B T"]] = []  # of all forwards, the last one's first
        self._probed: ProbedForward | None = None  # of the last forward

    @contextmanager
    def watching(self, module: Any = None) -> Iterator[None]:
        """Prove the forwards that run inside.

        Args:
            module: whose forward alone is proved; None is each outermost module that computes attention.
        """
        from attncli.recording.rerun import ForwardWatch
        from attncli.recording.watch import watching

        self._only = module
        unfollowed = Notes()  # attention that is not followed is known by its module
        forwards = ForwardWatch(self._wants, self._prove, self._take_labels, lambda: self._seen.count, self._fail)
        try:
            with watching(self._take_call, None, unfollowed, lambda: self._hints), forwards.watching():
                yield
        finally:
            self.proofs = self.proofs or self._unattended
            self._judge_step()
        if unfollowed.fault is not None:
            self.notes.failed(unfollowed.fault)

    def _wants(self, module: Any, shapes: tuple[Any, ...]) -> bool:
        """Return whether a forward is proved that begins: the 1st, 2nd, 4th, 8th … of a kind that differ."""
        self._judge_step()
        self._seen, self._checked = SeenCalls(), _CheckedCalls(self._hints, self._checked)
        self._kind = kind = self._kinds.setdefault((ref(module), module.training, shapes), _Kind())
        kind.count += 1
        if kind.is_known or self._only not in (None, module):
            return False
        is_wanted = kind.count & (kind.count - 1) == 0 and len(self.proofs) < _MOST_FORWARDS
        self.left_out += not is_wanted
        return is_wanted

    def _take_call(self, call: AttentionCall) -> None:
        if self._hints.is_paused:
            self._seen.count += 1
        else:
            self._seen.take(call)
            self._checked.take(call)

    def _prove(self, forward: Forward) -> None:
        """Prove a forward, which has ended, while the program waits."""
        from attncli.analysis.prove.probed_forward import ProbedForward

        if self._seen.masking in self._kind.maskings:
            self._kind.is_known = True
            return
        self._kind.maskings.add(self._seen.masking)
        is_meant = self._only is not None or any(output.calls[1] for output in forward.outputs.values())  # it attends
        if not is_meant and type(forward.module).__module__.startswith("torch."):
            return
        self._hints.is_paused = True
        try:
            probed = ProbedForward(forward, self._seen, self._hints, self.expression, self.lengths)
            proof = probed.proof().with_findings(self._checked.errors())
            (self.proofs if is_meant else self._unattended).append(proof)
            self._kind.proof = len(self.proofs) - 1
            if is_meant:
                self._probed, self._ids = probed, [*probed.ids, *self._ids]
        except AttnError as error:
            if is_meant:
                self.error = error
                self.notes.add(f"{type(forward.module).__name__} is not proved: {error}")
        except Exception as fault:
            self.notes.failed(fault)
        finally:
            self._hints.is_paused = False

    def _fail(self, fault: Exception) -> None:
        if isinstance(fault, AttnError):
            self.notes.add(str(fault))
        else:
            self.notes.failed(fault, "a forward could not be recorded")

    def _take_labels(self, labels: Any, line: str) -> None:
        self._losses.append(Loss(labels.cpu().numpy().reshape(-1), line))

    def _judge_step(self) -> None:
        """Add what is wrong with the losses of a step, which is over, and with its calls, to the proofs."""
        losses, self._losses = self._losses, []
        if losses and self._probed is not None and self._probed.ids:
            wrong = label_findings(losses, self._ids, self._probed.has_heads)
            self.proofs[-1] = self.proofs[-1].with_findings(wrong)
        if self.proofs:
            self.proofs[self._kind.proof] = self.proofs[self._kind.proof].with_findings(self._checked.errors())


@dataclass
class _Kind:
    """Forwards of a module in one mode, whose arguments have the same shapes."""

    count: int = 0
    maskings: set[Any] = field(default_factory=set)  # of those that were proved
    is_known: bool = False  # whether the next ones differ from these in nothing that is seen
    proof: int = -1  # of the last of them


class _CheckedCalls(Calls):
    """The calls of a forward, for the checks that `attn run` makes of them, after those of the forwards before."""

    def __init__(self, hints: CollectedHints, before: _CheckedCalls | None = None) -> None:
        super().__init__(is_kept=False)
        self._hints, self._earlier = hints, {} if before is None else before._earlier
        if hints.calls:
            hints.end()

    def here(self) -> CollectedHints:
        """Return what takes the hints of all threads."""
        self._threads[0] = self._hints
        return self._hints

    def errors(self) -> list[Finding]:
        """Return what is wrong with the calls, but for positions of padding: a proof runs rows without it."""
        self.settle()
        errors = [finding for finding in dict.fromkeys(self.findings) if finding.severity == "error"]
        return [one for one in errors if one.code != "positions" or "behind a cache" in one.message]
