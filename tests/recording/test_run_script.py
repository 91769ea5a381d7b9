"""A program under `attn run` does what it does under python, and what was seen of it is reported."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ATTEND = """
import torch
import torch.nn.functional as F
def attend():
    x = torch.ones(1, 1, 2, 4)
    return F.scaled_dot_product_attention(x, x, x)
"""

TELLS = """
import os, sys
print(sys.argv, sys.path[0], __name__, __file__, __package__, __doc__, __cached__, sorted(globals()))
print(type(__loader__).__name__, sys.modules["__main__"].__dict__ is globals(), sys.stdin.read(), os.environ.get("X"))
print(sys.stdout is sys.__stdout__, sys.excepthook is sys.__excepthook__, "torch" in sys.modules)
import gc, signal
print(gc.get_threshold(), *(signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)))
"""


class Ran(NamedTuple):
    code: int
    stdout: str
    stderr: str
    calls: int | None = None


def alone(*arguments: str, stdin: str = "", python: str = sys.executable) -> Ran:
    done = subprocess.run([python, *arguments], input=stdin, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


def watched(*arguments: str, **how: str) -> Ran:
    Path("calls.json").unlink(missing_ok=True)
    done = alone("-m", "attncli", "run", "--quiet", "-o", "calls.json", *arguments, **how)
    if not Path("calls.json").exists():
        return done
    places = json.loads(Path("calls.json").read_text())["places"]
    return done._replace(calls=sum(place["calls"] for place in places))


def notes() -> list[str]:
    found: list[str] = json.loads(Path("calls.json").read_text())["notes"]
    return found


def same(*arguments: str, **how: str) -> int | None:
    without, ran = alone(*arguments, **how), watched(*arguments, **how)
    assert ran[:3] == without[:3]
    return ran.calls


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # OpenMP hangs in the children of os.fork


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(exist_ok=True, parents=True)
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_what_a_script_can_tell_of_itself() -> None:
    assert same(write("sub/tells.py", TELLS), "--one", "-F", "two", stdin="words") == 0


def test_what_a_module_can_tell_of_itself() -> None:
    write("package/__init__.py", "")
    write("package/tells.py", TELLS)
    write("package/__main__.py", TELLS)
    assert same("-m", "package.tells", "one") == 0
    assert same("-m", "package", "--two", stdin="words") == 0


@pytest.mark.parametrize("last", [
    "sys.exit('a sentence')", "sys.stdout.write('no line end')", "x = (", "raise ValueError from KeyError()",
    "sys.excepthook = lambda *_: sys.exit(9)\n1 / 0",
    "atexit.register(lambda: print(sys.last_value, sys.last_type, sys.last_traceback.tb_lineno))\n1 / 0",
])  # fmt: skip
def test_a_program_ends_as_under_python(last: str) -> None:
    assert same(write("ends.py", f"import atexit, sys\natexit.register(print, 'at exit')\n{last}\n")) == 0


def test_a_program_that_interrupts_itself() -> None:
    script = write("interrupted.py", f"{ATTEND}\nattend()\nraise KeyboardInterrupt\n")
    without, ran = alone(script), watched(script)
    assert (ran.stdout, ran.stderr, ran.calls) == (without.stdout, without.stderr, 1)
    assert ran.code == 128 + signal.SIGINT == 128 - without.code  # it died of the signal; a shell says so like that


def test_ctrl_c_reports_what_was_seen(signals_arrive: None) -> None:
    script = write("waits.py", f"import time{ATTEND}\nattend()\nprint('ready', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "attncli", "run", "--quiet", "-F", "json", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "KeyboardInterrupt\n" in stderr
    assert stderr.rstrip().endswith("}")
    assert json.loads(stderr[stderr.index("{") :])["places"][0]["calls"] == 1


@pytest.mark.usefixtures("warm")
def test_os_exit_reports_what_was_seen() -> None:
    script = write("leaves.py", f"import os{ATTEND}\nattend()\nprint(1, flush=True)\nos._exit(7)\n")
    assert same(script, python="python") == 1


def test_a_program_that_becomes_another_reports_what_was_seen() -> None:
    again = "import os, sys\nif len(sys.argv) > 1:\n    sys.exit(print('again', sys.argv))\n"
    script = f"{again}{ATTEND}\nattend()\nos.execv(sys.executable, [sys.executable, 'becomes.py', 'one'])\n"
    assert same(write("becomes.py", script)) == 1
    assert notes() == ["the program called os.exec, and attn watches nothing after that"]


def test_children_are_not_watched_and_a_line_says_so() -> None:
    script = """
import multiprocessing, os, subprocess, sys
def double(x):
    return 2 * x
if __name__ == "__main__":
    subprocess.run([sys.executable, "-W", "ignore", "child.py"])
    subprocess.run([sys.executable, "-m", "child"])
    subprocess.run("cd . && python -c 'print(2)' | cat", shell=True)
    subprocess.run(["ls", "child.py"])
    os.system("ls child.py; python -c 'print(3)'")
    compiler = {"__name__": "torch._inductor.codecache", "run": subprocess.run}
    exec(f"run([{sys.executable!r}, '-m', 'child'])", compiler)
    sys.stdout.flush()
    os.waitpid(os.posix_spawn(sys.executable, [sys.executable, "child.py"], os.environ), 0)
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(double, [1, 2]))
"""
    write("child.py", "print('child')\n")
    assert same(write("starts.py", script)) == 0
    assert notes() == ["7 child processes were not watched; run them under attn run"]
    assert same(write("alone.py", "import subprocess\nsubprocess.run(['true'])\n")) == 0
    assert notes() == []


def test_threads_the_environment_and_warnings() -> None:
    script = f"""
import os, sys, threading
os.environ["OMP_NUM_THREADS"] = "3"
from concurrent.futures import ThreadPoolExecutor{ATTEND}
is_said = threading.Event()
def later():
    is_said.wait()
    attend()
    sys.stdout.write("later\\n")
threading.Thread(target=later).start()
pool = ThreadPoolExecutor(1)
pool.submit(later)
print("main", torch.get_num_threads(), torch.ones(1, 2, 3).T.shape)  # of three axes, of which torch warns
is_said.set()
"""
    assert same(write("threads.py", script)) == 2
