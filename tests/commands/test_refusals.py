"""Bad requests of the commands: one sentence on stderr, an exit code, and nothing on standard output."""

import shlex
from collections.abc import Callable
from typing import Any

import pytest
from refusals import refused

MOST = " ".join("abcdefghi")
COPY = "ablate 'one two three four one two'"
FISH = "why -m demo 'the cat saw the dog'"

REFUSED = {
    "diff one": (2, "one sentence to compare; give two, or one with two checkpoints: -m A -m B"),
    "diff one two 'three and four'": (2, "more than two sentences to compare; give two"),
    "diff 'so it goes' 'time flies' -m a -m b": (2, "compares two checkpoints on one sentence; for many, run attn"),
    "diff --from a.safetensors": (2, "--from is given once; give it twice"),
    "diff --from a --from b": (5, "trace file a does not exist"),
    "diff 'time flies' 'cats sleep'": (5, "the two sentences share no token; give two that do"),
    "diff 'time flies' 'time flew' -q flies": (2, "only A has it; the tokens that both have are: time"),
    "diff 'time flies' 'time flew' -o x.tsv": (2, "of three checkpoints or more; of two give -F json"),
    f"{COPY} --head 9.0": (2, "--layer 9 is out of range"),
    f"{COPY} --head 2.3,1": (2, "name the layer of every head"),
    f"{COPY} --head 2.3 --layer 1": (2, "leave out --layer"),
    f"{COPY} --with ''": (2, "--with is empty"),
    f"{COPY} --next zeppelins": (5, "give one of the vocabulary"),
    f"{COPY} --next two --against two": (5, "is the next token itself; give another token"),
    f"{COPY} --loss 0": (2, "names no predicted token"),
    f"{COPY} --loss all --next one": (2, "drop one of them"),
    f"{COPY} --edges full --with mean": (2, "drop one of them"),
    f"{COPY} --engine verify": (2, "give native or transformers"),
    "tokens x --offline": (2, "--offline does not apply to --vocab words"),
    "tokens x --truncate": (2, "--truncate does not apply to the toy layer's vocabulary"),
    "tokens x -m x --vocab words": (2, "--vocab does not apply to --model"),
    "tokens x -F parquet": (2, "--format parquet writes a file"),
    "tokens x -F json -o x.tsv": (2, "--format json contradicts the ending"),
    "tokens x -o out/": (2, "--output out: expected a file ending in"),
    f"{FISH} -q 5 --composition": (2, "splits the score of one head, not of 4; give --head 0."),
    "why -m toy fish -q fish -H 0 --composition": (2, "the toy layer has its embedding alone; give --model"),
    f"{FISH} -q 0 -H 3.3 --composition": (2, "query 0 may attend to one key alone, and a margin compares two"),
    "why 'time flies'": (2, "--query is missing; name the token that attends, by its text or its index"),
    "why -m toy 'time flies' -q flees": (2, "no such query token; did you mean 'flies'?"),
    "why -m toy 'a b a' -q a": (2, "--query 'a': 2 query tokens match, at 0, 2; give an index"),
    "why 'a b' -q a -q b": (2, "--query is given 2 times; give it once"),
    "why 'a b' -q a -o why.tsv": (2, "expected a file ending in .json, .svg"),
    "heads x --metrics sink,entrpy": (2, "did you mean 'entropy'?"),
    "heads x --layer 4": (2, "out of range"),
    "heads x --query nowhere": (2, "no such query token"),
    "heads x -F parquet": (2, "give --output"),
    "heads x -o heads/": (2, "attn heads writes one table, not a folder; attn inspect -o FOLDER/ --show"),
    "heads x -o heads.png": (2, "only attn inspect draws figures; give -o heads.svg"),
    "heads x -o heads.jsonl": (2, "expected a file ending in .json, .tsv, .csv, .parquet, .svg, .html"),
    f"learn '{MOST}'": (5, "a lesson takes at most 8 words, and the text has 9; give a shorter one"),
    "learn ' '": (5, "the sentence is empty"),
    "learn 'time flies' --query fly": (2, "--query 'fly': no such query token"),
    "learn --seed -1": (2, "--seed -1: expected 0 to 2^63 - 1"),
    "learn causal": (2, "'causal' is read as a text here; for the lesson, use attn learn --lesson causal"),
    "learn --lesson casual": (2, "did you mean 'causal'?"),
    "inspect fish -o x.jsn": (2, "expected a file ending in .json, "),
    "ablate fish -m toy": (2, "attn ablate reads a checkpoint, and toy is none; give -m demo"),
    "inspect x -o out/ --on dask": (2, "--on dask: expected ray, or a cluster such as ray://"),
    "inspect x -F json -o out/": (2, "--format json does not apply to a folder, whose parts are parquet, jsonl, tsv"),
    "inspect x -F json -j 0": (2, "--jobs 0: expected a number of processes from 1 to 1024, or auto"),
    "inspect x -m demo --device cuda --device-map auto": (2, "drop one of them"),
    "mask model 'time flies'": (2, "give the checkpoint with -m: attn mask model -m demo"),
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_a_bad_request_is_one_sentence(line: str, attn: Callable[..., Any]) -> None:
    code, message = REFUSED[line]
    refused(attn(*shlex.split(line)), code, message)
