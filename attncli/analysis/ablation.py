"""Predictions without a head, or without some edges: an outcome before and after a cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.attention import row_blocks
from attncli.checkpoints.options import Choice, EngineOptions, with_explicit_signature
from attncli.encoding.encode import EncodedInput, InputEncoder, check_texts
from attncli.engines.predictor import Cut, Kind, Measure, Predictor, Replacement
from attncli.engines.source import parse_mask
from attncli.errors import InputError, InputMismatchError, Metadata, UsageError
from attncli.masks.expressions import And, Expression, RuleMask
from attncli.text import plural, visible
from attncli.trace.display import Displayed, Tabular
from attncli.trace.selection import RowRange, head_places
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Provenance

if TYPE_CHECKING:
    from jaxtyping import Int

HeadPlace = tuple[int, int]  # a layer, and a head in it


class HeadEffect(NamedTuple):
    """Outcome of a prediction without one head."""

    layer: int  # index of the head's layer
    head: int  # its index
    after: float  # the outcome with this head cut
    change: float  # after − before
    # what the head adds to the outcome more than what replaces it; None for a loss, and from the transformers engine
    direct: float | None


class EdgeCount(NamedTuple):
    """Edges of one head."""

    cut: int  # how many it has lost
    total: int  # how many the model's own mask gives it


@dataclass(frozen=True)
class Ablation(Displayed, Tabular):
    """Outcome of a prediction with and without heads or edges; a notebook shows it as `attn ablate` does."""

    source: Provenance  # what was run
    tokens: Tokens  # of the sentence
    kind: Kind  # `logprob`, `difference` or `loss`
    next: Token | None  # the next token that is measured; None for a loss
    against: Token | None  # the token whose logit is subtracted; None for a log-probability or a loss
    targets: tuple[int, ...]  # positions of the tokens whose mean loss is measured; empty without
    choice: AblationChoice  # what was cut, and what stands in its place
    cut: tuple[HeadPlace, ...]  # the heads that were cut, by layer and head
    before: float  # the outcome with nothing cut: nats, or for a difference logits
    after: float | None  # the outcome with all of them cut together; None where each was cut alone
    direct: float | None  # what they add to the outcome by themselves, where they are of one layer; see `HeadEffect`
    heads: tuple[HeadEffect, ...]  # what each head does that was cut alone
    # how many edges each head of `cut` has lost, of how many that its layer's mask has; None where heads were cut
    edges: tuple[EdgeCount, ...] | None
    text: str  # the sentence
    pair: str | None  # the second text of the same sequence
    notes: tuple[str, ...] = ()  # what the user should know, a sentence each
    metadata: Metadata = field(default_factory=dict)  # what the file of its sentence says besides, by names

    @property
    def change(self) -> float | None:
        """After − before; None where each head was cut alone."""
        return None if self.after is None else self.after - self.before

    @property
    def measured(self) -> dict[str, Token | None]:
        """The next token, and the one it is compared with, as far as there are any."""
        return {"next": self.next, "against": self.against}

    def ranked(self) -> list[HeadEffect]:
        """Return the heads that were cut alone, those that change the outcome most first."""
        return sorted(self.heads, key=lambda head: -abs(head.change))

    def __repr__(self) -> str:
        what = f"{self.before:.4g}" + ("" if self.after is None else f" → {self.after:.4g}")
        return f"Ablation({self.kind} {what}, {plural(len(self.cut), 'head')} cut{' alone' if self.heads else ''})"


@dataclass(frozen=True)
class AblationChoice:
    """Choice of the cut, of its replacement and of the measure, as a user spells it; see `ablate`."""

    next: str | None = None
    against: str | None = None
    loss: str | None = None
    layer: Choice = None
    head: Choice = None
    each: bool = False
    edges: str | None = None
    with_: str = "zero"

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if self.loss is not None and (self.next is not None or self.against is not None):
            named = "next" if self.next is not None else "against"
            raise UsageError(f"--loss measures tokens of the text, and --{named} the one after it; drop one of them")
        if self.edges is not None and self.with_ != "zero":
            raise UsageError("--with replaces outputs of heads, and --edges masks keys; drop one of them")
        if not self.with_.strip():
            raise UsageError("--with is empty; give zero, mean, or a text of as many tokens")
        self.expression()

    @property
    def is_each(self) -> bool:
        """Whether every head is cut alone."""
        return self.each or (self.layer is None and self.head is None and self.edges is None)

    def expression(self) -> Expression | None:
        """Return the edges that are left; UsageError if they cannot be read."""
        return parse_mask(self.edges)


@with_explicit_signature(EngineOptions)
def ablate(
    text: str,
    model: str = "demo",
    *,
    next: str | None = None,  # noqa: A002  as `--next`
    against: str | None = None,
    loss: str | None = None,
    layer: Choice = None,
    head: Choice = None,
    each: bool = False,
    edges: str | None = None,
    with_: str = "zero",
    pair: str | None = None,
    special: bool = True,
    **options: Any,
) -> Ablation:
    """Return what a causal language model's prediction is with heads or edges cut, and without.

        found = attncli.ablate("one two three four one two", "demo", each=True)
        found.before, found.ranked()[0]
        attncli.ablate("one two three four one two", "demo", head="2.3").change

    Args:
        text: the sentence.
        model: a checkpoint's folder or hub name, or `demo`.
        next: the next token whose log-probability is measured; None is the model's own first choice.
        against: a token whose logit is subtracted from that of the next one, in place of the log-probability.
        loss: the tokens of the text whose mean loss is measured instead: a token, an index, `50:`, or `all`.
        layer: the layers to cut; None is all of them.
        head: the heads to cut, also as `18.6,17.3`; None is all of each layer.
        each: cut every head alone; also where neither layers, heads nor edges are chosen.
        edges: a mask expression of the keys that each query keeps, such as `~keys(0,1)`.
        with_: what stands in the place of a head's output: `zero`, `mean`, or a text of as many tokens.
        pair: a second text in the same sequence.
        special: whether the tokenizer adds its special tokens.
        options: how the checkpoint is loaded: `engine`, `offline`, `dtype`, and others.

    Raises:
        AttnError: one sentence that says what was expected, what came and what to do.
    """
    from attncli.engines.engine import open_predictor

    choice = AblationChoice(next, against, loss, layer, head, each, edges, with_)
    return ablation(open_predictor(model, special=special, **options), choice, text, pair)


def ablation(predictor: Predictor, choice: AblationChoice, text: str, pair: str | None = None) -> Ablation:
    """Return the effect of cuts on the prediction of one sentence.

    Raises:
        AttnError: there is no such head, the sentence cannot be read, or the engine cannot cut that.
    """
    source, encoder = predictor.source, predictor.encoder
    places = head_places(choice.layer, choice.head, (predictor.layers, predictor.heads), visible(source.model or ""))
    check_texts(None, pair)
    sentence = encoder.encode(text, pair, None)
    measure, replacement = _measure(encoder, sentence, choice), _replacement(encoder, sentence, choice)
    together: dict[int, tuple[int, ...]] = {}
    for layer, head in places:
        together[layer] = (*together.get(layer, ()), head)
    cuts: list[Cut] = [{layer: (head,)} for layer, head in places] if choice.is_each else [together]
    effects = predictor.effects(sentence, cuts, replacement, measure)
    if not np.isfinite(effects.before):
        raise InputError("the model's prediction is not finite")
    following, against = (*(predictor.token(sentence, id_) for id_ in effects.measure.tokens), None, None)[:2]
    if against is not None and following == against:
        by = "" if choice.next is not None else ", the model's own first choice"
        raise InputError(f"--against '{visible(against.label)}' is the next token itself{by}; give another token")
    of_each = zip(places, effects.after, effects.direct, strict=True) if choice.is_each else ()
    edges, note = None, ""
    if replacement.edges is not None:
        edges, note = _count_edges(predictor, replacement.edges, places, len(sentence.tokens))
    return Ablation(
        source=source,
        tokens=sentence.tokens,
        kind=measure.kind,
        next=following,
        against=against,
        targets=measure.targets,
        choice=choice,
        cut=tuple(places),
        before=effects.before,
        after=None if choice.is_each else effects.after[0],
        direct=None if choice.is_each else effects.direct[0],
        heads=tuple(HeadEffect(*head, after, after - effects.before, direct) for head, after, direct in of_each),
        edges=edges,
        text=sentence.text,
        pair=sentence.pair,
        notes=(*sentence.notes, *filter(None, [note])),
    )


def _measure(encoder: InputEncoder, sentence: EncodedInput, choice: AblationChoice) -> Measure:
    if choice.loss is None:
        following = None if choice.next is None else token_id(encoder, choice.next, "next")
        return Measure(following, None if choice.against is None else token_id(encoder, choice.against, "against"))
    tokens, rows = sentence.tokens, RowRange.of("0:" if choice.loss == "all" else choice.loss)
    chosen = tokens.find(choice.loss, "loss") if rows is None else rows.among(len(tokens))
    targets = tuple(index for index in chosen if index > 0)
    if not targets:
        last = len(tokens) - 1
        raise InputMismatchError(
            f"--loss {visible(choice.loss)} names no predicted token; the model predicts tokens 1 to {last}, "
            "each from those before it"
        )
    return Measure(targets=targets)


def token_id(encoder: InputEncoder, text: str, option: str) -> int:
    """Return the id of the token that a text is, behind a space where it begins with one, or with `␣`.

    Raises:
        InputError: it is several tokens.
    """
    text = text.replace("␣", " ")
    tokenizer = encoder.tokenizer
    ids = tokenizer(text, None, add_special_tokens=False, padding=False, verbose=False)["input_ids"]
    if len(ids) == 1:
        return int(ids[0])
    if text in (names := tokenizer.get_vocab()):
        return int(names[text])
    pieces = " ".join(str(tokenizer.convert_ids_to_tokens(id_)) for id_ in ids[:8])
    why = f"it is {plural(len(ids), 'token')}: {visible(pieces)}" if ids else "it is no token"
    raise InputError(f"--{option} '{visible(text)}': {why}; give one of the vocabulary")


def _replacement(encoder: InputEncoder, sentence: EncodedInput, choice: AblationChoice) -> Replacement:
    if choice.edges is not None:
        return Replacement("edges", edges=choice.expression())
    if choice.with_ in ("zero", "mean"):
        return Replacement("zero" if choice.with_ == "zero" else "mean")
    reference = encoder.encode(choice.with_, None, None)
    ours, theirs = len(sentence.tokens), len(reference.tokens)
    if ours != theirs:
        counts = f"has {plural(theirs, 'token')}, and the sentence {ours}"
        raise InputMismatchError(
            f"--with '{visible(choice.with_)}' {counts}; give zero, mean, or a text of as many tokens"
        )
    return Replacement("text", reference)


def _count_edges(
    predictor: Predictor, edges: Expression, places: Sequence[HeadPlace], tokens: int
) -> tuple[tuple[EdgeCount, ...], str]:
    """Return how many edges of its layer's mask each head loses, and a note where no edge is cut, or no key is left."""

    def key_counts(*masks: Expression) -> Int[np.ndarray, "#H Q"]:
        rule = RuleMask(And(masks), tokens, tokens, predictor.heads)
        blocks = row_blocks(np.arange(tokens), tokens * predictor.heads)
        return np.concatenate([rule.rows([*range(rule.heads)], rows).sum(axis=-1) for rows in blocks], axis=-1)

    both = {mask: (key_counts(mask), key_counts(mask, edges)) for mask in {*predictor.masks}}
    counts, without_key = [], np.zeros(tokens, bool)
    for layer, head in places:
        uncut, left = both[predictor.masks[layer]]
        total, keys = int(uncut[head % len(uncut)].sum()), left[head % len(left)]
        counts.append(EdgeCount(total - int(keys.sum()), total))
        without_key |= keys == 0
    note = ""
    if not any(count.cut for count in counts):
        note = f"--edges {visible(str(edges))} allows every key, so nothing is cut"
    elif bare := int(without_key.sum()):
        note = f"{'queries' if bare > 1 else 'query'} without a key: {bare}; the heads give zero there"
    return tuple(counts), note
