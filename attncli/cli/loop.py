"""The loop of a command: sentences go through a job to results, and results to an output.

Failures of sentences are printed on stderr between the results, and counted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from functools import partial
from itertools import chain, islice, starmap
from typing import TYPE_CHECKING, Any, Generic, cast

from attncli.checkpoints import is_checkpoint
from attncli.cli.environment import Environment, ProgressBar, print_error, status, stdin_bytes
from attncli.corpus.jobs import Result, Value
from attncli.engines.source import CorpusItem, trace_group
from attncli.errors import Failure, InputError, UsageError, raise_on_failure
from attncli.signals import OnInterrupt
from attncli.text import visible

if TYPE_CHECKING:
    from pathlib import Path

    from attncli.cli.options import CommonOptions, Load, TextOptions
    from attncli.corpus.jobs import BatchFn, ModelJob, Task
    from attncli.trace.selection import Indices
    from attncli.trace.trace import Trace
    from attncli.trace.view import View


# --- sentences, numbered from 1: from the command line, a file or standard input ---------------------------


class MissingSentenceError(UsageError):
    """There is no sentence on the command line, and nothing on standard input."""

    def __init__(self) -> None:
        super().__init__('give a sentence, such as "time flies like an arrow", or --file sentences.txt')


def sentences(options: TextOptions, environment: Environment, *, may_be_words: bool = True) -> Iterator[CorpusItem]:
    """Yield the sentences with their numbers: their place among the arguments, or their line.

    `may_be_words` tells whether several words as arguments may have been meant as one sentence, which is noted.

    Raises:
        MissingSentenceError: there is no sentence.
        UsageError: there are two places to look for one.
        InputError: the file cannot be read, or holds no sentence.
    """
    texts, file = options.text or [], options.file
    if texts and file is not None:
        # Several files, as a shell expands a glob without quotes.
        hint = "; a glob stands in quotes: --file 'corpus/*'" if all(map(os.path.exists, texts)) else ""
        raise UsageError(f"give sentences or --file, not both{hint}")
    if file == "":
        raise UsageError("--file: the file name is empty")
    if options.pictures:
        return starmap(CorpusItem, enumerate(options.pictures, start=1))
    is_bare = not texts and file is None
    if options.reader is not None or texts == ["-"] or file == "-" or (is_bare and not sys.stdin.isatty()):
        reader = options.reader
        items = _piped(options.whole, environment, is_bare) if reader is None else reader.sentences(environment.note)
        # Up to the first sentence, so that an unreadable file is refused before a model is loaded.
        return items if reader is None and not is_bare else chain([next(items)], items)
    if not texts:
        raise MissingSentenceError()
    if "-" in texts:
        raise UsageError("- reads standard input; give it without other sentences")
    check_meant(texts, environment, may_be_words)
    return starmap(CorpusItem, enumerate(texts, start=1))


def texts_of(items: Iterable[CorpusItem], is_alone: bool = False) -> list[Any]:
    """Return the texts of sentences; a bad one raises its error, which names it unless it `is_alone`."""
    return [text for _, text in raise_on_failure(((item.number, item.text) for item in items), is_alone)]


def check_meant(texts: list[str], environment: Environment, may_be_words: bool = True) -> None:
    """Note sentences that look like words without quotes or files; UsageError for the name of a model."""
    if len(texts) > 1 and may_be_words and not any(map(str.isspace, "".join(texts))):
        environment.note(f"each of the {len(texts)} words is a sentence here; put a sentence in quotes")
    for text in filter(None, texts):
        is_model = is_checkpoint(text)
        if not is_model and len(texts) > 1 and text.isidentifier():  # for a single word it is not worth the import
            from attncli.checkpoints.checkpoint_folder import DEMOS

            is_model = text in DEMOS
        if is_model or os.path.isfile(text):
            from shlex import quote

            name = visible(text)
            if is_model:
                raise UsageError(f"{name} is a model, not a sentence; did you mean -m {quote(name)}?")
            option = f"{'--from' if text.endswith('.safetensors') else '--file'} {quote(name)}"
            environment.note(f"{name} is a file, read as a sentence here; {option} opens it")


def _piped(whole: bool, environment: Environment, is_bare: bool) -> Iterator[CorpusItem]:
    """Yield the lines of standard input that are not empty; MissingSentenceError if it is, and was not asked for."""
    from attncli.corpus.read import without_empty
    from attncli.corpus.readers import read_text

    name = "standard input"
    try:
        with stdin_bytes() as stream:
            lines = read_text(stream, name, whole)
            if is_bare:
                if (first := next(lines, None)) is None:
                    raise MissingSentenceError()
                lines = chain([first], lines)
            yield from without_empty(lines, name, "line", environment.note)
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}") from None


_MAX_WARNINGS = 20  # different ones; a file of sentences may have one for each


# --- jobs -------------------------------------------------------------------------------------------------


def trace_job(
    options: CommonOptions,
    task: Task[Any] | None,
    default_layers: str = "0",
    layers: Indices | None = None,
    **more: Any,
) -> ModelJob[Any]:
    """Return the job of a command, without opening it.

    `layers` are needed whatever `--layer` names, `default_layers` where it names none; `more` are of `source_of`.
    """
    from attncli.corpus.jobs import ModelJob, open_traces
    from attncli.trace.selection import layer_and_heads

    texts, chosen = options.texts, options.selection
    layer, head = layer_and_heads(layers or chosen.layer, chosen.head)
    source = {
        "model": options.model,
        "layer": layer or default_layers,
        "head": head,
        "kind": chosen.kind,
        "mask": options.mask,
        "generate": 0,
        **texts.of_model,
        **dict(options.toy.explicit_values()),
        **dict(options.load.explicit_values()),
        **(texts.of_source if options.model else {}),
        **more,
    }
    if more.get("predicts") and options.model and (options.mask is not None or texts.target or source["generate"]):
        raise UsageError("--show next predicts after the text, with the model's own mask; drop --mask or --generate")
    return ModelJob(open_traces, task, source, texts.pair, texts.target)


def open_job(environment: Environment, job: ModelJob[Any]) -> tuple[BatchFn[Any], int]:
    """Open a job in this process; return its function, and the sentence from which on others are worth opening it."""
    from attncli.corpus.jobs import open_traces, source_of

    model, vocab = job.options["model"], job.options.get("vocab")
    with loading(environment, model, vocab):
        if job.open_model is not open_traces:
            return job.open(), job.parallel_from
        source = source_of(**job.options)
    if model is None:
        environment.info(f"the toy layer: {source}")
    return job.open(partial(trace_group, source)), source.parallel_from


def run_job(
    environment: Environment,
    job: ModelJob[Any],
    numbered: Iterable[CorpusItem],
    workers: int | None,
    load: Load | None = None,
) -> Generator[Result[Any], None, None]:
    """Yield the results of sentences, from as many processes as are asked for; the model is opened before the first."""
    from attncli.corpus.run import batched, run

    opened, parallel_from = open_job(environment, job)
    return run(job, batched(numbered), workers_on_device(load, workers), opened, parallel_from)


def first_layer_note(options: CommonOptions, trace: Trace) -> str:
    """Return a note that a model has other layers, where none was chosen; else nothing."""
    from attncli.trace.selection import layer_and_heads

    has_layer = options.from_ is not None or layer_and_heads(options.selection.layer, options.selection.head)[0]
    is_first = not has_layer and [layer.label for layer in trace.layers] == [0] and trace.source.layers > 1
    return f"layer 0 of {trace.source.layers}; --layer all looks in every layer" if is_first else ""


def workers_on_device(load: Load | None, workers: int | None) -> int | None:
    """Return how many processes work; one device has one copy of the weights, so there it is 1 unless more are set."""
    is_device = load is not None and (load.device not in (None, "cpu") or load.device_map is not None)
    return workers or (1 if is_device else None)


def loading(environment: Environment, model: str | None, vocab: str | None) -> AbstractContextManager[None]:
    """Return the terminal line shown while a model or vocabulary is loaded; `words` need no loading."""
    name = vocab or "words" if model is None else model
    return nullcontext() if name == "words" else status(environment, f"loading {name}")


# --- results ----------------------------------------------------------------------------------------------


class ResultStream(Generic[Value]):
    """The results of a run, which are read once. Its workers end with the command.

    The first failure ends the run with its error where it `raises`, or where there can be one sentence only. `total` is
    the number of the last sentence, if that is known. With `warns_once` a warning is printed once, without the number
    of its sentence. With `shares_terminal` results are written to the terminal that the bar would be on. Where it
    `draws`, InputError follows the last result if all of them are failures.

    Attributes:
        failures: number of failed sentences so far.
        hint: returns where the results of a run that is stopped are, given how many sentences are done.
    """

    def __init__(
        self,
        environment: Environment,
        results: Generator[Result[Value], None, None],
        *,
        total: int | None,
        is_alone: bool,
        raises: bool = False,
        warns_once: bool = False,
        shares_terminal: bool = False,
        draws: bool = False,
    ) -> None:
        self.failures = 0
        self.hint: Callable[[int], str] = lambda _: ""
        self._environment, self._is_alone, self._raises = environment, is_alone, raises or is_alone
        self._results, self._warns_once, self._draws = results, warns_once, draws
        self._warned: set[str] = set()
        self._running = ExitStack()
        self._running.enter_context(OnInterrupt(self._note_stopped))
        self._bar = ProgressBar(total, shares_terminal or not environment.has_live_stderr())
        environment.enter(closing(results))
        environment.enter(closing(self._bar))
        environment.enter(self._running)

    def __iter__(self) -> Iterator[tuple[int, Value | Failure]]:
        """Yield the numbers and the values of results; print failures and warnings on stderr."""
        has_value = False
        for number, value, warnings, notes in self._results:
            self._bar.advance(number)
            if isinstance(value, Failure):
                if self._raises:
                    raise value.kind(value.reason if self._is_alone else value.of(number))
                self.failures += 1
                print_error(value.of(number))
            has_value |= not isinstance(value, Failure)
            self._warn(number, warnings, notes)
            yield number, value
        self._running.close()
        self._bar.close()
        if (more := len(self._warned) - _MAX_WARNINGS) > 0:
            self._environment.note(f"{more} more warnings; attn inspect prints them all")
        if self._draws and not has_value:
            raise InputError("nothing to draw: no sentence could be read")

    def _warn(self, number: int, warnings: tuple[str, ...], notes: tuple[str, ...]) -> None:
        for warning in (*notes, *warnings) if self._warns_once else notes:
            if warning not in self._warned:
                self._warned.add(warning)
                if len(self._warned) <= _MAX_WARNINGS:
                    self._environment.note(f"warning: {warning}")
        if not self._warns_once:
            prefix = "" if self._is_alone else f"sentence {number}: "
            self._environment.note(*(f"warning: {prefix}{warning}" for warning in warnings))

    def _note_stopped(self) -> None:
        self._bar.close()
        if note := self._bar.stopped(self.hint(self._bar.count)):
            self._environment.note(note)

    def values(self) -> Iterator[tuple[int, Value]]:
        """Return those that are no failures."""
        return cast("Iterator[tuple[int, Value]]", filter(lambda result: not isinstance(result[1], Failure), self))


def results_of(
    environment: Environment,
    options: CommonOptions,
    job: ModelJob[Any],
    *,
    layers: Indices | None = None,
    only: str | None = None,
    texts: Iterable[CorpusItem] | None = None,
    workers: int | None = 1,
) -> Generator[Result[Any], None, None]:
    """Yield the results of a command's traces; a bad request is refused before the first one.

    `layers` are needed of a saved trace, whatever `--layer` names. `only` is the option that needs a single trace, for
    the error. `texts` replace the sentences of the options.
    """
    if options.from_ is not None:
        from attncli.engines import load_saved

        chosen, loading_options = options.selection, dict(options.load.explicit_values())
        which = layers or chosen.layer, chosen.head, chosen.kind
        trace = load_saved(options.from_, options.model, *which, **loading_options)
        if options.texts.image or options.grid:
            from attncli.encoding.pictures import with_pictures

            trace = with_pictures(trace, options.texts.image or (), options.grid, options.prefix or 0)
        return (job.result(1, saved) for saved in [trace])
    numbered = sentences(options.texts, environment) if texts is None else iter(texts)
    if only is not None:
        first = list(islice(numbered, 2))
        if len(first) > 1:
            raise UsageError(f"{only} one sentence; run the command once for each")
        numbered = iter(first)
    return run_job(environment, job, numbered, workers, options.load)


def traces_of(
    environment: Environment,
    options: CommonOptions,
    default_layers: str = "0",
    only: str | None = None,
    *,
    texts: Iterable[CorpusItem] | None = None,
) -> Iterator[Trace]:
    """Yield the traces up to the first bad sentence, which raises its error; computed in this process."""
    results = results_of(environment, options, trace_job(options, None, default_layers), only=only, texts=texts)
    numbered = ((result.number, result.value) for result in results)
    return (trace for _, trace in raise_on_failure(numbered, options.is_alone))


# --- outputs ----------------------------------------------------------------------------------------------


def write_results(
    environment: Environment, results: ResultStream[Any], shown: View | str, form: str, path: Path | None
) -> None:
    """Write results that are pieces of a machine format to a file, or to standard output.

    `shown`, a view of traces, `tokens` or `cuts`, decides the columns of rows. Parquet has a file.
    """
    from attncli.files import atomic_write, is_stream_path
    from attncli.formats import STREAMS, joined

    types = _types(form, shown)
    if form == "parquet":
        from attncli.formats.parquet import check_parquet, write_parquet

        with atomic_write(check_parquet(path)) as aside, open(aside, "wb") as sink:
            write_parquet(results, types, sink)
        return
    if path is not None and form in STREAMS and not is_stream_path(path):
        results.hint = lambda count: f"{path}.part has their results" if count else ""
    with environment.output(path, is_stream=form in STREAMS) as stream:
        for piece in joined(form, results, types):
            stream.write(piece)
            stream.flush()


def _types(form: str, shown: View | str) -> Mapping[str, str]:
    if form in ("json", "jsonl"):
        return {}
    from attncli.formats.columns import types_of  # which imports NumPy

    return types_of(shown)


def write_folder(
    environment: Environment,
    request: Any,
    job: ModelJob[Any],
    folder: str,
    form: str,
    shown: View | str,
    made: Mapping[str, str],
    workers: int | None = None,
    on: str | None = None,
) -> int:
    """Write the results of sentences into a folder, except existing parts; return how many failed.

    `request` has the groups `texts` and `load`; the results of `job` are pieces of `form`. `made` are the inputs of the
    numbers; see `write_dataset`. `on` is a cluster, if not this machine.
    """
    from attncli.corpus.dataset import PartWriterJob, in_shards, write_dataset

    texts, load = request.texts, request.load
    shards = in_shards(sentences(texts, environment), texts.files)
    writer = PartWriterJob(job, folder, form, _types(form, shown))
    with write_dataset(folder, {**made, "--format": form, **texts.origin}) as summary:
        if on is not None:
            from attncli.corpus.on_ray import run_on_ray

            results = run_on_ray(writer, shards, on, workers, 1 if load.device == "cuda" else 0)
        else:
            from attncli.corpus.run import run

            results_of, parallel_from = open_job(environment, job)
            opened = writer.open(lambda: results_of)
            results = run(writer, shards, workers_on_device(load, workers), opened, parallel_from)
        stream = ResultStream(environment, results, total=texts.last_number, is_alone=False, warns_once=True)
        stream.hint = lambda _: summary.kept()
        for _, part in stream.values():
            if part is not None:
                summary.parts.append(part)
    environment.note(str(summary))
    return stream.failures
