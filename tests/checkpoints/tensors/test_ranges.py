"""The cache of tensors: what is found in it, what an interrupted run leaves, two runs at once, and its limit."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attncli.checkpoints.tensors.cache import Notes, Version, held, place, trim
from attncli.checkpoints.tensors.range_cache import Ranges
from attncli.errors import InputError

DATA = bytes(range(256)) * 4
ONE = Version("one", len(DATA))


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return place() / "models--some--body"


def sent(begin: int, end: int) -> Iterator[bytes]:
    for start in range(begin, end, 10):
        yield DATA[start : min(start + 10, end)]


def test_bytes_are_found_in_any_range_around_them(repository: Path) -> None:
    ranges = Ranges(repository, ONE)
    for begin, end in ((10, 20), (15, 100), (40, 50), (300, 310)):
        ranges.fill(begin, end, sent)
    for known in (ranges, Ranges(repository, ONE)):
        for begin, end in ((10, 20), (12, 15), (16, 19), (20, 100), (40, 50), (45, 95), (300, 301), (7, 7)):
            assert known.has(begin, end), (begin, end)
            found = known.find(begin, end)
            assert found is not None
            assert found.tobytes() == DATA[begin:end]
        for begin, end in ((0, 5), (9, 20), (10, 21), (50, 101), (299, 301), (310, 311)):
            assert not known.has(begin, end)
            assert known.find(begin, end) is None


def test_another_version_has_nothing_of_it(repository: Path) -> None:
    Ranges(repository, ONE).fill(0, 100, sent)
    assert Ranges(repository, Version("two", 1024)).find(0, 100) is None
    assert Ranges(repository, Version("one", 1023)).find(0, 100) is None


def test_what_was_cut_is_gone_on_with(repository: Path) -> None:
    def cut(begin: int, _: int) -> Iterator[bytes]:
        yield DATA[begin : begin + 30]
        raise ConnectionResetError("cut")

    ranges = Ranges(repository, ONE)
    for _ in range(2):
        with pytest.raises(InputError):  # an error of the system that is not of the network's client
            ranges.fill(100, 200, cut)
        assert not ranges.has(100, 200)
        assert Ranges(repository, ONE).find(100, 200) is None
    asked = []

    def rest(begin: int, end: int) -> Iterator[bytes]:
        asked.append((begin, end))
        yield from sent(begin, end)

    Ranges(repository, ONE).fill(100, 200, rest)
    assert asked == [(160, 200)]
    found = Ranges(repository, ONE).find(100, 200)
    assert found is not None
    assert found.tobytes() == DATA[100:200]


def test_a_range_of_another_length_than_its_name_says_is_not_read(repository: Path) -> None:
    ranges = Ranges(repository, ONE)
    ranges.fill(0, 50, sent)
    (path,) = ranges.used
    path.write_bytes(DATA[:49])
    assert Ranges(repository, ONE).find(0, 50) is None
    assert not path.exists()
    ranges.fill(0, 50, sent)
    path.unlink()  # by another run
    assert ranges.find(0, 50) is None


def test_of_two_runs_one_fetches_and_the_other_waits(repository: Path) -> None:
    asked = []

    def slow(begin: int, end: int) -> Iterator[bytes]:
        asked.append(begin)
        for some in sent(begin, end):
            time.sleep(0.02)
            yield some

    runs = [threading.Thread(target=lambda: Ranges(repository, ONE).fill(0, 100, slow)) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert asked == [0]
    assert [path.name for path in next(repository.iterdir()).iterdir()] == ["0-100"]


def test_what_was_used_longest_ago_goes_first_and_what_this_run_uses_stays(repository: Path) -> None:
    ranges = Ranges(repository, ONE)
    for age, begin in enumerate((300, 100, 200, 0)):
        ranges.fill(begin, begin + 100, sent)
        os.utime(next(repository.glob(f"*/{begin}-*")), (1000 - age, 1000 - age))
    assert held() == 400
    used = Ranges(repository, ONE)
    used.find(0, 100)
    assert next(repository.glob("*/0-100")).stat().st_mtime > 1000
    os.utime(next(repository.glob("*/0-100")), (1, 1))
    trim(250, used.used)
    assert {path.name for path in repository.glob("*/*")} == {"0-100", "300-400"}
    trim(0, used.used)
    assert {path.name for path in repository.glob("*/*")} == {"0-100"}
    trim(0, set())
    assert held() == 0


def test_what_another_run_is_fetching_stays(repository: Path) -> None:
    repository.mkdir(parents=True)
    for name, age in (("0-10.part", 10), ("10-20.part", 10_000)):
        (repository / name).write_bytes(b"12345")
        os.utime(repository / name, (time.time() - age, time.time() - age))
    trim(0, set())
    assert [path.name for path in repository.iterdir()] == ["0-10.part"]


def test_a_cache_that_cannot_be_written_is_said(repository: Path) -> None:
    repository.parent.mkdir(parents=True)
    repository.write_text("a file")
    with pytest.raises(InputError, match=r"^the cache of tensors .* cannot be written: .*HF_HOME"):
        Ranges(repository, ONE).fill(0, 10, sent)


def test_notes_are_kept_for_a_commit_and_damaged_ones_are_none(tmp_path: Path) -> None:
    one, other = (Notes(tmp_path / "hub" / "models--some--body" / "snapshots" / commit) for commit in ("1", "2"))
    assert one.version("a.safetensors") is None
    one.keep_version("a.safetensors", Version("etag", 7))
    one.files = ["config.json", "model.safetensors"]
    assert one.version("a.safetensors") == Version("etag", 7)
    assert other.version("a.safetensors") is None
    assert (one.has_parts(), one.has_parts("inside/"), other.has_parts()) == (True, False, False)
    for path in (one.repository / "1").iterdir():
        path.write_text('{"etag": 7, "size": "x"}')
    assert one.version("a.safetensors") is None
    assert not one.files
    one.keep_version("a.safetensors", Version("etag", 7))
    one.forget()
    assert one.version("a.safetensors") is None
    assert held() == 0
