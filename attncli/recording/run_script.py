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
import tokenize
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from attncli.errors import UsageError
from attncli.recording.apart import Apart
from attncli.recording.children import counting_children, stop_counting
from attncli.recording.endings import end_threads, ended, reporting_at_sudden_ends, warnings_of_its_lines
from attncli.recording.import_hook import when_imported
from attncli.recording.notes import Notes
from attncli.signals import handle_signals, restore_signals


class Program(NamedTuple):
    """A program, as python begins it.

    Attributes:
        first: what `sys.argv` begins with.
        folder: what `sys.path` begins with.
        run: runs it to its end.
    """

    first: str
    folder: str
    run: Callable[[], None]


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
