"""Generate 500 tokens with a small Llama, whose attention is fused or written out: what `attn run` is measured on.

python generating.py sdpa|eager
"""

from __future__ import annotations

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT, TOKENS = 12, 500
SIZES = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 1024, "max_position_embeddings": 1024}


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=6, num_attention_heads=8, eos_token_id=None, attn_implementation=sys.argv[1], **SIZES
    )
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(1, SIZES["vocab_size"], (1, PROMPT))
    out = model.generate(ids, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    print(out.shape[1], out[0, -1].item())


if __name__ == "__main__":
    main()
