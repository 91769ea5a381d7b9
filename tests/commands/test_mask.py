"""`attn mask show`, `check`, `diff` and `convert` as a user runs them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import INPUT, USAGE, left_in, refused

Run = Callable[..., Any]


@pytest.fixture
def masks(folder: Path) -> Path:
    """A folder with masks in it."""
    lower = np.tri(6, dtype=bool)
    np.save("causal.npy", lower)
    np.save("leak.npy", lower | (np.arange(36).reshape(6, 6) == 4))
    np.save("padding.npy", np.broadcast_to(np.arange(6) < 4, (6, 6)))
    np.save("heads.npy", np.stack([lower, lower, np.triu(lower, -1)]))
    np.save("additive.npy", np.where(lower, 0, -np.inf))
    return folder


# --- show ----------------------------------------------------------------------------------------------------


def picture(out: str, rows: int) -> list[str]:
    """The rows of cells of a drawn mask, a character for each cell: 2 is that of the query itself."""
    lines = out.split("\n\n")[1].splitlines()[1 : 1 + rows]
    return [line[-2 * rows :].replace("██", "1").replace("▓▓", "2").replace(" ·", "0") for line in lines]


def test_a_mask_is_drawn_over_positions(attn: Run) -> None:
    ran = attn("mask", "show", "causal & window(2)", "--size", "4")
    assert (ran.code, ran.err) == (0, "")
    assert picture(ran.out, 4) == ["2000", "1200", "0120", "0012"]
    assert "causal & window(2) · 4 queries × 4 keys" in ran.out
    assert "1 to 2 keys per query   44 % of cells allowed   causal: none after the query\n" in ran.out
    banded = attn("mask", "show", "band(1,1)", "--size", "4").out
    assert "2 to 3 keys per query   62 % of cells allowed   not causal: 3 cells after the query\n" in banded


# --- check ---------------------------------------------------------------------------------------------------


def test_a_check_ends_with_1_where_something_is_wrong(attn: Run, masks: Path) -> None:
    healthy = attn("mask", "check", "causal.npy", "--expect", "causal")
    assert healthy.code == 0
    assert "True = attend, as scaled_dot_product_attention reads it (the only causal reading)" in healthy.out
    assert healthy.out.endswith("\nok: nothing found\n")
    assert attn("mask", "check", "additive.npy", "--expect", "causal").out.endswith("\nok: nothing found\n")
    alone = attn("mask", "check", "causal.npy").out
    assert alone.startswith("causal.npy · causal · ")
    assert alone.endswith("\nnothing found; give --expect EXPR to compare it with the mask you mean\n")
    np.save("torch.npy", ~np.load("causal.npy"))
    assert "True = masked, as nn.MultiheadAttention reads it (the only" in attn("mask", "check", "torch.npy").out
    leaking = attn("mask", "check", "leak.npy", "--expect", "causal", "--for", "sdpa")
    assert leaking.code == 1
    assert "error  leak  attends to the future in 1 cell\n             cells (0,4)\n" in leaking.out
    assert leaking.out.endswith("1 error\n")
    for_sdpa = ["--expect", "causal", "--for", "sdpa"]
    assert attn("mask", "check", "leak.npy", *for_sdpa, "--fail-on", "pad,dead-row").code == 0
    assert attn("mask", "check", "full", "--expect", "causal", "--size", "3").code == 1
    assert attn("mask", "check", "causal", "--expect", "window(8)").code == 0
    assert attn("mask", "check", "causal", "--expect", "causal.npy", "-F", "json").json["ok"] is True
    assert attn("mask", "check", "full", "--expect", "docs(5)", "-F", "json").json["ok"] is True
    heads = attn("mask", "check", "heads.npy", "--expect", "heads.npy")
    assert (heads.code, heads.out.splitlines()[-1]) == (0, "1 note")


def test_an_ambiguous_mask_is_said_to_be_so_and_true_decides(attn: Run, masks: Path) -> None:
    for expect in ([], ["--expect", "pad(right=2)"]):
        ran = attn("mask", "check", "padding.npy", *expect)
        assert ran.code == 1
        assert "Use --for sdpa or --for mha to decide" in ran.out
        assert ran.out.endswith("1 error\n")
    assert attn("mask", "check", "padding.npy", "--for", "sdpa").code == 0
    assert attn("mask", "check", "padding.npy", "--expect", "pad(right=2)", "--for", "sdpa").code == 0
    assert attn("mask", "check", "padding.npy", "--expect", "pad(right=2)", "--for", "mha").code == 1
    for other in ("pad(right=2)", "additive.npy"):
        refused(attn("mask", "diff", "padding.npy", other), USAGE, "--for sdpa or --for mha")
    assert attn("mask", "diff", "padding.npy", "pad(right=2)", "--for", "sdpa").code == 0
    refused(attn("mask", "show", "padding.npy"), USAGE, "padding.npy: the cells do not tell", "--for sdpa or")
    assert attn("mask", "show", "padding.npy", "--for", "mha", "-F", "json").json["density"] == pytest.approx(1 / 3)
    document = attn("mask", "check", "padding.npy", "-F", "json").json
    assert (document["convention"], [finding["code"] for finding in document["findings"]]) == (None, ["ambiguous"])


# --- batches -------------------------------------------------------------------------------------------------


@pytest.fixture
def batches(folder: Path) -> Path:
    """A folder with masks of two rows, of 5 and 2 tokens among 6."""
    lower, tokens = np.tri(6, dtype=bool), np.arange(6) < np.array([5, 2])[:, None]
    np.save("four.npy", lower & tokens[:, None, None])
    np.save("three.npy", lower & tokens[:, None])
    np.save("torch.npy", ~np.repeat(lower & tokens[:, None], 4, axis=0))  # as nn.MultiheadAttention takes 4 heads
    np.save("causal.npy", np.broadcast_to(lower, (2, 1, 6, 6)))
    return folder


def test_a_batch_is_checked_against_the_padding_of_each_row(attn: Run, batches: Path) -> None:
    lengths = "5,2"
    expect = ["--expect", "causal & pad", "--lengths", lengths]
    for name in ("four.npy", "three.npy"):
        assert attn("mask", "check", name, *expect, "--for", "sdpa").code == 0
    assert attn("mask", "check", "torch.npy", *expect, "--for", "mha").code == 0
    assert attn("mask", "diff", "four.npy", "causal & pad", "--lengths", lengths, "--for", "sdpa").code == 0
    assert attn("mask", "check", "causal.npy", *expect).code == 0  # no word sees what follows it
    np.save("full.npy", np.ones((2, 1, 6, 6), bool))
    wrong = attn("mask", "check", "full.npy", "--expect", "pad", "--lengths", lengths, "--for", "sdpa")
    assert wrong.code == 1
    assert "error  pad  attends to padding in 11 cells, in batch rows 0-1\n            cells (0,2)" in wrong.out


# --- saved traces and atoms without effect ---------------------------------------------------------------------


def test_the_mask_of_a_saved_trace_is_shown_and_checked(attn: Run, folder: Path) -> None:
    assert attn("inspect", "a b c", "--mask", "window(2)", "--save", "t.safetensors", "-F", "json").code == 0
    shown = attn("mask", "show", "--from", "t.safetensors")
    assert shown.out.startswith("t.safetensors · window(2) · 3 queries × 3 keys\n\n    0 1 2\n0 a ▓▓ · ·\n")
    assert attn("mask", "show", "t.safetensors").out == shown.out
    assert attn("mask", "diff", "t.safetensors", "window(2)").code == 0
    wrong = attn("mask", "check", "t.safetensors", "--expect", "causal")
    assert (wrong.code, "misses an allowed key in 1 cell" in wrong.out) == (1, True)
    assert attn("mask", "check", "--from", "t.safetensors", "-F", "json").json["ok"] is True
    for arguments, code, words in (
        (["show", "causal", "--from", "t.safetensors"], USAGE, "give one mask"),
        (["show", "--from", "gone.safetensors"], INPUT, "does not exist"),
        (["show", "--from", "causal.npy"], USAGE, "causal.npy is no saved trace; give it without --from"),
        (["show", "causal", "--layer", "0"], USAGE, "--layer and --kind apply to a saved trace"),
        (["check", "t.safetensors", "--for", "mha"], USAGE, "--for does not apply to a saved trace"),
        (["show", "t.safetensors", "--layer", "3"], USAGE, "out of range"),
    ):
        refused(attn("mask", *arguments), code, words)


def test_an_atom_without_effect_is_a_note_and_never_in_a_document(attn: Run, masks: Path) -> None:
    note = "attn: window(9) has no effect at this size: the expression equals causal\n"
    idle = "causal & window(9)"
    for arguments in (
        ["mask", "show", idle, "--size", "6"],
        ["mask", "show", idle, "--size", "6", "-F", "json"],
        ["mask", "check", idle],
        ["mask", "check", "causal.npy", "--expect", idle],
        ["mask", "check", "causal.npy", "--expect", idle, "-F", "json"],
        ["mask", "diff", idle, "causal"],
        ["inspect", "time flies", "--mask", idle],
    ):
        ran = attn(*arguments)
        assert (ran.code, ran.err, "no effect" in ran.out) == (0, note, False)


# --- diff and convert ----------------------------------------------------------------------------------------


def test_a_difference_is_drawn_and_counted(attn: Run, masks: Path) -> None:
    ran = attn("mask", "diff", "leak.npy", "causal & window(5)", "--for", "sdpa")
    assert ran.code == 1
    assert "2 of 36 cells differ, in 2 of 6 rows" in ran.out
    assert "A only leak.npy: 2 cells   ░ both   · neither" in ran.out
    assert ran.out.count("AA") == 2
    equal = attn("mask", "diff", "additive.npy", "causal")
    assert (equal.code, equal.out) == (0, "equal: 36 cells\n")
    assert attn("mask", "diff", "causal", "causal.npy").code == 0
    for documents in (["causal", "docs(3,2)"], ["docs(3,2)", "causal"]):
        assert "10 of 25 cells differ" in attn("mask", "diff", *documents).out
    assert attn("mask", "diff", "heads.npy", "causal").code == 1
    refused(attn("mask", "diff", "causal.npy", "heads.npy", "--size", "5"), INPUT, "[6, 6]", "[5, 5]")


def test_a_mask_is_converted(attn: Run, masks: Path) -> None:
    ran = attn("mask", "convert", "causal.npy", "--to", "additive", "--dtype", "float16", "-o", "out.pt")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    written = torch.load("out.pt", weights_only=True)
    assert written.dtype == torch.float16
    assert written[0].tolist() == [0.0, *[torch.finfo(torch.float16).min] * 5]
    assert attn("mask", "convert", "out.pt", "--to", "mha", "-o", "mha.npy").code == 0
    assert np.load("mha.npy")[0].tolist() == [0, 1, 1, 1, 1, 1]
    assert attn("mask", "diff", "mha.npy", "causal", "--for", "mha").code == 0
    assert attn("mask", "convert", "causal", "--size", "4", "--to", "sdpa", "-o", "out.npy").code == 0
    assert np.load("out.npy").tolist() == np.tri(4, dtype=bool).tolist()


# --- what a user gets wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["show", "causal & windw(2)"], USAGE, "at character 10"),
        (["show", "causal", " "], INPUT, "empty"),
        (["show", "causal", "a b", "--size", "2x3"], USAGE, "--size does not apply to TEXT"),
        (["show", "causal", "--size", "3x"], USAGE, "--size 3x: expected queries, such as 8"),
        (["show", "causal", "a b c", "--past", "3"], USAGE, "--past 3 leaves no query"),
        (["show", "causal", "--size", "999999999"], INPUT, "too many"),
        (["check", "causal.npy", "--past", str(2**63 - 1)], USAGE, "from 0 to 999999999"),
        (["show", "docs(999999998)", "--size", "2x3", "--past", "999999997"], INPUT, "999999999; make"),
        (["diff", "causal", "full", "--for", "sdpa"], USAGE, "--for sdpa applies"),
        (["show", "causal.npy", "--size", "4"], INPUT, "[6, 6]"),
        (["diff", "causal.npy", "docs(3,4)"], INPUT, "covers 7 positions"),
        (["show", "causal", "-o", "mask.tsv"], USAGE, ".json, .svg, .html, .md or .txt"),
        (["diff", "causal", "full", "-o", "mask.json"], USAGE, ".txt"),
        (["convert", "causal.npy", "--to", "sdpa", "-o", "x.bin"], USAGE, "ending in .npy"),
        (["convert", "heads.npy", "--to", "sdpa", "-o", "x.csv"], USAGE, "ending in .npy"),
        (["show", "mask.csv"], USAGE, "unknown mask 'mask'"),
        (["convert", "causal.npy", "--to", "sdpa", "-o", "gone/x.npy"], INPUT, "cannot write"),
        (["convert", "padding.npy", "--to", "sdpa", "-o", "x.npy"], USAGE, "--for sdpa or"),
        (["convert", "causal.npy", "--to", "sdpa"], USAGE, "--output"),
        (["check", "causal.npy", "--expect", "pad"], USAGE, "--lengths 5,2"),
        (["show", "pad", "--lengths", "5,-2"], USAGE, "expected numbers such as 5,2"),
        (["show", "pad", "--lengths", "9," * 999 + "9", "--size", "9999"], INPUT, "1000 masks of 9999"),
    ],
)
def test_a_bad_request_is_one_sentence_and_an_exit_code(
    attn: Run, masks: Path, arguments: list[str], code: int, words: str
) -> None:
    before = left_in(masks)
    refused(attn("mask", *arguments), code, words)
    assert left_in(masks) == before
