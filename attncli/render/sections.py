"""Words around the pictures: what ran, the tokens, the shapes with named axes, the metrics, the proof."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from rich.text import Text

from attncli.analysis.metrics import head_metrics
from attncli.render.block import Block, Column, block, flowing, hstack, in_lines, padded, shortened, stack, table
from attncli.render.matrix import DIGITS, number_text
from attncli.render.palette import BOLD, DIM, HINT
from attncli.text import plural, short_name, visible
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import Token
from attncli.trace.trace import Provenance, Trace

if TYPE_CHECKING:
    from attncli.analysis.summary import RunSummary

_LONGEST_TOKEN = 200  # cells, where the output sets no width
_AXES = {
    "q": ("head", "query", "d_k"),
    "k": ("head", "key", "d_k"),
    "v": ("head", "key", "d_v"),
    **dict.fromkeys(("scores", "weights", "norms"), ("head", "query", "key")),
    "output": ("head", "query", "d_v"),
    "projected": ("query", "d_model"),
}


def headline(trace: Trace) -> Text:
    """Return what ran, with the caution that belongs to it."""
    return cautioned(what_ran(trace), [trace.source])


def what_ran(trace: Trace) -> Text:
    """Return what ran, in one line."""
    source = trace.source
    facts = [*architecture_of(source), plural(source.layers, "layer")] if source.kind == "pretrained" else []
    for layer in trace.layers[:1]:
        where = f"layer {layer.layer}, " if source.layers > 1 and len(trace.layers) == 1 else ""
        masks = dict.fromkeys(str(each.mask) for each in trace.layers)
        facts += [where + plural(layer.num_heads, "head"), f"mask {' and '.join(masks)}"]
    facts += numbers_of(source)
    return joined(source.title, [*facts, *sorted({layer.capture for layer in trace.layers} - {"exact"})])


def joined(title: str, facts: Sequence[str]) -> Text:
    """Return a title with the facts behind it."""
    return Text.assemble((visible(title), BOLD), visible("".join(f" · {fact}" for fact in facts)))


def cautioned(line: Text, sources: Sequence[Provenance]) -> Text:
    """Return what ran with a line below on what its numbers do not mean, where its weights are drawn."""
    cautions = dict[str, None]()
    for details in (source.details for source in sources if source.kind == "toy"):
        drawn = "weights" if details["parameters"] and details["init"] != "zeros" else "embeddings"
        cautions[f"random {drawn}: patterns mean nothing"] = None
    return Text("\n").join([line, *(Text.assemble(one, ("; -m demo is a trained model", HINT)) for one in cautions)])


def run_line(report: RunSummary, heads: str, more: Sequence[str]) -> Text:
    """Return the model of a report of heads, its heads, the masks and the sentences, and more."""
    source = report.source
    facts = [*architecture_of(source), *[plural(source.layers, "layer")] * (source.layers > 1), heads]
    facts += [f"mask {' and '.join(report.masks)}", *numbers_of(source), *more]
    return cautioned(joined(source.title, facts), [source])


def architecture_of(source: Provenance) -> list[str]:
    """Return the kind of a model, and the part of another one that it is."""
    facts = [] if source.architecture is None else [source.architecture]
    kind = "vision" if source.details.get("reads") == "pictures" else "text"
    return [*facts, *[f"{kind} tower"] * bool(source.details.get("tower"))]


def numbers_of(source: Provenance) -> list[str]:
    """Return how a toy layer is drawn, or in what a model computes."""
    details = source.details
    if source.kind != "toy":
        facts = [f"{details['adapter']} adapter on {short_name(details['base'])}"] if "base" in details else []
        facts += [f"weights: {details['weights']}"] if "weights" in details else []
        engine = {"native": ["native engine"], "onnx": ["onnxruntime"]}.get(details.get("engine", ""), [])
        return [*facts, f"{source.dtype} on {source.device}", *engine]
    facts = [f"{details['positions']} positions"] * (details["positions"] != "none")
    facts += [f"{details['init']} weights, seed {source.seed} ({details['rng']})"]
    return [*facts, f"{details['parameters']:,} parameters"]


def token_list(tokens: Sequence[Token], title: str, width: int | None, has_ids: bool, most: int | None = None) -> Block:
    """Return the tokens with their indices, over their ids if they have some, in as many lines as they need.

    Where they need more than `most` lines, those at the end are counted.
    """
    margin = max(len("queries"), len(title)) + 2
    has_ids = has_ids and any(token.below for token in tokens)
    ids = ("pieces" if tokens[0].pieces else "ids") if has_ids else ""
    longest = _LONGEST_TOKEN if width is None else width - margin - 8
    room = None if width is None else width - margin
    openings = {token.index for before, token in pairwise(tokens) if token.segment == 1 and before.segment == 0}

    def listed(token: Token) -> Block:
        bar = "│ " if token.index in openings else ""
        mark = f"{bar}{token.index} "
        label, style = shortened(token.label, longest), DIM if token.special else None
        own = max(cell_len(label), len(token.below))
        lines = [[Segment(mark, DIM), padded(label, own, style, "<")]]
        lines.append([Segment(bar.ljust(len(mark)), DIM), padded(token.below, own, DIM, "<")])
        return Block(lines, len(mark) + own)

    enough = len(tokens) if most is None or room is None else most * (room + 3) // 6  # `0 a` and the gap behind it
    lines = in_lines(map(listed, tokens[:enough]), 3, room)
    if most is not None and room is not None and (len(lines) > most or enough < len(tokens)):
        lines = lines[:most]
        counted = f"… {len(tokens):,} in all"
        while len(lines[-1]) > 1 and sum(one.width + 3 for one in lines[-1]) + len(counted) > room:
            lines[-1].pop()
        lines[-1].append(block([[Segment(counted, DIM)]]))
    drawn = []
    for number, line in enumerate(lines):
        names = [[padded(text, margin, BOLD, "<")] for text in ("" if number else title, ids)]
        drawn.append(hstack([Block(names, margin), hstack(line, 3)], 0))
    return stack(drawn if has_ids else [Block(one.lines[:1], one.width) for one in drawn])


def shapes_line(trace: Trace, layer: LayerTrace, width: int) -> Block:
    """Return the shape of every tensor with its axes named, and what it is made of, in as few lines as they fit in."""
    made, shapes, is_grouped, parts = _made_of(trace, layer), layer.shapes, layer.num_groups < layer.num_heads, []
    if layer.out_projection is not None:
        shapes["projected"] = [layer.num_queries, layer.out_projection.shape[1]]
    for name, sizes in shapes.items():
        named = ", ".join(f"{axis} {size}" for axis, size in zip(_AXES[name], sizes, strict=True))
        named = "kv " * (name in {"k", "v"} and is_grouped) + named
        label = Segment(name.upper() if len(name) == 1 else name, BOLD)
        line = [label, Segment(f" [{named}]"), Segment(f" {visible(made.get(name, ''))}".rstrip(), DIM)]
        parts += [line[:2], line[2:]] if Segment.get_line_length(line) > width else [line]
    return flowing(parts, width)


def _made_of(trace: Trace, layer: LayerTrace) -> dict[str, str]:
    scores = "Q·Kᵀ and what the model adds" if layer.scale is None else f"Q·Kᵀ × {layer.scale:.4g}"
    scores += " + bias" if layer.bias is not None else ""
    scores += f", softcap {layer.softcap:g}" if layer.softcap is not None else ""
    made = {
        "norms": "lengths of weighted values",
        "scores": scores,
        "weights": "softmax of the masked scores" + (", with sinks" if layer.sinks is not None else ""),
        "output": "weights·V",
        "projected": "concatenated heads·W_o" + (" + bias" if layer.out_bias is not None else ""),
    }
    if trace.source.kind == "toy":
        drawn = trace.source.details.get("project", "")
        return made | {name: f"X·W_{name}" if name in drawn else "the embeddings" for name in "qkv"}
    if layer.num_groups < layer.num_heads:
        made |= dict.fromkeys("kv", f"each read by {layer.num_heads // layer.num_groups} heads")
    return made


def metrics_table(trace: Trace, layer: LayerTrace, width: int | None, precision: int | None) -> Block:
    """Return one row of numbers per head; what is not defined for this sentence is left blank."""
    digits = DIGITS if precision is None else precision
    measured = {str(layer.head_label(index)): head_metrics(trace, layer, layer.head(index)) for index in layer.heads}
    columns = [Column("head", list(measured), BOLD)]
    for name in next(iter(measured.values())):
        values = [metrics[name] for metrics in measured.values()]
        columns.append(Column(name, ["" if value is None else number_text(value, digits) for value in values]))
    return table(columns, width)


def next_table(trace: Trace, width: int | None) -> Block:
    """Return the likeliest next tokens with their probabilities, below a line that names the likeliest."""
    found, last = trace.next_tokens, trace.query_tokens[-1]
    labels, shares = [visible(one.token.label) for one in found], [math.exp(one.logprob) for one in found]
    after = visible(f" is the likeliest next token after {last.index} {last.label}")
    columns = [
        Column("token", labels, BOLD, "<"),
        Column("id", [str(one.token.id) for one in found], DIM),
        Column("logit", [number_text(one.logit, 2) for one in found]),
        Column("probability", [f"{share:.4f}" for share in shares]),
    ]
    line = [Segment(labels[0], BOLD), Segment(f"{after}, probability {shares[0]:.3g}")]
    return stack([block([line]), table(columns, width)])


def proof_line(layer: LayerTrace) -> Text:
    """Return how well the numbers shown explain what the model itself computed."""
    line, proof = "proof  not run", layer.proof
    if proof is not None:
        line = f"proof  max |{proof.of} − {proof.against}| = {proof.max_abs_error:.1e}"
    return Text(line, DIM)
