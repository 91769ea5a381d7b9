"""A forward of a module as a program called it, run again with other inputs, and how far its outputs move.

It runs in a `SavedState`, so that nothing of the program changes.
"""

from __future__ import annotations

import inspect
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

from attncli.files import to_numpy
from attncli.recording.call_site import user_line
from attncli.recording.saved_state import SavedState

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_ATTENTION = re.compile("Attention|Attn")


_AGAIN: list[Forward] = []  # that run again, and are none of the program's

OutputName = tuple[str, int]  # of a module in the model, and the number of its call
Selected = Mapping[str, bool] | None
GIVEN = -1  # instead of that number: what the module was given first


class InputChange(NamedTuple):
    """A change of some inputs of a batch: their ids, their vectors, or both.

    Attributes:
        positions: which inputs change.
        sources: whose vectors do: embeddings, or the name of an argument.
        ids: the other ids of all positions, by the name of an argument.
        size: how far vectors go, in standard deviations of all vectors.
        seeds: of the directions in which they go, one for each copy of the batch.
    """

    positions: Bool[np.ndarray, "B T"]
    sources: tuple[OutputName | str, ...] = ()
    ids: Mapping[str, Int[np.ndarray, "B T"]] = {}
    size: float = 4.0
    seeds: tuple[int, ...] = (0,)


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

    def of(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return values of all positions, `[B, T]`, as they lie in a tensor."""
        return values.T if self.is_time_first else values

    def rows_of(self, ids: torch.Tensor) -> Int[np.ndarray, "B T"]:
        """Return ids of all positions, `[B, T]`."""
        shape = (self.length, self.batch) if self.is_time_first else (self.batch, self.length)
        values = to_numpy(ids).reshape(shape)
        return values.T if self.is_time_first else values

    def repeated(self, copies: int) -> SequenceLayout:
        """Return the layout of a batch that holds its rows so many times."""
        return self._replace(batch=self.batch * copies)


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
        selected: the modules whose outputs are kept, by name, and whether the first input is too; None keeps all
            outputs, and it alone can run again.
    """

    def __init__(
        self,
        module: nn.Module,
        arguments: tuple[Any, ...],
        count: Callable[[], int],
        start: str,
        selected: Selected = None,
    ) -> None:
        self.module, self._count, self._start, self._selected = module, count, start, selected
        self._names = {id(each): name for name, each in module.named_modules()}
        self.saved = SavedState(module, arguments) if selected is None else None
        self._hooks = [*_watched_hooks(module)]
        self._change: InputChange | None = None
        self._begin(self._keep)
        self.outputs: dict[OutputName, ModuleOutput] = {}  # of the program's own forward, in their order
        self.layout = SequenceLayout(1, 1)
        self.others: list[SequenceLayout] = []  # of other sequences, as of an encoder
        self.draws = False  # whether it draws random numbers
        self._repeated: dict[OutputName, torch.Tensor] = {}  # what a batch gave that holds its rows several times

    def _begin(self, take: Callable[[ModuleOutput], None]) -> None:
        self._take, self._begun, self._unread = take, self._count(), 0
        self.running: list[tuple[nn.Module, int]] = []
        self._times: Counter[str] = Counter()  # how often each module was called

    def _keep(self, output: ModuleOutput) -> None:
        self.outputs[output.name] = output._replace(values=output.values.detach().clone())

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors among its arguments, by name; those in containers have the name of these before theirs."""
        if self.saved is None:
            return {}
        args, kwargs = self.saved.arguments
        named: Mapping[Any, Any] = dict(enumerate(args)) | kwargs
        with suppress(TypeError, ValueError):
            signature = inspect.signature(self.module.forward)
            named = signature.bind_partial(*args, **kwargs).arguments
            # What `**options` collects is named as it was given.
            collecting = (one.name for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD)
            named = named | named.pop(next(collecting, ""), {})
        return dict(_named_tensors(named))

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
        if self._selected and self._selected.get(key[0]) and key not in self.outputs:
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
        if self._selected is not None and name not in self._selected:
            return None
        ids = args[0].detach().clone() if isinstance(module, nn.Embedding) and args else None
        place = "{}:{}".format(*user_line(self._start)[:2])
        instead = None
        # All that the model itself gives is looked at; of a module inside, the first, as weights may come second.
        for values in found if module is self.module and self._selected is None else islice(found, 1):
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
        self.draws = self.saved is not None and self.saved.draws
        self.unhook()

    def unhook(self) -> None:
        """Have the program's hooks be its own again. What runs again has no hook that only looks, or that is over."""
        for one in self._hooks:
            one.take_off()
        if self.saved is not None:
            self.saved.end({one.key for one in self._hooks if not one.changes})
        self._hooks.clear()

    def again(self, change: InputChange | None = None, copies: int = 1) -> list[OutputChange]:
        """Run it once more, and return how far each module's output is from that of the program's own forward.

        Args:
            change: of its inputs; None changes nothing.
            copies: how often the batch holds its rows; `repeats` says whether it may. Outputs of modules inside are
                left out then.
        """
        changes: list[OutputChange] = []
        before = {name: one.values for name, one in self.outputs.items()} if copies == 1 else self._repeated
        layouts = [one.repeated(copies) for one in (self.layout, *self.others)]

        def compare(output: ModuleOutput) -> None:
            values = before.get(output.name)
            if values is not None and (compared := _compared(output, values, layouts, self.module)) is not None:
                changes.append(compared)

        self._run(self._changed(change, copies), change, compare)
        return changes

    def repeats(self, copies: int, names: Collection[OutputName], tolerance: float) -> bool:
        """Return whether a batch that holds its rows so many times gives the same outputs for each.

        Args:
            copies: how many times.
            names: of outputs with a vector for each position, which are compared, now and by `again`.
            tolerance: how far they may be, relative to the largest number.
        """
        layout, outputs = self.layout.repeated(copies), list[ModuleOutput]()
        try:
            self._run(self._changed(None, copies), None, outputs.append)
        except Exception:  # whatever the program's own code raises for more rows than it knows
            return False
        self._repeated = {one.name: one.values.detach().clone() for one in outputs if one.name in names}
        for name, values in self._repeated.items():
            once, repeated = self.layout.laid_out(self.outputs[name].values), layout.laid_out(values)
            if once is None or repeated is None or once.shape[2] != repeated.shape[2]:
                return False
            if _differences(repeated, once.repeat(copies, 1, 1)).max() > tolerance * max(_size(once), 1e-6):
                return False
        return len(self._repeated) == len(names)

    def line_that_mixes(self, calls: int, output: torch.Tensor) -> str | None:
        """Return the line of a projection that reads an attention's output with its heads put together by a view.

        Args:
            calls: how many attention calls there were when it ran.
            output: of the last one, `[B, H, T, D]`.
        """
        after = (one for one in self.outputs.values() if one.calls == (calls, calls))
        first = next((one for one in after if isinstance(one.module, nn.Linear)), None)
        if first is None or output.dim() != 4 or min(output.shape[1:3]) < 2:
            return None
        linear: Any = first.module
        batch, heads, length, width = output.shape
        shape = batch, length, heads * width
        if linear.in_features != shape[2] or tuple(first.values.shape[:2]) != shape[:2]:
            return None
        with torch.no_grad():
            both = (
                F.linear(one.reshape(shape), linear.weight, linear.bias) for one in (output.transpose(1, 2), output)
            )
            right, wrong = (torch.allclose(one, first.values, 1e-3, 1e-4) for one in both)
        return first.place if wrong and not right else None

    def permuted(self, order: Int[np.ndarray, "B T"], ids: Mapping[str, Int[np.ndarray, "B T"]]) -> list[OutputChange]:
        """Run it with other ids, and return how far outputs are from those of the program's, in another order.

        Args:
            order: which position of its row stands at each.
            ids: by the name of an argument.
        """
        changes: list[OutputChange] = []

        def compare(output: ModuleOutput) -> None:
            before = self.outputs.get(output.name)
            both = [None if one is None else self.layout.laid_out(one.values) for one in (output, before)]
            if both[0] is not None and both[1] is not None and both[0].shape == both[1].shape:
                moved = torch.from_numpy(order).to(both[1].device)[..., None].expand_as(both[1])
                changes.append(_change(output, both[0], both[1].gather(1, moved)))

        change = InputChange(np.ones_like(order, bool), ids=ids)
        self._run(self._changed(change, 1), None, compare)
        return changes

    def alone(self, row: int, first: int, last: int) -> list[OutputChange]:
        """Run one row without the positions before `first` and from `last` on, and return how far its outputs are.

        Raises:
            Exception: whatever the module raises for a batch of one shorter row.
        """
        batch, length, is_time_first = self.layout
        rows, positions = slice(row, row + 1), slice(first, last)
        own, changes = SequenceLayout(1, last - first, is_time_first), list[OutputChange]()

        def cut(value: torch.Tensor) -> torch.Tensor:
            axes = [axis for axis, size in enumerate(value.shape[:4]) if size == length][-2:]
            if value.dim() > 1 and value.shape[int(is_time_first)] == batch:
                axes = [axis for axis in axes if axis != int(is_time_first)]
                value = value[:, rows] if is_time_first else value[rows]
            for axis in axes if value.dim() == 4 else axes[:1]:
                value = value[(slice(None),) * axis + (positions,)]
            return value.clone()

        def compare(output: ModuleOutput) -> None:
            before = self.outputs.get(output.name)
            if before is not None:
                values, together = own.laid_out(output.values), self.layout.laid_out(before.values)
                if values is not None and together is not None and values.shape[2] == together.shape[2]:
                    changes.append(_change(output, values, together[rows, positions]))

        self._run({id(one): cut(one) for one in self.tensors.values()}, None, compare)
        return changes

    def _run(
        self, replaced: Mapping[int, torch.Tensor], change: InputChange | None, take: Callable[[ModuleOutput], None]
    ) -> None:
        assert self.saved is not None
        self._change = change
        self._begin(take)
        with self.saved.restored(replaced) as (args, kwargs), redirect_stdout(StringIO()):
            _AGAIN.append(self)
            try:
                self.module(*args, **kwargs)
            finally:
                _AGAIN.pop()

    def _changed(self, change: InputChange | None, copies: int) -> dict[int, torch.Tensor]:
        """Return other tensors for arguments, by their ids, in a batch that holds its rows several times."""
        found = {}
        for name, one in self.tensors.items():
            values = self._copies_of(one, copies)
            if change is not None and name in change.ids:
                both = (np.ascontiguousarray(self.layout.of(each)) for each in (change.positions, change.ids[name]))
                is_other, ids = (torch.from_numpy(each.reshape(values.shape)).to(one.device) for each in both)
                values = torch.where(is_other, ids.to(one.dtype), values)
            if change is not None and name in change.sources:
                values = self._moved(values, change)
            if values is not one:
                found[id(one)] = values.detach().requires_grad_(one.requires_grad)
        return found

    def _copies_of(self, values: torch.Tensor, copies: int) -> torch.Tensor:
        batch, length, is_time_first = self.layout
        axis = int(is_time_first and values.dim() > 1 and tuple(values.shape[:2]) == (length, batch))
        if copies == 1 or values.dim() <= axis or values.shape[axis] != batch:
            return values
        return torch.cat([values] * copies, dim=axis)

    def _moved(self, values: torch.Tensor, change: InputChange) -> torch.Tensor:
        """Return values whose vectors at some positions are others, in a batch that may hold its rows several times."""
        spread = values.detach().float().std().nan_to_num(1.0).clamp_min(1e-3) * change.size
        rows, length = change.positions.shape
        shape = length, values.shape[-1]
        drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(length + seed)) for seed in change.seeds]
        noise = torch.stack(drawn).repeat_interleave(rows // len(drawn), dim=0).to(values.device) * spread
        positions = torch.from_numpy(np.ascontiguousarray(change.positions)).to(values.device)
        added = torch.where(positions[..., None], noise, 0).to(values.dtype)
        if self.layout.is_time_first:
            added = added.transpose(0, 1)
        return values + added.reshape(values.shape)


def _compared(
    output: ModuleOutput, before: torch.Tensor, layouts: Sequence[SequenceLayout], model: nn.Module
) -> OutputChange | None:
    if before.shape != output.values.shape:
        return None
    is_of_channels = _is_of_channels(output.module)
    for layout in layouts:
        one, other = (layout.laid_out(each, is_of_channels) for each in (output.values, before))
        if one is not None and other is not None:
            return _change(output, one, other)
    # A row for each expert's token would look like a row of the batch, but of the model's own output.
    is_of_rows = output.values.dim() > 2 or output.module is model
    if output.values.shape[0] != layouts[0].batch or layouts[0].is_time_first or not is_of_rows:
        return None
    rows = (each.flatten(1)[:, None] for each in (output.values, before))
    return _change(output, *rows)._replace(by_position=None)


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


def _named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if is_dataclass(value) and not isinstance(value, Mapping):
        value = vars(value)
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if type(value) in (tuple, list) else ()
    for key, each in items:
        yield from _named_tensors(each, f"{name}.{key}".lstrip("."))


def _shapes(value: Any) -> Any:
    """Return the shapes of the tensors in arguments, and its switches, which tell one call of a module from another."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, dict):
        return tuple((key, _shapes(each)) for key, each in value.items())
    if type(value) in (tuple, list):
        return tuple(map(_shapes, value))
    return value if isinstance(value, bool | str) else type(value).__name__


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


class _Functions(TorchFunctionMode):
    """Hands over the labels of every cross-entropy with the line that asked for it, and generators before they draw."""

    def __init__(
        self,
        take_labels: Callable[[torch.Tensor, str], None],
        take_generator: Callable[[torch.Generator], None],
        start: str,
    ) -> None:
        super().__init__()
        self._take_labels, self._take_generator, self._start = take_labels, take_generator, start

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See torch.overrides."""
        kwargs = kwargs or {}
        for each in (*args, *kwargs.values()):
            if type(each) is torch.Generator:
                self._take_generator(each)
        labels = _labels_of(func, args, kwargs)
        if isinstance(labels, torch.Tensor) and not labels.is_floating_point():
            self._take_labels(labels.detach().clone(), "{}:{}".format(*user_line(self._start)[:2]))
        return func(*args, **kwargs)


@contextmanager
def forwards(
    wanted: Callable[[nn.Module, tuple[Any, ...]], bool],
    take: Callable[[Forward], None],
    take_labels: Callable[[torch.Tensor, str], None],
    count: Callable[[], int],
    start: str,
    selected: Selected = None,
    fail: Callable[[Exception], None] | None = None,
) -> Iterator[None]:
    """Hand over each forward that runs inside and is wanted, when it has ended; it may be run again then.

    Args:
        wanted: says of an outermost module, and of the shapes of its arguments, whether its forward is.
        take: takes it, while the program waits.
        take_labels: takes the labels of a cross-entropy of the program's own, and the line that computes it.
        count: gives how many attention calls there were until now.
        start: the working directory that files are named from.
        selected: see `Forward`.
        fail: takes what goes wrong before a forward has ended; without it, that is raised.
    """
    current: list[Forward | None] = []  # the forward that runs, or None for one that is not wanted
    outer: list[nn.Module] = []
    taking: list[bool] = []
    thread = get_ident()  # of another one, module and random state cannot be put back

    @contextmanager
    def guarded() -> Iterator[None]:
        """Have the program go on, unproved, where its forward cannot be recorded."""
        try:
            yield
        except Exception as fault:
            if fail is None or taking:
                raise
            if current and current[0] is not None:
                current[0].unhook()
            current[:] = [None]
            fail(fault)

    def take_generator(generator: torch.Generator) -> None:
        if current and current[0] is not None and current[0].saved is not None:
            current[0].saved.saw_generator(generator)

    def enter(module: nn.Module, args: Any) -> None:
        is_in_backward = torch._C._current_graph_task_id() != -1  # as where a checkpoint runs again
        if get_ident() != thread or (_AGAIN and not taking):
            return
        if not outer and (is_in_backward or type(module).__name__ in _WRAPPERS):
            return
        arguments = (args, sys._getframe(1).f_locals.get("kwargs", {}))
        if not outer:
            outer.append(module)
            current[:] = [None]
            with guarded():
                if wanted(module, _shapes(arguments)):
                    current[:] = [Forward(module, arguments, count, start, selected)]
        if (forward := current[0]) is not None:
            with guarded():
                forward.enter(module, arguments)

    def leave(module: nn.Module, args: Any, output: Any) -> Any:
        if get_ident() != thread or not outer:
            return None
        forward = current[0]
        instead = None
        if forward is not None:
            with guarded():
                instead = forward.leave(module, args, output)
            forward = current[0]
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
    functions = _Functions(lambda *loss: None if taking else take_labels(*loss), take_generator, start)
    try:
        with functions:
            yield
    finally:
        before.remove()
        after.remove()


def recorded(module: nn.Module, arguments: Mapping[str, Any], selected: Selected) -> tuple[Any, list[ModuleOutput]]:
    """Run a module, and return its output and those of the modules inside that are kept; see `Forward`."""
    found: list[ModuleOutput] = []
    with forwards(
        lambda *_: True, lambda one: found.extend(one.outputs.values()), lambda *_: None, lambda: 0, "", selected
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
