"""What is known of heads after some sentences, as Parquet: statistics that can be merged with others.

A table has a row for each group of sentences, head and metric. Tables may stand one behind the other in a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from attncli.analysis.heads import HeadKey, SurveyState, SurveyStates
from attncli.analysis.metric_names import DETECTORS, NAMES
from attncli.analysis.statistics import Moments, Sketch, Statistics
from attncli.errors import InputError, UsageError
from attncli.files import check_file
from attncli.text import visible
from attncli.trace.trace import Provenance

if TYPE_CHECKING:
    from jaxtyping import Num

SCHEMA = "attncli.heads-state/1"
_TYPES = {
    "group": "string",
    "layer": "int32",
    "kind": "string",
    "head": "int32",
    "metric": "string",
    "count": "int64",
    "mean": "float64",
    "mean_rest": "float64",
    "m2": "float64",
    "min": "float64",
    "max": "float64",
    "uniform_count": "int64",
    "uniform_mean": "float64",
    "buckets": "list<int16>",
    "bucket_counts": "list<int64>",
    "about": "string",
}


def schema() -> Any:
    """Return the columns, as pyarrow has them."""
    import pyarrow

    def type_of(name: str) -> Any:
        inner = name.removeprefix("list<").removesuffix(">")
        return pyarrow.type_for_alias(name) if inner == name else pyarrow.list_(pyarrow.type_for_alias(inner))

    return pyarrow.schema([(name, type_of(kind)) for name, kind in _TYPES.items()])


def table_of(states: SurveyStates) -> Any:
    """Return the rows of all groups, as a table of pyarrow."""
    import pyarrow

    tables = [pyarrow.table(_columns(states.by, *group), schema=schema()) for group in states.groups.items()]
    return pyarrow.concat_tables([schema().empty_table(), *tables])


def _columns(by: str | None, value: str | None, state: SurveyState) -> dict[str, Any]:
    import pyarrow

    heads, names, found = list(state.heads), state.names, state.measured
    rows = len(heads) * len(names)
    layers, kinds, indices = zip(*heads, strict=True)
    about = {
        "schema": SCHEMA,
        "by": by,
        "source": vars(state.source),
        "queries": state.queries,
        "sentences": state.sentences,
        "tokens": state.tokens,
        "masks": state.masks,
        "layers": state.layers,
        "names": names,
    }
    numbers = {
        "count": found.moments.count,
        "mean": found.moments.mean,
        "mean_rest": found.moments.rest,
        "m2": found.moments.m2,
        "min": found.least,
        "max": found.greatest,
        "uniform_count": _widened(state.uniform.count, len(names)),
        "uniform_mean": _widened(state.uniform.mean, len(names)),
    }
    cells, codes = found.sketch.split()
    ends = pyarrow.array(np.searchsorted(cells, np.arange(rows + 1)), pyarrow.int32())
    counts = pyarrow.array(found.sketch.counts, pyarrow.int64())
    return {
        "group": pyarrow.array([value] * rows, pyarrow.string()),
        "layer": np.repeat(layers, len(names)),
        "kind": np.repeat(kinds, len(names)),
        "head": np.repeat(indices, len(names)),
        "metric": list(names) * len(heads),
        **{name: values.ravel() for name, values in numbers.items()},
        "buckets": pyarrow.ListArray.from_arrays(ends, pyarrow.array(codes, pyarrow.int16())),
        "bucket_counts": pyarrow.ListArray.from_arrays(ends, counts),
        "about": pyarrow.repeat(json.dumps(about), rows),
    }


def _widened(values: Num[np.ndarray, "H N"], names: int) -> Num[np.ndarray, "H M"]:
    """Return what is known of the uniform head, and zeros for the metrics that it has not."""
    return np.pad(values, ((0, 0), (0, names - values.shape[1])))


def states_in(table: Any) -> SurveyStates:
    """Return the states of a table, merged in order.

    Raises:
        ValueError: it holds something else.
        UsageError: its states do not go together.
    """
    if missing := [name for name in _TYPES if name not in table.schema.names]:
        raise ValueError(f"it has no column {missing[0]}")
    columns = {name: table.column(name).cast(schema().field(name).type).combine_chunks() for name in _TYPES}
    states, start = SurveyStates(None, {}), 0
    while start < len(table):
        about = _about(columns["about"][start].as_py())
        layers = tuple(HeadKey(layer, kind, tuple(heads)) for layer, kind, heads in about["layers"])
        shape = sum(len(layer.heads) for layer in layers), len(about["names"])
        some = {name: column.slice(start, shape[0] * shape[1]) for name, column in columns.items()}
        heads = [(key.layer, key.kind, head, name) for key in layers for head in key.heads for name in about["names"]]
        there = zip(*(some[name].to_pylist() for name in ("layer", "kind", "head", "metric")), strict=True)
        if len(some["about"].unique()) != 1 or len(some["group"].unique()) != 1 or heads != list(there):
            raise ValueError("some of its rows are missing, or not in order")
        group = some["group"][0].as_py()
        states = states.merged(SurveyStates(about["by"], {group: _state(about, layers, some, shape)}))
        start += shape[0] * shape[1]
    return states


def _about(text: str) -> dict[str, Any]:
    """Return what a table says of its rows, of the types that are written.

    Raises:
        ValueError: it is something else.
    """
    about = json.loads(text)
    if about["schema"] != SCHEMA:
        raise ValueError(f"it is in {visible(str(about['schema']))}, and this is {SCHEMA}")
    for expected, said in ((_ABOUT, about), (_SOURCE, about["source"])):
        for name, is_sound in expected.items():
            if not is_sound(said[name]):
                raise ValueError(f"what it says of {name} is not what is written there")
    if about["source"]["kind"] == "toy" and not _is_toy(about["source"]["details"]):
        raise ValueError("what it says of the toy layer is not what is written there")
    return dict(about)


def _is_toy(details: Mapping[str, Any]) -> bool:
    words = ("positions", "init", "rng")
    return all(_is_text(details.get(word)) for word in words) and _is_count(details.get("parameters"))


_MOST = 2**53  # that is counted; the sum of many files' has fewer than 64 bits


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_null(value: object) -> bool:
    return value is None or isinstance(value, str)


def _all(is_sound: Callable[[object], bool]) -> Callable[[Any], bool]:
    return lambda values: isinstance(values, list) and all(map(is_sound, values))


def _is_layer(value: Any) -> bool:
    layer, kind, heads = value
    return _is_count(layer) and _is_text(kind) and _all(_is_count)(heads)


# What is known of all sentences, and of what was run; each says what may be there.
_ABOUT: Mapping[str, Callable[[Any], bool]] = {
    "by": _is_text_or_null,
    "queries": _all(lambda value: _is_text(value) or type(value) is int),
    "sentences": _is_count,
    "tokens": lambda value: _all(_is_count)(value) and len(value) == 2,
    "masks": _all(_is_text),
    "layers": lambda value: _all(_is_layer)(value) and len(value) > 0,
    "names": lambda value: tuple(value) in (NAMES, (*NAMES, *DETECTORS)),
}
_SOURCE: Mapping[str, Callable[[Any], bool]] = {
    "kind": _is_text,
    "model": _is_text_or_null,
    "architecture": _is_text_or_null,
    "dtype": _is_text,
    "device": _is_text,
    "seed": lambda value: value is None or type(value) is int,
    "layers": _is_count,
    "details": lambda value: isinstance(value, dict),
    "notes": _all(_is_text),
}


def _state(
    about: Mapping[str, Any], layers: tuple[HeadKey, ...], columns: Mapping[str, Any], shape: tuple[int, int]
) -> SurveyState:
    def numbers(name: str) -> Num[np.ndarray, "H M"]:
        found = columns[name].to_numpy(zero_copy_only=False).reshape(shape)
        is_count = found.dtype.kind == "i"
        if columns[name].null_count or (is_count and (found.min() < 0 or found.max() >= _MOST)):
            raise ValueError(f"its {name} is not what is written there")
        return found

    lists = columns["buckets"]
    cells = np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy()))
    sketch = Sketch.joined(cells, lists.flatten().to_numpy(), columns["bucket_counts"].flatten().to_numpy())
    moments = Moments(*(numbers(name) for name in ("count", "mean", "mean_rest", "m2")))
    if (moments.m2 < 0).any():
        raise ValueError("its m2 is not what is written there")
    if not np.array_equal(sketch.places, np.unique(sketch.places)) or (sketch.counts < 1).any():
        raise ValueError("its buckets are not in order")
    of_cells = np.zeros(moments.count.size, np.int64)
    np.add.at(of_cells, cells, sketch.counts)
    if not np.array_equal(of_cells, moments.count.ravel()):
        raise ValueError("its buckets hold other numbers than it counts")
    uniform = [numbers(name)[:, : len(NAMES)] for name in ("uniform_count", "uniform_mean")]
    nothing = np.zeros(uniform[0].shape)  # is said of its deviations
    source = about["source"]
    return SurveyState(
        Provenance(**{**source, "notes": tuple(source["notes"])}),
        tuple(about["queries"]),
        about["sentences"],
        tuple(about["tokens"]),
        tuple(about["masks"]),
        layers,
        tuple(about["names"]),
        Statistics(moments, numbers("min"), numbers("max"), sketch),
        Moments(uniform[0], uniform[1], nothing, nothing),
    )


def write_states(states: SurveyStates, path: Path) -> None:
    """Write a file that `read_states` reads.

    Raises:
        InputError: it cannot be written.
    """
    from attncli.formats.parquet import write_tables

    write_tables([table_of(states)], schema(), path)


def read_states(file: str | Path | IO[bytes], name: str) -> SurveyStates:
    """Return the states of a file, merged.

    Args:
        file: its path, or what it is read from.
        name: what it is called.

    Raises:
        InputError: it cannot be read, or holds something else.
        UsageError: its states do not go together.
    """
    import pyarrow
    from pyarrow.parquet import read_table

    try:
        if isinstance(file, str | Path):
            check_file(file)
        return states_in(read_table(file, page_checksum_verification=True))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pyarrow.ArrowException) as error:
        why = str(getattr(error, "strerror", None) or error).splitlines()[0]
        raise InputError(
            f"cannot read {visible(name)}, which attn heads -o FILE.parquet is to have written: {visible(why)}"
        ) from None


def merged_files(files: Iterable[tuple[str | Path | IO[bytes], str]]) -> SurveyStates:
    """Return the states of files, each with its name, merged in order.

    Raises:
        InputError: one cannot be read, or holds something else.
        UsageError: they do not go together.
    """
    states = SurveyStates(None, {})
    for file, name in files:
        found = read_states(file, name)
        try:
            states = states.merged(found)
        except UsageError as error:
            raise UsageError(f"{visible(name)} does not go with those before it: {error}") from None
    return states
