"""Panes of the explorer: each a function from a view and its room to a block."""
