"""The Trace: one sentence's attention as every source records it and every view and format reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attncli.errors import InputError, Metadata, UsageError
from attncli.files import atomic_write
from attncli.masks.expressions import RuleMask, files_of
from attncli.text import layers_named, plural, quoted, short_name
from attncli.trace.display import Displayed, Drawable, Tabular
from attncli.trace.layer import ARRAYS, HeadTrace, LayerTrace
from attncli.trace.selection import Indices
from attncli.trace.tokens import NextToken, Token, Tokens

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from jaxtyping import Float

    from attncli.trace.layout import ImageGrid, Picture, SideLayout

Mean = Literal["heads", "layers", "all"]  # axes of the mean; all is both


@dataclass(frozen=True, eq=False, repr=False)
class Derivation:
    """Numbers to show in place of the weights of each head."""

    norms: bool = False  # ‖weight·value‖ instead of weights
    rollout: bool = False  # attention multiplied through the layers
    words: bool = False  # merge word pieces
    mean: Mean | None = None  # axes to average over: `heads`, `layers` or `all`, which is both; None is no mean
    layers: Indices | None = None  # the layers of the rollout; None is the last recorded one

    def __post_init__(self) -> None:
        """Refuse options that exclude each other."""
        if self.rollout and self.norms:
            raise UsageError("--rollout multiplies weights, and --norms replaces them; drop one of them")
        if self.rollout and self.mean not in (None, "layers"):
            raise UsageError("--rollout already averages over all heads; drop --mean, or give --mean layers")

    @property
    def is_none(self) -> bool:
        """Whether nothing is derived."""
        return not (self.norms or self.rollout or self.words or self.mean)


class Origin(NamedTuple):
    """Origin of a derived trace."""

    trace: Trace  # as it was recorded
    derivation: Derivation
    rules: tuple[str, ...]  # the derivation in sentences

    def as_dict(self) -> dict[str, Any]:
        """Return the origin as in the JSON document."""
        derivation = self.derivation
        over = {None: [], "all": ["heads", "layers"]}.get(derivation.mean, [derivation.mean])
        chosen = {name: getattr(derivation, name) for name in ("norms", "rollout", "words")}
        return {**chosen, "reduce": "mean" if derivation.mean else None, "over": over, "rules": list(self.rules)}


SCHEMA = "attncli.trace/1"
PIXELS = "pictures.{}"  # the tensor of a picture, in a file


def tensor_name(array: str) -> str:
    """Return the name of an array of `LayerTrace` in a file, after its layer."""
    return array.removeprefix("recorded_")


def sequences(kind: str, query_tokens: Tokens, key_tokens: Tokens) -> tuple[Tokens, Tokens]:
    """Return the tokens that a kind of layer attends from and to: an encoder and a decoder attend to themselves."""
    if kind == "encoder":
        return key_tokens, key_tokens
    if kind == "decoder":
        return query_tokens, query_tokens
    return query_tokens, key_tokens


Texts = tuple[str, str | None]  # a text, and a second one in its sequence


def texts_of(text: str, pair: str | None, target: str | None) -> tuple[Texts, Texts]:
    """Return the texts of a trace's queries, and of its keys; a target without a text is both."""
    source = text, pair
    of_queries = source if target is None else (target, None)
    return of_queries, source if text or target is None else of_queries


class Provenance(NamedTuple):
    """Source of a trace."""

    kind: str  # `toy`, `pretrained`, `module` (a live torch module) or `file`
    model: str | None = None
    architecture: str | None = None
    dtype: str = "float32"
    device: str = "cpu"
    seed: int | None = None
    layers: int = 1  # number of layers of the source, recorded or not
    details: Mapping[str, Any] = {}  # further facts for the reader; the names are the keys of the JSON document
    notes: tuple[str, ...] = ()  # remarks for the user on all its traces, a sentence each

    @property
    def title(self) -> str:
        """Name of the source; of a path, its last name, for a short line."""
        if self.model is None:
            return {"toy": "toy layer", "file": "tensors from a file"}.get(self.kind, self.kind)
        return short_name(self.model)

    def as_dict(self) -> dict[str, Any]:
        """Return the source as in the JSON document."""
        named = {name: value for name, value in self._asdict().items() if name not in ("details", "notes")}
        return {**named, **self.details}


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Displayed, Tabular, Drawable):
    """The attention of one sentence; a notebook shows it as `attn inspect` does.

    Attributes:
        source: the model that it was recorded from.
        query_tokens: the tokens whose queries attend.
        key_tokens: the tokens they attend to; the same ones in self-attention.
        layers: the recorded layers, in the order asked.
        text: the sentence; empty where there is none, as in a dump.
        pair: the second text of the same sequence.
        target: the text whose queries attend to the sentence's keys.
        notes: remarks of the source on this trace, a sentence each.
        generated: number of tokens at the end that the model generated.
        origin: the recorded trace, where the numbers are derived.
        metadata: further fields of its sentence in the file, by names; not saved.
        next_tokens: the likeliest next tokens, the likeliest first, on demand; not saved.
        forward: the forward pass that computed it, which can compute more; not saved, and None of other engines.
        pictures: the pictures that the model read.
        grids: the positions that are cells of the pictures.
    """

    source: Provenance
    query_tokens: Tokens
    key_tokens: Tokens
    layers: tuple[LayerTrace, ...]
    text: str = ""
    pair: str | None = None
    target: str | None = None
    notes: tuple[str, ...] = ()
    generated: int = 0
    origin: Origin | None = None
    metadata: Metadata = field(default_factory=dict)
    next_tokens: tuple[NextToken, ...] = ()
    forward: Any = field(default=None, compare=False)
    pictures: tuple[Picture, ...] = ()
    grids: tuple[ImageGrid, ...] = ()

    def __post_init__(self) -> None:
        """Refuse layers that do not fit the tokens."""
        if not self.layers:
            raise InputError("the trace holds no layer")
        if not 0 <= self.generated < max(len(self.key_tokens), 1):
            raise InputError(f"{self.generated} of {len(self.key_tokens)} tokens are marked as generated")
        for layer in self.layers:
            queries, keys = map(len, self.sides(layer))
            if (queries, keys) != layer.cells[1:]:
                has = f"layer {layer.layer} has {layer.num_queries} queries and {layer.num_keys} keys"
                raise InputError(f"{has}, but there are {queries} query tokens and {keys} key tokens")
        for grid in self.grids:
            grid.check(self.pictures, {"query": len(self.query_tokens), "key": len(self.key_tokens)})

    @property
    def predicted(self) -> dict[int, Token]:
        """The tokens that the model generated, by the position of the query that predicted each of them."""
        last = len(self.query_tokens) - 1
        return {row: self.query_tokens[row + 1] for row in range(last - self.generated, last)}

    @property
    def recorded(self) -> Trace:
        """The trace as it was recorded: itself, or the one that it was derived from."""
        return self if self.origin is None else self.origin.trace

    @property
    def has_image_keys(self) -> bool:
        """Whether keys are cells of pictures, which show best what heads attend to."""
        return any(map(self.has_images, self.layers))

    def has_images(self, layer: LayerTrace) -> bool:
        """Return whether the keys of a layer are cells of pictures."""
        return layer.kind in ("self", "cross") and any(grid.side != "query" for grid in self.grids)

    @property
    def described_pictures(self) -> dict[str, Any]:
        """Entries of pictures and grids for the JSON document; empty without any."""
        pictures = [{"name": p.name, "width": p.width, "height": p.height} for p in self.pictures]
        listed = {"pictures": pictures, "grids": [{**vars(grid)} for grid in self.grids]}
        return {name: values for name, values in listed.items() if values}

    def check_recorded(self, what: str) -> None:
        """Raise UsageError if this is a derived trace; `what` names the caller, which needs a recorded one."""
        if self.origin is not None:
            raise UsageError(f"{what} needs a recorded trace; give the one that this was derived from")

    def sides(self, layer: LayerTrace) -> tuple[Tokens, Tokens]:
        """Return the tokens of a layer's queries and of its keys."""
        return sequences(layer.kind, self.query_tokens, self.key_tokens)

    def layout(self, role: Literal["query", "key"]) -> SideLayout:
        """Return the layout of the queries, or of the keys, over the cells of pictures."""
        from attncli.trace.layout import SideLayout  # which texts spare

        grids = tuple(grid for grid in self.grids if grid.side in ("both", role))
        return SideLayout(self.pictures, grids, role)

    def layouts(self, layer: LayerTrace) -> tuple[SideLayout, SideLayout]:
        """Return the layouts of the queries and of the keys of a layer over the cells of pictures."""
        queries, keys = self.layout("query"), self.layout("key")
        return keys if layer.kind == "encoder" else queries, queries if layer.kind == "decoder" else keys

    def find(self, wanted: str | int, role: Literal["query", "key"]) -> list[int]:
        """Return the positions of tokens, or of places in a picture, by their name; InputMismatchError without any."""
        return self.layout(role).find(self.query_tokens if role == "query" else self.key_tokens, wanted)

    def __len__(self) -> int:
        """Number of recorded layers."""
        return len(self.layers)

    def __getitem__(self, index: int) -> LayerTrace:
        """Return the layer with this index in the model; see `layer`."""
        return self.layer(index)

    def __iter__(self) -> Iterator[LayerTrace]:
        """Yield the recorded layers, each as `layer` returns it."""
        return (replace(layer, parent=self) for layer in self.layers)

    @property
    def weights(self) -> Float[np.ndarray, "H Q K"]:
        """The weights of the only recorded layer, for the chosen heads; UsageError where there are several."""
        return self._only_layer("weights").weights

    @property
    def scores(self) -> Float[np.ndarray, "H Q K"]:
        """The scores of the only recorded layer, likewise."""
        return self._only_layer("scores").scores

    def head(self, head: int) -> HeadTrace:
        """Return a head of the only recorded layer; UsageError where there are several."""
        return self._only_layer(f"head({head})").head(head)

    def _only_layer(self, wanted: str) -> LayerTrace:
        layer, *rest = self
        if rest:
            raise UsageError(f"this trace has {len(self)} layers; take one: trace[{layer.layer}].{wanted}")
        return layer

    def layer(self, index: int, kind: str | None = None) -> LayerTrace:
        """Return the recorded layer with this index (negative ones count from the last of the source).

        Raises:
            UsageError: that layer was not recorded, or several kinds of it were and `kind` is not given.
        """
        wanted = index + self.source.layers if index < 0 else index
        layers = [layer for layer in self.layers if layer.layer == wanted and kind in (None, layer.kind)]
        if len(layers) > 1:
            kinds = [layer.kind for layer in layers]
            raise UsageError(f"layer {index} has {', '.join(kinds)} attention; name one: kind='{kinds[0]}'")
        if not layers:
            of_kind = f" of kind {kind}" if kind else ""
            recorded = layers_named(sorted({layer.layer for layer in self.layers}))
            raise UsageError(f"layer {index}{of_kind} was not recorded; this trace has {recorded}. Pass layer='all'.")
        return replace(layers[0], parent=self)

    def only(self, layer: LayerTrace, heads: tuple[int, ...]) -> Trace:
        """Return the trace of one of its layers, and some heads of that."""
        return replace(self, layers=(replace(layer, heads=heads, parent=None),))

    def __repr__(self) -> str:
        heads = plural(max(layer.num_heads for layer in self.layers), "head")
        queries, keys = len(self.query_tokens), len(self.key_tokens)
        tokens = f"{queries} queries × {keys} keys" if self.target and self.text else plural(keys, "token")
        facts = [quoted(self.text or self.target or ""), self.source.title]
        facts += [f"{plural(len(self.layers), 'layer')} × {heads}", tokens, *["derived"] * (self.origin is not None)]
        return f"Trace({', '.join(facts)})"

    def save(self, path: str | Path) -> None:
        """Write the trace to a safetensors file, from which `attncli.load` reads it back unchanged.

        Raises:
            UsageError: it is a derived one.
            InputError: the file cannot be written.
        """
        import json

        import numpy as np
        from safetensors.numpy import save

        self.check_recorded("save")
        tensors = {PIXELS.format(number): picture.pixels for number, picture in enumerate(self.pictures)}
        entries = []
        for layer in self.layers:
            entry, arrays = _stored(layer)
            entries.append(entry)
            tensors |= {f"layers.{layer.layer}.{layer.kind}.{name}": array for name, array in arrays.items()}
        tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
        sides = {"query_tokens": self.query_tokens, "key_tokens": self.key_tokens}
        tokens = {name: [t.as_dict() | {"id": t.id, "word": t.word} for t in side] for name, side in sides.items()}
        header: dict[str, Any] = {"schema": SCHEMA, "source": self.source.as_dict()}
        header |= {name: getattr(self, name) for name in ("text", "pair", "target")} | tokens | {"layers": entries}
        header |= {"notes": [*self.source.notes, *self.notes], "generated": self.generated} | self.described_pictures
        with atomic_write(path) as aside:
            # Through bytes: the library's own errors about a file leave out the system's reason.
            aside.write_bytes(save(tensors, metadata={"attncli": json.dumps(header)}))


def _stored(layer: LayerTrace) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Return a layer's entry in the header of a file, and its tensors."""
    arrays = {tensor_name(name): array for name in ARRAYS if (array := getattr(layer, name)) is not None}
    entry: dict[str, Any] = {name: getattr(layer, name) for name in ("layer", "kind", "scale", "softcap")}
    entry["fill"] = str(layer.fill)
    entry["proof"] = layer.proof and {name: str(value) for name, value in layer.proof._asdict().items()}
    if isinstance(layer.mask, RuleMask) and not files_of(layer.mask.expression):
        entry["mask"] = {"expression": str(layer.mask.expression), "past": layer.mask.past}
    else:
        arrays["mask"] = layer.mask_cells
    return entry, arrays
