"""Where a checkpoint's files are, whatever was given: a folder, one that holds it, a name of the hub, an adapter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.checkpoints.folder import DEMO, check_folder, folder_of, is_known, opened
from attncli.checkpoints.inside import found_inside
from attncli.checkpoints.nested import ADAPTER, base_of, has_tokenizer, is_adapter, taken, tokenizer_beside
from attncli.checkpoints.tensors.lora_store import LORA, Adapter, check_adapter, read_adapter
from attncli.checkpoints.tensors.open_store import is_fetched
from attncli.checkpoints.tensors.safetensors_store import has_shards
from attncli.checkpoints.weight_checks import check_is_checkpoint, check_path
from attncli.errors import LoadError, UsageError
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions


@dataclass(frozen=True)
class Place:
    """Where a checkpoint's files are.

    Attributes:
        name: as views show it: what was given, down to the folder in it that was taken.
        model: the folder, or the name on the hub, of its configuration and its weights.
        revision: the branch, tag or commit of a name on the hub; None is the usual one.
        tokenizer: the folder of its tokenizer, where that is another one.
        adapter: the folder of the adapter that changes the weights.
        kind: of the adapter: LORA.
        base: the model under it, as views show it.
        is_partial: whether the folder is one of the hub's cache, and the tensors are fetched as they are read.
    """

    name: str
    model: str
    revision: str | None = None
    tokenizer: Path | None = None
    adapter: Path | None = None
    kind: str | None = None
    base: str = ""
    is_partial: bool = False

    @property
    def details(self) -> dict[str, str]:
        """What a trace says of it besides its name."""
        return {} if self.kind is None else {"adapter": self.kind, "base": self.base}

    def lacks(self, base: str | None) -> bool:
        """Return whether a base was asked for, and there is no adapter here to put on it."""
        return base is not None and self.adapter is None and base != self.model

    @property
    def is_here(self) -> bool:
        """Whether the model is a folder that has its weights, or ought to."""
        return os.path.isdir(self.model) and not self.is_partial

    @property
    def folder(self) -> Path:
        """The folder of the configuration and the weights; the hub's local cache has none before the download."""
        return folder_of(self.model, self.revision)

    def read_adapter(self, allow_pickle: bool) -> Adapter | None:
        """Read the adapter, of whose numbers nothing is read yet; LoadError if it is damaged."""
        return None if self.adapter is None else read_adapter(self.name, self.adapter, allow_pickle)

    def reading(self) -> AbstractContextManager[None]:
        """Return a context in which an error says so where it is about the base of an adapter, on the hub."""
        return nullcontext() if self.adapter is None or os.path.isdir(self.model) else said_of_base(self.name)

    def options(self, options: LoadOptions) -> LoadOptions:
        """Return the options that the model's own files are read with."""
        return replace(options, revision=self.revision)


@contextmanager
def said_of_base(adapter: str) -> Iterator[None]:
    """Let an error say that it is about the base of an adapter.

    Raises:
        LoadError: in place of another.
    """
    try:
        yield
    except LoadError as error:
        raise LoadError(f"the base of {visible(adapter)}: {error}; --base names another") from None


def locate(name: str, options: LoadOptions, *, for_tokenizer: bool = False) -> Place:
    """Find a checkpoint's files on this machine; a name of the hub that is not in its cache is left as it is.

    Args:
        name: a folder, a name on the hub, or `demo`, the model in the box.
        options: `base`, `revision` and `allow_pickle` say which files.
        for_tokenizer: whether a tokenizer is enough.

    Raises:
        LoadError: there is no checkpoint in the folder, or there are several, or an adapter cannot be read.
        UsageError: `base` is given for what is known to be no adapter.
    """
    check_path(name)
    given, model = name, opened(name)
    is_partial = False
    if os.path.isdir(model):
        model = taken(model)
        name = name if name == DEMO else model
    elif found := found_inside(name, options, for_tokenizer=for_tokenizer):
        name, model = found[0], str(found[1])
        is_partial = is_fetched(found[1], options)
    folder = folder_of(model, options.revision)
    if is_adapter(folder):
        return _under(name, model, options, for_tokenizer)
    is_sure = os.path.isdir(model) or is_known(folder, ADAPTER)
    if options.base not in (None, given) and is_sure:
        raise UsageError(f"--base names the model under an adapter, and {visible(given)} is none; drop it")
    if not for_tokenizer or model != given:
        check_is_checkpoint(model)
    return Place(name, model, options.revision, _tokenizer_beside(folder), is_partial=is_partial)


def _tokenizer_beside(folder: Path) -> Path | None:
    tokenizer = None if has_tokenizer(folder) else tokenizer_beside(folder)
    if tokenizer is not None:
        check_folder(tokenizer)
    return tokenizer


def _under(name: str, model: str, options: LoadOptions, for_tokenizer: bool) -> Place:
    """Return the place of an adapter and its base."""
    folder = folder_of(model, options.revision)
    check_folder(folder)
    if not for_tokenizer:
        check_adapter(name, folder)
    kind = None if for_tokenizer else LORA
    tokenizer = folder if has_tokenizer(folder) else _tokenizer_beside(folder)
    if options.base is None and os.path.isfile(folder / "config.json") and has_shards(folder):
        # Beside a whole model, which it belongs to.
        return Place(name, model, options.revision, adapter=folder, kind=kind, base=name)
    base, revision = (options.base, "") if options.base is not None else base_of(folder)
    with said_of_base(name):
        under = locate(base, replace(options, base=None, revision=revision or None), for_tokenizer=for_tokenizer)
    if under.adapter is not None:
        raise LoadError(
            f"the base of {visible(name)}, {visible(base)}, is an adapter itself; merge that one with peft's "
            "merge_and_unload, save the model, and name it by --base"
        )
    return replace(under, name=name, tokenizer=tokenizer or under.tokenizer, adapter=folder, kind=kind, base=under.name)
