"""`-o FOLDER/`: a dataset of parts that a command writes, in processes of this machine or on Ray."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from attncli.cli.request import build_job, check_chat, one_device, open_job
from attncli.cli.results import ResultStream
from attncli.cli.sentences import last_number, sentences
from attncli.errors import UsageError
from attncli.text import visible

if TYPE_CHECKING:
    from typer import Context

    from attncli.cli.environment import Environment
    from attncli.cli.groups import Options
    from attncli.cli.options import Inspection, Request
    from attncli.cli.request import Task
    from attncli.corpus.dataset import ShardInfo
    from attncli.corpus.jobs import TraceJob
    from attncli.corpus.protocol import Result

# Options that the numbers do not depend on. The sentences themselves are known by what they are.
_OF_THE_RUN = frozenset({
    "text", "file", "jobs", "on", "offline", "trust_remote_code", "ramp",
})  # fmt: skip
_ON = re.compile(r"ray(?:://(?P<address>[^/]+?)/?)?")
_RAY_PORT = 6379  # of `ray start --head`


def provenance(command: str, *groups: Options) -> dict[str, str]:
    """Return what a folder of parts is made by, in words: the command, and the options that were given."""
    options = {name: value for group in groups for name, value in group.explicit_values() if name not in _OF_THE_RUN}
    return {"command": command, **{f"--{name.replace('_', '-')}": _as_text(options[name]) for name in sorted(options)}}


def _as_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else "given" if value is True else str(value)


def write_folder(
    context: Context,
    environment: Environment,
    request: Inspection,
    task: Task,
    *,
    folder: str,
    form: str,
    types: Mapping[str, str],
    made: Mapping[str, str],
    jobs: int | None,
) -> int:
    """Write what is made of the sentences into a folder, or what is not there of it; return how many are bad.

    Args:
        context: of the command.
        environment: that of the run.
        request: the options.
        task: what is made of traces: pieces of `form`.
        folder: a path, or a URL.
        form: of the parts.
        types: of the columns of a part without rows.
        made: what the numbers depend on; see `provenance`.
        jobs: how many processes work.

    Raises:
        AttnError: what `write_dataset` and the job raise.
    """
    from attncli.corpus.dataset import ShardWriterJob, in_shards, write_dataset
    from attncli.corpus.run import run

    texts = request.computed.sentences
    if request.from_ is not None:
        raise UsageError("a folder of parts is of sentences, and --from of one trace; give -o attention.parquet")
    check_chat(texts, texts.target)
    shards = in_shards(sentences(texts, environment), texts.files)

    def writer(job: TraceJob[Any]) -> ShardWriterJob:
        return ShardWriterJob(job, folder, form, types)

    with write_dataset(folder, made, texts.files) as summary:
        if request.on is not None:
            results = _on_ray(
                request, writer(build_job(request, task, dict(request.computed.load.explicit_values()))), shards, jobs
            )
        else:
            job, source = open_job(environment, request, task)
            shard_job = writer(job)
            opened = shard_job.open(lambda: job.open(source))
            results = run(shard_job, shards, jobs or one_device(request), opened, source.parallel_from)
        stream = ResultStream(
            context, environment, results, total=last_number(texts), is_alone=False, warns_once=True, goes_on=True
        )
        for _, shard in stream.values():
            if shard is not None:
                summary.add(shard)
    environment.note(str(summary))
    return stream.failures


def check_on(request: Request, on: str, output: str | None) -> None:
    """Raise UsageError, before anything is loaded, for what is not computed on Ray."""
    load = request.computed.load
    if not _ON.fullmatch(on):
        raise UsageError(
            f"--on {visible(on)}: expected ray, or ray://HOST:PORT of a cluster, such as ray://10.0.0.1:6379"
        )
    if output is None:
        raise UsageError("--on applies to -o FOLDER/, a dataset of parts, each of which is a task; give one")
    if load.device_map is not None:
        raise UsageError("--device-map does not apply to --on, where each process has one device; give --device cuda")
    if load.device is not None and re.fullmatch(r"cuda:\d+", load.device):
        raise UsageError(
            f"--device {load.device} does not apply to --on, where Ray chooses the GPU; give --device cuda"
        )


def _on_ray(
    request: Inspection, job: Any, shards: Any, jobs: int | None
) -> Generator[Result[ShardInfo | None], None, None]:
    from attncli.corpus.on_ray import run_on_ray
    from attncli.encoding.encode import check_texts

    texts, found = request.computed.sentences, _ON.fullmatch(request.on or "")
    assert found is not None
    check_texts(None, texts.pair, texts.target)
    address = found["address"]
    if address is not None and not re.search(r":\d+$", address):
        address = f"{address}:{_RAY_PORT}"
    gpus = 1 if request.computed.load.device == "cuda" else 0
    return run_on_ray(job, shards, address, jobs, gpus)
