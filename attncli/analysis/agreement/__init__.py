"""Agreement of two runs of a checkpoint: the first stage of attention at which they part, and the cause."""
