"""What `s` writes: byte for byte what the shown command line writes, and nothing where something is wrong."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attncli.engines.interactive import Query
from attncli.errors import InputError
from attncli.explore.command import Given, Seen
from attncli.explore.look import Look
from attncli.explore.saving import Saving

DEMO = Given(("-m", "demo", "--colormap", "cividis"))
LOOK = Look(Query("time flies"), layer=1, head=2, held=Query("fruit flies"), ramp="sqrt")
ALONE = Look(Query("time flies", mask="causal & window(2)"), layer=1, head=2, numbers="norms")


@pytest.mark.parametrize(
    ("seen", "name", "command"),
    [
        (Seen(ALONE), "a.svg", "inspect"),
        (Seen(LOOK), "a.html", "diff"),
        (Seen(LOOK, "map"), "a map.tsv", "heads"),
        (Seen(LOOK, "why"), "-a.JSON", "why"),
        (Seen(LOOK, "why"), "a.safetensors", "inspect"),
        (Seen(Look(Query("-")), "heads"), "a.json", "inspect"),
    ],
)
def test_a_file_is_what_its_line_writes(
    seen: Seen, name: str, command: str, folder: Path, attn: Callable[..., Any]
) -> None:
    said = Saving(DEMO)(seen, Path(name))
    stdin = "-\n" if said.startswith("saved: echo - | ") else None
    words = shlex.split(said.rpartition(" | ")[2].removeprefix("saved: "))
    assert words[:2] == ["attn", command]
    written = Path(name).read_bytes()
    Path(name).unlink()
    ran = attn(*words[1:], stdin=stdin)
    assert (ran.code, Path(name).read_bytes()) == (0, written)


def test_a_file_that_is_there_takes_its_name_twice(folder: Path) -> None:
    save, path = Saving(Given()), Path("a.tsv")
    path.write_text("mine")
    for other in (path, Path("b.tsv"), path):  # what is written between asks again
        if other.exists():
            with pytest.raises(InputError, match=r"a\.tsv is there already; saved under the same name again"):
                save(Seen(Look(Query("time"))), other)
        else:
            save(Seen(Look(Query("time"))), other)
        assert path.read_text() == "mine"
    save(Seen(Look(Query("time"))), path)
    assert path.read_text().startswith("sentence\tlayer")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.exe", "time", r"--output a\.exe: expected a file ending in"),
        ("missing/a.svg", "time", "missing"),
        ("a.svg", "", "the text is empty|is empty"),
        ("/dev/full", "time", "No space left on device"),
        ("~nobody-here/a.svg", "time", "~nobody-here/a.svg names no folder"),
        ("a.svg", "a" * 200_000, "Argument list too long"),
    ],
)
def test_what_is_not_written_is_said_in_a_sentence(name: str, text: str, said: str, folder: Path) -> None:
    save = Saving(Given())
    if name == "/dev/full":
        with pytest.raises(InputError):
            save(Seen(Look(Query(text))), Path(name))
    with pytest.raises(InputError, match=said) as raised:
        save(Seen(Look(Query(text))), Path(name))
    assert "\n" not in str(raised.value)
    assert not list(folder.iterdir())
