"""Chat templates in the manner of well-known checkpoints, and a tiny checkpoint whose tokenizer has their controls."""

import json
from pathlib import Path
from typing import Any

CHATML = """
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA_3 = """{% set loop_messages = messages %}{% for message in loop_messages %}
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' %}
{% set content = content + message['content'] | trim + '<|eot_id|>' %}
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}
{{ content }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

GENERATION = """
{%- for message in messages %}
{%- if message.role == 'assistant' %}<|im_start|>assistant
{% generation %}{{ message.content }}<|im_end|>
{% endgeneration %}
{%- else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- if loop.index > 8 %}{% break %}{% endif %}
{%- endfor %}"""

TEMPLATES = {"chatml": CHATML, "llama 3": LLAMA_3, "generation": GENERATION}
# Of a model that reads pictures too: it takes contents in parts.
IN_PARTS = """{% for message in messages %}<|im_start|>{{ message.role }}
{% for part in message.content %}{% if part.type == 'image' %}<image>{% elif part.type == 'text' %}{{ part.text }}
{%- endif %}{% endfor %}<|im_end|>
{% endfor %}"""
CONTROLS = (
    "<|im_start|> <|im_end|> <|start_header_id|> <|end_header_id|> <|eot_id|> <start_of_turn> <end_of_turn> [INST] "
    "[/INST] <s> </s>"
).split()


def save_chat_model(folder: Path) -> None:
    """Save a tiny Llama of random weights, whose vocabulary is of bytes and controls, without a template."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["time flies like an arrow user system assistant model helpful"] * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROLS])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer.get_vocab()), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=512, initializer_range=0.5,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def write_template(folder: Path, template: str | None, form: str = "file") -> None:
    """Give a checkpoint a template: in a file, in tokenizer_config.json, or there as one of several."""
    path = folder / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    config.pop("chat_template", None)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    if template is not None and form == "file":
        (folder / "chat_template.jinja").write_text(template)
    elif template is not None:
        other = {"name": "tool_use", "template": "nothing"}
        several = [other, {"name": "default", "template": template}]
        config["chat_template"] = several if form == "several" else template
    path.write_text(json.dumps(config))
