"""A program of the user's, run as python runs it, and watched from the moment at which it imports torch.

Everything that a program can tell is as under python: its arguments, paths, `__main__`, streams, signals and exit code.
"""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import subprocess
import sys
import threading
import tokenize
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib.machinery import SourceFileLoader
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any, NamedTuple, NoReturn

from attncli.errors import ExitCode, UsageError
from attncli.recording.apart import Apart
from attncli.recording.children import counting_children, stop_counting
from attncli.recording.import_hook import when_imported
from attncli.recording.notes import Notes
from attncli.signals import handle_signals, restore_signals


class Program(NamedTuple):
    """A program, as python begins it."""

    first: str  # what `sys.argv` begins with
    folder: str  # what `sys.path` begins with
    run: Callable[[], None]  # runs it to its end


def program_of(target: str, is_module: bool = False) -> Program:
    """Return a program, which is run as `python` runs it.

    Args:
        target: a script, a folder or an archive with a `__main__.py`, or a module as `python -m` takes it.
        is_module: whether `target` is the name of a module.

    Raises:
        UsageError: there is no such script, or it cannot be read.
    """
    if is_module:
        return Program("-m", os.getcwd(), lambda: _run_main(target, True))
    path = os.path.join(os.getcwd(), target)
    if os.path.exists(path) and pkgutil.get_importer(path) is not None:
        return Program(target, path, lambda: _run_main("__main__", False))
    try:
        with io.open_code(path) as file:
            content = file.read()
    except OSError as error:
        raise UsageError(f"can't open file {path!r}: {error.strerror or error}") from None
    return Program(target, os.path.dirname(os.path.realpath(path)), lambda: _run_script(target, path, content))


def run_program(
    program: Program,
    arguments: Sequence[str],
    watch: Callable[[], AbstractContextManager[None]],
    report: Callable[[], int],
    notes: Notes,
) -> int:
    """Run a program in this process, and return the exit code to end with.

    What `python` does after the program's last line is done too, up to `atexit`: threads end before the report. A
    child that the program forks goes on as under python and reports nothing.

    Args:
        program: it.
        arguments: the program's.
        watch: watches within the block; called as soon as torch was imported.
        report: called once, when the program has ended, or when it calls `os._exit` or becomes another by `os.exec`. It
            returns the exit code that what was found asks for; a program that fails has its own.
        notes: takes what goes wrong in us.
    """
    own_process, apart, watched = os.getpid(), Apart(), ExitStack()

    def begin() -> None:
        try:
            with apart.ours():
                watched.enter_context(watch())
        except Exception as fault:
            notes.failed(fault, "the program could not be watched")

    def end() -> None:
        try:
            watched.close()
        except Exception as fault:
            notes.failed(fault, "the watch could not be ended")

    def reported() -> int:
        with apart.ours():
            children.add_note(notes)
            return report()

    with ExitStack() as settled:
        _as_python_begins(settled, [program.first, *arguments])
        apart.begin(program.folder)
        children = settled.enter_context(counting_children())
        settled.enter_context(warnings_of_its_lines())
        settled.enter_context(reporting_at_sudden_ends(reported, notes))
        with when_imported("torch", begin):
            code = ended(program.run)
            if os.getpid() == own_process:
                end_threads()
        end()
        with suppress(OSError, ValueError, AttributeError):  # python says so at its own end
            sys.stdout.flush()
    if os.getpid() != own_process:
        return code
    wanted = reported()
    return code or wanted


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


_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


def ended(run: Callable[[], None]) -> int:
    """Run to the end, and return the exit code; what python prints about it is printed."""
    try:
        run()
    except SystemExit as end:
        return _code_of(end)
    except BaseException as error:
        failure = error
    else:
        return 0
    _without_ours(failure, set())
    sys.last_type, sys.last_value, sys.last_traceback = type(failure), failure, failure.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = failure
    try:
        sys.excepthook(type(failure), failure, failure.__traceback__)
    except SystemExit as end:
        return _code_of(end)
    except BaseException:  # the program's hook fails itself
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
    return ExitCode.INTERRUPTED if isinstance(failure, KeyboardInterrupt) else 1


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)  # noqa: T201
    return 1


def end_threads() -> None:
    """Wait for the other threads, as python does; a Ctrl-C ends the waiting."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException as error:
        _without_ours(error, set())
        print(f"Exception ignored in: {threading!r}", file=sys.stderr)  # noqa: T201
        sys.__excepthook__(type(error), error, error.__traceback__)


def _without_ours(error: BaseException | None, seen: set[int]) -> None:
    """Take our frames, and those by which python imports, out of a traceback and those of what it came from."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    frames: list[TracebackType] = []
    traceback = error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith((_OURS, "<frozen importlib.")):
            frames.append(traceback)
        traceback = traceback.tb_next
    shown: TracebackType | None = None
    for frame in reversed(frames):
        shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = shown
    _without_ours(error.__cause__, seen)
    _without_ours(error.__context__, seen)


@contextmanager
def warnings_of_its_lines() -> Iterator[None]:
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
def reporting_at_sudden_ends(report: Callable[[], object], notes: Notes) -> Iterator[None]:
    """Have what ends this process without a word report first. A forked child leaves as it does."""
    own_process = os.getpid()

    def reporting(name: str, leave: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def report_and_leave(*arguments: Any, **named: Any) -> NoReturn:
            try:
                if os.getpid() == own_process:
                    if name != "_exit":
                        notes.add("the program called os.exec. attn does not watch what came after")
                    report()
                    sys.stderr.flush()
            finally:
                leave(*arguments, **named)

        return report_and_leave

    was = {name: getattr(os, name) for name in ("_exit", "execv", "execve")}
    for name, leave in was.items():
        setattr(os, name, reporting(name, leave))
    try:
        yield
    finally:
        for name, leave in was.items():
            setattr(os, name, leave)


def _as_python_begins(settled: ExitStack, argv: list[str]) -> None:
    """Take back what we set for ourselves, until the program ends."""
    ours = sys.stdin, sys.stdout, sys.stderr, sys.excepthook

    def take_ours() -> None:
        sys.stdin, sys.stdout, sys.stderr, sys.excepthook = ours

    settled.callback(take_ours)
    sys.excepthook = sys.__excepthook__
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    settled.callback(handle_signals)
    restore_signals()
    sys.argv = argv
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main


def _run_script(target: str, path: str, content: bytes) -> None:
    """Run a script. What python does not take for one, it says itself: it reads files otherwise than `compile` does."""
    try:
        code = pkgutil.read_code(io.BytesIO(content)) or _compiled(content, path)
    except Exception:
        options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        stop_counting()
        raise SystemExit(subprocess.call([sys.executable, *options, target, *sys.argv[1:]])) from None
    main = sys.modules["__main__"]
    main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    exec(code, main.__dict__)


def _compiled(content: bytes, path: str) -> CodeType:
    """Return the code of a source.

    Raises:
        SyntaxError: it is none; also because it is not UTF-8 and says of no other encoding, of which `compile` minds
            nothing in comments.
    """
    encoding, lines = tokenize.detect_encoding(io.BytesIO(content).readline)
    if encoding == "utf-8" and not any(tokenize.cookie_re.match(line.decode()) for line in lines):
        content.decode()
    return compile(content, path, "exec", dont_inherit=True)


def _run_main(name: str, is_module: bool) -> None:
    runpy._run_module_as_main(name, is_module)  # type: ignore[attr-defined]  # what `python -m` itself calls
