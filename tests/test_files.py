"""Writing: several runs into one file, disks that are full, folders that vanish, links, pipes and devices."""

import json
import os
import resource
import shlex
import stat
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from running import Run, program
from signalled import ATTN

TEXT = "time flies like an arrow fruit flies like a banana"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    program = command.replace("attn ", shlex.join(ATTN) + " ")
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)


def started(out: Path) -> subprocess.Popen[bytes]:
    run = subprocess.Popen([*ATTN, "inspect", "-", "-o", str(out)], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    run.stdin.write(b"time flies\n")
    run.stdin.flush()
    before = time.monotonic()
    while not any(file.name.startswith((out.name, ".attn-")) for file in out.parent.iterdir()):
        assert time.monotonic() < before + 60
        time.sleep(0.02)
    return run


def finished(run: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, errors = run.communicate(timeout=60)
    return run.returncode, errors.decode()


@pytest.mark.parametrize("command", ["inspect --help", "completion zsh", "inspect a", "heads a"])
def test_a_full_disk_is_said_in_a_sentence(command: str) -> None:
    ran = shell(f"attn {command} >/dev/full")
    message = "attn: cannot write to standard output: No space left on device\n"
    assert (ran.returncode, ran.stderr) == (5, message)


@pytest.mark.parametrize("ending", ["json", "jsonl", "parquet", "svg", "html", "safetensors"])
def test_a_file_that_cannot_grow_leaves_what_was_there(ending: str, tmp_path: Path) -> None:
    out = tmp_path / f"out.{ending}"
    out.write_text("what was there")
    # A page and a trace hold one sentence, whole.
    several = [] if ending in ("safetensors", "html") else [TEXT, TEXT, "--show", "q,k,v,scores,weights,heatmap"]
    arguments = ["inspect", TEXT, *several, "--save" if ending == "safetensors" else "-o", out]
    # Python would keep the half of a module's bytecode that the disk has room for, and run it the next time.
    small_files = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (4096, 4096))
    ran = program(*arguments, preexec_fn=small_files, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
    assert (ran.returncode, ran.stderr.count("\n")) == (5, 1), ran.stderr
    assert ran.stderr.startswith(f"attn: cannot write {out}: ")
    assert "File too large" in ran.stderr
    assert out.read_text() == "what was there"
    assert {file.name for file in tmp_path.iterdir()} <= {out.name, f"{out.name}.part"}


def test_a_folder_that_vanishes_or_takes_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    for ending in ("json", "jsonl"):
        folder.mkdir()
        run = started(folder / f"out.{ending}")
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        code, errors = finished(run)
        assert (code, errors.count("\n")) == (5, 1)
        assert errors.startswith(f"attn: cannot write {folder / 'out'}.{ending}: No such file or directory")
        assert not folder.exists()
    for command, why in {
        "no such/x.json": f"there is no folder {tmp_path / 'no such'}; make it: mkdir -p '{tmp_path / 'no such'}'",
        "/proc/x.jsonl": "No such file or directory",
        "/dev/null/x.json": "Not a directory",
    }.items():
        ran = program("inspect", "a", "-o", tmp_path / command)
        assert (ran.returncode, ran.stdout, ran.stderr) == (5, "", f"attn: cannot write {tmp_path / command}: {why}\n")


def test_a_stream_has_one_writer_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    first = started(out)
    ran = program("inspect", "an arrow", "-o", out)
    assert (ran.returncode, ran.stdout) == (5, "")
    assert ran.stderr == f"attn: {out}.part is being written by another run; wait, or give another file\n"
    assert finished(first) == (0, "")
    assert [json.loads(line)["text"] for line in out.read_text().splitlines()] == ["time flies"]
    out.unlink()
    # One that was killed holds nothing, whatever it has written.
    second = started(out)
    second.kill()
    finished(second)
    (tmp_path / "out.jsonl.part").write_bytes(b"")
    assert program("inspect", "an arrow", "-o", out).returncode == 0
    assert [json.loads(line)["text"] for line in out.read_text().splitlines()] == ["an arrow"]
    assert list(tmp_path.iterdir()) == [out]


def test_pipes_and_devices_are_written_to_and_stay(attn: Run, tmp_path: Path) -> None:
    expected = attn("inspect", "a b", "-F", "jsonl").out
    fifo = tmp_path / "pipe.jsonl"
    os.mkfifo(fifo)
    (tmp_path / "null.json").symlink_to("/dev/null")
    assert shell(f"cat {fifo} & attn inspect 'a b' -o {fifo}; wait").stdout == expected
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert shell("attn inspect 'a b' -F jsonl -o >(cat)").stdout == expected
    for out in ("/dev/null", str(tmp_path / "null.json")):
        assert shell(f"attn inspect 'a b' -F {'json' if '.' in out else 'tsv'} -o {out}").returncode == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert (tmp_path / "null.json").is_symlink()
    ran = shell("{ echo before; attn inspect 'a b' -F jsonl -o /dev/stdout; echo after; } > " + str(tmp_path / "all"))
    assert (tmp_path / "all").read_text() == f"before\n{expected}after\n"
    ran = shell(f"head -c 1 {fifo} & yes a b | head -2000 | attn inspect -o {fifo}; echo $?; wait")
    assert (ran.stdout.endswith("141\n"), ran.stderr) == (True, "")
    assert {file.name for file in tmp_path.iterdir()} == {"pipe.jsonl", "null.json", "all"}


def test_a_link_is_followed_and_permissions_are_kept(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real", tmp_path / "out.jsonl"
    link.symlink_to(real)
    for command in ("inspect a", "inspect b"):  # as it is made, and as it is replaced
        assert shell(f"umask 027; attn {command} -o {link}").returncode == 0
        assert link.is_symlink()
        assert json.loads(real.read_text())["text"] == command[-1]
        assert stat.S_IMODE(real.stat().st_mode) == 0o640
    real.chmod(0o604)
    assert program("inspect", "a", "-o", link).returncode == 0
    assert stat.S_IMODE(real.stat().st_mode) == 0o604
    for option in ("-o x.html", "-o x.parquet", "--save x.safetensors"):
        assert shell(f"cd {tmp_path}; umask 077; attn inspect a {option}").returncode == 0
        assert stat.S_IMODE((tmp_path / option.split()[1]).stat().st_mode) == 0o600
    assert list((tmp_path / "elsewhere").iterdir()) == [real]


@pytest.mark.parametrize("name", ["pipe.jsonl", "pipe.svg"])
def test_a_pipe_without_a_reader_is_named_and_waited_for(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    with subprocess.Popen([*ATTN, "inspect", "a b", "-o", str(pipe)], stderr=subprocess.PIPE) as run:
        assert run.stderr.readline() == f"attn: nobody reads {pipe} yet; waiting for a reader (Ctrl-C ends)\n".encode()
        assert pipe.read_bytes()
        assert (run.wait(), run.stderr.read()) == (0, b"")
