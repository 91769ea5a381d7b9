"""Views as files to hand to somebody: SVG, HTML and Markdown say what the terminal says, wherever they are made."""

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import program
from safetensors.numpy import save_file

Run = Callable[..., Any]

SENTENCE = "time flies like an arrow"
SVG = "{http://www.w3.org/2000/svg}"
CELL, LINE, MARGIN, BASELINE, TOP = 12.2, 24.4, 24, 20, 1.5  # of the SVG, whose pixels are three quarters of these
ENDINGS = ["svg", "html", "md"]
ELEMENTS = {*"html head meta title style body main h1 h2 pre span".split()}


class Page(HTMLParser):
    """What a browser makes of a page: elements that nest, their attributes, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []
        assert {tag for tag, _ in self.elements} <= ELEMENTS

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.setdefault(tag, []).append("")
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            self.texts[tag][-1] += data


def whole(number: float) -> int:
    """A number of cells or lines, which is one."""
    assert number == pytest.approx(round(number), abs=1e-3)
    return round(number)


def texts_of(svg: str) -> list[tuple[int, int, int, str]]:
    """Row, column, cells and words of every text of an SVG but the ends of lines."""
    found = []
    root = ElementTree.fromstring(svg)
    lines = {path.attrib["id"] for path in root.iter(f"{SVG}clipPath")}
    for text in root.iter(f"{SVG}text"):
        x, y, width = (float(text.attrib[name]) for name in ("x", "y", "textLength"))
        if (words := (text.text or "").replace("\N{NO-BREAK SPACE}", " ")) != "\n":
            assert text.attrib["clip-path"][5:-1] in lines
            found.append((whole((y - BASELINE) / LINE), whole(x / CELL), whole(width / CELL), words))
    return found


def grid_of(svg: str) -> list[str]:
    """The lines that the texts of an SVG make up, one character a cell."""
    texts = texts_of(svg)
    lines = [[" "] * 400 for _ in range(max(row for row, *_ in texts) + 1)]
    for row, column, cells, words in texts:
        assert len(words) == cells
        assert lines[row][column : column + cells] == [" "] * cells, "two texts on one cell"
        lines[row][column : column + cells] = words
    return ["".join(line).rstrip() for line in lines]


def lines_of(name: str, text: str) -> list[str]:
    """The lines of a picture's view."""
    if name == "svg":
        return grid_of(text)
    return Page(text).texts["pre"][0].split("\n")[1:-1] if name == "html" else text.split("\n")[3:-2]


def colors_of_svg(svg: str) -> dict[tuple[int, int], str]:
    """The colour behind every cell that has one."""
    cells = {}
    for box in ElementTree.fromstring(svg).findall(f"./{SVG}g/{SVG}rect"):
        x, y, width = (float(box.attrib[name]) for name in ("x", "y", "width"))
        row, first = whole((y - TOP) / LINE), whole(x / CELL)
        for column in range(first, first + whole(width / CELL)):
            assert (row, column) not in cells
            cells[row, column] = box.attrib["fill"]
    return cells


def colors_of_terminal(output: str) -> dict[tuple[int, int], str]:
    """The same of what a terminal of 16 million colours is sent."""
    cells = {}
    for row, line in enumerate(output.split("\n")):
        column, color = 0, None
        for code, characters in re.findall(r"\x1b\[([\d;]*)m|([^\x1b]+)", line):
            if characters:
                cells |= {(row, column + place): color for place in range(len(characters)) if color}
                column += len(characters)
            else:
                behind = re.search(r"48;2;(\d+);(\d+);(\d+)", code)
                color = "#{:02x}{:02x}{:02x}".format(*map(int, behind.groups())) if behind else None
    return cells


def dump(folder: Path, tokens: list[str]) -> Path:
    q = np.random.default_rng(0).standard_normal((1, len(tokens), 4), dtype=np.float32)
    save_file({"q": q, "k": q, "v": q}, folder / "odd.safetensors", metadata={"tokens": json.dumps(tokens)})
    return folder / "odd.safetensors"


# --- the same as in the terminal ---------------------------------------------------------------------------

VIEWS = [
    ["inspect", "time flies", "--pair", "fruit flies like a banana", "--mask", "causal & ~queries(1,2)"],
    ["mask", "check", "causal & window(5)", "--expect", "causal & window(4)", "--size", "8"],
    ["mask", "model", "-m", "demo", "time flies", "life is short"], ["heads", "-m", "demo", "time flies like an arrow"],
    ["check", "-m", "demo", "time flies", "--layer", "0"],
]  # fmt: skip
HINTS = re.compile(r"; -m demo is a trained model| --(?:induction|all) [^.\n]+\.|numbers of another head: --head 1\n\n")


@pytest.mark.parametrize("arguments", VIEWS, ids=lambda arguments: " ".join(arguments[:2]))
def test_a_picture_says_what_the_table_says(attn: Run, arguments: list[str]) -> None:
    table = attn(*(run := [*arguments, "--width", "300" if "demo" in arguments else "100"]))
    # In html, what `inspect` shows is a page of another kind; see test_page.py.
    for ending in (ending for ending in ENDINGS if (run[0], ending) != ("inspect", "html")):
        ran = attn(*run, "-F", ending, "--color", "never")
        assert (ran.code, ran.err) == (table.code, table.err)
        assert lines_of(ending, ran.out) == [line.rstrip() for line in HINTS.sub("", table.out).rstrip().split("\n")]


def test_the_colours_are_those_of_the_terminal(attn: Run) -> None:
    arguments = ["diff", SENTENCE, "fruit flies like an arrow", "--colormap", "cividis"]
    sent = attn(*arguments, "--color", "always", "--width", "100", COLORTERM="truecolor", TERM="xterm-256color")
    expected = colors_of_terminal(sent.out)
    assert len(expected) > 100
    assert colors_of_svg(attn(*arguments, "-F", "svg").out) == expected
    page = Page(attn(*arguments, "-F", "html").out)
    styles = [kind["style"] or "" for tag, kind in page.elements if tag == "span"]
    drawn = [
        behind[1]
        for style, text in zip(styles, page.texts["span"], strict=True)
        if (behind := re.search(r"background-color: (#\w+)", style))
        for _ in text
    ]
    assert drawn == [expected[place] for place in sorted(expected)]


# --- the same everywhere -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_picture_loads_nothing_and_does_not_depend_on_the_terminal(attn: Run, tmp_path: Path, ending: str) -> None:
    run = ("mask", "show", "causal", f"{SENTENCE} 漢字 שלום")
    assert attn(*run, "-o", tmp_path / f"x.{ending}").code == 0
    text = (tmp_path / f"x.{ending}").read_text(encoding="utf-8")
    assert "漢字" in text
    names = {"COLUMNS", "TERM", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "LC_ALL", "PYTHONIOENCODING"}
    plain = {name: value for name, value in os.environ.items() if name not in names}
    for environment in (
        {"COLUMNS": "41", "TERM": "dumb", "NO_COLOR": "1", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        {"COLUMNS": "300", "TERM": "xterm", "FORCE_COLOR": "1", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8"},
    ):
        ran = program(*run, "-F", ending, env=plain | environment)
        assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", text)
    assert re.findall(r"https?://[^\"]*", text) == (["http://www.w3.org/2000/svg"] if ending == "svg" else [])
    assert set(re.findall(r"url\((.)", text)) <= {"#"}  # a place in the picture itself
    for word in ("@import", "@font-face", "src=", "href", "<script", "javascript"):
        assert word not in text.lower()


# --- what came from the user -------------------------------------------------------------------------------

TOKENS = ["<script>alert(1)</script>", "&lt;", "a&b", "\"'", "]]>", "-->", "|x|", "{a}", "{{b}}", "```", "`````"]
HIDDEN = {"\x1b[31m": "\\x1b[31m", "\u202egnp.exe": "\\u202egnp.exe", "\uffff": "\\uffff"}


def test_markup_in_tokens_and_sentences_is_text(attn: Run, tmp_path: Path) -> None:
    run = ["inspect", "--from", dump(tmp_path, [*TOKENS, *HIDDEN]), "--show", "tokens", "-F"]
    markdown = attn(*run, "md").out
    for lines in ("\n".join(grid_of(attn(*run, "svg").out)), markdown):
        assert all(token in lines for token in (*TOKENS, *HIDDEN.values()))
    assert re.findall(r"^(`{3,})(text)?$", markdown, re.MULTILINE) == [("``````", "text"), ("``````", "")]
    text = "</title><script>&amp;`x` {a} {{b}} \"'"
    page = Page(attn("tokens", text, "-F", "html").out)
    assert page.texts["h2"] == [text]
    assert page.texts["title"] == [f"attn tokens: {text}"]
    root = ElementTree.fromstring(attn("inspect", text, "-F", "svg").out)
    assert root.findtext(f"{SVG}title") == f"attn inspect: {text}"
    assert attn("inspect", text, "-F", "md").out.startswith(f"## ``{text}``\n")
    assert attn("inspect", "`", "-F", "md").out.startswith("## `` ` ``\n")
