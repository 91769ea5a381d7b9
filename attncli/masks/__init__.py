"""Masks: the expressions that describe them, the files that hold them."""
