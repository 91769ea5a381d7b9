"""Checkpoints: any text model that transformers loads, with the attention it really computed.

Importing this package imports neither torch nor transformers; making a `Checkpoint` does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from attncli.errors import InputError, LoadError, UsageError
from attncli.masks.parser import parse
from attncli.selection import Indices
from attncli.sources.options import refuse_unknown
from attncli.sources.texts import check_texts
from attncli.sources.vocabulary import tokens_of, unknown_notes
from attncli.tokens import Tokens, visible
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
        self, model: str, layers: Indices, heads: Indices, *, mask: str | None, special: bool, **options: Any
    ) -> None:
        refuse_unknown(options, LoadOptions, "--model; it belongs to the toy layer")
        if not isinstance(model, str):
            raise UsageError("model: expected a checkpoint's folder or its name on the hub, as text")
        if os.path.isdir(model) and "revision" in options:
            raise UsageError("--revision names a version on the hub; it does not apply to a folder")
        self.name = model
        self.special = special
        self.mask = None if mask is None else parse(mask)
        self.options = LoadOptions(**options)
        from attncli.sources.pretrained import loading

        config = loading.load_config(model, self.options)
        self.layers = layers.among(config.num_hidden_layers, visible(model))
        self.heads = heads
        heads.among(config.num_attention_heads, f"each layer of {visible(model)}")  # before the weights are read
        self.num_layers: int = config.num_hidden_layers
        self.limit = loading.position_limit(config)
        self.tokenizer = loading.load_tokenizer(model, self.options)
        self.model = loading.load_model(model, config, self.options)

    def trace(self, text: str, pair: str | None = None, target: str | None = None) -> Trace:
        """Return the attention of one sentence; see `Source.trace`."""
        from attncli.sources.pretrained.capture import run

        if target is not None:
            raise UsageError(
                "--target needs an encoder-decoder model or the toy layer; here use --pair for a second text"
            )
        check_texts(text, pair)
        encoding = self._encode(text, pair)
        tokens: Tokens = tokens_of(encoding.encodings[0])
        if self.limit is not None and len(tokens) > self.limit:
            raise InputError(
                f"the sentence has {len(tokens)} tokens, {visible(self.name)} reads at most {self.limit}; shorten it"
            )
        rows = self.model.get_input_embeddings().num_embeddings
        if max(token.id for token in tokens) >= rows:
            raise LoadError(
                f"the tokenizer of {visible(self.name)} has ids beyond the {rows} rows of the model's vocabulary; "
                "they do not belong together"
            )
        layers = run(self.model, encoding, self.layers, self.heads, self.num_layers, self.mask)
        config = self.model.config
        source = Source(
            "pretrained",
            model=self.name,
            architecture=config.model_type,
            dtype=str(self.model.dtype).removeprefix("torch."),
            device=str(self.model.device),
            layers=self.num_layers,
        )
        notes = unknown_notes((text, pair), tokens, self.tokenizer.unk_token_id, self.tokenizer.unk_token)
        return Trace(source, tokens, tokens, layers, text, pair, None, notes)

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
