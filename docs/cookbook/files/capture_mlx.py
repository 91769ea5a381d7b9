"""Capture rotated q and k of mlx_lm."""

import mlx.core as mx
from mlx_lm import load

model, tokenizer = load("mlx-community/Qwen3-0.6B-bf16")
ids, arrays = tokenizer.encode("time flies like an arrow"), {}


class Rope:
    def __init__(self, rope, index):
        self.rope, self.index, self.names = rope, index, ["q", "k"]

    def __call__(self, x, *args, **options):
        y = self.rope(x, *args, **options)
        arrays[f"layers.{self.index}.{self.names.pop(0)}"] = y[0]
        return y


for index, layer in enumerate(model.layers):
    layer.self_attn.rope = Rope(layer.self_attn.rope, index)
model(mx.array([ids]))
arrays["tokens"] = mx.array(ids)
mx.save_safetensors("run.safetensors", arrays, {"format": "attncli.capture/1"})
