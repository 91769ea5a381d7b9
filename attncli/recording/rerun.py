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
from itertools import islice
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
from attncli.recording.call_site import user_line
from attncli.recording.forward_copy import ForwardCopy

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_ATTENTION = re.compile("Attention|Attn")
_NO_IDS: Mapping[str, Any] = {}
_CHANNELS_FIRST = nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.GroupNorm
_WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}

OutputName = tuple[str, int]  # of a module in the model, and the number of its call


class SequenceLayout(NamedTuple):
    """How a batch of sequences lies in a tensor: `[B, T, …]`, or `[T, B, …]`."""

    batch: int
    length: int
    is_time_first: bool = False

    def laid_out(self, values: torch.Tensor, module: nn.Module | None = None) -> torch.Tensor | None:
        """Return the output of a module as `[B, T, F]`; None where it is not one vector for each position."""
        batch, length, shape = self.batch, self.length, tuple(values.shape)
        if len(shape) == 4 and shape[1] == shape[2]:
            return None  # heads or positions
        if isinstance(module, _CHANNELS_FIRST) and len(shape) == 3 and (shape[0], shape[2]) == (batch, length):
            return values.transpose(1, 2)
        if len(shape) > 2 and shape[:2] == ((length, batch) if self.is_time_first else (batch, length)):
            values = values.transpose(0, 1) if self.is_time_first else values
        elif len(shape) == 4 and (shape[0], shape[2]) == (batch, length) != (batch, shape[3]):  # heads
            values = values.transpose(1, 2)
        elif len(shape) == 2 and shape[0] == batch * length and not (self.is_time_first and batch > 1):
            values = values.reshape(batch, length, -1)
        else:
            return None
        return values.flatten(2)

    def of(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return values of all positions, `[B, T]`, as they lie in a tensor."""
        return np.ascontiguousarray(values.T if self.is_time_first else values)

    def rows_of(self, ids: torch.Tensor) -> Int[np.ndarray, "B T"]:
        """Return ids of all positions, `[B, T]`."""
        shape = (self.length, self.batch) if self.is_time_first else (self.batch, self.length)
        return self.of(to_numpy(ids).reshape(shape))


class ModuleOutput(NamedTuple):
    """An output of a module."""

    name: OutputName
    module: nn.Module
    place: str  # the line of the program that called it
    calls: tuple[int, int]  # how many attention calls there had been before it, and with it
    values: torch.Tensor
    ids: torch.Tensor | None = None  # of an embedding, what chose its vectors


class OutputChange(NamedTuple):
    """The distance of an output of a module from what it was before."""

    output: ModuleOutput  # before
    moved: Float[np.ndarray, "B T"] | Float[np.ndarray, "B 1"]  # of each position, or of each row where it has none
    size: float  # the largest number before, if anything changed

    @property
    def most(self) -> float:
        """The largest change."""
        return float(self.moved.max())


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


_Moved = Callable[[OutputName | str, torch.Tensor], torch.Tensor | None]  # other vectors of an output or argument


def _unmoved(*_: Any) -> None:
    return None


class _Run:
    """A module that runs, and the outputs of those inside of it with some names, or all."""

    def __init__(
        self,
        module: nn.Module,
        count: Callable[[], int],
        start: str,
        names: Collection[OutputName] | None = None,
        moved: _Moved = _unmoved,
    ) -> None:
        self.modules = {id(inside): name for name, inside in module.named_modules()}
        self.running: list[tuple[nn.Module, int]] = []
        self.outputs: dict[OutputName, ModuleOutput] = {}  # in their order
        self._count, self._start, self._begun, self._names, self._moved = count, start, count(), names, moved
        self._unread = 0
        self._times: Counter[str] = Counter()  # how often each module was called

    def _calls(self) -> int:
        """Return how many attention calls there were; attention that is not read is known by its module's name."""
        return self._count() - self._begun + self._unread

    def enter(self, module: nn.Module) -> None:
        """Begin with a module inside of it."""
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
        outputs = (tensor for _, tensor in _named_tensors(output) if tensor.dim() and tensor.is_floating_point())
        instead = None
        # All outputs of the model itself count; of a module inside the first, as weights may come second.
        for values in islice(outputs, None if name == "" else 1):
            key = name, self._times[name]
            self._times[name] += 1
            if (moved := self._moved(key, values)) is not None:
                instead = values = moved
            if self._names is None or key in self._names:
                ids = args[0].detach().clone() if isinstance(module, nn.Embedding) and args else None
                line = "{}:{}".format(*user_line(self._start)[:2])
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

    Attributes:
        layout: of the sequence that changes.
        others: of other sequences, as of an encoder.
        draws: whether it draws random numbers.
    """

    def __init__(self, module: nn.Module, arguments: tuple[Any, ...], count: Callable[[], int], start: str) -> None:
        self.module, self._count, self._start = module, count, start
        self.copy = ForwardCopy(module, arguments)
        self._hooks = [*_watched_hooks(module)]
        self.run = self._first = _Run(module, count, start)
        self.layout = SequenceLayout(1, 1)
        self.others: list[SequenceLayout] = []
        self.draws = False
        self._repeated: dict[OutputName, ModuleOutput] = {}  # of a batch that holds its rows several times

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
            # What `**options` collects is named as it was given.
            kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
            collecting = [name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD]
            named = named | named.pop("".join(collecting), {})
        return dict(_named_tensors(named))

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
        for hook in self._hooks:
            hook.remove()
        self.copy.drop_hooks({hook.key for hook in self._hooks if not hook.is_changing})

    def again(
        self,
        positions: Bool[np.ndarray, "B T"] | None = None,
        sources: Sequence[OutputName | str] = (),
        ids: Mapping[str, Int[np.ndarray, "B T"]] = _NO_IDS,
        size: float = 4.0,
        seeds: Sequence[int] = (0,),
    ) -> list[OutputChange]:
        """Run it once more, and return how far each output is from that of the program's own forward.

        Args:
            positions: which inputs change: their ids, their vectors, or both. Where the batch holds its rows several
                times, as `repeats` allows, outputs of modules inside are left out.
            sources: whose vectors change: embeddings, or the name of an argument.
            ids: the other ids of all positions, by the name of an argument.
            size: how far vectors go, in standard deviations of all vectors.
            seeds: of the directions in which they go, one for each copy of the batch.
        """

        def moved(name: OutputName | str, values: torch.Tensor) -> torch.Tensor | None:
            if positions is None or name not in sources:
                return None
            spread = values.detach().float().std().nan_to_num(1.0).clamp_min(1e-3) * size
            shape = positions.shape[1], values.shape[-1]
            drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(shape[0] + seed)) for seed in seeds]
            noise = torch.stack(drawn).repeat_interleave(len(positions) // len(seeds), dim=0).to(values.device) * spread
            is_moved = torch.from_numpy(np.ascontiguousarray(positions)).to(values.device)
            added = torch.where(is_moved[..., None], noise, 0).to(values.dtype)
            return values + (added.transpose(0, 1) if self.layout.is_time_first else added).reshape(values.shape)

        copies = 1 if positions is None else len(positions) // self.layout.batch
        before, changes = self.outputs if copies == 1 else self._repeated, []
        layouts = [layout._replace(batch=layout.batch * copies) for layout in (self.layout, *self.others)]
        for name, output in self._outputs(self._replaced(copies, positions, ids, moved), before, moved).items():
            both = output.values, before[name].values
            if both[0].shape != both[1].shape:
                continue
            laid_out = ([layout.laid_out(tensor, output.module) for tensor in both] for layout in layouts)
            pair = next(filter(None, ([one for one in pair if one is not None] for pair in laid_out)), [])
            # A row for each expert's token would look like a row of the batch, but of the model's own output.
            is_of_rows = (both[0].dim() > 2 or name[0] == "") and not self.layout.is_time_first
            if not pair and is_of_rows and len(both[0]) == layouts[0].batch:
                pair = [tensor.flatten(1)[:, None] for tensor in both]
            if pair:
                changes.append(output_change(before[name], *pair))
        return changes

    def repeats(self, copies: int, names: Collection[OutputName], tolerance: float) -> bool:
        """Return whether a batch that holds its rows several times gives the same outputs for each.

        The outputs have a vector for each position. The tolerance is relative to the largest number.
        """
        try:
            self._repeated = self._outputs(self._replaced(copies), names)
        except Exception:  # whatever the program's own code raises for more rows than it knows
            return False
        layout = self.layout._replace(batch=self.layout.batch * copies)
        changes = self._compared(self._repeated, layout, lambda before: before.repeat(copies, 1, 1))
        is_same = all(change.most <= tolerance * max(change.size, 1e-6) for change in changes)
        return is_same and len(changes) == len(names)

    def alone(self, row: int, first: int, last: int) -> list[OutputChange]:
        """Run one row without the positions before `first` and from `last` on, and return how far its outputs are.

        Raises:
            Exception: whatever the module raises for a batch of one shorter row.
        """
        batch, length, is_time_first = self.layout
        rows, positions = slice(row, row + 1), slice(first, last)

        def cut(value: torch.Tensor) -> torch.Tensor:
            axes = [axis for axis, size in enumerate(value.shape[:4]) if size == length][-2:]
            if value.dim() > 1 and value.shape[int(is_time_first)] == batch:
                axes = [axis for axis in axes if axis != int(is_time_first)]
                value = value[:, rows] if is_time_first else value[rows]
            for axis in axes if value.dim() == 4 else axes[:1]:
                value = value[(slice(None),) * axis + (positions,)]
            return value.clone()

        outputs = self._outputs({id(tensor): cut(tensor) for tensor in self.tensors.values()}, self.outputs)
        layout = SequenceLayout(1, last - first, is_time_first)
        return self._compared(outputs, layout, lambda before: before[rows, positions])

    def permuted(self, order: Int[np.ndarray, "B T"], ids: Mapping[str, Int[np.ndarray, "B T"]]) -> list[OutputChange]:
        """Run it with ids in another order, and return how far outputs are from the program's own in that order.

        Args:
            order: which position of its row comes to each.
            ids: in that order, by the name of an argument.
        """
        outputs = self._outputs(self._replaced(1, np.ones_like(order, bool), ids), self.outputs)

        def in_order(before: torch.Tensor) -> torch.Tensor:
            return before.take_along_dim(torch.from_numpy(order)[..., None].to(before.device), dim=1)

        return self._compared(outputs, self.layout, in_order)

    def line_that_mixes(self, calls: int, output: torch.Tensor) -> str | None:
        """Return the line of a projection that reads an attention's output with its heads put together by a view.

        Args:
            calls: how many attention calls there were when it ran.
            output: of the last one, `[B, H, T, D]`.
        """
        after = (output for output in self.outputs.values() if output.calls == (calls, calls))
        first = next((output for output in after if isinstance(output.module, nn.Linear)), None)
        if first is None or output.dim() != 4 or min(output.shape[1:3]) < 2:
            return None
        linear: Any = first.module
        pair = output.transpose(1, 2).flatten(2), output.reshape(len(output), output.shape[2], -1)
        if linear.in_features != pair[0].shape[2] or first.values.shape[:2] != pair[0].shape[:2]:
            return None
        with torch.no_grad():
            both = (F.linear(tensor, linear.weight, linear.bias) for tensor in pair)
            is_right, is_viewed = (torch.allclose(tensor, first.values, 1e-3, 1e-4) for tensor in both)
        return first.place if is_viewed and not is_right else None

    def _compared(
        self,
        outputs: Mapping[OutputName, ModuleOutput],
        layout: SequenceLayout,
        rearrange: Callable[[torch.Tensor], torch.Tensor],
    ) -> list[OutputChange]:
        """Return how far outputs of another layout are from the program's own, rearranged."""
        changes = []
        for name, output in outputs.items():
            values, other = layout.laid_out(output.values), self.layout.laid_out(self.outputs[name].values)
            if values is not None and other is not None and values.shape == (other := rearrange(other)).shape:
                changes.append(output_change(self.outputs[name], values, other))
        return changes

    def _outputs(
        self, replaced: Mapping[int, torch.Tensor], names: Collection[OutputName], moved: _Moved = _unmoved
    ) -> dict[OutputName, ModuleOutput]:
        """Run a copy, and return some of its outputs."""
        with self.copy.fresh(replaced) as (module, (args, kwargs)), redirect_stdout(StringIO()):
            self.run = _Run(module, self._count, self._start, names, moved)
            try:
                module(*args, **kwargs)
            except SystemExit as end:
                raise RuntimeError(f"it ends the program with {end.code}") from end
        return self.run.outputs

    def _replaced(
        self,
        copies: int,
        positions: Bool[np.ndarray, "B T"] | None = None,
        ids: Mapping[str, Int[np.ndarray, "B T"]] = _NO_IDS,
        moved: _Moved = _unmoved,
    ) -> dict[int, torch.Tensor]:
        """Return other tensors for arguments, by their ids, in a batch that holds its rows several times."""
        replaced = {}
        batch, length, is_time_first = self.layout
        for name, one in self.tensors.items():
            values = one
            axis = int(is_time_first and one.dim() > 1 and tuple(one.shape[:2]) == (length, batch))
            if copies > 1 and one.dim() > axis and one.shape[axis] == batch:
                values = torch.cat([one] * copies, dim=axis)
            if positions is not None and name in ids:
                both = (self.layout.of(array).reshape(values.shape) for array in (positions, ids[name]))
                is_other, other = (torch.from_numpy(tensor).to(one.device) for tensor in both)
                values = torch.where(is_other, other.to(one.dtype), values)
            vectors = moved(name, values)
            values = values if vectors is None else vectors
            if values is not one:
                replaced[id(one)] = values.detach().requires_grad_(one.requires_grad)
        return replaced


def _named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if is_dataclass(value) and not isinstance(value, Mapping):
        value = vars(value)
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, tuple | list) else ()
    for key, inside in items:
        yield from _named_tensors(inside, f"{name}.{key}".lstrip("."))


def _shapes(value: Any) -> Any:
    """Return the shapes of the tensors in arguments, and its switches, which tell one call of a module from another."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, dict):
        return tuple((key, _shapes(inside)) for key, inside in value.items())
    if type(value) in (tuple, list):
        return tuple(map(_shapes, value))
    return value if isinstance(value, bool | str) else type(value).__name__


class _WatchedHook:
    """A hook of a program, and whether it changes what its module is given or gives."""

    def __init__(self, hooks: dict[int, Any], key: int) -> None:
        self._hooks, self.key, self._hook, self.is_changing = hooks, key, hooks[key], False
        hooks[key] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._hook(*args, **kwargs)
        self.is_changing |= result is not None
        return result

    def remove(self) -> None:
        """Put the program's own back, if this is still there."""
        if self._hooks.get(self.key) is self:
            self._hooks[self.key] = self._hook


def _watched_hooks(module: nn.Module) -> Iterator[_WatchedHook]:
    """Watch the hooks of the program; those of libraries set weights and collect outputs."""
    for inside in module.modules():
        # The module's own hooks before its forward have begun.
        for hooks in (inside._forward_hooks, {} if inside is module else inside._forward_pre_hooks):
            for key, hook in [*hooks.items()]:
                if not str(getattr(hook, "__module__", "")).startswith(("torch.", "transformers.")):
                    yield _WatchedHook(hooks, key)


# --- forwards of a program --------------------------------------------------------------------------------------


def unwrapped(module: Any) -> Any:
    """Return a module without what torch wraps it in, which calls it."""
    while (inside := _WRAPPERS.get(type(module).__name__)) is not None:
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
            if is_in_backward or is_transformed or type(module).__name__ in _WRAPPERS:
                return
            self._outermost = module
            arguments = args, sys._getframe(1).f_locals.get("kwargs", {})
            with self._guarded():
                if self._wanted(module, _shapes(arguments)):
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
