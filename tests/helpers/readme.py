"""The examples and pictures of README and docs/: found, run, and written anew.

`python tests/helpers/readme.py` writes all pages, and `… docs/tutorial/tour.md README.md` these.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from base64 import b64encode
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
INSTALLED = Path(sys.executable).parent
_EXAMPLE = re.compile(r"```console\n\$ (?P<command>.*)\n(?P<output>(?:.*\n)*?)```\n(?=<!-- shows (?P<shows>.*) -->\n|)")
_PICTURE = re.compile(r"^(?P<command>attn .* -o (?P<path>docs/\S+))$", re.MULTILINE)
_SCREEN = re.compile(
    r"^(?P<command>attn .*)\n```\n\n!\[[^\]]+\]\(\S*(?P<path>screens/\S+)"
    r' "(?P<columns>\d+)×(?P<lines>\d+)(?:, after (?P<keys>.*))?"\)$',
    re.MULTILINE,
)
# The last digits of a proof or of a change that is rounding belong to the processor, and so do seconds; the versions of
# Python and Ray to the machine.
_MACHINE = re.compile(
    r"(?<== )\d\.\de-\d\d(?=</text>|$)|\d\.\de-\d\d(?= +rounding$)|(?:(?<= call, )|(?<= calls, ))\d+\.\d s"
    r"|(?<=the same version {19})\S.*|\b\de-\d\b|(?<=at most )0\.\d+, \d\.\d×"
    r"|(?<=rounding gives )[\de.-]+(?=\. )|(?<=\(undone: )[\de.-]+",
    re.MULTILINE,
)

_FOUR_DECIMALS = re.compile(r"-?\b\d+\.\d{4}\b")


class Example(NamedTuple):
    """A command on a page, the output that stands there, and the pattern that any output has to show."""

    page: str
    command: str
    output: str
    shows: str | None


def pages() -> dict[str, str]:
    paths = [README, *sorted((ROOT / "docs").rglob("*.md"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def examples() -> list[Example]:
    return [
        Example(page, match["command"], match["output"], match["shows"])
        for page, text in pages().items()
        for match in _EXAMPLE.finditer(text)
    ]


def pictures(texts: dict[str, str] | None = None) -> dict[str, str]:
    found = (match for text in (texts or pages()).values() for match in _PICTURE.finditer(text))
    return {match["path"]: match["command"] for match in found}


def drawn(path: str, folder: Path, environment: dict[str, str]) -> str:
    own = Path(tempfile.mkdtemp(dir=folder))
    bring_materials(own)
    (own / path).parent.mkdir(parents=True, exist_ok=True)
    printed = ran(pictures()[path], own, environment)
    assert not printed, printed
    return (own / path).read_text(encoding="utf-8")


class Screen(NamedTuple):
    """A command, the terminal that it is run in, and the keys that follow, for the explorer.

    Of a command that writes a page it is the window of a browser, in pixels.
    """

    command: str
    columns: int
    lines: int
    keys: str

    @property
    def page(self) -> str:
        *_, last = self.command.split()
        return last if last.endswith(".html") else ""

    def in_browser(self, folder: Path, environment: dict[str, str]) -> str:
        from playwright.sync_api import sync_playwright

        bring_materials(folder)
        assert not (printed := ran(self.command, folder, environment)), printed
        size: Any = {"width": self.columns, "height": self.lines}
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
            page = browser.new_context(offline=True, viewport=size, device_scale_factor=1.5).new_page()
            page.goto((folder / self.page).as_uri())
            page.wait_for_selector("#heads[data-drawn]", state="attached")
            shown = b64encode(page.screenshot()).decode()
            browser.close()
        opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.columns}" height="{self.lines}">'
        return f'{opening}<image width="100%" height="100%" href="data:image/png;base64,{shown}"/></svg>\n'

    def drawn(self, folder: Path, environment: dict[str, str], commands: Path | str = INSTALLED) -> str:
        from rich.console import Console
        from rich.text import Text

        from attncli.formats.pictures import Drawing, write_svg
        from attncli.render.block import block

        if self.page:
            return self.in_browser(folder, environment)
        if self.command.startswith("attn explore"):
            from explored import screen_of

            lines: list[Any] = screen_of(self.command, self.columns, self.lines, self.keys, environment)
        else:
            size = {"COLUMNS": str(self.columns), "LINES": str(self.lines)}
            terminal = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
            bring_materials(folder)
            command = f"script -qec {shlex.quote(self.command + ' 2>notes')} /dev/null"
            shown = ran(command, folder, environment | size | terminal, commands) + (folder / "notes").read_text()
            console = Console(width=self.columns, color_system="truecolor", force_terminal=True, _environ={})
            texts = Text.from_ansi(shown.replace("\r\n", "\n").rstrip("\n")).wrap(console, self.columns)
            assert len(texts) < max(self.lines, 40), (self.command, len(texts))
            lines = [[part for part in text.render(console) if part.text] for text in texts]
        title = f"attn in a terminal of {self.columns} columns and {self.lines} lines"
        return "".join(write_svg([Drawing(title, block(lines))], "attn"))


def screens(texts: dict[str, str] | None = None) -> dict[str, Screen]:
    found = (match for text in (texts or pages()).values() for match in _SCREEN.finditer(text))
    return {
        f"docs/{m['path']}": Screen(m["command"], int(m["columns"]), int(m["lines"]), m["keys"] or "") for m in found
    }


def bring_materials(folder: Path) -> None:
    programs = "docs/masks/programs"
    shutil.copytree(ROOT / programs, folder / programs)  # from which README runs them
    shutil.copytree(ROOT / programs, folder, dirs_exist_ok=True)
    shutil.copytree(ROOT / "docs/cookbook/files", folder, dirs_exist_ok=True)


def bring_models(command: str, folder: Path) -> None:
    if "smollm2.gguf" in command:
        from smollm import smollm_file

        (folder / "smollm2.gguf").symlink_to(smollm_file())
    if "rxnmapper" in command:
        from rxnmapper import rxnmapper_folder

        (folder / "rxnmapper").symlink_to(rxnmapper_folder())
    for name in ("demo-onnx", "demo-full"):
        if name in command:
            (folder / name).symlink_to(demo_exports() / name)


@cache
def demo_exports() -> Path:
    """The demo model, exported to ONNX by the script that the page names."""
    folder = Path(tempfile.mkdtemp())
    export = [sys.executable, str(ROOT / "docs/cookbook/files/export.py"), "--both"]
    subprocess.run(export, cwd=folder, check=True, capture_output=True)
    return folder


def ran(command: str, folder: Path, environment: dict[str, str], commands: Path | str = INSTALLED) -> str:
    own = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    finished = subprocess.run(
        ["bash", "-c", command], cwd=folder,
        env={name: value for name, value in environment.items() if name not in {"FORCE_COLOR", "NO_COLOR"}} | own,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, encoding="utf-8", check=False,
    )  # fmt: skip
    return finished.stdout


def arguments_of(command: str) -> list[str] | None:
    """The arguments of a run of `attn` of which a shell does no more than hand them over; None for other commands."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    program, *arguments = lexer
    is_plain = program == "attn" and "$" not in command and not any(set(word) <= set("|&;<>()") for word in arguments)
    return arguments if is_plain else None


def comparable(output: str) -> str:
    return _MACHINE.sub("…", output)


def is_same(one: str, other: str) -> bool:
    """Whether two outputs agree: word for word, and where a number has four decimals, as far as float32 promises."""
    texts = [comparable(one), comparable(other)]
    if len({_FOUR_DECIMALS.sub("#", text) for text in texts}) > 1:
        return False
    numbers = zip(*(map(float, _FOUR_DECIMALS.findall(text)) for text in texts), strict=True)
    return all(isclose(mine, theirs, rel_tol=1e-4, abs_tol=2e-4) for mine, theirs in numbers)


def main() -> None:
    import recording
    from small_checkpoints import hub_cache, minilm_folder

    chosen = {page: text for page, text in pages().items() if page in sys.argv[1:] or not sys.argv[1:]}
    os.environ.pop("COLUMNS", None)
    with tempfile.TemporaryDirectory() as name:
        environment = hub_cache(Path(name, "cache"), "sentence-transformers/all-MiniLM-L6-v2", minilm_folder())

        def printed(match: re.Match[str]) -> str:
            with tempfile.TemporaryDirectory() as folder:
                bring_materials(Path(folder))
                bring_models(match["command"], Path(folder))
                return f"```console\n$ {match['command']}\n{ran(match['command'], Path(folder), environment)}```\n"

        for page, text in chosen.items():
            (ROOT / page).write_text(_EXAMPLE.sub(printed, text), encoding="utf-8")
        for path in pictures(chosen):
            (ROOT / path).write_text(drawn(path, Path(name), environment), encoding="utf-8")
        for path, screen in screens(chosen).items():
            with tempfile.TemporaryDirectory() as folder:
                (ROOT / path).write_text(screen.drawn(Path(folder), environment), encoding="utf-8")
    if not sys.argv[1:]:
        recording.write()


if __name__ == "__main__":
    main()
