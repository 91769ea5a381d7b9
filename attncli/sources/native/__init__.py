"""Checkpoints of the common families, computed in NumPy: neither torch nor transformers is imported."""
