"""A checkpoint as transformers loads it, which computes the attention of one sentence after another."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter, signature
from time import perf_counter
from typing import Any, Self

from attncli.checkpoints.options import LoadOptions
from attncli.checkpoints.snapshot import Snapshot
from attncli.encoding import auto_tokenizer
from attncli.encoding.chat import open_chat
from attncli.encoding.encode import EncodedInput, InputEncoder
from attncli.engines.predictor import Predictor
from attncli.engines.source import ON_REQUEST, ModelRequest, OpenCheckpoint
from attncli.engines.torch import batch, load
from attncli.engines.torch.configuration import attention_layers, head_count, instead, layer_count, other_layers
from attncli.engines.torch.predictor import CutRuns, check_causal, check_no_future, continued
from attncli.engines.torch.recorder import PaddedBatch, RecordRequest, record
from attncli.engines.torch.text_model import TextModel, find_text_model
from attncli.errors import AttnError, LoadError, NotExposedError, UsageError
from attncli.masks.expressions import Expression
from attncli.text import as_list, visible
from attncli.trace.trace import Provenance, Trace

_log = logging.getLogger(__name__)


class Checkpoint(OpenCheckpoint):
    """A model and its tokenizer, loaded once; see `open_source` for the options and `source.Source` for the methods.

    Raises:
        UsageError: there is no such layer, head or kind.
        LoadError: it cannot be loaded.
        NotExposedError: it has no attention to show, or generates no text.
    """

    can_batch = True
    reads: Mapping[str, str] = {}  # other inputs than text, for the source of a trace
    parallel_from = ON_REQUEST

    def __init__(self, snapshot: Snapshot, request: ModelRequest, options: LoadOptions) -> None:
        self.kind, generate = request.kind, request.generate
        if generate and request.mask is not None:
            raise UsageError("--generate uses the model's own mask; drop --mask")
        # All checks of the configuration come before the weights are read.
        self.snapshot, self.part = snapshot, self.find_part(snapshot, options)
        self.name, self.options, self._generate = snapshot.name, options, generate
        model, config = self.name, self.part.config
        if generate:
            check_causal(model, self.part)
        self.is_encoder_decoder = config.is_encoder_decoder
        self.kinds = ("encoder", "decoder", "cross") if self.is_encoder_decoder else ("self",)
        if self.kind not in (None, *self.kinds):
            has = f"{visible(model)} has {', '.join(self.kinds)} attention"
            raise UsageError(f"--kind {visible(str(self.kind))}: {has}")
        self.num_layers = layer_count(config)
        layers = request.layers.resolve(self.num_layers, visible(model))
        self.request = RecordRequest(layers, self.kind, request.heads, request.mask)
        self.attention_layers, self.other_layers = attention_layers(config), other_layers(config)
        missing = {index: self.other_layers[index] for index in self.request.layers if index in self.other_layers}
        if len(missing) == len(self.request.layers):
            kinds, listed = ", ".join(dict.fromkeys(missing.values())), ", ".join(map(str, self.attention_layers))
            there = f"layers of {visible(model)} with attention: {listed or 'none'}"
            raise NotExposedError(f"the layers asked for have no softmax attention but {kinds}; {there}")
        request.heads.resolve(head_count(config), f"each layer of {visible(model)}")
        what, last = self.part.architecture, max(self.request.layers)
        _log.info("%s: %s of %d layers; layer %d is the last to run", model, what, self.num_layers, last)
        reader = self.open_reader(request.special, asks=generate > 0)
        self.whole, of_weights, self._form = load.load_model(snapshot, self.part, options, self.request, generate > 0)
        text_part = self.whole.get_submodule(self.part.path)
        self.model = text_part.base_model if generate else text_part
        unshown = (f"layer {index} has {instead(kind)}; it is not shown" for index, kind in missing.items())
        self.notes = (*unshown, *of_weights)
        self.encoder = reader(self.model)

    def find_part(self, snapshot: Snapshot, options: LoadOptions) -> TextModel:
        """Return the part of a checkpoint that runs; see `find_text_model`."""
        return find_text_model(snapshot, options)

    def open_reader(self, special: bool, asks: bool) -> Callable[[Any], InputEncoder]:
        """Load the tokenizer, before the weights; return a function from the model to the encoder."""
        tokenizer = auto_tokenizer.load_tokenizer(self.snapshot, self.options, self.part.whole)
        chat = open_chat(self.name, tokenizer, self.options, special=special, asks=asks)
        start = getattr(self.part.config, "decoder_start_token_id", None) if self.is_encoder_decoder else None
        ids = range(2**31) if self.options.ids else tokenizer.get_vocab().values()
        if start is not None and (type(start) is not int or start not in ids):
            shown = f"{visible(self.name)} starts its decoder with {visible(repr(start)[:50])}"
            raise LoadError(f"the configuration of {shown}; expected the id of a token as decoder_start_token_id")

        def with_limits(model: Any) -> InputEncoder:
            limit, rows = load.limits(model)
            return InputEncoder(self.name, tokenizer, special, limit, self.options.truncate, rows, start, chat)

        return with_limits

    def batched(self, sentences: Sequence[EncodedInput], side: str = "right") -> PaddedBatch:
        """Return sentences as a batch for the model, padded on a side."""
        inputs = [sentence.inputs for sentence in sentences]
        return batch.padded(inputs, self.encoder.padding_id, side, self.takes_positions)

    def with_mask(self, mask: Expression | None) -> Self:
        """Return the same model under another mask, writing no tokens; see `OpenModel.with_mask`."""
        other = super().with_mask(mask)
        other._generate, other.request = 0, replace(self.request, mask=mask)
        return other

    def predictor(self) -> Predictor:
        """Return the predictor of next tokens, of a model that was loaded to generate; see `OpenModel.predictor`."""
        if not self._generate:
            raise NotExposedError("next tokens need the native engine and a causal language model, such as -m demo")
        heads = head_count(self.part.config)
        run = CutRuns(self.name, self.whole, self.model, heads)
        return Predictor(self.provenance(), self.encoder, self.num_layers, heads, run)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Parameters of the model's forward pass, by name."""
        return signature(self.model.forward).parameters

    @property
    def takes_positions(self) -> bool:
        """Whether the model takes the positions of its tokens, and infers none from the padding, as RoBERTa does."""
        return "position_ids" in self.parameters and not load.first_position(self.model)

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence, in order; sentences of one length run together; see `Source.traces`.

        Without a target only the encoder of an encoder-decoder runs.
        """
        texts = [*as_list(texts)]
        if self.reads and len(texts) > 1:  # one picture at a time is in memory
            for text in texts:
                yield from self.traces([text], pair, target)
            return
        sentences: list[EncodedInput] = []
        failure = None
        try:
            for text in texts:
                sentence = self.encode(text, pair, target)
                if self._generate:
                    sentence = continued(self.whole, self.model, self.encoder, sentence, self._generate)
                sentences.append(sentence)
        except AttnError as error:
            failure = error
        is_single = self.request.mask is not None or "attention_mask" not in self.parameters
        # The bytes of scores and weights, for a pair of tokens.
        size = 8.0 * len(self.request.layers) * len(self.kinds) * head_count(self.part.config)
        done: dict[int, Trace] = {}
        count = 0
        limit = 1 if is_single else batch.MOST_TOKENS
        for indices in batch.batches([sentence.inputs for sentence in sentences], limit, size):
            done.update(zip(indices, self._run([sentences[index] for index in indices]), strict=True))
            while count in done:
                yield done.pop(count)
                count += 1
        if failure is not None:
            raise failure

    def _run(self, sentences: list[EncodedInput]) -> list[Trace]:
        part, kinds = self.whole if self.part.is_whole else self.model, self.kinds
        if self.is_encoder_decoder and sentences[0].target is None:
            part, kinds = self.model.get_encoder(), ("encoder",)
        together = self.batched(sentences)
        begun = perf_counter()
        recorded = record(self.model, part, together, self.request, kinds)
        size = len(sentences), together.whole.text.stop
        _log.info("ran a batch of %d × %d tokens in %.3f s", *size, perf_counter() - begun)
        source = self.provenance()
        traces = []
        for item, layers in zip(sentences, recorded.traces(), strict=True):
            if item.generated:
                check_no_future(self.name, layers, item.generated)
            sides = (item.query_tokens, item.tokens, layers, item.text, item.pair, item.target)
            traces.append(Trace(source, *sides, item.notes, item.generated, pictures=item.pictures, grids=item.grids))
        return traces

    def provenance(self) -> Provenance:
        """Return the source of the traces."""
        missing = [{"layer": index, "kind": kind} for index, kind in self.other_layers.items()]
        return Provenance(
            "pretrained",
            model=self.name,
            architecture=self.part.architecture,
            dtype=str(self.model.dtype).removeprefix("torch."),
            device=str(self.model.device),
            layers=self.num_layers,
            details={
                "engine": "transformers",
                **self.snapshot.details,
                **({"weights": self._form} if self._form else {}),
                **({"stored": stored} if (stored := _stored_type(self.snapshot.config)) else {}),
                **({"experts": experts} if (experts := _expert_count(self.model.config.to_dict())) > 1 else {}),
                **({} if self.part.tower is None else {"tower": self.part.tower}),
                **self.reads,
                **({"other_layers": missing} if missing else {}),
            },
            notes=self.notes,
        )


def _expert_count(config: Mapping[str, Any]) -> int:
    """Return how many experts a layer has; the field has another name in each family."""
    counts = (value for name, value in config.items() if "expert" in name and "per_tok" not in name)
    return max((count for count in counts if isinstance(count, int)), default=0)


def _stored_type(config: Mapping[str, Any]) -> str:
    """Return the type of number of the weights in their files; empty if it is not stated."""
    stated = config.get("dtype") or config.get("torch_dtype")
    return stated if isinstance(stated, str) else ""
