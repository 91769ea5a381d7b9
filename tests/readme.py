"""The README's examples and pictures: found, run, and written anew by `python tests/readme.py`."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
_EXAMPLE = re.compile(r"```console\n\$ (?P<command>.*)\n(?P<output>(?:.*\n)*?)```\n")
_PICTURE = re.compile(r"^(?P<command>attn .* -o (?P<path>docs/\S+))$", re.MULTILINE)
# A proof's last digits, and those of a change that is rounding, belong to the processor.
_MACHINE = re.compile(r"(?<== )\d\.\de-\d\d(?=</text>|$)|\d\.\de-\d\d(?= +rounding$)", re.MULTILINE)


def examples() -> dict[str, str]:
    """Every command of the README with the output it shows."""
    return {match["command"]: match["output"] for match in _EXAMPLE.finditer(README.read_text(encoding="utf-8"))}


def pictures() -> dict[str, str]:
    """Every picture of the README, by its path in the repository, with the command that draws it."""
    return {match["path"]: match["command"] for match in _PICTURE.finditer(README.read_text(encoding="utf-8"))}


def drawn(path: str, folder: Path, environment: dict[str, str]) -> str:
    """A picture as its command draws it now, in a folder of its own."""
    (folder / path).parent.mkdir(exist_ok=True)
    said = ran(pictures()[path], folder, environment)
    assert not said, said
    return (folder / path).read_text(encoding="utf-8")


def ran(command: str, folder: Path, environment: dict[str, str]) -> str:
    """What a command prints, both streams, in a folder of its own and without a terminal."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plain = {name: value for name, value in environment.items() if name not in {"COLUMNS", "FORCE_COLOR"}}
    finished = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=plain | {"PATH": path, "LC_ALL": "C.UTF-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        encoding="utf-8",
        check=False,
    )
    return finished.stdout


def comparable(output: str) -> str:
    """The output without what differs from one processor to the next."""
    return _MACHINE.sub("…", output)


def main() -> None:
    """Run every example, write what it printed into the README, and draw its pictures."""
    from conftest import hub_cache, minilm_folder, save_tiny_llama

    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        environment = hub_cache(home / "cache", "sentence-transformers/all-MiniLM-L6-v2", minilm_folder())
        save_tiny_llama(str(home / "tiny-llama"))
        text = README.read_text(encoding="utf-8")
        text = _EXAMPLE.sub(
            lambda match: f"```console\n$ {match['command']}\n{ran(match['command'], home, environment)}```\n", text
        )
        README.write_text(text, encoding="utf-8")
        for path in pictures():
            (README.parent / path).write_text(drawn(path, home, environment), encoding="utf-8")


if __name__ == "__main__":
    main()
