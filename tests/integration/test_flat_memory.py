"""Memory of a stream: it does not grow with the number of its sentences."""

import subprocess
import sys
from pathlib import Path

import pytest

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
    "arguments",
    [
        ["inspect", "-F", "jsonl", "--num-heads", "1"],
        ["inspect", "-F", "tsv", "--num-heads", "1"],
        ["tokens", "-F", "csv"],
    ],
    ids=" ".join,
)
def test_memory_is_flat(arguments: list[str], tmp_path: Path) -> None:
    peaks = []
    for count in (200, 4000):
        path = tmp_path / f"{count}.txt"
        path.write_text("".join(f"time flies like arrow number {number}\n" for number in range(count)))
        peaks.append(peak(*arguments, sentences=path))
    assert peaks[1] <= 1.1 * peaks[0], peaks
