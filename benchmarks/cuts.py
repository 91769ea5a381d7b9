"""How long every head of a model takes to be cut alone: `python benchmarks/cuts.py MODEL [--rounds N]`.

It prints the processor's time of one forward pass over 20 tokens and of `attn ablate --each`, in turn A B A B, the
ratio of their medians, and how much more memory the second takes at most. The exit code is 1 above 25 times, or 1.2.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from attncli.encoding.encode import EncodedInput
from attncli.engines.engine import open_predictor
from attncli.engines.predictor import Cut, Measure, Predictor, Replacement

TIMES, MEMORY = 25, 1.2
TOKENS = 20
TEXT = "When Mary and John went to the store, John gave a drink to Mary, who had been waiting for it all day long"


def opened(model: str) -> tuple[Predictor, EncodedInput, list[Cut]]:
    predictor = open_predictor(model, special=True, truncate=False)
    sentence = predictor.encoder.encode(TEXT, None, None)
    ids = {name: values[:TOKENS] for name, values in sentence.inputs.items()}
    cuts: list[Cut] = [{layer: (head,)} for layer in range(predictor.layers) for head in range(predictor.heads)]
    return predictor, sentence._replace(inputs=ids, tokens=type(sentence.tokens)(sentence.tokens[:TOKENS])), cuts


def peak(model: str, is_each: bool) -> int:
    """Return the most memory that one of them takes in a process of its own, in kilobytes."""
    predictor, sentence, cuts = opened(model)
    predictor.effects(sentence, cuts if is_each else [], Replacement(), Measure())
    # `ru_maxrss` would be at least that of the process that started this one.
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    predictor, sentence, cuts = opened(options.model)

    def seconds(chosen: list[Cut]) -> float:
        start = time.process_time()
        predictor.effects(sentence, chosen, Replacement(), Measure())
        return time.process_time() - start

    work: list[Callable[[], float]] = [lambda: seconds([]), lambda: seconds(cuts)]
    rounds = [[each() for each in work] for _ in range(options.rounds + 1)][1:]  # the first one reads the file
    one, every = (statistics.median(column) for column in zip(*rounds, strict=True))
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        before, after = (pool.apply(peak, (options.model, is_each)) for is_each in (False, True))
    print(f"{len(cuts)} heads, {len(sentence.tokens)} tokens, {os.cpu_count()} cores")
    print(f"one pass {one:.2f} s, every head alone {every:.2f} s: {every / one:.1f} times (at most {TIMES})")
    print(f"memory {before / 1e3:.0f} and {after / 1e3:.0f} MB: {after / before:.2f} times (at most {MEMORY})")
    return int(every / one > TIMES or after / before > MEMORY)


if __name__ == "__main__":
    sys.exit(main())
