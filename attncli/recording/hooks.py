"""Hooks on every module of a program, which leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.modules import module

from attncli.recording.notes import Notes


def on_every_module(enter: Callable[[Any, Any], None], leave: Callable[..., None], notes: Notes) -> Callable[[], None]:
    """Have modules tell when their forward begins and ends, and return what takes the hooks away.

    Args:
        enter: takes a module and its arguments before it runs.
        leave: takes a module, its arguments, keyword arguments and output after it ran; of one that failed neither
            keyword arguments nor an output come. It is called before others that are there.
        notes: takes what goes wrong in them.
    """

    def entered(each: Any, args: Any) -> None:
        try:
            enter(each, args)
        except Exception as fault:
            notes.failed(fault)

    def left(*seen: Any) -> None:
        try:
            leave(*seen)
        except Exception as fault:
            notes.failed(fault)

    before = module.register_module_forward_pre_hook(entered)
    after = module.register_module_forward_hook(left, with_kwargs=True, always_call=True)
    module._global_forward_hooks.move_to_end(after.id, last=False)  # type: ignore[attr-defined]

    def remove() -> None:
        before.remove()
        after.remove()
        # The handle forgets this, and torch.compile warns of global hooks for as long as it is there.
        module._global_forward_hooks_with_kwargs.pop(after.id, None)

    return remove
