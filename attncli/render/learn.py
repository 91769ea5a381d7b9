"""A lesson as steps: each says what is done, shows what it is done to, and spells one number out."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attncli.analysis.cell import AttentionRow
from attncli.analysis.learn import LESSONS, Walk
from attncli.render.bars import TableFormat
from attncli.render.block import Block, Column, block, cell, hstack, in_lines, segment_width, stack, table, trimmed
from attncli.render.palette import BOLD, DIM, Scale
from attncli.trace.tokens import Token, Tokens

if TYPE_CHECKING:
    from jaxtyping import Float

PRECISION = 3  # digits after the point: what a reader types into a calculator
_GAP = 3  # cells between two matrices
_LINE = 80  # cells that prose takes at most
_LONGEST = 7  # cells of a word beside its numbers, so that what is multiplied and the product stand in one line of 80
_PADDING, _FEW = 6, 5  # blanks on either side of a large number; words whose rows are five lines high
_LARGE = (190, 50)  # cells and lines of a terminal that a projector shows
_HERE = Style(color="#000000", bgcolor="#f0e442", bold=True)
_FOLLOWED = "▸"  # before the word that the steps follow
# A node stands between blanks, which become brackets where the reader is.
_WAY = (
    "       ┌─ q ─┐                                          [ ] you are here",
    " words ┼─ k ─┴─ q·k ── scale ── mask ── softmax ─┐",
    "       └─ v ─────────────────────────────────────┴─ weights·V ── heads ── W_o ",
)
_ROUNDED = f"Numbers are rounded to {PRECISION} digits, so your last digit may differ."
_PROJECTION = (
    "A last matrix, W_o, mixes the heads into as many numbers as an embedding has. The layer adds them to {word}, "
    "which so contains something of the words that it attended to."
)


class LessonStep(NamedTuple):
    """One step of a lesson, and the node of the way where it stands."""

    name: str
    parts: tuple[RenderableType, ...]
    node: str


@dataclass(frozen=True)
class Steps:
    """A lesson laid out for one output, in large cells where it has so many `lines` and the width for them."""

    walk: Walk
    sheet: TableFormat
    lines: int | None = None

    def all(self) -> list[LessonStep]:
        """Return the steps from the embeddings to the exercise, each under where it stands on the way of the data."""
        steps = [self._embeddings()]
        for row in self.walk.rows:
            of = f"head {row.head.head}: " if len(self.walk.rows) > 1 else ""
            steps += [step._replace(name=of + step.name) for step in self._of_head(row)]
        steps += [self._heads(), self._projected(), self._exercise()]
        title = self.walk.lesson.title
        return [
            step._replace(
                parts=(
                    Text("\n").join(
                        [
                            self._bold(f"{title} · step {place} of {len(steps)} · {step.name}"),
                            *self._way(step.node),
                        ]
                    ),
                    *step.parts,
                )
            )
            for place, step in enumerate(steps, start=1)
        ]

    def _step(self, name: str, node: str, *parts: RenderableType) -> LessonStep:
        """Return a step at a node of the way, whose texts are prose."""
        return LessonStep(name, tuple(self._prose(part) if isinstance(part, str) else part for part in parts), node)

    def _way(self, node: str) -> list[Text]:
        """Return the way of the data, on which the node of this step is marked; nothing for the exercise."""
        palette = self.sheet.palette
        lines = []
        for line in _WAY if node else ():
            text = Text(line, DIM)
            if (place := line.find(f" {node} ")) >= 0:
                shown = f"[{node}]"
                style = _HERE if palette.has_color else BOLD
                text = Text.assemble(text[:place], (shown, style), text[place + len(shown) :])
            lines.append(text)
        return lines

    # --- the steps ---

    def _embeddings(self) -> LessonStep:
        trace, layer = self.walk.trace, self.walk.rows[0].layer
        assert layer.inputs is not None
        text = (
            f"Each word becomes {layer.inputs.shape[1]} numbers, its embedding. Here the word and the seed draw them; "
            "a real model learns them."
        )
        matrices = [self._matrix("embeddings", self.walk.embedded, trace.key_tokens)]
        if self.walk.lesson.target is not None:
            text += (
                f" The queries are the words of '{self._safe(trace.target or '')}', the keys those of the other text."
            )
            matrices.append(self._matrix("of the queries", layer.inputs, trace.query_tokens))
        question = f"The steps follow one word, {self._word}: how much does it attend to each of the words?"
        rounded = self._prose(_ROUNDED)
        rounded.style = DIM
        return self._step("embeddings", "words", f"{text}\n{question}", self._drawn(*matrices), rounded)

    def _of_head(self, row: AttentionRow) -> Iterator[LessonStep]:
        """Yield the steps of a head; the weights of another one than the first are made in a single step."""
        yield self._query(row)
        yield self._of_each(row, "k", row.head.k, "k is matched against the query", "a key, k, for each word")
        if row.head.head == 0:
            yield from (self._dots(row), self._scale(row), self._mask(row), self._softmax(row))
        else:
            yield self._weights(row)
        yield self._of_each(
            row, "v", row.head.v, "v is what a word passes on when it is attended to", "a value, v, for each word"
        )
        yield self._output(row)

    def _query(self, row: AttentionRow) -> LessonStep:
        matrix, asking = self.walk.weights.heads[row.head.head]["q"].weight, Tokens([row.query])
        assert row.layer.inputs is not None
        x = row.layer.inputs[[row.query.index]]
        text = (
            f"q is what {self._word} looks for: its embedding times the matrix W_q. W_q is random here, and learned "
            "in a real model."
        )
        drawn = self._drawn(
            self._matrix("W_q", matrix),
            self._matrix("its embedding", x, asking),
            self._matrix("q: embedding·W_q", row.head.q, asking, False),
        )
        spelled = self._product("the first number of q", x[0], matrix[:, 0], row.head.q[0, 0])
        return self._step("its query, q", "q", text, drawn, spelled)

    def _of_each(
        self, row: AttentionRow, name: str, made: Float[np.ndarray, "K D"], meaning: str, title: str
    ) -> LessonStep:
        matrix, x = self.walk.weights.heads[row.head.head][name].weight, self.walk.embedded
        drawn = self._drawn(
            self._matrix(f"W_{name}", matrix),
            self._matrix("embeddings", x, row.keys),
            self._matrix(f"{name}: embeddings·W_{name}", made, row.keys, False),
        )
        first = f"the first number of {name} of {self._name(row)}"
        text = f"{meaning}: its embedding times another matrix, W_{name}."
        return self._step(title, name, text, drawn, self._product(first, x[0], matrix[:, 0], made[0, 0]))

    def _dots(self, row: AttentionRow) -> LessonStep:
        text = "q·k measures how well query and key match: multiply number by number, add up."
        assert row.products is not None
        q = self._drawn(self._matrix("q", row.head.q, Tokens([row.query])))
        drawn = self._of_words(row, [*self._vector("k", row.head.k), self._column("q·k", row.products)])
        spelled = self._product(f"q·k of {self._name(row)}", row.head.q[0], row.head.k[0], row.products[0])
        return self._step("dot products, q·k", "q·k", text, stack([q, drawn]), spelled)

    def _scale(self, row: AttentionRow) -> LessonStep:
        width, scale = row.head.k.shape[1], self._number(row.layer.scale)
        text = (
            f"The more numbers q and k have, the larger q·k grows, and the softmax of large numbers puts all weight on "
            f"one word. So q·k is divided by √{width}, the root of how many numbers k has: times {scale}."
        )
        assert row.products is not None
        drawn = self._of_words(
            row, [self._column("q·k", row.products), self._column(f"score: q·k × {scale}", row.scores)]
        )
        first = f"score of {self._name(row)} = {self._factor(row.products[0])} × {scale}"
        return self._step("the scale", "scale", text, drawn, f"{first} = {self._number(row.scores[0])}")

    def _mask(self, row: AttentionRow) -> LessonStep:
        if self.walk.lesson.mask != "causal":
            text = "A mask can hide words. This lesson's mask hides none; attn learn --lesson causal has one that does."
        elif row.allowed.all():
            text = f"The mask is causal: {self._word} may see itself and the words before it, which are all there are."
        else:
            text = (
                f"The mask is causal: {self._word} may see itself and the words before it. The others get "
                "−inf, minus infinity, which softmax turns into a weight of 0."
            )
        columns = [
            self._column("score", row.scores),
            Column("may be seen", ["yes" if allowed else "no" for allowed in row.allowed.tolist()]),
            self._column("masked score", row.masked),
        ]
        return self._step("the mask", "mask", text, self._of_words(row, columns))

    def _softmax(self, row: AttentionRow) -> LessonStep:
        parts = row.softmax
        assert parts is not None
        highest, total = self._number(parts.highest), self._number(parts.total)
        text = (
            f"Softmax turns scores into weights: subtract the largest score ({highest}), exponentiate, divide by the "
            "sum."
        )
        raised = self._number(parts.exponentials[0])
        spelled = (
            f"of {self._name(row)}: e^({self._factor(row.masked[0])} − {self._factor(parts.highest)}) = {raised}, and "
            f"{raised} ÷ {total} = {self._number(row.weights[0])}"
        )
        drawn = self._weighted(row, [self._column("masked score", row.masked, "")])
        return self._step("softmax: the weights", "softmax", text, drawn, spelled)

    def _weights(self, row: AttentionRow) -> LessonStep:
        """Return what the first head has four steps for."""
        text = (
            f"The same as before, with this head's q and k: dot products, times {self._number(row.layer.scale)}, the "
            "mask, and the softmax."
        )
        stages = {"q·k": row.products, "score": row.scores, "masked": row.masked}
        drawn = self._weighted(row, [self._column(name, values, "") for name, values in stages.items()])
        return self._step("the weights", "softmax", text, drawn)

    def _weighted(self, row: AttentionRow, columns: Sequence[Column]) -> Block:
        """Return a table that ends in the exponentials and the weights, with bars behind these."""
        parts = row.softmax
        assert parts is not None
        highest, total = self._factor(parts.highest), self._number(parts.total)
        shown = self._with_words(row, columns, "sum")
        shown.append(self._column(f"e^(masked − {highest})", parts.exponentials, total))
        shown.append(self._column(f"weight: ÷ {total}", row.weights, self._number(row.weights.sum(dtype=np.float64))))
        return self._tall(self.sheet.with_bars(shown, len(shown), [*row.weights.tolist(), None], 1.0), 1)

    def _output(self, row: AttentionRow) -> LessonStep:
        output = row.head.output[0]
        text = f"The head's output for {self._word} is the sum of all values, each times its weight."
        columns = [self._column("weight", row.weights, "weights·V"), *self._vector("v", row.head.v, output)]
        spelled = self._product("the first number of weights·V", row.weights, row.head.v[:, 0], output[0])
        return self._step("the output, weights·V", "weights·V", text, self._of_words(row, columns, ""), spelled)

    def _heads(self) -> LessonStep:
        rows, asking = self.walk.rows, Tokens([self.walk.query])
        matrices = [self._matrix(f"head {row.head.head}", row.head.output, asking, row is rows[0]) for row in rows]
        text = f"The outputs of the {len(rows)} heads are concatenated to one row."
        if len(rows) == 1:
            text = "This layer has one head, so there is nothing to concatenate. attn learn --lesson multi has two."
        else:
            matrices.append(self._matrix("concatenated", self._concatenated, asking, False))
        return self._step("the heads", "heads", text, self._drawn(*matrices))

    def _projected(self) -> LessonStep:
        row, asking = self.walk.rows[0], Tokens([self.walk.query])
        matrix, projected = row.layer.out_projection, row.layer.projected([row.query.index])
        assert matrix is not None
        assert projected is not None
        drawn = self._drawn(
            self._matrix("W_o", matrix),
            self._matrix("concatenated heads", self._concatenated, asking),
            self._matrix("heads·W_o", projected, asking, False),
        )
        spelled = self._product("the first number", self._concatenated[0], matrix[:, 0], projected[0, 0])
        return self._step("the output projection, W_o", "W_o", _PROJECTION.format(word=self._word), drawn, spelled)

    @property
    def _concatenated(self) -> Float[np.ndarray, "1 D"]:
        return np.concatenate([row.head.output for row in self.walk.rows], axis=1)

    # --- the exercise ---

    def _exercise(self) -> LessonStep:
        question, command = self._question()
        others = ", ".join(name for name in LESSONS if name != self.walk.lesson.name)
        lines = [
            self._prose(f"{question} Then look:"),
            self._typed(command),
            Text(""),
            self._prose("The numbers of this lesson are those of"),
            self._typed(self._command(self._text)),
            Text(""),
            self._prose(f"The other lessons: attn learn --lesson {others}."),
        ]
        return self._step("an exercise", "", Text("\n").join(lines))

    def _question(self) -> tuple[str, list[str]]:
        """Return what the lesson asks, and the command whose output answers it."""
        text, lesson = self._text, self.walk.lesson
        if lesson.target is not None:
            question = (
                "Let the words of the other text ask. How many rows and columns do the weights have then, and why?"
            )
            return question, self._command(lesson.target, target=text, shows="shapes,weights")
        if lesson.num_heads > 1:
            question = "Which head takes most of its output from a single word? Which matrices make the difference?"
            return question, self._command(text, shows="weights")
        if lesson.mask == "causal":
            question = "Put a word at the end. Which numbers of this lesson change, and why do all others stay?"
            return question, self._command(f"{text} today")
        question = "Leave out the scale: are the weights nearer to each other then, or farther apart? Work them out."
        return question, [*self._command(text), "--scale", "none"]

    def _command(self, text: str, target: str | None = None, shows: str = "") -> list[str]:
        """Return the command that shows this query in the layer of this lesson, or parts of the whole with `shows`."""
        lesson, source = self.walk.lesson, self.walk.trace.source
        words = ["attn", "inspect", text, "--d-model", str(source.details["d_model"])]
        words += ["--num-heads", str(lesson.num_heads), "--mask", lesson.mask]
        words += ["--d-k", str(lesson.width), "--d-v", str(lesson.width)] if lesson.num_heads > 1 else []
        words += ["--target", target or lesson.target] if lesson.target is not None else []
        words += ["--seed", str(source.seed)] if source.seed else []
        return [*words, *(["--show", shows] if shows else ["--query", str(self.walk.query.index)])]

    def _typed(self, command: Iterable[str]) -> Text:
        """Return a command as a shell takes it; where it goes on in the next line, a backslash says so."""
        lines = [" "]
        for word in map(shlex.quote, command):
            if self.sheet.width is not None and cell_len(f"{lines[-1]} {word} \\") > self.sheet.width:
                lines.append("   ")
            lines[-1] += f" {self._safe(word)}"
        return Text(" \\\n".join(lines), BOLD)

    # --- what they are made of ---

    def _bold(self, text: str) -> Text:
        return Text(text, BOLD)

    def _safe(self, text: str) -> str:
        return self.sheet.palette.label(text)

    def _name(self, row: AttentionRow, index: int = 0) -> str:
        """Return what a key is called."""
        return self.sheet.named(row.keys[index], _LONGEST)

    @property
    def _text(self) -> str:
        """The sentence, with a blank wherever it has blanks, tabs or line ends: the words are the same."""
        return " ".join(self.walk.trace.text.split())

    @property
    def _word(self) -> str:
        """The word that the lesson follows, and its place where others are called the same."""
        query, tokens = self.walk.query, self.walk.trace.query_tokens
        name = f"'{self.sheet.palette.shortened(query.label, _LONGEST)}'"
        return name if len([token for token in tokens if token.text == query.text]) == 1 else f"{name} ({query.index})"

    def _number(self, value: Any) -> str:
        return self.sheet.number(value)

    def _factor(self, value: Any) -> str:
        """Return a number as it stands in a sum or a product."""
        return self._number(value) if value >= 0 else f"({self._number(value)})"

    def _prose(self, text: str) -> Text:
        most = _LARGE[0] if self._is_large else _LINE
        lines = (wrap(each, min(self.sheet.room, most)) for each in text.split("\n"))
        return Text("\n".join(line for paragraph in lines for line in paragraph))

    @property
    def _is_large(self) -> bool:
        return self.sheet.room >= _LARGE[0] and (self.lines or 0) >= _LARGE[1]

    def _product(self, name: str, one: Float[np.ndarray, " N"], other: Float[np.ndarray, " N"], total: Any) -> str:
        """Return a dot product spelled out: the first number of a row times the first of a column, and so on."""
        pairs = zip(one.tolist(), other.tolist(), strict=True)
        factors = " + ".join(f"{self._factor(a)} × {self._factor(b)}" for a, b in pairs)
        return f"{name} = {factors} = {self._number(total)}"

    def _matrix(
        self, title: str, values: Float[np.ndarray, "T D"], tokens: Tokens | None = None, has_names: bool = True
    ) -> Block:
        """Return a matrix on the colours of its numbers, below what its columns are called.

        The names of its rows are left out where those of its neighbour on the left say them.
        """
        names = [str(row) for row in range(len(values))] if tokens is None else [self._marked(one) for one in tokens]
        names = names if has_names else [""] * len(values)
        labels, columns = max(map(cell_len, names)), [values[:, place] for place in range(values.shape[1])]
        texts = [self.sheet.column(column, range(len(column))) for column in columns]
        pad = " " * _PADDING * self._is_large
        texts = [[text + pad for text in column] for column in texts]
        width = max(len(text) for column in texts for text in column) + 1 + len(pad)
        header = [Segment(" " * labels), *(cell(str(place) + pad, width, DIM) for place in range(len(columns)))]
        lines = [[Segment(f"{' ' * labels} {title}", BOLD)], header]
        styles = self._styles(values)
        for row, name in enumerate(names):
            numbers = [cell(column[row], width, styles[row][place]) for place, column in enumerate(texts)]
            lines.append([cell(name, labels, align="left"), *numbers])
        return self._tall(block(map(trimmed, lines)), 2)

    def _styles(self, values: Float[np.ndarray, "T D"]) -> list[list[Style | None]]:
        """Return what numbers stand on: blue above zero, orange below; nothing without colours."""
        palette, scale = self.sheet.palette, Scale.around_zero(float(np.abs(self.walk.embedded).max()))
        if not palette.has_color:
            return [[None] * values.shape[1]] * len(values)
        cells = palette.cells(values, np.ones(values.shape, bool), scale, 1)
        return [[style for _, style in row] for row in cells]

    def _tall(self, drawn: Block, header: int) -> Block:
        """Return a block whose rows are three or five lines high where the numbers are large."""
        if not self._is_large:
            return drawn

        def padding(line: Sequence[Segment]) -> list[Segment]:
            return trimmed([Segment(" " * segment_width(one), one.style) for one in line])

        around = 1 if len(self.walk.trace.key_tokens) > _FEW else 2
        lines = [*drawn.lines[:header]]
        for line in drawn.lines[header:]:
            lines += [*[padding(line)] * around, line, *[padding(line)] * around]
        return Block(lines, drawn.width)

    def _marked(self, token: Token) -> str:
        """Return a word beside its numbers; the one that the steps follow has a mark."""
        is_followed = token == self.walk.query
        mark = _FOLLOWED * is_followed
        return f"{token.index} {mark}{self.sheet.palette.shortened(token.label, _LONGEST - is_followed)}"

    def _drawn(self, *matrices: Block) -> Block:
        return stack(hstack(line, _GAP) for line in in_lines(matrices, _GAP, self.sheet.room))

    def _column(self, title: str, values: Any, below: str | None = None) -> Column:
        texts = self.sheet.column(values, range(len(values)))
        pad = " " * _PADDING * self._is_large
        texts = [f"{pad}{text}{pad}" for text in texts]
        styles = [style for (style,) in self._styles(np.asarray(values)[:, None])]
        more = [] if below is None else [f"{below}{pad}"]
        return Column(title + pad, [*texts, *more], [*styles, *[BOLD] * len(more)])

    def _vector(
        self, name: str, vectors: Float[np.ndarray, "K D"], total: Float[np.ndarray, " D"] | None = None
    ) -> Iterator[Column]:
        for place in range(vectors.shape[1]):
            below = None if total is None else self._number(total[place])
            yield self._column(f"{name} {place}", vectors[:, place], below)

    def _of_words(self, row: AttentionRow, columns: Iterable[Column], below: str | None = None) -> Block:
        return self._tall(table(self._with_words(row, columns, below), self.sheet.width), 1)

    def _with_words(self, row: AttentionRow, columns: Iterable[Column], below: str | None) -> list[Column]:
        names = [self._marked(token) for token in row.keys]
        return [Column("word", [*names, *([] if below is None else [below])], BOLD, "<"), *columns]
