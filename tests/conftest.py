"""What the tests share: a runner of the real program, and checkpoints."""

import os
import tempfile

# Before typer is imported, which reads some of them once: what a CI or a person has set for other programs.
_OTHERS = {"FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
_OTHERS |= {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT"}
for name in list(os.environ):
    if name in _OTHERS or name.startswith("ATTN_") or name.lower().endswith("_proxy"):
        del os.environ[name]
_HOME = tempfile.TemporaryDirectory()
# Where transformers copies the code that checkpoints bring: file by file, so that two processes would see halves.
os.environ["HF_MODULES_CACHE"] = _HOME.name
# Tiny models are too small to be shared between threads, which wait for each other where several tests run at once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ |= {"_TYPER_FORCE_DISABLE_TERMINAL": "1", "TERMINAL_WIDTH": "100", "COLUMNS": "100"}
os.environ |= {"TERM": "xterm-256color", "HF_HUB_OFFLINE": "1"}

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from running import Ran
from small_checkpoints import hub_cache, minilm_folder, save_tiny_llama
from threadpoolctl import threadpool_limits
from typer.main import get_command
from typer.testing import CliRunner
from warm import warm_commands

from attncli.recording.notes import Notes

# A plugin of pytest imports NumPy before this file, with a thread for each processor: they wait by spinning.
threadpool_limits(int(os.environ["OMP_NUM_THREADS"]))

# Importing makes many objects and no garbage: what is there when tests begin is not searched for any.
gc.disable()

# The same examples in every run, however slow the machine; others where one looks for them.
settings.register_profile(
    "attncli", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None,
    derandomize="FUZZ_TIMES" not in os.environ,
)  # fmt: skip
settings.load_profile("attncli")


@pytest.fixture(scope="session")
def root() -> Any:
    """The program as Typer builds it: once, for that takes half of a run of the toy layer."""
    from attncli.cli.app import app

    return get_command(app)


@pytest.fixture
def attn(root: Any) -> Callable[..., Ran]:
    def run(*arguments: str | Path, stdin: bytes | str | None = None, **environment: str) -> Ran:
        code = 0
        # The runner's standard input is never a terminal; without `stdin` it is an empty pipe.
        with CliRunner().isolation(stdin, environment) as (out, err, _):
            try:
                root.main([str(argument) for argument in arguments], "attn")
            except SystemExit as ended:
                code = int(ended.code or 0)
            sys.stdout.flush()
            sys.stderr.flush()
            shown, errors = (stream.getvalue().decode().replace("\r\n", "\n") for stream in (out, err))
        assert "this is a bug in attn" not in errors, errors
        return Ran(code, shown, errors)

    return run


@pytest.fixture
def signals_arrive() -> Iterator[None]:
    """Undo what nohup and a shell's & do to the tests, and they to the programs that they start."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT)}
    for number, handler in before.items():
        signal.signal(number, signal.SIG_DFL if handler is signal.SIG_IGN else handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Exception]]:
    """Faults of ours while a program is watched, which fail a test unless it clears the list."""
    found: list[Exception] = []
    failed = Notes.failed

    def recorded(self: Notes, fault: Exception, *what: str) -> None:
        failed(self, fault, *what)
        if not isinstance(fault, RecursionError):
            found.append(fault.with_traceback(None))

    monkeypatch.setattr(Notes, "failed", recorded)
    yield found
    assert not found, found


@pytest.fixture(scope="session")
def minilm() -> str:
    return minilm_folder()


@pytest.fixture(scope="session")
def in_cache(tmp_path_factory: pytest.TempPathFactory, minilm: str) -> dict[str, str]:
    found = hub_cache(tmp_path_factory.mktemp("cache"), "sentence-transformers/all-MiniLM-L6-v2", minilm)
    return {name: found[name] for name in ("HF_HOME", "HF_HUB_OFFLINE")}


@pytest.fixture(scope="session")
def warm_environment(in_cache: dict[str, str]) -> Iterator[dict[str, str]]:
    """The variables with which `attn`, `pytest` and `python` are processes of their own that have torch imported."""
    with warm_commands(os.environ | in_cache) as folder:
        yield {**in_cache, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def warm(warm_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in warm_environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("tiny-llama"))
    save_tiny_llama(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def by_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transformers compute every checkpoint: the engine in NumPy declines them all."""
    from attncli.engines import engine as engine_choice

    def declined(*_: Any, **__: Any) -> None:
        raise engine_choice.UnsupportedError("a test of the other engine")

    monkeypatch.setattr(engine_choice, "NativeCheckpoint", declined)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what shares a fixture of its module in one process of pytest-xdist, so that it is made once."""
    for item in items:
        shared = [name for name, found in item._fixtureinfo.name2fixturedefs.items() if found[-1].scope == "module"]
        if shared and item.get_closest_marker("xdist_group") is None:
            values = item.callspec.params if hasattr(item, "callspec") else {}
            which = [str(values.get(name, "")) for name in shared]
            item.add_marker(pytest.mark.xdist_group("-".join([item.module.__name__, *filter(None, which)])))


def pytest_collection_finish() -> None:
    """Keep libraries and tests out of every later search for garbage, which takes half a second otherwise."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Keep what a module's tests have imported out too: every proof looks through all objects for generators."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
