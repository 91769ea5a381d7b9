"""Three documents packed into one sequence, told apart by position ids that begin again at 0."""

import torch
from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM

small = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "use_cache": False, "pad_token_id": 0,
}  # fmt: skip
positions = torch.cat([torch.arange(length) for length in (3, 4, 5)])[None]
torch.manual_seed(0)
for model_class, config in (
    (LlamaForCausalLM, LlamaConfig(**small)),
    (GptOssForCausalLM, GptOssConfig(**small, num_local_experts=4)),
):
    model = model_class(config).eval()
    model(torch.randint(1, 100, (1, 12)), position_ids=positions)
