"""Ray: the parts of one process, whatever happens to the processes of a cluster."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from datasets import PARTS, files_of, sentences_of, toy_writer

from attncli.corpus import on_ray
from attncli.corpus.dataset import PartInfo, in_shards, write_dataset
from attncli.corpus.on_ray import run_on_ray
from attncli.errors import LoadError, UsageError

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.xdist_group("ray"),  # one cluster serves them all
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # that Ray says of itself
    pytest.mark.usefixtures("small_parts"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two processors that wait for work; what is printed or reported of them is nobody's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # it would keep a token in the home folder
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL", "include_dashboard": False}
        ray.init(address="local", num_cpus=2, object_store_memory=2**27, **options)
        yield
        ray.shutdown()


def write(folder: Path, **options: Any) -> int:
    """Write a dataset on Ray, and return how many parts were there before."""
    with write_dataset(str(folder), {"command": "inspect"}) as summary:
        shards = in_shards(sentences_of(150), ["a.txt", "b.txt"])
        for result in run_on_ray(toy_writer(folder, **options), shards, jobs=2):
            if isinstance(result.value, PartInfo):
                summary.parts.append(result.value)
    return sum(part.was_there for part in summary.parts)


def kill_workers(is_over: Event) -> None:
    """Kill the processes that write parts, for a while every moment one."""
    for _ in range(4):
        if is_over.wait(1):
            return
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (entry / "cmdline").read_bytes().startswith(b"ray::_write_part"):
                    os.kill(int(entry.name), signal.SIGKILL)
                    break


@pytest.mark.system
def test_kills_lose_and_double_nothing(cluster: None, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    is_over = Event()
    killing = Thread(target=kill_workers, args=[is_over])
    killing.start()
    try:
        assert write(tmp_path / "out") == 0
    finally:
        is_over.set()
        killing.join()
    assert files_of(tmp_path / "out") == undisturbed
    (tmp_path / "out" / PARTS[4]).unlink()
    assert write(tmp_path / "out") == 5
    assert files_of(tmp_path / "out") == undisturbed


@pytest.mark.system
def test_what_is_raised_where_it_runs_is_raised_here(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="layer 7"):
        write(tmp_path / "out", layer="7")
    monkeypatch.setattr(on_ray, "__version__", "9.9")
    with pytest.raises(LoadError, match=r" 9\.9; install the same one on every machine"):
        write(tmp_path / "out")


def test_that_ray_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LoadError) as refused:
        next(run_on_ray(toy_writer(tmp_path), []))
    assert "install 'ray<2.64'" in str(refused.value)
