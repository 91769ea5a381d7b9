"""Checkpoints: a name, a folder or a file in; its configuration and its tensors out."""
