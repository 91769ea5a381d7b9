"""Decoders of models that hear, run without a sound over a target: what transformers' own decoders compute so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import HEARING, tiny_listener
from conformance import DECODE_ALONE, arrays, calmed, conform_listener, opened, save, save_for_auto, stacked
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    T5Config,
    T5ForConditionalGeneration,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import attncli
from attncli.checkpoints.options import LoadOptions
from attncli.cli import sentences
from attncli.engines.torch.text_model import text_part
from attncli.errors import LoadError, NotExposedError, UsageError

Run = Callable[..., Any]
TARGET = "w7 w8 w9 w7"
IDS = torch.tensor([[7, 8, 9, 7]])
ABOUT_SOUNDS = "whisper is given no sound, and its decoder runs without cross-attention"

# A decoder with which sound is mixed before its first layer.
MIXED = ("cohere_asr", "moonshine_streaming", "voxtral_realtime")

# What a sound is to each, as its encoder reads it.
SOUNDS = {
    "canary": ("input_features", (1, 64, 80)),
    "moonshine": ("input_values", (1, 4000)),
    "seamless_m4t": ("input_features", (1, 20, 160)),
    "seamless_m4t_v2": ("input_features", (1, 20, 160)),
    "speech-encoder-decoder": ("inputs", (1, 4000)),
    "speech_to_text": ("input_features", (1, 40, 80)),
    "speecht5": ("input_values", (1, 4000)),
    "whisper": ("input_features", (1, 80, 3000)),
}


@pytest.mark.parametrize("name", DECODE_ALONE)
def test_a_decoder_shows_what_it_computes_without_a_sound(name: str, tmp_path: Path) -> None:
    row = conform_listener(name, tmp_path)
    assert row.is_exact, row
    assert row.capture == "exact"
    assert row.in_blocks <= 1e-4
    trace, full = row.trace, row.checkpoint
    assert trace is not None
    assert full is not None
    assert {layer.kind for layer in trace.layers} == {"decoder"}
    assert [layer.layer for layer in trace.layers] == list(range(trace.source.layers))
    assert (trace.source.architecture, trace.text, trace.key_tokens) == (name, "", trace.query_tokens)
    for layer in trace.layers:
        assert layer.proof is not None
        assert layer.proof.max_abs_error <= 1e-4
        assert str(layer.mask) == "causal"
    # Neither the encoder nor the layers above are built, and that changes no bit.
    short = opened(tmp_path, "0", given="target")
    sizes = [sum(parameter.numel() for parameter in one.model.parameters()) for one in (short, full)]
    assert sizes[0] < sizes[1]
    assert not any("encoder." in name.replace("bert.encoder.", "") for name, _ in short.model.named_parameters())
    cut = arrays(short.trace("", target=trace.target).layers)
    for ours, theirs in zip(cut, arrays(trace.layers[:1]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", DECODE_ALONE)
def test_the_first_layer_alone_is_the_same_with_a_sound(name: str, tmp_path: Path) -> None:
    model = calmed(tiny_listener(name))
    save(model, tmp_path)
    layers = opened(tmp_path, "0,1", given="target").trace("", target=TARGET).layers
    torch.manual_seed(1)
    main, shape = SOUNDS[name]
    with torch.no_grad():
        heard = model(**{main: torch.randn(shape)}, decoder_input_ids=IDS, output_attentions=True).decoder_attentions
    np.testing.assert_allclose(stacked(layers[0]), heard[0][0], atol=1e-6)
    assert np.abs(stacked(layers[1]) - heard[1][0].numpy()).max() > 1e-4


@pytest.mark.parametrize("name", [name for name in HEARING if name not in DECODE_ALONE])
def test_the_others_read_a_text_or_are_refused(name: str, tmp_path: Path) -> None:
    CONFIG_MAPPING[name]().save_pretrained(tmp_path)
    if name in MIXED:
        with pytest.raises(NotExposedError, match="reads a sound into its text part; give a text model"):
            text_part(str(tmp_path), LoadOptions())
    else:
        assert not text_part(str(tmp_path), LoadOptions()).hears


@pytest.mark.parametrize("class_name", ["WhisperForAudioClassification", "SpeechT5ForSpeechToSpeech"])
def test_what_hears_and_writes_no_text_is_refused(class_name: str, tmp_path: Path) -> None:
    model_type = "whisper" if class_name.startswith("Whisper") else "speecht5"
    config = CONFIG_MAPPING[model_type](architectures=[class_name])
    config.save_pretrained(tmp_path)
    with pytest.raises(NotExposedError, match="reads a sound and has no decoder that reads tokens"):
        text_part(str(tmp_path), LoadOptions())


def test_the_decoders_layers_and_heads_count(tmp_path: Path) -> None:
    config = CONFIG_MAPPING["whisper"](
        vocab_size=128, d_model=32, encoder_layers=5, decoder_layers=2, encoder_attention_heads=8,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, pad_token_id=1, bos_token_id=2,
        eos_token_id=2, decoder_start_token_id=2, max_target_positions=16,
    )  # fmt: skip
    model = calmed(WhisperForConditionalGeneration(config).eval())
    save(model, tmp_path)
    checkpoint = opened(tmp_path, "-1", given="target")
    trace = checkpoint.trace("", target=TARGET)
    assert (trace.source.layers, trace.layers[0].layer, trace.layers[0].num_heads) == (2, 1, 4)
    with pytest.raises(attncli.AttnError, match=r"has 17 tokens, .* reads at most 16"):
        checkpoint.trace("", target=" ".join(["w7"] * 17))
    with pytest.raises(UsageError, match=r"--layer 2 is out of range: .* has 2 layers"):
        opened(tmp_path, "2", given="target")


def test_the_weights_that_listen_may_be_missing_and_those_of_the_decoder_may_not(tmp_path: Path) -> None:
    save(calmed(tiny_listener("whisper")), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {name: value for name, value in load_file(file).items() if ".encoder." not in name}
    save_file(tensors, file, {"format": "pt"})
    trace = opened(tmp_path, "all", given="target").trace("", target=TARGET)
    assert trace.notes == ()
    lost = "model.decoder.layers.1.self_attn.q_proj.weight"
    save_file({name: value for name, value in tensors.items() if name != lost}, file, {"format": "pt"})
    with pytest.raises(LoadError, match=f"lack 1 of the model's tensors .*{lost.removeprefix('model.')}"):
        opened(tmp_path, "all", given="target")


def test_a_target_is_read_as_the_models_labels_are(tmp_path: Path, attn: Run) -> None:
    control = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    vocabulary = {piece: index for index, piece in enumerate(["h", "e", "l", "o", "Ġ", "w", "r", "d", *control])}
    model = calmed(tiny_listener("whisper"))
    start = model.config.decoder_start_token_id = vocabulary["<|startoftranscript|>"]
    model.save_pretrained(tmp_path)
    WhisperTokenizer(vocabulary, [], language="en", task="transcribe").save_pretrained(tmp_path)
    labels = AutoTokenizer.from_pretrained(tmp_path)("hello world").input_ids
    assert (labels[0], labels[-1]) == (start, vocabulary["<|endoftext|>"])
    document = attn("inspect", "--target", "hello world", "-m", tmp_path, "-F", "json").json
    tokens = document["query_tokens"]
    # In training the first one is cut off, and what is left is shifted to the right behind the same token.
    assert [token["id"] for token in tokens] == labels[:-1]
    assert [token["special"] for token in tokens] == [True] * 4 + [False] * 11
    plain = attn("inspect", "--target", "hello world", "-m", tmp_path, "-F", "json", "--no-special").json
    assert "".join(token["text"] for token in plain["query_tokens"]) == "helloĠworld"


def test_an_adapter_of_a_model_that_hears(tmp_path: Path) -> None:
    model = calmed(tiny_listener("whisper"))
    base = save_for_auto(model, tmp_path / "base")
    changes = LoraConfig(target_modules=["q_proj", "v_proj", "fc1"], r=4, init_lora_weights=False)
    adapted = get_peft_model(model, changes)
    adapted.save_pretrained(str(tmp_path / "lora"))
    trace = attncli.inspect(target=TARGET, model=str(tmp_path / "lora"), base=str(base), layers="all", special=False)
    with torch.no_grad():
        expected = model.get_decoder()(IDS, output_attentions=True).attentions
    for layer, theirs in zip(trace.layers, expected, strict=True):
        np.testing.assert_allclose(stacked(layer), theirs[0], atol=1e-6)


# --- the program ---


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Whisper with a tokenizer that the program loads."""
    return str(save_for_auto(calmed(tiny_listener("whisper")), tmp_path_factory.mktemp("whisper")))


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny T5 with a tokenizer that the program loads."""
    config = T5Config(vocab_size=128, d_model=16, d_ff=16, d_kv=8, num_heads=2, num_layers=1, decoder_start_token_id=0)
    return str(save_for_auto(T5ForConditionalGeneration(config), tmp_path_factory.mktemp("t5")))


def test_the_document_of_a_target_alone(whisper: str, attn: Run) -> None:
    ran = attn("inspect", "--target", TARGET, "-m", whisper, "-F", "json", "-l", "all")
    document = ran.json
    assert ABOUT_SOUNDS in ran.err
    assert (document["text"], document["pair"], document["target"]) == ("", None, TARGET)
    assert document["query_tokens"] == document["key_tokens"]
    assert [token["text"] for token in document["query_tokens"]] == ["<pad>", "w7", "w8", "w9", "w7"]
    assert [(layer["layer"], layer["kind"]) for layer in document["layers"]] == [(n, "decoder") for n in range(3)]
    trace = attncli.inspect(target=TARGET, model=whisper, layers="all")
    shown = np.array([head["weights"] for head in document["layers"][2]["heads"]], np.float32)
    np.testing.assert_array_equal(shown, stacked(trace.layers[2]))


def test_the_heads_of_a_target_alone_are_those_of_its_trace(whisper: str) -> None:
    trace = attncli.inspect(target=TARGET, model=whisper, layers="all")
    assert attncli.heads(target=TARGET, model=whisper).heads == attncli.heads(trace).heads
    with pytest.raises(NotExposedError, match="reads a sound, not text"):
        attncli.heads(TARGET, model=whisper)


def test_every_view_says_that_there_is_no_sound(whisper: str, attn: Run, tmp_path: Path) -> None:
    saved = tmp_path / "saved.safetensors"
    given = ("--target", TARGET, "-m", whisper)
    for command in (
        ("inspect", *given, "--save", saved),
        ("inspect", *given, "--rollout"),
        ("inspect", *given, "-o", tmp_path / "page.html"),
        ("heads", *given),
        ("why", *given, "-q", "2"),
        ("diff", *given, "-m", whisper),
        ("check", *given),
        ("check", "-m", whisper),
        ("inspect", "--from", saved),
        ("heads", "--from", saved),
        ("diff", "--from", saved, "--from", saved),
    ):
        ran = attn(*command)
        assert ran.code == 0, ran.err
        assert ABOUT_SOUNDS in ran.err, command


def test_the_masks_of_a_decoder_alone(whisper: str, attn: Run) -> None:
    for past in (0, 2):
        ran = attn("mask", "model", whisper, TARGET, "-F", "json", *(("--past", past) if past else ()))
        assert ran.err == "attn: whisper is given no sound: its cross-attention is left out\n"
        (document,) = ran.json
        assert (document["kind"], document["layers"]) == ("decoder", [0, 1, 2])
        assert document["mask"] == np.tri(5, dtype=bool)[past:].tolist()


def test_a_saved_trace_comes_back(whisper: str, attn: Run, tmp_path: Path) -> None:
    saved = tmp_path / "saved.safetensors"
    computed = attn("inspect", "--target", TARGET, "-m", whisper, "-F", "json", "--save", saved)
    assert attn("inspect", "--from", saved, "-F", "json").json == computed.json
    for words in ((), ("--words",)):
        found = attn("tokens", "--from", saved, "-F", "json", *words).json
        assert [token["text"] for token in found["tokens"]][1:] == TARGET.split()
        assert found["text"] == TARGET


def test_the_linter_runs_the_decoder_in_every_way(whisper: str, attn: Run) -> None:
    document = attn("check", "-m", whisper, "-F", "json").json
    assert document["ok"]
    assert {one["code"] for one in document["findings"]} == set()
    given = attn("check", "-m", whisper, "--target", TARGET, "-F", "json").json
    assert given == attn("check", "-m", whisper, TARGET, "-F", "json").json


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("inspect", "w7"), 4, "(whisper) reads a sound, not text; give a text model, or --target TEXT alone"),
        (("inspect", "w7", "--target", "w8"), 2, "(whisper) has no encoder of texts, but one of sounds; give --target"),
        (("check", "w7", "--target", "w8"), 2, "has no encoder of texts; give --target TEXT alone"),
        (("inspect", "--target", "w8", "--pair", "w7"), 2, "has no encoder of texts; give --target TEXT alone"),
        (("inspect", "--target", " "), 5, "the target is empty"),
        (("inspect", "--target", "w8 " * 500), 5, "the target has 501 tokens"),
        (("inspect", "--target", "w8", "--kind", "cross"), 2, "has decoder attention"),
        (("inspect", "--target", "w8", "--engine", "native"), 4, "it runs no decoder alone"),
        (("inspect", "--target", "w8", "--engine", "verify"), 4, "it runs no decoder alone"),
        (("inspect", "--target", "w8", "--generate", "2"), 4, "is an encoder-decoder; --generate continues a text"),
        (("inspect", "--target", "w8", "--chat"), 2, "--target does not apply to --chat"),
        (("diff", "--target", "w8"), 2, "one target to compare; give two checkpoints, -m A -m B"),
    ],
)
def test_what_makes_no_sense_is_refused(
    command: tuple[str, ...], code: int, said: str, whisper: str, attn: Run
) -> None:
    ran = attn(*command, "-m", whisper)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1


def test_standard_input_is_read_for_models_that_read_a_text_alone(
    whisper: str, t5: str, attn: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("inspect", "--target", "w8 w9", "-F", "json", "-m")
    assert attn(*command, whisper, stdin="w5 w6").json["text"] == ""
    assert attn(*command, t5, stdin="w5 w6").json["text"] == "w5 w6"
    both = ("diff", "--target", "w8 w9", "-F", "json", "-m", t5, "-m", t5)
    assert attn(*both, stdin="w5 w6").code == 0
    monkeypatch.setattr(sentences, "is_piped_in", lambda: False)
    assert attn(*command, whisper, stdin="w5 w6").code == 0
    for asked in ((*command, t5), both):
        ran = attn(*asked)
        assert (ran.code, ran.err) == (2, 'attn: give a sentence, such as "time flies like an arrow"\n')


def test_a_failure_takes_the_place_of_the_only_sentence(whisper: str, attn: Run) -> None:
    ran = attn("inspect", "--target", "w8 " * 500, "-m", whisper, "-F", "json", "--keep-errors")
    assert ran.code == 5
    assert "the target has 501 tokens" in json.loads(ran.out)["error"]


def test_a_target_alone_is_nothing_to_models_that_read_a_text(t5: str, tiny_llama: str) -> None:
    for model in (t5, tiny_llama):
        with pytest.raises(UsageError, match="give a sentence"):
            attncli.inspect(target="w8 w9", model=model)
