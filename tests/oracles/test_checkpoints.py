"""Checkpoints against transformers itself: eager attention with `output_attentions=True`, run on its own."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attncli
from attncli.errors import LoadError

pytestmark = pytest.mark.usefixtures("by_transformers")

SENTENCE = "time flies like an arrow"


def eager(folder: str, *texts: str, special: bool = True, **arguments: Any) -> list[np.ndarray]:
    """Every layer's weights, `[H, Q, K]`, as transformers returns them."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        encoding = tokenizer(*texts, return_tensors="pt", add_special_tokens=special)
        attentions = model(**encoding, output_attentions=True, **arguments).attentions
    return [layer[0].numpy() for layer in attentions]


def weights(layer: Any) -> np.ndarray:
    return np.stack([layer.head(head).weights for head in range(layer.num_heads)])


def test_minilm_is_exact_in_every_layer_and_head(minilm: str) -> None:
    trace = attncli.inspect(SENTENCE, model=minilm, layers="all")
    expected = eager(minilm, SENTENCE)
    assert len(trace.layers) == len(expected) == 6
    for layer, attentions in zip(trace.layers, expected, strict=True):
        assert layer.shapes["weights"] == [12, 7, 7]
        np.testing.assert_allclose(weights(layer), attentions, atol=1e-6)
        assert layer.proof is not None
        assert layer.proof.max_abs_error < 1e-5


def test_a_causal_decoder_with_grouped_keys_and_rotary_positions_is_exact(tiny_llama: str) -> None:
    trace = attncli.inspect(SENTENCE, model=tiny_llama, layers="all")
    for layer, attentions in zip(trace.layers, eager(tiny_llama, SENTENCE), strict=True):
        assert (layer.shapes["q"], layer.shapes["k"]) == ([6, 5, 4], [2, 5, 4])
        np.testing.assert_allclose(weights(layer), attentions, atol=1e-6)
        assert (np.triu(weights(layer), 1) == 0).all()
        assert layer.head(0).mask.tolist() == np.tri(5, dtype=bool).tolist()
        assert layer.proof is not None
        assert layer.proof.max_abs_error < 1e-5


def test_the_ids_of_the_sentence_without_special_tokens(attn: Callable[..., Any], minilm: str) -> None:
    document = attn("inspect", SENTENCE, "-m", minilm, "--no-special", "-F", "json").json
    assert [token["id"] for token in document["key_tokens"]] == [2051, 10029, 2066, 2019, 8612]
    found = np.array([head["weights"] for head in document["layers"][0]["heads"]])
    np.testing.assert_allclose(found, eager(minilm, SENTENCE, special=False)[0], atol=1e-6)


def test_a_pair_shares_one_sequence_and_the_view_marks_the_boundary(attn: Callable[..., Any], minilm: str) -> None:
    pair = "fruit flies like a banana"
    trace = attncli.inspect(SENTENCE, pair=pair, model=minilm)
    np.testing.assert_allclose(weights(trace.layer(0)), eager(minilm, SENTENCE, pair)[0], atol=1e-6)
    assert [token.segment for token in trace.key_tokens] == [0] * 7 + [1] * 6
    table = attn("inspect", SENTENCE, "--pair", pair, "-m", minilm).out
    assert "│ 7 fruit" in table  # in the list of tokens
    assert "──┼──" in table  # in the maps


def test_a_mask_replaces_the_models_own_in_every_layer(minilm: str) -> None:
    trace = attncli.inspect(SENTENCE, model=minilm, layers="all", mask="causal & window(3)")
    allowed = torch.ones(7, 7, dtype=torch.bool).tril().triu(-2)
    expected = eager_with_mask(minilm, allowed)
    for layer, attentions in zip(trace.layers, expected, strict=True):
        np.testing.assert_allclose(weights(layer), attentions, atol=1e-6)
        assert str(layer.mask) == "causal & window(3)"
        assert layer.proof is not None
        assert layer.proof.max_abs_error < 1e-5


def eager_with_mask(folder: str, allowed: torch.Tensor) -> list[np.ndarray]:
    from transformers import AutoModel, AutoTokenizer

    encoding = AutoTokenizer.from_pretrained(folder)(SENTENCE, return_tensors="pt")
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    added = torch.zeros(1, 1, *allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    with torch.no_grad():
        attentions = model(encoding["input_ids"], attention_mask=added, output_attentions=True).attentions
    return [layer[0].numpy() for layer in attentions]


def test_a_query_that_a_mask_leaves_without_keys_is_uniform_and_warned_about(
    attn: Callable[..., Any], minilm: str
) -> None:
    ran = attn("inspect", SENTENCE, "-m", minilm, "--mask", "~queries(2,3)", "--head", "0", "-F", "json")
    head = ran.json["layers"][0]["heads"][0]
    assert head["weights"][2] == pytest.approx([1 / 7] * 7)
    assert ran.err == (
        "attn: warning: layer 0: the mask leaves no key to query 2 'flies'; the softmax of such a row is spread "
        "over masked keys\n"
    )


def test_half_precision_is_shown_and_its_noise_proven(tiny_llama: str) -> None:
    trace = attncli.inspect(SENTENCE, model=tiny_llama, dtype="bfloat16")
    assert trace.source.dtype == "bfloat16"
    assert trace.layer(0).q.dtype == np.float32
    assert trace.layer(0).proof is not None
    assert 0 < trace.layer(0).proof.max_abs_error < 0.1


def test_a_word_the_vocabulary_lacks_is_said(attn: Callable[..., Any], minilm: str) -> None:
    ran = attn("inspect", "time 🦩🦩 flies", "-m", minilm)
    assert ran.code == 0
    assert "lacks '🦩🦩', read as [UNK]" in ran.err


def test_a_hub_name_is_found_in_the_local_cache(minilm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from running import program
    from small_checkpoints import hub_cache

    environment = hub_cache(tmp_path, "sentence-transformers/all-MiniLM-L6-v2", minilm)
    ran = program("inspect", SENTENCE, "-m", "sentence-transformers/all-MiniLM-L6-v2", "--offline", env=environment)
    assert ran.stderr == ""
    assert "sentence-transformers/all-MiniLM-L6-v2 · bert · 6 layers" in ran.stdout


@pytest.mark.parametrize(
    "model_type", ["distilbert", "albert", "roberta", "gpt2", "qwen3", "gemma2", "gpt_neox", "opt"]
)
def test_architectures_of_plain_stacks_are_exact(model_type: str, tmp_path: Path, tiny_llama: str) -> None:
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    sizes = {
        "albert": {"embedding_size": 16, "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 3},
        "distilbert": {"dim": 24, "n_heads": 4, "n_layers": 2, "hidden_dim": 32},
        "gpt2": {"n_embd": 24, "n_head": 4, "n_layer": 2},
        "opt": {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "word_embed_proj_dim": 24},
        "gemma2": {"head_dim": 8, "num_key_value_heads": 2, "sliding_window": 3, "attn_logit_softcapping": 1.0},
        "qwen3": {"head_dim": 8, "num_key_value_heads": 2},
    }
    plain = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 32}
    chosen = sizes.get(model_type, {})
    if model_type not in {"albert", "distilbert", "gpt2", "opt"}:
        chosen = plain | chosen
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, vocab_size=16, pad_token_id=0, initializer_range=0.5, **chosen)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_llama).save_pretrained(tmp_path)
    folder = str(tmp_path)
    trace = attncli.inspect(SENTENCE, model=folder, layers="all")
    for layer, attentions in zip(trace.layers, eager(folder, SENTENCE), strict=True):
        np.testing.assert_allclose(weights(layer), attentions, atol=2e-6)
        assert layer.proof is not None
        assert layer.proof.max_abs_error < 1e-4


@pytest.fixture(scope="module", params=["t5", "bart"])
def translator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An encoder-decoder: one with relative position biases, one with learned positions."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

    words = ["<pad>", "</s>", "<unk>", *"time flies like an arrow die Zeit fliegt".split()]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    sizes = {
        "t5": {"d_kv": 6, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4},
        "bart": {
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "max_position_embeddings": 16,
        },
    }
    config = AutoConfig.for_model(
        request.param,
        vocab_size=16,
        d_model=24,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        **sizes[request.param],
    )
    torch.manual_seed(0)
    model = AutoModel.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.5)  # weights that are far from uniform
    folder = str(tmp_path_factory.mktemp(request.param))
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
    return folder


def test_an_encoder_decoder_is_exact_in_all_its_kinds(translator: str) -> None:
    from transformers import AutoModel

    trace = attncli.inspect(SENTENCE, model=translator, target="die Zeit fliegt", layers="all")
    assert [token.text for token in trace.query_tokens] == ["<pad>", "die", "Zeit", "fliegt"]
    assert [token.text for token in trace.key_tokens] == [*SENTENCE.split(), "</s>"]
    model = AutoModel.from_pretrained(translator, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = model(
            input_ids=torch.tensor([trace.key_tokens.ids]),
            decoder_input_ids=torch.tensor([trace.query_tokens.ids]),
            output_attentions=True,
        )
    of_kind = {
        "encoder": expected.encoder_attentions,
        "decoder": expected.decoder_attentions,
        "cross": expected.cross_attentions,
    }
    assert len(trace.layers) == 2 + 3 + 3
    for layer in trace.layers:
        np.testing.assert_allclose(weights(layer), of_kind[layer.kind][layer.layer][0].numpy(), atol=2e-6)
        assert layer.proof is not None
        assert layer.proof.max_abs_error < 1e-5


@pytest.mark.parametrize(("kind", "last"), [("encoder", 1), ("decoder", 2)])
def test_an_encoder_decoder_rolls_out_one_kind_at_a_time(
    kind: str, last: int, translator: str, attn: Callable[..., Any]
) -> None:
    command = ("inspect", SENTENCE, "-m", translator, "--target", "die Zeit fliegt", "--rollout")
    document = attn(*command, "--kind", kind, "-F", "json").json
    trace = attncli.inspect(SENTENCE, model=translator, target="die Zeit fliegt", layers="all", kind=kind)
    expected = np.eye(trace.layers[0].num_queries)
    for layer in trace.layers:
        expected = 0.5 * (weights(layer).mean(axis=0) + np.eye(len(expected))) @ expected
    assert [layer["layer"] for layer in document["layers"]] == [last]
    np.testing.assert_allclose(document["layers"][0]["heads"][0]["weights"], expected, atol=1e-6)
    assert ("what comes from the encoder is left out" in document["derived"]["rules"][0]) == (kind == "decoder")
    for options, said in (((), "one kind of attention"), (("--kind", "cross"), "the same tokens")):
        ran = attn(*command, *options)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert said in ran.err
    merged = attn("inspect", SENTENCE, "-m", translator, "--target", "die Zeit fliegt", "--words", "-F", "json")
    assert [token["text"] for token in merged.json["query_tokens"]] == ["<pad>", "die", "Zeit", "fliegt"]


def test_without_a_target_only_the_encoder_runs(translator: str) -> None:
    trace = attncli.inspect(SENTENCE, model=translator, layers="all")
    assert [(layer.layer, layer.kind) for layer in trace.layers] == [(0, "encoder"), (1, "encoder")]


def test_a_kind_is_chosen_and_its_rows_and_columns_are_its_own_tokens(
    translator: str, attn: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "trace.safetensors"
    arguments = ("inspect", SENTENCE, "-m", translator, "--target", "die Zeit fliegt", "-F", "json", "-l", "all")
    whole = attn(*arguments, "--save", path)
    assert attn("inspect", "--from", path, "-F", "json").out == whole.out
    for kind, shape in {"encoder": (6, 6), "decoder": (4, 4), "cross": (4, 6)}.items():
        layers = attn(*arguments, "--kind", kind).json["layers"]
        assert {layer["kind"] for layer in layers} == {kind}
        assert np.shape(layers[0]["heads"][0]["weights"]) == shape
        expected = [layer for layer in whole.json["layers"] if layer["kind"] == kind]
        for ours, theirs in zip(layers, expected, strict=True):  # the other kinds ran on the fast backend
            for head, same in zip(ours["heads"], theirs["heads"], strict=True):
                np.testing.assert_allclose(head["weights"], same["weights"], atol=1e-5)
        rows = attn(*arguments[:-4], "-F", "tsv", "--kind", kind, "-H", "0").out.splitlines()[1:]
        assert len(rows) == shape[0] * shape[1]
        assert rows[0].split("\t")[5] == ("time" if kind == "encoder" else "<pad>")
    shown = attn(*arguments[:-4]).out
    assert "layer 0 · encoder" in shown
    assert "layer 0 · cross" in shown


def test_a_row_without_a_key_is_warned_about_once_for_every_kind_of_attention(
    attn: Callable[..., Any], translator: str
) -> None:
    where = ("-m", translator, "--target", "die Zeit", "--layer", "0,1", "--show", "mask")
    ran = attn("inspect", SENTENCE, *where, "--mask", "~queries(1,2)")
    assert ran.code == 0, ran.err
    warnings = [line for line in ran.err.splitlines() if "leaves no key" in line]
    names = {"encoder": "flies", "decoder": "die", "cross": "die"}
    assert sorted(warnings) == sorted(
        f"attn: warning: layers 0-1 ({kind}): the mask leaves no key to query 1 '{name}'; the softmax of such a row is "
        "spread over masked keys"
        for kind, name in names.items()
    )
    assert [len(re.findall(rf"^1 {name} +! ", ran.out, re.MULTILINE)) for name in ("flies", "die")] == [2, 4]
    assert ran.out.count("keys   0 time   1 flies") == 2  # the cross layers' columns are not their rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kind", "self"), "has encoder, decoder, cross attention"),
        (("--kind", "cross"), "--kind cross needs --target, the text of the decoder"),
        (("-l", "3"), "--layer 3 is out of range"),
    ],
)
def test_what_an_encoder_decoder_does_not_have_is_a_usage_error(
    arguments: tuple[str, ...], message: str, translator: str, attn: Callable[..., Any]
) -> None:
    ran = attn("inspect", SENTENCE, "-m", translator, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_layers_of_a_hybrid_without_attention_are_listed_and_never_silently_missing(
    tmp_path: Path, tiny_llama: str, attn: Callable[..., Any]
) -> None:
    from transformers import AutoModel, AutoTokenizer, MiniMaxConfig

    torch.manual_seed(0)
    config = MiniMaxConfig(
        vocab_size=16,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        num_local_experts=2,
        layer_types=["linear_attention", "full_attention", "full_attention"],
        initializer_range=0.5,
    )
    AutoModel.from_config(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_llama).save_pretrained(tmp_path)
    ran = attn("inspect", SENTENCE, "-m", tmp_path, "-l", "all", "-F", "json")
    assert ran.json["source"]["other_layers"] == [{"layer": 0, "kind": "linear_attention"}]
    assert [layer["layer"] for layer in ran.json["layers"]] == [1, 2]
    model = AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        attentions = model(torch.tensor([[token["id"] for token in ran.json["key_tokens"]]]), output_attentions=True)
    for layer, expected in zip(
        ran.json["layers"], [a for a in attentions.attentions if a.dim() == 4][-2:], strict=True
    ):
        found = np.array([head["weights"] for head in layer["heads"]])
        np.testing.assert_allclose(found, expected[0].numpy(), atol=1e-6)
    ran = attn("inspect", SENTENCE, "-m", tmp_path, "-l", "0")
    assert (ran.code, ran.out) == (4, "")
    assert "no softmax attention but linear_attention; layers of" in ran.err
    assert "with attention: 1, 2" in ran.err
    rolled = attn("inspect", SENTENCE, "-m", tmp_path, "--rollout")
    assert (rolled.code, rolled.out) == (4, "")
    assert "layer 0 is not there" in rolled.err


def test_a_blind_row_in_float16_keeps_what_the_model_computed(minilm: str) -> None:
    trace = attncli.inspect(SENTENCE, model=minilm, dtype="float16", mask="keys(0,0)", layers="all")
    assert max(layer.proof.max_abs_error for layer in trace.layers if layer.proof) < 0.02


def test_weights_that_are_missing_are_never_made_up(tmp_path: Path, tiny_llama: str) -> None:
    import shutil

    from safetensors.numpy import load_file, save_file

    shutil.copytree(tiny_llama, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"lack 1 of the model's tensors \(layers\.1\.self_attn\.q_proj\.weight"):
        attncli.inspect(SENTENCE, model=str(tmp_path), layers=1)
