"""Bugs that people made in public, right and wrong twin each, and published designs: what watching them says."""

from typing import NamedTuple

import pytest
import torch
from watched_programs import Run, errors, watched

from attncli.analysis.prove import Prover

PROGRAMS = ("public_masks", "public_models", "designs", "unusual", "public_twins")


class Bug(NamedTuple):
    name: str  # of the function
    expect: str | None  # what its calls are held against; None where none says what is right
    alone: str  # the code of an error without `expect`; empty where none is found
    held: str  # the code of an error with it
    place: str | None = None  # a pattern of the places that are held against it
    is_harmful: bool = True  # in any model; some models leave the scale out on purpose
    proof: str = ""  # the code of an error that `--prove` finds; empty where that is not needed


class Twin(NamedTuple):
    """A bug of 2025 or 2026, and what is found in its wrong twin: alone, held against a claim, and in a proof."""

    name: str  # of the function
    expect: str | None  # None where no one expression holds for its keys
    alone: str = ""
    held: str = ""
    proof: str = ""
    claim: str = ""  # what is to be proved; empty where it is `expect`
    place: str | None = None

    @property
    def is_found(self) -> bool:
        return bool(self.alone or self.held or self.proof)


BUGS = [
    Bug("polarity_kpm", "pad", "leak", "leak"), Bug("polarity_sdpa", "pad", "leak", "leak"),
    Bug("polarity_triu", "causal", "leak", "leak"), Bug("polarity_mfill", "pad", "leak", "leak"),
    Bug("float_kpm", "pad", "added-bool", "added-bool"), Bug("diag0", "causal", "dead-row", "dead-row"),
    Bug("diag2_leak", "causal", "", "leak"), Bug("window_plus1", "window(4)", "", "window"),
    Bug("window_right", "window(4)", "", "leak"), Bug("window_dropped", "window(4)", "", "window"),
    Bug("prefix_off", "causal | prefix(4)", "", "leak"), Bug("prefix_batch", "causal | prefix(4)", "", "leak"),
    Bug("pad_axis", "pad", "broadcast", "broadcast"), Bug("pad_axis_sdpa", "causal & pad", "", ""),
    Bug("batch_as_head", "pad", "batch", "pad"), Bug("repeat_heads", "pad", "batch", "varies"),
    Bug("skip_nopad", "pad", "pad", "pad"), Bug("not_inplace", "causal", "", "leak"),
    Bug("encoder_as_decoder", "causal", "", "leak"), Bug("causal_encoder", "pad", "", "missing"),
    Bug("bert_nomask", "pad", "pad", "pad"), Bug("eps_1e9", "pad", "added-bool", "added-bool"),
    Bug("fill_zero", "pad", "no-mask", "no-mask"), Bug("bool_added", "pad", "added-bool", "added-bool"),
    Bug("sign_flipped", "pad", "leak", "leak"), Bug("plus_inf", "pad", "leak", "leak"),
    Bug("times_mask", "pad", "no-mask", "no-mask"),
    Bug("after_softmax", "causal & pad", "after-softmax", "after-softmax"),
    Bug("double_min", "causal & pad", "double-fill", "double-fill"), Bug("weak_fill", "pad", "no-mask", "no-mask"),
    Bug("nan_rows", "causal & pad", "nan", "nan"), Bug("axis_einsum", "causal", "axis", "axis"),
    Bug("axis_dim1", "full", "axis", "axis"), Bug("no_scale", "causal", "", "", is_harmful=False),
    Bug("double_scale", "causal", "", ""), Bug("scale_dmodel", "causal", "unscaled", "unscaled"),
    Bug("scale_mult", "causal", "unscaled", "unscaled"), Bug("heads_view", "full", "", "", proof="heads"),
    Bug("out_view", "full", "", "", proof="heads"), Bug("gqa_repeat", "causal", "", "", is_harmful=False),
    Bug("batch_first", "pad", "", "pad"), Bug("qk_swapped", "causal", "", ""),
    Bug("dropout_eval", "causal", "dropout", "dropout"),
    Bug("cross_nomask", "pad", "pad", "pad", place="*multihead_attn"),
    Bug("cross_tgt", "pad", "pad", "", place="*multihead_attn"),
    Bug("enc_tgt_pad", "pad", "pad", "", place="*encoder*"), Bug("wrong_order", "pad", "batch", "batch"),
    Bug("pad_id", "pad", "pad", "missing"), Bug("packed_causal", "causal & docs(6,4)", "document", "document"),
    Bug("packed_mask_to", "causal & docs(6,4)", "", "leak"),
    Bug("packed_row0", "causal & docs(6,4)", "document", "document"),
    Bug("packed_nopos", "causal & docs(6,4)", "", ""),
    Bug("hf_packed_2d", "causal & docs(6,4)", "document", "document"), Bug("hf_nomask", "causal & pad", "", "pad"),
    Bug("hf_nopos", "causal & pad", "positions", "positions"),
    Bug("left_nopos", "causal & pad", "positions", "positions"), Bug("pos_stuck", "causal", "positions", "positions"),
    Bug("cache_slice", "causal", "shape", "shape"), Bug("cache_static", None, "cache", "cache"),
    Bug("cache_iscausal", "causal", "shape", "shape"), Bug("cache_twice", "causal", "cache", "cache"),
    Bug("alibi_sign", "causal", "", ""), Bug("swin_nomask", None, "", ""), Bug("swin_order", None, "", ""),
    Bug("mask_and_causal", "causal & docs(6,4)", "backend", "backend"),
    Bug("softprompt", "pad", "padding-side", "padding-side"), Bug("all_masked_wrong", "pad", "pad", "missing"),
]  # fmt: skip

TREE = "queries(8,9) & keys(7,8) | queries(9,10) & keys(8,9) | queries(10,11) & (keys(7,8) | keys(9,10))"
TWINS = [
    Twin("llada_pad", "pad", held="pad", proof="leak"), Twin("qwenimage_joint", "pad", held="pad"),
    Twin("indicbert_bidir", "pad", held="pad", proof="leak"), Twin("labelattn_inverted", "pad", held="pad"),
    Twin("kempner_frames", "pad", held="pad"), Twin("omni_pad", "pad(right=3)", held="pad", claim="full"),
    Twin("espnet_lengths", "pad"), Twin("torchaudio_conv", "pad", proof="leak"),
    Twin("biogpt_last", "causal & pad", proof="leak"), Twin("lightrag_mean", "pad", proof="leak"),
    Twin("megatron_mtp", None, proof="leak", claim="docs(5,4,3)"),
    Twin("lalamo_rows", "causal & window(4)", "window", "window"),
    Twin("cosyvoice_chunk", "causal | chunk(4)", held="leak", proof="leak"),
    Twin("cosmos_layers", "full", held="missing", place="layers.1"),
    Twin("gemma3_images", "causal | queries(1,4) & keys(1,4) | queries(7,10) & keys(7,10)", held="leak", proof="leak"),
    Twin("paddle_chunk", "causal & chunk(4) & pad", held="pad", proof="leak"),
    Twin("nanovlm_packed", "causal & docs", "document", "document", "leak"),
    Twin("deepseek_indexer", None, proof="leak", claim="causal"), Twin("mobius_static", "causal & pad", held="pad"),
    Twin("c2c_mask", "causal & pad", held="pad"), Twin("unsloth_pos", "causal & pad", "positions", "positions"),
    Twin("velox_offset", "causal"), Twin("omlx_rope", "causal", "positions", "positions"),
    Twin("trtllm_t5", "causal", "bias", "bias"), Twin("parscale_prefix", "causal", held="missing"),
    Twin("fastdeploy_tree", f"causal & ~({TREE})", held="leak", claim="causal"), Twin("sgl_ring_text", "full"),
    Twin("glm_scale", "causal"),
]  # fmt: skip

# Published designs by what their calls are held against; None where no one expression says what they are.
DESIGNS: dict[str | None, str] = {
    "causal": """
        mup_by_hand mup_sdpa mup_before cosine qk_norm head_mask tiled_heads sink softcap
        simultaneous added_50 added_200 added_500 added_1000 added_2000 added_5000 added_9000
        filled_50 filled_100 filled_1000 filled_10000
    """,
    "full": "cosine_sdpa slots", "pad": "query_mask deberta uniform_padding",
    "causal & pad": "zero_for_nan added_1e4_twice added_1e9_twice added_inf_twice filled_twice",
    "causal & ~window(1)": "reformer rows_taken_away", None: "strict_causal local_windows top_k swin",
    "band(7,1)": "lookahead", "band(0,7)": "backward", "window(4)": "relative_bias", "~window(1)": "cloze",
    "band(1,1) | global(0)": "class_token",
}  # fmt: skip

# Right programs by the mask that all of their calls have, and the one that their outputs keep; None is none.
CLAIMS: dict[tuple[str | None, str | None], str] = {
    ("causal", "causal"): """
        mla_heads_first mla_queries_first mla_decoding mla_wide_keys query_slices speculative chunked_prefill
        beams transformer_xl ring online_softmax multi_query prefix_tuning linear_hybrid state_space_hybrid
        mixture_of_depths checkpointed shared_keys
    """,
    ("causal", None): "mtp eagle",
    (None, None): "medusa_tree static_cache streaming_chunks block_diffusion translation joint_text_image video",
    ("causal & pad", "causal & pad"): "left_padded_generation rows_and_heads bloom t5_bias",
    ("causal", "causal & docs(5,4,3)"): "documents_in_turn",
    (None, "causal"): "compressed_blocks key_of_zeros gated_media", ("full", None): "axial masked_autoencoder",
    ("causal & docs(3,5)", "causal & docs(3,5)"): "flex_documents", (None, "causal | prefix"): "prefix_lm",
    ("pad", None): "perceiver", ("pad", "pad"): "induced_points fast_path",
    (None, "causal & pad"): "torch_transformer", ("causal", "causal & pad"): "last_word",
}  # fmt: skip


def named(each: Bug | Twin) -> str:
    return each.name


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
    assert not bug.proof or bug.proof in refuted(run, str(bug.expect))


def test_so_many_are_found() -> None:
    harmful = [bug for bug in BUGS if bug.is_harmful]
    assert len(harmful) == 65
    assert sum(bool(bug.alone) for bug in harmful) >= 44
    assert sum(bool(bug.held or bug.proof) for bug in harmful) >= 56


def refuted(run: Run, claim: str) -> set[str]:
    """The codes of what a proof of a program finds; what is not proved, for want of outputs, is not refuted."""
    prover = Prover(claim)
    torch.manual_seed(0)
    with prover.watching():
        run()
    return {one.code for proof in prover.proofs for one in proof.findings if one.severity == "error"}


@pytest.mark.parametrize("twin", TWINS, ids=named)
def test_a_right_twin_is_not_accused_in_any_mode(twin: Twin, programs: dict[str, Run]) -> None:
    def run() -> list[torch.Tensor]:
        return programs[twin.name](False)

    assert errors(run) == []
    assert twin.expect is None or errors(run, twin.expect, twin.place) == []
    assert refuted(run, twin.claim or str(twin.expect)) == set()


@pytest.mark.parametrize("twin", [twin for twin in TWINS if twin.is_found], ids=named)
def test_a_wrong_twin_is_told_apart(twin: Twin, programs: dict[str, Run]) -> None:
    def run() -> list[torch.Tensor]:
        return programs[twin.name](True)

    assert {twin.alone} - {""} <= {*errors(run)}
    assert not twin.held or twin.held in errors(run, twin.expect, twin.place)
    assert not twin.proof or twin.proof in refuted(run, twin.claim or str(twin.expect))


def test_so_many_twins_are_told_apart_and_so_many_designs_are_right() -> None:
    assert len(TWINS) == 28
    assert sum(twin.is_found for twin in TWINS) >= 24
    assert len(" ".join(CLAIMS.values()).split()) == 44


@pytest.mark.parametrize(("expect", "name"), [(one, name) for one in DESIGNS for name in DESIGNS[one].split()])
def test_a_published_design_is_not_accused(expect: str | None, name: str, programs: dict[str, Run]) -> None:
    assert errors(programs[name]) == []
    assert errors(programs[name], expect) == []


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, about nested tensors and uncompiled flex_attention
@pytest.mark.parametrize(("claim", "name"), [(claim, name) for claim in CLAIMS for name in CLAIMS[claim].split()])
def test_a_design_is_not_accused(claim: tuple[str | None, str | None], name: str, programs: dict[str, Run]) -> None:
    expected, kept = claim
    for expect in {None, expected}:
        assert [one.message for one in watched(programs[name], expect).findings if one.severity == "error"] == []
    if kept is not None:
        prover = Prover(kept)
        torch.manual_seed(0)
        with prover.watching():
            programs[name]()
        assert prover.error is None
        assert prover.proofs
        assert [str(proof) for proof in prover.proofs if not proof.is_proved] == []


@pytest.mark.parametrize("name", ["softmax_one", "differential"])
def test_a_published_design_that_is_not_followed_is_named(name: str, programs: dict[str, Run]) -> None:
    calls = watched(programs[name])
    assert not calls
    assert calls.notes
    assert all("could not follow" in note for note in calls.notes)


def test_windows_are_no_heads(programs: dict[str, Run]) -> None:
    assert watched(programs["local_windows"]).findings == ()
