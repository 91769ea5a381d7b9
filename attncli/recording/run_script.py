"""A program of the user's, run as python runs it, and watched from the moment at which it imports torch.

Everything that a program can tell is as under python: its arguments, paths, `__main__`, streams, signals and exit code.
"""

from __future__ import annotations

import builtins
import io
import itertools
import os
import pkgutil
import re
import runpy
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from importlib.machinery import SourceFileLoader
from types import FrameType, ModuleType, TracebackType
from typing import Any, NamedTuple, NoReturn

from attncli.errors import ExitCode, UsageError
from attncli.recording.import_hook import when_imported
from attncli.recording.notes import Notes
from attncli.signals import handle_signals, restore_signals

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PYTHON = re.compile(r"\b(python|pypy)[0-9.]*\b|torchrun|accelerate|deepspeed")
_COMMANDS = {"subprocess.Popen": 1, "os.system": 0, "os.posix_spawn": 1}  # where among the arguments of the event it is


class Program(NamedTuple):
    """A program, as python begins it."""

    first: str  # the first of `sys.argv`
    folder: str  # the first of `sys.path`
    run: Callable[[], None]  # runs it to its end


def program_of(target: str, is_module: bool = False) -> Program:
    """Return a program, which is run as `python` runs it.

    Args:
        target: a script, a folder or an archive with a `__main__.py`, or a module as `python -m` takes it.
        is_module: whether `target` is the name of a module.

    Raises:
        UsageError: there is no such script, or it cannot be read.
    """
    run_main: Any = runpy._run_module_as_main  # type: ignore[attr-defined]  # as `python -m` does
    if is_module:
        return Program("-m", os.getcwd(), lambda: run_main(target, True))
    path = os.path.join(os.getcwd(), target)
    if os.path.exists(path) and pkgutil.get_importer(path) is not None:
        return Program(target, path, lambda: run_main("__main__", False))
    try:
        with io.open_code(path) as file:
            content = file.read()
    except OSError as error:
        raise UsageError(f"can't open file {path!r}: {error.strerror or error}") from None

    def run_script() -> None:
        code = pkgutil.read_code(io.BytesIO(content)) or compile(content, path, "exec", dont_inherit=True)
        main = sys.modules["__main__"]
        main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
        exec(code, main.__dict__)

    return Program(target, os.path.dirname(os.path.realpath(path)), run_script)


def run_program(
    program: Program,
    arguments: Sequence[str],
    watch: Callable[[], AbstractContextManager[None]],
    report: Callable[[], int],
    notes: Notes,
    steps: int | None = None,
) -> int:
    """Run a program in this process, and return the exit code to end with.

    Threads end before the report, as before `atexit`. A child that the program forks reports nothing.

    Args:
        program: the program.
        arguments: the program's.
        watch: watches within the block; called as soon as torch was imported.
        report: called once, when the program has ended, or when it calls `os._exit` or becomes another by `os.exec`. It
            returns the exit code that the findings ask for; a program that fails has its own.
        notes: takes our own faults.
        steps: of optimizers of torch, after which the program ends; None is all.
    """
    process, watched, children = os.getpid(), ExitStack(), _Children()

    def begin() -> None:
        with notes.of_faults("the program could not be watched"):
            watched.enter_context(watch())
            if steps is not None:  # whose hook ends the program, after that of the watch
                watched.callback(_end_after(steps))

    def reported() -> int:
        notes.extend(children.note())
        return report()

    with ExitStack() as settled:
        _begin_as_python(settled, program, arguments)
        sys.addaudithook(children.audit)
        _report_at_sudden_ends(settled, reported, notes)
        with when_imported("torch", begin):
            code = _exit_code(program.run)
            if os.getpid() == process:
                _end_threads()
        with notes.of_faults("attn could not stop watching the program"):
            watched.close()
        with suppress(OSError, ValueError, AttributeError):  # python says so at its own end
            sys.stdout.flush()
    wanted = reported() if os.getpid() == process else 0
    return code or wanted


def _end_after(steps: int) -> Callable[[], None]:
    """End the program, as `sys.exit()` does, after some steps of optimizers of torch; return what undoes this."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    numbers = itertools.count(1)

    def count(*_: Any) -> None:
        if next(numbers) >= steps:
            raise SystemExit

    return register_optimizer_step_post_hook(count).remove


def _exit_code(run: Callable[[], None]) -> int:
    """Run to the end, and return the exit code; python's own words about it are printed."""
    try:
        try:
            run()
        except SystemExit:
            raise
        except BaseException as error:
            _show_failure(error)
            return ExitCode.INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _show_failure(failure: BaseException) -> None:
    """Show a failure by the program's own hook, or by python's where that fails."""
    _drop_our_frames(failure)
    shown = sys.last_type, sys.last_value, sys.last_traceback = type(failure), failure, failure.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = failure
    try:
        sys.excepthook(*shown)
    except SystemExit:
        raise
    except BaseException:
        sys.__excepthook__(*shown)


def _end_threads() -> None:
    """Wait for the other threads, as python does; a Ctrl-C ends the waiting."""
    tasks = [f"/proc/self/task/{thread.native_id}" for thread in threading.enumerate()[1:] if not thread.daemon]
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        # What torch keeps of a thread goes with its task, a moment later, and aborts an interpreter that ends before.
        until = time.monotonic() + 1
        while any(map(os.path.exists, tasks)) and time.monotonic() < until:
            time.sleep(0.001)
    except BaseException as error:
        _drop_our_frames(error)
        print(f"Exception ignored in: {threading!r}", file=sys.stderr)  # noqa: T201
        sys.__excepthook__(type(error), error, error.__traceback__)


def _drop_our_frames(failure: BaseException) -> None:
    """Take our frames, and those by which python imports, out of the tracebacks of a failure and its causes."""
    todo: list[BaseException | None] = [failure]
    done = {id(None)}
    while todo:
        error = todo.pop()
        if error is None or id(error) in done:
            continue
        done.add(id(error))
        todo += [error.__cause__, error.__context__]
        frames, each = list[TracebackType](), error.__traceback__
        while each is not None:
            if not each.tb_frame.f_code.co_filename.startswith((_OURS, "<frozen importlib.")):
                frames.append(each)
            each = each.tb_next
        for i, one in enumerate(frames):
            one.tb_next = frames[i + 1] if i + 1 < len(frames) else None
        error.__traceback__ = frames[0] if frames else None


def _report_at_sudden_ends(settled: ExitStack, report: Callable[[], object], notes: Notes) -> None:
    """Have `os._exit` and `os.exec…` report first; a forked child leaves as it does."""
    process = os.getpid()

    def report_and_leave(leave: Callable[..., NoReturn], *arguments: Any, **named: Any) -> NoReturn:
        try:
            if os.getpid() == process:
                if leave.__name__ != "_exit":
                    notes.add("the program called os.exec, and attn watches nothing after that")
                report()
                sys.stderr.flush()
        finally:
            leave(*arguments, **named)

    for leave in (os._exit, os.execv, os.execve):
        settled.callback(setattr, os, leave.__name__, leave)
        setattr(os, leave.__name__, partial(report_and_leave, leave))


def _begin_as_python(settled: ExitStack, program: Program, arguments: Sequence[str]) -> None:
    for name in ("stdin", "stdout", "stderr", "excepthook"):
        settled.callback(setattr, sys, name, getattr(sys, name))
        setattr(sys, name, getattr(sys, f"__{name}__"))
    settled.callback(setattr, warnings, "showwarning", warnings.showwarning)
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    settled.callback(handle_signals)
    restore_signals()
    sys.argv = [program.first, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = program.folder
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main


def _show_warning(
    show: Callable[..., None], message: Any, category: Any, filename: str, lineno: int, *rest: Any, **more: Any
) -> None:
    """Show the line of the program in warnings of torch, and not ours, which called torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OURS, warnings.__file__)):
        frame = frame.f_back
    if filename.startswith(_OURS) and frame is not None:
        filename, lineno = frame.f_code.co_filename, frame.f_lineno
    show(message, category, filename, lineno, *rest, **more)


def _process_number() -> int:
    process: Any = sys.modules.get("multiprocessing.process")
    return 0 if process is None else next(process._process_counter)


class _Children:
    """Counts the Python processes that this one starts, but by `os.fork`."""

    def __init__(self) -> None:
        self._commands, self._earlier = list[str](), _process_number()

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """See `sys.addaudithook`."""
        if (place := _COMMANDS.get(event)) is not None and not is_called_by("torch._inductor"):
            words = [args[place]] if isinstance(args[place], str | bytes) else args[place]
            with suppress(TypeError):
                self._commands.append(" ".join(map(os.fsdecode, words)))

    def note(self) -> list[str]:
        """Return their number as a sentence, if there were any."""
        number = sum(_PYTHON.search(one) is not None for one in self._commands)
        number += max(_process_number() - self._earlier - 1, 0)
        processes = "process was" if number == 1 else "processes were"
        return [f"{number} child {processes} not watched; run them under attn run"] if number else []


def is_called_by(module: str) -> bool:
    """Return whether a function of a module, or of one below it, is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not f"{frame.f_globals.get('__name__')}.".startswith(f"{module}."):
        frame = frame.f_back
    return frame is not None


def rank_of_process() -> tuple[int, int] | None:
    """Return the number of this process in a distributed program, and how many there are; None where it is alone."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        number, count = distributed.get_rank(), distributed.get_world_size()
    else:
        values = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]  # torchrun's and accelerate's
        number, count = map(int, values) if all(each.isdecimal() for each in values) else (0, 1)
    return (number, count) if count > 1 else None
