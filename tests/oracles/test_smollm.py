"""A real language model in a GGUF file: ids by llama.cpp's definition, attention by transformers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from readme import pages
from smollm import smollm_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

import attncli
from attncli.analysis.ablation import AblationChoice, ablation
from attncli.encoding.induction_probe import repeated_sequences
from attncli.engines.engine import open_predictor
from attncli.engines.tokenize import open_tokenizer

TEXTS = (
    "When Mary and John went to the store, John gave a drink to",
    "In 1969 2 men, not 34567, walked 3.14 km; it's what they've said.",
    "def f(x):\n\treturn x ** 2  # 10 %\n\n\n  if  True:\n",
    "Grüße aus Zürich, naïve café — “quoted”… ½ ②",
    "時は矢のように飛ぶ。 Время летит. الوقت يطير",
    "🏳️‍🌈👩‍👩‍👧 emoji   and    runs of blanks    ",
    "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n",
    "I'LL THEY'RE don't 'tis 's 're\u00a0nbsp\u3000wide",
)


def test_ids_are_those_of_the_definition() -> None:
    """In llama.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM: single digits, then GPT-2's expression on what is left."""
    fields = GGUFReader(smollm_file()).fields
    tokens, kinds, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges"))
    ids = {token: index for index, token in enumerate(tokens)}
    defined = Tokenizer(models.BPE(ids, [*map(tuple, map(str.split, merges))]))
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    defined.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_bytes])
    defined.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind in (3, 4)])
    tokenizer = open_tokenizer(model=str(smollm_file()))
    for text in TEXTS:
        assert tokenizer.tokenize(text).tokens.ids == defined.encode(text).ids, text


def field(reader: GGUFReader, name: str) -> Any:
    return reader.fields[name].contents()


@pytest.fixture(scope="module")
def original() -> LlamaForCausalLM:
    reader = GGUFReader(smollm_file())
    heads, kv_heads = field(reader, "llama.attention.head_count"), field(reader, "llama.attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=len(field(reader, "tokenizer.ggml.tokens")), hidden_size=field(reader, "llama.embedding_length"),
        intermediate_size=field(reader, "llama.feed_forward_length"),
        num_hidden_layers=field(reader, "llama.block_count"), num_attention_heads=heads, num_key_value_heads=kv_heads,
        rms_norm_eps=float(field(reader, "llama.attention.layer_norm_rms_epsilon")),
        rope_parameters={"rope_type": "default", "rope_theta": float(field(reader, "llama.rope.freq_base"))},
        max_position_embeddings=field(reader, "llama.context_length"), tie_word_embeddings=True,
        attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}  # fmt: skip
    whole = {"token_embd": "embed_tokens", "output_norm": "norm"}
    state = {}
    for tensor in reader.tensors:
        array = torch.tensor(dequantize(tensor.data, tensor.tensor_type), dtype=torch.float32)
        part = tensor.name.removesuffix(".weight")
        if part in whole:
            state[f"model.{whole[part]}.weight"] = array
            continue
        _, layer, kind = part.split(".")
        if kind in ("attn_q", "attn_k"):
            # Two rows of a head are rotated together: side by side in the file, half a head apart in transformers.
            count = heads if kind == "attn_q" else kv_heads
            width = len(array) // count
            order = [head * width + 2 * (row % (width // 2)) + row // (width // 2)
                     for head in range(count) for row in range(width)]  # fmt: skip
            array = array[order]
        state[f"model.layers.{layer}.{names[kind]}.weight"] = array
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


def test_every_layer_has_the_attention_of_the_dequantized_original(original: LlamaForCausalLM) -> None:
    for text in TEXTS[:2]:
        trace = attncli.inspect(text, model=str(smollm_file()), layer="all")
        with torch.no_grad():
            attentions = original(torch.tensor([trace.key_tokens.ids]), output_attentions=True).attentions
        assert len(trace.layers) == len(attentions) == 30
        for layer, expected in zip(trace.layers, attentions, strict=True):
            shown = np.stack([layer.head(head).weights for head in range(layer.num_heads)])
            np.testing.assert_allclose(shown, expected[0].numpy(), atol=1e-5)


@torch.no_grad()
def test_removing_a_head_and_its_direct_share_are_what_hooks_in_the_original_give(original: LlamaForCausalLM) -> None:
    model, predictor = original, open_predictor(str(smollm_file()), special=True)
    choice = AblationChoice(next=" Mary", against=" John", head="2.0,7.3,13.7,19.5,24.2,29.8", each=True)
    found = ablation(predictor, choice, TEXTS[0])
    ids = torch.tensor([found.tokens.ids])
    assert found.next is not None
    assert found.against is not None
    two, width = [found.next.id, found.against.id], model.config.head_dim
    projections = [layer.self_attn.o_proj for layer in model.model.layers]
    entering: dict[Any, torch.Tensor] = {}
    hooks = [
        each.register_forward_pre_hook(lambda each, inputs: entering.update({each: inputs[0][0, -1].double()}))
        for each in (*projections, model.model.norm)
    ]

    def difference() -> float:
        logits = model(ids).logits[0, -1]
        return float(logits[two[0]] - logits[two[1]])

    assert abs(found.before - difference()) < 1e-4
    for hook in hooks:
        hook.remove()
    assert len(found.heads) == 6
    norm, rows = model.model.norm, model.lm_head.weight[two].double()
    direction = (rows[0] - rows[1]) * norm.weight.double()
    for one in found.heads:
        own, projection = slice(one.head * width, (one.head + 1) * width), projections[one.layer]

        def cut(_: Any, inputs: tuple[torch.Tensor], own: slice = own) -> tuple[torch.Tensor]:
            outputs = inputs[0].clone()
            outputs[..., own] = 0
            return (outputs,)

        with projection.register_forward_pre_hook(cut):
            assert abs(one.after - difference()) < 1e-4
        held = direction / torch.sqrt(entering[norm].pow(2).mean() + norm.variance_epsilon)
        output = projection.weight.double()[:, own] @ entering[projection][own]
        assert one.direct is not None
        assert abs(one.direct - float(held @ output)) < 1e-4


def test_its_strongest_induction_heads_are_those_of_the_page_on_explanation() -> None:
    """What the model loses without them (Olsson et al. 2022) is on that page, docs/cookbook/explanation.md."""
    model = str(smollm_file())
    texts = repeated_sequences(model)[:2]  # which are enough to tell them from the others
    found = [(one.metrics["induction"] or 0, f"{one.layer}.{one.head}") for one in attncli.heads(texts, model).heads]
    shares, heads = zip(*sorted(found, reverse=True)[:6], strict=True)
    (of_the_page, *_) = re.findall(r"--head ((?:[\d.]+,){4}[\d.]+) ", pages()["docs/cookbook/explanation.md"])
    assert {*heads[:5]} == {*of_the_page.split(",")}
    assert shares[0] > 0.85
    assert shares[4] > 0.6 > shares[5]
