"""From the options of a command to the traces it is about: sentences through a source, or one that was saved."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from attncli.cli.sentences import sentences
from attncli.errors import UsageError, raise_on_failure
from attncli.text import visible
from attncli.trace.selection import Indices

if TYPE_CHECKING:
    from pathlib import Path

    from typer import Context

    from attncli.cli.environment import Environment
    from attncli.cli.options import Derive, Request, TextOptions
    from attncli.corpus.jobs import TraceJob, TraceTask
    from attncli.corpus.protocol import Result
    from attncli.engines.source import CorpusItem, Source
    from attncli.trace.trace import Derivation, Trace

_MOST = 1024  # processes that anyone means


def derivation_of(derive: Derive, request: Request) -> tuple[Derivation, Indices | None]:
    """Return what is to be derived, and the layers that it needs; None leaves them to `--layer`.

    A rollout needs every layer up to the one that is shown, by default the last one; a mean over layers is
    over all of them unless some were chosen.

    Raises:
        UsageError: the options do not go together.
    """
    from attncli.trace.trace import Derivation

    if derive.rollout and request.selection.head is not None:
        raise UsageError("--rollout is the mean over all heads of a layer; drop --head")
    chosen, is_saved = request.selection.layer, request.from_ is not None
    shown = None if chosen is None or not derive.rollout else Indices.of("layer", chosen)
    derivation = Derivation(derive.norms, derive.rollout, derive.words, derive.mean, shown)
    if derive.rollout and not (is_saved and shown is None):
        return derivation, (shown or Indices.of("layer", -1)).and_below
    if derive.mean in ("layers", "all") and chosen is None and not is_saved:
        return derivation, Indices.of("layer", "all")
    return derivation, None


@dataclass(frozen=True)
class Task:
    """What a command makes of traces, and what these have to have.

    Attributes:
        make: what is made of each.
        default_layers: which are computed where `--layer` does not say.
        layers: which are needed, whatever `--layer` says.
        generate: how many tokens the model writes.
    """

    make: TraceTask[Any]
    default_layers: str
    layers: Indices | None = None
    generate: int | None = None


def results_of(
    environment: Environment,
    request: Request,
    task: Task,
    *,
    only: str | None = None,
    texts: Iterable[CorpusItem] | None = None,
    jobs: int | None = 1,
) -> Generator[Result[Any], None, None]:
    """Yield what is made of the traces that a command is asked for; a bad request is refused before the first one.

    Args:
        environment: that of the run.
        request: the options.
        task: what is made.
        only: what takes a single trace, for the error; None takes any number.
        texts: in the place of the sentences that the options name.
        jobs: how many processes work; see `corpus.run.run`.

    Raises:
        UsageError: options contradict each other, or do not apply.
        LoadError: the checkpoint cannot be loaded.
        InputError: a file cannot be read.
    """
    from attncli.corpus.run import batched, first_batched, run

    if request.from_ is not None:
        return _of_saved(request, task)
    check_chat(request.computed.sentences, request.computed.sentences.target)
    numbered = sentences(request.computed.sentences, environment) if texts is None else iter(texts)
    if only is not None:
        numbered = _the_only(numbered, only)
    job, source = open_job(environment, request, task)
    jobs = jobs or one_device(request)
    first = 1 if source.can_batch else first_batched(jobs, source.parallel_from)
    return run(job, batched(numbered, first), jobs, job.open(source), source.parallel_from)


def _of_saved(request: Request, task: Task) -> Generator[Result[Any], None, None]:
    from attncli.corpus.jobs import TraceJob
    from attncli.trace.store import load

    assert request.from_ is not None
    refuse_beside_saved(request.making())
    chosen = request.selection
    trace = load(request.from_, task.layers or chosen.layer, chosen.head, chosen.kind)
    return (result for result in [TraceJob(task.make, {}).result(1, trace)])


def one_device(request: Request) -> int | None:
    """Return 1 where there is one device with one copy of the weights on it; None is any number of processes."""
    load = request.computed.load
    return 1 if load.device not in (None, "cpu") or load.device_map is not None else None


def open_job(environment: Environment, request: Request, task: Task) -> tuple[TraceJob[Any], Source]:
    """Return the job that a command asks for, and its source, which is open; see `results_of`."""
    from attncli.encoding.encode import check_texts

    computed = request.computed

    job = build_job(request, task, dict(computed.load.explicit_values()))
    with loading(environment, request.model, computed.toy.vocab):
        source = job.source()
    if request.model is None:
        environment.tell(f"the toy layer: {source}")
    check_texts(None, job.pair, job.target)
    return job, source


def build_job(request: Request, task: Task, load: dict[str, Any]) -> TraceJob[Any]:
    """Return the job that a command asks for, nothing of which is open."""
    from attncli.corpus.jobs import TraceJob

    computed, chosen = request.computed, request.selection
    options = {
        "model": request.model,
        "layers": task.layers or chosen.layer or task.default_layers,
        "heads": chosen.head,
        "kind": chosen.kind,
        "mask": computed.mask,
        "special": not computed.sentences.no_special,
        "generate": task.generate or 0,
        **dict(computed.sentences.prompt.explicit_values()),
        **dict(computed.toy.explicit_values()),
        **load,
    }
    return TraceJob(task.make, options, computed.sentences.pair, computed.sentences.target)


def traces_of(
    environment: Environment,
    request: Request,
    default_layers: str = "0",
    only: str | None = None,
    *,
    texts: Iterable[CorpusItem] | None = None,
) -> Iterator[tuple[int, Trace]]:
    """Yield the numbered traces up to the first bad sentence, which raises its error; computed in this process."""
    from attncli.corpus.jobs import Identity

    results = results_of(environment, request, Task(Identity(), default_layers), only=only, texts=texts)
    numbered = ((result.number, result.value) for result in results)
    return raise_on_failure(numbered, is_alone(request.computed.sentences, request.from_))


def is_alone(texts: TextOptions, saved: Path | None) -> bool:
    """Return whether there can be one sentence only, which need not be named by its number."""
    return saved is not None or texts.is_one or (texts.text != ["-"] and len(texts.text or ()) == 1)


def refuse_beside_saved(names: Iterable[str]) -> None:
    """Refuse the options that make what `--from` holds already.

    Raises:
        UsageError: there is one.
    """
    for name in names:
        option = "TEXT" if name == "text" else "--" + name.replace("_", "-")
        raise UsageError(f"{option} does not apply to --from, whose attention is already computed; drop one of them")


def check_chat(texts: TextOptions, target: str | None = None) -> None:
    """Raise UsageError, before anything is loaded, for a second text beside a chat."""
    if texts.prompt.chat:
        from attncli.encoding.chat import refuse_beside_chat

        refuse_beside_chat(texts.pair, target)


def jobs_of(context: Context, jobs: str | None, what: str | None = None) -> int | None:
    """Return how many processes `--jobs` asks for; None leaves it to the number of sentences, cores and memory.

    Args:
        context: of the command.
        jobs: the option.
        what: what takes one process, for the error; None takes any number.

    Raises:
        UsageError: it is no number, or there can be one process alone.
    """
    if jobs is not None and jobs != "auto" and not (jobs.isascii() and jobs.isdecimal() and 0 < int(jobs) <= _MOST):
        raise UsageError(f"--jobs {visible(jobs)}: expected a number of processes from 1 to {_MOST}, or auto")
    if what is None:
        return None if jobs in (None, "auto") else int(jobs)
    is_typed = (source := context.get_parameter_source("jobs")) is not None and source.name == "COMMANDLINE"
    if is_typed and jobs != "1":
        raise UsageError(
            f"--jobs does not apply to {what}, one sentence after the other; give --format jsonl, or drop it"
        )
    return 1


def loading(environment: Environment, model: str | None, vocab: str | None) -> AbstractContextManager[None]:
    """Return the line of a terminal while what is named is loaded; `words` are a vocabulary that nobody loads."""
    from attncli.cli.progress import status

    name = vocab or "words" if model is None else model
    return nullcontext() if name == "words" else status(environment, f"loading {name}")


def _the_only(texts: Iterator[CorpusItem], what: str) -> Iterator[CorpusItem]:
    first = list(islice(texts, 2))
    if len(first) > 1:
        raise UsageError(f"{what} one trace; give one sentence, or each in a run of its own")
    return iter(first)
