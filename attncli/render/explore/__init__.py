"""What the explorer draws: each pane a function from what is looked at and its room to a block and its places."""
