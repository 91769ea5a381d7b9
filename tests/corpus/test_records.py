"""JSON Lines, good and bad."""

import json
from pathlib import Path

import pytest
from corpora import bad, read, texts

from attncli.corpus.reading import Corpus
from attncli.errors import Failure, InputError


def test_a_bad_line_of_json_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    lines = [
        b'{"text": "time", "id": 1}', b"time flies", b'["text"]', b'{"text": null, "id": "x"}', b'{"text": 3}',
        b'{"txt": "flies"}', b'{"text": "na\xefve"}', b'{"text": "fruit", "id": [1]}', b'{"text": ""}', b"",
        b'{"text": "half", "id": 2', b'{"text": "\\ud800"}', b'{"text": "arrow"}', b"[" * 5000,
    ]  # fmt: skip
    path.write_bytes(b"\n".join(lines))
    said: list[str] = []
    found = list(Corpus.of(str(path), keep="id").sentences(said.append))
    good = [(one.number, one.text, one.kept) for one in found if isinstance(one.text, str)]
    assert good == [(1, "time", {"id": 1}), (13, "arrow", {"id": None})]
    assert said == [f"{path}: 2 empty texts were skipped"]
    reasons = {one.number: one.text.reason for one in found if isinstance(one.text, Failure)}
    assert list(reasons) == [2, 3, 4, 5, 6, 7, 8, 11, 12, 14]
    assert reasons[2].startswith("it is no JSON: ")
    assert reasons[3] == "it is a list; expected a JSON object"
    assert reasons[4] == "its 'text' is null; expected text"
    assert reasons[5] == "its 'text' is a number; expected text"
    assert reasons[6] == "it has no field 'text'; --field names one of txt; did you mean 'txt'?"
    assert reasons[7] == f"it is not UTF-8 at byte 13; convert {path} to UTF-8 first"
    assert reasons[8] == "its 'id' is a list; what is kept are texts, numbers, true, false and null"
    assert {one.number: one.kept for one in found}[4] == {"id": "x"}


def test_a_number_is_kept_to_its_last_digit_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "ids.jsonl"
    numbers = [2**63, -(2**63), 2**64 - 1, 1e300, 0.1]
    rows = [{"text": "time", "id": number} for number in (*numbers, 2**64, -(2**63) - 1, 10**30)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert [one.kept["id"] for one in read(path, keep="id") if isinstance(one.text, str)] == numbers
    said = "its 'id' is a whole number of more than 64 bits; in quotes it would be kept as it is"
    assert bad(path, keep="id") == dict.fromkeys((6, 7, 8), said)


def test_a_field_may_be_missing_in_some_objects_but_not_in_the_first_hundred(tmp_path: Path) -> None:
    path = tmp_path / "late.jsonl"
    path.write_text('{"version": 1}\n{"text": "time", "id": 7}\n', encoding="utf-8")
    assert texts(path, keep="id") == [(2, "time")]
    path.write_text('{"version": 1}\n' * 100 + '{"text": "time", "id": 7}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"has no field 'text'; --field names one of version$"):
        read(path)
