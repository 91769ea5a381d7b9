"""`--on`: what is not computed elsewhere is refused before Ray is started, or a cluster looked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
        (
            "heads --file lines.txt --on dask",
            "--on dask: expected ray, or ray://HOST:PORT of a cluster, such as ray://",
        ),
        ("heads --file lines.txt --on ray://", "--on ray://: expected ray, or ray://HOST:PORT"),
        ("heads --file lines.txt --on ray://a/b", "--on ray://a/b: expected ray, or ray://HOST:PORT"),
        ("heads a --on ray", "--on applies to --file FILE, FOLDER or URL, which every machine reads for itself"),
        ("heads --file - --on ray", "--on applies to --file FILE, FOLDER or URL"),
        ("inspect a --on ray -F jsonl", "--on applies to --file FILE, FOLDER or URL"),
        ("heads --induction -m demo --on ray", "--on does not apply to --induction, which draws its tokens"),
        ("heads --merge lines.txt --on ray", "--on does not apply to --merge, which reads what was measured already"),
        ("heads --file lines.txt --on ray --device-map auto", "--device-map does not apply to --on, where each"),
        ("heads --file lines.txt --on ray --device cuda:1", "--device cuda:1 does not apply to --on, where Ray"),
        ("heads --file lines.txt --on ray --jobs 0", "--jobs 0: expected a number of processes from 1 to 1024"),
        ("inspect --file lines.txt --on ray", "--on does not apply to table, which is drawn; give --format jsonl"),
        ("inspect --file lines.txt --on ray -o x.html", "--on does not apply to html, which is drawn"),
        ("inspect --file lines.txt --on ray --save x.safetensors", "--on does not apply to --save, which keeps"),
        ("inspect --file lines.txt --on ray -o x.jsonl --resume", "--on does not apply to --resume of a file; give -o"),
        ("tokens --file lines.txt --on ray", "no such option: --on"),
        ("diff --file lines.txt -m demo -m demo --on ray", "no such option: --on"),
    ],
)
def test_what_is_not_computed_elsewhere_is_refused(attn: Run, arguments: str, why: str) -> None:
    ran = attn(*arguments.split())
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(f"attn: {why}")
    assert [path.name for path in Path().iterdir()] == ["lines.txt"]


@pytest.mark.parametrize("command", ["heads", "inspect -F jsonl"])
@pytest.mark.parametrize(("address", "named"), [("", ", which RAY_ADDRESS names"), ("://127.0.0.1:1", "")])
def test_a_cluster_that_does_not_answer_is_exit_code_3(attn: Run, command: str, address: str, named: str) -> None:
    pytest.importorskip("ray.data")
    ran = attn(*command.split(), "--file", "lines.txt", "--on", f"ray{address}")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == f"attn: cannot reach the Ray cluster at 127.0.0.1:1{named}: Connection refused\n"
