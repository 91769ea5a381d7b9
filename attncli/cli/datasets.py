"""`-o FOLDER/`: a dataset of parts that a command writes, in processes of this machine or on Ray."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attncli.cli.groups import Options, dashed
from attncli.cli.loop import ResultStream, workers_on_device
from attncli.cli.sentences import sentences
from attncli.errors import UsageError
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.cli.environment import Environment
    from attncli.cli.options import Load, TextOptions
    from attncli.corpus.protocol import BatchFn, Job

# Options that the numbers do not depend on. The sentences are identified by their content.
_OF_THE_RUN = {"text", "file", "jobs", "on", "offline", "trust_remote_code", "ramp", "colormap"}
_ON = re.compile(r"ray(?:://(?P<address>[^/]+?)/?)?")
_RAY_PORT = 6379  # of `ray start --head`


def provenance(command: str, *groups: Options) -> dict[str, str]:
    """Return the provenance of a folder of parts, in words: the command, and the options in use."""
    options = {name: value for group in groups for name, value in group.explicit_values() if name not in _OF_THE_RUN}
    return {"command": command, **{f"--{dashed(name)}": _as_text(options[name]) for name in sorted(options)}}


def _as_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else "given" if value is True else str(value)


def ray_address(on: str) -> str | None:
    """Return the address of the cluster that `--on` names; None is the machine's own.

    Raises:
        UsageError: it names none.
    """
    found = _ON.fullmatch(on)
    if not found:
        raise UsageError(f"--on {visible(on)}: expected ray, or a cluster such as ray://10.0.0.1:6379")
    address = found["address"]
    return address if address is None or re.search(r":\d+$", address) else f"{address}:{_RAY_PORT}"


def write_folder(
    environment: Environment,
    texts: TextOptions,
    load: Load,
    job: Job[Any],
    open_job: Callable[[], tuple[BatchFn[Any], int]],
    *,
    folder: str,
    form: str,
    types: Mapping[str, str],
    made: Mapping[str, str],
    workers: int | None,
    on: str | None = None,
) -> int:
    """Write the results of sentences into a folder, except existing parts; return how many failed.

    Args:
        environment: that of the run.
        texts: the sentences.
        load: how the model is loaded.
        job: its results are pieces of `form`.
        open_job: opens the job in this process; returns its function, and the number of the sentence from which on
            other processes are worth opening it again.
        folder: an absolute path.
        form: of the parts.
        types: of the columns of a part without rows.
        made: the inputs of the numbers; see `provenance`.
        workers: number of processes.
        on: their cluster, if not this machine.
    """
    from attncli.corpus.dataset import PICTURES, PartWriterJob, in_shards, write_dataset

    shards = in_shards(sentences(texts, environment), texts.files, PICTURES if texts.pictures else None)
    writer = PartWriterJob(job, folder, form, types)
    with write_dataset(folder, made, texts.files) as summary:
        if on is not None:
            from attncli.corpus.on_ray import run_on_ray

            gpus = 1 if load.device == "cuda" else 0
            results = run_on_ray(writer, shards, ray_address(on), workers, gpus)
        else:
            from attncli.corpus.run import run

            results_of, parallel_from = open_job()
            opened = writer.open(lambda: results_of)
            results = run(writer, shards, workers_on_device(load, workers), opened, parallel_from)
        stream = ResultStream(environment, results, total=texts.last_number, is_alone=False, warns_once=True)
        stream.bar.hint = lambda _: summary.kept()
        for _, part in stream.values():
            if part is not None:
                summary.add(part)
    environment.note(str(summary))
    return stream.failures
