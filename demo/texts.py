"""The texts that the demo model learns from: those definitions of WordNet 3.0 (Fellbaum 1998) that have an example.

The others are of plants, places and people for the most part, whose names are no everyday English.
"""

from __future__ import annotations

import hashlib
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

INSTALLED = Path("/usr/share/wordnet")
PACKAGE = "wordnet-base"
DIGEST = "e993ab9092bf34b0f1b9863e2c5ca25f32b7cdd760b5dd9557e2b4d9f97f2014"  # of version 1:3.0-37


def entries(seed: int) -> list[list[str]]:
    """Return the entries in a random order, each as its sentences: a word with its definition, and its examples."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = INSTALLED if INSTALLED.is_dir() else _downloaded(Path(scratch))
        read = [_entry(line) for part in ("noun", "verb", "adj", "adv") for line in _lines(folder / f"data.{part}")]
    found = [entry for entry in read if len(entry) > 1]
    if hashlib.sha256("\n".join(" ".join(entry) for entry in found).encode()).hexdigest() != DIGEST:
        print("these are not the texts of wordnet-base 1:3.0-37: the model will be another one")
    random.Random(seed).shuffle(found)
    return found


def _downloaded(scratch: Path) -> Path:
    try:
        download = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", PACKAGE]
        subprocess.run(download, cwd=scratch, check=True)
        (package,) = scratch.glob(f"{PACKAGE}_*.deb")
        subprocess.run(["dpkg", "--extract", package, scratch], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"WordNet is not in {INSTALLED}, and apt-get cannot download {PACKAGE} ({error}); install it")
    return scratch / INSTALLED.relative_to("/")


def _lines(path: Path) -> list[str]:
    """Return the lines of a data file but for the licence at its head; wndb(5WN) describes them."""
    return [line for line in path.read_text("utf-8").splitlines() if not line.startswith(" ")]


def _entry(line: str) -> list[str]:
    """Return the first word of an entry with its definition, and then its examples."""
    fields, _, gloss = line.partition(" | ")
    word = re.sub(r"\(.*\)", "", fields.split()[4]).replace("_", " ")
    definition, *examples = re.split(r'; (?=")', gloss.strip())
    sentences = [f"{word}: {definition}", *(example.strip('"; ') for example in examples)]
    return [_sentence(each) for each in sentences if each]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text[-1:] in ".!?" else ".")
