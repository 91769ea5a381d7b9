"""Runs the parts of a dataset on Ray, one task a part: retries, and on which machine each runs, are Ray's."""

from __future__ import annotations

import os
import pickle
import re
import signal
import socket
from collections import deque
from collections.abc import Generator, Iterable
from functools import lru_cache
from itertools import chain
from typing import Any

from attncli._version import __version__
from attncli.corpus.dataset import PartInfo, PartWriterJob
from attncli.corpus.jobs import Batch, BatchFn, Result
from attncli.engines.cpu import ONE_THREAD, cores
from attncli.errors import AttnError, InputError, LoadError, UsageError, require
from attncli.text import visible

_PORT = 6379  # of `ray start --head`


def run_on_ray(
    job: PartWriterJob, shards: Iterable[Batch], on: str = "ray", jobs: int | None = None, gpus: int = 0
) -> Generator[Result[PartInfo | None], None, None]:
    """Yield the results of parts, in order; see `corpus.run.run`.

    `on` is `ray://HOST:PORT`, a cluster that this machine is in; `ray` is RAY_ADDRESS, or else this machine alone. At
    most `jobs` parts are under way, by default half as many again as there are processors, each with its own `gpus`.

    Raises:
        AttnError: Ray or a cluster is not there, or has another attncli, or the job raises it.
    """
    match = re.fullmatch(r"ray(?:://([^/]+?)(:\d+)?/?)?", on)
    if not match:
        raise UsageError(f"--on {visible(on)}: expected ray, or a cluster such as ray://10.0.0.1:6379")
    ray = _join(match[1] + (match[2] or f":{_PORT}") if match[1] else os.environ.get("RAY_ADDRESS"), jobs)
    options = {"num_cpus": 1, "num_gpus": gpus, "max_retries": 10, "runtime_env": {"env_vars": ONE_THREAD}}
    task = ray.remote(**options)(_write_part)
    work = ray.put((pickle.dumps(job), __version__, os.getcwd()))
    processors = int(ray.cluster_resources().get("GPU" if gpus else "CPU", 1))
    waiting: deque[Any] = deque()
    for shard in chain(shards, [None]):  # at the end all are waited for
        if shard is not None:
            waiting.append(task.remote(work, shard))
        while waiting and (shard is None or len(waiting) >= (jobs or processors + processors // 2 + 1)):
            try:
                results = ray.get(waiting.popleft())
            except ray.exceptions.RayError as error:
                why = visible(str(error).strip().splitlines()[-1].strip())
                raise InputError(f"Ray gave up a part: {why} Run the same command again to resume") from None
            if isinstance(results, AttnError):
                raise results
            yield from results


def _write_part(work: tuple[bytes, str, str], shard: Batch) -> list[Result[PartInfo | None]] | AttnError:
    """Write a part, in a process of Ray's; its results are the answer."""
    pickled, version, folder = work
    try:
        if version != __version__:
            here = f"{socket.gethostname()} has attncli {__version__}, and the run {version}"
            raise LoadError(f"{here}; install the same one on every machine of the cluster")
        if os.path.isdir(folder):  # names of files may begin in it
            os.chdir(folder)
        return list(_open(pickled)(shard))
    except AttnError as error:
        return error


@lru_cache(1)
def _open(pickled: bytes) -> BatchFn[PartInfo | None]:
    return pickle.loads(pickled).open()


def _join(address: str | None, jobs: int | None) -> Any:
    """Join a cluster, or be one until the program ends; return the module `ray`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    require("--on ray", "ray")
    import ray

    options: dict[str, Any] = {"num_cpus": jobs or cores(), "include_dashboard": False}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address is not None:  # for which Ray itself tries for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            options = {}
        options |= {"log_to_driver": False, "logging_level": "CRITICAL", "ignore_reinit_error": True}
        ray.init(address or "local", **options)
    except (OSError, RuntimeError, ValueError, OverflowError, ray.exceptions.RayError) as error:
        why = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
        raise LoadError(f"cannot join the Ray cluster at {visible(address or 'local')}: {visible(why)}") from None
    signal.signal(signal.SIGTERM, handler)  # which Ray has taken
    return ray
