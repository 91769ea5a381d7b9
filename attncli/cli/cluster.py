"""`--on`: the sentences of files, computed elsewhere."""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from attncli.errors import UsageError
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.cli.datasets import Writing
    from attncli.cli.environment import Environment
    from attncli.cli.options import Computed, Request
    from attncli.corpus.tracing import Tracing
    from attncli.corpus.work import Answer

_ON = re.compile(r"ray(?:://(?P<address>[^/]+?)/?)?")


def check_on(request: Request, on: str, unfit: str | None) -> None:
    """Raise UsageError, before anything is loaded, for what is not computed elsewhere.

    Args:
        request: the options.
        on: the value of `--on`.
        unfit: what else was asked for that it does not apply to, and what to do.
    """
    load = request.computed.load
    if not _ON.fullmatch(on):
        raise UsageError(
            f"--on {visible(on)}: expected ray, or ray://HOST:PORT of a cluster, such as ray://10.0.0.1:6379"
        )
    if unfit is not None:
        raise UsageError(f"--on does not apply to {unfit}")
    if request.from_ is not None or request.computed.sentences.file in (None, "-"):
        raise UsageError("--on applies to --file FILE, FOLDER or URL, which every machine reads for itself; give one")
    if load.device_map is not None:
        raise UsageError("--device-map does not apply to --on, where each process has one device; give --device cuda")
    if load.device is not None and re.fullmatch(r"cuda:\d+", load.device):
        raise UsageError(
            f"--device {load.device} does not apply to --on, where Ray chooses the GPU; give --device cuda"
        )


def answered_on(
    environment: Environment,
    on: str,
    asked: Computed,
    work: Tracing[Any],
    jobs: int | None,
    dataset: Writing | None,
) -> Generator[Answer[Any], None, None]:
    """Yield what a work makes of the files that were asked for; see `cli.request.made_of`.

    Raises:
        AttnError: what `corpus.on_ray` raises.
        InputError: there is no sentence.
    """
    from attncli.corpus.cluster import PORT
    from attncli.corpus.on_ray import answered
    from attncli.corpus.parts import in_parts
    from attncli.corpus.work import in_windows
    from attncli.encoding.encode import check_texts

    check_texts(None, work.pair, work.target)
    empty: list[int] = []
    corpus, found = asked.sentences.corpus, _ON.fullmatch(on)
    assert corpus is not None
    assert found is not None
    address = found["address"]
    if address is not None and not re.search(r":\d+$", address):
        address = f"{address}:{PORT}"
    answers: Generator[Answer[Any], None, None] = answered(
        work if dataset is None else dataset.parts(work),
        corpus,
        in_windows if dataset is None else partial(in_parts, files=asked.sentences.files),
        address=address,
        jobs=jobs,
        gpus=1 if asked.load.device == "cuda" else 0,
        leave_out=empty.append,
    )
    is_any = False
    for answer in answers if dataset is None else dataset.counted(answers):
        is_any = True
        yield answer
    corpus.check_read(is_any, sum(empty), environment.note)
