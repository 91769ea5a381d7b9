"""Attention over training: what is measured, when, what is warned of, and that the program is as it is without."""

import math
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_operator
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.modules import module as torch_modules
from torch.overrides import TorchFunctionMode
from watched_programs import Run, bits

from attncli.analysis.training import DEFAULT_RULES, HeadHistory, WarningRule, parse_rules
from attncli.recording import training
from attncli.recording.call import COLUMNS, METRICS, LayerMetrics
from attncli.recording.notes import Notes
from attncli.recording.training import StepMeter

PROGRAMS = ("training",)
HEALTHY = ["nanogpt", "mingpt", "vision", "padded", "fine_tuned"]


class Metered:
    """A program that ran under a meter."""

    def __init__(
        self, run: Callable[[], Any], every: int = 1, notes: int = 0, rules: Sequence[WarningRule] = DEFAULT_RULES
    ) -> None:
        self.steps: dict[int, list[LayerMetrics]] = {}
        self.history, self.notes = HeadHistory(rules=rules), Notes()
        self.meter = StepMeter(every, self._add, self.notes)
        torch.manual_seed(0)
        with self.meter.watching():
            self.result = run()
        assert len(self.notes) == notes

    def _add(self, step: int, layers: list[LayerMetrics]) -> None:
        self.steps[step] = layers
        self.history.add_layers(step, layers)


def one_step(attend: Callable[[], Tensor], *parameters: Tensor) -> Metered:
    """Measure a step that attends and changes no parameter."""
    optimizer = torch.optim.SGD([*parameters], lr=0.0)

    def run() -> None:
        output = attend()
        if output.requires_grad:
            output.nansum().backward()
        optimizer.step()

    return Metered(run)


def values_of(ran: Metered) -> dict[str, Any]:
    """The columns of the only layer in the first step."""
    return dict(zip(COLUMNS, ran.steps[1][0].values, strict=True))


def heads_of(warnings: list[str], metric: str) -> set[tuple[str, int]]:
    """The modules and heads that are warned of by a metric."""
    line = re.compile(rf"step \d+: layer \d heads? (?P<heads>[\d,-]+): {metric} .*\((?P<module>\S+), \S+training.py:25")
    found = [one for one in map(line.match, warnings) if one]
    runs = [([*map(int, run.split("-"))], one["module"]) for one in found for run in one["heads"].split(",")]
    return {(module, head) for run, module in runs for head in range(run[0], run[-1] + 1)}


@pytest.mark.parametrize("cells", [1, 2**18])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_run_that_goes_well_has_no_warning(
    name: str, cells: int, programs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_CELLS", cells)
    history = Metered(programs[name], every=10).history
    assert history.measured > 1
    assert np.isfinite(history.over_time("max_score")).all()
    assert history.warnings == []


def test_the_same_loss_hides_a_collapse(programs: dict[str, Run]) -> None:
    healthy, wrong = (Metered(lambda rate=rate: programs["collapsed"](rate), every=10) for rate in (1e-3, 3e-2))
    losses = [float(torch.stack(run.result[40:50]).mean()) for run in (healthy, wrong)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert healthy.history.warnings == []
    warnings, last = wrong.history.warnings, wrong.history.over_time("entropy")[:, -1]
    collapsed = {("blocks.1.attention", head) for head in range(4)}
    assert heads_of([line for line in warnings if re.match("step [12]0:", line)], "(max_score|entropy)") == collapsed
    assert heads_of(warnings, r"\w+") == heads_of(warnings, "entropy") == collapsed
    assert (last < 0.1).tolist() == [False] * 4 + [True] * 4


def test_a_sink_that_grows_is_found_with_its_heads(programs: dict[str, Run]) -> None:
    history = Metered(programs["growing_sink"], every=10).history
    beyond = history.over_time("sink")[:, -1] > 0.9
    expected = {(f"blocks.{at // 4}.attention", at % 4) for at in np.flatnonzero(beyond).tolist()}
    assert 0 < len(expected) < 8
    assert heads_of(history.warnings, "sink .*, above 0.9: collapsed onto the first") == expected


# --- the program is as it is ------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize(
    "name",
    ["nanogpt", "mingpt", "padded", "accumulated", "checkpointed", "reentrant", "autocast", "evaluated", "by_hand"],
)
def test_no_bit_changes(name: str, every: int, programs: dict[str, Run]) -> None:
    run = lambda: [*programs[name](12), torch.get_rng_state()]  # noqa: E731
    alone = [*map(bits, run())]
    assert alone == [*map(bits, Metered(run, every).result)]
    assert len(alone) > 12


def of_library(backend: Any) -> Callable[[Tensor], Tensor]:
    """Return a function that an installed library compiles as it is imported."""
    names: dict[str, Any] = {"torch": torch, "backend": backend}
    lines = "@torch.compile(backend=backend)\ndef helper(x):\n    return x.sigmoid() + x\n"
    exec(compile(lines, f"{sysconfig.get_path('purelib')}/some_library.py", "exec"), names)
    return cast(Callable[[Tensor], Tensor], names["helper"])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("compiled", ["block", "function", "decorated", "later", "library", "library later"])
def test_compiled_code_runs_compiled(compiled: str, programs: dict[str, Run], request: pytest.FixtureRequest) -> None:
    request.addfinalizer(torch._dynamo.reset)
    ran = list[int]()  # how many steps had begun when a compiled graph ran

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        return lambda *inputs: (ran.append(len(losses)), graph.forward(*inputs))[1]

    losses = list[Tensor]()

    def run() -> list[Tensor]:
        ran.clear()
        losses.clear()
        model = programs["gpt"]()
        called: list[Callable[[Tensor], Tensor]] = [model]
        if compiled == "block":
            model.blocks[0].compile(backend=backend)
        elif compiled == "function":
            model.blocks[0].norm1.forward = torch.compile(model.blocks[0].norm1.forward, backend=backend)
        elif "library" in compiled:
            norm, own, helper = model.blocks[0].norm1, model.blocks[0].norm1.forward, of_library(backend)
            norm.forward = lambda x: own(x) if compiled == "library later" and len(losses) < 2 else helper(own(x))
        elif compiled == "decorated":
            called.append(torch.compile(backend=backend)(model))
        for step, loss in programs["trained"](model, programs["next_words"](lambda ids: called[-1](ids), 4, length=12)):
            losses.append(loss.detach())
            if compiled == "later" and step == 2:
                called.append(torch.compile(model, backend=backend))
        return [*losses, *(each.detach() for each in model.parameters())]

    compiler, alone, graphs = torch.compile, [*map(bits, run())], [*ran]
    torch._dynamo.reset()
    metered = Metered(run, every=2, notes=1)
    assert [*map(bits, metered.result)] == alone
    assert ran == graphs != []
    assert "torch.compile" in metered.notes[0]
    assert [*metered.steps] == ([1, 2] if "later" in compiled else [])
    assert torch.compile is compiler


def test_functions_that_a_library_compiles_and_never_calls_do_not_count() -> None:
    x = nn.Parameter(torch.randn(1, 2, 5, 4))
    optimizer = torch.optim.SGD([x])

    def run() -> None:
        assert of_library("aot_eager").__name__ == "helper"
        F.scaled_dot_product_attention(x, x, x).sum().backward()
        optimizer.step()

    assert [*Metered(run).steps] == [1]


class Counting(TorchFunctionMode):
    """Counts functions that a program calls while its mode is on."""

    number = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counting.number += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("cpu")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("every", [1, 2, 10])
@pytest.mark.parametrize("context", [Counting, lambda: torch.device("cpu"), default_device])
def test_a_mode_of_the_program_leaves_as_it_came(context: Callable[[], Any], every: int) -> None:
    def run() -> list[int]:
        x, depths, Counting.number = nn.Parameter(torch.randn(1, 2, 5, 4)), list[int](), 0
        optimizer = torch.optim.SGD([x])
        for _ in range(5):
            with context():
                F.scaled_dot_product_attention(x, x, x).sum().backward()
                optimizer.step()
            torch.zeros(1)
            modes = [torch._C._get_function_stack_at(at) for at in range(torch._C._len_torch_function_stack())]
            depths.append(sum(type(mode).__module__ != "attncli.recording.watch" for mode in modes))
        return [*depths, Counting.number]

    alone, metered = run(), Metered(run, every)
    assert metered.result == alone
    assert [*metered.steps] == sorted({1, *range(every, 6, every)})
    assert torch._C._len_torch_function_stack() == 0


def test_between_measured_steps_torch_is_as_it_is_without_us() -> None:
    x = nn.Parameter(torch.randn(1, 2, 5, 4))
    optimizer = torch.optim.SGD([x])

    def hooks() -> tuple[object, ...]:
        before, after = torch_modules._global_forward_pre_hooks, torch_modules._global_forward_hooks
        return threading.getprofile(), len(before), len(after), torch._C._len_torch_function_stack(), len(sys.meta_path)

    def run() -> list[bool]:
        states = []
        for _ in range(7):
            F.scaled_dot_product_attention(x, x, x).sum().backward()
            optimizer.step()
            states.append(hooks() == alone)
        return states

    alone = hooks()
    assert Metered(run, every=3).result == [True, False, True, True, False, True, True]


# --- steps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("accumulated", "optimizer step"), ("checkpointed", "optimizer step"), ("reentrant", "optimizer step"),
        ("autocast", "optimizer step"), ("evaluated", "optimizer step"), ("by_hand", "backward"),
        ("inference", "forward"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("every", "measured"), [(1, [1, 2, 3, 4, 5, 6]), (2, [1, 2, 4, 6]), (5, [1, 5])])
def test_a_step_is_counted_once(
    name: str, unit: str, every: int, measured: list[int], programs: dict[str, Run]
) -> None:
    ran = Metered(programs[name], every)
    assert (ran.meter.unit, ran.meter.steps, [*ran.steps]) == (unit, 6, measured)
    for layers in ran.steps.values():
        assert [(one.layer, one.module) for one in layers] == [(0, "blocks.0.attention"), (1, "blocks.1.attention")]
        assert all(
            (one.values[COLUMNS.index("keys")] == 6.5).all() for one in layers
        )  # texts of 12 words; no evaluation


def test_what_is_accumulated_is_one_step_of_all(programs: dict[str, Run]) -> None:
    together, apart = Metered(lambda: programs["accumulated"](1)), []

    def run() -> list[Tensor]:
        losses = programs["next_words"](programs["gpt"](), 3, 12)
        for loss in losses:
            loss.backward()
        return []

    apart = Metered(run)
    assert [*apart.steps] == [1, 2, 3]
    expected = np.stack([[one.values for one in apart.steps[step]] for step in (1, 2, 3)])
    for layer, one in enumerate(together.steps[1]):
        np.testing.assert_allclose(one.values[1:7], expected[:, layer, 1:7].mean(0), rtol=1e-5)
        np.testing.assert_array_equal(one.values[0], expected[:, layer, 0].max(0))


def test_the_optimizer_that_steps_most_counts() -> None:
    """As of a GAN: two steps of its critic, then one of its generator; and then a new optimizer takes over."""
    x = nn.Parameter(torch.randn(1, 2, 5, 4))
    critic, generator = torch.optim.SGD([x]), torch.optim.Adam([x])
    ended, meter = list[int](), StepMeter(1, lambda *_: None, Notes())
    with meter.watching():
        for optimizer in [critic, critic, generator] * 3 + [torch.optim.SGD([x])] * 3:
            F.scaled_dot_product_attention(x, x, x).sum().backward()
            optimizer.step()
            ended.append(meter.steps)
    assert ended == [1, 2, 2, 3, 4, 4, 5, 6, 6, 6, 7, 8]


class Attends(nn.Module):
    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        q = (x @ self.weight).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attends()

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)


def micro_batches_without_modules(x: Tensor, models: list[Any]) -> None:
    for _ in range(3):
        y = x
        for weight in (models[0].attention.weight, models[1].attention.weight):
            q = (y @ weight).unflatten(-1, (2, -1)).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)
        y.sum().backward()


def two_models_of_one_name(x: Tensor, models: list[Any]) -> None:
    models[1](models[0](x)).sum().backward()


def validation_in_training_mode(x: Tensor, models: list[Any]) -> None:
    two_models_of_one_name(x, models)
    with torch.no_grad():
        two = models[0](100 * x), models[1](100 * x)
    assert not any(each.requires_grad for each in two)


@pytest.mark.parametrize("train", [micro_batches_without_modules, two_models_of_one_name, validation_in_training_mode])
def test_each_attention_of_training_is_a_layer(train: Callable[[Tensor, list[Any]], None]) -> None:
    torch.manual_seed(1)
    models, x = [Holder(), Holder()], torch.randn(2, 5, 8)
    weights = [model.attention.weight for model in models]
    optimizer = torch.optim.SGD(weights, lr=0.0)
    first = (x @ weights[0]).unflatten(-1, (2, -1)).transpose(1, 2)

    def run() -> None:
        for _ in range(2):
            if train is validation_in_training_mode:
                with torch.no_grad():  # also before the first step
                    models[0](100 * x)
            train(x, models)
            optimizer.step()

    for layers in Metered(run).steps.values():
        assert [one.values.shape[1] for one in layers] == [2, 2]
        expected = (first @ first.mT / 2).amax((0, 2, 3))
        np.testing.assert_allclose(layers[0].values[0], expected.detach(), rtol=1e-5)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_frozen_model_and_a_text_of_one_word_are_not_warned_of(is_frozen: bool) -> None:
    model, head = Attends(heads=2).requires_grad_(not is_frozen).train(not is_frozen), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*head.parameters()])

    def run() -> None:
        torch.nn.init.normal_(model.weight, std=0.01)
        for step in range(1, 4):
            head(model(torch.randn(2, 1 if step == 2 else 5, 8))).sum().backward()
            if is_frozen:  # validated without gradients
                with torch.no_grad():
                    model(10**4 * torch.randn(2, 5, 8))
            optimizer.step()

    ran = Metered(run)
    assert (ran.history.warnings, [*ran.steps]) == ([], [1, 2, 3])


@pytest.mark.parametrize("start", [1, 3])
@pytest.mark.parametrize("rules", [DEFAULT_RULES, parse_rules("max_score>50, entropy<0.01"), ()])
def test_weights_that_are_no_numbers_are_warned_of(rules: Sequence[WarningRule], start: int) -> None:
    x = nn.Parameter(torch.randn(3, 2, 6, 4))
    optimizer = torch.optim.SGD([x], lr=0.0)

    def run() -> None:
        for step in range(1, 5):
            is_wrong = torch.zeros(3, 2, 1, 1)
            is_wrong[1, 1] = torch.nan if step >= start else 0  # in one head of one sentence
            F.scaled_dot_product_attention(x + is_wrong, x, x).sum().backward()
            optimizer.step()

    ran = Metered(run, rules=rules)
    (warning,) = ran.history.warnings
    assert re.match(
        rf"step {start}: layer 0 head 1: entropy nan, as some of its weights are no numbers \(.*\)$", warning
    )
    values = ran.steps[3][0].values
    assert np.isnan(values[: len(METRICS), 1]).all()
    assert np.isfinite(values[: len(METRICS), 0]).all()


# --- numbers ----------------------------------------------------------------------------------------------


def by_hand(
    q: Tensor, k: Tensor, scale: float, allowed: Tensor, added: Tensor | None = None, is_self: bool = True
) -> Iterator[list[float]]:
    """The metrics of each head of `[B, H, Q, D]` and `[B, H, K, D]` under `[B, Q, K]`, by plain loops."""
    batch, heads, queries, _ = q.shape
    for head in range(heads):
        rows: dict[str, list[float]] = {name: [] for name in METRICS}
        for b in range(batch):
            for i in range(queries):
                keys = [j for j in range(k.shape[2]) if allowed[b, i, j]]
                if not keys or (is_self and not allowed[b, :, i].any()):
                    continue
                products = [sum(map(float.__mul__, q[b, head, i].tolist(), k[b, head, j].tolist())) for j in keys]
                bias = [0.0 if added is None else float(added[b, head, i, j]) for j in keys]
                scores = [product * scale + more for product, more in zip(products, bias, strict=True)]
                total = sum(math.exp(score) for score in scores)
                weight = {j: math.exp(score) / total for j, score in zip(keys, scores, strict=True)}
                entropy = -sum(one * math.log(one) for one in weight.values() if one)
                rows["max_score"].append(max(scores))
                rows["entropy"].append(entropy)
                rows["effective_keys"].append(math.exp(entropy))
                if is_self:
                    rows["distance"].append(sum(one * abs(i - j) for j, one in weight.items()))
                if is_self and i:
                    rows["previous"].append(weight.get(i - 1, 0.0))
                if i or not is_self:
                    rows["sink"].append(weight.get(0, 0.0))
        means = {name: sum(values) / len(values) if values else math.nan for name, values in rows.items()}
        yield [*(means | {"max_score": max(rows["max_score"])}).values()]


LENGTHS = torch.tensor([6, 4])
WORD = torch.arange(6) < LENGTHS[:, None]
CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()
BIAS = torch.linspace(-1, 1, 2 * 3 * 36).view(2, 3, 6, 6)


def attend(kind: str, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Attend in one of the ways that programs do; return the output, `[B, Q, K]` of what is allowed, and a bias."""
    full, words = torch.ones(2, 6, 6, dtype=torch.bool), WORD[:, None].expand(2, 6, 6)
    if kind in ("causal", "one query", "one key"):
        return F.scaled_dot_product_attention(q, k, k, is_causal=True), full & CAUSAL, None
    if kind == "padded":
        mask = words & CAUSAL
        return F.scaled_dot_product_attention(q, k, k, mask[:, None]), mask, None
    if kind == "added":
        mask = BIAS.masked_fill(~words[:, None], -torch.inf)
        return F.scaled_dot_product_attention(q, k, k, mask), words, BIAS
    if kind == "cross":
        return F.scaled_dot_product_attention(q[:, :, :4], k, k), full[:, :4], None
    if kind == "flex":
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6, device="cpu")
        return flex_attention(q, k, k, block_mask=mask), full & CAUSAL, None
    scores = (q @ k.mT / 2).masked_fill(~words[:, None], torch.finfo(torch.float32).min)
    return scores.softmax(-1) @ k, words, None


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("block", [100, 2**20])
@pytest.mark.parametrize("kind", ["causal", "padded", "added", "cross", "flex", "written", "one query", "one key"])
def test_numbers_are_those_of_plain_loops(kind: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_BLOCK", block)
    torch.manual_seed(1)
    q, k = (nn.Parameter(2 * torch.randn(1 if kind == one else 2, 3, 6, 4)) for one in ("one query", "one key"))
    facts = list[Any]()

    def attends() -> Tensor:
        with torch.set_grad_enabled(kind != "flex"):  # which has no backward on a CPU
            output, *facts[:] = attend(kind, q + 0, k + 0)
        return output

    (layer,) = one_step(attends, q, k).steps[1]
    (allowed, added), is_self = facts, kind != "cross"
    q, k = q.expand(2, -1, -1, -1), k.expand(2, -1, -1, -1)
    expected = [*by_hand(q[:, :, :4] if kind == "cross" else q, k, 0.5, allowed, added, is_self)]
    np.testing.assert_allclose(layer.values[: len(METRICS)].T, expected, rtol=1e-5, atol=1e-6)


class LargestScores(TorchFunctionMode):
    """Takes what flex_attention itself knows of each row, in powers of two."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is flex_attention_operator:
            self.found = result[2].mul(math.log(2)).amax((0, 2)).tolist()
        return result


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_largest_score_is_that_of_flex_attention() -> None:
    x = 3 * torch.randn(2, 3, 300, 16)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 300, 300, device="cpu")
    with LargestScores() as largest:
        ran = one_step(lambda: flex_attention(x, x, x, block_mask=mask), nn.Parameter(x))
    assert values_of(ran)["max_score"].tolist() == pytest.approx(largest.found, rel=1e-5)


@pytest.mark.parametrize("module", [True, False])
def test_grouped_keys_and_a_module_of_torch(module: bool) -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 6, 12)
    attention = nn.MultiheadAttention(12, 3, batch_first=True)
    q, k = (nn.Parameter(torch.randn(2, heads, 6, 4)) for heads in (3, 1))
    if module:
        with torch.no_grad():
            packed = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
            heads = packed.unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)

    def attend() -> Tensor:
        if module:
            return attention(x, x, x, key_padding_mask=~WORD)[0]
        return F.scaled_dot_product_attention(q, k, k, WORD[:, None, None], enable_gqa=True)

    (layer,) = one_step(attend, *attention.parameters(), q, k).steps[1]
    own = (heads[0], heads[1]) if module else (q, k.expand(-1, 3, -1, -1))
    expected = [*by_hand(*own, 0.5, WORD[:, None].expand(2, 6, 6))]
    np.testing.assert_allclose(layer.values[: len(METRICS)].T, expected, rtol=1e-5, atol=1e-6)


def test_of_long_sequences_the_largest_score_and_a_nan_are_those_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_BLOCK", 2**16)
    q, k = (nn.Parameter(5 * F.normalize(torch.randn(1, 2, 2048, 8), dim=-1)) for _ in "qk")  # all as long
    row = next(at for at in range(2, 2048) if at not in training._sampled(2048, 32))
    with torch.no_grad():
        k[0, :, 1] = q[0, :, row]
    optimizer = torch.optim.SGD([q, k], lr=0.0)

    def run() -> None:
        for _ in range(2):
            F.scaled_dot_product_attention(q, k, k, is_causal=True).sum().backward()
            optimizer.step()
            with torch.no_grad():
                q[0, 1, row] = torch.nan

    ran = Metered(run)
    assert ran.meter.stride == 32
    assert ran.steps[1][0].values[0] == pytest.approx([25 / 8**0.5] * 2)
    assert ran.steps[2][0].values[0, 0] == pytest.approx(25 / 8**0.5)
    (warning,) = ran.history.warnings
    assert warning.startswith("step 2: layer 0 head 1: entropy nan")


@pytest.mark.parametrize("length", [8, 32, 64, 100])
def test_texts_of_one_length_in_a_row_have_all_their_positions_measured(length: int) -> None:
    torch.manual_seed(1)
    x, text = nn.Parameter(2 * torch.randn(2, 4, 1024, 8)), torch.arange(1024) // length
    mask = (text == text[:, None]).tril()
    ran = one_step(lambda: F.scaled_dot_product_attention(x, x, x, mask), x)
    values = values_of(ran)
    weights = (x @ x.mT / 8**0.5).masked_fill(~mask, -torch.inf).softmax(-1).detach()
    entropy = torch.special.entr(weights).sum(-1).mean((0, 2))
    assert ran.meter.stride == 32
    assert values["keys"] == pytest.approx([float(mask.sum(-1).double().mean())] * 4, rel=0.1)
    assert values["entropy"] == pytest.approx(entropy.numpy(), rel=0.2)


@pytest.mark.parametrize("kind", ["boolean", "additive", "written"])
def test_few_rows_know_padding_from_keys_that_they_hide(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_CELLS", 1)
    x, at = nn.Parameter(torch.randn(1, 2, 64, 4)), torch.arange(64)
    mask = ((at - at[:, None]).abs() <= 2) & (at != at[:, None]) & (at < 48)  # no own position, and padding at the end
    added = torch.zeros(64, 64).masked_fill(~mask, -torch.inf)

    def attend() -> Tensor:
        if kind == "written":
            q = x + 0
            return (q @ q.mT / 2).masked_fill(~mask, -1e9).softmax(-1) @ q
        return F.scaled_dot_product_attention(x, x, x, mask if kind == "boolean" else added)

    values = values_of(one_step(attend, x))
    rows = [each for each in training._sampled(64, 8) if each < 48]  # the others are padding
    assert len(rows) == 6
    expected = torch.special.entr((x @ x.mT / 2 + added)[0, :, rows].softmax(-1)).sum(-1).mean(1)
    assert values["entropy"] == pytest.approx(expected.detach().numpy(), rel=1e-5)
    assert (values["keys"] == 4).all()


@pytest.mark.parametrize("has_all", [False, True])
def test_few_rows_stand_for_all(has_all: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, masked_scores = list[int](), training._masked_scores

    def counted(*arguments: Any) -> tuple[Tensor, Tensor]:
        scores, allowed = masked_scores(*arguments)
        sizes.append(scores.numel())
        return scores, allowed

    monkeypatch.setattr(training, "_masked_scores", counted)
    monkeypatch.setattr(training, "_BLOCK", 2**30 if has_all else 2**12)
    monkeypatch.setattr(training, "_CELLS", 2**30 if has_all else 1)
    torch.manual_seed(1)
    q, k = (nn.Parameter(1.3 * torch.randn(32, 3, 128, 4)) for _ in "qk")
    is_later = torch.ones(128, 128, dtype=torch.bool).triu(1)
    ran = one_step(lambda: F.scaled_dot_product_attention(q, k, k, is_causal=True), q, k)
    assert ran.meter.stride == (1 if has_all else 16)
    assert max(sizes) == 32 * 3 * 128**2 if has_all else max(sizes) <= 2**12
    values = values_of(ran)
    weights = (q.double() @ k.double().mT / 2).masked_fill(is_later, -torch.inf).softmax(-1).detach()
    cosines = [
        [float(F.cosine_similarity(weights[:, a, 1:].flatten(), weights[:, b, 1:].flatten(), dim=0)) for b in others]
        for a, others in enumerate([(1, 2), (0, 2), (0, 1)])
    ]  # the first query has one key
    near = 1e-5 if has_all else 0.05
    entropy = torch.special.entr(weights).sum(-1).mean((0, 2))
    largest = (q @ k.mT / 2).masked_fill(is_later, -torch.inf).amax((0, 2, 3)).detach()
    assert values["max_score"] == pytest.approx(largest.numpy(), rel=1e-5)
    assert values["entropy"] == pytest.approx(entropy.numpy(), rel=near)
    assert values["similarity"] == pytest.approx([max(each) for each in cosines], abs=near)
    assert 0.05 < values["similarity"].max() < 0.5


def test_two_heads_with_the_same_weights_are_similar() -> None:
    q = torch.randn(1, 4, 6, 4)
    x = nn.Parameter(torch.stack([q[:, 0], q[:, 1], q[:, 2], q[:, 0]], 1))
    values = values_of(one_step(lambda: F.scaled_dot_product_attention(x, x, x), x))
    assert values["similarity"][[0, 3]] == pytest.approx(1, abs=1e-6)
    assert (values["similarity"][[1, 2]] < 0.999).all()
