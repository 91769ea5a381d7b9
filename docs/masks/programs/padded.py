"""A batch padded on the left, as for generation."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2)
model = GPT2LMHeadModel(config).eval()
is_word = torch.tensor([[1] * 8, [0] * 3 + [1] * 5])
ids = torch.randint(3, 100, (2, 8)) * is_word
positions = {"position_ids": (is_word.cumsum(1) - 1).clamp(min=0)} if "--positions" in sys.argv else {}
model(ids, attention_mask=is_word, **positions)
