"""How masks are written: the atoms of an expression, what each means, and what a mask file ends in; without NumPy."""

from __future__ import annotations

from typing import NamedTuple

MOST = 999_999_999  # the largest number in an expression, and of keys before the first query
ENDINGS = (".npy", ".safetensors", ".pt", ".csv")


class Notation(NamedTuple):
    """How an atom is written, and when a query at position i may attend to key j."""

    usage: str
    meaning: str


NOTATION = {
    "full": Notation("full", "always"),
    "causal": Notation("causal", "j ≤ i"),
    "window": Notation("window(w)", "i−w < j ≤ i: w keys, the query's own among them"),
    "band": Notation("band(left,right)", "i−left ≤ j ≤ i+right"),
    "prefix": Notation("prefix(n)", "j ≤ i or j < n"),
    "docs": Notation("docs(3,2,…)", "both in the same document, of these lengths"),
    "chunk": Notation("chunk(c)", "both in the same chunk of c"),
    "dilated": Notation("dilated(w,step)", "j ≤ i, i−j a multiple of step, at most w keys"),
    "global": Notation("global(a,…)", "i or j is one of these"),
    "pad": Notation("pad(left=n) or pad(right=n)", "j is not one of the first, or last, n keys"),
    "pad(left)": Notation(
        "pad or pad(left)", "j is a token of its row of the batch; in attn run, and in attn mask with --lengths"
    ),
    "keys": Notation("keys(a,b)", "j is in a..b−1"),
    "queries": Notation("queries(a,b)", "i is in a..b−1"),
    "file": Notation('file("mask.npy")', "the file says so: True or 1 = may attend, or additive"),
    "alibi": Notation("alibi(heads)", "always: a bias of −slope·|i−j|; in attn run --expect"),
}
