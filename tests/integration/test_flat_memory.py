"""Memory of a stream: it does not grow with the number of its sentences."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import minilm_folder

# The peak is the kernel's, of a process that has nothing else to do.
_CODE = """
import resource, sys
from attncli.cli import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    assert not end.code
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def peak(*arguments: str, sentences: Path) -> int:
    """Run a command over a file, and return the most memory that it took, in KiB."""
    command = [sys.executable, "-c", _CODE, *arguments, "--file", str(sentences)]
    ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    return int(ran.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    ("arguments", "few"),
    [
        (["inspect", "-F", "jsonl", "--num-heads", "1"], 200),
        (["inspect", "-F", "tsv", "--num-heads", "1"], 200),
        (["tokens", "-F", "csv"], 200),
        (["heads", "-F", "tsv"], 100),
        (["inspect", "-F", "tsv", "-m", minilm_folder(), "--engine", "native", "--head", "0"], 50),
        (["heads", "-F", "tsv", "-m", minilm_folder(), "--engine", "native"], 10),
    ],
    ids=lambda given: " ".join(given[:4]) if isinstance(given, list) else "",
)
def test_memory_is_flat(arguments: list[str], few: int, tmp_path: Path) -> None:
    peaks = []
    for count in (few, 20 * few):
        path = tmp_path / f"{count}.txt"
        path.write_text("".join(f"time flies like arrow number {number}\n" for number in range(count)))
        peaks.append(peak(*arguments, sentences=path))
    assert peaks[1] <= 1.1 * peaks[0], peaks
