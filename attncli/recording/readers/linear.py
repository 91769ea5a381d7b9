"""`torch.nn.Linear`, of which queries and keys come."""

from __future__ import annotations

from typing import Any

import torch

from attncli.recording.readers.origins import has_values
from attncli.recording.readers.reader import Reader, ThreadContext


class LinearReader(Reader):
    """Remembers what linear layers gave."""

    def __init__(self, context: ThreadContext) -> None:
        super().__init__(context)
        self.modules = {torch.nn.Linear.forward: self._ended}

    def _ended(self, module: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if has_values(output) and output.shape[-2:-1] != (1,):  # of one position nothing new is shown
            self.context.projected.put(output, module)
