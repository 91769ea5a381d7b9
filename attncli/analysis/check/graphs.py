"""`attn check` of an exported model: ways to run its graph on one text that should give the same attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from attncli.analysis.check.report import Invariance, Report, layers_by_mask
from attncli.analysis.steps import Array, difference
from attncli.attention import noise_floor
from attncli.checkpoints.options import LoadOptions
from attncli.checkpoints.snapshot import resolve
from attncli.engines import open_source
from attncli.errors import InputError, NotExposedError, UsageError
from attncli.masks.findings import Finding, Severity
from attncli.masks.nearby import mask_name

if TYPE_CHECKING:
    from attncli.checkpoints.options import Choice
    from attncli.engines.onnx.engine import OnnxModel
    from attncli.trace.layer import LayerTrace
    from attncli.trace.trace import Trace

Sublayer = tuple[int, str]  # layer and kind
_Differences = dict[Sublayer, dict[str, float]]  # of each array
_WORDS = "fruit flies like a banana, and the cat sat on the mat because it was tired of the green ones that are sour."
_FEWEST_WORDS, _MOST_WORDS = 40, 1100  # of the built-in text
_ENCODER_ALONE = "attn checks the encoder, and padding in cross attention; --against CHECKPOINT compares the decoder"
PADDING = 3  # tokens
_LITTLE = 1e-6  # of weight
_MOST_ROUNDED = 1.0  # of a token's length, that quantized weights change: no fault of another size is told from it
_TIMES = 10.0  # times the change of the tokens before any cache: more is not explained by rounding
# Arrays in the order of computation: a wrong one makes those behind it differ.
_ARRAYS = {"q": "queries", "k": "keys", "v": "values", "mask": "mask", "output": "weights"}
_ADVICE = {
    "batch": "padding behind a sentence changes it: the attention mask does not reach every layer",
    "padding-side": "derive position ids from the attention mask, or pad on the right",
    "q": "query i of a step stands at position past + i",
    "k": "append the keys of a step behind those of the cache, rotated by the positions past + i",
    "v": "append the values of a step behind those of the cache",
    "mask": "the mask of a step begins at the wrong key: query i stands at position past + i",
    "output": "queries, keys, values and mask agree",
}


class RunComparison(NamedTuple):
    """A way to run a text, compared with the run of the text alone."""

    invariance: Invariance
    array: str = ""  # the first one that differs in the first layer that differs, of `_ARRAYS`
    on_padding: Mapping[Sublayer, float] = {}  # the largest weight of each layer that attends to padding


def window_of(config: Mapping[str, Any]) -> int:
    """Return the widest window that a configuration names; 0 without."""
    named = {**config, **dict(config.get("text_config") or {})}
    if named.get("use_sliding_window") is False:
        return 0
    widths = (value for name, value in named.items() if "window" in name or name == "local_attention")
    return max((value for value in widths if type(value) is int), default=0)


def check_has_text(text: str | Sequence[str] | None, options: Mapping[str, Any]) -> None:
    """Raise UsageError for --ids without a text: the built-in one is no ids."""
    if options.get("ids") and not text:
        raise UsageError('--ids needs a text of token ids: attn check … --ids "101 2051 102"')


def built_in_text(config: Mapping[str, Any]) -> str:
    """Return a text that is longer than a configuration's window, if that is not too wide."""
    width = window_of(config) + 8
    return " ".join(islice(cycle(_WORDS.split()), width if _FEWEST_WORDS < width <= _MOST_WORDS else _FEWEST_WORDS))


def check_graph(model: str, texts: Sequence[str], *, special: bool, layer: Choice, **options: Any) -> Report:
    """Check a graph on one text: alone, padded on either side, and in steps with its cache.

    Raises:
        AttnError: the graph cannot be opened, or does not read the text; see `open_source`.
    """
    if len(texts) > 1:
        raise UsageError(f"attn check runs an ONNX model on one text; give one, not {len(texts)}")
    source = cast("OnnxModel", open_source(model, layer=layer, special=special, **options))
    (text,) = texts or [built_in_text(resolve(model, LoadOptions(**options)).config)]
    trace = source.trace(text)
    compared, weights = [*compared_runs(source, text, trace)], trace.source.details.get("weights")
    return Report(
        model=source.name,
        architecture=trace.source.architecture or "onnx",
        dtype=weights or trace.source.dtype,
        tokens=(len(trace.key_tokens),),
        masks=layers_by_mask((mask_name(one.stages.mask), (one.layer, one.kind)) for one in trace.layers),
        findings=tuple(findings_of(compared, weights)),
        invariances=tuple(one.invariance for one in compared),
        notes=(*trace.source.notes, *trace.notes, *[_ENCODER_ALONE] * source.is_encoder_decoder),
        is_graph=True,
    )


def compared_runs(source: OnnxModel, text: str, trace: Trace) -> Iterator[RunComparison]:
    """Yield the comparison of each way to run a text with the trace of the text alone."""
    floor = noise_floor(trace.source.details.get("weights", trace.source.dtype))
    ways: dict[str, tuple[str, Callable[..., RunComparison]]] = {
        "batch": ("alone, padded right", partial(_padded, left=0)),
        "padding-side": ("alone, padded left", partial(_padded, left=PADDING)),
        "cache": ("whole, in steps", _in_steps),
    }
    for name, (shown, compare) in ways.items():
        result = Invariance(name, shown, floor=floor)
        try:
            yield compare(result, source, text, trace)
        except (InputError, NotExposedError) as error:
            has_failed = isinstance(error, InputError)  # of the runtime
            yield RunComparison(replace(result, reason=str(error), has_failed=has_failed))


def _padded(result: Invariance, source: OnnxModel, text: str, trace: Trace, left: int) -> RunComparison:
    """Compare the tokens of a padded text with those of the text alone."""
    alone = {(layer.layer, layer.kind): layer for layer in trace.layers}
    words, differences, on_padding = slice(left, left + len(trace.key_tokens)), _Differences(), dict[Sublayer, float]()
    for layer in source.padded_layers(text, left, PADDING - left):
        place = layer.layer, layer.kind
        largest = float(np.delete(layer.weights[:, words], np.r_[words], axis=-1).max())
        on_padding |= {} if largest <= _LITTLE else {place: largest}  # NaN too
        if place in alone:
            differences[place] = _differences(_arrays(layer, words, words), _arrays(alone[place]))
    return _judged(result, differences)._replace(on_padding=on_padding)


def _in_steps(result: Invariance, source: OnnxModel, text: str, trace: Trace) -> RunComparison:
    """Compare the parts of a text, each run with the cache of those before, with the text as a whole."""
    alone = {(layer.layer, layer.kind): layer for layer in trace.layers}
    start, rounding, differences = 0, _Differences(), _Differences()
    for layers in source.in_steps(text):
        end = start + layers[0].num_queries
        for layer in layers:
            place, queries, keys = (layer.layer, layer.kind), slice(start, end), slice(end)
            if alone[place].allowed[:, queries, end:].any():
                raise NotExposedError("its tokens attend to later ones")
            apart = _differences(_arrays(layer), _arrays(alone[place], queries, keys))
            of = differences if start else rounding  # the first part has no cache
            of[place] = {name: max(size, of.get(place, apart)[name]) for name, size in apart.items()}
        start = end
    if not differences:
        raise NotExposedError("a text of one token has no steps")
    return _judged(result, differences, rounding)


def _arrays(layer: LayerTrace, queries: slice = slice(None), keys: slice = slice(None)) -> dict[str, Array]:
    """Return the arrays of some queries and keys."""
    k, v = (layer.recorded(name)[:, keys] for name in "kv")
    q, output = (array[:, queries] for array in (layer.recorded("q"), layer.stages.output))
    return {"q": q, "k": k, "v": v, "mask": layer.allowed[:, queries, keys], "output": output}


def _differences(theirs: Mapping[str, Array], ours: Mapping[str, Array]) -> dict[str, float]:
    """Return the largest difference of a token in each array, relative to its length; of a mask 0 or infinity."""
    apart = {name: float(difference(theirs[name], ours[name]).max()) for name in ("q", "k", "v", "output")}
    return apart | {"mask": 0.0 if np.array_equal(theirs["mask"], ours["mask"]) else np.inf}


def _judged(result: Invariance, differences: _Differences, rounding: _Differences | None = None) -> RunComparison:
    """Return a comparison with the layers that differ by more than rounding, as far as it was measured."""

    def excess(place: Sublayer, name: str) -> float:  # above 1 is more than rounding
        measured = (rounding or {}).get(place, {}).get(name, 0.0)
        return differences[place][name] / max(result.floor or 0.0, _TIMES * measured)

    apart = [place for place in sorted(differences) if max(excess(place, "mask"), excess(place, "output")) > 1]
    array = next((name for name in _ARRAYS if apart and excess(apart[0], name) > 1), "")
    changes = {place: sizes["output"] for place, sizes in differences.items()}
    largest = max(changes, key=lambda place: changes[place])
    first = apart[0] if apart else None
    measured = replace(result, change=changes[largest], layer=largest, first=first, changes=changes)
    return RunComparison(measured, array)


def findings_of(compared: Sequence[RunComparison], weights: str | None) -> Iterator[Finding]:
    """Yield the layers that attend to padding, and what differs."""
    for place in sorted({place for one in compared for place in one.on_padding}):
        attending = [one for one in compared if place in one.on_padding]
        sides = " and the ".join(one.invariance.ways.rpartition(" ")[2] for one in attending)
        weight = f"a token gives it a weight of up to {np.max([one.on_padding[place] for one in attending]):.2g}"
        message = f"the mask of padding is missing on the {sides}; {weight}"
        yield Finding("pad", "error", message, layer=place[0], kind=place[1], advice="mask the keys of padding")
    for one in compared:
        yield from _findings(one, weights)


def _findings(comparison: RunComparison, weights: str | None) -> Iterator[Finding]:
    """Yield what differs; with quantized weights padding changes a token, as the steps are those of all tokens."""
    one = comparison.invariance
    if one.is_skipped:
        yield Finding(one.name, "note", f"{one.ways}: {one.reason}")
    if one.first is not None and not comparison.on_padding:
        layer, kind = one.first
        message = f"{one.ways}: weights·V change by {one.change:.2g} of their length, from layer {layer} on"
        if is_cache := one.name == "cache":
            message += f"; the {_ARRAYS[comparison.array]} differ there first"
        is_small = weights is not None and not is_cache and (one.change or 0) <= _MOST_ROUNDED
        severity: Severity = "note" if one.name == "padding-side" or is_small else "error"
        advice = _ADVICE[comparison.array if is_cache else one.name]
        advice = f"weights of {weights} may round so, as padding changes their steps" if is_small else advice
        yield Finding(one.name, severity, message, layer=layer, kind=kind, advice=advice)
