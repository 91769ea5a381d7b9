"""Checkpoints: any text model that transformers loads, with the attention it really computed.

Importing this package imports neither torch nor transformers; making a `Checkpoint` does.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from attncli.errors import InputError, LoadError, NotExposedError, UsageError
from attncli.masks.parser import parse
from attncli.selection import Indices
from attncli.sources.options import refuse_unknown
from attncli.sources.texts import check_texts
from attncli.sources.vocabulary import tokens_of, unknown_notes
from attncli.tokens import Token, Tokens, visible
from attncli.trace import Source, Trace

DTYPES = ("auto", "float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class LoadOptions:
    """How a checkpoint is loaded; the fields are the command's options.

    Attributes:
        revision: branch, tag or commit on the hub.
        dtype: of the weights; None is float32 on the CPU and the checkpoint's own on an accelerator.
        device: where it runs.
        offline: use the local cache only.
        trust_remote_code: run the Python code that the checkpoint brings.
        allow_pickle: read .bin weights too, with torch's restricted unpickler.
    """

    revision: str | None = None
    dtype: str | None = None
    device: str = "cpu"
    offline: bool = False
    trust_remote_code: bool = False
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        """Refuse an unknown dtype before anything is loaded."""
        if self.dtype not in (None, *DTYPES):
            raise UsageError(f"--dtype '{visible(str(self.dtype))}': expected one of {', '.join(DTYPES)}")


class Checkpoint:
    """A model and its tokenizer, loaded once; see `attncli.sources.Source`."""

    def __init__(
        self,
        model: str,
        layers: Indices,
        heads: Indices,
        *,
        kind: str | None,
        mask: str | None,
        special: bool,
        **options: Any,
    ) -> None:
        refuse_unknown(options, LoadOptions, "--model; it belongs to the toy layer")
        if not isinstance(model, str):
            raise UsageError("model: expected a checkpoint's folder or its name on the hub, as text")
        if os.path.isdir(model) and "revision" in options:
            raise UsageError("--revision names a version on the hub; it does not apply to a folder")
        self.name = model
        self.special = special
        self.options = LoadOptions(**options)
        expression = None if mask is None else parse(mask)
        from attncli.sources.pretrained import loading
        from attncli.sources.pretrained.capture import Request, attention_kinds

        config = loading.load_config(model, self.options)
        self.is_encoder_decoder: bool = config.is_encoder_decoder
        kinds = ("encoder", "decoder", "cross") if self.is_encoder_decoder else ("self",)
        if kind not in (None, *kinds):
            raise UsageError(f"--kind {visible(str(kind))}: {visible(model)} has {', '.join(kinds)} attention")
        self.num_layers = loading.layer_count(config)
        # Before the weights are read.
        self.request = Request(layers.among(self.num_layers, visible(model)), kind, heads, expression)
        self.other_layers = loading.other_layers(config)
        attention_layers = [i for i in range(self.num_layers) if i not in self.other_layers]
        if not set(self.request.layers) & set(attention_layers):
            kinds_there = ", ".join(dict.fromkeys(self.other_layers[index] for index in self.request.layers))
            listed = ", ".join(map(str, attention_layers)) or "none"
            raise NotExposedError(
                f"the layers asked for have no softmax attention but {kinds_there}; layers of {visible(model)} with "
                f"attention: {listed}"
            )
        heads.among(config.num_attention_heads, f"each layer of {visible(model)}")
        self.limit = loading.position_limit(config)
        self.tokenizer = loading.load_tokenizer(model, self.options)
        self.model = loading.load_model(model, config, self.options)
        # Shared layers run several times, so only an encoder-decoder's modules are counted.
        self.kinds = attention_kinds(self.model)
        self.places: dict[str, Sequence[int]] = {"self": attention_layers}
        if self.is_encoder_decoder:
            self.places = {kind: range(count) for kind, count in Counter(self.kinds.values()).items()}

    def trace(self, text: str, pair: str | None = None, target: str | None = None) -> Trace:
        """Return the attention of one sentence; see `Source.trace`.

        Without a target only the encoder of an encoder-decoder runs.
        """
        from attncli.sources.pretrained.capture import run

        check_texts(text, pair, target)
        if target is not None and not self.is_encoder_decoder:
            raise UsageError(
                "--target needs an encoder-decoder model or the toy layer; here use --pair for a second text"
            )
        encoding = self._encode(text, pair)
        tokens = self._checked(tokens_of(encoding.encodings[0]), "the sentence")
        notes = self._unknown(tokens, text, pair)
        model, places, query_tokens = self.model, self.places, tokens
        inputs = dict(encoding)
        if target is not None:
            query_tokens = self._checked(self._decoder_tokens(target), "the target")
            notes += self._unknown(query_tokens, target, None)
            inputs["decoder_input_ids"] = encoding["input_ids"].new_tensor([query_tokens.ids])
        elif self.is_encoder_decoder:
            model, places = self.model.get_encoder(), {"encoder": self.places["encoder"]}
            if self.request.kind in ("decoder", "cross"):
                raise UsageError(f"--kind {self.request.kind} needs --target, the text of the decoder")
        layers = run(model, inputs, self.request, self.kinds, places)
        others = [{"layer": index, "kind": kind} for index, kind in self.other_layers.items()]
        source = Source(
            "pretrained",
            model=self.name,
            architecture=self.model.config.model_type,
            dtype=str(self.model.dtype).removeprefix("torch."),
            device=str(self.model.device),
            layers=self.num_layers,
            details={"other_layers": others} if others else {},
        )
        return Trace(source, query_tokens, tokens, layers, text, pair, target, notes)

    def _checked(self, tokens: Tokens, role: str) -> Tokens:
        """Return tokens that the model has positions and embeddings for."""
        if self.limit is not None and len(tokens) > self.limit:
            raise InputError(
                f"{role} has {len(tokens)} tokens, {visible(self.name)} reads at most {self.limit}; shorten it"
            )
        rows = self.model.get_input_embeddings().num_embeddings
        if max(token.id for token in tokens) >= rows:
            raise LoadError(
                f"the tokenizer of {visible(self.name)} has ids beyond the {rows} rows of the model's vocabulary; "
                "they do not belong together"
            )
        return tokens

    def _unknown(self, tokens: Tokens, text: str, pair: str | None) -> tuple[str, ...]:
        return unknown_notes((text, pair), tokens, self.tokenizer.unk_token_id, self.tokenizer.unk_token)

    def _decoder_tokens(self, target: str) -> Tokens:
        """Return what the decoder reads when it is to write the target: the start token, then all but the last."""
        encoding = self.tokenizer(text_target=target, add_special_tokens=self.special, truncation=False, verbose=False)
        tokens = list(tokens_of(encoding.encodings[0]))
        start = self.model.config.decoder_start_token_id
        if not self.special or start is None:
            return Tokens(tokens)
        if tokens[-1].id == self.tokenizer.eos_token_id:
            tokens.pop()
        first = Token(0, start, self.tokenizer.convert_ids_to_tokens(start), None, None, special=True)
        return Tokens(replace(token, index=index) for index, token in enumerate([first, *tokens]))

    def _encode(self, text: str, pair: str | None) -> Any:
        return self.tokenizer(
            text,
            pair,
            add_special_tokens=self.special,
            truncation=False,
            padding=False,
            return_tensors="pt",
            verbose=False,  # a text that is too long is refused by us, with the numbers
        )
