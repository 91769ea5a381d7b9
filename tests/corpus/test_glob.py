"""The files of folders and globs, here and elsewhere."""

import os
from pathlib import Path

import pytest
from corpora import texts

from attncli.corpus.files import find_files
from attncli.corpus.read import SentenceReader
from attncli.errors import InputError


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt", ".hidden", "_SUCCESS", "_temporary/x.txt", ".git/y"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("place", "found"),
    [
        (".", ["./a.txt", "./b.txt", "./sub/c.txt", "./sub/deep/d.txt"]),
        ("sub/", ["sub/c.txt", "sub/deep/d.txt"]),
        ("?.txt", ["a.txt", "b.txt"]),
        ("[b-z].txt", ["b.txt"]),
        ("*", ["a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"]),
        ("**/*.txt", ["a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"]),
        ("_*", ["_SUCCESS", "_temporary/x.txt"]),
        ("_temporary", ["_temporary/x.txt"]),
        ("missing.txt", ["missing.txt"]),
    ],
)
def test_files_are_sorted_and_hidden_ones_left_out(tree: Path, place: str, found: list[str]) -> None:
    assert [file.path for file in find_files(place)] == found


def test_elsewhere_they_are_found_as_here(tree: Path) -> None:
    url = tree.as_uri()
    for place in ("", "/**/*.txt", "/sub/*/*.txt", "/[b-z].txt", "/s*", "/_*", "/_temporary"):
        here = [str(file.path) for file in find_files(str(tree) + place)]
        there = find_files(url + place)
        assert [file.path for file in there] == here
        assert [file.name for file in there] == [f"file://{path}" for path in here]
        assert texts(url + place) == texts(str(tree) + place)


def test_a_file_whose_name_has_wildcards_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("time", encoding="utf-8")
    (tmp_path / "a1.txt").write_text("flies", encoding="utf-8")
    assert texts(tmp_path / "a[1].txt") == [(1, "time")]


def test_nothing_found_is_said(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    for place in (str(tmp_path), tmp_path.as_uri()):
        with pytest.raises(InputError, match=r"^the folder .* holds no file; "):
            find_files(place)
        with pytest.raises(InputError, match=r"^no file fits .*/\*\.txt; "):
            find_files(place + "/*.txt")


def test_a_glob_follows_no_links_around_and_opens_no_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a/one.txt", "a/b/two.txt"):
        (tmp_path / name).write_text("time\n", encoding="utf-8")
    (tmp_path / "a" / "around").symlink_to(tmp_path)
    (tmp_path / "a" / "b" / "up").symlink_to("..")
    os.mkfifo(tmp_path / "a" / "pipe.txt")
    for place in ("**/*.txt", "a/**", f"{tmp_path}/*/**/*.txt"):
        found = [os.path.relpath(file.path) for file in SentenceReader.of(place).files]
        assert found == ["a/b/two.txt", "a/one.txt"], place
    assert [file.path for file in SentenceReader.of("a/*.txt").files] == ["a/one.txt"]
