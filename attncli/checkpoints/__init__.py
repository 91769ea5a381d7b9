"""Checkpoints: a name, a folder or a file in; its configuration and its tensors out."""

import os


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is the folder of a checkpoint or an adapter."""
    return any(os.path.isfile(os.path.join(path, name)) for name in ("config.json", "adapter_config.json"))
