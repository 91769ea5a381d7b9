"""Forwards of a program's modules, which can run again on a copy with other inputs."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import is_dataclass
from functools import cached_property
from io import StringIO
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.overrides import TorchFunctionMode

from attncli.errors import InputError
from attncli.files import to_numpy
from attncli.recording.call_site import WRAPPERS, user_line
from attncli.recording.forward_copy import ForwardCopy

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_ATTENTION = re.compile("Attention|Attn")
_DEVIATIONS = 4.0  # by which vectors change, of all of them
_NO_IDS: Mapping[str, Any] = {}
_CHANNELS_FIRST = nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.GroupNorm

OutputName = tuple[str, int]  # of a module in the model, and the number of its call


class SequenceLayout(NamedTuple):
    """Layout of a batch of sequences in a tensor: `[B, T, …]`, or `[T, B, …]`."""

    batch: int
    length: int
    is_time_first: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """The first two sizes of a tensor."""
        return (self.length, self.batch) if self.is_time_first else (self.batch, self.length)

    def laid_out(self, values: torch.Tensor, module: nn.Module | None = None) -> torch.Tensor | None:
        """Return the output of a module as `[B, T, F]`; None where it is not one vector for each position."""
        batch, length, shape = self.batch, self.length, tuple(values.shape)
        if len(shape) == 4 and shape[1] == shape[2]:
            return None  # heads or positions
        if isinstance(module, _CHANNELS_FIRST) and len(shape) == 3 and (shape[0], shape[2]) == (batch, length):
            return values.transpose(1, 2)
        if len(shape) > 2 and shape[:2] == self.shape:
            return (values.transpose(0, 1) if self.is_time_first else values).flatten(2)
        if len(shape) == 4 and (shape[0], shape[2]) == (batch, length) != (batch, shape[3]):  # heads
            return values.transpose(1, 2).flatten(2)
        if len(shape) == 2 and shape[0] == batch * length and (batch == 1 or not self.is_time_first):
            return values.reshape(batch, length, -1)
        return None

    def of(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return values of all positions, `[B, T]`, as they lie in a tensor."""
        return np.ascontiguousarray(values.T if self.is_time_first else values)

    def rows_of(self, ids: torch.Tensor) -> Int[np.ndarray, "B T"]:
        """Return ids of all positions, `[B, T]`."""
        return self.of(to_numpy(ids).reshape(self.shape))


class ModuleOutput(NamedTuple):
    """An output of a module."""

    name: OutputName
    module: nn.Module
    place: str  # the line of the program that called it
    calls: tuple[int, int]  # how many attention calls there had been before it, and with it
    values: torch.Tensor
    ids: torch.Tensor | None = None  # of an embedding, what chose its vectors

    @torch.no_grad()
    def recomputed(self, values: torch.Tensor) -> torch.Tensor:
        """Return what its module gives for other inputs."""
        return self.module.forward(values)


class OutputChange(NamedTuple):
    """The distance of an output of a module from what it was before."""

    output: ModuleOutput  # before
    moved: Float[np.ndarray, "B T"] | Float[np.ndarray, "B 1"]  # of each position, or of each row where it has none
    size: float  # the largest number before, if anything changed

    @property
    def most(self) -> float:
        """The largest change."""
        return float(self.moved.max())

    def exceeds(self, floor: float) -> bool:
        """Return whether the largest change is above a floor, relative to the largest number."""
        return self.most > floor * max(self.size, 1e-6)


def output_change(output: ModuleOutput, values: torch.Tensor, before: torch.Tensor) -> OutputChange:
    """Return how far vectors `[B, T, F]` of an output are from those before; NaN in place of NaN has not moved."""
    moved, size = np.zeros(values.shape[:2]), 0.0
    is_changed = (values != before).any(dim=2)
    if is_changed.any():
        precise = torch.promote_types(before.dtype, torch.float32)
        a, b = (tensor.detach()[is_changed].to(precise) for tensor in (values, before))
        is_same = (a == b) | (a.isnan() & b.isnan())
        change = torch.where(is_same, 0.0, (a - b).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)).amax(dim=-1)
        moved[to_numpy(is_changed)] = to_numpy(change)
        size = float(torch.where(before.isfinite(), before, 0.0).abs().max()) if moved.any() else 0.0
    return OutputChange(output, moved, size)


_Replace = Callable[[OutputName | str, torch.Tensor], torch.Tensor]  # by other vectors of an output or an argument


def _unchanged(_: OutputName | str, values: torch.Tensor) -> torch.Tensor:
    return values


class _Run:
    """A module that runs, and the outputs of those inside of it with some names, or all."""

    def __init__(
        self, module: nn.Module, forward: Forward, names: Collection[OutputName] | None, replace: _Replace = _unchanged
    ) -> None:
        self.modules = {id(inside): name for name, inside in module.named_modules()}
        self.running: list[tuple[nn.Module, int]] = []
        self.outputs: dict[OutputName, ModuleOutput] = {}  # in their order
        self._forward, self._begun, self._names, self._replace = forward, forward.count(), names, replace
        self._unread = 0
        self._times: Counter[str] = Counter()  # how often each module was called

    def _calls(self) -> int:
        """Return how many attention calls there were; attention that is not read is known by its module's name."""
        return self._forward.count() - self._begun + self._unread

    def enter(self, module: nn.Module) -> None:
        self.running.append((module, self._calls()))

    def leave(self, module: nn.Module, args: Sequence[Any], output: Any) -> Any:
        """End with a module, and return what it gives instead of its output; None is its output."""
        while self.running:
            inner, calls = self.running.pop()
            if inner is module:
                break
        else:
            return None
        self._unread += self._calls() == calls and bool(_ATTENTION.search(type(module).__name__))
        name = self.modules.get(id(module), type(module).__name__)
        outputs = [tensor for tensor in _tensors(output).values() if tensor.dim() and tensor.is_floating_point()]
        instead = None
        # All outputs of the model itself count; of a module inside the first, as weights may come second.
        for before in outputs[: None if name == "" else 1]:
            key = name, self._times[name]
            self._times[name] += 1
            if (values := self._replace(key, before)) is not before:
                instead = values
            if self._names is None or key in self._names:
                ids = args[0].detach().clone() if isinstance(module, nn.Embedding) and args else None
                line = "{}:{}".format(*user_line(self._forward.start)[:2])
                values = values.detach().clone()
                self.outputs[key] = ModuleOutput(key, module, line, (calls, self._calls()), values, ids)
        return instead


class Forward:
    """A forward of a module, which begins when this is made, and may run again when it has ended.

    Args:
        module: that is about to run.
        arguments: its arguments, those by position and those by name.
        count: gives how many attention calls there were until now.
        start: the working directory that files are named from.
    """

    def __init__(self, module: nn.Module, arguments: tuple[Any, ...], count: Callable[[], int], start: str) -> None:
        self.module, self.count, self.start = module, count, start
        self.copy = ForwardCopy(module, arguments)
        self.run = self._first = _Run(module, self, None)
        self.layout = SequenceLayout(1, 1)  # of the sequence that changes
        self.others: list[SequenceLayout] = []  # of other sequences, as of an encoder
        self.draws = False  # random numbers
        self._of_copies: dict[OutputName, ModuleOutput] = {}  # of a batch that holds its rows several times

    @property
    def outputs(self) -> dict[OutputName, ModuleOutput]:
        """The outputs of its modules in the program's own run, in their order."""
        return self._first.outputs

    @property
    def precision(self) -> tuple[str, float]:
        """The name of the coarsest type of its outputs, and the distance from 1 to the next number of it."""
        dtypes = {output.values.dtype for output in self.outputs.values()}
        coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        return str(coarsest).removeprefix("torch."), torch.finfo(coarsest).eps

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors among its arguments, by name; those in containers have the name of these before theirs."""
        args, kwargs = self.copy.arguments
        named: Mapping[Any, Any] = dict(enumerate(args)) | kwargs
        with suppress(TypeError, ValueError):
            signature = inspect.signature(self.module.forward)
            named = signature.bind_partial(*args, **kwargs).arguments
            collecting = [one.name for one in signature.parameters.values() if one.kind == one.VAR_KEYWORD]
            named |= named.pop("".join(collecting), {})  # `**options` are named as they were given
        return _tensors(named)

    def enter(self, module: nn.Module) -> None:
        """Begin with a module.

        Raises:
            InputError: it is one of the program's own, and a copy runs.
        """
        if id(module) in self._first.modules and id(module) not in self.run.modules:
            name = self._first.modules[id(module)]
            raise InputError(f"its forward reaches {name or 'the model'} by an object that cannot be copied")
        self.run.enter(module)

    def end(self) -> None:
        """End with the program's own forward, which the others are compared with."""
        self.draws = self.copy.random.are_changed

    def changed(
        self,
        positions: Bool[np.ndarray, "B T"] | None = None,
        sources: Sequence[OutputName | str] = (),
        ids: Mapping[str, Int[np.ndarray, "B T"]] = _NO_IDS,
        seeds: Sequence[int] = (0,),
        order: Int[np.ndarray, "B T"] | None = None,
    ) -> list[OutputChange]:
        """Run it once more, and return how far each output is from that of the program's own forward.

        Args:
            positions: which inputs change: their ids, their vectors, or both. Where the batch holds its rows several
                times, as `repeats` allows, outputs of modules inside are left out.
            sources: whose vectors change: embeddings, or the name of an argument.
            ids: the other ids of all positions, by the name of an argument.
            seeds: of the directions in which vectors go, one for each copy of the batch.
            order: which position of the program's own forward each position is compared with; None is the same one.
        """
        copies = 1 if positions is None else len(positions) // self.layout.batch

        def moved(name: OutputName | str, values: torch.Tensor) -> torch.Tensor:
            if positions is None or name not in sources:
                return values
            spread = values.detach().float().std().nan_to_num(1.0).clamp_min(1e-3) * _DEVIATIONS
            shape = positions.shape[1], values.shape[-1]
            drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(shape[0] + seed)) for seed in seeds]
            noise = torch.stack(drawn).repeat_interleave(len(positions) // len(seeds), dim=0).to(values.device) * spread
            is_moved = torch.from_numpy(np.ascontiguousarray(positions)).to(values.device)
            added = torch.where(is_moved[..., None], noise, 0).to(values.dtype)
            return values + (added.transpose(0, 1) if self.layout.is_time_first else added).reshape(values.shape)

        def replaced(name: OutputName | str, values: torch.Tensor) -> torch.Tensor:
            values = self._repeated(values, copies)
            if positions is not None and isinstance(name, str) and name in ids:
                both = (self.layout.of(array).reshape(values.shape) for array in (positions, ids[name]))
                is_other, other = (torch.from_numpy(array).to(values.device) for array in both)
                values = torch.where(is_other, other.to(values.dtype), values)
            return moved(name, values)

        def in_order(before: torch.Tensor) -> torch.Tensor:
            return before.take_along_dim(torch.from_numpy(order)[..., None].to(before.device), dim=1)

        before = self.outputs if copies == 1 else self._of_copies
        outputs = self._outputs(replaced, before, moved)
        layouts = [layout._replace(batch=layout.batch * copies) for layout in (self.layout, *self.others)]
        return _compared(outputs, before, layouts, layouts, None if order is None else in_order)

    def repeats(self, copies: int, names: Collection[OutputName], tolerance: float) -> bool:
        """Return whether a batch that holds its rows several times gives the same outputs for each.

        The outputs have a vector for each position. The tolerance is relative to the largest number.
        """
        try:
            self._of_copies = self._outputs(lambda _, values: self._repeated(values, copies), names)
        except Exception:  # whatever the program's own code raises for more rows than it knows
            return False
        layouts = [self.layout._replace(batch=self.layout.batch * copies)], [self.layout]
        changes = _compared(self._of_copies, self.outputs, *layouts, lambda before: before.repeat(copies, 1, 1))
        return len(changes) == len(names) and not any(change.exceeds(tolerance) for change in changes)

    def alone(self, row: int, first: int, last: int) -> list[OutputChange]:
        """Run one row without the positions before `first` and from `last` on, and return how far its outputs are.

        Raises:
            Exception: whatever the module raises for a batch of one shorter row.
        """
        batch, length, is_time_first = self.layout
        rows, positions = slice(row, row + 1), slice(first, last)

        def cut(_: OutputName | str, value: torch.Tensor) -> torch.Tensor:
            axes = [axis for axis, size in enumerate(value.shape[:4]) if size == length][-2:]
            if value.dim() > 1 and value.shape[int(is_time_first)] == batch:
                axes = [axis for axis in axes if axis != int(is_time_first)]
                value = value[:, rows] if is_time_first else value[rows]
            for axis in axes if value.dim() == 4 else axes[:1]:
                value = value[(slice(None),) * axis + (positions,)]
            return value.clone()

        layouts = [SequenceLayout(1, last - first, is_time_first)], [self.layout]
        outputs = self._outputs(cut, self.outputs)
        return _compared(outputs, self.outputs, *layouts, lambda before: before[rows, positions])

    def _repeated(self, values: torch.Tensor, copies: int) -> torch.Tensor:
        """Return an argument with its rows several times, if it has rows."""
        batch, _, is_time_first = self.layout
        axis = int(is_time_first and values.dim() > 1 and tuple(values.shape[:2]) == self.layout.shape)
        has_rows = values.dim() > axis and values.shape[axis] == batch
        return torch.cat([values] * copies, dim=axis) if has_rows and copies > 1 else values

    def _outputs(
        self, replaced: _Replace, names: Collection[OutputName], moved: _Replace = _unchanged
    ) -> dict[OutputName, ModuleOutput]:
        """Run a copy with other arguments and vectors, and return some of its outputs."""
        arguments = {}
        for name, before in self.tensors.items():
            if (values := replaced(name, before)) is not before:
                arguments[id(before)] = values.detach().requires_grad_(before.requires_grad)
        with self.copy.fresh(arguments) as (module, (args, kwargs)), redirect_stdout(StringIO()):
            self.run = _Run(module, self, names, moved)
            try:
                module(*args, **kwargs)
            except SystemExit as end:
                raise RuntimeError(f"it ends the program with {end.code}") from end
        return self.run.outputs


def _compared(
    outputs: Mapping[OutputName, ModuleOutput],
    before: Mapping[OutputName, ModuleOutput],
    layouts: Sequence[SequenceLayout],
    layouts_before: Sequence[SequenceLayout],
    rearranged: Callable[[torch.Tensor], torch.Tensor] | None,
) -> list[OutputChange]:
    """Return how far outputs are from those before, which are rearranged first, `[B, T, F]`."""
    changes = []
    for name, output in outputs.items():
        values, other = output.values, before[name].values
        for layout, layout_before in zip(layouts, layouts_before, strict=True):
            a, b = layout.laid_out(values, output.module), layout_before.laid_out(other, output.module)
            if a is not None and b is not None:
                b = b if rearranged is None else rearranged(b)
                break
        else:
            # A row for each expert's token would look like a row of the batch, but of the model's own output.
            is_of_rows = (values.dim() > 2 or name[0] == "") and not layouts[0].is_time_first
            if rearranged is not None or not is_of_rows or len(values) != layouts[0].batch:
                continue
            a, b = values.flatten(1)[:, None], other.flatten(1)[:, None]
        if a.shape == b.shape:
            changes.append(output_change(before[name], a, b))
    return changes


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what containers hold, with the keys that lead there."""
    if is_dataclass(value) and not isinstance(value, Mapping):
        value = vars(value)
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, tuple | list) else ()
    for key, inside in items:
        yield from _leaves(inside, f"{name}.{key}".lstrip("."))
    if not isinstance(value, Mapping | tuple | list):
        yield name, value


def _tensors(value: Any) -> dict[str, torch.Tensor]:
    return {name: leaf for name, leaf in _leaves(value) if isinstance(leaf, torch.Tensor)}


def _signature(arguments: Any) -> tuple[Any, ...]:
    """Return the shapes of the tensors in arguments, and its switches, which tell one call of a module from another."""

    def kind(leaf: Any) -> Any:
        is_switch = isinstance(leaf, bool | str)
        return tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf if is_switch else type(leaf).__name__

    return tuple((name, kind(leaf)) for name, leaf in _leaves(arguments))


# --- forwards of a program --------------------------------------------------------------------------------------


def unwrapped(module: Any) -> Any:
    """Return a module without what torch wraps it in, which calls it."""
    while (inside := WRAPPERS.get(type(module).__name__)) is not None:
        module = getattr(module, inside)
    return module


class ForwardWatch(TorchFunctionMode):
    """Watches the outermost modules that run, and hands over each forward that is wanted when it has ended.

    Args:
        wanted: tells of a module, and of the shapes of its arguments, whether its forward is.
        take: takes it, while the program waits; it may be run again.
        take_labels: takes the labels of a cross-entropy of the program's own, and the line that computes it.
        count: gives how many attention calls there were until now.
        fail: takes errors of attn before a forward has ended.
    """

    def __init__(
        self,
        wanted: Callable[[nn.Module, tuple[Any, ...]], bool],
        take: Callable[[Forward], None],
        take_labels: Callable[[torch.Tensor, str], None],
        count: Callable[[], int],
        fail: Callable[[Exception], None],
    ) -> None:
        super().__init__()
        self._wanted, self._take, self._take_labels, self._count, self._fail = wanted, take, take_labels, count, fail
        self._start, self._thread = os.getcwd(), get_ident()  # random states of other threads cannot be put back
        self._outermost: nn.Module | None = None  # that runs
        self._forward: Forward | None = None  # of it, if it is wanted
        self._is_taking = False  # whether it runs again

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what runs inside."""
        before = torch_modules.register_module_forward_pre_hook(self._enter)
        after = torch_modules.register_module_forward_hook(self._leave, always_call=True)
        try:
            with self:
                yield
        finally:
            before.remove()
            after.remove()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Have the program go on, unproved, where its forward cannot be recorded."""
        try:
            yield
        except Exception as fault:
            if self._is_taking:
                raise
            if self._forward is not None:
                self._forward.end()
            self._forward = None
            self._fail(fault)

    def _enter(self, module: nn.Module, args: Any) -> None:
        if get_ident() != self._thread:
            return
        if self._outermost is None:
            is_in_backward = torch._C._current_graph_task_id() != -1  # as where a checkpoint runs again
            is_transformed = torch._C._functorch.peek_interpreter_stack() is not None  # as by vmap
            if is_in_backward or is_transformed or type(module).__name__ in WRAPPERS:
                return
            self._outermost = module
            arguments = args, sys._getframe(1).f_locals.get("kwargs", {})
            with self._guarded():
                if self._wanted(module, _signature(arguments)):
                    self._forward = Forward(module, arguments, self._count, self._start)
        if self._forward is not None:
            with self._guarded():
                self._forward.enter(module)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> Any:
        if get_ident() != self._thread or self._outermost is None:
            return None
        instead = None
        if self._forward is not None:
            with self._guarded():
                instead = self._forward.run.leave(module, args, output)
        forward = self._forward
        if module is self._outermost and not self._is_taking and (forward is None or not forward.run.running):
            try:
                if forward is not None:
                    forward.end()
                    self._is_taking = True
                    if output is not None:
                        self._take(forward)
            finally:
                self._outermost, self._forward, self._is_taking = None, None, False
        return instead

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See torch.overrides; generators are known before they draw."""
        kwargs = kwargs or {}
        if not self._is_taking:
            for argument in (*args, *kwargs.values()):
                if type(argument) is torch.Generator and self._forward is not None:
                    self._forward.copy.random.add(argument)
            labels = _labels_of(func, args, kwargs)
            if isinstance(labels, torch.Tensor) and not labels.is_floating_point():
                self._take_labels(labels.detach().clone(), "{}:{}".format(*user_line(self._start)[:2]))
        return func(*args, **kwargs)


def _labels_of(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the labels of a cross-entropy, or of log-probabilities that are gathered; None of any other function."""
    if func in (F.cross_entropy, F.nll_loss):
        return kwargs["target"] if len(args) < 2 else args[1]
    if func in (torch.gather, torch.Tensor.gather):
        values, dim, index = (*args, kwargs.get("dim"), kwargs.get("index"))[:3]
        is_of_classes = isinstance(index, torch.Tensor) and dim in (-1, index.dim() - 1) and index.shape[-1] == 1
        return index if is_of_classes and values.is_floating_point() else None
    return None
