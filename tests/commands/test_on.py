"""`--on`: what is not computed elsewhere is refused before Ray is started, or a cluster looked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of sentences, and no cluster that anything could be sent to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    (tmp_path / "lines.txt").write_text("time flies\n\nlike an arrow\n")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("-o out/ --on dask", "--on dask: expected ray, or a cluster such as ray://"),
        ("-o out/ --on ray://", "--on ray://: expected ray, or a cluster such as"),
        ("-o out/ --on ray://a/b", "--on ray://a/b: expected ray, or a cluster such as"),
        ("-o out/ --on ray --jobs 0", "--jobs 0: expected a number of processes from 1 to 1024"),
    ],
)
def test_what_is_not_computed_elsewhere_is_refused(attn: Run, arguments: str, why: str) -> None:
    refused(attn("inspect", "--file", "lines.txt", *arguments.split()), 2, f"attn: {why}")
    assert [path.name for path in Path().iterdir()] == ["lines.txt"]
