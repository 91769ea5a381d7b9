"""Steps of a lesson: each explains an operation, draws its numbers, and spells one of them out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attncli.analysis.cell import AttentionRow
from attncli.analysis.learn import D_MODEL, LESSONS, Walk, turned
from attncli.engines.toy import sinusoidal_positions
from attncli.render.bars import TableFormat
from attncli.render.block import Block, Column, block, hstack, in_lines, padded, shortened, stack, table, trimmed
from attncli.render.palette import BOLD, DIM, HINT, Scale
from attncli.text import visible
from attncli.trace.tokens import Token, Tokens

if TYPE_CHECKING:
    from jaxtyping import Float

    _Step = tuple[str, str, list[RenderableType | str]]  # its name, its node of the way, and its parts; texts are prose

PRECISION = 3  # digits after the point: what a reader types into a calculator
_GAP = 3  # cells between two matrices
_LINE = 80  # cells that prose takes at most
_BESIDE = 79  # cells of three matrices next to each other, of which two have names
_LONGEST = 7  # cells of a word next to its numbers, so that factors and product stand in one line of 80
_HERE = Style(color="#000000", bgcolor="#f0e442", bold=True)
# A node stands between blanks, which become brackets where the reader is.
_WAY = """\
       ┌─ q ─┐                                          [ ] you are here
 words ┼─ k ─┴─ q·k ── scale ── mask ── softmax ─┐
       └─ v ─────────────────────────────────────┴─ weights·V ── heads ── W_o """


@dataclass(frozen=True)
class Steps:
    """A lesson laid out for one output; cells grow with its width."""

    walk: Walk
    sheet: TableFormat

    def all(self) -> Iterator[tuple[str, list[RenderableType]]]:
        """Yield the name and the parts of each step, from the embeddings to the exercise."""
        is_of_positions = self.walk.lesson.name == "positions"
        steps = [*(self._of_positions() if is_of_positions else self._of_layer()), self._exercise()]
        for place, (name, node, parts) in enumerate(steps, start=1):
            way = Text(_WAY.replace(f" {node} ", f"[{node}]") if node else "", DIM)
            way.highlight_words([f"[{node}]"], _HERE if self.sheet.palette.has_color else BOLD)
            title = Text(f"{self.walk.lesson.title} · step {place} of {len(steps)} · {name}", BOLD)
            has_room = max(map(cell_len, _WAY.splitlines())) <= self.sheet.room
            has_way = bool(node) and has_room and not self.sheet.palette.is_read_aloud
            above = Text("\n").join([title, *[way] * has_way])
            yield name, [above, *(self._prose(part) if isinstance(part, str) else part for part in parts)]

    # --- the steps ---

    def _of_layer(self) -> Iterator[_Step]:
        yield self._embeddings()
        for row in self.walk.rows:
            of = f"head {row.head.head}: " if len(self.walk.rows) > 1 else ""
            yield from ((of + name, node, parts) for name, node, parts in self._of_head(row))
        yield from self._of_all_heads()

    def _of_positions(self) -> Iterator[_Step]:
        row, x = self.walk.rows[0], self.walk.embedded
        places, width, at = range(len(x)), x.shape[1], row.query.index
        text = (
            "Attention compares words, wherever they are: the same words in another order have the same weights. So a "
            "model adds positions to the embeddings, or turns q and k by them."
        )
        yield "the words alone", "words", [text, self._drawn(self._matrix("embeddings", x, row.keys))]

        positions = sinusoidal_positions(len(x), width)
        text = (
            f"Each position p has {width} numbers, which are added to the embedding (Vaswani et al. 2017). Number i is "
            f"sin(p ÷ 10000^(i/{width})) where i is even, and cos(p ÷ 10000^((i−1)/{width})) where it is odd."
        )
        matrices = self._matrix("positions", positions, row.keys), self._matrix("sum", x + positions, row.keys, False)
        spelled = f"number 1 of position {at} = cos({at} ÷ 10000^0) = {self._number(positions[at, 1])}"
        yield "sinusoidal positions", "words", [text, self._drawn(*matrices), spelled]

        q, k = turned(row.head.q, [at]), turned(row.head.k, places)
        text = (
            "Rotary positions (Su et al. 2021) add nothing. They turn each pair of numbers of q and k by an angle: for "
            "the first pair, position × 1 radian."
        )
        asking, (a, b) = Tokens([row.query]), map(self._factor, row.head.q[0].tolist())
        matrices = self._matrix("q", row.head.q, asking), self._matrix(f"q turned by {at}", q, asking, False)
        keys = self._matrix("k", row.head.k, row.keys), self._matrix("k turned by its position", k, row.keys, False)
        spelled = f"the first number of q turned = {a} × cos({at}) − {b} × sin({at}) = {self._number(q[0, 0])}"
        yield "rotary positions", "q", [text, stack([self._drawn(*matrices), self._drawn(*keys)]), spelled]

        text = (
            "q·k of turned vectors depends on how far apart they are, and not on where they are. Here "
            f"{self._word} and {self.sheet.named(row.keys[0], _LONGEST)} are {at} apart, at other positions:"
        )
        pairs = [(at + shift, shift) for shift in range(3)]
        products = [turned(row.head.q, [i])[0] @ turned(row.head.k[:1], [j])[0] for i, j in pairs]
        columns = [
            Column(name, list(map(str, side)))
            for name, side in zip(("q at", "k at"), zip(*pairs, strict=True), strict=True)
        ]
        columns.append(self._column("q·k turned", np.array(products)))
        drawn = table(columns, self.sheet.width, self.sheet.palette)
        yield "the distance alone", "q·k", [text, drawn]

    def _embeddings(self) -> _Step:
        trace, inputs = self.walk.trace, self.walk.rows[0].layer.inputs
        assert inputs is not None
        text = (
            f"Each word becomes {inputs.shape[1]} numbers, its embedding. Here the word and the seed draw them; a real "
            "model learns them."
        )
        matrices = [self._matrix("embeddings", self.walk.embedded, trace.key_tokens)]
        if self.walk.lesson.target is not None:
            text += f" The queries are the words of '{trace.target}', the keys those of the other text."
            matrices.append(self._matrix("of the queries", inputs, trace.query_tokens))
        question = f"The steps follow one word, {self._word}: how much does it attend to each of the words?"
        rounded = f"Numbers are rounded to {PRECISION} digits, so your last digit may differ."
        return "embeddings", "words", [f"{text}\n{question}", self._drawn(*matrices), rounded]

    def _of_head(self, row: AttentionRow) -> Iterator[_Step]:
        """Yield the steps of a head; the weights of another one than the first are made in a single step."""
        x, asking, word = self.walk.embedded, Tokens([row.query]), self._word
        first, inputs, scale = self.sheet.named(row.keys[0], _LONGEST), row.layer.inputs, self._number(row.layer.scale)
        assert inputs is not None
        assert row.products is not None
        text = (
            f"q is what {word} looks for: its embedding times the matrix W_q. W_q is random here, and learned in a "
            "real model."
        )
        q = self._multiplied(row, "q", ("its embedding", inputs[[row.query.index]]), row.head.q, asking)
        yield "its query, q", "q", [text, *q]
        text = "k is matched against the query: its embedding times another matrix, W_k."
        k = self._multiplied(row, "k", ("embeddings", x), row.head.k, row.keys, f" of {first}")
        yield "a key, k, for each word", "k", [text, *k]
        if row.head.head == 0:
            yield from self._to_weights(row, asking, first, scale)
        else:
            text = f"The same as before, with this head's q and k: dot products, times {scale}, the mask, the softmax."
            stages = {"q·k": row.products, "score": row.scores, "masked": row.masked}
            columns = [self._column(name, values, "") for name, values in stages.items()]
            yield "the weights", "softmax", [text, self._weighted(row, columns)]
        text = "v is what a word passes on when it is attended to: its embedding times another matrix, W_v."
        v = self._multiplied(row, "v", ("embeddings", x), row.head.v, row.keys, f" of {first}")
        yield "a value, v, for each word", "v", [text, *v]
        output = row.head.output[0]
        text = f"The head's output for {word} is the sum of all values, each times its weight."
        columns = [self._column("weight", row.weights, "weights·V"), *self._vector("v", row.head.v, output)]
        spelled = self._product("the first number of weights·V", row.weights, row.head.v[:, 0], output[0])
        yield "the output, weights·V", "weights·V", [text, self._of_words(row, columns, ""), spelled]

    def _to_weights(self, row: AttentionRow, asking: Tokens, first: str, scale: str) -> Iterator[_Step]:
        assert row.products is not None
        assert row.softmax is not None
        text = "q·k measures how well query and key match: multiply number by number, add up."
        columns = [*self._vector("k", row.head.k), self._column("q·k", row.products)]
        drawn = stack([self._matrix("q", row.head.q, asking), self._of_words(row, columns)])
        spelled = self._product(f"q·k of {first}", row.head.q[0], row.head.k[0], row.products[0])
        yield "dot products, q·k", "q·k", [text, drawn, spelled]

        width = row.head.k.shape[1]
        text = (
            f"The more numbers q and k have, the larger q·k grows, and the softmax of large numbers puts all weight on "
            f"one word. So q·k is divided by √{width}, the root of how many numbers k has: times {scale}."
        )
        columns = [self._column("q·k", row.products), self._column(f"score: q·k × {scale}", row.scores)]
        product = f"{self._factor(row.products[0])} × {scale} = {self._number(row.scores[0])}"
        yield "the scale", "scale", [text, self._of_words(row, columns), f"score of {first} = {product}"]

        text = f"The mask is causal: {self._word} may see itself and the words before it"
        if self.walk.lesson.mask != "causal":
            text = "A mask can hide words. This lesson's mask hides none. attn learn --lesson causal has one that does."
        elif row.allowed.all():
            text += ", which are all there are."
        else:
            text += ". The others get -inf, minus infinity, which softmax turns into a weight of 0."
        seen = Column("may be seen", ["yes" if allowed else "no" for allowed in row.allowed.tolist()])
        columns = [self._column("score", row.scores), seen, self._column("masked", row.masked)]
        yield "the mask", "mask", [text, self._of_words(row, columns)]

        highest, total = self._number(row.softmax.highest), self._number(row.softmax.total)
        raised, weight = self._number(row.softmax.exponentials[0]), self._number(row.weights[0])
        text = f"Softmax turns scores into weights: subtract the largest score ({highest}), exponentiate, divide by "
        exponent = f"{self._factor(row.masked[0])} − {self._factor(row.softmax.highest)}"
        spelled = f"of {first}: e^({exponent}) = {raised}, and {raised} ÷ {total} = {weight}"
        drawn = self._weighted(row, [self._column("masked", row.masked, "")])
        yield "softmax: the weights", "softmax", [text + "the sum.", drawn, spelled]

    def _of_all_heads(self) -> Iterator[_Step]:
        rows, asking = self.walk.rows, Tokens([self.walk.query])
        joined = np.concatenate([row.head.output for row in rows], axis=1)
        matrices = [self._matrix(f"head {row.head.head}", row.head.output, asking, row is rows[0]) for row in rows]
        text = f"The outputs of the {len(rows)} heads are concatenated to one row."
        if len(rows) == 1:
            text = "This layer has one head, so there is nothing to concatenate. attn learn --lesson multi has two."
        else:
            matrices.append(self._matrix("concatenated", joined, asking, False))
        yield "the heads", "heads", [text, self._drawn(*matrices)]

        matrix, projected = rows[0].layer.out_projection, rows[0].layer.projected([self.walk.query.index])
        assert matrix is not None
        assert projected is not None
        text = (
            "A last matrix, W_o, mixes the heads into as many numbers as an embedding has. The layer adds them to "
            f"{self._word}, so it now holds a part of the words that it attended to."
        )
        drawn = self._drawn(
            self._matrix("W_o", matrix),
            self._matrix("concatenated heads", joined, asking),
            self._matrix("heads·W_o", projected, asking, False),
        )
        spelled = self._product("the first number", joined[0], matrix[:, 0], projected[0, 0])
        yield "the output projection, W_o", "W_o", [text, drawn, spelled]

    def _exercise(self) -> _Step:
        lesson, source = self.walk.lesson, self.walk.trace.source
        options = f"--d-model {source.details['d_model']} --num-heads {lesson.num_heads} --mask {lesson.mask}"
        options += f" --d-k {lesson.width} --d-v {lesson.width}" * (lesson.width != D_MODEL)
        options += f" --target {shlex.quote(lesson.target)}" if lesson.target else ""
        options += f" --seed {source.seed}" * bool(source.seed) + f" --query {self.walk.query.index}"
        text = visible(shlex.quote(" ".join(self.walk.trace.text.split())))
        command = Text(f"  attn inspect {text} \\\n    {options}", BOLD)
        others = ", ".join(name for name in LESSONS if name != lesson.name)
        prints = "This command prints the numbers of this lesson:"
        rest = f"The other lessons: attn learn --lesson {others}."
        return "an exercise", "", [lesson.exercise, prints, command, rest]

    # --- what they are made of ---

    def _multiplied(
        self,
        row: AttentionRow,
        name: str,
        x: tuple[str, Float[np.ndarray, "K E"]],
        made: Float[np.ndarray, "K D"],
        tokens: Tokens,
        of: str = "",
    ) -> list[RenderableType | str]:
        """Return a matrix, the embeddings, and their product, whose first number is spelled out."""
        matrix = self.walk.weights.heads[row.head.head][name].weight
        drawn = self._drawn(
            self._matrix(f"W_{name}", matrix),
            self._matrix(*x, tokens),
            self._matrix(f"{name}: {x[0].removeprefix('its ')}·W_{name}", made, tokens, False),
        )
        return [drawn, self._product(f"the first number of {name}{of}", x[1][0], matrix[:, 0], made[0, 0])]

    def _product(self, name: str, one: Float[np.ndarray, " N"], other: Float[np.ndarray, " N"], total: Any) -> str:
        pairs = zip(one.tolist(), other.tolist(), strict=True)
        factors = " + ".join(f"{self._factor(a)} × {self._factor(b)}" for a, b in pairs)
        return f"{name} = {factors} = {self._number(total)}"

    @property
    def _word(self) -> str:
        """The word that the lesson follows, and its place where others are called the same."""
        query, tokens = self.walk.query, self.walk.trace.query_tokens
        name = f"'{shortened(query.label, _LONGEST)}'"
        return name if len([token for token in tokens if token.text == query.text]) == 1 else f"{name} ({query.index})"

    def _number(self, value: Any) -> str:
        return self.sheet.number(value)

    def _factor(self, value: Any) -> str:
        return self._number(value) if value >= 0 else f"({self._number(value)})"

    def _prose(self, text: str) -> Text:
        paragraphs = map(visible, text.split("\n"))
        prose = Text("\n".join(line for each in paragraphs for line in wrap(each, min(self.sheet.room, _LINE))))
        prose.highlight_regex(r"(The\sother\slessons:\s)?attn\slearn[^.]*\.", HINT)
        return prose

    @property
    def _pad(self) -> str:
        """Blanks on either side of a number; a wide terminal has room for more."""
        return " " * min(max((self.sheet.room - 100) // 20, 0), 6)

    def _matrix(
        self, title: str, values: Float[np.ndarray, "T D"], tokens: Tokens | None = None, has_names: bool = True
    ) -> Block:
        """Return a matrix on the colours of its numbers; the rows of one to the right of another have no names."""
        is_aloud = self.sheet.palette.is_read_aloud
        rows = [f"{'row ' * is_aloud}{row}" for row in range(len(values))]
        names = rows if tokens is None else [self._marked(one) for one in tokens]
        if is_aloud:
            rows = [", ".join(self.sheet.column(row, range(len(row)))) for row in values]
            above = f"{title.replace(': ', ' = ')}:"  # a product and its name
            return block([Segment(line)] for line in (above, *map(": ".join, zip(names, rows, strict=True))))
        names = names if has_names or self.sheet.room < _BESIDE else [""] * len(values)
        labels, styles = max(map(cell_len, names)), self._styles(values)
        columns = [[text + self._pad for text in self.sheet.column(one, range(len(one)))] for one in values.T]
        width = max(len(text) for column in columns for text in column) + 1 + len(self._pad)
        header = [Segment(" " * labels), *(padded(str(place) + self._pad, width, DIM) for place in range(len(columns)))]
        lines = [[Segment(f"{' ' * labels} {title}", BOLD)], header]
        for row, name in enumerate(names):
            numbers = [padded(column[row], width, styles[row][place]) for place, column in enumerate(columns)]
            lines.append([padded(name, labels, align="<"), *numbers])
        return block(map(trimmed, lines))

    def _styles(self, values: Float[np.ndarray, "T D"]) -> list[list[Style | None]]:
        """Return the colours of numbers: blue above zero, orange below; nothing without colours."""
        palette, scale = self.sheet.palette, Scale.around_zero(float(np.abs(self.walk.embedded).max()))
        cells = palette.cells(values, np.ones(values.shape, bool), scale, 1)
        return [[style if palette.has_color else None for _, style in row] for row in cells]

    def _marked(self, token: Token) -> str:
        mark = "▸" * (token == self.walk.query and not self.sheet.palette.is_read_aloud)
        return f"{token.index} {mark}{shortened(token.label, _LONGEST - len(mark))}"

    def _drawn(self, *matrices: Block) -> Block:
        room = 0 if self.sheet.palette.is_read_aloud else self.sheet.room
        return stack(hstack(line, _GAP) for line in in_lines(matrices, _GAP, room))

    def _column(self, title: str, values: Any, below: str | None = None) -> Column:
        texts = [f"{self._pad}{text}{self._pad}" for text in self.sheet.column(values, range(len(values)))]
        styles = [style for (style,) in self._styles(np.asarray(values)[:, None])]
        more = [] if below is None else [f"{below}{self._pad}"]
        return Column(title + self._pad, [*texts, *more], [*styles, *[BOLD] * len(more)])

    def _vector(
        self, name: str, vectors: Float[np.ndarray, "K D"], total: Float[np.ndarray, " D"] | None = None
    ) -> Iterator[Column]:
        for place in range(vectors.shape[1]):
            below = None if total is None else self._number(total[place])
            yield self._column(f"{name} {place}", vectors[:, place], below)

    def _of_words(self, row: AttentionRow, columns: Sequence[Column], below: str | None = None) -> Block:
        return table(self._with_words(row, columns, below), self.sheet.width, self.sheet.palette)

    def _weighted(self, row: AttentionRow, columns: Sequence[Column]) -> Block:
        parts = row.softmax
        assert parts is not None
        total = self._number(parts.total)
        shown = self._with_words(row, columns, "sum")
        shown.append(self._column(f"e^(masked − {self._factor(parts.highest)})", parts.exponentials, total))
        shown.append(self._column(f"weight: ÷ {total}", row.weights, self._number(row.weights.sum(dtype=np.float64))))
        return self.sheet.with_bars(shown, len(shown), [*row.weights.tolist(), None], 1.0)

    def _with_words(self, row: AttentionRow, columns: Sequence[Column], below: str | None) -> list[Column]:
        names = [self._marked(token) for token in row.keys]
        return [Column("word", [*names, *([] if below is None else [below])], BOLD, "<"), *columns]
