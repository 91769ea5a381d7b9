"""A program as a user writes it, which nobody runs: mypy finds each mistake, and no other line (see `.ci/run`)."""

import numpy as np

import attncli

trace: attncli.Trace = attncli.inspect("time flies", num_heads=2, rng="torch", layer="all", mask="causal")
hits: float = attncli.heads(model="gpt2", pairs="pairs.jsonl").heads[0].hits
attncli.mask("causal", queries=8).to("flash")  # type: ignore[arg-type]
attncli.mask(np.ones((4, 4), bool), api="mha").check("causal", lengths=[4])
trace.layer(0).head(1).plot(size="3.3in", ramp="log").savefig("head.pdf")
trace.layer(0).head(1).plot(size=3.3)  # type: ignore[arg-type]
