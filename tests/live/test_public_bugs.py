"""Bugs that people made in public, right and wrong twin each, and published designs: what watching them says."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from watched_programs import Run, errors, programs_of, watched

FOLDER = Path(__file__).parent / "programs"


class Bug(NamedTuple):
    """A bug, what its calls are held against, and which error is found in its wrong twin."""

    name: str  # of the function
    expect: str | None  # what its calls are held against; None where none says what is right
    alone: str  # the code of an error without `expect`; empty where none is found
    held: str  # the code of an error with it
    place: str | None = None  # a pattern of the places that are held against it
    is_harmful: bool = True  # wherever it stands; some models leave the scale out on purpose


class Design(NamedTuple):
    """A design, what its calls are held against, and what is wrongly said of it."""

    name: str  # of the function
    expect: str | None  # what its calls are held against; None where none says what it is
    alone: str = ""  # the code of an error that is found without it although it is right
    held: str = ""  # with it


BUGS = [
    Bug("polarity_kpm", "pad", "leak", "leak"),
    Bug("polarity_sdpa", "pad", "leak", "leak"),
    Bug("polarity_triu", "causal", "leak", "leak"),
    Bug("polarity_mfill", "pad", "leak", "leak"),
    Bug("float_kpm", "pad", "added-bool", "added-bool"),
    Bug("diag0", "causal", "dead-row", "dead-row"),
    Bug("diag2_leak", "causal", "", "leak"),
    Bug("window_plus1", "window(4)", "", "window"),
    Bug("window_right", "window(4)", "", "leak"),
    Bug("window_dropped", "window(4)", "", "window"),
    Bug("prefix_off", "causal | prefix(4)", "", "leak"),
    Bug("prefix_batch", "causal | prefix(4)", "", "leak"),
    Bug("pad_axis", "pad", "broadcast", "broadcast"),
    Bug("pad_axis_sdpa", "causal & pad", "", ""),
    Bug("batch_as_head", "pad", "batch", "pad"),
    Bug("repeat_heads", "pad", "batch", "varies"),
    Bug("skip_nopad", "pad", "pad", "pad"),
    Bug("not_inplace", "causal", "", "leak"),
    Bug("encoder_as_decoder", "causal", "", "leak"),
    Bug("causal_encoder", "pad", "", "missing"),
    Bug("bert_nomask", "pad", "pad", "pad"),
    Bug("eps_1e9", "pad", "added-bool", "added-bool"),
    Bug("fill_zero", "pad", "no-mask", "no-mask"),
    Bug("bool_added", "pad", "added-bool", "added-bool"),
    Bug("sign_flipped", "pad", "leak", "leak"),
    Bug("plus_inf", "pad", "leak", "leak"),
    Bug("times_mask", "pad", "no-mask", "no-mask"),
    Bug("after_softmax", "causal & pad", "after-softmax", "after-softmax"),
    Bug("double_min", "causal & pad", "double-fill", "double-fill"),
    Bug("weak_fill", "pad", "no-mask", "no-mask"),
    Bug("nan_rows", "causal & pad", "nan", "nan"),
    Bug("axis_einsum", "causal", "axis", "axis"),
    Bug("axis_dim1", "full", "axis", "axis"),
    Bug("no_scale", "causal", "", "", is_harmful=False),
    Bug("double_scale", "causal", "", ""),
    Bug("scale_dmodel", "causal", "unscaled", "unscaled"),
    Bug("scale_mult", "causal", "unscaled", "unscaled"),
    Bug("heads_view", "full", "heads", "heads"),
    Bug("out_view", "full", "heads", "heads"),
    Bug("gqa_repeat", "causal", "", "", is_harmful=False),
    Bug("batch_first", "pad", "", "pad"),
    Bug("qk_swapped", "causal", "", ""),
    Bug("dropout_eval", "causal", "dropout", "dropout"),
    Bug("cross_nomask", "pad", "pad", "pad", place="*multihead_attn"),
    Bug("cross_tgt", "pad", "pad", "", place="*multihead_attn"),
    Bug("enc_tgt_pad", "pad", "pad", "", place="*encoder*"),
    Bug("wrong_order", "pad", "batch", "batch"),
    Bug("pad_id", "pad", "pad", "missing"),
    Bug("packed_causal", "causal & docs(6,4)", "document", "document"),
    Bug("packed_mask_to", "causal & docs(6,4)", "", "leak"),
    Bug("packed_row0", "causal & docs(6,4)", "document", "document"),
    Bug("packed_nopos", "causal & docs(6,4)", "", ""),
    Bug("hf_packed_2d", "causal & docs(6,4)", "document", "document"),
    Bug("hf_nomask", "causal & pad", "", "pad"),
    Bug("hf_nopos", "causal & pad", "positions", "positions"),
    Bug("left_nopos", "causal & pad", "positions", "positions"),
    Bug("pos_stuck", "causal", "positions", "positions"),
    Bug("cache_slice", "causal", "shape", "shape"),
    Bug("cache_static", None, "cache", "cache"),
    Bug("cache_iscausal", "causal", "shape", "shape"),
    Bug("cache_twice", "causal", "cache", "cache"),
    Bug("alibi_sign", "causal & alibi(4)", "bias", "bias"),
    Bug("alibi_slopes", "causal & alibi(4)", "", "bias", is_harmful=False),
    Bug("swin_nomask", None, "", ""),
    Bug("swin_order", None, "batch", "batch"),
    Bug("mask_and_causal", "causal & docs(6,4)", "backend", "backend"),
    Bug("softprompt", "pad", "padding-side", "padding-side"),
    Bug("all_masked_wrong", "pad", "pad", "missing"),
]

DESIGNS = [
    Design("mup_by_hand", "causal"),
    Design("mup_sdpa", "causal"),
    Design("mup_before", "causal"),
    Design("cosine", "causal"),
    Design("qk_norm", "causal"),
    Design("cosine_sdpa", "full"),
    Design("slots", "full"),
    Design("query_mask", "pad"),
    Design("head_mask", "causal"),
    Design("deberta", "pad"),
    Design("zero_for_nan", "causal & pad"),
    Design("added_1e4_twice", "causal & pad"),
    Design("added_1e9_twice", "causal & pad"),
    Design("added_inf_twice", "causal & pad"),
    Design("filled_twice", "causal & pad"),
    Design("reformer", "causal & ~window(1)"),
    Design("strict_causal", None),
    Design("lookahead", "band(7,1)"),
    Design("backward", "band(0,7)"),
    Design("local_windows", None),
    Design("tiled_heads", "causal"),
    Design("softcap", "causal"),
    Design("top_k", None),
    Design("relative_bias", "window(4)"),
    Design("swin", None),
    Design("simultaneous", "causal"),
    Design("uniform_padding", "pad"),
    Design("cloze", "~window(1)"),
    Design("class_token", "band(1,1) | global(0)"),
    Design("added_50", "causal"),
    Design("added_200", "causal"),
    Design("added_500", "causal"),
    Design("added_1000", "causal"),
    Design("added_2000", "causal"),
    Design("added_5000", "causal"),
    Design("added_9000", "causal"),
    Design("filled_50", "causal"),
    Design("filled_100", "causal"),
    Design("filled_1000", "causal"),
    Design("filled_10000", "causal"),
]


def named(each: Bug | Design) -> str:
    return each.name


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, Run]]:
    """The functions of the programs by their names."""
    yield from programs_of(FOLDER, "public_masks", "public_models", "designs")


@pytest.mark.parametrize("bug", BUGS, ids=named)
def test_the_right_twin_has_no_error(bug: Bug, programs: dict[str, Run]) -> None:
    def run() -> list[torch.Tensor]:
        return programs[bug.name](False)

    assert errors(run) == []
    assert errors(run, bug.expect, bug.place) == []


@pytest.mark.parametrize("bug", BUGS, ids=named)
def test_the_wrong_twin_is_found(bug: Bug, programs: dict[str, Run]) -> None:
    def run() -> list[torch.Tensor]:
        return programs[bug.name](True)

    assert {bug.alone} - {""} <= {*errors(run)}
    assert {bug.held} - {""} <= {*errors(run, bug.expect, bug.place)}


def test_so_many_are_found() -> None:
    harmful = [bug for bug in BUGS if bug.is_harmful]
    assert len(harmful) == 65
    assert sum(bool(bug.alone) for bug in harmful) >= 48
    assert sum(bool(bug.held) for bug in harmful) >= 58


@pytest.mark.parametrize("design", DESIGNS, ids=named)
def test_a_published_design_is_not_accused(design: Design, programs: dict[str, Run]) -> None:
    run = programs[design.name]
    assert {*errors(run)} <= {design.alone}
    assert {*errors(run, design.expect)} <= {design.alone, design.held}


@pytest.mark.parametrize("name", ["sink", "softmax_one", "differential"])
def test_a_published_design_that_is_not_followed_is_counted(name: str, programs: dict[str, Run]) -> None:
    calls = watched(programs[name])
    assert not calls
    (note,) = calls.notes
    assert "could not follow" in note


def test_windows_are_no_heads(programs: dict[str, Run]) -> None:
    assert watched(programs["local_windows"]).findings == ()
