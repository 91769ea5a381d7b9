"""Proof by change: programs as people write them, wrong and mended, and models of transformers."""

import json
import math
import random
import re
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from transformers.modeling_outputs import CausalLMOutput
from whole_program import forked

from attncli.analysis.prove import ModelProof, Prover, prove
from attncli.errors import AttnError

# By a name of its own: tests that watch a program import it anew.
_SPEC = spec_from_file_location("programs_that_leak", Path(__file__).parent / "programs" / "proofs.py")
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
    "documents": Case(programs.documents_dropped, PACKED, "attention", r"blocks\.0\.attention\.out"),
    "window": Case(programs.window_lost, "causal & window(3)", "attention", r"blocks\.1\.attention\.out"),
    "top-k": Case(programs.chosen_from_the_future, "causal", "attention", r"blocks\.0\.attention\.out"),
    "context parallel": Case(programs.context_parallel, PACKED, "attention", r"blocks\.0\.attention\.out"),
    "mask left out": Case(programs.encoder_layer, "causal", "attention", r"encoder\.layers\.0\.self_attn.*"),
    "convolution": Case(programs.beside(programs.Convolution), "causal", "convolution", r"blocks\.0\.mixer\.conv"),
    "norm": Case(programs.beside(programs.Norm), "causal", "norm", r"blocks\.0\.mixer.*"),
    "batch norm": Case(programs.beside(programs.BatchNorm), "causal", "norm", r"blocks\.0\.mixer\.norm"),
    "router": Case(programs.experts, "causal", "router", r"blocks\.0\.mixer"),
    "scale": Case(programs.beside(programs.Quantized), "causal", "other", r"blocks\.0\.mixer\.linear"),
    "padding of queries": Case(programs.padding_of_queries, "causal & pad", "attention", r"blocks\.0\.attention\.out",
        lambda: (programs.tokens(), REAL)),
    "cross-attention": Case(programs.Translator, "causal & pad", "attention", r"cross", lambda: (programs.tokens(),
        programs.tokens(length=12), REAL.flip(1), torch.ones_like(REAL))),
}  # fmt: skip


def proof_of(case: Case, wrong: bool) -> ModelProof:
    torch.manual_seed(0)
    return prove(case.make(wrong), case.inputs(), case.expression)


@pytest.mark.parametrize("name", CASES)
def test_a_leak_is_named_with_its_module_and_its_kind_and_the_mended_program_is_proved(name: str) -> None:
    case = CASES[name]
    wrong, mended = (proof_of(case, is_wrong) for is_wrong in (True, False))
    assert not wrong.is_proved
    first = wrong.moved[0]
    assert first.kind == case.kind, wrong
    assert re.fullmatch(case.module, first.module), wrong
    assert first.place.startswith("tests/live/programs/proofs.py:")
    assert first.size > 0
    assert f"; {first.place}" in str(wrong)
    if name in ("convolution", "norm"):
        assert first.position < first.changed[1]
    assert mended.is_proved, mended
    assert mended.positions > 0
    if case.expression == "causal":
        assert mended.forwards <= 2 * math.log2(12)
        assert (mended.inputs_changed, mended.inputs) == (24, 24)


def codes_of_labels(run: Callable[[], Any]) -> list[str]:
    prover = Prover("causal")
    with prover.watching():
        run()
    assert prover.proofs
    return [one.code for proof in prover.proofs for one in proof.findings]


@pytest.mark.parametrize(("shift", "codes"), [(0, ["label"]), (1, []), (2, ["label"])])
@pytest.mark.parametrize("kind", ["module", "function", "nll", "gathered"])
def test_labels_of_every_loss_are_read(kind: str, shift: int, codes: list[str]) -> None:
    model, ids = programs.LanguageModel(), programs.tokens()

    def run() -> None:
        logits, labels = model(ids)[:, : 12 - shift].flatten(0, 1), ids[:, shift:].clone()
        if kind == "module":
            labels[0, 3:5] = -100
            torch.nn.CrossEntropyLoss(ignore_index=-100)(logits, labels.flatten())
        elif kind == "function":
            F.cross_entropy(logits, labels.flatten()).backward()
        elif kind == "nll":
            F.nll_loss(logits.log_softmax(-1), labels.flatten())
        else:
            logits.log_softmax(-1).gather(-1, labels.flatten()[:, None]).mean()

    assert codes_of_labels(run) == codes


@pytest.mark.parametrize("name", ["after_the_next", "medusa", "trained_by_two_losses"])
def test_losses_that_look_further_on_purpose_are_no_mistake(name: str) -> None:
    assert "label" not in codes_of_labels(getattr(programs, name))


# --- what is not the claim ---
def test_a_model_that_differs_by_itself_is_not_provable() -> None:
    model = programs.LanguageModel(mixer=lambda: torch.nn.Dropout(0.3))
    assert prove(model, programs.tokens(), "causal").is_proved
    model.blocks[1].mixer = Noisy()
    proof = prove(model, programs.tokens(), "causal")
    assert not proof.is_provable
    assert not proof.is_proved
    assert "blocks.1.mixer" in proof.findings[0].message
    assert str(proof).startswith("not provable")


class Noisy(torch.nn.Module):
    numbers = iter(range(1, 1000))

    def forward(self, x):
        return x + next(self.numbers) / 1000


def test_what_cannot_be_asked_is_one_sentence() -> None:
    model = programs.LanguageModel()
    for expression, inputs, words in (
        ("causal & docs", programs.tokens(), "docs has no number"),
        ("causal & window", programs.tokens(), "window has no number"),
        ("casual", programs.tokens(), "casual"),
        ("docs(3,3)", programs.tokens(), "12"),
        ("causal & pad", programs.tokens(), "pad has no lengths"),
    ):
        with pytest.raises(AttnError, match=words):
            prove(model, inputs, expression)
    with pytest.raises(AttnError, match="embeds no ids"):
        prove(torch.nn.Linear(3, 3), torch.ones(3), "causal")
    model.embedding.register_forward_hook(lambda *ran: torch.cat([ran[2][:, :1], ran[2]], 1))
    model.places.register_forward_hook(lambda *ran: torch.cat([ran[2][:1], ran[2]]))
    with pytest.raises(AttnError, match="no output after its attention has 12 positions in 2 rows"):
        prove(model, programs.tokens(), "causal")


# --- where a leak could hide, and what is none ---
def masked(mask: torch.Tensor | None = None) -> torch.nn.Module:
    return programs.LanguageModel(programs.shown(mask))


class Changed(torch.nn.Module):
    def __init__(self, change, model=None):
        super().__init__()
        self.model, self.change = model or programs.LanguageModel(), change

    def forward(self, ids):
        return self.change(self.model(ids))


class TwoTables(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model, self.again = masked(), torch.nn.Embedding(programs.VOCABULARY, programs.VOCABULARY)

    def forward(self, ids):
        return self.model(ids) + self.again(ids)


def test_a_mask_that_shows_more_is_asked_there() -> None:
    prefix = programs.causal(12) | (torch.arange(12) < 4)
    one_row = programs.causal(12).repeat(4, 1, 1, 1)
    one_row[3] = True
    for mask, rows, changed in ((prefix, 2, 1), (one_row, 4, 3)):
        proof = prove(masked(mask), programs.tokens(rows), "causal")
        (leak,) = proof.moved
        assert leak.kind == "attention"
        assert leak.changed[0] == changed if rows == 4 else leak.changed[1] == 3
        assert proof.forwards <= 2 * math.log2(12) + 2 * math.log2(rows)


class Talking(programs.SelfAttention):
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


class Prefixed(programs.LanguageModel):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong = wrong

    def forward(self, ids, token_type_ids):
        mask = programs.causal(12) | (token_type_ids == 0)[:, None, None] | (self.wrong & (torch.arange(12) < 8))
        for block in self.blocks:
            block.attention.attend = programs.shown(mask)
        return super().forward(ids)


def talking() -> torch.nn.Module:
    model = programs.LanguageModel()
    for block in model.blocks:
        block.attention = Talking()
    return model


def heads(name: str | None, is_causal: bool) -> torch.nn.Module:
    parts = programs.MIXED_HEADS[name] if name else (programs.cut, programs.cut, programs.join)
    return programs.Heads(*parts, is_causal)


def of_kernel(name: str, width: int) -> torch.nn.Module:
    return programs.unseen(name, programs.window(12, width))


IDS, LONG = programs.tokens(), programs.tokens(2, 64)
ONE_MORE = torch.ones(64, 64, dtype=torch.bool).tril(1)
TYPES = torch.ones(2, 12, dtype=torch.long)
TYPES[0, :4] = TYPES[1, :6] = 0
OWN = torch.eye(12, dtype=torch.bool)
# Of each model: its inputs, the claim, and an error that is found; none is found of what is proved.
VERDICTS: dict[str, tuple[Callable[[], torch.nn.Module], Any, str, str]] = {
    "padding is counted": (partial(programs.places_of_padding, True), (IDS, REAL), "causal & pad", "positions"),
    "words are counted": (partial(programs.places_of_padding, False), (IDS, REAL), "causal & pad", ""),
    "two tables of the ids": (TwoTables, IDS, "causal", "leak"),
    "after its last module": (lambda: Changed(lambda x: x - x.mean(1, keepdim=True)), IDS, "causal", "leak"),
    "an output of transformers": (lambda: Changed(lambda x: CausalLMOutput(logits=x.flip(1))), IDS, "causal", "leak"),
    "a second output": (lambda: Changed(lambda x: (x, x.flip(1))), IDS, "causal", "leak"),
    "zeros": (lambda: Changed(lambda x: x * 0, masked()), IDS, "causal", "leak"),
    "a loss": (lambda: Changed(lambda x: x.mean(), masked()), IDS, "causal", "leak"),
    "scores before their mask": (talking, IDS, "causal", ""),
    "as many heads as positions": (talking, IDS[:, :4], "causal", ""),
    "time first": (TimeFirst, programs.tokens(12, 3), "causal", ""),
    "as many rows as positions": (programs.LanguageModel, programs.tokens(12), "causal", ""),
    "one position": (programs.LanguageModel, [IDS[:, :1]], "causal", ""),
    "the same ids twice": (lambda: programs.Translator(False), (IDS, IDS, REAL | 1, REAL | 1), "causal", ""),
    "wrapped": (lambda: torch.nn.DataParallel(programs.LanguageModel()), IDS, "causal", ""),
    "bfloat16": (lambda: programs.LanguageModel().bfloat16(), LONG, "causal", ""),
    "float16": (lambda: programs.LanguageModel().half(), LONG, "causal", ""),
    "NaN": (lambda: Changed(lambda x: x * torch.nan), IDS, "causal", "nan"),
    "padding of which a number is known": (programs.LanguageModel, IDS, "causal & pad(right=4)", ""),
    "prefixes": (lambda: Prefixed(False), {"ids": IDS, "token_type_ids": TYPES}, "causal | prefix", ""),
    "longer prefixes": (lambda: Prefixed(True), {"ids": IDS, "token_type_ids": TYPES}, "causal | prefix", "leak"),
    "unseen attention": (lambda: programs.with_hole(False), IDS, "causal", ""),
    "unseen attention with a hole": (lambda: programs.with_hole(True), IDS, "causal", "leak"),
    **{f"{name}, a window": (partial(of_kernel, name, 3), IDS, "window(3)", "") for name in programs.KERNELS},
    **{f"{name}, causal": (partial(of_kernel, name, 12), IDS, "window(3)", "leak") for name in programs.KERNELS},
    **{f"{name}, mixing": (partial(programs.Mixing, name), IDS, "window(3)", "leak") for name in programs.KERNELS},
    **{f"heads, {name}, {claim}": (partial(heads, name, claim == "causal"), IDS, claim, "heads" * bool(name))
       for name in (*programs.MIXED_HEADS, None) for claim in ("causal", "full")},
    **{f"{pool.__name__}, {wrong}": (
        partial(programs.Pooled, pool, wrong), programs.padded_on_the_right(), "pad", "leak" * wrong)
       for pool in programs.POOLS for wrong in (True, False)},
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict(name: str) -> None:
    """All that a model gives is compared; where it gives nothing of its positions, the last vectors inside are."""
    torch.manual_seed(0)
    make, inputs, claim, code = VERDICTS[name]
    proof = prove(make(), inputs, claim)
    assert proof.is_proved is (code == ""), proof
    assert not code or code in [one.code for one in proof.findings if one.severity == "error"], proof


def test_a_position_that_no_output_reads_is_a_note() -> None:
    proof = prove(masked(OWN), IDS, "causal")
    assert proof.is_proved
    assert [one.code for one in proof.findings] == ["unread"]


def test_half_precision_hides_no_leak() -> None:
    """Rounding could explain a small move, which is not proved then; the coarsest type of all modules counts."""
    for dtype in (torch.bfloat16, torch.float16):
        proof = prove(masked(ONE_MORE).to(dtype), LONG, "causal")
        assert not proof.is_proved
        assert proof.dtype == str(dtype).removeprefix("torch.")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert prove(Changed(lambda x: x.float()), LONG, "causal").dtype == "bfloat16"


def test_each_forward_of_a_program_is_told_from_others() -> None:
    class Switched(programs.LanguageModel):
        def forward(self, ids, is_causal):
            for block in self.blocks:
                block.attention.attend = programs.fused if is_causal else programs.shown(None)
            return super().forward(ids)

    model, prover = Switched(), Prover("causal")
    with prover.watching():
        for length in range(2, 7):
            for is_causal in (True, True, False):
                model(programs.tokens(2, length), is_causal)
    assert [one.is_proved for one in prover.proofs] == [True, False] * 4
    assert prover.left_out == 3


# --- ids that are read elsewhere, and few cells ---
def test_long_rows_change_in_groups() -> None:
    torch.manual_seed(0)
    right, wrong = (prove(programs.OneHot(is_wrong), programs.tokens(1, 300), "causal") for is_wrong in (False, True))
    assert (right.is_proved, wrong.is_proved, right.inputs_changed) == (True, False, 300)
    assert right.forwards <= 2 * math.ceil(math.log2(300)) + 2
    assert "each alone or in a group" in str(right)


def test_a_leak_names_the_one_input_that_moves_outputs() -> None:
    torch.manual_seed(0)
    model = programs.Beside(programs.READS_AHEAD["one cell of one row"])
    (leak,) = prove(model, programs.tokens(4), "causal").moved
    assert (leak.row, leak.position, leak.changed) == (2, 5, (2, 9))
    model = programs.Beside(programs.READS_AHEAD["a row reads row 2"])
    (leak,) = prove(model, programs.tokens(4), "causal").moved
    assert (leak.row, leak.changed[0]) == (0, 2)


@pytest.mark.parametrize("name", programs.LATER)
def test_what_is_wrong_behind_a_cache_alone(name: str) -> None:
    """Parts of the same shape differ by the keys before them, and a later call contradicts those before it."""
    mask, claim, lengths = programs.LATER[name]

    def proofs(masked: Any) -> list[ModelProof]:
        model, prover = programs.Chunked(masked), Prover(claim)
        with prover.watching(), torch.no_grad():
            for part in programs.tokens(1).split((*lengths, 12 - sum(lengths)), 1)[: len(lengths)]:
                model(part)
        assert len(prover.proofs) >= 2
        return prover.proofs

    wrong = [proof for proof in proofs(mask) if not proof.is_proved]
    assert wrong
    assert {one.kind for proof in wrong for one in proof.moved} == ({"cache"} if claim == "causal" else set())
    assert all(proof.is_proved for proof in proofs(programs.kept if claim == "window(4)" else programs.causal))


def test_outputs_that_no_position_reaches() -> None:
    ids = programs.tokens()
    unordered = masked()
    unordered.places.weight.data[:] = 1
    for claim in ("full", "full & pad(right=3)"):
        proof = prove(masked((torch.arange(12) < 9).expand(12, 12)) if "pad" in claim else masked(), ids, claim)
        assert "no position reaches" not in str(proof)
    for claim in ("full", "causal"):
        proof = prove(unordered, ids, claim)
        assert ("no position reaches the outputs" in str(proof)) == (claim == "full")
    assert prove(unordered, ids, "full").is_proved


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
    assert "masks under test" in str(proof)
    assert prove(alone.encoder, mask, "full & pad", [8, 12, 5]).is_proved
    assert not prove(alone.encoder, mask, "full & pad", [8, 12, 4]).is_proved
    prover = Prover("full & pad")
    inverted = torch.nn.Embedding.from_pretrained(alone.table.weight, padding_idx=0)
    with prover.watching():
        alone.encoder(inverted(ids), src_key_padding_mask=ids != 0)
    assert not prover.proofs[0].is_proved


# --- programs whose models hold what cannot be copied ---
class Closing:
    closed = 0

    def __del__(self):
        Closing.closed += 1


@pytest.mark.parametrize("held", [[{"lock": threading.Lock()}, 3], Closing()], ids=["a list of locks", "what ends"])
def test_what_cannot_be_copied_is_shared_and_named(held: Any) -> None:
    model, ids = programs.LanguageModel(), programs.tokens()
    model.blocks[0].held = held
    closed = Closing.closed
    proof = prove(model, ids, "causal")
    assert proof.is_proved
    (note,) = [one for one in proof.findings if one.severity == "note"]
    assert note.message.startswith("blocks.0.held cannot be copied")
    assert Closing.closed == closed


# --- the program runs as without attn ---
def proofs_beside(run: Callable[[], list[Any]]) -> list[ModelProof]:
    """The proofs of a program, whose results are those of its run alone; its random state afterwards is one of them."""
    results, prover = [], Prover("causal")
    for watching in (prover.watching(), nullcontext()):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        with watching:
            results.append([*run(), torch.get_rng_state(), torch.tensor([random.random(), np.random.rand()])])
    for own, other in zip(*results, strict=True):
        assert (own is None and other is None) or torch.equal(own, other)
    assert not prover.notes
    return prover.proofs


def test_nothing_of_the_program_changes() -> None:
    def run() -> list[Any]:
        model, ids = programs.LanguageModel(mixer=lambda: programs.BatchNorm(True)), programs.tokens()
        model.blocks[0].mixer.norm = torch.nn.BatchNorm1d(programs.WIDTH)
        model.train().add_module("drop", torch.nn.Dropout(0.2))
        output = model(ids)
        output.square().mean().backward()
        return [output, *(each.grad for each in model.parameters()), *model.buffers(), torch.tensor(ids._version)]

    assert proofs_beside(run)[0].moved


def test_hooks_see_no_run_of_attn() -> None:
    class Late(programs.LanguageModel):
        def __init__(self):
            super().__init__()
            self.late, self.lazy = None, torch.nn.LazyLinear(60)

        def forward(self, ids):
            if self.late is None:
                self.late = torch.nn.Linear(60, 60)
            return self.lazy(self.late(super().forward(ids)))

    def run() -> list[Any]:
        model, seen = Late(), []
        model.blocks[0].register_forward_hook(lambda *ran: seen.append(ran[2].detach()))
        output = model(programs.tokens())
        return [output, *seen, *model.parameters()]

    assert proofs_beside(run)[0].is_proved


@pytest.mark.parametrize("kind", ["reentrant", "not reentrant", "of blocks"])
def test_a_forward_under_a_checkpoint(kind: str) -> None:
    """Its backward counts what its forward saved, and not attn's; a block that runs again is no forward of its own."""
    from torch.utils.checkpoint import checkpoint

    class Anchored(programs.LanguageModel):
        def forward(self, ids, anchor):
            x = self.embedding(ids)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if kind == "of blocks" else block(x)
            return self.head(x) * anchor

    def run() -> list[Any]:
        model, anchor = Anchored(), torch.ones(1, requires_grad=True)  # of which a reentrant one takes its gradients
        model.cycle = []
        model.cycle.append(model.cycle)
        call = model if kind == "of blocks" else partial(checkpoint, model, use_reentrant=kind == "reentrant")
        call(programs.tokens(), anchor).sum().backward()
        return [each.grad for each in model.parameters()]

    assert [(one.model, one.is_proved) for one in proofs_beside(run)] == [("Anchored", True)]


def test_generators_of_the_program_go_on() -> None:
    def run() -> list[Any]:
        model = programs.LanguageModel()
        generator, plain = torch.Generator().manual_seed(5), random.Random(2)
        model.legacy, numbers = np.random.RandomState(3), np.random.default_rng(4)
        forward = model.forward

        def noisy(ids):
            drawn = torch.rand(1, generator=generator) + model.legacy.rand() + numbers.random() + plain.random()
            return forward(ids) + drawn + np.random.rand() + random.random() + torch.rand(1)

        model.forward = noisy
        model(programs.tokens())
        drawn = model.legacy.rand(), numbers.random(), plain.random()
        return [torch.rand(1, generator=generator), torch.tensor(drawn)]

    assert proofs_beside(run)[0].is_provable


@pytest.mark.parametrize("is_held", [True, False])
def test_a_forward_that_a_program_replaced_runs_on_the_copy(is_held: bool) -> None:
    """Where its closure holds the module; one that reaches the module otherwise is not proved. Neither changes it."""
    model, norm = programs.LanguageModel(mixer=lambda: torch.nn.BatchNorm1d(12)), "blocks.0.mixer"
    inside, several = model.forward, [model.forward]
    model.forward = (lambda ids: inside(ids)) if is_held else (lambda ids: several[0](ids))
    with nullcontext() if is_held else pytest.raises(AttnError, match="by an object that cannot be copied"):
        prove(model.train(), programs.tokens(), "causal")
    assert model.get_submodule(norm).num_batches_tracked == 1


# --- as a command, and in pytest ---
TRAIN = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, proofs
torch.manual_seed(0)
model = proofs.beside(proofs.Convolution)(wrong=sys.argv[2] == "wrong")
print(model(proofs.tokens()).shape)
"""


def test_a_program_is_run_and_its_model_is_proved(folder: Path) -> None:
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
    assert (document["schema"], document["proved"]) == ("attncli.proof/1", False)
    (leak,) = document["moved"]
    assert (leak["module"], leak["changed"]) == ("blocks.0.mixer.conv", {"row": 0, "position": 11})
    assert [one["code"] for one in document["findings"]] == ["leak"]
    for words, sentence in (
        (["--prove", "causal", "--expect", "causal"], "--expect does not apply to --prove"),
        (["--prove", "cuasal"], "did you mean 'causal'"),
        (["--prove", "causal & pad", "--lengths", "6,x"], "expected numbers such as 5,2"),
    ):
        refused = ran(*words, *program, "right")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert sentence in refused.stderr
    short = json.loads(ran("--prove", "causal & pad", "--lengths", "6,10", "-F", "json", *program, "right").stderr)
    assert (short["inputs"], short["inputs_changed"]) == (16, 16)
    docs = ran("--prove", "causal & docs", *program, "right")
    assert (docs.returncode, docs.stderr) == (
        1, "attn: LanguageModel is not proved: docs has no number, and the program states none; write docs(…)\n",
    )  # fmt: skip


# --- models of transformers ---
SMALL = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
IDS_OF = {length: torch.randint(3, 60, (2, length), generator=torch.Generator().manual_seed(0)) for length in (9, 12)}
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
    "GptOss": ("GptOssForCausalLM", {**SMALL, "head_dim": 8, "num_local_experts": 4, "sliding_window": 4}, "causal"),
    "Jamba": ("JambaForCausalLM", {**SMALL, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2,
                                   "mamba_d_state": 4}, "causal"),
    "T5": ("T5ForConditionalGeneration", OF_T5, "causal"),
    "SwitchTransformers": ("SwitchTransformersForConditionalGeneration", {
        **OF_T5, "num_decoder_layers": 2, "num_sparse_decoder_layers": 1, "num_sparse_encoder_layers": 1,
        "num_experts": 2, "expert_capacity": 4}, "causal"),
}  # fmt: skip
EAGER_ALONE = ("GptOss", "SwitchTransformers")
TWO_SEQUENCES = ("T5", "SwitchTransformers")
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
    import transformers

    model_class, options, claim = MODELS[name]
    config = getattr(transformers, f"{name}Config")(**options)
    torch.manual_seed(0)
    model = getattr(transformers, model_class)._from_config(config, attn_implementation=attention).eval()
    model.config.use_cache = False
    for inputs in ("whole", "right", "left", "packed"):
        values, expression = {"input_ids": IDS_OF[12]}, claim
        if inputs in ("right", "left"):
            mask = REAL if inputs == "left" else REAL.flip(1)
            values |= {"input_ids": IDS_OF[12] * mask, "attention_mask": mask}
            expression += " & pad"
            if inputs == "left" and name not in (*TWO_SEQUENCES, "Bert"):
                values["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        if name in TWO_SEQUENCES:
            values["decoder_input_ids"] = IDS_OF[9]
        if inputs == "packed":
            if name in (*TWO_SEQUENCES, "Bert", "Jamba"):
                continue  # nothing tells them where documents begin
            values["position_ids"] = torch.cat([torch.arange(5), torch.arange(7)]).expand(2, -1)
            expression += " & docs"
        proof = prove(model, values, expression)
        found = [one.kind for one in proof.moved] + [one.code for one in proof.findings if one.severity == "error"]
        assert found[:1] == ([LEAKS[name, inputs]] if (name, inputs) in LEAKS else []), (inputs, proof)


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
