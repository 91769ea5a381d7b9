"""Agreement of two runs of a checkpoint: the first stage of attention at which they part, and the cause.

`compare` walks through the layers of both runs, a `question` is one array that differs, `causes` solves for candidates.
"""
