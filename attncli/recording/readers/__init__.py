"""Readers of the attention of torch code: one module for each way to compute it."""
