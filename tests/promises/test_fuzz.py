"""The whole program, given what nobody would type: it answers or refuses, in one sentence, and never breaks.

`FUZZ_TIMES=20` draws twenty times as many examples, other ones every time.
"""

import faulthandler
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import Line, commands, examples, lines, texts
from hypothesis import given, note
from hypothesis import strategies as st
from outputs import CODES, FINDINGS, INPUT, OK, READERS, USAGE, hold, strict_json
from safetensors.numpy import save_file
from typer.main import get_command
from whole_program import whole_program

from attncli.cli.app import app

# A request that is refused before its file is read leaves the file to the garbage collector, which closes it.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

Run = Callable[..., Any]
COMMANDS = commands(get_command(app))
_SECONDS = 60  # for one example, on a machine that has other things to do


@contextmanager
def time_limit() -> Iterator[None]:
    """End the process where the block takes longer than `_SECONDS`."""
    faulthandler.dump_traceback_later(_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def attn() -> Iterator[Run]:
    """Run the real `main()`."""
    with whole_program() as run:
        yield run


@pytest.fixture
def folder(attn: Run, tmp_path: Path, tiny_llama: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of every sort that an option names."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "tiny").symlink_to(tiny_llama, target_is_directory=True)
    (folder / "tokenizer.json").symlink_to(Path(tiny_llama) / "tokenizer.json")
    (folder / "text.txt").write_text("time flies\n\nfruit flies like\n", encoding="utf-8")
    (folder / "bytes.txt").write_bytes(b"time\xff flies\nok\n \n\xed\xa0\x80\n")
    (folder / "empty.txt").write_bytes(b"\n\r\n")
    (folder / "table.csv").write_bytes(b'id,label,text\n1,a,"time\n""flies"""\n2,b\n3,\xff,\n4,\xe9,fruit\n')
    (folder / "lines.jsonl").write_bytes(b'{"id": 1, "label": null, "text": "time"}\n\n{"id": [2]}\nx\n"\xff"\n')
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # as a module the program would leave some
    (folder / "program.py").write_text(
        "import torch\n\n\nx = torch.ones(1, 2, 3, 4)\ntorch.nn.functional.scaled_dot_product_attention(x, x, x)\n"
    )
    mask = np.tri(4, dtype=bool)
    for ending in ("npy", "safetensors", "pt"):
        assert attn("mask", "convert", "causal", "--size", "4", "--to", "sdpa", "-o", f"mask.{ending}").code == OK
    assert attn("inspect", "time flies like an arrow", "--save", "trace.safetensors").code == OK
    q = np.random.default_rng(0).standard_normal((2, 4, 3), dtype=np.float32)
    save_file({"q": q, "k": q[:, ::-1].copy(), "mask": mask}, folder / "dump.safetensors")
    return folder


def held(attn: Run, line: Line) -> Any:
    """Run a line, and hold its outcome to what every run promises."""
    note(repr(line.words))
    with time_limit():
        ran = attn(*line.words, stdin=line.stdin)
    note(f"{ran.code}\n{ran.err[:2000]}\n{ran.out[:2000]}")
    form = line.given("--format", "-F") or "table"
    if line.path[0] == "completion":
        assert ran.code in CODES
        return ran
    if line.path == ("run",) and ran.code not in (USAGE, INPUT):  # what a program says is its own, and the table beside
        assert ran.code in CODES
        return ran
    hold(ran.code, ran.out, ran.err, form if form in READERS else "table", line.given("--color") == "always")
    assert ran.code != FINDINGS or line.path in {("check",), ("diff",), ("mask", "check"), ("mask", "diff"), ("run",)}
    return ran


@examples(250)
@given(line=lines(COMMANDS))
def test_any_command_line_is_answered_or_refused(line: Line, attn: Run, folder: Path) -> None:
    before = {*folder.iterdir()}
    ran = held(attn, line)
    for path in {*folder.iterdir()} - before:
        assert path.name.removesuffix(".part") in {line.given("--output", "-o"), line.given("--save")}
        assert ran.code in (OK, FINDINGS, INPUT) or path.is_dir()  # which is made before a program is looked for
        form = path.suffix.lower()[1:]
        if form in READERS and ran.code in (OK, FINDINGS) and line.path != ("mask", "convert"):
            hold(ran.code, path.read_text(encoding="utf-8"), "", form)
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@examples(250)
@given(
    sentences=st.lists(texts, min_size=1, max_size=3),
    form=st.sampled_from([*READERS, "jsonl", "tsv"]),
    more=st.sampled_from([(), ("--color", "always"), ("--pair", "a [/INST]"), ("--show", "tokens")]),
)
def test_any_sentence_is_shown_or_refused(sentences: list[str], form: str, more: tuple[str, ...], attn: Run) -> None:
    content = "\n".join(sentences).encode("utf-8", "surrogatepass")
    with time_limit():
        ran = attn("inspect", "-F", form, *more, "-", stdin=content)
    hold(ran.code, ran.out, ran.err, form, "always" in more)
    lines = [line.rstrip(b"\r") for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    filled = {number: line for number, line in enumerate(lines, start=1) if line.decode(errors="replace").strip()}
    bad = [number for number, line in filled.items() if line.decode(errors="replace").encode() != line]
    if form == "html" and len(filled) > 1:  # a page shows one trace
        assert ran.code == USAGE
        return
    assert ran.code == (INPUT if bad or not filled else OK)
    assert [int(number) for number in re.findall(r"^attn: sentence (\d+): ", ran.err, re.MULTILINE)] == bad
    if form == "tsv" and filled:
        rows = [line.split("\t")[0] for line in ran.out.splitlines()[1:]]
        assert list(map(int, dict.fromkeys(rows))) == [number for number in filled if number not in bad]
    if form == "jsonl":
        documents = [strict_json(line) for line in ran.out.splitlines()]
        assert [one["sentence"] for one in documents] == [number for number in filled if number not in bad]
        for one in documents:
            assert one["text"].encode() == filled[one["sentence"]]
            for token in one["key_tokens"]:
                of = one["pair"] if token["segment"] else one["text"]
                assert of[token["start"] : token["end"]] == token["text"]
