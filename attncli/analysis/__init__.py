"""Traces in, plain results out; one module a question."""
