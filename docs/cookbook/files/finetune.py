"""Train the demo on random words, in which nothing repeats, and save it as run/ckpt-STEP."""

from pathlib import Path
from shutil import copy

import torch
from transformers import AutoModelForCausalLM

import attncli

demo = Path(attncli.__file__).parent / "checkpoints" / "demo"
model = AutoModelForCausalLM.from_pretrained(demo, dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(0)
for step in range(41):
    if step % 10 == 0:
        model.save_pretrained(f"run/ckpt-{step}")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            copy(demo / name, f"run/ckpt-{step}")
    ids = torch.randint(10, 2000, (4, 32))
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
