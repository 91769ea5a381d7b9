"""The best loop a user could write: one head in row blocks inside the model's attention, then the pass is ended."""

import argparse
import json
from contextlib import suppress
from pathlib import Path

import torch
from torch.nn.functional import adaptive_avg_pool1d, pad
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, AutoTokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ROWS = 256  # of one block

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder")
parser.add_argument("layer", type=int)
parser.add_argument("--file", type=Path, required=True, help="one text a line")
parser.add_argument("--head", type=int, required=True)
parser.add_argument("--map", action="store_true", help="means over at most 64 x 64 cells instead of every weight")
arguments = parser.parse_args()


class PassEnded(Exception):  # noqa: N818 - it is no error
    """The asked layer was reached, nothing above it is needed."""


def watched(module, query, key, value, attention_mask, **options):
    """Run the layers below with torch's own attention; write the head of the asked one."""
    if module.layer_idx != arguments.layer:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    assert attention_mask is None, "one text without padding needs none beside is_causal"
    causal = options.get("is_causal", module.is_causal)
    queries = query[0, arguments.head] * options["scaling"]
    keys = key[0, arguments.head * key.shape[1] // query.shape[1]]
    length, pooled = len(keys), []
    for start in range(0, length, ROWS):
        seen = min(start + ROWS, length) if causal else length  # no row of the block looks further
        scores = (queries[start : start + ROWS] @ keys[:seen].T).float()
        if causal:
            scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(start + 1), -torch.inf)
        rows = pad(scores.softmax(-1), (0, length - seen))
        if arguments.map:
            pooled.append(adaptive_avg_pool1d(rows, min(64, length)))
        else:
            print(", " if start else "[", json.dumps(rows.tolist())[1:-1], sep="", end="")
    print(json.dumps(adaptive_avg_pool1d(torch.cat(pooled).T, min(64, length)).T.tolist()) if pooled else "]")
    raise PassEnded


AttentionInterface.register("watched", watched)
AttentionMaskInterface.register("watched", sdpa_mask)
tokenizer = AutoTokenizer.from_pretrained(arguments.folder)
model = AutoModel.from_pretrained(arguments.folder, attn_implementation="watched").eval()
model.config.use_cache = False
for text in arguments.file.read_text().splitlines():
    with torch.inference_mode(), suppress(PassEnded):
        model(**tokenizer(text, return_tensors="pt"))
