"""Traces that are saved and read back, and dumps of somebody else's tensors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outputs import hold
from refusals import refused
from running import Run
from safetensors import safe_open
from safetensors.numpy import save_file
from traces import trace_of, watched

import attncli
from attncli.errors import UsageError

EVERYTHING = ("-F", "json", "--show", "embeddings,q,k,v,scores,mask,weights,output,metrics")
TOKENS = ["fruit", "flies", "like", "banana"]


def opened(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    with safe_open(path, "numpy") as file:
        return json.loads(file.metadata()["attncli"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def closed(path: Path, header: dict[str, Any], tensors: dict[str, Any]) -> None:
    save_file(tensors, path, metadata={"attncli": json.dumps(header)})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "trace.safetensors"
    attncli.inspect("time flies").save(path)
    return path


def test_a_saved_trace_shows_the_same_bytes(attn: Run, tmp_path: Path, minilm: str, tiny_llama: str) -> None:
    mask = tmp_path / "mask.npy"
    np.save(mask, np.random.default_rng(0).random((4, 5, 5)) > 0.4)
    toy = ["time flies like an arrow"]
    runs = {
        "toy": toy, "target": [*toy, "--target", "fruit flies", "--mask", "window(2)"],
        "biased": [*toy, "--init", "linear", "--scale", "0.3", "--positions", "sinusoidal"],
        "pair": [*toy, "--pair", "fruit flies", "--mask", "docs(5,2) & ~keys(0,1)"],
        "mask": [*toy, "--mask", f'causal & file("{mask}")'],
        "checkpoint": [*toy, "--pair", "fruit", "-m", minilm, "-l", "0,3"],
        "grouped": ["time zeppelin", "-m", tiny_llama, "-l", "2,0"],
        "half": [*toy, "-m", tiny_llama, "--dtype", "bfloat16", "--mask", "causal & window(2)"],
    }  # fmt: skip
    for name, arguments in runs.items():
        path = tmp_path / f"{name}.safetensors"
        saved = attn("inspect", *arguments, "--save", path, *EVERYTHING)
        assert saved.code == 0, saved.err
        if name == "mask":
            mask.unlink()  # what it held is in the trace
        assert name != "grouped" or "'zeppelin'" in saved.err
        read = attn("inspect", "--from", path, *EVERYTHING)
        assert (read.code, read.err) == (saved.code, saved.err), name
        assert read.out == saved.out, name
        again = tmp_path / f"{name}-again.safetensors"
        assert attn("inspect", "--from", path, "--save", again).code == 0
        assert again.read_bytes() == path.read_bytes(), name


def test_load_reads_the_chosen_layers_and_heads(tmp_path: Path, tiny_llama: str) -> None:
    path = tmp_path / "trace.safetensors"
    trace = attncli.inspect("time flies like", model=tiny_llama, layer="all", mask="(causal | keys(2,3)) & ~window(1)")
    trace.save(path)
    assert not [name for name in opened(path)[1] if name.endswith("mask")]  # it is a rule
    whole = attncli.load(path)
    assert [layer.layer for layer in whole.layers] == [0, 1, 2]
    for layer in whole.layers:
        assert layer.heads == (0, 1, 2, 3, 4, 5)
        np.testing.assert_array_equal(layer.head(4).weights, trace.layer(layer.layer).head(4).weights)
        assert str(layer.mask) == str(trace.layer(layer.layer).mask)
    some = attncli.load(path, layer="2,0", head=[5, 1])
    assert [(layer.layer, layer.heads) for layer in some.layers] == [(2, (5, 1)), (0, (5, 1))]
    assert [layer.layer for layer in attncli.load(path, layer=-1).layers] == [2]
    assert attncli.load(str(path), head=3).layer(1).heads == (3,)
    assert (whole.text, whole.source, whole.key_tokens) == (trace.text, trace.source, trace.key_tokens)
    with pytest.raises(UsageError, match=r"--layer 3 is out of range.*0\.\.2"):
        attncli.load(path, layer=3)
    with pytest.raises(UsageError, match=r"--head 6 is out of range.*0\.\.5"):
        attncli.load(path, head=6)


def test_a_layer_may_have_its_weights_alone(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    trace_of(watched([[1.0, 2.0], [0.5, 0.0]], [[0.25, 0.75], [0.5, 0.5]])).save(path)
    ran = attn("inspect", "--from", path, "-F", "json", "--show", "q,k,v,scores,weights,output")
    (layer,) = ran.json["layers"]
    assert (layer["capture"], set(layer["shapes"])) == ("weights-only", {"scores", "weights"})
    assert layer["heads"] == [{"head": 0, "scores": [[1, 2], [0.5, 0]], "weights": [[0.25, 0.75], [0.5, 0.5]]}]
    assert "layer 0 gives its weights alone: k, output, q, v are left out" in ran.err
    for form in ("table", "json"):
        refused(attn("inspect", "--from", path, "--show", "q,output", "-F", form), 4, "layer 0 has only its weights")


def vectors(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


@pytest.fixture
def dump(tmp_path: Path) -> Callable[..., Path]:
    def write(metadata: dict[str, str] | None = None, **tensors: np.ndarray[Any, Any]) -> Path:
        path = tmp_path / "dump.safetensors"
        save_file(tensors, path, metadata=metadata)
        return path

    return write


@pytest.mark.parametrize("shape", [(4, 3), (1, 2, 4, 3)], ids=str)
def test_a_plain_q_and_k_of_any_usual_shape(attn: Run, dump: Callable[..., Path], shape: tuple[int, ...]) -> None:
    q, k = vectors(*shape), vectors(*shape) + 1
    document = attn("inspect", "--from", dump(q=q, k=k), "-F", "json").json
    assert [token["text"] for token in document["key_tokens"]] == ["0", "1", "2", "3"]
    (layer,) = document["layers"]
    heads = q.reshape(-1, 4, 3) @ k.reshape(-1, 4, 3).swapaxes(1, 2) / 3**0.5
    assert (layer["kind"], layer["proof"], layer["shapes"]["v"]) == ("self", None, [len(heads), 4, 0])
    for head, scores in zip(layer["heads"], heads, strict=True):
        np.testing.assert_allclose(head["scores"], scores, rtol=1e-5)
        assert head["mask"] == [[True] * 4] * 4


def test_a_dump_of_everything(attn: Run, dump: Callable[..., Path]) -> None:
    q, k, v, bias = vectors(4, 2, 3), vectors(2, 4, 3), vectors(2, 4, 5), vectors(4, 2, 4)
    mask = np.array([[True, True, True, False], [True, True, True, True]])
    path = dump({"tokens": json.dumps(TOKENS), "scale": "0.25"}, q=q, k=k, v=v, bias=bias, mask=mask)
    document = attn("inspect", "--from", path, *EVERYTHING).json
    assert [token["text"] for token in document["key_tokens"]] == TOKENS
    # Fewer queries than keys are the last positions of a cache.
    assert [token["text"] for token in document["query_tokens"]] == TOKENS[2:]
    (layer,) = document["layers"]
    assert (layer["scale"], layer["kind"], layer["shapes"]["k"]) == (0.25, "cross", [2, 4, 3])
    for head in layer["heads"]:
        index = head["head"]
        scores = q[index] @ k[index // 2].T * 0.25 + bias[index]
        np.testing.assert_allclose(head["scores"], scores, rtol=1e-4, atol=1e-6)
        exponentials = np.exp(np.where(mask, scores, -np.inf))
        weights = exponentials / exponentials.sum(-1, keepdims=True)
        np.testing.assert_allclose(head["weights"], weights, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(head["output"], weights @ v[index // 2], rtol=1e-4, atol=1e-6)
        assert head["mask"] == mask.tolist()


@pytest.mark.parametrize("odd", [np.nan, -np.inf], ids=str)
def test_what_is_no_number_is_drawn_and_warned_about(attn: Run, dump: Callable[..., Path], odd: float) -> None:
    k = vectors(2, 4, 3)
    k[1, 2, 0] = odd
    path = dump({"tokens": json.dumps(TOKENS)}, q=np.abs(vectors(2, 4, 3)), k=k, v=vectors(2, 4, 3))
    for name in ("table", "json", "tsv"):
        ran = attn("inspect", "--from", path, "-F", name)
        assert ran.code == 0
        assert ran.err.startswith("attn: warning: k holds NaN or infinite numbers")
        assert ran.err.count("\n") == 1
    heads = attn("inspect", "--from", path, "-F", "json").json["layers"][0]["heads"]
    assert {row[2] for row in heads[1]["scores"]} == {str(odd)}
    assert all(isinstance(score, float) for row in heads[0]["scores"] for score in row)
    if np.isnan(odd):
        assert "X NaN" in attn("inspect", "--from", path).out


WRONG_DUMPS = {
    "nothing of ours": ({"weight": vectors(2, 2)}, {}, "it holds weight"),
    "integers": ({"q": np.ones((4, 3), int), "k": np.ones((4, 3), int)}, {}, "q is int64"),
    "other widths": ({"q": vectors(4, 3), "k": vectors(4, 5)}, {}, "q [1, 4, 3], k [1, 4, 5]"),
    "heads that do not divide": ({"q": vectors(3, 4, 3), "k": vectors(2, 4, 3)}, {}, "q [3, 4, 3], k [2, 4, 3]"),
    "a mask of one axis": ({"q": vectors(4, 3), "k": vectors(4, 3), "mask": np.ones(4, int)}, {}, "mask"),
    "a bias of another shape": ({"q": vectors(4, 3), "k": vectors(4, 3), "bias": vectors(2, 4, 4)}, {}, "bias"),
    "tokens of another length": ({"q": vectors(4, 3), "k": vectors(4, 3)}, {"tokens": '["a"]'},
        "is not a JSON list of 4 strings"),
    "a scale that is not finite": ({"q": vectors(1, 3), "k": vectors(1, 3)}, {"scale": "nan"}, "scale"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_DUMPS)
def test_dumps_that_make_no_attention_are_refused(attn: Run, dump: Callable[..., Path], name: str) -> None:
    tensors, metadata, words = WRONG_DUMPS[name]
    refused(attn("inspect", "--from", dump(metadata, **tensors)), 5, words)


# Headers that make no sense are in tests/promises/test_corrupt_files.py.
DAMAGE: dict[str, np.ndarray[Any, Any] | None] = {
    "q": None, "k": vectors(4, 2, 7), "mask": np.ones((1, 2, 2), np.float32), "inputs": vectors(1, 32),
    "out_projection": vectors(3, 32), "sinks": vectors(4, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_traces_whose_arrays_do_not_belong_together_are_refused(attn: Run, saved: Path, name: str) -> None:
    header, tensors = opened(saved)
    if DAMAGE[name] is None:
        del tensors[f"layers.0.self.{name}"]
    else:
        tensors[f"layers.0.self.{name}"] = DAMAGE[name]
    closed(saved, header, tensors)
    refused(attn("inspect", "--from", saved), 5)


# What a terminal obeys, what parts fields and rows, what reorders a line, what no XML may hold.
HOSTILE = "\x1b]0;owned\x07\x1b[31m\t\r\n\x00\x9b2J\u202e\ufffe<&\"'"
SHOWN = "tokens,shapes,scores,mask,weights,heatmap,output,metrics,proof"
VIEWS = [
    *(["inspect", "--show", SHOWN, "-F", form] for form in ("table", "svg", "json", "tsv")),
    ["inspect", "--show", "q,k", "-F", "html"],
    ["inspect", "--words", "-F", "table"],
    *(["heads", "-F", form] for form in ("table", "html", "csv")),
    *(["why", "-q", "0", "-F", form] for form in ("table", "md", "json")),
    *(["diff", "-F", form] for form in ("table", "svg", "json")),
    *(["tokens", "-F", form] for form in ("table", "svg", "tsv")),
]  # fmt: skip


def test_no_text_of_a_trace_file_is_obeyed_in_any_view(attn: Run, tmp_path: Path) -> None:
    """Texts that stand for a number, a kind or a mask: see tests/promises/test_corrupt_files.py."""
    path = tmp_path / "trace.safetensors"
    attncli.inspect("time flies like", target="an arrow").save(path)
    header, tensors = opened(path)
    header["source"] |= {
        "kind": "pretrained",
        **dict.fromkeys(("model", "architecture"), HOSTILE),
        "a": {"b": [HOSTILE]},
    }
    header |= dict.fromkeys(("text", "pair", "target"), HOSTILE) | {"notes": [HOSTILE]}
    header["layers"][0]["proof"] = {"max_abs_error": "0.5", "against": HOSTILE, "of": HOSTILE, "magnitude": "1"}
    for token in header["query_tokens"] + header["key_tokens"]:
        token["text"] = HOSTILE
    closed(path, header, tensors)
    for view in VIEWS:
        ran = attn(*view, *["--from", path] * (1 + (view[0] == "diff")))
        assert (ran.code, view) == (0, view), ran.err
        hold(ran.code, ran.out, ran.err, view[-1])
