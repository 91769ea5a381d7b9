"""What a result says of itself: one line where it is printed, and the command's view in a notebook."""

import re
from html import unescape

import numpy as np
import pytest

import attncli
from attncli.analysis.check.report import Report
from attncli.errors import UsageError

TEXT = "time flies like an arrow"


@pytest.fixture(scope="module")
def trace() -> attncli.Trace:
    return attncli.inspect(TEXT, num_heads=2)


def text_of(html: str | None) -> str:
    return unescape(re.sub(r"<style.*?</style>|<[^>]+>", "", html, flags=re.DOTALL))


def test_every_result_is_one_line(trace: attncli.Trace) -> None:
    other = attncli.inspect("fruit flies like a banana", num_heads=2)
    (cell,) = attncli.why(trace, query="arrow", key="flies")[:1]
    (row,) = attncli.why(trace, query=1)[:1]
    survey = attncli.heads(["time flies", TEXT])
    report = Report("gpt2", "gpt2", "float32", (3,), (), (), ())
    lines = {
        repr(trace): "Trace('time flies like an arrow', toy layer, 1 layer × 2 heads, 5 tokens)",
        repr(trace.layer(0)): "LayerTrace(layer 0, self, 2 heads, 5 queries × 5 keys)",
        repr(trace.layer(0).head(-1)): "HeadTrace(layer 0, head 1, 5 queries × 5 keys)",
        repr(survey): "HeadReport(toy layer, 4 heads, 2 sentences of 2..5 tokens)",
        repr(attncli.diff(trace, other)).partition(", at")[0]: "Difference('time flies like an arrow' / 'fruit flies "
        "like a bana…', 2 heads",
        repr(cell).partition(", weight")[0]: "AttentionCell(layer 0, head 0, 'arrow' to 'flies'",
        repr(row): "AttentionRow(layer 0, head 0, 'flies' to 5 keys)",
        repr(attncli.tokenize("time flies")): "Tokenization('time flies', words, 2 tokens)",
        repr(report): "Report(gpt2, 0 findings)",
        repr(survey.heads[0]).partition(":")[0]: "HeadSummary(layer 0, self, head 0",
    }
    assert list(lines) == list(lines.values())
    crossed = attncli.inspect("time flies", target="le temps vole", num_heads=2)
    assert repr(crossed) == "Trace('time flies', toy layer, 1 layer × 2 heads, 3 queries × 2 keys)"
    assert repr(attncli.derive(trace, mean="heads")).endswith("5 tokens, derived)")
    hostile = repr(attncli.inspect("a\x1b[31m\u202e b\nc", num_heads=1))
    assert hostile.isprintable()


def test_a_notebook_shows_a_trace_as_the_command_does(trace: attncli.Trace) -> None:
    html = trace._repr_html_()
    text = text_of(html)
    for part in ("toy layer · 2 heads", "weights of every head", "head 0", *TEXT.split()):
        assert part in text
    weights = trace.layer(0).head(0).weights
    for query, key in zip(*np.tril_indices(5), strict=True):
        assert f"{weights[query, key]:.2f}" in text
    (highest,) = set(re.findall(r'class="(r\d+)"> +1\.00 ', html))
    rules = dict(re.findall(r"\.(r\d+) \{(.*?)\}", html))
    assert "background-color: #fde725" in rules[highest]  # the end of viridis
    assert set(re.findall(r"<(\w+)", html)) <= {"style", "pre", "span"}
    assert "url(" not in html
    plain = [rule for rule in rules.values() if "background" not in rule]
    assert all("#" not in rule or "#767676" in rule for rule in plain), "words have the notebook's own colour"


def test_every_kind_of_result_has_a_view(trace: attncli.Trace) -> None:
    with attncli.watch() as calls:
        import torch

        query = torch.zeros(1, 1, 3, 4)
        torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    views = {
        "arrow": trace.layer(0)._repr_html_(),
        "head 1": trace.layer(0).head(1)._repr_html_(),
        "strongest": attncli.heads(trace)._repr_html_(),
        "shared": attncli.diff(trace, attncli.inspect("time flies", num_heads=2))._repr_html_(),
        "causal · 8 queries": attncli.mask("causal")._repr_html_(),
        "flies": attncli.tokenize("time flies")._repr_html_(),
        "sdpa": calls._repr_html_(),
        "gpt2": Report("gpt2", "gpt2", "float32", (3,), (), (), ())._repr_html_(),
    }
    proof = attncli.prove(
        torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4)), torch.arange(6)[None], "causal"
    )
    views["6 of 6 inputs changed"] = proof._repr_html_()
    for words, html in views.items():
        assert words in text_of(html)
    assert "head 0" not in text_of(views["head 1"])
    named = [re.findall(r'<pre class="(attn-\w+)"', html or "") for html in views.values()]
    assert len({name for (name,) in named}) == len(views), "no view has the style of another"


def test_a_trace_is_a_sequence_of_its_layers() -> None:
    trace = attncli.inspect(TEXT, "demo", layer=[1, 2], head=3)
    assert (len(trace), [layer.layer for layer in trace]) == (2, [1, 2])
    assert trace[-2].layer == 2
    assert trace[1].weights.shape == (1, 8, 8)
    np.testing.assert_array_equal(trace[1].weights[0], trace.layer(1).head(3).weights)
    alone = attncli.inspect(TEXT, "demo", layer=1)
    np.testing.assert_array_equal(alone.weights[3], trace[1].weights[0])
    with pytest.raises(UsageError, match=r"this trace has 2 layers; take one: trace\[1\].weights"):
        trace.weights  # noqa: B018
    with pytest.raises(UsageError, match=r"this trace has 2 layers; take one: trace\[1\].head\(3\)"):
        trace.head(3)
    for name in ("weights", "scores"):
        np.testing.assert_array_equal(getattr(alone.head(3), name), getattr(alone, name)[3])
        np.testing.assert_array_equal(getattr(alone[1], name), getattr(alone, name))
    assert (alone[1].allowed == [alone.head(3).mask] * 4).all()
    with pytest.raises(UsageError, match=r"^layer 3 was not recorded; this trace has layer 1\. Pass layer='all'\.$"):
        alone[3]


def test_a_head_is_plotted_as_a_figure(trace: attncli.Trace) -> None:
    figure = trace.layer(0).head(1).plot(size="3.3in")
    picture, size = figure._repr_png_()
    assert (picture[:4], size["width"]) == (b"\x89PNG", 330), "a notebook shows it"
    titles = [axes.get_title(loc) for axes in figure.axes for loc in ("left", "center") if axes.get_title(loc)]
    assert titles == ["L0 H1"]
    rows = trace.layer(0).plot(queries=["flies", "an"], ramp="log", colormap="gray")
    assert len(rows.axes[0].get_yticklabels()) == 2
