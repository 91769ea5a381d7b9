"""The texts of the benchmarks: words of a fixed list, drawn with a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

WORDS = """
time flies like an arrow fruit a banana the of and to in is was he for it with as his on be at by had not are but from
or have they which one you were her all she there would their we him been has when who will more no if out so said what
up its about into than them can only other new some could these two may then do first any my now such over man me even
most made after also did many before must through back years where much your way well down should because each just
those people how too little state good very make world still own see men work long get here between both life being
under never day same another know while last might us great old year off come since against go came right used take
three house during without again place around however home small found thought went say part once general high upon
school every water war number away something night young hand head light mountain river garden letter window teacher
doctor music paper bread stone silver winter summer morning evening horse bird fish tree flower road bridge market
village city country island ocean storm cloud rain snow wind fire smoke shadow mirror clock table chair door wall floor
kitchen bottle glass knife spoon plate apple orange lemon sugar salt butter cheese coffee story picture question answer
reason problem price money bank office factory engine machine computer science history language sentence word voice song
dance game player team field ball train ship plane captain soldier king queen prince castle forest valley desert beach
blue green red yellow black white bright dark heavy empty quiet loud happy angry clever brave gentle strong weak slow
quick early late open closed broken simple strange famous ancient modern public private walked opened carried wrote
read spoke listened laughed cried waited watched built painted bought sold lost won caught threw followed led asked
answered remembered forgot learned taught believed hoped feared loved helped moved stayed left arrived returned began
""".split()  # noqa: SIM905 - a list of quoted words would be five times as long


def vocabulary(size: int) -> list[str]:
    """Return so many words, the first of which stands for the unknown ones."""
    words = ["<unk>", *dict.fromkeys(WORDS)]
    return words + [f"w{number}" for number in range(len(words), size)]


def text(words: int, size: int) -> str:
    """Return so many words, drawn from a vocabulary of that size."""
    return " ".join(random.Random(0).choices(vocabulary(size)[1:], k=words))


def sentences(count: int) -> Iterator[str]:
    """Yield lines, each a sentence of 5 to 30 English words."""
    draw = random.Random(0)
    return (" ".join(draw.choices(WORDS, k=draw.randint(5, 30))) + ".\n" for _ in range(count))
