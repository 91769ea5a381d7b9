"""Finds the files of a checkpoint, whatever it is called by, with everything small downloaded.

A checkpoint is a folder, a folder that holds one (of a training, sentence-transformers, diffusers, the hub's cache), a
name on the hub (`org/name`, or `org/name/checkpoint-500` for a folder there), a GGUF file, a LoRA adapter with the
model under it, or `demo`, the model in the box. A revision on the hub is named by `NAME@REVISION`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
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
    is_gguf,
    is_model_name,
    snapshot_in,
    split_name,
    split_revision,
)
from attncli.errors import LoadError, UsageError
from attncli.files import MOST_TEXT, check_file
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.checkpoints.hub import Repository
    from attncli.checkpoints.options import LoadOptions

_MARKERS = (CONFIG, ADAPTER, "modules.json", "model_index.json")  # files that tell where the checkpoints are
_OF_TRAINING = re.compile(r"checkpoint-\d+")
_REVISION = re.compile(r"\w[\w-]*(?:[./]\w[\w-]*)*")  # which cannot lead out of the cache
_DEEPEST = 3  # models--org--name/snapshots/COMMIT/0_Transformer
_LISTED = 8  # checkpoints that a sentence names


class HubFolder(NamedTuple):
    """A folder of a repository on the hub.

    Attributes:
        repository: its name.
        commit: of the repository.
        inside: what the names of its files there begin with: `checkpoint-500/`.
        sizes: in bytes, of its files, by their names in the folder.
    """

    repository: str
    commit: str
    inside: str
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Snapshot:
    """The files of a checkpoint; what is small of them is on this machine.

    Attributes:
        name: as views show it: what was given, down to the folder in it that was taken.
        files: its configuration and its weights.
        tokenizer: the files of its tokenizer, which may be in another folder.
        remote: where on the hub the weights are that `files` lacks.
        adapter: the files of the LoRA that changes the weights.
        base: the model under an adapter, as views show it.
        gguf: the only file, if it is one of that form.
    """

    name: str
    files: CheckpointFolder
    tokenizer: CheckpointFolder
    remote: HubFolder | None = None
    adapter: CheckpointFolder | None = None
    base: str = ""
    gguf: Path | None = None

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


def resolve_here(name: str) -> Snapshot:
    """Find what this machine has of a checkpoint; the hub's client is not imported. See `resolve`."""
    from attncli.checkpoints.options import LoadOptions

    options = LoadOptions(offline=True)
    return _Search(options, for_tokenizer=True, is_here=True).find(name, *split_revision(name))


class _Search(NamedTuple):
    """What is looked for; see `resolve`."""

    options: LoadOptions
    for_tokenizer: bool
    for_writing: bool = False
    is_here: bool = False

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
            if not files.has_config:
                files = CheckpointFolder(_only_checkpoint(files.path))
                inside = files.path.relative_to(path).parts
                shown = os.path.join(path, *inside)
        else:
            shown, files, remote = self.on_hub(shown, name, revision)
        if files.is_adapter:
            return self.with_base(shown, files, remote)
        self.refuse_base(shown)
        if not self.for_tokenizer:
            check_config(shown, files)
        if remote is not None and files.has_weights:
            remote = None
        return Snapshot(shown, files, files if files.has_tokenizer else _tokenizer_beside(files), remote)

    def refuse_base(self, shown: str) -> None:
        if self.options.base not in (None, shown):
            raise UsageError(f"--base names the model under an adapter, and {visible(shown)} is none; drop it")

    def with_base(self, shown: str, adapter: CheckpointFolder, remote: HubFolder | None) -> Snapshot:
        """Return an adapter on the model under it."""
        if not self.for_tokenizer:
            from attncli.checkpoints.tensors.lora_store import check_adapter

            check_adapter(shown, adapter)
        own_tokenizer = adapter if adapter.has_tokenizer else _tokenizer_beside(adapter)
        if self.options.base is None and CONFIG in adapter and (adapter.has_weights or _has_weights(remote)):
            # Beside a whole model, which it belongs to.
            remote = None if adapter.has_weights else remote
            return Snapshot(shown, adapter, own_tokenizer, remote, adapter, base=shown)
        base, revision = _base_of(adapter) if self.options.base is None else split_revision(self.options.base)
        with _about_base(shown, base):
            own = self._replace(options=replace(self.options, base=None))
            under = own.find(self.options.base or base, base, revision)
        if under.gguf is not None or under.adapter is not None:
            kind = "a GGUF file" if under.adapter is None else "an adapter itself"
            raise LoadError(
                f"the base of {visible(shown)}, {visible(base)}, is {kind}; merge an adapter with peft's "
                "merge_and_unload, save the model, and name it by --base"
            )
        tokenizer = own_tokenizer if own_tokenizer.has_tokenizer else under.tokenizer
        return replace(under, name=shown, tokenizer=tokenizer, adapter=adapter, base=under.name)

    def on_hub(self, shown: str, name: str, revision: str) -> tuple[str, CheckpointFolder, HubFolder | None]:
        """Return what views call a checkpoint on the hub, its files in the local cache, and where on the hub it is."""
        repository, inside = split_name(name)
        folder = cached_snapshot(repository, revision) / inside
        if self.is_here:
            return shown, CheckpointFolder(_only_checkpoint(folder)), None
        if folder.is_dir() and self.is_whole(files := CheckpointFolder(folder)):
            return shown, files, None
        from attncli.checkpoints.hub import Repository, not_found

        there = Repository(repository, revision, self.options.offline, shown)
        part = "tokenizer" if self.for_tokenizer else "configuration"
        if there.sizes is None:
            folder = _only_checkpoint(there.root / inside, shown) if (there.root / inside).is_dir() else there.root
            if not any((folder / each).is_file() for each in (*_MARKERS[:2], *["tokenizer.json"] * self.for_tokenizer)):
                raise not_found(shown, part, there.is_offline)
            return _with_folder(shown, folder, there.root), CheckpointFolder(folder), None
        if inside or there.sizes.keys().isdisjoint((CONFIG, ADAPTER)):
            inside = _only_inside(shown, there, inside)
        configs = {f"{inside}/{each}".lstrip("/") for each in (CONFIG, ADAPTER)}
        if not self.for_tokenizer and configs.isdisjoint(there.sizes):
            raise not_found(shown, part, there.is_offline)
        small = _small_files(there.sizes, inside)
        there.fetch(small, "tokenizer" if self.for_tokenizer else "model")
        start = f"{inside}/" if inside else ""
        own = {file.removeprefix(start): size for file, size in there.sizes.items() if file.startswith(start)}
        folder = there.root / inside
        remote = HubFolder(repository, there.root.name, start, own)
        return _with_folder(shown, folder, there.root), CheckpointFolder(folder), remote

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
        from attncli.checkpoints.suggestions import nearby  # needed for an error alone

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


@contextmanager
def _about_base(adapter: str, base: str) -> Iterator[None]:
    """Let an error say that it is about the base of an adapter."""
    try:
        yield
    except LoadError as error:
        raise LoadError(f"the base of {visible(adapter)}: {error}; --base names another") from None


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


def _tokenizer_beside(files: CheckpointFolder) -> CheckpointFolder:
    """Return the files of a tokenizer for a checkpoint without one; its own where there is none.

    That of a diffusers text encoder stands beside it. That of a checkpoint-500 is where the training has put the rest.
    """
    folder = files.path.absolute()
    if _OF_TRAINING.fullmatch(folder.name):
        above = CheckpointFolder(folder.parent)
        return above if above.has_tokenizer else files
    if folder.name.startswith("text_encoder") and (folder.parent / "model_index.json").is_file():
        beside = folder.with_name(folder.name.replace("text_encoder", "tokenizer"))
        return CheckpointFolder(beside) if beside.is_dir() else files
    return files


# --- checkpoints in the folders of a folder --------------------------------------------------------------------------


def _only_checkpoint(folder: Path, name: str | None = None) -> Path:
    """Return the folder itself if it has a checkpoint, or the only one in it that does; itself if there is none.

    Args:
        folder: where to look.
        name: of it on the hub, if it is a repository's.

    Raises:
        LoadError: there are several.
    """
    path = folder
    for _ in range(_DEEPEST):
        if _has_config(path):
            return path
        found = _inner(path)
        if len(found) > 1:
            names = [visible(each.name) for each in found]
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            what = f"the folder {visible(str(path))}" if name is None else f"{visible(name)}, on the hub,"
            one = "one of them" if name is None else f"one of them, as in {visible(name)}/{names[0]}"
            listed = ", ".join(names[:_LISTED])
            raise LoadError(f"{what} holds {len(names)} checkpoints: {listed}{more}; give {one}")
        if not found:
            break
        path = found[0]
    return path if _has_config(path) else folder


def _has_config(folder: Path) -> bool:
    return any(os.path.isfile(folder / name) for name in (CONFIG, ADAPTER))


def _inner(folder: Path) -> list[Path]:
    """Return the folders that hold the checkpoints of one that is none itself, in the order of their numbers."""
    if (folder / "modules.json").is_file():
        found = [each for each in _modules(folder) if CheckpointFolder(each).is_checkpoint]
    elif (folder / "model_index.json").is_file():
        found = [each for each in _subfolders(folder) if each.name.startswith("text_encoder")]
    elif (folder / "snapshots").is_dir():
        current = snapshot_in(folder, "main")
        found = [current] if current.is_dir() else _subfolders(folder / "snapshots")
    elif folder.name == "snapshots" and (folder.parent / "refs").is_dir():
        return _inner(folder.parent)
    else:
        found = [each for each in _subfolders(folder) if _has_config(each) and CheckpointFolder(each).is_checkpoint]
    return sorted(found, key=_by_numbers)


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in islice(entries, MOST_ENTRIES) if entry.is_dir()]
    except OSError:
        return []


def _modules(folder: Path) -> list[Path]:
    """Return the folders of the modules of sentence-transformers."""
    try:
        check_file(folder / "modules.json", MOST_TEXT)
        listed = json.loads((folder / "modules.json").read_bytes())
        names = [str(each["path"]) for each in listed if isinstance(each, dict) and each.get("path")]
    except (OSError, ValueError, TypeError, RecursionError):
        return []
    inside = [folder / name for name in names if not os.path.isabs(name) and ".." not in Path(name).parts]
    return [each for each in inside if each.is_dir()]


def _by_numbers(path: Path) -> list[tuple[int, str]]:
    """Return what sorts checkpoint-500 before checkpoint-1000."""
    return [(int(part) if part.isdecimal() and len(part) < 20 else -1, part) for part in re.split(r"(\d+)", path.name)]


# --- folders of a repository on the hub ------------------------------------------------------------------------------


def _only_inside(shown: str, there: Repository, inside: str) -> str:
    """Return the folder of the only checkpoint in a repository, or in a folder of it; itself if there is none."""
    assert there.sizes is not None
    start = inside + "/" if inside else ""
    below = [PurePosixPath(file) for file in there.sizes if file.startswith(start)]
    depth = len(PurePosixPath(inside).parts) + _DEEPEST
    markers = sorted(str(path) for path in below if path.name in _MARKERS and len(path.parts) <= depth + 1)
    there.fetch(markers[:MOST_ENTRIES], "configuration")
    if not (there.root / inside).is_dir():
        return inside
    found = _only_checkpoint(there.root / inside, shown).relative_to(there.root).as_posix()
    return "" if found == "." else found


def _with_folder(shown: str, folder: Path, root: Path) -> str:
    """Return what views call a checkpoint of a repository: with the folder that it is in."""
    name, at, revision = shown.partition("@")
    inside = folder.relative_to(root).parts
    return "/".join([*name.split("/")[:2], *inside]) + at + revision


def _small_files(sizes: Mapping[str, int], inside: str) -> list[str]:
    """Return the files of a checkpoint in a repository, and of the tokenizer beside it, that are always downloaded.

    An adapter's weights are among them, those of a model are not.
    """
    folder = PurePosixPath(inside)
    places = {folder, folder / TEMPLATES}
    if inside:
        places |= {folder.parent, folder.with_name(folder.name.replace("text_encoder", "tokenizer"))}
    found = []
    for file, size in sizes.items():
        path = PurePosixPath(file)
        is_adapter = path.parent == folder and path.name in (ADAPTER_WEIGHTS, ADAPTER_PICKLE)
        is_text = path.name.endswith(TEXTS) and path.name != "trainer_state.json" and size <= MOST_TEXT
        if is_adapter or (is_text and path.parent in places):
            found.append(file)
    return found


def _has_weights(remote: HubFolder | None) -> bool:
    return remote is not None and not remote.sizes.keys().isdisjoint((WEIGHTS, WEIGHTS_INDEX))
