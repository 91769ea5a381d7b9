"""Commands that begin with torch and transformers imported: `attn`, `pytest` and `python`, as copies of one process.

A test is seldom about how long libraries take to be imported, which is three seconds in every process. Here one process
imports them, and each command is a fork of it, with the arguments, environment, folder and streams that it was called
with. What cannot be that (other options of `python`, other values of what libraries read when they are imported) is a
process of its own after all. The traceback of a program that fails begins in this file.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

COMMANDS = ("attn", "pytest", "python")
IMPORTED = (
    "torch", "torch._dynamo", "transformers.modeling_utils", "transformers.integrations.sdpa_attention",
    "transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.modeling_bert", "transformers.models.llama.modeling_llama",
)  # fmt: skip
# What a test may give another value, and is read when Python starts or a library is imported; and all of `PYTHON…`.
_READ_EARLY = {
    "ATEN_CPU_CAPABILITY", "HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_MODULES_CACHE",
    "MKL_ENABLE_INSTRUCTIONS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE", "TRANSFORMERS_OFFLINE",
}  # fmt: skip
# It begins in a few milliseconds, and ends as the command that it stands for.
_CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
ended = "alone"
with socket.socket(socket.AF_UNIX) as server:
    try:
        server.connect({address!r})
        socket.send_fds(server, [b"-"], [0, 1, 2])
        server.sendall(json.dumps([name, arguments, os.getcwd(), dict(os.environ)]).encode() + b"\\n")
        ended = server.makefile().readline().strip() or ended
    except OSError:
        pass
if ended == "alone":
    own = {folder!r} + "/" + name
    os.execv(own, [own, *arguments])
if int(ended) < 0:
    signal.signal(-int(ended), signal.SIG_DFL)
    os.kill(os.getpid(), -int(ended))
sys.exit(int(ended))
"""


@contextlib.contextmanager
def warm_commands(environment: Mapping[str, str]) -> Iterator[str]:
    """Give a folder with the commands, and let the process that they are copies of live meanwhile."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        address = f"{folder}/socket"
        for name in COMMANDS:
            path = Path(folder, name)
            own = {"python": sys.executable, "address": address, "folder": str(Path(sys.executable).parent)}
            path.write_text(_CLIENT.format(**own), encoding="utf-8")
            path.chmod(0o755)
        listening.bind(address)
        listening.listen(64)
        number = listening.fileno()
        # Whose standard input is closed when this process ends, however it does.
        with subprocess.Popen(
            [sys.executable, __file__, str(number)], stdin=subprocess.PIPE, pass_fds=[number], env=environment
        ) as server:
            yield folder
            server.terminate()


def _serve(listening: socket.socket) -> Any:
    """Answer until standard input is closed; return, in a copy of this process, what it is to run."""
    before = dict(os.environ)
    for name in IMPORTED:
        import_module(name)
    added = {name: value for name, value in os.environ.items() if before.get(name) != value}
    scripts = {one.name: one for one in metadata.entry_points(group="console_scripts") if one.name in COMMANDS}
    gc.freeze()
    while listening in select.select([listening, sys.stdin], [], [])[0]:
        asking, _ = listening.accept()
        if os.fork() == 0:
            break
        asking.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    else:
        os._exit(0)
    listening.close()
    _, streams, *_ = socket.recv_fds(asking, 1, 3)
    name, arguments, folder, environment = json.loads(asking.makefile("rb").readline())
    program = _program(name, arguments, folder, scripts)
    if program is None or _early(environment) != _early(before):
        asking.sendall(b"alone\n")
        os._exit(0)
    if process := os.fork():
        for stream in streams:
            os.close(stream)
        asking.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
        os._exit(0)
    asking.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment | added)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    text = partial(open, encoding="utf-8", closefd=False)
    sys.stdin = sys.__stdin__ = text(0, errors="surrogateescape")
    sys.stdout = sys.__stdout__ = text(1, "w", errors="surrogateescape")
    sys.stderr = sys.__stderr__ = text(2, "w", buffering=1, errors="backslashreplace")
    sys.modules["__main__"] = ModuleType("__main__")
    return program


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name in _READ_EARLY or name.startswith("PYTHON")}


def _program(name: str, arguments: list[str], folder: str, scripts: Mapping[str, Any]) -> Any:
    """Return what runs a command, once its process is all its own; None if that takes a start of Python."""
    if name in scripts:
        return partial(_run_script, scripts[name], arguments)
    if len(arguments) > 1 and arguments[0] == "-m":
        return partial(_run_module, folder, arguments[1:])
    is_file = bool(arguments) and not arguments[0].startswith("-") and Path(folder, arguments[0]).is_file()
    return partial(_run_file, arguments) if is_file else None


def _run_script(script: Any, arguments: list[str]) -> None:
    path = Path(sys.executable).with_name(script.name)
    sys.argv, sys.path[0] = [str(path), *arguments], str(path.parent)
    sys.exit(script.load()())


def _run_module(folder: str, arguments: list[str]) -> None:
    sys.argv, sys.path[0] = ["-m", *arguments[1:]], folder
    runpy._run_module_as_main(arguments[0])


def _run_file(arguments: list[str]) -> None:
    sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).resolve().parent)
    main = vars(sys.modules["__main__"])
    main |= {"__file__": arguments[0], "__cached__": None, "__builtins__": __builtins__}
    exec(compile(Path(arguments[0]).read_bytes(), arguments[0], "exec"), main)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))()
