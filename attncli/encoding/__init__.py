"""Encoding: a text in; the token ids that a model reads and the tokens that are shown out."""
