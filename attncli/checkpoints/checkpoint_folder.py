"""Files of a checkpoint's folder or of huggingface_hub's local cache, and the fields of its configuration.

No file outside the folder is read, nor one that could keep a reader waiting for ever (a pipe, a device). The cache is
found without importing that library: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from attncli.checkpoints import is_checkpoint
from attncli.errors import LoadError
from attncli.files import MOST_SETTINGS, MOST_TEXT, Tensors, read_file
from attncli.text import visible
from attncli.trace.selection import MOST_LAYERS

MOST_ENTRIES = 1000  # of a folder that are searched
DEMOS = {"demo": "a small model in the box", "demo-vision": "a small model in the box that sees"}
CONFIG = "config.json"
WEIGHTS = "model.safetensors"  # of a checkpoint whose weights are in one file
WEIGHTS_INDEX = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
LORA = "LORA"  # the kind of adapter that is read, as peft_type names it
TEMPLATE = "chat_template.jinja"
TEMPLATES = "additional_chat_templates"  # the one folder of a checkpoint's in which transformers reads any file
# Endings of files that are read whole: settings, vocabularies, templates, code.
TEXTS = (
    ".json", ".txt", ".model", ".jinja", ".py", ".tiktoken", ".vocab", ".spm", ".bpe", ".codes", ".tokenizer",
)  # fmt: skip


class CheckpointFolder:
    """The files of a folder, each read at most once; their `sizes` are in bytes, by their names.

    Raises:
        LoadError: its name is not UTF-8, it holds a pipe, a device or a text of unusual size, or its weights are
            elsewhere (GHSA-4j2p-28q2-5m79, of a library that opens such files).
    """

    def __init__(self, path: Path) -> None:
        check_utf8(path)
        self.path = path
        self.sizes: dict[str, int] = {}
        self._json: dict[str, dict[str, Any]] = {}
        if not os.path.isdir(path):
            return
        self._list("")
        if os.path.isdir(path / TEMPLATES):
            self._list(TEMPLATES + "/")
        for file in sorted({*self.shards(WEIGHTS_INDEX).values(), *self.shards(PICKLE_INDEX).values()}):
            if os.path.isabs(file) or ".." in Path(file).parts:
                where = f"should be in {visible(file)}, outside of the folder"
                raise LoadError(f"the weights of {visible(str(path))} {where}; check where the checkpoint comes from")
            if "/" in file and os.path.exists(path / file):
                self._list(file.rpartition("/")[0] + "/")

    def _list(self, inside: str) -> None:
        """Add the files of a folder inside; LoadError if one is no plain file, or too large for its kind."""
        try:
            for entry in sorted(os.scandir(self.path / inside), key=lambda entry: entry.name):
                path = visible(entry.path)
                if entry.is_dir() or not os.path.exists(entry):  # a link to nothing
                    continue
                self.sizes[inside + entry.name] = size = entry.stat().st_size
                if not entry.is_file():
                    raise LoadError(f"{path} is a pipe or a device; expected a regular file")
                if size > MOST_TEXT and entry.name.endswith(TEXTS):
                    most = MOST_TEXT >> 20
                    raise LoadError(f"{path} is larger than {most} MiB; check where the checkpoint comes from")
        except OSError as error:
            raise LoadError(f"the folder {visible(str(self.path))} cannot be read: {error.strerror}") from None

    def __contains__(self, name: object) -> bool:
        return name in self.sizes

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file, empty if there is no such file; LoadError if it is damaged."""
        if name not in self.sizes:
            return {}
        if name not in self._json:
            path = self.path / name
            try:
                content = json.loads(path.read_bytes().decode("utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise LoadError(f"{visible(str(path))} cannot be read: {visible(str(error))}") from None
            if type(content) is not dict:
                raise LoadError(f"{visible(str(path))} holds no JSON object")
            self._json[name] = content
        return self._json[name]

    def shards(self, index: str = WEIGHTS_INDEX) -> dict[str, str]:
        """Return the file that each tensor is in, as a path in the folder; nothing where there is no readable index."""
        try:
            return {str(name): os.fspath(file) for name, file in self.read_json(index)["weight_map"].items()}
        except (LoadError, KeyError, TypeError, AttributeError):
            return {}

    @property
    def has_weights(self) -> bool:
        """Whether it has safetensors weights, with all their files."""
        files = {WEIGHTS} if WEIGHTS in self.sizes else set(self.shards().values())
        return bool(files) and files <= self.sizes.keys()

    @property
    def is_checkpoint(self) -> bool:
        """Whether it has the configuration of a model with a type (a pooling module has none), or of an adapter."""
        try:
            return ADAPTER in self or "model_type" in self.read_json(CONFIG)
        except LoadError:
            return True  # a damaged one is reported, not hidden

    @property
    def summary(self) -> str:
        """List of its files, for an error about a missing one."""
        names = [visible(file) for file in self.sizes if not file.endswith(TEXTS)] or list(map(visible, self.sizes))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return f" (there is {', '.join(names[:4])}{more})" if names else ""


def check_utf8(path: Path) -> None:
    """Raise LoadError for a path that is not UTF-8: tokenizers and safetensors open no other."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        why = "is not UTF-8, which tokenizers and safetensors need"
        raise LoadError(f"the name {visible(str(path))} {why}; rename it") from None


def demo_or(name: str) -> str:
    """Return the folder of a model in the box for its name, which hides `./demo`; any other name as it is."""
    return str(Path(__file__).with_name(name)) if name in DEMOS else name


def map_weights(path: Path, shown: str = "") -> Tensors:
    """Map the tensors of a file; LoadError if it is damaged, which names it as `shown`, or by its path."""
    try:
        path.open("rb").close()  # safetensors reports one that it may not open as missing
        return Tensors(path)
    except Exception as error:  # the library raises its own
        reason = getattr(error, "strerror", None) or visible(str(error).partition("\n")[0])
        raise LoadError(f"the weights {shown or visible(str(path))} cannot be read: {reason}") from None


def hub_cache() -> Path:
    """Return the folder of the local cache."""
    environment = os.environ.get
    if folder := environment("HF_HUB_CACHE") or environment("HUGGINGFACE_HUB_CACHE"):
        return Path(os.path.expandvars(folder)).expanduser()
    home = environment("HF_HOME") or os.path.join(environment("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.path.expandvars(home)).expanduser() / "hub"


def split_revision(name: str) -> tuple[str, str]:
    """Return a name, and the branch, tag or commit of NAME@REVISION, `main` where none is named."""
    if "@" in name and not os.path.exists(name):
        name, _, revision = name.partition("@")
        return name, revision
    return name, "main"


def cached_snapshot(repository: str, revision: str) -> Path:
    """Return the folder that a repository's files at a branch, tag or commit have in the cache, or would have."""
    folder = hub_cache() / ("models--" + repository.replace("/", "--"))
    try:
        commit = read_file(folder / "refs" / revision, MOST_SETTINGS).decode().strip()
    except (OSError, ValueError):
        commit = ""
    return folder / "snapshots" / (commit if commit.isalnum() else revision)


def cached_models() -> list[str]:
    """Return the names of the models and adapters in the hub's local cache."""
    configs = sorted(path for file in (CONFIG, ADAPTER) for path in hub_cache().glob(f"models--*/snapshots/*/{file}"))
    folders = dict.fromkeys(config.parents[2].name for config in configs)
    return [name.removeprefix("models--").replace("--", "/", 1) for name in folders]


def nearby(name: str) -> str:
    """Return `; did you mean 'x'?` for the checkpoint of this machine with the name most alike, or nothing."""
    import difflib  # needed for an error alone

    folder = os.path.dirname(name)
    paths: list[str] = []
    with suppress(OSError, ValueError), os.scandir(folder or ".") as entries:
        paths = sorted(os.path.join(folder, entry.name) for entry in islice(entries, MOST_ENTRIES))
    here = [path for path in paths if path.endswith(".gguf") or is_checkpoint(path)]
    # A model of the hub is often called by the last part of its name.
    by_end = {model.rpartition("/")[2].lower(): model for model in cached_models()}
    table = by_end | {model.lower(): model for model in (*DEMOS, *here, *by_end.values())}
    near = [table[match] for match in difflib.get_close_matches(name.lower(), table, n=1)]
    return f"; did you mean '{visible(near[0])}'?" if near and near[0] != name else ""


# --- configuration: a field that was not read may change the numbers ---------------------------------------

# Fields without a part in the forward pass of evaluation, of PretrainedConfig and GenerationConfig in transformers 4
# and 5: first bookkeeping, then generation, which older versions kept in config.json.
_IGNORED_FIELDS = """
    architectures attn_implementation chunk_size_feed_forward directionality dtype experts_implementation
    finetuning_task gradient_checkpointing id2label initializer_factor initializer_range is_llama_config
    keys_to_ignore_at_inference label2id license loss_type model_max_length model_type n_ctx n_special name_or_path
    net_structure_type num_labels output_attentions output_hidden_states output_past predict_special_tokens prefix
    pretraining_tp problem_type return_dict task_specific_params tf_legacy_loss tie_encoder_decoder
    tie_last_hidden_states tie_weights_ tie_word_embeddings tokenizer_class torch_dtype torchscript training_args
    transformers.js_config transformers_version unsloth_fixed unsloth_version use_bfloat16 use_cache use_return_dict
    xla_device

    assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight assistant_lookbehind bad_words_ids
    begin_suppress_tokens cache_config cache_implementation compile_config constraints continuous_batching_config
    disable_compile diversity_penalty do_sample dola_layers down_scale_factor early_stopping
    encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff exponential_decay_length_penalty
    force_words_ids forced_decoder_ids gap_size generation_kwargs guidance_scale is_assistant length_penalty low_memory
    max_cache_len max_length max_matching_ngram_size max_new_tokens max_time min_length min_new_tokens min_p
    no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams
    num_memory_blocks num_return_sequences output_logits output_scores penalty_alpha prefill_chunk_size
    prompt_lookup_num_tokens remove_invalid_values renormalize_logits repetition_penalty return_dict_in_generate
    return_legacy_cache sequence_bias speculation_type stop_strings suppress_tokens target_lookbehind temperature
    token_healing top_h top_k top_p typical_p use_mtp watermarking_config
"""
_IGNORED = frozenset(_IGNORED_FIELDS.split())
# Private state of a Python object; heads above the layers; ids, which come with the text; what evaluation leaves out.
_IGNORED_NAMES = re.compile(r"_.*|(?:classifier|pooler|summary)_.*|.*_token_ids?|.*(?:dropout|dropout_prob|pdrop)")
# Fields with the same values in every family, where they are there.
_FIXED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,), "cross_attention_hidden_size": (None,), "is_decoder": (False,),
    "is_encoder_decoder": (False,), "output_router_logits": (False,), "position_embedding_type": ("absolute", None),
    "per_layer_config": ({}, None), "pruned_heads": ({}, None), "quantization_config": (None,), "auto_map": (None, {}),
    "rope_interleaved": (False,), "use_bidirectional_attention": (False, None), "use_mrope": (False,),
}  # fmt: skip

_ABSENT = object()


class UnsupportedError(Exception):
    """Raised for a checkpoint or a sentence that this engine does not compute; the message has the reason."""


class ConfigReader:
    """The fields of a config.json; every method that returns one raises UnsupportedError where it does not fit."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self._values = values
        self._where = where
        self.read: set[str] = set()  # names of the fields that were read

    def get(self, name: str, default: Any = _ABSENT, among: Collection[Any] | None = None) -> Any:
        """Return a field; without a default it must be there, and it must be among the implemented values."""
        self.read.add(name)
        value = self._values.get(name, default)
        if value is _ABSENT:
            raise UnsupportedError(f"{self._where} has no {name}")
        if among is not None and value not in tuple(among):  # a list has no hash
            raise UnsupportedError(f"{name} is {value!r}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a field that is true or false."""
        return self.get(name, default, among=(True, False))

    def count(self, name: str, default: Any = _ABSENT, most: float = math.inf) -> int:
        """Return a field that is a whole number above 0, and not above `most`."""
        value = self.get(name, default)
        if type(value) is not int or not 1 <= value <= most:
            raise UnsupportedError(f"{name} is {value!r}")
        return value

    def layers(self, name: str) -> int:
        """Return how many layers there are; UnsupportedError if no model has as many."""
        return self.count(name, most=MOST_LAYERS)

    def number(self, name: str, default: Any = _ABSENT) -> float:
        """Return a field that is a number above 0."""
        value = self.get(name, default)
        if type(value) not in (int, float) or not value > 0:
            raise UnsupportedError(f"{name} is {value!r}")
        return value

    def reject_unread(self) -> None:
        """Raise UnsupportedError for a field that was not read."""
        for name in self._values:
            if name not in self.read:
                raise UnsupportedError(f"it does not support the field {name}")

    def reject_unknown(self) -> None:
        """Raise UnsupportedError for an unread field that may change the forward pass."""
        for name, value in self._values.items():
            if name in self.read or name in _IGNORED or _IGNORED_NAMES.fullmatch(name):
                continue
            if name not in _FIXED:
                raise UnsupportedError(f"it does not support the field {name}")
            if value not in _FIXED[name]:
                raise UnsupportedError(f"{name} is {value!r}")
