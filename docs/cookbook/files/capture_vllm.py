"""Capture rotated q, k and v of vLLM."""

import os

os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # to send a function to the process of the model

from vllm import LLM, SamplingParams


def capture(model):
    import torch
    from safetensors.torch import save_file

    arrays = {}

    def write(index, module):
        def hook(_, inputs):
            heads = (module.num_heads, module.num_kv_heads, module.num_kv_heads)
            for name, x, count in zip("qkv", inputs, heads, strict=False):
                rows = x.reshape(x.shape[0], count, -1).transpose(0, 1)
                arrays[f"layers.{index}.{name}"] = torch.clone(rows).cpu().contiguous()
            save_file(arrays, "run.safetensors", {"format": "attncli.capture/1"})

        module.register_forward_pre_hook(hook)

    attentions = [module for module in model.modules() if type(module).__name__ == "Attention"]
    for index, module in enumerate(attentions):
        write(index, module)


llm = LLM("Qwen/Qwen3-8B", enforce_eager=True)
llm.apply_model(capture)
llm.generate(["time flies like an arrow"], SamplingParams(max_tokens=1))
