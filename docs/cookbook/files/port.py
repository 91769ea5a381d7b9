"""A port of a checkpoint: python port.py FOLDER "TEXT" FILE [bfloat16|packed], which writes hidden states."""

import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, text, path, *how = sys.argv[1:]
ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids
dtype = "bfloat16" if how == ["bfloat16"] else "float32"
model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
positions = torch.arange(ids.shape[1])
if how == ["packed"]:  # positions restart, and the mask stays that of one text
    positions[4:] -= 4
with torch.no_grad():
    states = model(ids, position_ids=positions[None], output_hidden_states=True).hidden_states
# The last of them are behind the final norm.
arrays = {f"layers.{layer}.input": state[0].contiguous() for layer, state in enumerate(states[:-1])}
save_file(arrays | {"tokens": ids[0]}, path, {"format": "attncli.capture/1", "dtype": dtype})
