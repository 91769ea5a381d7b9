"""Runs that are interrupted and gone on with: the bytes are those of a run that nobody disturbed."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from running import program
from small_checkpoints import minilm_folder

from attncli import files
from attncli.engines.toy import ToyLayer

Run = Callable[..., Any]

WORDS = "time flies like an arrow fruit banana a the cat".split()
OTHERS = "they were bad, or are not those that it was made of"
PRELOADED = {
    "transformers": "attncli.engines.torch.run_recorded,transformers.models.bert.modeling_bert",
    "native": "attncli.engines.numpy,tokenizers",
}
PROJECT = Path(__file__).parents[2]


def sentences(count: int) -> bytes:
    """Lines of mixed length; some are empty, blank or of other bytes."""
    chance = random.Random(count)
    odd = {0: b"", 1: b"  \t", 2: b"time \xff flies"}
    lines = [
        odd.get(chance.randrange(30), " ".join(chance.choices(WORDS, k=chance.choice([2, 3, 4, 7, 12]))).encode())
        for _ in range(count)
    ]
    return b"\n".join(lines) + b"\n"


# --- killed ------------------------------------------------------------------------------------------------


def killed(result: Path, kills: int, preloaded: str, *arguments: str | Path) -> dict[str, Any]:
    """Return what `tests/helpers/killed.py` found."""
    command = [sys.executable, "-m", "tests.helpers.killed", str(result), str(kills), "0", preloaded]
    ran = subprocess.run([*command, *map(str, arguments)], capture_output=True, check=False, cwd=PROJECT)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    # Had it not been killed midway, nothing would have been gone on with.
    assert len([size for size in found["left"] if 0 < size < found["bytes"]]) >= kills
    return found


@pytest.mark.parametrize(("form", "kills"), [("jsonl", 25), ("tsv", 5)])
def test_killed_at_random_moments_a_run_ends_as_if_it_never_was(form: str, kills: int, tmp_path: Path) -> None:
    corpus = tmp_path / "sentences.txt"
    corpus.write_bytes(sentences(150))
    found = killed(tmp_path / f"out.{form}", kills, "attncli.formats.rows,tokenizers", "-H", "0", "--file", corpus)
    assert found["ends"] == [True] * len(found["ends"])
    assert len(set(found["left"])) > kills / 2
    assert found["code"] == 5


@pytest.mark.parametrize("engine", PRELOADED)
def test_a_checkpoint_that_is_killed_computes_the_same_batches(engine: str, tmp_path: Path) -> None:
    corpus = tmp_path / "sentences.txt"
    corpus.write_bytes(sentences(150))
    arguments = ("-m", minilm_folder(), "--engine", engine, "--show", "weights", "-H", "3", "--file", corpus)
    found = killed(tmp_path / "out.jsonl", 2, PRELOADED[engine], *arguments)
    assert found["ends"] == [True] * len(found["ends"])
    assert found["code"] == 5


# --- cut at any byte ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["jsonl", "tsv", "csv"])
def test_wherever_it_was_cut_the_file_ends_the_same(form: str, attn: Run, tmp_path: Path) -> None:
    corpus = tmp_path / "sentences.txt"
    corpus.write_bytes(sentences(30))
    options = ("--file", corpus, "-H", "0", "-q", "0", *(["--keep-errors"] if form == "jsonl" else []))
    expected = whole(attn, form, *options)
    path = tmp_path / f"out.{form}"
    chance = random.Random(form)
    ends = [place + 1 for place, byte in enumerate(expected) if byte == ord("\n")]
    for cut in [0, 1, ends[0] - 1, ends[0], ends[0] + 1, len(expected) - 1, len(expected), *chance.sample(ends, 5)]:
        path.with_name(f"{path.name}.part").write_bytes(expected[:cut])
        ran = attn("inspect", "--resume", "-o", path, *options)
        assert ran.code == 5
        assert path.read_bytes() == expected
        path.unlink()
    assert {one.name for one in tmp_path.iterdir()} == {corpus.name}


def whole(attn: Run, form: str, *options: str | Path) -> bytes:
    """What an undisturbed run writes to its standard output."""
    ran = attn("inspect", "-F", form, *options)
    assert ran.code == 5
    return bytes(ran.out.encode())


def interrupted(attn: Run, tmp_path: Path, *options: str) -> Path:
    """Return a file of which two lines of three were written, and half of the third."""
    lines = attn("inspect", "time flies", "like an arrow", "fruit", "-F", "jsonl", *options).out.splitlines(True)
    path = tmp_path / "out.jsonl"
    path.with_name("out.jsonl.part").write_text("".join(lines[:2]) + lines[2][:90])
    return path


def test_it_goes_on_after_the_last_whole_line_and_says_so(attn: Run, tmp_path: Path) -> None:
    path = interrupted(attn, tmp_path)
    ran = attn("inspect", "time flies", "like an arrow", "fruit", "--resume", "-o", path)
    assert (ran.code, ran.out, ran.err) == (0, "", f"attn: {path}.part: going on from sentence 2\n")
    assert path.read_text() == attn("inspect", "time flies", "like an arrow", "fruit", "-F", "jsonl").out


def test_sentences_that_are_done_are_not_computed_again(
    attn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"w{number} w" for number in range(1, 41)]
    lines = attn("inspect", *texts, "-F", "jsonl").out.splitlines(True)
    (tmp_path / "out.jsonl.part").write_text("".join(lines[:20]))
    read: list[str] = []
    trace = ToyLayer.trace
    monkeypatch.setattr(ToyLayer, "trace", lambda self, text, *more: read.append(text) or trace(self, text, *more))
    assert attn("inspect", *texts, "--resume", "-o", tmp_path / "out.jsonl").code == 0
    assert read == texts[19:]  # the last one that has its line, and those after it
    assert (tmp_path / "out.jsonl").read_text() == "".join(lines)


@pytest.mark.parametrize(
    "arguments",
    [
        ["time flies", "like an apple", "fruit"],
        ["time flies", "like an arrow", "fruit", "--seed", "1"],
        ["time flies", "like an arrow", "fruit", "--precision", "3"],
        ["time flies", "like an arrow", "fruit", "--show", "weights"],
        ["time flies"],
        ["time flies", " "],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_what_other_input_or_options_have_left_is_refused_and_kept(
    arguments: list[str], attn: Run, tmp_path: Path
) -> None:
    path = interrupted(attn, tmp_path)
    part = tmp_path / "out.jsonl.part"
    before = part.read_bytes()
    ran = attn("inspect", *arguments, "--resume", "-o", path)
    assert ran.code == 5
    assert ran.err.splitlines()[-1].startswith(f"attn: sentence 2 does not come out as it stands in {part}, which ")
    assert part.read_bytes() == before
    assert not path.exists()


@pytest.mark.parametrize("left", ["[1, 2]\n", "sentence\tlayer\n", '{"schema": "attncli.trace/1", "text": ""}\n'])
def test_what_is_no_stream_of_ours_is_refused_and_kept(left: str, attn: Run, tmp_path: Path) -> None:
    part = tmp_path / "out.jsonl.part"
    part.write_text(left)
    ran = attn("inspect", "time flies", "--resume", "-o", tmp_path / "out.jsonl")
    assert (ran.code, ran.out, ran.err.count("\n")) == (5, "", 1)
    assert "is not what a run with --resume leaves" in ran.err
    assert part.read_text() == left


def test_bad_sentences_of_the_interrupted_run_count_in_the_exit_code(attn: Run, tmp_path: Path) -> None:
    texts = ["time flies", " ", *["like an arrow"] * 20]
    path, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    for keeps in ([], ["--keep-errors"]):
        ran = attn("inspect", *texts, "-F", "jsonl", *keeps)
        part.write_text("".join(ran.out.splitlines(True)[:19]))
        again = attn("inspect", *texts, "--resume", "-o", path, *keeps)
        assert (ran.code, again.code, path.read_text()) == (5, 5, ran.out)
        # What has no line is read again, and said again; an error document is a line.
        assert ("sentence 2:" in again.err) == (not keeps)
        path.unlink()


@pytest.mark.parametrize(("form", "keeps"), [("jsonl", []), ("jsonl", ["--keep-errors"]), ("tsv", []), ("csv", [])])
@pytest.mark.parametrize("bad", [[1], [2, 4], [5], []], ids=str)
def test_a_run_that_was_killed_between_its_file_and_its_end_left_bad_sentences_that_count(
    bad: list[int], form: str, keeps: list[str], attn: Run, tmp_path: Path
) -> None:
    texts = [" " if number in bad else "time flies" for number in range(1, 6)]
    path = tmp_path / f"out.{form}"
    ran = attn("inspect", *texts, "--resume", "-o", path, *keeps)
    before = path.read_bytes()
    again = attn("inspect", *texts, "--resume", "-o", path, *keeps, "--quiet")
    assert again.code == ran.code == (5 if bad else 0)
    assert again.err == (f"attn: sentences that it has no numbers of: {len(bad)}; {OTHERS}\n" if bad else "")
    assert path.read_bytes() == before


# --- two at a time -----------------------------------------------------------------------------------------


def test_what_another_run_left_is_read_once_it_writes_no_more(
    attn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"w{number} w" for number in range(40)]
    lines = attn("inspect", *texts, "-F", "jsonl").out.splitlines(True)
    path, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    claimed = files.file_lock

    @contextmanager
    def late(aside: Path) -> Iterator[None]:
        """Another process gets there first, and goes on from line 3 to line `left`, or to the end."""
        part.write_text("".join(lines[:left])) if left < len(lines) else program(
            "inspect", *texts, "--resume", "-o", path
        )
        with claimed(aside):
            yield

    monkeypatch.setattr(files, "file_lock", late)
    left = 20
    part.write_text("".join(lines[:3]))
    ran = attn("inspect", *texts, "--resume", "-o", path)
    assert (ran.code, ran.err) == (0, f"attn: {part}: going on from sentence 20\n")
    assert path.read_text() == "".join(lines)

    path.unlink()
    left = len(lines)
    part.write_text("".join(lines[:3]))
    ran = attn("inspect", *texts, "--resume", "-o", path)
    assert (ran.code, ran.out, ran.err) == (5, "", f"attn: {path} has just been ended by another run\n")
    assert path.read_text() == "".join(lines)
    assert {one.name for one in tmp_path.iterdir()} == {path.name}


def test_of_two_that_go_on_at_once_one_does(attn: Run, tmp_path: Path) -> None:
    corpus = tmp_path / "sentences.txt"
    corpus.write_bytes(sentences(400))
    expected = whole(attn, "jsonl", "--file", corpus)
    path, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    part.write_bytes(expected[: len(expected) // 3])
    command = [sys.executable, "-m", "attncli", "inspect", "--file", str(corpus), "--resume", "-o", str(path)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8") for _ in range(2)]
    said = [one.communicate()[1] for one in both]
    done = [err for err in said if "going on from sentence" in err]
    assert len(done) == 1
    (other,) = set(said) - set(done)
    assert re.search("is being written by another run|has just been ended by another|is whole already", other), other
    assert [one.returncode for one in both] == [5, 5]
    assert path.read_bytes() == expected
    assert {one.name for one in tmp_path.iterdir()} == {corpus.name, path.name}


def test_without_an_interrupted_run_it_starts_and_a_whole_file_is_left_alone(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert attn("inspect", "time flies", "--resume", "-o", path).code == 0
    assert path.read_text() == attn("inspect", "time flies", "-F", "jsonl").out
    ran = attn("inspect", "fruit flies", "--resume", "-o", path)
    assert (ran.code, ran.out, ran.err) == (0, "", f"attn: {path} is whole already; remove it to compute it again\n")
    assert path.read_text() == attn("inspect", "time flies", "-F", "jsonl").out


def test_standard_input_is_read_and_skipped(attn: Run, tmp_path: Path) -> None:
    lines = sentences(80)
    expected = attn("inspect", "-F", "jsonl", stdin=lines).out
    (tmp_path / "out.jsonl.part").write_text(expected[: len(expected) // 2])
    assert attn("inspect", "-", "--resume", "-o", tmp_path / "out.jsonl", stdin=lines).code == 5
    assert (tmp_path / "out.jsonl").read_text() == expected


def test_what_does_not_apply_is_refused(attn: Run, tmp_path: Path) -> None:
    saved = tmp_path / "x.safetensors"
    assert attn("inspect", "time flies", "--save", saved).code == 0
    path = tmp_path / "out.jsonl"
    for arguments, said in (
        (["time flies"], "--resume goes on with a file; say which"),
        (["time flies", "-o", path, "--save", tmp_path / "y.safetensors"], "--save does not apply to --resume"),
        (["time flies", "-o", path, "-F", "tsv"], "--format tsv contradicts"),
        (["--from", saved, "-o", path], "--resume does not apply to --from"),
    ):
        ran = attn("inspect", *arguments, "--resume")
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert ran.err.startswith(f"attn: {said}")
    for name in ("out.json", "out.parquet", "out.html", "out.txt", "out"):
        ran = attn("inspect", "time flies", "--resume", "-o", tmp_path / name)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert "expected a file ending in .jsonl, .tsv or .csv" in ran.err
    assert {one.name for one in tmp_path.iterdir()} == {"x.safetensors"}
