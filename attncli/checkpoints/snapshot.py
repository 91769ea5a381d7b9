"""Finds the files of a checkpoint by any of its names, and downloads the small ones.

A checkpoint is a folder, a name on the hub or NAME@REVISION, a GGUF or ONNX file, a LoRA adapter with the model under
it, or `demo`, the model in the box.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.checkpoints import is_checkpoint
from attncli.checkpoints.checkpoint_folder import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    CONFIG,
    LORA,
    MOST_ENTRIES,
    PICKLE,
    PICKLE_INDEX,
    TEMPLATE,
    TEMPLATES,
    TEXTS,
    WEIGHTS,
    WEIGHTS_INDEX,
    CheckpointFolder,
    cached_snapshot,
    demo_or,
    nearby,
    split_revision,
)
from attncli.errors import LoadError, UsageError
from attncli.files import MOST_TEXT
from attncli.text import plural, visible

if TYPE_CHECKING:
    from attncli.checkpoints.hub import Repository
    from attncli.checkpoints.options import LoadOptions

_REVISION = re.compile(r"\w[\w-]*(?:[./]\w[\w-]*)*")  # it cannot lead out of the cache
_OF_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model",
    "sentencepiece.bpe.model", "tekken.json",
)  # fmt: skip


_WEIGHTS = (WEIGHTS_INDEX, PICKLE, PICKLE_INDEX)  # a folder with any of them is a checkpoint, exported or not


@dataclass(frozen=True)
class Snapshot:
    """The files of a checkpoint; the small ones are on this machine."""

    name: str  # as views show it
    files: CheckpointFolder  # its configuration and its weights
    tokenizer: CheckpointFolder  # the files of its tokenizer, which may be in another folder
    remote: Repository | None = None  # repository on the hub with the weights that `files` lacks
    adapter: CheckpointFolder | None = None  # the files of the LoRA that changes the weights
    base: str = ""  # the model under an adapter, as views show it
    gguf: Path | None = None  # the only file, if it is one of that form
    onnx: tuple[Path, ...] = ()  # its graphs, if it was exported: one, or the encoder's and the decoder's

    @property
    def folder(self) -> Path:
        """The folder of the configuration and the weights."""
        return self.files.path

    @cached_property
    def config(self) -> dict[str, Any]:
        """Content of config.json; LoadError if it is damaged."""
        return self.files.read_json(CONFIG)

    @property
    def model_name(self) -> str:
        """Name of the configuration and the weights: the base of an adapter, or the checkpoint itself."""
        return self.base or self.name

    @property
    def is_pickled(self) -> bool:
        """Whether its only weights are pickles, which torch's restricted unpickler reads."""
        names = (self.remote or self.files).sizes.keys()
        return names.isdisjoint((WEIGHTS, WEIGHTS_INDEX)) and not names.isdisjoint((PICKLE, PICKLE_INDEX))

    @property
    def details(self) -> dict[str, str]:
        """Facts about it for a trace, besides its name."""
        return {} if self.adapter is None else {"adapter": LORA, "base": self.base}


def resolve(name: str, options: LoadOptions, *, for_tokenizer: bool = False) -> Snapshot:
    """Find a checkpoint's files; of one on the hub, download the small ones.

    `base`, `offline`, `chat` and `trust_remote_code` choose the files; a tokenizer is enough `for_tokenizer`.

    Raises:
        LoadError: there is no such checkpoint, there are several, or it cannot be read.
        UsageError: a base is given for a checkpoint that is no adapter, or the name is no text.
    """
    if options.tokenizer is not None:
        other = resolve(options.tokenizer, options.changed(tokenizer=None, base=None), for_tokenizer=True)
        found = resolve(name, options.changed(tokenizer=None), for_tokenizer=for_tokenizer)
        return replace(found, tokenizer=other.tokenizer)
    if not isinstance(name, str):
        raise UsageError("model: expected a checkpoint's folder or its name on the hub, as text")
    shown, (name, revision) = name, split_revision(name)
    _check_path(name)
    path, remote = demo_or(name), None
    is_gguf = path.lower().endswith(".gguf") and os.path.isfile(path)
    if os.path.isfile(path) and path.lower().endswith(".onnx") and (exported := _exported(shown, Path(path), options)):
        return exported
    if os.path.isfile(path) and not is_gguf:
        raise LoadError(f"{visible(name)} is a file; --model takes a folder or a name on the hub")
    files = CheckpointFolder(Path(path) if os.path.exists(path) else cached_snapshot(name, revision))
    has_weights = files.has_weights or not files.sizes.keys().isdisjoint((ADAPTER, *_WEIGHTS))
    if os.path.isdir(files.path) and not has_weights and (exported := _exported(shown, files.path, options)):
        return exported
    if os.path.isdir(path) and files.sizes.keys().isdisjoint((CONFIG, ADAPTER)):
        _check_inside(files.path)
    if not os.path.exists(path) and not _is_whole(files, options):
        files, remote = _downloaded(shown, name, revision, options, for_tokenizer)
    if ADAPTER in files:
        return _with_base(shown, files, remote, options, for_tokenizer)
    if options.base not in (None, shown):
        raise UsageError(f"--base applies to an adapter, and {visible(shown)} is a model; drop --base")
    if is_gguf:
        return Snapshot(shown, files, files, gguf=Path(path))
    if not for_tokenizer:
        _check_config(files)
    return Snapshot(shown, files, files, None if files.has_weights else remote)


def _exported(shown: str, path: Path, options: LoadOptions) -> Snapshot | None:
    """Return a model that was exported to ONNX; None for a folder without one."""
    from attncli.checkpoints.onnx_files import folder_of, graphs_of  # which other checkpoints spare

    if not (graphs := graphs_of(path)):
        return None
    if options.base is not None:
        raise UsageError(f"--base applies to an adapter, and {visible(shown)} is an ONNX model; drop --base")
    files = folder_of(graphs[0])
    return Snapshot(shown, files, files, onnx=graphs)


def _check_path(name: str) -> None:
    """Raise LoadError for a path that does not exist and cannot be a name on the hub."""
    is_file = name.lower().endswith((".gguf", ".onnx"))
    is_path = is_file or os.path.isabs(name) or name.startswith(("./", "../")) or name.count("/") > 1
    if is_path and not os.path.exists(name):
        kind, advice = "file" if is_file else "folder", nearby(name) or "; check the path"
        raise LoadError(f"the checkpoint '{visible(name)}' was not found: there is no such {kind}{advice}")


def _check_config(files: CheckpointFolder) -> None:
    """Raise LoadError for a folder that has no configuration, with the files that it has."""
    folder = f"the folder {visible(str(files.path))}"
    if gguf := next((file for file in files.sizes if CONFIG not in files and file.lower().endswith(".gguf")), None):
        raise LoadError(f"{folder} holds a GGUF file; give the file: -m {visible(str(files.path / gguf))}")
    if CONFIG not in files:
        raise LoadError(f"{folder} has no config.json{files.summary}; give the folder that save_pretrained wrote")


def _is_whole(files: CheckpointFolder, options: LoadOptions) -> bool:
    """Return whether a folder of the cache has all the needed files; a download ends with the weights."""
    if options.trust_remote_code:
        return False
    if ADAPTER in files:
        return ADAPTER_WEIGHTS in files
    has_all = {CONFIG, "tokenizer.json", "tokenizer_config.json"} <= files.sizes.keys() and files.has_weights
    has_template = TEMPLATE in files or "chat_template" in files.read_json("tokenizer_config.json")
    return has_all and (not options.chat or has_template)


def _downloaded(
    shown: str, name: str, revision: str, options: LoadOptions, for_tokenizer: bool
) -> tuple[CheckpointFolder, Repository | None]:
    """Return the files of a checkpoint in the local cache, and the repository on the hub that has the others."""
    from attncli.checkpoints.hub import Repository, not_found

    there, part = Repository(name, revision, options.offline, shown), "configuration"
    there.fetch([file for file in (CONFIG, ADAPTER) if file in there.sizes], part)
    small = [file for file, size in there.sizes.items() if _is_small(file, size)]
    has_tokenizer = for_tokenizer and (small or (there.root / "tokenizer.json").is_file())
    if not (is_checkpoint(there.root) or has_tokenizer):
        raise not_found(shown, "tokenizer" if for_tokenizer else part, there.is_offline)
    there.fetch(small, "tokenizer" if for_tokenizer else "model")
    return CheckpointFolder(there.root), there if there.sizes else None


def _is_small(file: str, size: int) -> bool:
    """Return whether a file is always downloaded: weights of an adapter are, those of a model are not."""
    if file == ADAPTER_WEIGHTS:
        return True
    is_text = file.endswith(TEXTS) and file != "trainer_state.json" and size <= MOST_TEXT
    return is_text and "/" not in file.removeprefix(TEMPLATES + "/")


def _with_base(
    shown: str, adapter: CheckpointFolder, remote: Repository | None, options: LoadOptions, for_tokenizer: bool
) -> Snapshot:
    """Return an adapter with its base model."""
    if not for_tokenizer:
        from attncli.checkpoints.tensors.lora_store import check_adapter

        check_adapter(shown, adapter)
    has_weights = adapter.has_weights or not {WEIGHTS, WEIGHTS_INDEX}.isdisjoint(remote.sizes if remote else ())
    if options.base is None and CONFIG in adapter and has_weights:
        advice = "move the adapter to its own folder, and give the model with --base"
        raise LoadError(f"{visible(shown)} has a whole model and an adapter; {advice}")
    base = options.base or _base_of(adapter)
    try:
        under = resolve(base, options.changed(base=None), for_tokenizer=for_tokenizer)
    except LoadError as error:
        raise LoadError(f"the base of {visible(shown)}: {error}; give another with --base") from None
    if under.gguf is not None or under.adapter is not None:
        is_no_model = f"{visible(base)}, is a GGUF file or an adapter itself"
        raise LoadError(f"the base of {visible(shown)}, {is_no_model}; give a whole model with --base")
    tokenizer = under.tokenizer if adapter.sizes.keys().isdisjoint(_OF_TOKENIZER) else adapter
    return replace(under, name=shown, tokenizer=tokenizer, adapter=adapter, base=under.name)


def _base_of(adapter: CheckpointFolder) -> str:
    """Return the name of an adapter's base model, with its revision on the hub."""
    fields = adapter.read_json(ADAPTER)
    base, revision = fields.get("base_model_name_or_path"), fields.get("revision")
    if not isinstance(base, str) or not base or "\0" in base:
        raise LoadError(f"{ADAPTER} of {visible(str(adapter.path))} names no base model; give it with --base")
    if not os.path.isdir(base) and os.path.isdir(adapter.path / base):
        base = os.path.normpath(adapter.path / base)
    if os.path.isdir(base) or not isinstance(revision, str) or not _REVISION.fullmatch(revision):
        return base
    return base if revision == "main" else f"{base}@{revision}"


def _check_inside(folder: Path) -> None:
    """Raise LoadError for a folder of checkpoints, with their names."""
    inner: list[Path] = []
    with suppress(OSError), os.scandir(folder) as entries:
        inner = [folder / entry.name for entry in islice(entries, MOST_ENTRIES) if entry.is_dir()]
    paths = [path for path in inner if is_checkpoint(path) and CheckpointFolder(path).is_checkpoint]
    if names := sorted((visible(path.name) for path in paths), key=lambda name: (len(name), name)):
        listed = ", ".join(names[:8]) + ", …" * (len(names) > 8)
        held = f"holds {plural(len(names), 'checkpoint')}; give one of them"
        raise LoadError(f"the folder {visible(str(folder))} {held}: {listed}")
