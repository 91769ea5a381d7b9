"""Finds the files of a checkpoint, whatever it is called by, with everything small downloaded.

A checkpoint is a folder, a folder that holds one (of a training, sentence-transformers, the hub's cache), a name on the
hub (`org/name`, or `org/name/checkpoint-500` for a folder there), a GGUF file, a LoRA adapter with the model under it,
or `demo`, the model in the box. A revision on the hub is named by `NAME@REVISION`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.checkpoints.checkpoint_folder import (
    ADAPTER,
    ADAPTER_PICKLE,
    ADAPTER_WEIGHTS,
    CONFIG,
    DEMO,
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
    has_config,
    is_gguf,
    is_model_name,
    nearby,
    snapshot_in,
    split_name,
    split_revision,
)
from attncli.errors import LoadError, UsageError
from attncli.files import MOST_TEXT
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions

_REVISION = re.compile(r"\w[\w-]*(?:[./]\w[\w-]*)*")  # which cannot lead out of the cache
_LISTED = 8  # checkpoints that a sentence names


class HubFolder(NamedTuple):
    """A folder of a repository on the hub."""

    repository: str  # its name
    commit: str  # of the repository
    inside: str  # what the names of its files there begin with: `checkpoint-500/`
    sizes: Mapping[str, int]  # in bytes, of its files, by their names in the folder


@dataclass(frozen=True)
class Snapshot:
    """The files of a checkpoint; what is small of them is on this machine."""

    name: str  # as views show it: what was given, down to the folder in it that was taken
    files: CheckpointFolder  # its configuration and its weights
    tokenizer: CheckpointFolder  # the files of its tokenizer, which may be in another folder
    remote: HubFolder | None = None  # where on the hub the weights are that `files` lacks
    adapter: CheckpointFolder | None = None  # the files of the LoRA that changes the weights
    base: str = ""  # the model under an adapter, as views show it
    gguf: Path | None = None  # the only file, if it is one of that form

    @property
    def folder(self) -> Path:
        """The folder of the configuration and the weights."""
        return self.files.path

    @cached_property
    def config(self) -> dict[str, Any]:
        """What config.json says; LoadError if it is damaged."""
        return self.files.read_json(CONFIG)

    @property
    def model_name(self) -> str:
        """The name of what has the configuration and the weights: the base of an adapter, or the checkpoint itself."""
        return self.base or self.name

    @property
    def is_pickled(self) -> bool:
        """Whether its only weights are pickles, which torch's restricted unpickler reads."""
        names = self.files.sizes.keys() if self.remote is None else self.remote.sizes.keys()
        return names.isdisjoint((WEIGHTS, WEIGHTS_INDEX)) and not names.isdisjoint((PICKLE, PICKLE_INDEX))

    @property
    def details(self) -> dict[str, str]:
        """What a trace says of it besides its name."""
        return {} if self.adapter is None else {"adapter": LORA, "base": self.base}


def resolve(name: str, options: LoadOptions, *, for_tokenizer: bool = False, for_writing: bool = False) -> Snapshot:
    """Find a checkpoint's files; of one on the hub, download what is small.

    Args:
        name: a folder, a GGUF file, a name on the hub, or `demo`, the model in the box.
        options: `base`, `offline`, `chat` and `trust_remote_code` say which files.
        for_tokenizer: whether a tokenizer is enough.
        for_writing: whether the model is to write, so that more files are read.

    Raises:
        LoadError: there is no such checkpoint, there are several, or it cannot be read.
        UsageError: a base is given for what is no adapter.
    """
    return _Search(options, for_tokenizer, for_writing).find(name, *split_revision(name))


class _Search(NamedTuple):
    """What is looked for; see `resolve`."""

    options: LoadOptions
    for_tokenizer: bool
    for_writing: bool = False

    def find(self, shown: str, name: str, revision: str) -> Snapshot:
        check_path(name)
        path = demo_or(name)
        if is_gguf(path):
            self.refuse_base(shown)
            files = CheckpointFolder(Path(path).absolute().parent, is_listed=False)
            return Snapshot(shown, files, files, gguf=Path(path))
        if os.path.isfile(path):
            raise LoadError(f"{visible(name)} is a file; --model takes a checkpoint's folder or its name on the hub")
        remote = None
        if os.path.isdir(path):
            files = CheckpointFolder(Path(path))
            if files.sizes.keys().isdisjoint((CONFIG, ADAPTER)):
                files = CheckpointFolder(_only_checkpoint(files.path))
                shown = os.path.join(path, *files.path.relative_to(path).parts)
        else:
            shown, files, remote = self.on_hub(shown, name, revision)
        if files.is_adapter:
            return self.with_base(shown, files, remote)
        self.refuse_base(shown)
        if not self.for_tokenizer:
            check_config(shown, files)
        return Snapshot(shown, files, files, None if files.has_weights else remote)

    def refuse_base(self, shown: str) -> None:
        if self.options.base not in (None, shown):
            raise UsageError(f"--base names the model under an adapter, and {visible(shown)} is none; drop it")

    def with_base(self, shown: str, adapter: CheckpointFolder, remote: HubFolder | None) -> Snapshot:
        """Return an adapter on the model under it."""
        if not self.for_tokenizer:
            from attncli.checkpoints.tensors.lora_store import check_adapter

            check_adapter(shown, adapter)
        has_weights = adapter.has_weights or not {WEIGHTS, WEIGHTS_INDEX}.isdisjoint(remote.sizes if remote else ())
        if self.options.base is None and CONFIG in adapter and has_weights:
            raise LoadError(
                f"{visible(shown)} has a whole model and an adapter; put the files of the adapter into a folder of "
                "their own, and name the model by --base"
            )
        base, revision = _base_of(adapter) if self.options.base is None else split_revision(self.options.base)
        try:
            own = self._replace(options=replace(self.options, base=None))
            under = own.find(self.options.base or base, base, revision)
        except LoadError as error:
            raise LoadError(f"the base of {visible(shown)}: {error}; --base names another") from None
        if under.gguf is not None or under.adapter is not None:
            kind = "a GGUF file" if under.adapter is None else "an adapter itself"
            raise LoadError(
                f"the base of {visible(shown)}, {visible(base)}, is {kind}; merge an adapter with peft's "
                "merge_and_unload, save the model, and name it by --base"
            )
        tokenizer = adapter if adapter.has_tokenizer else under.tokenizer
        return replace(under, name=shown, tokenizer=tokenizer, adapter=adapter, base=under.name)

    def on_hub(self, shown: str, name: str, revision: str) -> tuple[str, CheckpointFolder, HubFolder | None]:
        """Return what views call a checkpoint on the hub, its files in the local cache, and where on the hub it is."""
        repository, inside = split_name(name)
        folder = cached_snapshot(repository, revision) / inside
        if folder.is_dir() and self.is_whole(files := CheckpointFolder(folder)):
            return shown, files, None
        from attncli.checkpoints.hub import Repository, not_found

        there = Repository(repository, revision, self.options.offline, shown)
        sizes = there.sizes or {}
        there.fetch(_configs(sizes, inside), "configuration")
        folder = _only_checkpoint(there.root / inside, shown)
        has_tokenizer = self.for_tokenizer and (sizes or (folder / "tokenizer.json").is_file())
        if not (has_config(folder) or has_tokenizer):
            raise not_found(shown, "tokenizer" if self.for_tokenizer else "configuration", there.is_offline)
        remote = None
        if there.sizes is not None:
            start = "" if folder == there.root else folder.relative_to(there.root).as_posix() + "/"
            own = {file.removeprefix(start): size for file, size in sizes.items() if file.startswith(start)}
            small = [start + file for file, size in own.items() if _is_small(file, size)]
            there.fetch(small, "tokenizer" if self.for_tokenizer else "model")
            remote = HubFolder(repository, there.root.name, start, own)
        name, at, revision = shown.partition("@")
        shown = "/".join([repository, *folder.relative_to(there.root).parts]) + at + revision
        return shown, CheckpointFolder(folder), remote

    def is_whole(self, files: CheckpointFolder) -> bool:
        """Return whether a folder of the cache has all that is needed, so that nobody has to be asked.

        Whoever downloads a checkpoint downloads its weights last.
        """
        options = self.options
        if options.trust_remote_code or self.for_writing:
            return False
        if files.is_adapter:
            return ADAPTER_WEIGHTS in files or ADAPTER_PICKLE in files
        has_all = {CONFIG, "tokenizer.json", "tokenizer_config.json"} <= files.sizes.keys() and files.has_weights
        has_template = TEMPLATE in files or "chat_template" in files.read_json("tokenizer_config.json")
        return has_all and (not options.chat or has_template)


def check_path(name: str) -> None:
    """Raise LoadError for a path where there is nothing and that cannot be a name on the hub."""
    if os.path.exists(name) or name == DEMO:
        return
    is_file = name.lower().endswith(".gguf")
    if is_file or os.path.isabs(name) or name.startswith(("./", "../")) or not is_model_name(name):
        near = nearby(name) or "; check the path"
        kind = "file" if is_file else "folder"
        raise LoadError(f"the checkpoint '{visible(name)}' was not found: there is no such {kind}{near}")


def check_config(name: str, files: CheckpointFolder) -> None:
    """Raise LoadError for a folder that has no configuration, with the files that it has."""
    if CONFIG in files:
        return
    folder = visible(str(files.path))
    if gguf := next((file for file in files.sizes if file.lower().endswith(".gguf")), None):
        raise LoadError(
            f"the folder {folder} has no config.json but a GGUF file; give the file itself: "
            f"{visible(str(files.path / gguf))}"
        )
    raise LoadError(
        f"the folder {folder} is no checkpoint: it has no config.json{there_is(files)}; give the folder that "
        "save_pretrained wrote"
    )


def there_is(files: CheckpointFolder) -> str:
    """Return which files a folder has, for a sentence that says which one it lacks."""
    names = [file for file in files.sizes if not file.endswith(TEXTS)] or list(files.sizes)
    if not names:
        return ""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f" (there is {', '.join(map(visible, names[:4]))}{more})"


# --- an adapter and its base -----------------------------------------------------------------------------------------


def _base_of(adapter: CheckpointFolder) -> tuple[str, str]:
    """Return the folder or the name on the hub of the model under an adapter, as the adapter says, and its revision.

    A path may be relative to the folder that the program runs in, as for peft, or to the adapter's.
    """
    fields = adapter.read_json(ADAPTER)
    base, revision = fields.get("base_model_name_or_path"), fields.get("revision")
    if not isinstance(base, str) or not base or "\0" in base:
        raise LoadError(f"{ADAPTER} of {visible(str(adapter.path))} names no base model; --base names it")
    if not os.path.isdir(base) and os.path.isdir(adapter.path / base):
        base = os.path.normpath(adapter.path / base)
    if os.path.isdir(base) or not isinstance(revision, str) or not _REVISION.fullmatch(revision):
        revision = "main"
    return base, revision


# --- checkpoints in the folders of a folder --------------------------------------------------------------------------


def _only_checkpoint(folder: Path, name: str | None = None) -> Path:
    """Return the folder itself if it has a checkpoint, or the only one in it that does; itself if there is none.

    LoadError where there are several. `name` is its name on the hub, if it is a repository's.
    """
    if has_config(folder):
        return folder
    if (folder / "snapshots").is_dir():
        current = snapshot_in(folder, "main")
        return _only_checkpoint(current if current.is_dir() else folder / "snapshots")
    inner: list[Path] = []
    with suppress(OSError), os.scandir(folder) as entries:
        inner = [folder / entry.name for entry in islice(entries, MOST_ENTRIES) if entry.is_dir()]
    found = [each for each in inner if has_config(each) and CheckpointFolder(each).is_checkpoint]
    if len(found) > 1:
        # checkpoint-500 before checkpoint-1000
        numbered = {each.name: [part.zfill(20) for part in re.split(r"(\d+)", each.name)] for each in found}
        names = [visible(name) for name in sorted(numbered, key=numbered.__getitem__)]
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        what = f"the folder {visible(str(folder))}" if name is None else f"{visible(name)}, on the hub,"
        one = "one of them" if name is None else f"one of them, as in {visible(name)}/{names[0]}"
        raise LoadError(f"{what} holds {len(names)} checkpoints: {', '.join(names[:_LISTED])}{more}; give {one}")
    return found[0] if found else folder


def _configs(sizes: Collection[str], inside: str) -> list[str]:
    """Return the configurations of a folder of a repository, or of the folders in it where it has none itself."""
    start = inside + "/" if inside else ""
    if own := [start + name for name in (CONFIG, ADAPTER) if start + name in sizes]:
        return own
    is_config = re.compile(rf"{re.escape(start)}[^/]+/({re.escape(CONFIG)}|{re.escape(ADAPTER)})")
    return list(filter(is_config.fullmatch, sizes))[:MOST_ENTRIES]


def _is_small(file: str, size: int) -> bool:
    """Return whether a file is always downloaded: weights of an adapter are, those of a model are not."""
    if file in (ADAPTER_WEIGHTS, ADAPTER_PICKLE):
        return True
    is_text = file.endswith(TEXTS) and file != "trainer_state.json" and size <= MOST_TEXT
    return is_text and "/" not in file.removeprefix(TEMPLATES + "/")
