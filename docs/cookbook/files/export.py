"""Export `-m demo` to ONNX: as it is, and with a wrapper that forgets the causal mask."""

import shutil
import sys
from pathlib import Path

import attncli
import torch
from transformers import AutoModelForCausalLM

DEMO = Path(attncli.__file__).parent / "checkpoints/demo"


class Exported(torch.nn.Module):
    """The forward of the graph."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
        self.is_causal = is_causal

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        if not self.is_causal:
            attention_mask = attention_mask[:, None, None].bool().expand(-1, 1, input_ids.shape[1], -1)
        return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


def export(folder: str, is_causal: bool) -> None:
    """Write the graph, with the configuration and the tokenizer beside it."""
    Path(folder).mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder)
    ids = torch.ones(2, 8, dtype=torch.int64)
    inputs = ["input_ids", "attention_mask"]
    axes = {name: {0: "batch", 1: "tokens"} for name in inputs}
    path = f"{folder}/model.onnx"
    torch.onnx.export(Exported(is_causal), (ids, ids), path, input_names=inputs, dynamic_axes=axes, dynamo=False)


if __name__ == "__main__":
    export("demo-onnx", is_causal=True)
    if "--both" in sys.argv:
        export("demo-full", is_causal=False)
