"""Lessons: one query on its way through a layer so small that a reader can redo every number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.analysis.cell import AttentionRow
from attncli.analysis.why import explain
from attncli.checkpoints.options import ToyOptions
from attncli.engines.numpy.ops import Rope
from attncli.engines.source import ModelRequest, parse_mask
from attncli.engines.toy import ToyLayer, ToyWeights
from attncli.errors import InputError
from attncli.trace.selection import Indices
from attncli.trace.tokens import Token
from attncli.trace.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Float

TEXT = "time flies like an arrow"
MOST_WORDS = 8  # a step of more would not fit a terminal of 24 lines


class Lesson(NamedTuple):
    """Sizes, mask and texts of a lesson."""

    name: str
    title: str  # in a few words
    exercise: str  # a question to the reader
    num_heads: int = 1
    width: int = 3  # of q, k and v of a head
    mask: str = "none"  # a mask expression
    target: str | None = None  # the text of the queries, where it is another one


D_MODEL = 3
_SCALE = "Leave out the scale (--scale none): are the weights nearer to each other then, or farther apart?"
_HEADS = "Which head takes most of its output from a single word? Which matrices make the difference?"
_LATER = "Put a word at the end of the text. Which numbers of this lesson change, and why do all others stay?"
_SHAPE = "Swap the text and --target. How many rows and columns do the weights have then, and why?"
_ORDER = "Swap two words, then do so with --positions sinusoidal. Which time do the weights only change places?"
_ALL = (
    Lesson("one", "one head", _SCALE),
    Lesson("multi", "multi-head attention", _HEADS, num_heads=2, width=2),
    Lesson("causal", "a causal mask", _LATER, mask="causal"),
    Lesson("cross", "cross-attention", _SHAPE, target="die Zeit fliegt"),
    Lesson("positions", "positions", _ORDER, width=2),
)
LESSONS = {lesson.name: lesson for lesson in _ALL}


@dataclass(frozen=True)
class Walk:
    """One query on its way through the layer of a lesson; all numbers are those of its trace and its weights."""

    lesson: Lesson
    trace: Trace  # of the text
    embedded: Float[np.ndarray, "K E"]  # the embeddings of the words that are attended to, `[K, E]`
    weights: ToyWeights  # the matrices of the layer
    rows: tuple[AttentionRow, ...]  # the query's row, in each head

    @property
    def query(self) -> Token:
        """The word that attends."""
        return self.rows[0].query


def turned(vectors: Float[np.ndarray, "T 2"], positions: Sequence[int]) -> Float[np.ndarray, "T 2"]:
    """Return pairs of numbers turned by their positions, in radians (rotary: Su et al. 2021, equation 13)."""
    return Rope(np.ones(1, np.float32)).rotate(vectors[None], np.array(positions))[0]


def walk(text: str, lesson: Lesson, query: str | int | None = None, seed: int = 0) -> Walk:
    """Return the way of one query, by default the one in the middle, through a lesson's layer.

    Raises:
        UsageError: there is no such word, or several are called that.
        InputError: the text is empty, or has too many words.
    """
    heads, width = lesson.num_heads, lesson.width
    options = ToyOptions(d_model=D_MODEL, num_heads=heads, d_k=width, d_v=width, out_proj=True, seed=seed)
    request = ModelRequest(Indices.of("layer", 0), Indices.of("head", None), mask=parse_mask(lesson.mask))
    source = ToyLayer(request, options)
    trace = source.trace(text, target=lesson.target)
    if (count := len(trace.key_tokens)) > MOST_WORDS:
        raise InputError(f"a lesson takes at most {MOST_WORDS} words, and the text has {count}; give a shorter one")
    rows = explain(trace, len(trace.query_tokens) // 2 if query is None else query)
    embedded = source.embedded(trace.key_tokens, trace.source.details["vocab_size"])
    return Walk(lesson, trace, embedded, source.weights, tuple(row for row in rows if isinstance(row, AttentionRow)))
