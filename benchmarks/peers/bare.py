"""The bare script a user would write: eager attention, everything returned, one layer written as JSON."""

import json
import sys

import torch
from transformers import AutoModel, AutoTokenizer

folder, text, layer = sys.argv[1], sys.argv[2], int(sys.argv[3])
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
with torch.no_grad():
    attentions = model(**tokenizer(text, return_tensors="pt"), output_attentions=True).attentions
json.dump(attentions[layer][0].tolist(), sys.stdout)
