"""Agreement of two runs of a checkpoint: the first stage of attention at which they part, and the cause.

`stages` computes a layer stage by stage, `sides` reads both runs, `causes` solves for candidates, `compare` joins them.
"""
