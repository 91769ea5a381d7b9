"""The forward pass in NumPy, with the Q, K, V and mask of the recorded layers.

It takes a ragged batch: sentences of any length, concatenated without padding. One product over the tokens of many
sentences costs a third of as many small ones. No sentence is mixed with another, so that its numbers differ from those
alone by rounding only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from attncli import attention
from attncli.checkpoints.checkpoint_folder import UnsupportedError
from attncli.engines import cpu
from attncli.engines.numpy.model_spec import LookupTable, ModelSpec, ModelWeights, Residual, Unembedding
from attncli.engines.numpy.ops import layer_norm, linear
from attncli.masks.expressions import Atom, Expression, RuleMask
from attncli.trace.layer import LayerTrace, stages_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from attncli.encoding.encode import EncodedInput

    Hidden = Float[np.ndarray, "T E"]
    Heads = Float[np.ndarray, "H T D"]
    KeyHeads = Float[np.ndarray, "Hkv T D"]
    TokenHeads = Float[np.ndarray, "T H D"]
    TokenKeyHeads = Float[np.ndarray, "T Hkv D"]


class TokenIds(NamedTuple):
    """Token ids of a sentence, the input of a model."""

    ids: Sequence[int]  # of its tokens
    segments: Sequence[int] | None = None  # token type ids; None where the tokenizer gives none

    @classmethod
    def of(cls, sentence: EncodedInput) -> TokenIds:
        """Return the ids of an encoded sentence."""
        return cls(sentence.inputs["input_ids"], sentence.inputs.get("token_type_ids"))


class Group(NamedTuple):
    """Sentences of one length, which attend together: their heads are treated as those of one."""

    sentences: Sequence[int]  # their indices in the order of the caller
    tokens: int  # of each
    rows: slice  # their rows of the batch

    def split_heads(self, packed: Float[np.ndarray, "T H D"]) -> Float[np.ndarray, "NH t D"]:
        """Return the rows of the group as heads: those of the first sentence, then those of the next."""
        count, width = packed.shape[1:]
        rows = packed[self.rows].reshape(len(self.sentences), self.tokens, count, width)
        return np.ascontiguousarray(rows.transpose(0, 2, 1, 3)).reshape(-1, self.tokens, width)

    def merge_heads(self, heads: Float[np.ndarray, "NH t D"], packed: Float[np.ndarray, "T H D"]) -> None:
        """Write heads into the rows of the batch; `split_heads` in reverse."""
        count, width = packed.shape[1:]
        split = heads.reshape(len(self.sentences), count, self.tokens, width)
        packed[self.rows] = split.transpose(0, 2, 1, 3).reshape(-1, count, width)


class GroupHeads(NamedTuple):
    """Queries, keys and values of one layer, of a group of sentences."""

    group: Group
    q: Float[np.ndarray, "NH T D"]
    k: Float[np.ndarray, "NHkv T D"]
    v: Float[np.ndarray, "NHkv T D"]


class RaggedBatch:
    """Concatenated sentences, the shortest first; those of one length attend together if they `share`."""

    def __init__(self, sentences: Sequence[TokenIds], share: bool = True) -> None:
        lengths = [len(item.ids) for item in sentences]
        order = sorted(range(len(sentences)), key=lengths.__getitem__)
        self.sentences = [sentences[index] for index in order]
        self.longest = max(lengths)
        self.groups: list[Group] = []
        start = 0
        for tokens, same in groupby(order, lengths.__getitem__):
            for indices in [tuple(same)] if share else [(item,) for item in same]:
                stop = start + len(indices) * tokens
                self.groups.append(Group(indices, tokens, slice(start, stop)))
                start = stop


_FILL = float(np.finfo(np.float32).min)  # added to masked scores

# Bytes of a batch: of its records, and of its intermediate results. Larger ones are hardly faster.
_BATCH = 2**26

# Scores of one head in a block: with the exponentials in their place they stay in the cache of a core,
# and with fewer rows BLAS would lay out the keys too often. Blocks of keys with a running maximum as well (Milakov and
# Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135) were no faster here at 4,096 tokens.
_NEAR = 2**18
_MOST, _LEAST = 128, 32


@dataclass(frozen=True)
class Model:
    """A model's specification and weights."""

    spec: ModelSpec
    weights: ModelWeights

    @cached_property
    def batch_tokens(self) -> int:
        """The most tokens of several sentences in a batch, by the model's widths alone."""
        spec, heads = self.spec, self.spec.heads
        recorded = len(spec.layers) * (heads.count + 2 * heads.kv_heads) * heads.width
        return _BATCH // (4 * (recorded + 2 * spec.feed_forward.width + 4 * spec.width))

    def record(
        self, sentences: Sequence[TokenIds], wanted: Sequence[int], heads: tuple[int, ...], mask: Expression | None
    ) -> list[list[LayerTrace]]:
        """Return the attention of the wanted layers for each of some sentences, under a mask or the model's own."""
        # A user's mask may differ between heads, and sentences that share a group have one set of heads.
        batch, last = RaggedBatch(sentences, share=mask is None), max(wanted)
        records: list[list[LayerTrace]] = [[] for _ in sentences]
        with computing(batch.longest):
            x = self.embed(batch)
            for layer in self.layers(last, mask):
                projected = layer.project_qkv(x, batch)
                if layer.index in wanted:
                    layer.record(projected, heads, records)
                if layer.index != last:
                    x = layer.finish(x, layer.head_outputs(projected))
        return records

    def layers(self, last: int, mask: Expression | None) -> list[Layer]:
        """Return the layers up to the last one, under a mask; None is each layer's own."""
        return [Layer(self, index, mask) for index in range(last + 1)]

    def embed(self, batch: RaggedBatch) -> Hidden:
        """Return the first hidden states."""
        how = self.spec.embedding
        x = reduce(np.add, self.embedded(batch).values())
        return x if how.norm is None else self.normalize(how.norm, x)

    def embedded(self, batch: RaggedBatch) -> dict[str, Hidden]:
        """Return the rows of the embedding tables, whose sum is the first hidden states."""
        how, sentences = self.spec.embedding, batch.sentences

        def rows(table: LookupTable, indices: Iterable[Iterable[int]]) -> Hidden:
            every = list(chain.from_iterable(indices))
            return self.weights.rows(table.name + ".weight", every, table.rows, self.spec.width)

        parts = {"embedding": rows(how.tokens, (text.ids for text in sentences))}
        if how.scale != 1:
            parts["embedding"] = parts["embedding"] * np.float32(how.scale)
        has_segments = sentences[0].segments is not None  # the tokenizer gives them for every sentence or for none
        if how.segments is not None and (has_segments or how.segment is not None):
            segments = (text.segments or [how.segment or 0] * len(text.ids) for text in sentences)
            parts["segment"] = rows(how.segments, segments)
        if how.positions is not None:
            parts["position"] = rows(how.positions, (_positions(text.ids, how.padding_id) for text in sentences))
        return parts

    def norm_weight(self, name: str, width: int) -> Float[np.ndarray, " E"]:
        """Return the factors of one of the model's normalizations."""
        weight = self.weights.vector(name + ".weight", width)
        return weight + np.float32(self.spec.norm.offset) if self.spec.norm.offset else weight

    def normalize(self, name: str, x: Float[np.ndarray, " ..."]) -> Float[np.ndarray, " ..."]:
        """Apply one of the model's normalizations to hidden states."""
        norm, width = self.spec.norm, x.shape[-1]
        bias = (self.weights.vector(name + ".bias", width),) if norm.has_bias else ()
        return norm.function(x, self.norm_weight(name, width), *bias, norm.eps)

    def unembed(self, x: Hidden) -> Float[np.ndarray, "T V"]:
        """Return the logits of hidden states after the final normalization."""
        shape = self.spec.embedding.tokens.rows, self.spec.width
        how, logits = self.unembedding, linear(x, self.weights.read(self.unembedding_name, shape), None)
        return logits if how.softcap is None else np.float32(how.softcap) * np.tanh(logits / np.float32(how.softcap))

    @property
    def unembedding_name(self) -> str:
        """Name of the unembedding's matrix in the checkpoint; UnsupportedError without one."""
        how, weights = self.unembedding, self.weights
        return f"{weights.prefix}{self.spec.embedding.tokens.name}.weight" if how.is_tied else weights.head(how.matrix)

    @property
    def unembedding(self) -> Unembedding:
        """Specification of the unembedding; UnsupportedError without one."""
        if self.spec.unembedding is None:
            raise UnsupportedError("it is no causal language model, and predicts no next token")
        return self.spec.unembedding

    def norm_gain(self, name: str, x: Hidden) -> Float[np.ndarray, "T E"]:
        """Return the factors of a normalization on hidden states, with its scale held and without its bias.

        `centered(parts) * gain` is the sum that parts of the hidden states add behind it. A direction d behind it reads
        `centered(d * gain)` before it.
        """
        centered = self.centered(x.astype(np.float64))
        scale = np.sqrt(np.square(centered).mean(axis=-1, keepdims=True) + self.spec.norm.eps)
        return self.norm_weight(name, x.shape[-1]) / scale

    def centered(self, x: Float[np.ndarray, "... E"]) -> Float[np.ndarray, "... E"]:
        """Subtract the means of vectors, as a layer norm does; the matrix of that is symmetric."""
        return x - x.mean(axis=-1, keepdims=True) if self.spec.norm.function is layer_norm else x

    def project(self, name: str, x: Hidden, width: int, has_bias: bool) -> Float[np.ndarray, "T F"]:
        """Return x·Wᵀ, or x·Wᵀ + b."""
        bias = self.weights.vector(name + ".bias", width) if has_bias else None
        return linear(x, self._matrix(name, width, x.shape[-1]), bias)

    def pull_back(self, name: str, directions: Float[np.ndarray, "N F"], width: int) -> Float[np.ndarray, "N E"]:
        """Return d·W: the directions before `project` that give the same as d behind it."""
        return linear(directions.astype(np.float32), self._matrix(name, directions.shape[-1], width).T, None)

    def _matrix(self, name: str, outputs: int, inputs: int) -> Float[np.ndarray, "F E"]:
        if self.spec.projections.is_transposed:
            return self.weights.matrix(name + ".weight", inputs, outputs).T
        return self.weights.matrix(name + ".weight", outputs, inputs)


class Addition(NamedTuple):
    """Residual connection of a sublayer."""

    x: Hidden  # hidden states before
    output: Hidden  # the sublayer's output, not yet normalized


@dataclass(frozen=True)
class Layer:
    """One layer of a model."""

    model: Model
    index: int  # of the layer
    mask: Expression | None  # replaces the layer's own; None is that one

    def project_qkv(self, x: Hidden, batch: RaggedBatch) -> list[GroupHeads]:
        """Return the rotated queries and keys, and the values, of each group of sentences, from the layer's input."""
        query, key, value = self.project(self.enter(x))
        query, key = self.norm_heads(query, key)
        rope, groups = self._spec.layers[self.index].rope, []
        for group in batch.groups:
            q, k = group.split_heads(query), group.split_heads(key)
            if rope is not None:
                positions = np.arange(group.tokens)
                q, k = rope.rotate(q, positions), rope.rotate(k, positions)
            groups.append(GroupHeads(group, q, k, group.split_heads(value)))
        return groups

    def enter(self, x: Hidden) -> Hidden:
        """Return what queries, keys and values are projected from: the layer's input, normalized where it is first."""
        return self._pre_norm(self._spec.attention_residual, x)

    def project(self, x: Hidden) -> tuple[TokenHeads, TokenKeyHeads, TokenKeyHeads]:
        """Return the queries, keys and values of `enter`, before any norm of heads and any rotation."""
        heads, how = self._spec.heads, self._spec.projections
        if not how.joint:
            query, key, value = (
                self._project(name, x, count * heads.width, how.has_bias).reshape(len(x), count, heads.width)
                for name, count in ((how.query, heads.count), (how.key, heads.kv_heads), (how.value, heads.kv_heads))
            )
            return query, key, value
        joint = self._project(how.joint, x, 3 * heads.count * heads.width, how.has_bias)
        if how.interleaved_qkv:
            query, key, value = joint.reshape(len(x), heads.count, 3, heads.width).transpose(2, 0, 1, 3)
        else:
            query, key, value = joint.reshape(len(x), 3, heads.count, heads.width).transpose(1, 0, 2, 3)
        return query, key, value

    def norm_heads(self, query: TokenHeads, key: TokenKeyHeads) -> tuple[TokenHeads, TokenKeyHeads]:
        """Return queries and keys, each head normalized by itself where the model does so."""
        how = self._spec.projections
        query = self.model.normalize(self.name(how.query_norm), query) if how.query_norm else query
        return query, self.model.normalize(self.name(how.key_norm), key) if how.key_norm else key

    def record(
        self, projected: Sequence[GroupHeads], heads: tuple[int, ...], records: Sequence[list[LayerTrace]]
    ) -> None:
        """Add the layer's attention to the records of the sentences."""
        for group, *arrays in projected:
            parts = zip(*(np.split(array, len(group.sentences)) for array in arrays), strict=True)
            for sentence, (q, k, v) in zip(group.sentences, parts, strict=True):
                records[sentence].append(self._trace(q, k, v, heads))

    def head_outputs(self, projected: Sequence[GroupHeads]) -> Float[np.ndarray, "T H D"]:
        """Return weights·V of every head, before the output projection."""
        heads = self._spec.heads
        outputs = np.empty((projected[-1].group.rows.stop, heads.count, heads.width), np.float32)
        for group, q, k, v in projected:
            group.merge_heads(attention_output(self._trace(q, k, v, ())), outputs)
        return outputs

    def added(
        self, parts: Float[np.ndarray, "... T H D"], heads: Float[np.ndarray, "T H D"]
    ) -> Float[np.ndarray, "... T E"]:
        """Return the sum that parts of the heads' outputs add to the hidden states; all outputs give a norm's scale."""
        how, residual, width = self._spec.projections, self._spec.attention_residual, self._spec.width
        rows = parts.reshape(-1, parts.shape[-2] * parts.shape[-1])
        added = self._project(how.output, rows, width, has_bias=False).reshape(*parts.shape[:-2], width)
        if residual.after is None:
            return added
        gain = self.model.norm_gain(self.name(residual.after), self.project_output(heads))
        return self.model.centered(added) * gain

    def finish(self, x: Hidden, heads: Float[np.ndarray, "T H D"], additions: list[Addition] | None = None) -> Hidden:
        """Return the layer's output, from its input and the outputs of its heads; see `after_attention`."""
        return self.after_attention(x, self.project_output(heads), additions)

    def project_output(self, heads: Float[np.ndarray, "T H D"]) -> Hidden:
        """Return the output of the attention, from those of its heads."""
        how = self._spec.projections
        return self._project(how.output, heads.reshape(len(heads), -1), self._spec.width, how.output_has_bias)

    def after_attention(self, x: Hidden, attention: Hidden, additions: list[Addition] | None = None) -> Hidden:
        """Return the layer's output, from its input and the output of its attention, which is overwritten.

        `additions` records the residual connections of the attention, then of the feed-forward network.
        """
        spec = self._spec
        attended = self._add_residual(spec.attention_residual, x, attention, additions)
        entering = self._pre_norm(spec.feed_forward_residual, x if spec.is_parallel else attended)
        return self._add_residual(spec.feed_forward_residual, attended, self._mlp(entering), additions)

    @property
    def _spec(self) -> ModelSpec:
        return self.model.spec

    def name(self, name: str) -> str:
        """Return the name of one of the layer's tensors, as it is in the model."""
        return self._spec.layer.format(self.index) + name

    def _project(self, name: str, x: Hidden, width: int, has_bias: bool) -> Float[np.ndarray, "T F"]:
        return self.model.project(self.name(name), x, width, has_bias)

    def _trace(self, q: Heads, k: KeyHeads, v: KeyHeads, heads: tuple[int, ...]) -> LayerTrace:
        how, (count, tokens) = self._spec.layers[self.index], q.shape[:2]
        rule = how.mask  # the simplest one with the same cells for this many tokens
        if tokens == 1:
            rule = Atom("full")
        elif rule.name == "window" and rule.arguments[0] >= tokens:
            rule = Atom("causal")
        mask, softcap = RuleMask(self.mask or rule, tokens, tokens, count), self._spec.softcap
        return LayerTrace(self.index, "self", q, k, v, how.scale, mask, heads, softcap=softcap, fill=_FILL)

    def _mlp(self, x: Hidden) -> Hidden:
        how = self._spec.feed_forward
        hidden = how.activation(self._project(how.gate or how.up, x, how.width, how.has_bias))
        if how.gate:
            hidden *= self._project(how.up, x, how.width, how.has_bias)
        return self._project(how.down, hidden, self._spec.width, how.has_bias)

    def _pre_norm(self, residual: Residual, x: Hidden) -> Hidden:
        return x if residual.before is None else self.model.normalize(self.name(residual.before), x)

    def _add_residual(self, residual: Residual, x: Hidden, output: Hidden, additions: list[Addition] | None) -> Hidden:
        """Add the output of a sublayer to hidden states, in place."""
        if additions is not None:
            additions.append(Addition(x, output.copy()))
        if residual.after is not None:
            output = self.model.normalize(self.name(residual.after), output)
        output += x
        return output if residual.post_norm is None else self.model.normalize(self.name(residual.post_norm), output)


def attention_output(layer: LayerTrace) -> Float[np.ndarray, "H Q Dv"]:
    """Return weights·V of every head; many rows are computed block by block, on all cores."""
    heads, queries, keys = layer.cells
    q, k, v, scale = cast(Any, (layer.q, layer.k, layer.v, layer.scale))  # all of them are there
    output, every = np.empty((heads, queries, v.shape[-1]), np.float32), tuple(range(heads))

    def staged(rows: Int[np.ndarray, " R"]) -> None:
        for stages in stages_of(layer, every, rows):
            block = slice(stages.queries[0], stages.queries[-1] + 1)
            output[stages.heads[0] : stages.heads[-1] + 1, block] = stages.output

    def fused(rows: slice) -> None:
        allowed = layer.mask.rows([*every], np.arange(rows.start, rows.stop))
        if len(allowed) > 1 or not allowed.any(axis=-1).all():
            staged(np.arange(rows.start, rows.stop))
            return
        output[:, rows] = attention.fused_output(q[:, rows], k, v, scale, allowed[0], layer.softcap)

    if queries <= cpu.LONG:
        staged(np.arange(queries))
    else:
        step = min(max(_NEAR // keys, _LEAST), _MOST)
        cpu.parallel_for(fused, [slice(start, min(start + step, queries)) for start in range(0, queries, step)])
    return output


@contextmanager
def computing(tokens: int) -> Iterator[None]:
    """Use all cores for a long text, and let numbers overflow: non-finite ones are found at the end."""
    with np.errstate(all="ignore"), cpu.use_all_cores(tokens):
        yield


def _positions(ids: Sequence[int], padding_id: int | None) -> list[int]:
    """Return the position of each token; see `Embedding.padding_id`."""
    if padding_id is None:
        return list(range(len(ids)))
    is_text = np.asarray(ids) != padding_id
    return (is_text.cumsum() * is_text + padding_id).tolist()
