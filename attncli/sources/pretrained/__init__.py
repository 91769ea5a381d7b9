"""Checkpoints: any text model that transformers loads, with the attention it really computed.

Importing this package imports neither torch nor transformers; making a `Checkpoint` does.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from inspect import signature
from time import perf_counter
from typing import Any

from attncli.errors import AttnError, LoadError, NotExposedError, UsageError, require
from attncli.masks.parser import parse
from attncli.sources.options import LoadOptions, checked_options
from attncli.sources.reading import Reader, Sentence
from attncli.text import several, visible
from attncli.trace.selection import Indices
from attncli.trace.trace import Provenance, Trace

_log = logging.getLogger(__name__)


class Checkpoint:
    """A model and its tokenizer, loaded once; see `attncli.sources.stream.Source`."""

    runs_together = True

    def __init__(
        self,
        model: str,
        layers: Indices,
        heads: Indices,
        *,
        kind: str | None,
        mask: str | None,
        special: bool,
        generate: int = 0,
        **options: Any,
    ) -> None:
        self.options = checked_options(
            model, options, LoadOptions, "a checkpoint that transformers runs in several ways"
        )
        require("the transformers engine", "torch", "transformers")
        self.name = model
        expression = None if mask is None else parse(mask, states_true=False)
        if generate and expression is not None:
            raise UsageError("--generate lets the model write under its own mask; drop --mask")
        if sys.flags.optimize > 1:
            raise LoadError("transformers needs the docstrings that python -OO leaves out; run with PYTHONOPTIMIZE=1")
        _log.info("importing torch and transformers for %s", model)
        from attncli.sources.pretrained import loading
        from attncli.sources.pretrained.generation import Writer, check_causal
        from attncli.sources.pretrained.implied import implied_masks
        from attncli.sources.pretrained.recording import Request
        from attncli.sources.pretrained.tokenizer import load_tokenizer

        config = loading.load_config(model, self.options)
        if generate:
            check_causal(model, config)
        self.is_encoder_decoder: bool = config.is_encoder_decoder
        kinds = ("encoder", "decoder", "cross") if self.is_encoder_decoder else ("self",)
        if kind not in (None, *kinds):
            raise UsageError(f"--kind {visible(str(kind))}: {visible(model)} has {', '.join(kinds)} attention")
        self.num_layers = loading.layer_count(config)
        # Before the weights are read.
        chosen = layers.among(self.num_layers, visible(model))
        self.request = Request(chosen, kind, heads, expression, writes=generate > 0)
        self.other_layers = loading.other_layers(config)
        attention_layers = self._attention_layers()
        self.notes = tuple(
            f"layer {index} has {visible(self.other_layers[index])}, no softmax attention; it is not shown"
            for index in self.request.layers
            if index in self.other_layers
        )
        heads.among(loading.head_count(config), f"each layer of {visible(model)}")
        _log.info(
            "%s: %s of %d layers; layer %d is the last to run", model, config.model_type, self.num_layers, max(chosen)
        )
        tokenizer = load_tokenizer(model, self.options)
        whole = self._load(config, attention_layers)
        self.model = whole.base_model if generate else whole
        self.attention_layers = attention_layers
        self.unseen = implied_masks(self.model, attention_layers)  # but for the layers whose mask was complained of
        self.reader = Reader(
            name=model,
            tokenizer=tokenizer,
            special=special,
            limit=loading.position_limit(self.model),
            truncate=self.options.truncate,
            rows=loading.vocabulary_rows(self.model),
            start_id=loading.start_id(model, config, tokenizer) if self.is_encoder_decoder else None,
        )
        self.writer = Writer(model, whole, tokenizer, self.reader.limit, generate) if generate else None

    def _load(self, config: Any, attention_layers: list[int]) -> Any:
        from attncli.sources.pretrained import loading

        model = loading.load_model(self.name, config, self.options, self.request, attention_layers)
        self.notes += loading.notes_of(model)
        return model

    def _attention_layers(self) -> list[int]:
        """Return the layers that have softmax attention, of which one at least has to be asked for."""
        found = [index for index in range(self.num_layers) if index not in self.other_layers]
        if not set(self.request.layers) & set(found):
            kinds = ", ".join(dict.fromkeys(self.other_layers[index] for index in self.request.layers))
            listed = ", ".join(map(str, found)) or "none"
            raise NotExposedError(
                f"the layers asked for have no softmax attention but {kinds}; layers of {visible(self.name)} with "
                f"attention: {listed}"
            )
        return found

    def trace(self, text: str, pair: str | None = None, target: str | None = None) -> Trace:
        """Return the attention of one sentence; see `Source.trace`."""
        return next(self.traces([text], pair, target))

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence, in order; sentences of one length run together.

        Without a target only the encoder of an encoder-decoder runs. A sentence that cannot be read ends the
        iteration with its error, after all those before it.
        """
        from attncli.sources.pretrained import batch

        self.check_target(target)
        if self.is_encoder_decoder and target is None and self.request.kind in ("decoder", "cross"):
            raise UsageError(f"--kind {self.request.kind} needs --target, the text of the decoder")
        sentences: list[Sentence] = []
        failure = None
        limit = batch.MOST_TOKENS
        for text in several(texts):
            try:
                sentence = self.reader.read(text, pair, target)
                if self.writer is not None:
                    sentence = self.writer.continued(sentence)
                longest = max(len(sentence.tokens), len(sentence.query_tokens))
                limit = min(limit, longest * self.room_for(longest))
            except AttnError as error:
                failure = error
                break
            sentences.append(sentence)
        if self.request.mask is not None or "attention_mask" not in self.parameters:
            limit = 1
        for group in batch.groups([self._trace_size(sentence) for sentence in sentences]):
            yield from self._batched(sentences[group], limit)
        if failure is not None:
            raise failure

    def _batched(self, sentences: list[Sentence], limit: int) -> Iterator[Trace]:
        from attncli.sources.pretrained.batch import batches

        done: dict[int, Trace] = {}
        for some in batches([one.inputs for one in sentences], limit):
            done.update(zip(some, self._run([sentences[index] for index in some]), strict=True))
        for index in range(len(sentences)):
            yield done.pop(index)

    def _trace_size(self, sentence: Sentence) -> float:
        from attncli.sources.pretrained.memory import trace_size

        longest = max(len(sentence.tokens), len(sentence.query_tokens))
        layers = len(self.request.layers) * (1 if sentence.target is None else 3)  # encoder, decoder, cross
        # At most: whether the model has to be watched is not known before it has run, and batches, which decide the
        # last bits, are not to depend on what ran before.
        return trace_size(self.model.config, longest, layers, is_watched=True)

    def check_target(self, target: str | None) -> None:
        """Raise UsageError for a target that the model has no decoder for."""
        if target is not None and not self.is_encoder_decoder:
            raise UsageError(
                "--target needs an encoder-decoder model or the toy layer; here use --pair for a second text"
            )

    def room_for(self, tokens: int) -> int:
        """Return how many sentences of one length fit into memory together."""
        from attncli.sources.pretrained.interface import ATTENTION
        from attncli.sources.pretrained.memory import room_for

        is_watched = self.model.config._attn_implementation != ATTENTION
        return room_for(self.model, tokens, len(self.request.layers), is_watched)

    @property
    def parameters(self) -> Any:
        """What the model's forward pass takes, by name."""
        return signature(self.model.forward).parameters

    @property
    def takes_positions(self) -> bool:
        """Whether the model is told where its tokens stand, and does not find it by its padding, as RoBERTa does."""
        from attncli.sources.pretrained.loading import first_position

        return "position_ids" in self.parameters and not first_position(self.model)

    def _run(self, sentences: list[Sentence]) -> list[Trace]:
        """Return the traces of sentences that run side by side."""
        from attncli.sources.pretrained.batch import padded
        from attncli.sources.pretrained.capture import run
        from attncli.sources.pretrained.generation import check_no_future
        from attncli.sources.pretrained.implied import mask_notes

        kinds: tuple[str, ...] = ("self",)
        part = self.model
        if self.is_encoder_decoder:
            kinds = ("encoder",) if sentences[0].target is None else ("encoder", "decoder", "cross")
            part = part if len(kinds) > 1 else part.get_encoder()
        given = [one.inputs for one in sentences]
        inputs, spans, whole = padded(given, self.reader.padding_id, "right", self.takes_positions)
        begun = perf_counter()
        recorded = run(self.model, part, inputs, self.request, self.attention_layers, kinds, spans, whole)
        shape = inputs["input_ids"].shape
        _log.info("ran a batch of %d × %d tokens in %.3f s", *shape, perf_counter() - begun)
        others = [{"layer": index, "kind": kind} for index, kind in self.other_layers.items()]
        source = Provenance(
            "pretrained",
            model=self.name,
            architecture=self.model.config.model_type,
            dtype=str(self.model.dtype).removeprefix("torch."),
            device=str(self.model.device),
            layers=self.num_layers,
            details={"engine": "transformers"} | ({"other_layers": others} if others else {}),
            notes=self.notes,
        )
        traces = []
        for one, own in zip(sentences, recorded.traces(), strict=True):
            notes = one.notes
            if self.request.mask is None:
                notes += mask_notes(own, self.unseen)
            if one.generated:
                check_no_future(self.name, own, one.generated)
            sides = (one.query_tokens, one.tokens, own, one.text, one.pair, one.target)
            traces.append(Trace(source, *sides, notes, one.generated))
        return traces
