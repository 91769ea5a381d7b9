"""What `s` writes: byte for byte what the shown command line writes, and nothing where something is wrong."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attncli.engines.interactive import Query
from attncli.errors import InputError
from attncli.explore.command import InputSource, ViewSnapshot
from attncli.explore.exporter import Exporter
from attncli.explore.view_state import ViewState

DEMO = InputSource(("-m", "demo", "--colormap", "cividis"))
LOOK = ViewState(Query("time flies"), layer=1, head=2, held=Query("fruit flies"), ramp="sqrt")
ALONE = ViewState(Query("time flies", mask="causal & window(2)"), layer=1, head=2, numbers="norms")


@pytest.mark.parametrize(
    ("seen", "name", "command"),
    [
        (ViewSnapshot(ALONE), "a.svg", "inspect"),
        (ViewSnapshot(LOOK, "map"), "a map.tsv", "heads"),
        (ViewSnapshot(LOOK, "why"), "-a.JSON", "why"),
        (ViewSnapshot(ViewState(Query("-")), "heads"), "a.json", "inspect"),
    ],
)
def test_a_file_is_what_its_line_writes(
    seen: ViewSnapshot, name: str, command: str, folder: Path, attn: Callable[..., Any]
) -> None:
    line = Exporter(DEMO)(seen, Path(name))
    stdin = "-\n" if line.startswith("saved: echo - | ") else None
    words = shlex.split(line.rpartition(" | ")[2].removeprefix("saved: "))
    assert words[:2] == ["attn", command]
    written = Path(name).read_bytes()
    Path(name).unlink()
    ran = attn(*words[1:], stdin=stdin)
    assert (ran.code, Path(name).read_bytes()) == (0, written)


def test_a_file_that_is_there_takes_its_name_twice(folder: Path) -> None:
    save, path = Exporter(InputSource()), Path("a.tsv")
    path.write_text("mine")
    for other in (path, Path("b.tsv"), path):  # what is written between asks again
        if other.exists():
            with pytest.raises(InputError, match=r"a\.tsv exists; save again under this name"):
                save(ViewSnapshot(ViewState(Query("time"))), other)
        else:
            save(ViewSnapshot(ViewState(Query("time"))), other)
        assert path.read_text() == "mine"
    save(ViewSnapshot(ViewState(Query("time"))), path)
    assert path.read_text().startswith("sentence\tlayer")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.exe", "time", r"--output a\.exe: expected a file ending in"),
        ("missing/a.svg", "time", "missing"),
        ("a.svg", "", "the text is empty|is empty"),
        ("/dev/full", "time", "No space left on device"),
        ("~nobody-here/a.svg", "time", "~nobody-here/a.svg is in no folder"),
        ("a.svg", "a" * 200_000, "Argument list too long"),
    ],
)
def test_what_is_not_written_is_said_in_a_sentence(name: str, text: str, words: str, folder: Path) -> None:
    save = Exporter(InputSource())
    if name == "/dev/full":
        with pytest.raises(InputError):
            save(ViewSnapshot(ViewState(Query(text))), Path(name))
    with pytest.raises(InputError, match=words) as raised:
        save(ViewSnapshot(ViewState(Query(text))), Path(name))
    assert "\n" not in str(raised.value)
    assert not list(folder.iterdir())
