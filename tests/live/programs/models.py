"""Programs that run a model of transformers, made of a small configuration."""

import torch
import transformers
from step import LENGTHS, REAL
from torch import Tensor

T = max(LENGTHS)
SMALL = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}


def words(pad_left: bool = False) -> dict[str, Tensor]:
    real = REAL.flip(1) if pad_left else REAL
    ids = torch.randint(1, 50, real.shape) * real
    return {"input_ids": ids, "attention_mask": real.long()}


def trained(model: torch.nn.Module, **inputs: Tensor) -> list[Tensor]:
    model.train()
    output = model(**inputs)  # <- every model is called here
    output[0].float().square().mean().backward()
    return [output[0].detach(), *(each.grad for each in model.parameters() if each.grad is not None)]


def evaluated(model: torch.nn.Module, **inputs: Tensor) -> list[Tensor]:
    model.eval()
    with torch.no_grad():
        return [model(**inputs)[0]]


def bert(attention: str) -> torch.nn.Module:
    return transformers.BertModel(transformers.BertConfig(**SMALL, num_hidden_layers=2, attn_implementation=attention))


def gpt2(attention: str) -> torch.nn.Module:
    config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    config._attn_implementation = attention
    return transformers.GPT2Model(config)


def llama(attention: str) -> torch.nn.Module:
    config = transformers.LlamaConfig(
        **SMALL, num_hidden_layers=2, num_key_value_heads=2, attn_implementation=attention
    )
    return transformers.LlamaModel(config)


def t5(attention: str) -> torch.nn.Module:
    config = transformers.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    config._attn_implementation = attention
    return transformers.T5Model(config)


# --- right -------------------------------------------------------------------------------------------------


def bert_eager():
    return trained(bert("eager"), **words())


def gpt2_sdpa():
    return trained(gpt2("sdpa"), **words())


def llama_left_padded():
    inputs = words(pad_left=True)
    positions = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
    return evaluated(llama("sdpa"), **inputs, position_ids=positions)


def t5_eager():
    inputs = words()
    return evaluated(t5("eager"), **inputs, decoder_input_ids=inputs["input_ids"][:, :5])


# --- wrong -------------------------------------------------------------------------------------------------
