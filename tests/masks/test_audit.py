"""What a mask check finds: each finding by a mask planted for it, and nothing in a healthy one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli import attention
from attncli.masks.audit import audit, audit_fills
from attncli.masks.conventions import LEAST
from attncli.masks.findings import CODES, Finding
from attncli.masks.mask_grid import GridOptions, MaskSize, materialise, read_grid
from attncli.masks.parser import parse

MIN = LEAST["float32"]


def mask(text: str, queries: int = 6, keys: int | None = None, past: int | None = None) -> np.ndarray:
    keys = keys or queries
    return materialise(parse(text), MaskSize(queries, keys, keys - queries if past is None else past))[0]


def additive(allowed: np.ndarray, fill: float = MIN, dtype: str = "float32") -> np.ndarray:
    return np.where(allowed, 0, fill).astype(dtype)


def found(
    tmp_path: Path, values: Any, expect: str | None, size: MaskSize | None = None, reader: Any = None, dtype: Any = None
) -> dict[str, Finding]:
    path = tmp_path / "mask.npy"
    np.save(path, values)
    expected = None if expect is None else parse(expect)
    size = size or MaskSize()
    subject = read_grid(str(path), GridOptions(MaskSize(past=size.past), reader), expected)
    findings = [*audit(subject, expected, size), *audit_fills(subject, dtype)]
    assert len({finding.code for finding in findings}) == len(findings) or {f.severity for f in findings} > {"error"}
    assert all(finding.code in CODES for finding in findings)
    return {finding.code: finding for finding in findings}


# --- what is healthy -----------------------------------------------------------------------------------------

HEALTHY = ["full", "causal & window(3)", "band(2,2)", "docs(2,4) & causal"]


@pytest.mark.parametrize("text", HEALTHY)
def test_a_healthy_mask_has_no_finding_in_any_convention(tmp_path: Path, text: str) -> None:
    allowed = mask(text)
    written: list[Any] = [(allowed, "sdpa"), (~allowed, "mha"), (allowed.astype(int), "sdpa")]
    if not allowed.all():
        written += [(additive(allowed, fill), None) for fill in (MIN, -np.inf, -1e4, -1e9)]
    for heads, (values, reader) in zip([(), (1,), (4,), (2, 1), (2, 3)] * 2, written, strict=False):
        stacked = np.broadcast_to(values, (*heads, 6, 6))
        assert found(tmp_path, stacked, text, reader=reader) == found(tmp_path, stacked, None, reader=reader) == {}
        is_known = "causal" in text or values.dtype == np.float32
        assert set(found(tmp_path, stacked, text)) == (set() if is_known else {"ambiguous"})


# --- planted mistakes ----------------------------------------------------------------------------------------


def planted(text: str, *cells: tuple[int, int]) -> np.ndarray:
    allowed = mask(text)
    for query, key in cells:
        allowed[query, key] = not allowed[query, key]
    return allowed


def swapped(values: np.ndarray, old: float, new: float, row: int) -> np.ndarray:
    values[row][values[row] == old] = new
    return values


PLANTED: dict[str, tuple[Any, str, dict[str, int], str]] = {
    "one future cell": (planted("causal", (1, 4)), "causal", {"leak": 1}, "attends to the future in 1 cell"),
    "a whole diagonal of the future": (mask("band(9,1)"), "causal", {"leak": 5}, "in 5 cells"),
    "a missing cell": (planted("causal", (4, 1)), "causal", {"missing": 1}, "misses an allowed key in 1 cell"),
    "padding attended": (mask("causal"), "causal & pad(left=2)", {"pad": 8}, "attends to padding in 8 cells"),
    "another document": (mask("causal"), "causal & docs(2,4)", {"document": 8}, "across a document boundary"),
    "a window one too wide": (
        mask("causal & window(4)"), "causal & window(3)", {"window": 3}, "the window has 4 keys, not 3 (+1)",
    ),
    "a window and a leak": (
        planted("window(2)", (0, 5), (5, 0)), "window(2)", {"leak": 1, "window": 1}, "attends to the future",
    ),
    "a masked row": (mask("causal & ~queries(2,3)"), "causal", {"missing": 3, "dead-row": 1}, "fully masked"),
    "transposed": (additive(mask("causal").T), "causal", {"leak": 15, "missing": 15, "shape": 30}, "transpose"),
    "top-left with a cache": (
        additive(mask("causal", 3, 6, 0)), "causal", {"missing": 9, "shape": 9}, "aligned top-left (past 0)",
    ),
    "a head of its own": (
        np.stack([mask("causal"), mask("causal"), planted("causal", (3, 0))]), "causal",
        {"varies": 1, "missing": 1}, "head 2 differs from head 0, in 1 cell",
    ),
    "twice the least float16": (
        swapped(additive(mask("causal"), -65504, "float16"), -65504, -np.inf, 1), "causal",
        {"double-fill": 4}, "added twice",
    ),
    "a column for keys": (np.ones((6, 1), bool), "full", {"shape": 6}, "so it masks queries"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_has_its_finding(tmp_path: Path, name: str) -> None:
    values, expect, codes, words = PLANTED[name]
    findings = found(tmp_path, values, expect, reader="sdpa")
    assert {code: finding.count for code, finding in findings.items()} == codes
    assert any(words in finding.message for finding in findings.values())
    assert all(finding.severity == "error" for finding in findings.values())


def test_a_finding_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "CELLS", 50)  # in blocks of rows
    findings = found(tmp_path, planted("causal", (1, 4), (3, 5), (4, 0)), "causal", reader="sdpa")
    assert findings["leak"].cells == ((1, 4), (3, 5))
    assert findings["missing"].cells == ((4, 0),)
    everything = found(tmp_path, mask("full", 40), "causal", reader="sdpa")["leak"]
    assert everything.count == 780
    assert everything.cells == tuple((0, key) for key in range(1, 21))


@pytest.mark.parametrize(("shape", "size", "words"), [
    ((6, 4), MaskSize(4, 6), "the mask is [6, 4], expected [queries, keys] = [4, 6]. It is transposed"),
    ((2, 1, 1, 6), MaskSize(6, 6), "every query gets the same keys"),
])  # fmt: skip
def test_another_shape_is_said_and_no_cell_is_compared(
    tmp_path: Path, shape: tuple[int, ...], size: MaskSize, words: str
) -> None:
    findings = found(tmp_path, np.ones(shape, bool), "full", size, reader="sdpa")
    assert list(findings) == ["shape"]
    assert words in findings["shape"].message


@given(heads=st.sampled_from([1, 2]), is_batch=st.booleans(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_each_head_is_held_against_what_is_expected_of_it(
    tmp_path_factory: pytest.TempPathFactory, heads: int, is_batch: bool, seed: int
) -> None:
    folder, random = tmp_path_factory.mktemp("mask"), np.random.default_rng(seed)
    wanted = random.random((heads, 3, 4)) < 0.5
    values = np.broadcast_to(wanted, (2, heads, 3, 4) if is_batch else wanted.shape) ^ (random.random((3, 4)) < 0.2)
    for name, array in (("wanted", wanted), ("mask", values)):
        np.save(folder / f"{name}.npy", array)
    subject = read_grid(str(folder / "mask.npy"), GridOptions(reader="sdpa"))
    findings = list(audit(subject, parse(f"file('{folder / 'wanted.npy'}')"), MaskSize()))
    counts = {finding.code: finding.count for finding in findings if finding.code in ("leak", "missing")}
    extra, lacking = (cells.reshape(-1, 3, 4).any(axis=0).sum() for cells in (values & ~wanted, ~values & wanted))
    assert counts == {code: count for code, count in (("leak", extra), ("missing", lacking)) if count}
    dead, lost = ~values.any(axis=-1), ~values.any(axis=-1) & wanted.any(axis=-1)
    is_dead, is_error = (rows.reshape(-1, 3).any(axis=0) for rows in (dead, lost))
    for severity, rows in (("error", is_error), ("note", is_dead & ~is_error)):
        found = [row for one in findings if (one.code, one.severity) == ("dead-row", severity) for row in one.rows]
        assert found == np.flatnonzero(rows).tolist()


def test_rows_that_are_masked_on_purpose_are_a_note(tmp_path: Path) -> None:
    findings = found(tmp_path, mask("causal & pad(left=2)"), "causal & pad(left=2)")
    assert findings["dead-row"].severity == "note"
    assert findings["dead-row"].rows == (0, 1)
    both = audit(read_grid(str(tmp_path / "mask.npy"), GridOptions()), parse("causal & pad(left=1)"), MaskSize())
    dead = [(finding.severity, finding.rows) for finding in both if finding.code == "dead-row"]
    assert dead == [("error", (1,)), ("note", (0,))]


@pytest.mark.parametrize(("dtype", "fill", "is_found"), [("float16", -1e9, True), ("float16", -1e4, False),
    ("bfloat16", MIN, True), ("float32", MIN, False), (None, -1e9, False)])  # fmt: skip
def test_a_fill_beyond_the_models_type_overflows(tmp_path: Path, dtype: Any, fill: float, is_found: bool) -> None:
    findings = found(tmp_path, additive(mask("causal"), fill), "causal", dtype=dtype)
    assert set(findings) == ({"overflow"} if is_found else set())
    with np.errstate(over="ignore"):
        cast = torch.tensor(fill, dtype=torch.float32).to(getattr(torch, dtype or "float32"))
    assert bool(torch.isinf(cast)) == (is_found or fill == -np.inf)
