"""A program as a user writes it, which nobody runs: mypy finds each mistake, and no other line (see `.ci/run`)."""

import numpy as np

import attncli

trace: attncli.Trace = attncli.inspect("time flies", num_heads=2, rng="torch", layer="all", mask="causal")
attncli.inspect("time flies", num_head=2)  # type: ignore[call-arg]
attncli.heads("time flies", model="gpt2", dtype="float8")  # type: ignore[call-overload]
hits: float = attncli.heads(model="gpt2", pairs="pairs.jsonl").heads[0].hits
attncli.why("time flies", query=0, head=[1], seed="3")  # type: ignore[arg-type]
attncli.check("gpt2", device=0)  # type: ignore[arg-type]
attncli.tokenize("time flies", engine="native")  # type: ignore[call-arg]
attncli.mask("causal", queries=8).to("flash")  # type: ignore[arg-type]
attncli.mask(np.ones((4, 4), bool), api="mha").check("causal", lengths=[4])
trace.layer(0).head(1).plot(size="3.3in", ramp="log").savefig("head.pdf")
trace.layer(0).head(1).plot(size=3.3)  # type: ignore[arg-type]
trace.to_dataframe("dask")  # type: ignore[call-overload]
