"""Both sides of a comparison: a checkpoint that attn computes, a trace, or a capture of another engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import islice, tee, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.steps import LEVELS, STAGE_OF, Array, Arrays, LayerSteps, difference
from attncli.checkpoints.checkpoint_folder import UnsupportedError
from attncli.engines.numpy import NativeCheckpoint
from attncli.engines.numpy.forward import Layer, RaggedBatch, TokenIds
from attncli.engines.numpy.model_spec import ModelSpec
from attncli.errors import InputError, NotExposedError
from attncli.files import opened_tensors
from attncli.masks.expressions import RuleMask
from attncli.text import plural
from attncli.trace.capture import Capture, is_capture, read_capture
from attncli.trace.selection import Indices
from attncli.trace.store import captured_attention, load

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from attncli.engines.numpy import NativeForward
    from attncli.engines.source import Source
    from attncli.trace.trace import Trace

    Hidden = Float[np.ndarray, "T E"]
    Heads = Float[np.ndarray, "H T D"]

_MOST_TOKENS = 2048  # the scores of all heads of a layer are in memory
ENCODER_ALONE = "attn compares the encoder alone, and no decoder"  # of a trace that has both
_KINDS = ("self", "encoder")  # of attention to the tokens of the text
_WORDS = {"next": "output", "attention": "output of the attention"}  # of arrays, by their names
_TRACED = ("scale", "softcap", "bias", "sinks", "mask")  # what a trace is stated to compute with


@dataclass(frozen=True)
class RunLayer:
    """One layer of a run."""

    index: int
    arrays: dict[str, Array]  # that the run made
    stated: Mapping[str, Any]  # fields of `LayerSteps` that it is stated to compute with


@dataclass(frozen=True)
class Side:
    """One run of a sentence."""

    name: str
    dtype: str  # of its computation
    layers: Callable[[], Iterator[RunLayer]]  # computed or read one after the other
    steps: Callable[[int, Hidden | None], LayerSteps | None]  # of a layer, for hidden states; None of one it has not
    token_ids: tuple[int, ...] | None = None  # that it read; None where they are not stated
    weights: Mapping[str, str] = field(default_factory=dict)  # the type of each, whose rounding it has
    held: Collection[int] = ()  # its layers
    indices: Sequence[int] = ()  # those that can be computed from hidden states
    logits: Callable[[Hidden], Array] | None = None  # of the last token, or its final norm
    embed: Callable[[Int[np.ndarray, " T"] | None], Hidden] | None = None  # positions, or None for its own → first x
    reading: Callable[[tuple[int, ...]], Side] | None = None  # the same run with other token ids
    holding: Callable[[], AbstractContextManager[Any]] = nullcontext  # holds the weights of a layer
    contents: ModelSpec | Capture | None = None  # of a checkpoint that is computed, or of a file
    notes: tuple[str, ...] = ()
    has_experts: bool = False  # of which rounding may choose others

    def layers_apart(self, other: Side) -> list[int]:
        """Return the layers that one run alone has; InputError for two checkpoints, which have all of theirs."""
        apart = sorted({*self.held} ^ {*other.held})
        if apart and self.indices and other.indices:
            counts = (f"{side.name} has {len(side.held)} layers" for side in (self, other))
            raise InputError(f"{' and '.join(counts)}; give two runs of one checkpoint")
        return apart


def side_of(source: Source, name: str, text: str, pair: str | None) -> Side:
    """Return the run of a model: computed layer by layer where the native engine does, else traced."""
    if isinstance(source, NativeCheckpoint):
        return computed_side(source.forward(text, pair), name)
    trace = source.trace(text, pair)
    return replace(traced_side(trace, name), weights={"all": trace.source.details.get("stored", "")})


def saved_side(path: str) -> Side:
    """Return the run in a saved trace or a capture."""
    with opened_tensors(path) as tensors:
        if is_capture(tensors):
            return captured_side(read_capture(tensors, Indices("layer", None)), path)
    return traced_side(load(path), path)


def _check_length(name: str, tokens: int) -> None:
    if tokens > _MOST_TOKENS:
        limit = f"attn diff --first compares at most {_MOST_TOKENS:,} tokens"
        raise InputError(f"{name} has {tokens:,} tokens, and {limit}; shorten the text")


# --- a checkpoint ------------------------------------------------------------------------------------------


def computed_side(forward: NativeForward, name: str) -> Side:
    """Return the run of the native engine, which has one layer at a time in memory."""
    model, ids = forward.model, tuple(forward.sentence.ids)
    _check_length(name, len(ids))

    @contextmanager
    def holding() -> Iterator[None]:
        with model.weights.held():
            yield
        model.weights.release()

    def logits(x: Hidden) -> Array:
        x = model.normalize(model.unembedding.norm, x[-1:])
        try:
            return model.unembed(x)
        except UnsupportedError:  # a model without a head
            return x

    def layers() -> Iterator[RunLayer]:
        x = _embedded(forward)
        for index in range(len(model.spec.layers)):
            steps = _native_steps(forward, index, x)
            assert steps is not None
            with holding():
                arrays = steps.run({})
                yield RunLayer(index, arrays, vars(steps))
            x = arrays["next"]

    return Side(
        name, "float32", layers, partial(_native_steps, forward), ids,
        weights=model.weights.types(),
        held=range(len(model.spec.layers)),
        indices=range(len(model.spec.layers)),
        logits=logits if model.spec.unembedding is not None else None,
        embed=partial(_embedded, forward),
        reading=lambda ids: computed_side(replace(forward, sentence=TokenIds(ids)), name),
        holding=holding,
        contents=model.spec,
    )  # fmt: skip


def _native_steps(forward: NativeForward, index: int, x: Hidden | None) -> LayerSteps | None:
    if index >= len(forward.model.spec.layers):  # the hidden states behind the last layer
        return None
    model, layer, count = forward.model, Layer(forward.model, index, forward.mask), len(forward.sentence.ids)
    spec, how, nothing = model.spec, model.spec.layers[index], np.zeros((1, model.spec.width), np.float32)
    kv_heads, heads = spec.heads.kv_heads, spec.heads.count

    def turned(*arrays: Float[np.ndarray, "_ _ D"]) -> Any:  # `[T, H, D]` to `[H, T, D]`, and back
        return tuple(np.ascontiguousarray(array.swapaxes(0, 1)) for array in arrays)

    return LayerSteps(
        positions=np.arange(count),
        scale=how.scale,
        mask=RuleMask(layer.mask or how.mask, count, count, heads).rows([*range(heads)], np.arange(count)),
        key_heads=np.arange(heads) // (heads // kv_heads),
        x=x,
        enter=_remembering(layer.enter),
        project=_remembering(lambda x: turned(*layer.project(x))),
        biases=lambda: turned(*layer.project(nothing)),  # 0·W + b
        norm_heads=(lambda q, k: turned(*layer.norm_heads(*turned(q, k)))) if spec.projections.query_norm else None,
        rope=how.rope,
        softcap=spec.softcap,
        project_output=lambda heads: layer.project_output(*turned(heads)),
        finish=lambda x, attention: layer.after_attention(x, attention.copy()),
    )


def _remembering(function: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """Return a function that computes nothing again for the array that it was last called with."""
    last: list[Any] = [None, None]

    def remembered(array: Array) -> Any:
        if last[0] is not array:
            last[:] = array, function(array)
        return last[1]

    return remembered


def _embedded(forward: NativeForward, positions: Int[np.ndarray, " T"] | None = None) -> Hidden:
    """Return the hidden states that enter the first layer; NaN at positions that the model has not."""
    model, how = forward.model, forward.model.spec.embedding
    parts = model.embedded(RaggedBatch([forward.sentence]))
    if positions is not None and how.positions is not None:
        rows = positions + (0 if how.padding_id is None else how.padding_id + 1)
        if not 0 <= rows.min() <= rows.max() < how.positions.rows:
            return np.full_like(parts["position"], np.nan)
        table = how.positions.name + ".weight", rows.tolist(), how.positions.rows, model.spec.width
        parts["position"] = model.weights.rows(*table)
    x = reduce(np.add, parts.values())
    return x if how.norm is None else model.normalize(how.norm, x)


# --- arrays ------------------------------------------------------------------------------------------------


def traced_side(trace: Trace, name: str, kinds: Sequence[str] = _KINDS) -> Side:
    """Return the run in a trace: queries and keys as the dot product takes them, and everything behind."""
    _check_length(name, len(trace.key_tokens))
    of_index = {layer.layer: layer for layer in trace.layers if layer.kind in kinds}

    def steps(index: int, x: Hidden | None = None) -> LayerSteps | None:
        if (layer := of_index.get(index)) is None:
            return None
        if layer.q is None or layer.k is None or layer.v is None or layer.scale is None:
            missing = ", ".join(sorted(layer.missing & {"q", "k", "v"})) or "scale"
            raise NotExposedError(
                f"layer {index} of {name} has no {missing}; attn diff --first needs q, k, v and scale"
            )
        heads, queries, keys = layer.cells
        return LayerSteps(
            positions=np.arange(keys)[keys - queries :],
            scale=layer.scale,
            mask=layer.mask_cells,
            key_heads=np.arange(heads) // (heads // layer.num_groups),
            recorded={"q": layer.q, "k": layer.k, "v": layer.v},
            softcap=layer.softcap,
            bias=layer.bias,
            sinks=layer.sinks,
        )

    def layers() -> Iterator[RunLayer]:
        for index, layer in of_index.items():
            made, weights = steps(index), replace(layer, heads=tuple(range(layer.num_heads))).weights
            assert made is not None
            arrays = made.run({"weights": weights}) | {"weights": weights}
            stated = {field: getattr(made, field) for field in _TRACED}
            yield RunLayer(
                index, {array: arrays[array] for array in arrays if "_" not in array and array != "scores"}, stated
            )

    weights, ids = trace.source.details.get("weights"), trace.key_tokens.ids
    dtype = weights if weights in LEVELS else trace.source.dtype
    is_text = trace.source.kind == "pretrained" and None not in ids  # the ids of a watched program are positions
    notes = (ENCODER_ALONE,) * any(layer.kind == "encoder" for layer in of_index.values())
    return Side(
        name, dtype, layers, steps, tuple(ids) if is_text else None, held=of_index, notes=notes,
        has_experts="experts" in trace.source.details,
    )  # fmt: skip


def captured_side(capture: Capture, name: str) -> Side:
    """Return the run in a capture: the arrays that an engine wrote."""
    end, stored, count = "" if capture.rotated == "after" else "_normed", capture.layers, len(capture.tokens)
    _check_length("it", count)
    runs: dict[int, RunLayer] = {}
    for index in sorted(stored):
        layer, after = stored[index], stored.get(index + 1)
        if layer.q is not None and layer.k is not None:
            captured_attention(index, layer, Indices("head", None))  # checks sizes
        for array, rows in (("q", layer.q), ("mask", layer.mask), ("output", layer.output)):
            if rows is not None and rows.shape[-2] != count:
                has = plural(rows.shape[-2], "row")
                raise InputError(f"layers.{index}.{array} has {has}; write those of all {count} tokens for --first")
        arrays = {"input": layer.input, f"q{end}": layer.q, f"k{end}": layer.k, "v": layer.v}
        arrays |= {"attention": layer.output, "next": None if after is None else after.input}
        stated = {"scale": layer.scale, "mask": _planes(layer.mask), "positions": capture.positions}
        runs[index] = RunLayer(index, _present(arrays), _present(stated))

    def steps(index: int, x: Hidden | None) -> LayerSteps | None:
        if (layer := stored.get(index)) is None:
            return None
        heads, kv_heads = (1 if array is None else len(array) for array in (layer.q, layer.k))
        groups, arrays = np.arange(heads) // max(heads // kv_heads, 1), runs[index].arrays
        return LayerSteps(np.arange(count), layer.scale, _planes(layer.mask), groups, recorded=arrays)

    notes = (f"{name} does not number its layers; attn reads layers 0 to {len(stored) - 1}",) * bool(capture.unnamed)
    dtype, every = capture.dtype, [one for run in runs.values() for one in run.arrays.values()]
    for type_, unused in {"bfloat16": 0xFFFF, "float16": 0x1FFF}.items() if dtype == "float32" else ():
        if not any((np.ascontiguousarray(one, np.float32).view(np.uint32) & unused).any() for one in every):
            dtype, notes = type_, (*notes, f"all numbers of {name} fit {type_}, so attn takes its dtype for it")
            break
    ids = None if capture.token_ids is None else tuple(capture.token_ids.tolist())
    return Side(name, dtype, lambda: iter(runs.values()), steps, ids, held=runs, contents=capture, notes=notes)


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _planes(mask: Bool[np.ndarray, "*H T K"] | None) -> Bool[np.ndarray, "#H T K"] | None:
    return mask if mask is None or mask.ndim == 3 else mask[None]


def types_apart(first: Side, second: Side) -> set[str]:
    """Return the types of weights that two runs store otherwise: two quantized files of one type do, too."""
    both = [(first.weights[name], second.weights[name]) for name in first.weights.keys() & second.weights.keys()]
    is_other = first.name != second.name
    return {type_ for pair in both for type_ in pair if type_ and (len({*pair}) > 1 or (is_other and type_ in LEVELS))}


def unseen_window(side: Side) -> str:
    """Return that the text does not show the widest window of a checkpoint; empty where it does."""
    masks = [layer.mask for layer in side.contents.layers] if isinstance(side.contents, ModelSpec) else []
    width = max((mask.arguments[0] for mask in masks if mask.name == "window"), default=0)
    tokens = len(side.token_ids or ())
    return f"The text of {tokens} tokens does not show the window of {width} keys." if 0 < tokens <= width else ""


# --- layers of two runs ------------------------------------------------------------------------------------


class Following(NamedTuple):
    """Next layer, whose queries, keys and values are all that shows the output of a layer."""

    variants: Sequence[LayerSteps]  # of the reference: as it is, and with each cause that was found
    theirs: Arrays  # arrays of the other run

    def difference(self, x: Array, rows: Array | slice = slice(None)) -> Float[np.ndarray, " R"]:
        """Return the difference of the array that agrees best for rows of the input; others may have a fault, too."""
        runs = (replace(steps, x=x, positions=steps.positions[rows]).run({}, "k") for steps in self.variants)
        theirs = {name: array[..., rows, :] for name, array in self.theirs.items()}
        apart = [difference(made[name], theirs[name]) for made in runs for name in made.keys() & theirs]
        return min(apart, key=lambda one: float(one.max()))


def with_next(layers: Iterator[RunLayer]) -> Iterator[tuple[RunLayer, RunLayer | None]]:
    """Yield each layer with the next one, where the arrays of that are all that shows its input."""
    layers, following = tee(layers)
    for layer, after in zip_longest(layers, islice(following, 1, None)):
        is_next = after is not None and after.index == layer.index + 1 and "next" not in layer.arrays
        yield layer, after if is_next else None


def group_keys(groups: Array, *layers: RunLayer | None) -> None:
    """Give layers a key head for each group of heads, where the other run wrote one for each head."""
    for arrays in (layer.arrays for layer in layers if layer is not None):
        for order in (groups, np.arange(len(groups)) % (groups.max() + 1)):
            first = np.unique(order, return_index=True)[1]
            for name in arrays.keys() & {"k_normed", "k", "v"}:
                keys = arrays[name]
                if len(keys) == len(groups) > len(first) and np.array_equal(keys[first][order], keys):
                    arrays[name] = keys[first]


def check_arrays(steps: LayerSteps, layer: RunLayer, reference: Side, other: Side) -> None:
    """Raise InputError for arrays of other shapes than those of the reference, and for numbers that are not finite."""
    for name, array in layer.arrays.items():
        if name not in ("scores", "weights", "heads") and not np.isfinite(array).all():
            what = f"{_WORDS.get(name, name)} of layer {layer.index}"
            raise InputError(f"{what} has NaN or infinity in {other.name}; attn compares numbers")
    made = steps.run({}, "k")
    made |= {} if steps.x is None else {"attention": steps.x, "next": steps.x}
    for name in [name for name in STAGE_OF if name in made.keys() & layer.arrays]:
        ours, theirs = made[name].shape, layer.arrays[name].shape
        if ours != theirs:
            what = _WORDS.get(name, name)
            both = f"shape {[*theirs]} in {other.name} and {[*ours]} in {reference.name}"
            raise InputError(f"{what} of layer {layer.index} has {both}; give two runs of one checkpoint and one text")


def ids_apart(first: Sequence[int], second: Sequence[int]) -> tuple[str, str]:
    """Return the ids of two runs at the first position at which they differ; of one before all others itself."""
    if first == second[1:] or first[1:] == second:
        return f"{first[0]} at the start", f"{second[0]} at the start"
    place = next((i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    place = min(len(first), len(second)) if place is None else place
    at_first, at_second = ("".join(map(str, ids[place : place + 1])) or "none" for ids in (first, second))
    return f"{at_first} at {place}", f"{at_second} at {place}"
