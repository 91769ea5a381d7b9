"""Masks: expressions and files. Here is how they are written, which help and completion read without NumPy."""

from __future__ import annotations

from typing import NamedTuple

MOST = 999_999_999  # the largest number in an expression, and of keys before the first query
ENDINGS = (".npy", ".safetensors", ".pt")


class Notation(NamedTuple):
    """Spelling of an atom, and when a query at position i may attend to key j."""

    usage: str  # the spelling
    meaning: str  # the condition
    least: int = 0  # the smallest argument that makes sense
    allows_own: bool = True  # whether every query may attend to the key at its own position

    def takes(self, arguments: int) -> bool:
        """Return whether it may be written with this many numbers; `…` is any more."""
        listed = [part for part in self.usage.partition("(")[2].rstrip(")").split(",") if part and "=" not in part]
        return arguments > 0 if "…" in listed else arguments == len(listed)


NOTATION = {
    "full": Notation("full", "always"),
    "causal": Notation("causal", "j ≤ i"),
    "window": Notation("window(w)", "i−w < j ≤ i: w keys, the query's own among them", least=1),
    "band": Notation("band(left,right)", "i−left ≤ j ≤ i+right"),
    "prefix": Notation("prefix(n)", "j < n: the first n keys", allows_own=False),
    "docs": Notation("docs(3,2,…)", "both in the same document, of these lengths", least=1),
    "chunk": Notation("chunk(c)", "both in the same chunk of c", least=1),
    "dilated": Notation("dilated(w,step)", "j ≤ i, i−j a multiple of step, at most w keys", least=1),
    "global": Notation("global(a,…)", "i or j is one of these", allows_own=False),
    "pad": Notation("pad(left=n) or pad(right=n)", "j is not one of the first, or last, n keys", allows_own=False),
    "pad(left)": Notation(
        "pad or pad(left)", "j is a token of its row of the batch; in attn run, and in attn mask with --lengths"
    ),
    "keys": Notation("keys(a,b)", "j is in a..b−1", allows_own=False),
    "queries": Notation("queries(a,b)", "i is in a..b−1", allows_own=False),
    "file": Notation('file("mask.npy")', "as in the file: True or 1 = may attend, or additive"),
}
