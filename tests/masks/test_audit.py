"""What a mask check finds: each finding by a mask planted for it, and nothing in a healthy one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from attncli import attention
from attncli.errors import InputError, UsageError
from attncli.masks.audit import audit, audit_fills
from attncli.masks.conventions import LEAST, Reader, as_allowed, encode_mask, read_convention
from attncli.masks.expressions import ATOMS
from attncli.masks.files import read_values, write_values
from attncli.masks.findings import CODES, Finding, fails, parse_fail_on
from attncli.masks.mask_grid import GridOptions, MaskSize, as_expression, materialise, read_grid
from attncli.masks.notation import ENDINGS
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
    given = size or MaskSize()
    subject = read_grid(str(path), GridOptions(MaskSize(past=given.past), reader), expected)
    findings = [*audit(subject, expected, given), *audit_fills(subject, dtype)]
    assert len({finding.code for finding in findings}) == len(findings) or {f.severity for f in findings} > {"error"}
    assert all(finding.code in CODES for finding in findings)
    return {finding.code: finding for finding in findings}


# --- what is healthy -----------------------------------------------------------------------------------------

HEALTHY = ["full", "causal", "causal & window(3)", "band(2,2)", "prefix(2)", "docs(2,4) & causal", "chunk(3)"]


@pytest.mark.parametrize("text", HEALTHY)
@pytest.mark.parametrize("heads", [None, (1,), (4,), (2, 1), (2, 3)])
def test_a_healthy_mask_has_no_finding_in_any_convention(tmp_path: Path, text: str, heads: Any) -> None:
    allowed = mask(text)
    written = [allowed, ~allowed, allowed.astype(int)]
    if not allowed.all():
        written += [additive(allowed), additive(allowed, -np.inf), additive(allowed, -1e4), additive(allowed, -1e9)]
    for values in written:
        stacked = values if heads is None else np.broadcast_to(values, (*heads, 6, 6))
        assert found(tmp_path, stacked, text) == {}
        is_known = "causal" in text or values.dtype == np.float32
        assert set(found(tmp_path, stacked, None)) == (set() if is_known else {"ambiguous"})


@given(allowed=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=4, max_size=4))
@settings(max_examples=60)
def test_a_mask_is_always_as_it_says_itself(tmp_path_factory: pytest.TempPathFactory, allowed: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("mask")
    path = folder / "expected.npy"
    np.save(path, np.array(allowed))
    findings = found(folder, np.array(allowed), str(path), reader="sdpa")
    assert all(finding.severity == "note" for finding in findings.values())


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
    "the mask was dropped": (additive(mask("full")) - 0.0, "causal", {"leak": 15}, "to the future in 15"),
    "a missing cell": (planted("causal", (4, 1)), "causal", {"missing": 1}, "misses an allowed key in 1 cell"),
    "padding attended": (mask("causal"), "causal & pad(left=2)", {"pad": 8}, "attends to padding in 8 cells"),
    "another document": (mask("causal"), "causal & docs(2,4)", {"document": 8}, "across a document boundary"),
    "a window one too wide": (
        mask("causal & window(4)"), "causal & window(3)", {"window": 3}, "the window has 4 keys, not 3 (+1)",
    ),
    "a window one too narrow": (
        mask("causal & window(2)"), "causal & window(3)", {"missing": 4}, "the window has 2 keys, not 3 (-1)",
    ),
    "a window ignored": (mask("causal"), "causal & window(3)", {"window": 6}, "attends outside the window"),
    "a shifted window": (
        np.tri(6, 6, -1, dtype=bool) & ~np.tri(6, 6, -4, dtype=bool), "window(3)",
        {"window": 3, "missing": 6, "dead-row": 1}, "shifted by -1",
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
    "a batch row of its own": (
        additive(np.stack([mask("causal"), planted("causal", (3, 0))])[:, None]), "causal",
        {"varies": 1, "missing": 1}, "batch 1 differs from batch 0",
    ),
    "twice the least float32": (
        swapped(additive(mask("causal")), MIN, -np.inf, 2), "causal", {"double-fill": 3}, "added twice",
    ),
    "twice the least float16": (
        swapped(additive(mask("causal"), -65504, "float16"), -65504, -np.inf, 1), "causal",
        {"double-fill": 4}, "added twice",
    ),
    "a column for keys": (np.ones((6, 1), bool), "full", {"shape": 6}, "which queries attend"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_has_its_finding(tmp_path: Path, name: str) -> None:
    values, expect, codes, words = PLANTED[name]
    findings = found(tmp_path, values, expect)
    nearer = findings.pop("ambiguous", None)
    assert (nearer is not None) == (values.dtype == bool and "shape" not in codes)
    assert nearer is None or (nearer.severity, nearer.message[:21]) == ("note", "read as True = attend")
    assert {code: finding.count for code, finding in findings.items()} == codes
    assert any(words in finding.message for finding in findings.values())
    assert all(finding.severity == "error" for finding in findings.values())


def test_fills_that_stay_finite_hide_as_well(tmp_path: Path) -> None:
    assert found(tmp_path, swapped(additive(mask("causal"), -1e9), -1e9, -2e9, 2), "causal") == {}
    mixed = found(tmp_path, swapped(additive(mask("causal"), -1e4), -1e4, -np.inf, 3), "causal")["mixed-fill"]
    assert (mixed.severity, mixed.count, "different values" in mixed.message) == ("note", 2, True)


@pytest.mark.parametrize("cells", [attention.CELLS, 50], ids=["whole", "in blocks of rows"])
def test_a_finding_says_where(tmp_path: Path, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "CELLS", cells)
    findings = found(tmp_path, planted("causal", (1, 4), (3, 5), (4, 0)), "causal")
    assert findings["leak"].cells == ((1, 4), (3, 5))
    assert findings["missing"].cells == ((4, 0),)
    everything = found(tmp_path, mask("full", 40), "causal", reader="sdpa")["leak"]
    assert everything.count == 780
    assert everything.cells == tuple((0, key) for key in range(1, 21))


def test_a_cell_that_several_parts_forbid_is_found_by_each(tmp_path: Path) -> None:
    findings = found(tmp_path, planted("causal & pad(right=2)", (0, 5)), "causal & pad(right=2)")
    assert findings["leak"].cells == findings["pad"].cells == ((0, 5),)


@pytest.mark.parametrize(
    ("shape", "size", "words"),
    [
        ((6, 4), MaskSize(4, 6), "the mask is [6, 4], expected [queries, keys] = [4, 6]; it is transposed"),
        ((6, 4), MaskSize(9, 4), "expected [queries, keys] = [9, 4]"),
        ((2, 1, 1, 6), MaskSize(6, 6), "every query gets the same keys"),
    ],
)
def test_another_shape_is_said_and_no_cell_is_compared(
    tmp_path: Path, shape: tuple[int, ...], size: MaskSize, words: str
) -> None:
    findings = found(tmp_path, np.ones(shape, bool), "full", size, reader="sdpa")
    assert list(findings) == ["shape"]
    assert words in findings["shape"].message


def test_heads_that_differ_are_a_note_where_nothing_is_expected(tmp_path: Path) -> None:
    findings = found(tmp_path, np.stack([mask("causal"), mask("window(2)")]), None)
    assert findings["varies"].severity == "note"
    assert findings["varies"].count == 1


@given(
    shape=st.sampled_from([(), (2,), (1,), (2, 1), (3, 2)]),
    heads=st.sampled_from([1, 2]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
def test_each_head_is_held_against_what_is_expected_of_it(
    tmp_path_factory: pytest.TempPathFactory, shape: tuple[int, ...], heads: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("mask")
    random = np.random.default_rng(seed)
    wanted = random.random((heads, 3, 4)) < 0.5
    values = np.broadcast_to(wanted if shape[-1:] == (heads,) else wanted[0], (*shape, 3, 4)).copy()
    values[..., random.random((3, 4)) < 0.2] ^= True
    np.save(folder / "wanted.npy", wanted)
    np.save(folder / "mask.npy", values)
    subject = read_grid(str(folder / "mask.npy"), GridOptions(reader="sdpa"))
    findings = list(audit(subject, parse(f"file('{folder / 'wanted.npy'}')"), MaskSize()))
    counts = {finding.code: finding.count for finding in findings if finding.code in ("leak", "missing")}
    both = np.broadcast_arrays(values, wanted)
    extra, lacking = ((one & ~other).reshape(-1, 3, 4).any(axis=0).sum() for one, other in (both, both[::-1]))
    assert counts == {code: count for code, count in (("leak", extra), ("missing", lacking)) if count}
    dead, lost = (~values.any(axis=-1)).reshape(-1, 3).any(axis=0), ~both[0].any(axis=-1) & both[1].any(axis=-1)
    is_error = lost.reshape(-1, 3).any(axis=0)
    for severity, rows in (("error", is_error), ("note", dead & ~is_error)):
        said = [row for f in findings if (f.code, f.severity) == ("dead-row", severity) for row in f.rows]
        assert said == np.flatnonzero(rows).tolist()


def test_equal_heads_are_as_a_file_says_them_and_another_number_of_heads_is_refused(tmp_path: Path) -> None:
    heads = np.stack([mask("causal"), mask("causal"), mask("window(2)")])
    for name, values in (("three", heads), ("two", heads[1:])):
        np.save(tmp_path / f"{name}.npy", values)
    findings = found(tmp_path, heads, str(tmp_path / "three.npy"))
    assert {code: finding.severity for code, finding in findings.items()} == {"varies": "note"}
    for values, other in ((heads, "two"), (heads[1:], "three")):
        with pytest.raises(InputError, match=r"or \[heads, queries, keys\] with \d heads"):
            found(tmp_path, values, str(tmp_path / f"{other}.npy"))


def test_a_function_is_asked_for_the_heads_of_the_mask(tmp_path: Path) -> None:
    (tmp_path / "mods.py").write_text("def wider(b, h, q, kv):\n    return (q >= kv) & (q - kv < 2 + h)\n")
    path = tmp_path / "mask.npy"
    np.save(path, np.stack([mask("window(2)"), mask("window(3)")]))
    expected = as_expression(f"{tmp_path / 'mods.py'}:wider")
    assert [finding.severity for finding in audit(read_grid(str(path)), expected, MaskSize())] == ["note"]
    np.save(path, np.stack([mask("window(2)"), mask("window(2)")]))
    assert {finding.code: finding.count for finding in audit(read_grid(str(path)), expected, MaskSize())} == {
        "missing": 4
    }


def test_what_each_head_should_say_decides_what_true_means(tmp_path: Path) -> None:
    wanted = np.stack([mask("pad(left=2)"), mask("pad(right=2)")])
    np.save(tmp_path / "wanted.npy", wanted)
    for values in (wanted, ~wanted, np.stack([wanted, wanted]), ~np.stack([wanted, wanted, wanted])):
        findings = found(tmp_path, values, str(tmp_path / "wanted.npy"))
        assert {code: finding.severity for code, finding in findings.items()} == {"varies": "note"}


def test_a_hint_explains_every_head(tmp_path: Path) -> None:
    wider = np.stack([mask("window(4)"), mask("window(4)")])
    assert "the window has 4 keys, not 3" in found(tmp_path, wider, "window(3)")["window"].message
    wider[1] = mask("window(5)")
    assert found(tmp_path, wider, "window(3)")["window"].message == "attends outside the window in 5 cells"


def test_the_work_of_an_expectation_grows_with_its_windows_and_not_with_their_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid: list[int] = []
    kind = ATOMS["window"]

    def counted(grid: Any, width: int) -> Any:
        laid.append(width)
        return kind.rule(grid, width)

    monkeypatch.setitem(ATOMS, "window", kind._replace(rule=counted))
    counts = []
    for windows in (15, 60):
        laid.clear()
        expect = " | ".join(f"window({width})" for width in range(1, windows + 1))
        assert set(found(tmp_path, additive(mask("full", 64) & ~mask("queries(2,3)", 64)), expect)) > {"missing"}
        counts.append(len(laid))
    assert counts[1] <= 4 * counts[0]


def test_what_does_not_fit_another_alignment_is_no_explanation(tmp_path: Path) -> None:
    # The documents cover the 10 positions after a past of 6; aligned otherwise, there are only 8.
    findings = found(tmp_path, mask("causal", 4, 8), "docs(5,5)", MaskSize(past=6), reader="sdpa")
    assert set(findings) == {"document", "missing"}


def test_documents_are_not_laid_over_a_mask_of_another_size(tmp_path: Path) -> None:
    findings = found(tmp_path, mask("causal & ~queries(0,1)", 8), "docs(2,3)", MaskSize(5, 5))
    assert set(findings) == {"shape", "dead-row"}  # causal but for one row that attends to nothing


def test_rows_that_are_masked_on_purpose_are_a_note(tmp_path: Path) -> None:
    findings = found(tmp_path, mask("causal & pad(left=2)"), "causal & pad(left=2)")
    assert findings["dead-row"].severity == "note"
    assert findings["dead-row"].rows == (0, 1)
    both = audit(read_grid(str(tmp_path / "mask.npy")), parse("causal & pad(left=1)"), MaskSize())
    dead = [(finding.severity, finding.rows) for finding in both if finding.code == "dead-row"]
    assert dead == [("error", (1,)), ("note", (0,))]


@pytest.mark.parametrize(
    ("dtype", "fill", "is_found"),
    [
        ("float16", -1e9, True),
        ("float16", MIN, True),
        ("float16", -1e4, False),
        ("float16", -np.inf, False),
        ("bfloat16", MIN, True),
        ("bfloat16", -1e9, False),
        ("float32", MIN, False),
        (None, -1e9, False),
    ],
)
def test_a_fill_beyond_the_models_type_overflows(tmp_path: Path, dtype: Any, fill: float, is_found: bool) -> None:
    findings = found(tmp_path, additive(mask("causal"), fill), "causal", dtype=dtype)
    assert set(findings) == ({"overflow"} if is_found else set())
    with np.errstate(over="ignore"):
        cast = torch.tensor(fill, dtype=torch.float32).to(getattr(torch, dtype or "float32"))
    assert bool(torch.isinf(cast)) == (is_found or fill == -np.inf)


# --- what becomes of a fully masked row ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fill", "dtype", "words"),
    [
        (-np.inf, "float32", "softmax over −inf gives NaN, scaled_dot_product_attention 0"),
        (MIN, "float32", "uniform over all keys"),
        (-1e9, "float32", "uniform over all keys"),
        (-1e4, "float32", "as if nothing were masked"),
        (-1e4, "float16", "uniform over all keys"),
        (LEAST["float16"], "float16", "uniform over all keys"),
    ],
)
def test_a_masked_row_becomes_what_is_said(tmp_path: Path, fill: float, dtype: str, words: str) -> None:
    values = additive(mask("causal & ~queries(3,4)"), fill, dtype)
    assert words in found(tmp_path, values, "causal")["dead-row"].message
    scores = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -0.3]).to(getattr(torch, dtype))
    weights = torch.softmax((scores + torch.from_numpy(values)[3]).float(), dim=-1)
    if "NaN" in words:
        assert torch.isnan(weights).all()
        query, key = torch.randn(2, 1, 6, 4)
        out = scaled_dot_product_attention(query, key, key, attn_mask=torch.from_numpy(values))
        assert (out[0, 3] == 0).all()
    elif "uniform" in words:
        torch.testing.assert_close(weights, torch.full((6,), 1 / 6), atol=0.02, rtol=0)
    else:
        torch.testing.assert_close(weights, torch.softmax(scores.float(), dim=-1), atol=1e-3, rtol=0)


# --- conventions ---------------------------------------------------------------------------------------------


def test_zeros_in_floats_mask_nothing_and_additive_values_have_no_true() -> None:
    reading = read_convention(np.zeros((1, 2, 2)), "m")
    assert (reading.convention, reading.is_ambiguous, reading.allowed.all()) == ("additive", False, True)
    assert as_allowed(np.zeros((2, 2), np.float16), "m").all()
    assert read_convention(np.zeros((1, 2, 2)), "m", "mha").allowed.all()
    assert read_convention(np.zeros((1, 2, 2)), "m", "additive").allowed.all()
    assert not read_convention(np.zeros((1, 2, 2)), "m", "sdpa").allowed.any()
    assert read_convention(np.zeros((1, 2, 2), int), "m").is_ambiguous
    for reader in ("sdpa", "mha", "additive"):  # numbers tell themselves, and all three add them
        assert read_convention(additive(mask("causal"))[None], "m", reader).convention == "additive"
    with pytest.raises(UsageError, match="--for additive does not apply to m, whose values are booleans, or 0 and 1"):
        read_convention(mask("causal")[None], "m", "additive")
    with pytest.raises(InputError, match=r"m holds the values 0, 0\.5"):
        read_convention(np.array([[[0, 0.5]]]), "m")


DTYPES = ("float16", "bfloat16", "float32", "float64")
WAYS: list[tuple[Reader, str]] = [("sdpa", "bool"), ("mha", "bool"), *(("additive", dtype) for dtype in DTYPES)]


@pytest.mark.parametrize(("to", "dtype"), WAYS)
def test_a_mask_survives_every_convention(to: Reader, dtype: str) -> None:
    allowed = mask("causal & window(3) | global(1)")
    values = encode_mask(allowed, to, dtype)
    np.testing.assert_array_equal(read_convention(values[None], "m", to).allowed[0], allowed)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_mask_survives_every_file(tmp_path: Path, ending: str) -> None:
    allowed = mask("causal & window(3) | global(1)")
    path = tmp_path / f"mask{ending}"
    for to, dtype in WAYS:
        if dtype == "bfloat16" and ending not in (".safetensors", ".pt"):
            with pytest.raises(UsageError, match="has no bfloat16"):
                write_values(tmp_path / f"other{ending}", np.zeros((2, 2), np.float32), "bfloat16")
            continue
        values = encode_mask(allowed, to, dtype)
        write_values(path, values, dtype)
        stored = read_values(path)
        assert stored.dtype in (dtype, None)
        np.testing.assert_array_equal(stored.values, values)
        assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_fill_is_the_least_number_of_the_type(tmp_path: Path, dtype: str) -> None:
    assert LEAST[dtype] == torch.finfo(getattr(torch, dtype)).min
    for ending in (".safetensors", ".pt"):
        write_values(tmp_path / f"mask{ending}", encode_mask(mask("causal"), "additive", dtype), dtype)
        assert read_values(tmp_path / f"mask{ending}").values.min() == LEAST[dtype]
    from safetensors.torch import load_file

    theirs = load_file(tmp_path / "mask.safetensors")["mask"]
    assert torch.equal(theirs, torch.load(tmp_path / "mask.pt", weights_only=True))
    assert theirs.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 2, 3, 4)])
def test_axes_survive_too(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape)).reshape(shape) % 3 == 0
    for ending in ENDINGS:
        if ending != ".csv":
            write_values(tmp_path / f"m{ending}", values, "bool")
            np.testing.assert_array_equal(read_values(tmp_path / f"m{ending}").values, values)
    assert as_allowed(values, "m") is values


# --- what fails a check --------------------------------------------------------------------------------------


def test_errors_fail_a_check_or_the_codes_that_are_named() -> None:
    error, note = Finding("leak", "error", "x"), Finding("varies", "note", "x")
    assert fails([error, note], None)
    assert not fails([note], None)
    assert fails([note], parse_fail_on("leak, varies"))
    assert not fails([error], parse_fail_on("pad"))
    with pytest.raises(UsageError, match="--fail-on 'leek': expected some of leak,"):
        parse_fail_on("leek")
