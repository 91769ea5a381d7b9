"""A program of the user's, run as python runs it, and watched from the moment at which it imports torch.

Everything that a program can tell is as under python: its arguments, paths, `__main__`, streams, signals and exit code.
Where it fails, its traceback shows its own frames and not ours.
"""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.machinery import SourceFileLoader
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from attncli.errors import ExitCode, UsageError
from attncli.interruption import leave_signals, settle_signals
from attncli.sources.live.imports import when_imported

if TYPE_CHECKING:
    from attncli.masks.findings import Finding
    from attncli.sources.live.call import Call, Place
    from attncli.sources.live.losses import Loss

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PACKAGE = os.path.abspath(os.path.join(_OURS, os.pardir, os.pardir)) + os.sep


def program_of(target: str, is_module: bool = False) -> Callable[[], None]:
    """Return what runs a program to its end, as `python` does.

    Args:
        target: a script, a folder or an archive with a `__main__.py`, or a module as `python -m` takes it.
        is_module: whether `target` is the name of a module.

    Raises:
        UsageError: there is no such script, or it cannot be read.
    """
    return _module(target) if is_module else _script(target)


def run_program(
    run: Callable[[], None],
    arguments: Sequence[str],
    on_call: Callable[[Call], bool | None],
    report: Callable[[Sequence[str]], int],
    on_loss: Callable[[Loss], None] | None = None,
    on_late: Callable[[Place, Finding], None] | None = None,
) -> int:
    """Run a program in this process, and return the exit code to end with.

    What `python` does after the program's last line is done too, up to `atexit`: threads end before the report. A
    child that the program forks goes on as under python and reports nothing.

    Args:
        run: what `program_of` returned.
        arguments: the program's.
        on_call: see `watching`.
        report: called once, when the program has ended, or when it calls `os._exit`, with notes about what was seen.
            It returns the exit code that what was found asks for; a program that fails has its own.
        on_loss: see `watching`.
        on_late: see `watching`.
    """
    notes: list[str] = []
    fault: Exception | None = None
    own_process = os.getpid()
    with ExitStack() as settled:
        _as_python_begins(settled, [sys.argv[0], *arguments])
        settled.enter_context(_warning_of_its_lines())
        settled.enter_context(_reporting_at_os_exit(own_process, lambda: report(notes)))
        try:
            with ExitStack() as watched:

                def watch() -> None:
                    from attncli.sources.live.watching import watching

                    watched.enter_context(watching(on_call, notes=notes, on_loss=on_loss, on_late=on_late))

                watched.enter_context(when_imported("torch", watch))
                code = _ended(run)
                if os.getpid() == own_process:
                    threading._shutdown()  # type: ignore[attr-defined]  # as python does: other threads end first
        except Exception as error:  # ours, as `watching` says
            fault = error
        with suppress(OSError, ValueError, AttributeError):  # python says so at its own end
            sys.stdout.flush()
    if os.getpid() != own_process:
        return code
    asked = report(notes)
    if fault is not None:
        raise fault
    return code or asked


@contextmanager
def ending_after(steps: int) -> Iterator[None]:
    """End the program that runs inside, as `sys.exit()` does, after so many steps of optimizers of torch.

    Its `finally` blocks and exit handlers run; what it would have done after the step it does not.
    """
    left = steps

    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise SystemExit

    with ExitStack() as hooked:

        def hook() -> None:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            hooked.callback(register_optimizer_step_post_hook(count).remove)

        hooked.enter_context(when_imported("torch", hook))
        yield


def _as_python_begins(settled: ExitStack, argv: list[str]) -> None:
    """Take back what we set for ourselves, until the program ends."""
    ours = sys.stdin, sys.stdout, sys.stderr, sys.excepthook

    def take_ours() -> None:
        sys.stdin, sys.stdout, sys.stderr, sys.excepthook = ours

    settled.callback(take_ours)
    sys.excepthook = sys.__excepthook__
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    settled.callback(settle_signals)
    leave_signals()
    sys.argv = argv
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main


def _script(target: str) -> Callable[[], None]:
    """Return what runs a script, or the `__main__.py` of a folder or an archive."""
    path = os.path.join(os.getcwd(), target)
    if os.path.exists(path) and pkgutil.get_importer(path) is not None:
        return lambda: _run_main(target, path, "__main__", False)
    try:
        with io.open_code(path) as file:
            content = file.read()
    except OSError as error:
        raise UsageError(f"can't open file {path!r}: {error.strerror or error}") from None

    def run() -> None:
        main = sys.modules["__main__"]
        _begin(target, os.path.dirname(os.path.realpath(path)))
        main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
        code = pkgutil.read_code(io.BytesIO(content)) or compile(content, path, "exec", dont_inherit=True)
        exec(code, main.__dict__)

    return run


def _module(name: str) -> Callable[[], None]:
    return lambda: _run_main("-m", os.getcwd(), name, True)


def _run_main(first: str, folder: str, name: str, is_module: bool) -> None:
    _begin(first, folder)
    runpy._run_module_as_main(name, is_module)  # type: ignore[attr-defined]  # what `python -m` itself calls


def _begin(first: str, folder: str) -> None:
    sys.argv[0] = first
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _ended(run: Callable[[], None]) -> int:
    """Run to the end, and return the exit code; what python prints about it is printed."""
    try:
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)  # noqa: T201
        return 1
    except BaseException as error:
        _without_ours(error, set())
        sys.excepthook(type(error), error, error.__traceback__)
        return ExitCode.INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _without_ours(error: BaseException | None, seen: set[int]) -> None:
    """Take our frames out of a traceback, and of those of the errors that it came from."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    frames = []
    traceback, has_begun = error.__traceback__, False
    while traceback is not None:
        file = os.path.abspath(traceback.tb_frame.f_code.co_filename)
        has_begun = has_begun or not file.startswith(_PACKAGE)
        if has_begun and not file.startswith(_OURS):
            frames.append(traceback)
        traceback = traceback.tb_next
    shown: TracebackType | None = None
    for frame in reversed(frames):
        shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = shown
    _without_ours(error.__cause__, seen)
    _without_ours(error.__context__, seen)


@contextmanager
def _warning_of_its_lines() -> Iterator[None]:
    """Have torch's warnings name the line of the program that they are about, and not ours, which called torch."""
    show = warnings.showwarning

    def show_there(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any, **more: Any
    ) -> None:
        if filename.startswith(_OURS):
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename.startswith((_OURS, warnings.__file__)):
                frame = frame.f_back
            if frame is not None:
                filename, lineno = frame.f_code.co_filename, frame.f_lineno
        show(message, category, filename, lineno, *rest, **more)

    warnings.showwarning = show_there
    try:
        yield
    finally:
        if warnings.showwarning is show_there:
            warnings.showwarning = show


@contextmanager
def _reporting_at_os_exit(own_process: int, report: Callable[[], object]) -> Iterator[None]:
    """Have `os._exit`, after which nothing of ours runs, report first. A forked child leaves as it does."""
    leave = os._exit

    def report_and_leave(status: int) -> NoReturn:
        try:
            if os.getpid() == own_process:
                report()
                sys.stderr.flush()
        finally:
            leave(status)

    os._exit = report_and_leave
    try:
        yield
    finally:
        os._exit = leave
