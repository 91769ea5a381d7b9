"""Capture q, k and v of a transformers model by forward hooks: python capture.py MODEL TEXT FILE."""

import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

name, text, path = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(name, dtype="float32")
ids = AutoTokenizer.from_pretrained(name)(text, return_tensors="pt").input_ids
width = model.config.hidden_size // model.config.num_attention_heads
arrays = {"tokens": ids[0]}


def write(array):
    def hook(module, inputs, output):
        arrays[array] = output.reshape(len(ids[0]), -1, width).transpose(0, 1).contiguous()

    return hook


for index, layer in enumerate(model.model.layers):
    for part in ("q_proj", "k_proj", "v_proj"):
        getattr(layer.self_attn, part).register_forward_hook(write(f"layers.{index}.{part[0]}"))
with torch.no_grad():
    model(ids)
save_file(arrays, path, {"format": "attncli.capture/1", "rotated": "before", "dtype": "float32"})
