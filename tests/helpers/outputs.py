"""What every run of the program promises, whatever it was given: held by readers that are not ours."""

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

OK, FINDINGS, USAGE, LOAD, NOT_EXPOSED, INPUT = range(6)
CODES = {OK, FINDINGS, USAGE, LOAD, NOT_EXPOSED, INPUT}

_SGR = re.compile(r"\x1b\[[0-9;]*m")  # colours and bold, the only escape sequences that are ours
_VOID = {"meta", "br", "hr", "img", "input", "link", "col", "wbr"}  # elements of HTML that have no end

_STEP = re.compile(r"attn: \d+\.\d\d s: \S")  # of --verbose


def obeyed(text: str) -> set[str]:
    """The characters of a text that a terminal obeys, or that reorder or end its lines, but line feeds and joiners."""
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return {one for one in set(text) - set("\n\u200c\u200d") if unicodedata.category(one) in hidden}


def hold(code: int, out: str, err: str, form: str = "table", colored: bool = False) -> None:
    """Check a run of a command that wrote in this format, and that was asked for colours or was not."""
    assert code in CODES, f"exit code {code}"
    messages = [line for line in err.splitlines() if not _STEP.match(line)]
    assert not err or err.endswith("\n")
    assert "Traceback" not in err
    assert "this is a bug in attn" not in err, err
    assert all(line.startswith("attn: ") and len(line) > 20 for line in messages), err
    assert not obeyed(err), obeyed(err)
    errors = [line for line in messages if not line.startswith("attn: warning: ")]
    if code in (USAGE, LOAD, NOT_EXPOSED):
        assert errors, "nothing is said of what is wrong"
    if code != OK and not out:
        assert len(set(errors)) == len(errors), err
    shown = _SGR.sub("", out) if colored else out
    assert not obeyed(shown) - ({"\t"} if form == "tsv" else set()), obeyed(shown)
    if out:
        READERS[form](out)


def one_sentence(code: int, out: str, err: str) -> None:
    hold(code, out, err)
    assert code >= USAGE
    assert out == ""
    assert err.count("\n") == 1, err


def answered_or_refused(ran: Any) -> None:
    (hold if ran.code in (OK, FINDINGS) else one_sentence)(ran.code, ran.out, ran.err)


def strict_json(text: str) -> Any:
    return json.loads(text, parse_constant=pytest.fail)


def _json(text: str) -> None:
    found = strict_json(text)
    for document in found if isinstance(found, list) else [found]:
        assert re.fullmatch(r"attncli\.\w+/1", document["schema"])


def _jsonl(text: str) -> None:
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        assert strict_json(line)["schema"] in (
            "attncli.trace/1",
            "attncli.tokens/1",
            "attncli.ablation/1",
            "attncli.error/1",
        )


def _rows(separator: str) -> Callable[[str], None]:
    def read(text: str) -> None:
        assert text.endswith("\n")
        if separator == "\t":
            rows = [line.split("\t") for line in text[:-1].split("\n")]
        else:
            rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
        assert {len(row) for row in rows} == {len(rows[0])}
        assert len(rows[0]) >= 5
        assert (
            rows[0][-1] in ("findings", "weight", "norm", "max_score", "pieces", "unknown", "direct", "labels")
            or "entropy" in rows[0]
        )

    return read


def _svg(text: str) -> None:
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"


class _Balanced(HTMLParser):
    """Fails where an element ends that is not the last one that began."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open += [tag] * (tag not in _VOID)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _html(text: str) -> None:
    assert text.lower().startswith("<!doctype html>")
    assert _Balanced(text).open == []


def _any(text: str) -> None:
    assert text.endswith("\n")


READERS: dict[str, Callable[[str], None]] = {
    "table": _any, "md": _any, "json": _json, "jsonl": _jsonl, "tsv": _rows("\t"), "csv": _rows(","), "svg": _svg,
    "html": _html,
}  # fmt: skip
