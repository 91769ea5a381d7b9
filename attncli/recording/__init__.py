"""Attention that runs now: live modules, and every attention of a running program."""
