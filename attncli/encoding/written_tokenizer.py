"""The tokenizer of a model that was exported: read without transformers, as those who run it do."""

from __future__ import annotations

from attncli.checkpoints.options import LoadOptions
from attncli.checkpoints.snapshot import Snapshot
from attncli.encoding.encode import IdTokenizer, InputEncoder
from attncli.encoding.fast_tokenizer import AFTER_PADDING, NAMES, NativeTokenizer, read_tokenizer
from attncli.errors import LoadError, UsageError
from attncli.text import visible


def open_encoder(snapshot: Snapshot, special: bool, options: LoadOptions, reads_pictures: bool) -> InputEncoder:
    """Return the encoder of texts or pictures for an exported model; LoadError without a tokenizer.json."""
    if reads_pictures != (getattr(options, "tower", None) == "vision"):
        pictures = "pictures; give --image FILE without a text, or attn check --against CHECKPOINT"
        reads = pictures if reads_pictures else "texts; give a text"
        raise UsageError(f"the graph of {visible(snapshot.name)} reads {reads}")
    if reads_pictures:
        from attncli.encoding.pixels import open_picture_encoder

        return open_picture_encoder(snapshot)
    start, limit = snapshot.config.get("decoder_start_token_id"), position_limit(snapshot)
    start = start if type(start) is int else None
    tokenizer = load_alone(snapshot, options)
    return InputEncoder(snapshot.name, tokenizer, special, limit, options.truncate, start_id=start).with_chat(options)


def position_limit(snapshot: Snapshot) -> int | None:
    """Return how many tokens an exported model reads at most, by its configuration; None where that has no limit."""
    config = snapshot.config
    limits = (config.get(name) for name in ("max_position_embeddings", "n_positions"))
    before = config.get("pad_token_id", 1) + 1 if config.get("model_type") in AFTER_PADDING else 0
    return next((limit - before for limit in limits if type(limit) is int and limit > before), None)


def load_alone(snapshot: Snapshot, options: LoadOptions) -> NativeTokenizer | IdTokenizer:
    """Read tokenizer.json as it is, as those who run the model do; LoadError without one."""
    if options.ids:
        return IdTokenizer()
    name, files = snapshot.name, snapshot.tokenizer
    if "tokenizer.json" not in files:
        advice = "put it beside config.json, name another with --tokenizer, or give --ids"
        raise LoadError(f"{visible(name)} has no tokenizer.json; {advice}")
    tokenizer = read_tokenizer(files.path / "tokenizer.json", visible(name))
    tokenizer.no_padding()
    fields = files.read_json("special_tokens_map.json") | files.read_json("tokenizer_config.json")
    texts = {key: value.get("content") if type(value) is dict else value for key, value in fields.items()}
    tokens = {key: text for key, text in texts.items() if key in NAMES and type(text) is str and text}
    side = "left" if fields.get("truncation_side") == "left" else "right"
    return NativeTokenizer(tokenizer, tokens, ["attention_mask", "token_type_ids"], side, fields.get("chat_template"))
