"""A forward of a module as a program called it, run again with one position changed and everything else put back.

Random states, buffers and what modules keep in attributes, such as caches, are as they were before the program's own
forward while it runs again, and afterwards the program's own again: its objects are set aside, never written to.
"""

from __future__ import annotations

import inspect
import random
import re
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from copy import copy, deepcopy
from dataclasses import is_dataclass
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

from attncli.files import to_numpy
from attncli.recording.call_site import user_line

if TYPE_CHECKING:
    from jaxtyping import Float

_OF_MODULES = {"_parameters", "_modules"}  # of a module's attributes, what a forward may add to and changes no entry of
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_ATTENTION = re.compile("Attention|Attn")
_DEEPEST = 4  # objects in objects that are looked through for tensors, as layers of a cache


OutputName = tuple[str, int]  # of a module in the model, and the number of its call
Kept = Mapping[str, bool] | None
GIVEN = -1  # instead of that number: what the module was given first


class VectorChange(NamedTuple):
    """A change of vectors in a row.

    Attributes:
        row: of the batch.
        positions: in the row, whose vectors change.
        sources: whose vectors these are: embeddings, or the name of an argument.
        size: how far it goes, in standard deviations of all vectors.
    """

    row: int
    positions: tuple[int, ...]
    sources: tuple[OutputName | str, ...]
    size: float = 4.0


class SequenceLayout(NamedTuple):
    """How a batch of sequences lies in a tensor: `[B, T, …]`, or `[T, B, …]`."""

    batch: int
    length: int
    is_time_first: bool = False

    def laid_out(self, values: torch.Tensor, is_of_channels: bool = False) -> torch.Tensor | None:
        """Return values as `[B, T, F]`; None where they are not one vector for each position, or may be scores."""
        batch, length, shape = self.batch, self.length, tuple(values.shape)
        if len(shape) == 4 and shape[1] == shape[2]:
            return None  # heads or positions
        if is_of_channels and len(shape) == 3 and (shape[0], shape[2]) == (batch, length):
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


class ModuleOutput(NamedTuple):
    """What a module gave.

    Attributes:
        name: its name in the model, and the number of the call where it is called several times.
        module: it.
        place: the line of the program that called it.
        calls: how many attention calls there had been before it, and with it.
        values: what it gave.
        ids: of an embedding, what chose its vectors.
    """

    name: OutputName
    module: nn.Module
    place: str
    calls: tuple[int, int]
    values: torch.Tensor
    ids: torch.Tensor | None = None


class OutputChange(NamedTuple):
    """How far what a module gives is from what it gave before.

    Attributes:
        name: of the module in the model, and the number of its call.
        module: its class.
        place: the line of the program that called it.
        calls: how many attention calls there had been before it, and with it.
        by_position: the largest change of each position; None where it gives no vector for each.
        by_row: the largest change of each row of the batch.
        size: the largest number that it gave before, if anything changed.
        relative: the largest change of a vector, relative to its length; NaN where it is none.
    """

    name: OutputName
    module: type[nn.Module]
    place: str
    calls: tuple[int, int]
    by_position: Float[np.ndarray, "B T"] | None
    by_row: Float[np.ndarray, " B"]
    size: float
    relative: float = np.nan


class Forward:
    """A forward of a module, which begins when this is made.

    Args:
        module: which is about to run.
        arguments: its arguments, those by position and those by name.
        count: gives how many attention calls there were until now.
        start: the working directory that files are named from.
        kept: the modules whose outputs are kept, by name, and whether the first input is too; what has none keeps all
            outputs, and it alone can run again.
    """

    def __init__(
        self, module: nn.Module, arguments: tuple[Any, ...], count: Callable[[], int], start: str, kept: Kept = None
    ) -> None:
        self.module, self._count, self._start, self._kept = module, count, start, kept
        self._names = {id(each): name for name, each in module.named_modules()}
        self.arguments: tuple[Any, ...] = _copied(arguments)
        self._before = _states(module) if kept is None else {}
        self._random = _random_state()
        self._hooks = [*_watched_hooks(module)]
        self._change: VectorChange | None = None
        self._begin(self._keep)
        self.outputs: dict[OutputName, ModuleOutput] = {}  # of the program's own forward, in their order
        self.layout = SequenceLayout(1, 1)
        self.others: list[SequenceLayout] = []  # of other sequences, as of an encoder
        self.draws = False  # whether it draws random numbers

    def _begin(self, take: Callable[[ModuleOutput], None]) -> None:
        self._take, self._begun, self._unread = take, self._count(), 0
        self.running: list[tuple[nn.Module, int]] = []
        self._times: Counter[str] = Counter()  # how often each module was called

    def _keep(self, output: ModuleOutput) -> None:
        self.outputs[output.name] = output._replace(values=output.values.detach().clone())

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors among its arguments, by name."""
        args, kwargs = self.arguments
        named: Mapping[Any, Any] = dict(enumerate(args)) | kwargs
        with suppress(TypeError, ValueError):
            named = inspect.signature(self.module.forward).bind_partial(*args, **kwargs).arguments
        return {str(name): value for name, value in named.items() if isinstance(value, torch.Tensor)}

    @property
    def precision(self) -> tuple[str, float]:
        """The name of the coarsest type of its outputs, and the distance from 1 to the next number of it."""
        types = {one.values.dtype for one in self.outputs.values()}
        coarsest = max(types, key=lambda one: torch.finfo(one).eps)
        return str(coarsest).removeprefix("torch."), torch.finfo(coarsest).eps

    def enter(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Begin with a module inside of it."""
        calls, key = self._calls(), (self._names.get(id(module), ""), GIVEN)
        self.running.append((module, calls))
        if self._kept and self._kept.get(key[0]) and key not in self.outputs:
            vectors = (one for one in _tensors(arguments) if _is_of_vectors(one))
            for one in islice(vectors, 1):
                self._take(ModuleOutput(key, module, "", (calls, calls), one))

    def leave(self, module: nn.Module, args: Sequence[Any], output: Any) -> Any:
        """End with a module, and return what it gives instead of its output; None is its output."""
        while self.running:
            own, calls = self.running.pop()
            if own is module:
                break
        else:
            return None
        if self._calls() == calls and _ATTENTION.search(type(module).__name__):
            self._unread += 1
        name = self._names.get(id(module), type(module).__name__)
        found = (one for one in _tensors(output) if one.dim() and one.is_floating_point())
        if self._kept is not None and name not in self._kept:
            return None
        ids = args[0].detach().clone() if isinstance(module, nn.Embedding) and args else None
        place = "{}:{}".format(*user_line(self._start)[:2])
        instead = None
        # All that the model itself gives is looked at; of a module inside, the first, as weights may come second.
        for values in found if module is self.module and self._kept is None else islice(found, 1):
            key = name, self._times[name]
            self._times[name] += 1
            if self._change is not None and key in self._change.sources:
                instead = values = self._moved(values, self._change)
            self._take(ModuleOutput(key, module, place, (calls, self._calls()), values, ids))
        return instead

    def _calls(self) -> int:
        """Return how many times it attended until now; attention that is not read is known by its module's name."""
        return self._count() - self._begun + self._unread

    def end(self) -> None:
        """End with the program's own forward, which the others are compared with."""
        self.draws = not _same(self._random, _random_state())
        self.unhook()

    def unhook(self) -> None:
        """Have the program's hooks be its own again. What runs again has no hook that only looks, or that is over."""
        for one in self._hooks:
            one.take_off()
        looking = {one.key for one in self._hooks if not one.changes}
        for module, state in self._before.items():
            for where in _HOOKS:
                own = module.__dict__[where].keys() - looking
                state[where] = OrderedDict(each for each in state[where].items() if each[0] in own)
        self._hooks.clear()

    def again(self, change: VectorChange | None = None) -> list[OutputChange]:
        """Run it once more, and return how far each module's output is from that of the program's own forward.

        Args:
            change: of a vector; None changes nothing.
        """
        changes: list[OutputChange] = []

        def compare(output: ModuleOutput) -> None:
            if (compared := self._compared(output)) is not None:
                changes.append(compared)

        self._run(self.arguments, change, compare)
        return changes

    def alone(self, row: int, first: int, last: int) -> list[OutputChange]:
        """Run one row without the positions before `first` and from `last` on, and return how far its outputs are.

        Raises:
            Exception: whatever the module raises for a batch of one shorter row.
        """
        batch, length, is_time_first = self.layout
        rows, positions = slice(row, row + 1), slice(first, last)
        own, changes = SequenceLayout(1, last - first, is_time_first), list[OutputChange]()

        def cut(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            axes = [axis for axis, size in enumerate(value.shape[:4]) if size == length][-2:]
            if value.dim() > 1 and value.shape[int(is_time_first)] == batch:
                axes = [axis for axis in axes if axis != int(is_time_first)]
                value = value[:, rows] if is_time_first else value[rows]
            for axis in axes if value.dim() == 4 else axes[:1]:
                value = value[(slice(None),) * axis + (positions,)]
            return value

        def compare(output: ModuleOutput) -> None:
            before = self.outputs.get(output.name)
            if before is not None:
                values, together = own.laid_out(output.values), self.layout.laid_out(before.values)
                if values is not None and together is not None and values.shape[2] == together.shape[2]:
                    changes.append(_change(output, values, together[rows, positions]))

        self._run(_mapped(cut, self.arguments), None, compare)
        return changes

    def _run(
        self, arguments: tuple[Any, ...], change: VectorChange | None, take: Callable[[ModuleOutput], None]
    ) -> None:
        moved = {id(one): name for name, one in self.tensors.items() if change is not None and name in change.sources}
        args, kwargs = _mapped(
            lambda one: self._moved(one, change) if change is not None and id(one) in moved else _copied(one), arguments
        )
        self._change = change
        self._begin(take)
        with _put_back(self.module, self._before, self._random), redirect_stdout(StringIO()):
            self.module(*args, **kwargs)

    def _moved(self, values: torch.Tensor, change: VectorChange) -> torch.Tensor:
        """Return values whose vectors at some positions are others."""
        moved = values.clone()
        spread = values.detach().float().std().nan_to_num(1.0).clamp_min(1e-3) * change.size
        for position in change.positions:
            at: tuple[int, ...] = (position, change.row) if self.layout.is_time_first else (change.row, position)
            if values.dim() == 2:  # no batch
                at = (position,)
            drawn = torch.randn(values.shape[-1], generator=torch.Generator().manual_seed(position))
            moved[at] = values[at] + (drawn.to(values.device) * spread).to(values.dtype)
        return moved

    def _compared(self, output: ModuleOutput) -> OutputChange | None:
        before = self.outputs.get(output.name)
        if before is None or before.values.shape != output.values.shape:
            return None
        is_of_channels = _is_of_channels(output.module)
        for layout in (self.layout, *self.others):
            one, other = (layout.laid_out(each, is_of_channels) for each in (output.values, before.values))
            if one is not None and other is not None:
                return _change(output, one, other)
        # A row for each expert's token would look like a row of the batch, but of the model's own output.
        is_of_rows = output.values.dim() > 2 or output.module is self.module
        if output.values.shape[0] != self.layout.batch or self.layout.is_time_first or not is_of_rows:
            return None
        return _change(output, output.values.flatten(1)[:, None], before.values.flatten(1)[:, None])._replace(
            by_position=None
        )


def _change(output: ModuleOutput, one: torch.Tensor, other: torch.Tensor) -> OutputChange:
    by_position = _differences(one, other)
    size = _size(other) if by_position.any() else 0.0
    name, module, place, calls = output[:4]
    return OutputChange(name, type(module), place, calls, by_position, by_position.max(axis=1), size)


def _differences(one: torch.Tensor, other: torch.Tensor) -> Float[np.ndarray, "B T"]:
    """Return the largest difference of each vector `[B, T, F]`; NaN beside NaN is none."""
    found = np.zeros(one.shape[:2])
    is_changed = (one != other).any(dim=2)
    if is_changed.any():
        precise = torch.promote_types(other.dtype, torch.float32)
        a, b = (each.detach()[is_changed].to(precise) for each in (one, other))
        is_same = (a == b) | (a.isnan() & b.isnan())
        change = torch.where(is_same, 0.0, (a - b).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)).amax(dim=-1)
        found[to_numpy(is_changed)] = to_numpy(change)
    return found


def _size(values: torch.Tensor) -> float:
    return float(torch.where(values.isfinite(), values, 0.0).abs().max())


def _is_of_channels(module: nn.Module) -> bool:
    return isinstance(module, (nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.GroupNorm))


def _is_of_vectors(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() >= 2


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an output."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
    elif is_dataclass(value):
        yield from _tensors(vars(value))


# --- what a forward may change ---------------------------------------------------------------------------------


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a value whose tensors are changed, in tuples, lists and dictionaries."""
    if isinstance(value, dict):
        return {key: _mapped(change, each) for key, each in value.items()}
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(_mapped(change, each) for each in value)
    return change(value)


def _copied(value: Any, depth: int = 0) -> Any:
    """Return a value whose tensors, and whatever holds tensors, are copies; anything else is itself."""
    if isinstance(value, nn.Parameter | nn.Module):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, torch.Generator):
        return value.clone_state()
    if isinstance(value, np.ndarray | np.random.Generator):
        return deepcopy(value)
    if isinstance(value, dict):
        made = copy(value)
        for key, each in value.items():
            made[key] = _copied(each, depth)
        return made
    if type(value) in (tuple, list):
        return type(value)(_copied(each, depth) for each in value)
    own = getattr(value, "__dict__", None)
    if depth < _DEEPEST and isinstance(own, dict) and not isinstance(value, type) and not callable(value):
        made = copy(value)
        for name, each in own.items():
            made.__dict__[name] = _copied(each, depth + 1)
        return made
    return value


def _states(module: nn.Module) -> dict[nn.Module, dict[str, Any]]:
    """Return copies of what a forward may change of each module: its buffers and other attributes."""
    return {
        each: {name: _copied_attribute(name, value) for name, value in each.__dict__.items()}
        for each in module.modules()
    }


def _shapes(value: Any) -> Any:
    """Return the shapes of the tensors in arguments, and its switches, which tell one call of a module from another."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, dict):
        return tuple((key, _shapes(each)) for key, each in value.items())
    if type(value) in (tuple, list):
        return tuple(map(_shapes, value))
    return value if isinstance(value, bool | str) else type(value).__name__


def _copied_attribute(name: str, value: Any) -> Any:
    if name in _OF_MODULES or name.endswith("_hooks") or "_hooks_" in name:
        return copy(value)
    return value if name == "config" else _copied(value)


class _WatchedHook:
    """A hook of a module, and whether it changes what the module is given or gives, or only looks."""

    def __init__(self, module: nn.Module, where: str, key: int, hook: Callable[..., Any]) -> None:
        self.module, self.where, self.key = module, where, key
        self._hook, self.changes = hook, False
        self._all[key] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._hook(*args, **kwargs)
        self.changes |= result is not None
        return result

    @property
    def _all(self) -> dict[int, Callable[..., Any]]:
        hooks: dict[int, Callable[..., Any]] = getattr(self.module, self.where)
        return hooks

    def take_off(self) -> None:
        """Put the program's own function back, if it is still there."""
        if self._all.get(self.key) is self:
            self._all[self.key] = self._hook


def _watched_hooks(module: nn.Module) -> Iterator[_WatchedHook]:
    """Watch the hooks of the program. Those of libraries set weights and collect outputs; one before it has begun."""
    for each in module.modules():
        for where in _HOOKS:
            for key, hook in [*getattr(each, where).items()]:
                is_own = not str(getattr(hook, "__module__", "")).startswith(("torch.", "transformers."))
                if is_own and (each is not module or where == "_forward_hooks"):
                    yield _WatchedHook(each, where, key, hook)


@contextmanager
def _put_back(module: nn.Module, before: dict[nn.Module, dict[str, Any]], state: tuple[Any, ...]) -> Iterator[None]:
    """Have modules and random states be as before inside, and the program's own again afterwards."""
    own, own_random = {each: dict(each.__dict__) for each in module.modules()}, _random_state()
    for each, attributes in before.items():
        each.__dict__.clear()
        each.__dict__.update({name: _copied_attribute(name, value) for name, value in attributes.items()})
    _set_random(state)
    try:
        yield
    finally:
        for each, attributes in own.items():
            each.__dict__.clear()
            each.__dict__.update(attributes)
        _set_random(own_random)


def _random_state() -> tuple[Any, ...]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return torch.get_rng_state(), cuda, random.getstate(), np.random.get_state()


def _set_random(state: tuple[Any, ...]) -> None:
    cpu, cuda, python, numpy = state
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    random.setstate(python)
    np.random.set_state(numpy)


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    pairs = [(one[0], other[0]), *zip(one[1] or (), other[1] or (), strict=False)]
    of_numpy = all(map(np.array_equal, one[3], other[3]))
    return of_numpy and all(map(torch.equal, *zip(*pairs, strict=True))) and one[2] == other[2]


# --- forwards of a program --------------------------------------------------------------------------------------

_WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}


def unwrapped(module: Any) -> Any:
    """Return a module without what torch wraps it in, which calls it."""
    while (inside := _WRAPPERS.get(type(module).__name__)) is not None:
        module = getattr(module, inside)
    return module


def _labels_of(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the labels of a cross-entropy, or of log-probabilities that are gathered; None of any other function."""
    if func in (F.cross_entropy, F.nll_loss):
        return kwargs["target"] if len(args) < 2 else args[1]
    if func in (torch.gather, torch.Tensor.gather):
        values, dim, index = (*args, kwargs.get("dim"), kwargs.get("index"))[:3]
        is_of_classes = isinstance(index, torch.Tensor) and dim in (-1, index.dim() - 1) and index.shape[-1] == 1
        return index if is_of_classes and values.is_floating_point() else None
    return None


class _Losses(TorchFunctionMode):
    """Hands over the labels of every cross-entropy, and the line of the program that asked for it."""

    def __init__(self, take: Callable[[torch.Tensor, str], None], start: str) -> None:
        super().__init__()
        self._take, self._start = take, start

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See torch.overrides."""
        kwargs = kwargs or {}
        labels = _labels_of(func, args, kwargs)
        if isinstance(labels, torch.Tensor) and not labels.is_floating_point():
            self._take(labels.detach().clone(), "{}:{}".format(*user_line(self._start)[:2]))
        return func(*args, **kwargs)


@contextmanager
def forwards(
    wanted: Callable[[nn.Module, tuple[Any, ...]], bool],
    take: Callable[[Forward], None],
    take_labels: Callable[[torch.Tensor, str], None],
    count: Callable[[], int],
    start: str,
    kept: Kept = None,
) -> Iterator[None]:
    """Hand over each forward that runs inside and is wanted, when it has ended; it may be run again then.

    Args:
        wanted: says of an outermost module, and of the shapes of its arguments, whether its forward is.
        take: takes it, while the program waits.
        take_labels: takes the labels of a cross-entropy of the program's own, and the line that computes it.
        count: gives how many attention calls there were until now.
        start: the working directory that files are named from.
        kept: see `Forward`.
    """
    current: list[Forward | None] = []  # the forward that runs, or None for one that is not wanted
    outer: list[nn.Module] = []
    taking: list[bool] = []
    thread = get_ident()  # of another one, module and random state cannot be put back

    def enter(module: nn.Module, args: Any) -> None:
        is_in_backward = torch._C._current_graph_task_id() != -1  # as where a checkpoint runs again
        if get_ident() != thread or (not outer and (is_in_backward or type(module).__name__ in _WRAPPERS)):
            return
        arguments = (args, sys._getframe(1).f_locals.get("kwargs", {}))
        if not outer:
            is_wanted = wanted(module, _shapes(arguments))
            current[:] = [Forward(module, arguments, count, start, kept) if is_wanted else None]
            outer.append(module)
        if (forward := current[0]) is not None:
            forward.enter(module, arguments)

    def leave(module: nn.Module, args: Any, output: Any) -> Any:
        if get_ident() != thread or not outer:
            return None
        forward = current[0]
        instead = None if forward is None else forward.leave(module, args, output)
        if module is outer[0] and not taking and (forward is None or not forward.running):
            try:
                if forward is not None:
                    forward.end()
                    if output is not None:
                        taking.append(True)  # its modules are entered and left again meanwhile
                        take(forward)
            finally:
                taking.clear()
                outer.clear()
                current.clear()
        return instead

    before = torch_modules.register_module_forward_pre_hook(enter)
    after = torch_modules.register_module_forward_hook(leave, always_call=True)
    losses = _Losses(lambda *loss: None if taking else take_labels(*loss), start)
    try:
        with losses:
            yield
    finally:
        before.remove()
        after.remove()


def recorded(module: nn.Module, arguments: Mapping[str, Any], kept: Kept) -> tuple[Any, list[ModuleOutput]]:
    """Run a module, and return its output and those of the modules inside that are kept; see `Forward`."""
    found: list[ModuleOutput] = []
    with forwards(
        lambda *_: True, lambda one: found.extend(one.outputs.values()), lambda *_: None, lambda: 0, "", kept
    ):
        return module(**arguments), found


def changes_in_row(
    alone: Sequence[ModuleOutput],
    steps: Sequence[Sequence[ModuleOutput]],
    row: int,
    positions: Callable[[str], slice],
) -> Iterator[OutputChange]:
    """Yield how far the outputs for a row of a batch are from those of the row by itself.

    Args:
        alone: the outputs of a batch of that row, without padding.
        steps: those of a forward, or of several that follow one another with a cache.
        row: of the batch.
        positions: which of its positions are those of the row by itself, by the name of a module.
    """
    for output in alone:
        pieces = [one.values for step in steps for one in step if one.name == output.name]
        own = positions(output.name[0])
        length = own.stop - own.start
        axes = _axes_of_row(output.values.shape, length)
        if axes is not None and len(pieces) == len(steps):
            both = (each.movedim(axes, (0, 1)).flatten(2) for each in (torch.cat(pieces, axes[1]), output.values))
            one, other = next(both)[row : row + 1, own], next(both)[:, :length]
            if one.shape == other.shape:
                precise = torch.promote_types(other.dtype, torch.float32)
                change, length = (each.to(precise).norm(dim=-1) for each in (one.to(precise) - other, other))
                relative = (change / length.clamp_min(torch.finfo(torch.float32).tiny)).max()  # NaN stays
                yield _change(output, one, other)._replace(relative=float(relative))


def _axes_of_row(shape: Sequence[int], length: int) -> tuple[int, int] | None:
    """Return which axes are rows and positions of a batch of one row, which a module may have made longer."""
    likely = {3: [(0, 1), (1, 0), (0, 2)], 4: [(0, 1), (1, 2), (0, 2)]}.get(len(shape), [])  # streams, or heads
    fits = [axes for axes in likely if shape[axes[0]] == 1 and shape[axes[1]] >= length]
    return min(fits, key=lambda axes: shape[axes[1]] != length, default=None)
