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

    from attncli.cli.datasets import Writing
    from attncli.cli.environment import Environment
    from attncli.cli.options import Derive, Request, Texts
    from attncli.cli.resume import Resumed
    from attncli.corpus.tracing import Made, Tracing
    from attncli.corpus.work import Answer as Answered
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
    wish = Derivation(derive.norms, derive.rollout, derive.words, derive.mean, shown)
    if derive.rollout and not (is_saved and shown is None):
        return wish, (shown or Indices.of("layer", -1)).and_below
    if derive.mean in ("layers", "all") and chosen is None and not is_saved:
        return wish, Indices.of("layer", "all")
    return wish, None


@dataclass(frozen=True)
class Task:
    """What a command makes of traces, and what these have to have.

    Attributes:
        made: of the traces of a batch.
        usual: which layers are computed where `--layer` does not say.
        layers: which layers are needed, whatever `--layer` says.
        generate: how many tokens the model writes.
        values: whether V is going to be read; see `open_source`.
    """

    made: Made[Any]
    usual: str
    layers: Indices | None = None
    generate: int | None = None
    values: bool = True


def made_of(
    environment: Environment,
    request: Request,
    task: Task,
    *,
    only: str | None = None,
    resumed: Resumed | None = None,
    texts: Iterable[CorpusItem] | None = None,
    jobs: int | None = 1,
    on: str | None = None,
    dataset: Writing | None = None,
) -> Generator[Answered[Any], None, None]:
    """Yield what is made of the traces that a command is asked for; a bad request is refused before the first one.

    A bad sentence is answered by a `Failure`.

    Args:
        environment: that of the run.
        request: the options.
        task: what is made.
        only: what takes a single trace, for the error; None takes any number.
        resumed: the run that this one goes on from; sentences that it answered are not answered again.
        texts: in the place of the sentences that the options name.
        jobs: how many processes work; see `corpus.local.answered`.
        on: where else they work; see `--on`.
        dataset: whose parts are written; nothing else is answered than bad sentences, and what is said of others.

    Raises:
        UsageError: options contradict each other, or do not apply.
        LoadError: the checkpoint cannot be loaded.
        InputError: a file cannot be read.
    """
    from attncli.corpus.local import answered, together_from
    from attncli.corpus.work import Batch, in_windows
    from attncli.engines.source import CorpusItem

    chosen = request.selection
    if request.from_ is not None:
        refuse_beside_saved(request.making())
        if dataset is not None:
            raise UsageError("a folder of parts is of sentences, and --from of one trace; give -o attention.parquet")
        from attncli.trace.store import load

        trace = load(request.from_, task.layers or chosen.layer, chosen.head, chosen.kind)
        return (answer for answer in task.made(Batch("", [CorpusItem(1, trace.text)]), iter([(1, trace)])))
    asked = request.computed
    check_chat(asked.sentences, asked.sentences.target)
    if on is not None:
        from attncli.cli.cluster import answered_on

        work = _work(request, task, dict(asked.load.said()))
        return answered_on(environment, on, asked, work, jobs, dataset)
    numbered = sentences(asked.sentences, environment) if texts is None else iter(texts)
    if only is not None:
        numbered = _the_only(numbered, only)
    work, source = work_of(environment, request, task)
    parallel_from = source.parallel_from
    if jobs is None and (asked.load.device not in (None, "cpu") or asked.load.device_map is not None):
        jobs = 1  # there is one device, and one copy of the weights on it
    if dataset is not None:
        from attncli.corpus.parts import in_parts

        parts, batches = dataset.parts(work), in_parts(numbered, asked.sentences.files)
        return dataset.counted(answered(parts, batches, jobs, parts.on(lambda: work.on(source)), parallel_from))
    waits = source.can_batch or not task.made.by_sentence
    batches = in_windows(numbered, 1 if waits else together_from(jobs, parallel_from))
    answers = answered(
        work, batches if resumed is None else resumed.left(batches), jobs, work.on(source), parallel_from
    )
    return answers if resumed is None else resumed.due(answers)


def work_of(environment: Environment, request: Request, task: Task) -> tuple[Tracing[Any], Source]:
    """Return the work that a command asks for, and its source, which is open; see `made_of`."""
    from attncli.encoding.encode import check_texts

    asked = request.computed

    work = _work(request, task, dict(asked.load.said()))
    with loading(environment, request.model, asked.toy.vocab):
        source = work.source()
    if request.model is None:
        environment.tell(f"the toy layer: {source}")
    check_texts(None, work.pair, work.target)
    return work, source


def _work(request: Request, task: Task, load: dict[str, Any]) -> Tracing[Any]:
    """Return the work that a command asks for, nothing of which is open; see `made_of`."""
    from attncli.corpus.tracing import Tracing

    asked, chosen = request.computed, request.selection
    options = {
        "model": request.model,
        "layers": task.layers or chosen.layer or task.usual,
        "heads": chosen.head,
        "kind": chosen.kind,
        "mask": asked.mask,
        "special": not asked.sentences.no_special,
        "generate": task.generate or 0,
        "values": task.values,
        **dict(asked.sentences.prompt.said()),
        **dict(asked.toy.said()),
        **load,
    }
    return Tracing(task.made, options, asked.sentences.pair, asked.sentences.target)


def traces_of(
    environment: Environment, request: Request, usual: str, only: str | None = None, *, values: bool = True
) -> Iterator[tuple[int, Trace]]:
    """Yield the numbered traces up to the first bad sentence, which raises its error; computed in this process."""
    from attncli.corpus.tracing import AsTheyAre

    answers = made_of(environment, request, Task(AsTheyAre(), usual, values=values), only=only)
    numbered = ((answer.number, answer.result) for answer in answers)
    return raise_on_failure(numbered, is_alone(request.computed.sentences, request.from_))


def is_alone(texts: Texts, saved: Path | None) -> bool:
    """Return whether there can be one sentence only, which need not be named by its number."""
    return saved is not None or texts.is_one or (texts.text != ["-"] and len(texts.sentences) == 1)


def refuse_beside_saved(names: Iterable[str]) -> None:
    """Refuse the options that make what `--from` holds already.

    Raises:
        UsageError: there is one.
    """
    for name in names:
        option = "TEXT" if name == "text" else "--" + name.replace("_", "-")
        raise UsageError(f"{option} does not apply to --from, whose attention is already computed; drop one of them")


def check_chat(texts: Texts, target: str | None = None) -> None:
    """Raise UsageError, before anything is loaded, for a second text beside a chat."""
    if texts.prompt.chat:
        from attncli.encoding.chat import refuse_beside_chat

        refuse_beside_chat(texts.pair, target)


def jobs_of(context: Context, given: str | None, what: str | None = None) -> int | None:
    """Return how many processes `--jobs` asks for; None leaves it to the number of sentences, cores and memory.

    Args:
        context: of the command.
        given: the option.
        what: what takes one process, for the error; None takes any number.

    Raises:
        UsageError: it is no number, or there can be one process alone.
    """
    if (
        given is not None
        and given != "auto"
        and not (given.isascii() and given.isdecimal() and 0 < int(given) <= _MOST)
    ):
        raise UsageError(f"--jobs {visible(given)}: expected a number of processes from 1 to {_MOST}, or auto")
    if what is None:
        return None if given in (None, "auto") else int(given)
    is_typed = (source := context.get_parameter_source("jobs")) is not None and source.name == "COMMANDLINE"
    if is_typed and given != "1":
        raise UsageError(
            f"--jobs does not apply to {what}, one sentence after the other; give --format jsonl, or drop it"
        )
    return 1


def refuse_misplaced_errors(keeps_errors: bool, fail_fast: bool, chosen: str) -> None:
    """Raise UsageError where `--keep-errors` has no errors to keep, or the format no place for them."""
    if keeps_errors and fail_fast:
        raise UsageError("--keep-errors does not apply to --fail-fast, which stops at an error; drop one of them")
    if keeps_errors and chosen not in ("json", "jsonl"):
        raise UsageError(f"--keep-errors does not apply to {chosen}, which has no place for them; give --format jsonl")


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
