"""What a mask of known convention shows to be wrong: planted mistakes in batches, with an expectation and without."""

from typing import Any

import numpy as np
import pytest

from attncli.masks.audit import audit_allowed, intrinsic_findings
from attncli.masks.expressions import with_lengths
from attncli.masks.findings import CODES, Finding
from attncli.masks.parser import parse
from attncli.masks.recognition import rule_of

SIZE = 6
LOWER = np.tri(SIZE, dtype=bool)[None, None]
EVERY = np.ones((1, 1, SIZE, SIZE), bool)


def padding(*lengths: int, side: str = "right") -> np.ndarray:
    """Which keys of each row are tokens, `[B, K]`."""
    rows = [[key < length if side == "right" else key >= SIZE - length for key in range(SIZE)] for length in lengths]
    return np.array(rows)


def of_keys(tokens: np.ndarray) -> np.ndarray:
    return tokens[:, None, None, :]


def of_queries(tokens: np.ndarray) -> np.ndarray:
    return tokens[:, None, :, None]


def found(allowed: np.ndarray, expect: str | None = None, lengths: Any = None, shape: Any = None) -> dict[str, Finding]:
    batch = len(lengths) if lengths is not None else len(allowed)
    expected = None if expect is None else parse(expect, allow_rows=True)
    if expected is not None and lengths is not None:
        expected = with_lengths(expected, np.array(lengths))
    shape = shape or (batch, 2, SIZE, SIZE)
    if expected is None:
        findings = list(intrinsic_findings(allowed, rule_of(allowed, shape), shape[3] - shape[2]))
    else:
        findings = list(audit_allowed(allowed, shape, expected))
    assert all(finding.code in CODES for finding in findings)
    assert len({(finding.code, finding.severity) for finding in findings}) == len(findings)
    return {finding.code: finding for finding in findings}


# --- without an expectation ------------------------------------------------------------------------------------

RIGHT, LEFT = padding(6, 4, 5), padding(6, 4, 5, side="left")
HEALTHY = {
    "documents": np.kron(np.eye(2), np.ones((3, 3))).astype(bool)[None, None],
    "padding": of_keys(RIGHT),
    "heads of their own": np.concatenate([LOWER, EVERY], axis=1),
    "all but oneself": ~np.eye(SIZE, dtype=bool)[None, None],
    "long ranges alone": np.concatenate([np.tri(SIZE, k=-2, dtype=bool)[None, None, 2:], EVERY[:, :, :2]], axis=2),
    "a mask of its own": np.random.default_rng(1).random((1, 1, SIZE, SIZE)) < 0.7,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_mask_shows_nothing(name: str) -> None:
    assert found(HEALTHY[name]) == {}


WRONG: dict[str, tuple[np.ndarray, str, str]] = {
    "the same under a causal mask": (LOWER & of_queries(LEFT), "broadcast", "in batch rows 1-2"),
    "inverted causal": (~LOWER, "leak", "attends only where causal forbids: True and False are swapped"),
    "inverted documents": (
        ~HEALTHY["documents"], "leak", "attends only where chunk(3) forbids: True and False are swapped",
    ),
    "inverted padding": (~of_keys(RIGHT), "leak", "rows without padding see nothing, in batch row 0"),
    "inverted padding under a causal mask": (LOWER & ~of_keys(RIGHT), "leak", "attends to padding only"),
    "a row without a key": (of_keys(padding(6, 0)), "dead-row", "6 queries are fully masked, in batch row 1"),
    "a dead query": (LOWER & (np.arange(SIZE) != 3)[:, None], "dead-row", "1 query is fully masked: softmax"),
}  # fmt: skip


DESIGNS: dict[str, tuple[np.ndarray, str, str]] = {
    "transposed": (LOWER.swapaxes(2, 3), "leak", "upper triangle: looks like a transposed causal mask"),
    "shifted by one, with padding": (
        np.tri(SIZE, k=1, dtype=bool) & of_keys(RIGHT), "leak", "the diagonal of a causal mask is shifted by +1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_shown_by_the_mask_alone(name: str) -> None:
    allowed, code, words = WRONG[name]
    findings = found(allowed)
    assert [one.code for one in findings.values() if one.severity == "error"] == [code]
    assert words in findings[code].message


@pytest.mark.parametrize("name", DESIGNS)
def test_what_some_models_mean_is_a_note(name: str) -> None:
    allowed, code, words = DESIGNS[name]
    findings = found(allowed)
    assert {one.severity for one in findings.values()} == {"note"}
    assert words in findings[code].message


# --- with one ---------------------------------------------------------------------------------------------------


def test_padding_that_is_attended_names_the_rows_of_the_batch() -> None:
    findings = found(EVERY, "pad", [6, 4, 5])
    assert list(findings) == ["pad"]
    assert findings["pad"].message == "attends to padding in 9 cells, in batch rows 1-2"
    assert findings["pad"].cells[:3] == ((0, 4), (0, 5), (1, 4))
    assert found(of_keys(RIGHT), "pad", [6, 4, 5]) == {}
    swapped = found(of_keys(RIGHT[[1, 0, 2]]), "pad", [6, 4, 5])  # another order of the batch
    assert (swapped["pad"].message.split(", ")[1], "missing" in swapped) == ("in batch row 1", True)
    assert found(LOWER, "causal & pad", [6, 4, 5]) == {}  # no word sees what follows it


@pytest.mark.parametrize(("step", "code"), [(1, "leak"), (-1, "missing")])
def test_a_diagonal_that_is_shifted_is_the_reason_of_what_differs(step: int, code: str) -> None:
    triangle = np.tri(SIZE, k=step, dtype=bool)[None, None]
    for allowed, expect, lengths in (
        (triangle, "causal", None),
        (triangle & of_keys(RIGHT), "causal & pad", [6, 4, 5]),
    ):
        assert f"the diagonal is shifted by {step:+d}" in found(allowed, expect, lengths)[code].message
