"""Proof by change: programs as people write them, wrong and mended, and models of transformers."""

import json
import math
import multiprocessing
import os
import random
import re
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from whole_program import forked

from attncli.analysis.prove import ModelProof, Prover, prove
from attncli.errors import AttnError

# By a name of its own: tests that watch a program import it anew.
_SPEC = spec_from_file_location("programs_that_leak", Path(__file__).parent / "programs" / "proofs.py")
assert _SPEC is not None
assert _SPEC.loader is not None
programs: Any = module_from_spec(_SPEC)
_SPEC.loader.exec_module(programs)

PACKED = f"causal & docs({','.join(map(str, programs.DOCUMENTS))})"
REAL = torch.ones(2, 12, dtype=torch.long)
REAL[1, :4] = 0


def of_tokens() -> tuple[Any, ...]:
    return (programs.tokens(),)


class Case(NamedTuple):
    """A program, what is claimed of it, and what is found in its wrong twin: the kind, and where."""

    make: Callable[[bool], torch.nn.Module]
    expression: str
    kind: str
    module: str
    inputs: Callable[[], tuple[Any, ...]] = of_tokens


CASES = {
    "inverted mask": Case(programs.inverted, "causal", "attention", r"blocks\.0\.attention\.out"),
    "diagonal": Case(programs.one_too_many, "causal", "attention", r"blocks\.0\.attention\.out"),
    "documents": Case(programs.documents_dropped, PACKED, "attention", r"blocks\.0\.attention\.out"),
    "window": Case(programs.window_lost, "causal & window(3)", "attention", r"blocks\.1\.attention\.out"),
    "top-k": Case(programs.chosen_from_the_future, "causal", "attention", r"blocks\.0\.attention\.out"),
    "context parallel": Case(programs.context_parallel, PACKED, "attention", r"blocks\.0\.attention\.out"),
    "mask left out": Case(programs.encoder_layer, "causal", "attention", r"encoder\.layers\.0\.self_attn.*"),
    "convolution": Case(programs.beside(programs.Convolution), "causal", "convolution", r"blocks\.0\.mixer\.conv"),
    "norm": Case(programs.beside(programs.Norm), "causal", "norm", r"blocks\.0\.mixer.*"),
    "batch norm": Case(programs.beside(programs.BatchNorm), "causal", "norm", r"blocks\.0\.mixer\.norm"),
    "router": Case(programs.experts, "causal", "router", r"blocks\.0\.mixer"),
    "recurrence": Case(programs.beside(programs.Recurrence), "causal", "other", r"blocks\.0\.mixer\.rnn"),
    "mean": Case(programs.beside(programs.Mean), "causal", "other", r"blocks\.0\.mixer\.project"),
    "shift": Case(programs.beside(programs.Shift), "causal", "other", r"blocks\.0\.mixer\.project"),
    "scale": Case(programs.beside(programs.Quantized), "causal", "other", r"blocks\.0\.mixer\.linear"),
    "padding of queries": Case(
        programs.padding_of_queries, "causal & pad", "attention", r"blocks\.0\.attention\.out",
        lambda: (programs.tokens(), REAL),
    ),
    "cross-attention": Case(
        programs.Translator, "causal & pad", "attention", r"cross",
        lambda: (programs.tokens(), programs.tokens(length=12), REAL.flip(1), torch.ones_like(REAL)),
    ),
}  # fmt: skip


def proof_of(case: Case, wrong: bool) -> ModelProof:
    torch.manual_seed(0)
    return prove(case.make(wrong), case.inputs(), case.expression)


@pytest.mark.parametrize("name", CASES)
def test_a_leak_is_named_with_its_module_and_its_kind(name: str) -> None:
    """Where outputs read what they must not; a causal model's later positions, other documents, rows or padding."""
    case = CASES[name]
    proof = proof_of(case, wrong=True)
    assert not proof.is_proved
    first = proof.moved[0]
    assert first.kind == case.kind, proof
    assert re.fullmatch(case.module, first.module), proof
    assert first.place.startswith("tests/live/programs/proofs.py:")
    assert first.size > 0
    assert f"; {first.place}" in str(proof)
    if name in ("inverted mask", "diagonal", "convolution", "norm", "recurrence", "shift"):
        assert first.position < first.changed[1]


@pytest.mark.parametrize("name", CASES)
def test_the_mended_program_is_proved(name: str) -> None:
    """Its twin has the same modules."""
    proof = proof_of(CASES[name], wrong=False)
    assert proof.is_proved, proof
    assert proof.positions > 0
    if CASES[name].expression == "causal":
        assert proof.forwards <= 2 * math.log2(12)
        assert (proof.inputs_changed, proof.inputs) == (24, 24)


def test_positions_that_count_padding_are_found_without_it() -> None:
    """A padded row runs once more without its padding."""
    for wrong in (True, False):
        proof = prove(programs.places_of_padding(wrong), (programs.tokens(), REAL), "causal & pad")
        assert proof.is_proved is not wrong
        assert not proof.moved
        assert [one.code for one in proof.findings if one.severity == "error"] == ["positions"] * wrong


def test_labels_that_an_output_reads_are_an_error() -> None:
    """And labels that are shifted twice."""
    model, ids = programs.LanguageModel(), programs.tokens()
    codes = []
    for shift in (0, 1, 2):
        prover = Prover("causal")
        with prover.watching():
            logits = model(ids)
            F.cross_entropy(logits[:, : 12 - shift].flatten(0, 1), ids[:, shift:].flatten()).backward()
        codes.append([one.code for one in prover.proofs[0].findings])
    assert codes == [["label"], [], ["label"]]


@pytest.mark.parametrize("name", ["after_the_next", "medusa", "trained_by_two_losses", "draft", "copied"])
def test_losses_that_look_further_on_purpose_are_no_mistake(name: str) -> None:
    prover = Prover("causal")
    with prover.watching():
        getattr(programs, name)()
    assert prover.proofs
    assert not [one for proof in prover.proofs for one in proof.findings if one.code == "label"]


@pytest.mark.parametrize("kind", ["module", "nll", "gathered"])
def test_labels_of_every_loss_are_read(kind: str) -> None:
    """With labels that are left out, and shifted twice."""
    model, ids = programs.LanguageModel(), programs.tokens()
    prover = Prover("causal")
    with prover.watching():
        logits, labels = model(ids)[:, :-2].flatten(0, 1), ids[:, 2:].clone()
        if kind == "module":
            labels[0, 3:5] = -100
            torch.nn.CrossEntropyLoss(ignore_index=-100)(logits, labels.flatten())
        elif kind == "nll":
            F.nll_loss(logits.log_softmax(-1), labels.flatten())
        else:
            logits.log_softmax(-1).gather(-1, labels.flatten()[:, None]).mean()
    assert [one.code for one in prover.proofs[0].findings] == ["label"]


def test_a_cache_whose_mask_stands_one_too_far() -> None:
    """Several tokens come to those that are cached; the cache is the program's own again afterwards."""
    for wrong in (True, False):
        model, ids = programs.Cached(wrong), programs.tokens()
        with torch.no_grad():
            model(ids[:, :6])
            keys = model.keys
            proof = prove(model, ids[:, 6:], "causal")
        assert [(one.kind, one.position) for one in proof.moved] == ([("cache", 4)] if wrong else [])
        assert model.keys.shape[2] == 12
        assert torch.equal(model.keys[:, :, :6], keys)


# --- what is not the claim ----------------------------------------------------------------------------------------


def test_a_model_that_differs_by_itself_is_not_provable() -> None:
    """Dropout is the same in every run; what draws from elsewhere is not."""
    model = programs.LanguageModel(mixer=lambda: torch.nn.Dropout(0.3))
    assert prove(model, programs.tokens(), "causal").is_proved
    model.blocks[1].mixer = Noisy()
    proof = prove(model, programs.tokens(), "causal")
    assert not proof.is_provable
    assert not proof.is_proved
    assert "blocks.1.mixer" in proof.findings[0].message
    assert str(proof).startswith("not provable")


class Noisy(torch.nn.Module):
    """Gives other numbers each time, whatever the random state."""

    numbers = iter(range(1, 1000))

    def forward(self, x):
        return x + next(self.numbers) / 1000


def test_a_position_that_nobody_reads_is_a_note() -> None:
    """It fails nothing."""
    own = torch.eye(12, dtype=torch.bool)
    model = programs.LanguageModel(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=own))
    proof = prove(model, programs.tokens(), "causal")
    assert proof.is_proved
    assert [one.code for one in proof.findings] == ["unread"]


@pytest.mark.parametrize("expression", ["causal & pad", "causal"])
def test_nothing_of_the_program_changes(expression: str) -> None:
    """Outputs, gradients, buffers, random states and versions of tensors are those of a program that runs alone."""

    def run(is_proved: bool) -> list[Any]:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        model = programs.LanguageModel(mixer=lambda: programs.BatchNorm(True))
        model.blocks[0].mixer.norm = torch.nn.BatchNorm1d(programs.WIDTH)
        model.train().add_module("drop", torch.nn.Dropout(0.2))
        ids = programs.tokens()
        prover = Prover(expression, lengths=[12, 8] if "pad" in expression else None)
        if is_proved:
            with prover.watching():
                output = model(ids)
            assert prover.proofs[0].moved
        else:
            output = model(ids)
        output.square().mean().backward()
        state = [*(each.grad for each in model.parameters()), *model.buffers()]
        return [output, *state, torch.get_rng_state(), torch.tensor([random.random(), np.random.rand(), ids._version])]

    for own, other in zip(run(True), run(False), strict=True):
        assert (own is None and other is None) or torch.equal(own, other)


def test_what_cannot_be_asked_is_one_sentence() -> None:
    """An expression without a number that nothing says, a model without positions, one that is no expression."""
    model = programs.LanguageModel()
    for expression, inputs, words in (
        ("causal & docs", programs.tokens(), "docs has no number"),
        ("causal & window", programs.tokens(), "window has no number"),
        ("casual", programs.tokens(), "casual"),
        ("docs(3,3)", programs.tokens(), "12"),
    ):
        with pytest.raises(AttnError, match=words):
            prove(model, inputs, expression)
    with pytest.raises(AttnError, match="embeds no ids"):
        prove(torch.nn.Linear(3, 3), torch.ones(3), "causal")


# --- where a leak could hide, and what is none ------------------------------------------------------------------------


def masked(mask: torch.Tensor | None = None, **options: Any) -> torch.nn.Module:
    """Return a model with a mask; without one, all sees all."""
    return programs.LanguageModel(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), **options)


class Changed(torch.nn.Module):
    """A causal model that gives something else than its last module."""

    def __init__(self, change, model=None):
        super().__init__()
        self.model, self.change = model or programs.LanguageModel(), change

    def forward(self, ids):
        return self.change(self.model(ids))


@dataclass
class Output:
    logits: torch.Tensor


class TwoTables(torch.nn.Module):
    """Adds vectors of a second table to what its layers give, as some models do to values."""

    def __init__(self):
        super().__init__()
        self.model, self.again = masked(), torch.nn.Embedding(programs.VOCABULARY, programs.VOCABULARY)

    def forward(self, ids):
        return self.model(ids) + self.again(ids)


def test_a_mask_that_shows_more_is_asked_there() -> None:
    """Of a prefix, and of a row of the batch."""
    prefix = programs.causal(12) | (torch.arange(12) < 4)
    one_row = programs.causal(12).repeat(4, 1, 1, 1)
    one_row[3] = True
    for mask, rows, changed in ((prefix, 2, 1), (one_row, 4, 3)):
        proof = prove(masked(mask), programs.tokens(rows), "causal")
        (leak,) = proof.moved
        assert leak.kind == "attention"
        assert leak.changed[0] == changed if rows == 4 else leak.changed[1] == 3
        assert proof.forwards <= 2 * math.log2(12) + 2 * math.log2(rows)


@pytest.mark.parametrize(
    "model",
    [
        lambda: TwoTables(),
        lambda: Changed(lambda x: x - x.mean(1, keepdim=True)),
        lambda: Changed(lambda x: Output(x.flip(1))),
        lambda: Changed(lambda x: (x, x.flip(1))),
        lambda: Changed(lambda x: x * 0, masked()),
        lambda: Changed(lambda x: x.mean(), masked()),
    ],
    ids=["two tables of the ids", "after its last module", "a dataclass", "a second output", "zeros", "a loss"],
)
def test_all_that_a_model_gives_is_held_against_the_claim(model: Any) -> None:
    """Where it gives nothing of its positions, the last vectors inside are."""
    assert prove(model(), programs.tokens(), "causal").moved


class Talking(programs.SelfAttention):  # type: ignore[misc, name-defined]
    """Mixes the scores of heads, in a module, before later keys are hidden."""

    def __init__(self):
        super().__init__(None)
        self.mix = torch.nn.Conv2d(programs.HEADS, programs.HEADS, 1)
        self.scores = torch.nn.Identity()

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, programs.HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = self.mix(q @ k.transpose(2, 3))
        self.scores(scores.mean(1))
        weights = scores.masked_fill(~programs.causal(x.shape[1]), float("-inf")).softmax(3)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class TimeFirst(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(60, 32)
        layer = torch.nn.TransformerEncoderLayer(32, 4, 48, 0.0)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        return self.encoder(self.embedding(ids), torch.nn.Transformer.generate_square_subsequent_mask(len(ids)))


def test_what_is_no_leak() -> None:
    """Scores of keys that are hidden afterwards, as many heads as positions, as many rows, the same ids twice."""
    talking = programs.LanguageModel()
    for block in talking.blocks:
        block.attention = Talking()
    translator, ids = programs.Translator(False), programs.tokens()
    for model, inputs in (
        (talking, ids),
        (talking, ids[:, :4]),
        (TimeFirst(), programs.tokens(12)),
        (TimeFirst(), programs.tokens(12, 3)),
        (programs.LanguageModel(), programs.tokens(12)),
        (programs.LanguageModel(), [ids[:, :1]]),
        (translator, (ids, ids, torch.ones_like(ids), torch.ones_like(ids))),
        (torch.nn.DataParallel(programs.LanguageModel()), ids),
    ):
        proof = prove(model, inputs, "causal")
        assert proof.is_proved, proof


def test_half_precision_hides_no_leak() -> None:
    """What rounding could explain is not proved; a causal model moves by nothing at all."""
    ids = programs.tokens(2, 64)
    for dtype in (torch.bfloat16, torch.float16):
        assert prove(programs.LanguageModel().to(dtype), ids, "causal").is_proved
        proof = prove(masked(torch.ones(64, 64, dtype=torch.bool).tril(1)).to(dtype), ids, "causal")
        assert not proof.is_proved
        assert proof.dtype == str(dtype).removeprefix("torch.")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert prove(Changed(lambda x: x.float()), ids, "causal").dtype == "bfloat16"


def test_a_proof_of_nothing_is_none() -> None:
    """Outputs that are NaN, or no longer those of the positions; padding of which nothing is known."""
    proof = prove(Changed(lambda x: x * torch.nan), programs.tokens(), "causal")
    assert [one.code for one in proof.findings] == ["nan"]
    assert not proof.is_proved
    longer = programs.LanguageModel()
    longer.embedding.register_forward_hook(lambda *ran: torch.cat([ran[2][:, :1], ran[2]], 1))
    longer.places.register_forward_hook(lambda *ran: torch.cat([ran[2][:1], ran[2]]))
    with pytest.raises(AttnError, match="no output after its attention has 12 positions in 2 rows"):
        prove(longer, programs.tokens(), "causal")
    with pytest.raises(AttnError, match="pad has no lengths"):
        prove(programs.LanguageModel(), programs.tokens(), "causal & pad")
    assert prove(programs.LanguageModel(), programs.tokens(), "causal & pad(right=4)").is_proved


def test_prefixes_are_as_long_as_token_types_say() -> None:
    """Of each row its own."""

    class Prefixed(programs.LanguageModel):  # type: ignore[misc, name-defined]
        def forward(self, ids, token_type_ids):
            is_prefix = token_type_ids == 0
            if self.training:
                is_prefix = is_prefix | (torch.arange(12) < 8)
            mask = programs.causal(12) | is_prefix[:, None, None]
            for block in self.blocks:
                block.attention.attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return super().forward(ids)

    types = torch.ones(2, 12, dtype=torch.long)
    types[0, :4] = types[1, :6] = 0
    inputs = {"ids": programs.tokens(), "token_type_ids": types}
    assert prove(Prefixed().eval(), inputs, "causal | prefix").is_proved
    assert prove(Prefixed().train(), inputs, "causal | prefix").moved


def test_each_forward_of_a_program_is_told_from_others() -> None:
    """By its module, its switches and its shapes; how many are left out is counted."""

    class Switched(programs.LanguageModel):  # type: ignore[misc, name-defined]
        def forward(self, ids, is_causal):
            for block in self.blocks:
                block.attention.attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
            return super().forward(ids)

    model, prover = Switched(), Prover("causal")
    with prover.watching():
        for length in range(2, 7):
            for is_causal in (True, True, False):
                model(programs.tokens(2, length), is_causal)
    assert [one.is_proved for one in prover.proofs] == [True, False] * 4
    assert prover.left_out == 2


def test_a_block_that_runs_again_in_backward_is_no_forward_of_its_own() -> None:
    """As of activation checkpoints."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(programs.LanguageModel):  # type: ignore[misc, name-defined]
        def forward(self, ids):
            x = self.embedding(ids)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    model, prover = Checkpointed(), Prover("causal")
    with prover.watching():
        model(programs.tokens()).square().mean().backward()
    assert [one.model for one in prover.proofs] == ["Checkpointed"]
    assert not prover.notes
    gradients = [each.grad for each in model.parameters()]
    model.zero_grad()
    model(programs.tokens()).square().mean().backward()
    for own, each in zip(gradients, model.parameters(), strict=True):
        assert (own is None and each.grad is None) or torch.equal(own, each.grad)


def test_a_change_to_infinity_is_valid_json() -> None:
    """Its size is a string, as everywhere."""
    from attncli.formats.documents import write_proofs

    model = programs.LanguageModel()
    most = model(programs.tokens()).abs().amax()

    def overflow(x):
        return x if x.abs().amax() == most else x * torch.inf

    document = json.loads(write_proofs([prove(Changed(overflow, model), programs.tokens(), "causal")]))
    assert document["moved"][0]["size"] == "inf"


def test_what_a_program_looks_at_and_draws_is_its_own() -> None:
    """Hooks that only look see no run of attn; generators of its own, and what it builds late, are put back."""

    class Late(programs.LanguageModel):  # type: ignore[misc, name-defined]
        def __init__(self):
            super().__init__()
            self.numbers, self.late, self.lazy = np.random.default_rng(0), None, torch.nn.LazyLinear(60)

        def forward(self, ids):
            if self.late is None:
                self.late = torch.nn.Linear(60, 60)
            return self.lazy(self.late(super().forward(ids))) * self.numbers.random()

    def run(is_proved: bool) -> list[Any]:
        torch.manual_seed(0)
        model, seen = Late(), []
        model.blocks[0].register_forward_hook(lambda *ran: seen.append(ran[2].detach()))
        model.blocks[1].register_forward_hook(lambda *ran: ran[2] * 2)
        with Prover("causal").watching() if is_proved else nullcontext():
            output = model(programs.tokens())
        return [output, *seen, *model.parameters(), torch.tensor(model.numbers.random()), torch.get_rng_state()]

    for own, other in zip(run(True), run(False), strict=True):
        assert torch.equal(own, other)


# --- ids that are read elsewhere, and few cells -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [*programs.READS_AHEAD, *programs.READS_BACK])
def test_each_input_is_a_cause(name: str) -> None:
    """Ids that a second table, a one-hot or a hash reads; one cell of one row; routers over time and over the batch."""
    torch.manual_seed(0)
    for found, wrong in ((programs.READS_AHEAD, True), (programs.READS_BACK, False)):
        if name in found:
            proof = prove(programs.Beside(found[name]), programs.tokens(4), "causal")
            assert proof.is_proved is not wrong, proof
            if not wrong:
                assert "48 of 48 inputs changed, each alone, 4 rows" in str(proof)
                assert proof.forwards <= 2 * math.log2(12) + 2 * math.log2(4)


@pytest.mark.parametrize("length", [7, 40, 300])
def test_forwards_grow_with_the_logarithm_of_positions(length: int) -> None:
    """Long rows change in groups; what reads one token ahead anywhere crosses one of them."""
    torch.manual_seed(0)
    for wrong in (False, True):
        ids = programs.tokens(1, length)
        proof = prove(programs.OneHot(wrong), ids, "causal")
        assert proof.is_proved is not wrong
        assert wrong or proof.forwards <= 2 * math.ceil(math.log2(length)) + 2
        assert wrong or proof.inputs_changed == length
    assert ("each alone or in a group" in str(proof)) == (length == 300)


def test_a_batch_that_cannot_be_repeated_has_a_forward_for_each_position() -> None:
    """As where a mask is of so many rows."""
    shown = programs.causal(12).repeat(3, 1, 1, 1)
    for hole in (False, True):
        shown[1, 0, 0, 1] = hole
        proof = prove(programs.unseen("exp", shown), programs.tokens(3), "causal")
        assert [one.changed for one in proof.moved] == [(1, 1)] * hole
        assert hole or "36 of 36 inputs changed, each alone" in str(proof)


def test_a_leak_names_the_one_input_that_moves_outputs() -> None:
    """Groups are halved where something moved."""
    torch.manual_seed(0)
    model = programs.Beside(programs.READS_AHEAD["one cell of one row"])
    (leak,) = prove(model, programs.tokens(4), "causal").moved
    assert (leak.row, leak.position, leak.changed) == (2, 5, (2, 9))
    model = programs.Beside(programs.READS_AHEAD["a row reads row 2"])
    (leak,) = prove(model, programs.tokens(4), "causal").moved
    assert (leak.row, leak.changed[0]) == (0, 2)


@pytest.mark.parametrize("name", programs.KERNELS)
def test_a_window_of_attention_that_is_not_seen(name: str) -> None:
    """Its layers are not counted, so that one layer must hide what moves nothing."""
    ids = programs.tokens()
    assert prove(programs.unseen(name, programs.window(12, 3)), ids, "window(3)").is_proved
    assert not prove(programs.unseen(name, programs.causal(12)), ids, "window(3)").is_proved
    proof = prove(programs.Mixing(name), ids, "window(3)")
    assert not proof.is_proved
    assert "attn saw no attention call" in str(proof)
    assert prove(programs.with_hole(False), ids, "causal").is_proved
    assert prove(programs.with_hole(True), ids, "causal").moved[0].changed[1] == 7


@pytest.mark.parametrize("name", programs.MIXED_HEADS)
@pytest.mark.parametrize("claim", ["causal", "full"])
def test_heads_that_mix_positions(name: str, claim: str) -> None:
    """Cut out of the wrong axis, by a view or a copy, or put together along it: also where all may move all."""
    torch.manual_seed(0)
    is_causal = claim == "causal"
    proof = prove(programs.Heads(*programs.MIXED_HEADS[name], is_causal), programs.tokens(), claim)
    assert not proof.is_proved
    assert "heads" in [one.code for one in proof.findings if one.severity == "error"]
    right = programs.Heads(programs.cut, programs.cut, programs.join, is_causal)
    assert prove(right, programs.tokens(), claim).is_proved


def test_outputs_that_no_position_reaches() -> None:
    """A note, for a claim that shows all; positions of any kind silence it."""
    ids = programs.tokens()
    unordered = programs.LanguageModel(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
    unordered.places.weight.data[:] = 1
    for claim in ("full", "full & pad(right=3)"):
        proof = prove(masked((torch.arange(12) < 9).expand(12, 12)) if "pad" in claim else masked(), ids, claim)
        assert "no position reaches" not in str(proof)
    for claim in ("full", "causal"):
        proof = prove(unordered, ids, claim)
        assert ("no position reaches the outputs" in str(proof)) == (claim == "full")
    proof = prove(unordered, ids, "full")
    assert proof.is_proved


def test_lengths_come_from_ids_before_masks() -> None:
    """A padding mask does not say itself what padding is, where ids do; a row may be whole; lengths may be given."""
    ids = programs.tokens(3)
    ids[0, 8:] = ids[2, 5:] = 0
    assert prove(programs.Encoder(lambda words: words), ids, "full & pad").is_proved
    for shown in programs.WRONG_PADDING.values():
        assert not prove(programs.Encoder(shown), ids, "full & pad").is_proved
    alone = programs.Encoder(lambda words: words)
    mask = {"src": alone.table(ids).detach(), "src_key_padding_mask": ids == 0}
    proof = prove(alone.encoder, mask, "full & pad")
    assert proof.is_proved
    assert "masks on trial" in str(proof)
    assert prove(alone.encoder, mask, "full & pad", [8, 12, 5]).is_proved
    assert not prove(alone.encoder, mask, "full & pad", [8, 12, 4]).is_proved
    prover = Prover("full & pad")
    inverted = torch.nn.Embedding.from_pretrained(alone.table.weight, padding_idx=0)
    with prover.watching():
        alone.encoder(inverted(ids), src_key_padding_mask=ids != 0)
    assert not prover.proofs[0].is_proved


# --- programs whose models hold what cannot be copied -----------------------------------------------------------------


class Delegating:
    def __init__(self, inside):
        self.inside = inside

    def __getattr__(self, name):
        return getattr(self.inside, name)


class Closing:
    """Ends what it holds."""

    closed = 0

    def __del__(self):
        Closing.closed += 1


HELD: dict[str, Callable[[Path], Any]] = {
    "file": lambda folder: Path(os.devnull).open("w"),  # noqa: SIM115
    "module": lambda folder: np,
    "lock": lambda folder: multiprocessing.Lock(),
    "thread": lambda folder: threading.Thread(target=print),
    "wrapper": lambda folder: Delegating([1]),
    "temporary file": lambda folder: tempfile.NamedTemporaryFile(dir=folder),  # noqa: SIM115
    "generator": lambda folder: (one for one in range(3)),
    "a list of locks": lambda folder: [{"lock": threading.Lock()}, 3],
    "what ends": lambda folder: Closing(),
    "socket": lambda folder: socket.socket(),
}


@pytest.mark.parametrize("kind", HELD)
def test_what_cannot_be_copied_is_shared_and_named(kind: str, tmp_path: Path) -> None:
    """The program goes on, and its objects are as they were."""
    model, ids = programs.LanguageModel(), programs.tokens()
    model.blocks[0].held = HELD[kind](tmp_path)
    closed = Closing.closed
    proof = prove(model, ids, "causal")
    assert proof.is_proved
    (note,) = [one for one in proof.findings if one.severity == "note"]
    assert note.message.startswith("blocks.0.held cannot be copied")
    if kind == "temporary file":
        assert Path(model.blocks[0].held.name).exists()
    assert kind != "what ends" or Closing.closed == closed
    if hasattr(model.blocks[0].held, "close"):
        model.blocks[0].held.close()


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_a_forward_under_a_checkpoint(is_reentrant: bool) -> None:
    """Its backward counts what its forward saved, without the forwards that attn adds."""
    from torch.utils.checkpoint import checkpoint

    class Anchored(programs.LanguageModel):  # type: ignore[misc, name-defined]
        def forward(self, ids, anchor):
            return super().forward(ids) * anchor

    model, anchor = Anchored(), torch.ones(1, requires_grad=True)  # of which a reentrant one takes its gradients
    model.cycle = []
    model.cycle.append(model.cycle)
    x = programs.tokens()
    gradients = []
    for is_proved in (True, False):
        prover = Prover("causal")
        with prover.watching() if is_proved else nullcontext():
            checkpoint(model, x, anchor, use_reentrant=is_reentrant).sum().backward()
        if is_proved:
            assert [one.is_proved for one in prover.proofs] == [True]
        gradients.append([each.grad.clone() for each in model.parameters() if each.grad is not None])
        model.zero_grad()
    assert all(map(torch.equal, *gradients))


def test_generators_of_the_program_go_on_as_without_attn() -> None:
    """Of torch, NumPy and Python, wherever a forward reaches them: attributes, closures, globals."""

    def run(is_proved: bool) -> list[float]:
        model = programs.LanguageModel()
        generator, plain = torch.Generator().manual_seed(5), random.Random(2)
        model.legacy, numbers = np.random.RandomState(3), np.random.default_rng(4)
        forward = model.forward

        def noisy(ids):
            drawn = torch.rand(1, generator=generator) + model.legacy.rand() + numbers.random() + plain.random()
            return forward(ids) + drawn

        model.forward = noisy
        prover = Prover("causal")
        with prover.watching() if is_proved else nullcontext():
            model(programs.tokens())
        assert not is_proved or prover.proofs[0].is_provable
        return [float(torch.rand(1, generator=generator)), model.legacy.rand(), numbers.random(), plain.random()]

    assert run(True) == run(False)


# --- as a command, and in pytest ----------------------------------------------------------------------------------

TRAIN = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, proofs
torch.manual_seed(0)
model = proofs.beside(proofs.Convolution)(wrong=sys.argv[2] == "wrong")
print(model(proofs.tokens()).shape)
"""


def test_a_program_is_run_and_its_model_is_proved(folder: Path) -> None:
    """What the program prints is its own; the exit code says whether something leaks."""
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    program, ran = ["train.py", str(Path(__file__).parent / "programs")], partial(forked, "run")
    right = ran("--prove", "causal", *program, "right")
    assert (right.returncode, right.stdout) == (0, "torch.Size([2, 12, 60])\n")
    assert right.stderr.startswith("proved  causal in LanguageModel\n")
    wrong = ran("--prove", "causal", *program, "wrong")
    assert wrong.returncode == 1
    assert "First in blocks.0.mixer.conv (convolution)" in " ".join(wrong.stderr.split())
    assert "return self.conv(F.pad(x.transpose(1, 2), self.padding)).transpose(1, 2)" in wrong.stderr
    assert ran("--prove", "causal", "--no-fail", *program, "wrong").returncode == 0
    document = json.loads(ran("--prove", "causal", "-F", "json", *program, "wrong").stderr)
    assert document["schema"] == "attncli.proof/1"
    assert not document["proved"]
    (leak,) = document["moved"]
    assert (leak["module"], leak["kind"], leak["changed"]) == (
        "blocks.0.mixer.conv", "convolution", {"row": 0, "position": 11},
    )  # fmt: skip
    assert [one["code"] for one in document["findings"]] == ["leak"]
    for words, sentence in (
        (["--prove", "causal", "--expect", "causal"], "--expect does not apply to --prove"),
        (["--prove", "cuasal"], "did you mean 'causal'"),
        (["--prove", "causal", "-F", "tsv"], "give --format json"),
        (["--lengths", "6,10"], "--lengths does not apply to a run without --prove"),
        (["--prove", "causal", "--lengths", "6,10"], "lengths apply to pad without numbers"),
        (["--prove", "causal & pad", "--lengths", "6,x"], "expected numbers such as 5,2"),
    ):
        refused = ran(*words, *program, "right")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert sentence in refused.stderr
    short = json.loads(ran("--prove", "causal & pad", "--lengths", "6,10", "-F", "json", *program, "right").stderr)
    assert (short["inputs"], short["inputs_changed"]) == (16, 16)
    docs = ran("--prove", "causal & docs", *program, "right")
    assert docs.returncode == 1
    assert docs.stderr == (
        "attn: LanguageModel is not proved: docs has no number, and the program states none; write docs(…)\n"
    )


# --- models of transformers ------------------------------------------------------------------------------------------

SMALL = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
OF_T5 = {
    "vocab_size": 60, "d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 4, "d_kv": 8,
    "decoder_start_token_id": 0,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "Bert": ("BertModel", {**SMALL, "num_key_value_heads": 4}, "full"),
    "GPT2": ("GPT2LMHeadModel", {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
                                 "bos_token_id": 1, "eos_token_id": 2}, "causal"),
    "Llama": ("LlamaForCausalLM", SMALL, "causal"),
    "Mistral": ("MistralForCausalLM", {**SMALL, "sliding_window": 4}, "causal & window"),
    "Mixtral": ("MixtralForCausalLM", {**SMALL, "num_local_experts": 4}, "causal"),
    "GptOss": ("GptOssForCausalLM", {**SMALL, "head_dim": 8, "num_local_experts": 4, "sliding_window": 4}, "causal"),
    "Jamba": ("JambaForCausalLM", {**SMALL, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2,
                                   "mamba_d_state": 4}, "causal"),
    "T5": ("T5ForConditionalGeneration", OF_T5, "causal"),
    "Bart": ("BartForConditionalGeneration", {
        "vocab_size": 60, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
        "pad_token_id": 0}, "causal"),
    "SwitchTransformers": ("SwitchTransformersForConditionalGeneration", {
        **OF_T5, "num_decoder_layers": 2, "num_sparse_decoder_layers": 1, "num_sparse_encoder_layers": 1,
        "num_experts": 2, "expert_capacity": 4}, "causal"),
}  # fmt: skip
EAGER_ALONE = ("GptOss", "SwitchTransformers")
TWO_SEQUENCES = ("T5", "Bart", "SwitchTransformers")
# What leaks, and why it is true: (model, inputs) → the kind of the first leak, or the code of the finding.
LEAKS = {
    ("Bert", "left"): "other",  # its pooler reads the first position, which is padding
    ("GptOss", "packed"): "attention",  # it does not hand position ids to the function that makes its mask
    ("SwitchTransformers", "left"): "router",  # padding takes an expert's room from tokens
}


@pytest.mark.parametrize(
    ("name", "attention"),
    [(name, one) for name in MODELS for one in ("eager", "sdpa") if one == "eager" or name not in EAGER_ALONE],
)
def test_models_of_transformers(name: str, attention: str) -> None:
    """Whole, padded on either side, and packed: each is proved, or its leak is a true one."""
    import transformers

    model_class, options, claim = MODELS[name]
    config = getattr(transformers, f"{name}Config")(**options)
    torch.manual_seed(0)
    model = getattr(transformers, model_class)._from_config(config, attn_implementation=attention).eval()
    model.config.use_cache = False
    for inputs in ("whole", "right", "left", "packed"):
        values: dict[str, Any] = {
            "input_ids": torch.randint(3, 60, (2, 12), generator=torch.Generator().manual_seed(0))
        }
        expression = claim
        if inputs in ("right", "left"):
            mask = REAL if inputs == "left" else REAL.flip(1)
            values |= {"input_ids": values["input_ids"] * mask, "attention_mask": mask}
            expression += " & pad"
            if inputs == "left" and name not in (*TWO_SEQUENCES, "Bert"):
                values["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        if name in TWO_SEQUENCES:
            values["decoder_input_ids"] = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
        if inputs == "packed":
            if name in (*TWO_SEQUENCES, "Bert", "Jamba"):
                continue  # nothing tells them where documents begin
            values["position_ids"] = torch.cat([torch.arange(5), torch.arange(7)]).expand(2, -1)
            expression += " & docs"
        proof = prove(model, values, expression)
        found = [one.kind for one in proof.moved] + [one.code for one in proof.findings if one.severity == "error"]
        assert found[:1] == ([LEAKS[name, inputs]] if (name, inputs) in LEAKS else []), (inputs, proof)


def test_a_decoder_may_be_given_its_labels_alone() -> None:
    """Its ids are made of them, and begin with the id of padding; whatever else it gives."""
    import transformers

    ids, labels = (torch.randint(3, 60, (2, length)) for length in (12, 9))
    for name, inputs in (
        ("T5", {"labels": labels, "attention_mask": REAL}),
        ("T5", {"labels": ids}),
        ("Bart", {"labels": ids, "output_hidden_states": True}),
    ):
        model_class, options, claim = MODELS[name]
        model = getattr(transformers, model_class)(getattr(transformers, f"{name}Config")(**options)).eval()
        proof = prove(model, {"input_ids": ids, **inputs}, claim + " & pad" * ("attention_mask" in inputs))
        assert proof.is_proved, proof
        assert proof.total == 18 or inputs["labels"] is ids


def test_a_generation_that_is_padded_on_the_left() -> None:
    """The first forward gives one position alone; later ones have a cache, which stays as it was."""
    import transformers

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).eval()
    ids = programs.tokens() * REAL
    options = {"attention_mask": REAL, "max_new_tokens": 3, "do_sample": False, "eos_token_id": 61}
    prover = Prover("causal & pad")
    with prover.watching():
        generated = model.generate(ids, **options)
    assert [one.is_proved for one in prover.proofs] == [True] * 3
    assert not prover.notes
    assert torch.equal(generated, model.generate(ids, **options))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("pool", programs.POOLS, ids=lambda pool: pool.__name__)
def test_one_vector_for_each_row_reads_no_padding(pool: Any, depth: int) -> None:
    torch.manual_seed(0)
    wrong, right = (programs.Pooled(pool, is_wrong, depth).eval() for is_wrong in (True, False))
    leak = prove(wrong, programs.padded_on_the_right(), "pad").moved[0]
    assert (leak.row, leak.changed[0], leak.module) == (1, 1, "")
    assert prove(right, programs.padded_on_the_right(), "pad").is_proved
