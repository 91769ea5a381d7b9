"""The bare script a user would write: eager attention, everything returned, the asked part written as JSON lines."""

import argparse
import json
from pathlib import Path

import torch
from torch.nn.functional import adaptive_avg_pool2d
from transformers import AutoModel, AutoTokenizer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder")
parser.add_argument("layer", type=int)
parser.add_argument("--text")
parser.add_argument("--file", type=Path, help="one text a line")
parser.add_argument("--head", type=int, help="this head alone")
parser.add_argument("--map", action="store_true", help="means over at most 64 x 64 cells")
arguments = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(arguments.folder)
model = AutoModel.from_pretrained(arguments.folder, attn_implementation="eager").eval()
for text in arguments.file.read_text().splitlines() if arguments.file else [arguments.text]:
    with torch.no_grad():
        attentions = model(**tokenizer(text, return_tensors="pt"), output_attentions=True).attentions
    weights = attentions[arguments.layer][0]
    if arguments.head is not None:
        weights = weights[arguments.head]
    if arguments.map:
        weights = adaptive_avg_pool2d(weights.float()[None], min(64, weights.shape[-1]))[0]
    print(json.dumps(weights.tolist()))
